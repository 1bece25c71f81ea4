"""A job that begins where another one ended, with more to do: how trials are promoted."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from executor_stub import overlay
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.sessions.checkpoint import Checkpoints
from penstock.sessions.loop_position import FinishedLoops, LoopHistory
from penstock.sessions.setup import read
from sweeps import examples


def trained(folder: Path, loops: list[int], begin: Path | None = None, **env: str) -> tuple[list[str], int, int]:
    """Run a script of loops of such lengths; return what it saw over all runs, its steps, and those of this run."""
    seen: list[str] = []
    now = 0

    def save(path: Path) -> None:
        (path / "seen").write_text("\n".join(seen))

    def load(path: Path) -> None:
        seen.extend(filter(None, (path / "seen").read_text().split("\n")))

    more = {"BEGIN_DIR": str(begin)} if begin is not None else {}
    setup = read(overlay({}, CHECKPOINT_DIR=str(folder), **{"SAVE_AT_END": "1", **more, **env}))
    with penstock.Session(setup) as session:
        session.on_checkpoint(save, load)
        for number, length in enumerate(loops):
            for item in session.iterations(range(length)):
                seen.append(f"{number}/{item}")
                now += 1
    return seen, session.step, now


def test_a_longer_loop_goes_on_where_the_shorter_one_ended(tmp_path: Path) -> None:
    trained(tmp_path / "a", [3])
    assert trained(tmp_path / "b", [9], tmp_path / "a") == ([f"0/{i}" for i in range(9)], 9, 6)


def test_more_epochs_go_on_after_the_last_one(tmp_path: Path) -> None:
    trained(tmp_path / "a", [2, 2])
    seen, steps, now = trained(tmp_path / "b", [2, 2, 2, 2], tmp_path / "a")
    assert (seen, steps, now) == ([f"{n}/{i}" for n in range(4) for i in range(2)], 8, 4)


@settings(max_examples=examples(12))
@given(rungs=st.lists(st.integers(1, 6), min_size=2, max_size=4), epochs=st.booleans())
def test_rung_upon_rung_does_each_step_once(tmp_path_factory: pytest.TempPathFactory, rungs: list[int], epochs: bool):
    folder = tmp_path_factory.mktemp("rungs")
    begin, total = None, 0
    for number, more in enumerate(rungs):
        total += more
        loops = [2] * total if epochs else [total]
        seen, steps, now = trained(folder / str(number), loops, begin)
        assert len(set(seen)) == len(seen) == steps == sum(loops)
        assert now == more * (2 if epochs else 1)
        begin = folder / str(number)


def test_a_job_that_was_preempted_after_it_had_begun_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path / "a", [3])
    trained(tmp_path / "b", [5], tmp_path / "a")
    assert trained(tmp_path / "b", [5], tmp_path / "a", EPOCH="2") == ([f"0/{i}" for i in range(5)], 5, 0)


def test_the_checkpoints_that_it_begins_from_are_left_as_they_are(tmp_path: Path) -> None:
    trained(tmp_path / "a", [3])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    trained(tmp_path / "b", [9], tmp_path / "a", CHECKPOINT_S="1e-9", EPOCH="7")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")} == before


def test_where_there_is_nothing_to_begin_from_training_starts_from_the_beginning(tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="penstock.session"):
        assert trained(tmp_path / "b", [4], tmp_path / "gone")[2] == 4
    assert "nothing_to_begin_from" in caplog.text


def test_nothing_is_saved_at_the_end_unless_asked_for_nor_after_a_crash(tmp_path: Path) -> None:
    trained(tmp_path / "a", [3], SAVE_AT_END="0")
    assert list(Checkpoints(tmp_path / "a").complete()) == []
    with pytest.raises(TypeError):
        trained(tmp_path / "c", [3, None])  # type: ignore[list-item]
    assert list(Checkpoints(tmp_path / "c").complete()) == []


@pytest.mark.parametrize(("code", "kept"), [(0, 1), (None, 1), (3, 0)])
def test_a_script_that_exits_inside_the_session_has_ended_as_its_exit_code_says(tmp_path: Path, code, kept) -> None:
    def script() -> None:
        with penstock.Session(read(overlay({}, CHECKPOINT_DIR=str(tmp_path), SAVE_AT_END="1"))) as session:
            session.on_checkpoint(lambda path: (path / "x").write_text(""), lambda _path: None)
            for _ in session.iterations(range(3)):
                pass
            sys.exit(code)

    with pytest.raises(SystemExit):
        script()
    assert len(list(Checkpoints(tmp_path).complete())) == kept


def test_a_sample_neither_begins_elsewhere_nor_saves(tmp_path: Path) -> None:
    trained(tmp_path / "a", [3])
    with pytest.raises(SystemExit):
        trained(tmp_path / "b", [9], tmp_path / "a", SAMPLE_ITERATIONS="2")
    assert not (tmp_path / "b").exists()


def test_a_history_cut_off_inside_a_loop_is_as_open_as_it_was():
    cut = LoopHistory([FinishedLoops(5, 1)], items=2)
    assert cut.reopened() == cut
    assert LoopHistory().reopened() == LoopHistory()
