from __future__ import annotations

import itertools
import logging
import stat
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from executor_stub import overlay
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.sessions.checkpoint import MANIFEST, CheckpointDamaged, Checkpoints, Superseded
from penstock.sessions.loop_position import LoopHistory, LoopRecord, skip
from penstock.sessions.setup import SessionError, read


class Stopped(Exception):
    """Ends a run in the middle, as a crash does."""


def write(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "state").write_text(text)


def texts(checkpoints: Checkpoints) -> list[str]:
    return [(path / "state").read_text() for path, _ in checkpoints.complete()]


def run(folder: Path, script: Callable[[penstock.Session, list[object]], None], **env: str) -> list[object]:
    """Run a script whose state is the list of what it has seen; a checkpoint after every step unless said otherwise."""
    seen: list[object] = []

    def save(path: Path) -> None:
        (path / "seen").write_text(repr(seen))

    def load(path: Path) -> None:
        seen[:] = eval((path / "seen").read_text())  # noqa: S307 - written by save

    setup = read(overlay({}, CHECKPOINT_DIR=str(folder), **{"CHECKPOINT_S": "1e-9", **env}))
    with penstock.Session(setup) as session:
        session.on_checkpoint(save, load)
        script(session, seen)
    return seen


def test_a_checkpoint_is_complete_and_the_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").touch()
    for step in (1, 9, 10):
        checkpoints.save(step, LoopHistory(), write(str(step)))
    assert texts(checkpoints) == ["10", "9"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["notes.txt", "step-10", "step-9"]


def test_each_file_has_a_checksum_by_which_a_copy_is_checked(tmp_path: Path) -> None:
    text = "x" * (3 << 20)
    Checkpoints(tmp_path).save(1, LoopHistory(), write(text))
    ((_, manifest),) = Checkpoints(tmp_path).complete()
    assert manifest.checksums == {"state": zlib.crc32(text.encode())}


def test_checkpoints_are_for_their_owner_only(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "j").save(1, LoopHistory(), write("x"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "j", tmp_path / "j" / "step-1")] == [0o700] * 2


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before_untouched(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, LoopHistory(), write("good"))

    def full(folder: Path) -> None:
        (folder / "state").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(2, LoopHistory(), full)
    assert texts(checkpoints) == ["good"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize("damage", ["truncated", "no manifest", "manifest garbled", "file gone", "other format"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, LoopHistory(), write("older"))
    checkpoints.save(2, LoopHistory(), write("newer"))
    newer = tmp_path / "step-2"
    match damage:
        case "truncated":
            (newer / "state").write_text("new")
        case "no manifest":
            (newer / MANIFEST).unlink()
        case "manifest garbled":
            (newer / MANIFEST).write_text('{"format":')
        case "file gone":
            (newer / "state").unlink()
        case _:
            manifest = newer / MANIFEST
            manifest.write_text(manifest.read_text().replace('"format":1', '"format":99'))
    loaded: list[str] = []
    with caplog.at_level(logging.WARNING, "penstock.session"):
        manifest_ = Checkpoints(tmp_path).load(lambda folder: loaded.append((folder / "state").read_text()))
    assert manifest_ is not None
    assert (manifest_.step, loaded) == (1, ["older"])
    assert "checkpoint_incomplete" in caplog.text


def test_a_checkpoint_that_the_script_cannot_load_falls_back_too_and_is_replaced_later(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, LoopHistory(), write("1"))
    checkpoints.save(2, LoopHistory(), write("x"))
    again = Checkpoints(tmp_path)
    manifest = again.load(lambda folder: int((folder / "state").read_text()))
    assert manifest is not None
    assert manifest.step == 1
    again.save(2, LoopHistory(), write("2"))
    assert texts(again) == ["2", "1"]


def test_a_job_none_of_whose_checkpoints_loads_does_not_start_from_half_a_state(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(3, LoopHistory(), write("x"))
    with pytest.raises(
        CheckpointDamaged, match=r"no checkpoint in .* can be loaded \(step-3: ValueError.*move the fold"
    ):
        Checkpoints(tmp_path).load(lambda folder: int((folder / "state").read_text()))


def test_what_a_crash_left_unfinished_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-abc").mkdir()
    run(tmp_path, lambda _session, _seen: None)
    assert [path.name for path in tmp_path.iterdir()] == [".epoch"]


def nested(session: penstock.Session, seen: list[object]) -> None:
    for epoch in range(4):
        for item in session.iterations(x * 2 for x in range(5)):
            seen.append((epoch, item))
            if epoch == 1 and item == 4:
                break
        if not session.replaying:
            seen.append(f"evaluated {epoch}")


@pytest.mark.parametrize("crash_after", range(1, 21))
def test_a_resumed_script_repeats_and_omits_nothing_wherever_it_crashed(tmp_path: Path, crash_after: int) -> None:
    straight = run(tmp_path / "straight", nested)

    def crashing(session: penstock.Session, seen: list[object]) -> None:
        nested(session, CrashingList(seen, crash_after))

    with pytest.raises(Stopped):
        run(tmp_path / "resumed", crashing)
    assert run(tmp_path / "resumed", nested) == straight


class CrashingList(list[object]):
    """Passes on to another list, up to a length."""

    def __init__(self, into: list[object], most: int) -> None:
        super().__init__()
        self._into, self._most = into, most

    def append(self, value: object) -> None:
        if len(self._into) >= self._most:
            raise Stopped
        self._into.append(value)


@pytest.mark.parametrize("items", [range(10**12), itertools.count()])
def test_a_long_range_is_entered_at_its_place_and_a_stream_is_consumed(tmp_path: Path, items: Iterable[int]) -> None:
    def until(most: int) -> Callable[[penstock.Session, list[object]], None]:
        def script(session: penstock.Session, seen: list[object]) -> None:
            for item in session.iterations(items if isinstance(items, range) else itertools.count()):
                if len(seen) == most:
                    raise Stopped
                seen.append(item)
                if item == 19:
                    break

        return script

    with pytest.raises(Stopped):
        run(tmp_path, until(10))
    assert run(tmp_path, until(1000)) == list(range(20))


def test_on_checkpoint_comes_once_and_before_the_first_loop(tmp_path: Path) -> None:
    def late(session: penstock.Session, _: list[object]) -> None:
        with pytest.raises(SessionError, match="called once, and before the first iterations"):
            session.on_checkpoint(write("a"), write("b"))

    run(tmp_path, late)


def test_a_sample_neither_saves_nor_loads_checkpoints(tmp_path: Path) -> None:
    run(tmp_path, nested)
    before = sorted(tmp_path.rglob("*"))

    def script(session: penstock.Session, seen: list[object]) -> None:
        assert (session.sampling, session.checkpoint_dir, session.step, seen) == (True, None, 0, [])
        nested(session, seen)

    with pytest.raises(SystemExit) as left:
        run(tmp_path, script, SAMPLE_ITERATIONS="3")
    assert left.value.code == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_other_ranks_load_but_never_save(tmp_path: Path) -> None:
    straight = run(tmp_path, nested)
    before = {path.name for path in tmp_path.iterdir()}
    assert run(tmp_path, nested, RANK="1", WORLD_SIZE="2")[:2] == straight[:2]
    assert {path.name for path in tmp_path.iterdir()} == before


def test_should_checkpoint_tells_that_this_step_ends_with_one(tmp_path: Path) -> None:
    told: list[bool] = []

    def script(session: penstock.Session, _: list[object]) -> None:
        told.extend(session.should_checkpoint for _ in session.iterations(range(2)))

    run(tmp_path / "often", script)
    assert told == [True, True]
    run(tmp_path / "never", script, CHECKPOINT_S="0")
    assert told[2:] == [False, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4))), st.integers(0, 9))
def test_a_history_replays_every_loop_in_order(runs: list[tuple[int, int]], open_items: int) -> None:
    loops = [items for items, count in runs for _ in range(count)]
    history = LoopHistory()
    for items in loops:
        history.items = items
        history.end()
    history.items = open_items
    ended = [LoopRecord(items=items, state="ended") for items in loops]
    assert list(history.replay()) == [*ended, *[LoopRecord(items=open_items)] * bool(open_items)]
    assert len(history.ended) <= len(runs)


@given(st.lists(st.integers()), st.integers(0, 30))
def test_skipping_is_the_same_for_sequences_and_streams(items: list[int], count: int) -> None:
    assert list(skip(items, count)) == list(skip(iter(items), count)) == items[count:]


def test_a_run_that_was_given_up_saves_nothing_over_its_successors_checkpoints(tmp_path):
    stale, successor = Checkpoints(tmp_path, epoch=1), Checkpoints(tmp_path, epoch=2)
    stale.claim()
    stale.save(5, LoopHistory(), write("old"))
    successor.claim()
    successor.save(7, LoopHistory(), write("new"))
    with pytest.raises(Superseded, match="run 2 of this job has its checkpoints now; this is run 1"):
        stale.save(90, LoopHistory(), write("stale"))
    with pytest.raises(Superseded):
        stale.claim()
    loaded = []
    manifest = Checkpoints(tmp_path, epoch=3).load(lambda folder: loaded.append((folder / "state").read_text()))
    assert manifest is not None
    assert (manifest.step, loaded) == (7, ["new"])
    assert not list(tmp_path.glob(".unfinished-*"))


def test_a_claim_whose_text_a_crash_took_keeps_nobody_out(tmp_path):
    (tmp_path / ".epoch").write_text("")
    checkpoints = Checkpoints(tmp_path, epoch=1)
    checkpoints.claim()
    checkpoints.save(1, LoopHistory(), write("x"))
    assert [manifest.step for _, manifest in checkpoints.complete()] == [1]
