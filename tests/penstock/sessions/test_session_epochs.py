"""Loops over epochs: what stands behind each is done once, however often the job is stopped, killed or gone on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from executor_stub import ExecutorStub, overlay, small_executor
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.sessions.checkpoint import Checkpoints
from penstock.sessions.setup import SessionError, read
from penstock_log.agent_protocol import (
    EXIT_PREEMPTED,
    CheckpointSaved,
    SessionDone,
    StepReached,
    StopAtStep,
    StopRequest,
)
from sweeps import examples


class Killed(Exception):
    """The process ends here."""


class Log:
    """What a script has done, kept in its checkpoints; it is killed after so many entries."""

    def __init__(self, session: penstock.Session, kill_after: int | None) -> None:
        self.done: list[str] = []
        self._left = kill_after
        session.on_checkpoint(
            lambda folder: (folder / "done").write_text("\n".join(self.done)),
            lambda folder: self.done.extend(filter(None, (folder / "done").read_text().split("\n"))),
        )

    def add(self, entry: str) -> None:
        if self._left is not None:
            if not self._left:
                raise Killed
            self._left -= 1
        self.done.append(entry)


Script = Callable[[penstock.Session, Log, int, int], None]


def with_epochs(session: penstock.Session, log: Log, epochs: int, batches: int) -> None:
    for epoch in session.epochs(epochs):
        for batch in session.iterations(range(batches)):
            loss = f"{epoch}/{batch}"
            log.add(loss)
        if batches:
            log.add(f"end of {epoch} with {loss}")


def with_loops(session: penstock.Session, log: Log, epochs: int, batches: int) -> None:
    for epoch in range(epochs):
        for batch in session.iterations(range(batches)):
            log.add(f"{epoch}/{batch}")
        if not session.replaying:
            log.add(f"end of {epoch} with {epoch}/{batches - 1}")


def with_two_loops(session: penstock.Session, log: Log, epochs: int, batches: int) -> None:
    for epoch in session.epochs(epochs):
        for half in "ab":
            for batch in session.iterations(range(batches)):
                log.add(f"{epoch}{half}/{batch}")
            if not session.replaying:
                log.add(f"end of {epoch}{half}")
        log.add(f"end of {epoch}")


def whole(script: Script, epochs: int, batches: int) -> list[str]:
    """Return what the script does by hand, without being stopped."""
    with penstock.session() as session:
        log = Log(session, None)
        script(session, log, epochs, batches)
    return log.done


def run(
    script: Script, folder: Path, epochs: int, batches: int, *, kill_after: int | None = None, **env: str
) -> list[str] | None:
    """Run it with a checkpoint whenever one may be taken; None if it was killed."""
    setup = read(overlay({}, CHECKPOINT_DIR=str(folder), **{"CHECKPOINT_S": "1e-9", **env}))
    try:
        with penstock.Session(setup) as session:
            log = Log(session, kill_after)
            script(session, log, epochs, batches)
    except Killed:
        return None
    return log.done


SCRIPTS = [with_epochs, with_loops, with_two_loops]


@pytest.mark.parametrize("script", SCRIPTS)
@settings(max_examples=examples(12), deadline=None)
@given(epochs=st.integers(1, 4), batches=st.integers(1, 4), kills=st.lists(st.integers(0, 12), max_size=4))
def test_a_script_that_is_killed_again_and_again_does_what_one_does_that_is_not(
    tmp_path_factory: pytest.TempPathFactory, script: Script, epochs: int, batches: int, kills: list[int]
) -> None:
    folder, done = tmp_path_factory.mktemp("job"), None
    for attempt, kill_after in enumerate([*kills, None]):
        done = run(script, folder, epochs, batches, kill_after=kill_after, EPOCH=str(attempt + 1))
        if done is not None:
            break
    assert done == whole(script, epochs, batches)


@pytest.mark.parametrize("script", SCRIPTS)
@settings(max_examples=8, deadline=None)
@given(rungs=st.lists(st.integers(0, 3), min_size=1, max_size=4), batches=st.integers(1, 3), checkpoint=st.booleans())
def test_a_chain_of_jobs_does_what_one_does_that_was_never_cut(
    tmp_path_factory: pytest.TempPathFactory, script: Script, rungs: list[int], batches: int, checkpoint: bool
) -> None:
    folder, total, begin, done = tmp_path_factory.mktemp("jobs"), 0, {}, None
    for number, more in enumerate([1, *rungs]):
        total += more
        env = {"SAVE_AT_END": "1", "CHECKPOINT_S": "1e-9" if checkpoint else "0", **begin}
        done = run(script, folder / str(number), total, batches, **env)
        begin = {"BEGIN_DIR": str(folder / str(number))}
    assert done == whole(script, total, batches)


def test_a_schedule_is_stepped_once_for_each_epoch_over_a_chain_of_promotions(tmp_path: Path) -> None:
    """As it was reported: 2 epochs, then 4 of a job that begins from them; and 18 epochs in four rungs."""
    for script in (with_epochs, with_loops):
        for number, epochs in enumerate((2, 4, 6, 18)):
            begin = {"BEGIN_DIR": str(tmp_path / script.__name__ / str(number - 1))} if number else {}
            where = tmp_path / script.__name__ / str(number)
            done = run(script, where, epochs, 10, CHECKPOINT_S="0", SAVE_AT_END="1", **begin)
            assert done is not None
            assert sum(entry.startswith("end") for entry in done) == epochs


@pytest.mark.parametrize(("before", "after"), [(with_loops, with_epochs), (with_epochs, with_loops)])
@pytest.mark.parametrize("kill_after", [0, 2, 5, 6, 9, 10])
def test_a_script_may_be_given_the_other_form_between_two_runs(
    tmp_path: Path, before: Script, after: Script, kill_after: int
) -> None:
    """But for checkpoints at the last step of a plain loop: what stands behind it is still to be done."""
    assert run(before, tmp_path, 3, 3, kill_after=kill_after) is None
    assert run(after, tmp_path, 3, 3, EPOCH="2") == whole(with_epochs, 3, 3)


def test_a_finished_job_in_the_old_form_is_gone_on_from_in_the_new_one(tmp_path: Path) -> None:
    run(with_loops, tmp_path / "a", 2, 3, SAVE_AT_END="1", CHECKPOINT_S="0")
    assert run(with_epochs, tmp_path / "b", 4, 3, BEGIN_DIR=str(tmp_path / "a")) == whole(with_epochs, 4, 3)


@pytest.mark.parametrize(("now", "begins"), [(1, []), (2, [1]), (3, [1, 2])])
def test_another_number_of_epochs_after_a_resume_is_what_there_are_in_all(
    tmp_path: Path, now: int, begins: list[int]
) -> None:
    assert run(with_epochs, tmp_path, 2, 3, kill_after=6) is None  # in the second epoch
    with penstock.Session(read(overlay({}, CHECKPOINT_DIR=str(tmp_path), EPOCH="2"))) as session:
        Log(session, None)
        assert [epoch for epoch in session.epochs(now) for _ in session.iterations(range(1))] == begins[1:]
        assert not session.replaying


def test_what_stands_before_the_loop_of_a_resumed_epoch_knows_that_it_was_done(tmp_path: Path) -> None:
    def script(session: penstock.Session, log: Log, epochs: int, batches: int) -> None:
        for epoch in session.epochs(epochs):
            if not session.replaying:
                log.add(f"begin of {epoch}")
            for batch in session.iterations(range(batches)):
                log.add(f"{epoch}/{batch}")

    assert run(script, tmp_path, 2, 3, kill_after=6) is None
    assert run(script, tmp_path, 2, 3, EPOCH="2") == whole(script, 2, 3)


def test_without_a_service_epochs_are_a_plain_loop() -> None:
    with penstock.session() as session:
        assert [(e, b) for e in session.epochs(2) for b in session.iterations("xy")] == [
            *((0, b) for b in "xy"),
            *((1, b) for b in "xy"),
        ]
        assert [*session.epochs(0)] == []
        assert [*session.epochs(2)] == [0, 1]
        assert session.step == 4


def test_epochs_that_are_left_by_break_are_over_and_the_next_loop_is_another(tmp_path: Path) -> None:
    def script(session: penstock.Session, log: Log, epochs: int, batches: int) -> None:
        for epoch in session.epochs(epochs):
            for batch in session.iterations(range(batches)):
                log.add(f"{epoch}/{batch}")
                if batch == 1:
                    break
            if epoch == 1:
                break
        for batch in session.iterations(range(batches)):
            log.add(f"last/{batch}")

    assert run(script, tmp_path, 5, 3, kill_after=6) is None
    assert run(script, tmp_path, 5, 3, EPOCH="2") == whole(script, 5, 3)


def test_epochs_over_a_sampler_see_each_sample_once_each(tmp_path: Path) -> None:
    """Killed and gone on with at other batch sizes, and then promoted."""

    def rows_of(session: penstock.Session, seen: list[int], epochs: int, kill_after: int | None) -> None:
        sampler = session.sampler(7, batch_size=2)
        for _ in session.epochs(epochs):
            for rows in session.iterations(sampler):
                if kill_after is not None and session.step >= kill_after:
                    raise Killed
                seen.extend(rows.tolist())

    seen: list[int] = []

    def trained(folder: Path, epochs: int, kill_after: int | None = None, **env: str) -> list[int]:
        setup = read(overlay({}, CHECKPOINT_DIR=str(folder), CHECKPOINT_S="1e-9", **env))
        seen.clear()
        try:
            with penstock.Session(setup) as session:
                session.on_checkpoint(
                    lambda path: (path / "seen").write_text(repr(seen)),
                    lambda path: seen.extend(eval((path / "seen").read_text())),  # noqa: S307 - as it was written
                )
                rows_of(session, seen, epochs, kill_after)
        except Killed:
            pass
        return sorted(seen)

    trained(tmp_path / "a", 2, kill_after=6, BATCH_SIZE="2")
    assert trained(tmp_path / "a", 2, BATCH_SIZE="3", EPOCH="2", SAVE_AT_END="1") == sorted([*range(7)] * 2)
    begun = trained(tmp_path / "b", 5, BATCH_SIZE="4", BEGIN_DIR=str(tmp_path / "a"))
    assert begun == sorted([*range(7)] * 5)


@pytest.mark.parametrize("outer", ["epochs", "iterations"])
def test_epochs_stand_in_no_other_loop(outer: str) -> None:
    with penstock.session() as session:
        for _ in session.epochs(1) if outer == "epochs" else session.iterations(range(1)):
            with pytest.raises(SessionError, match=r"for epoch in session\.epochs\(n\)"):
                next(session.epochs(2))


def test_epochs_outside_of_the_session_are_refused() -> None:
    with pytest.raises(SessionError, match=r"epochs\(\) needs an open session"):
        next(penstock.Session(read({})).epochs(2))


def test_a_checkpoint_cannot_move_epochs_that_have_begun() -> None:
    with penstock.session() as session:
        for _ in session.epochs(1):
            with pytest.raises(SessionError, match="before the first"):
                session.on_checkpoint(lambda _: None, lambda _: None)


# --- stops
@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ExecutorStub]:
    with small_executor(tmp_path) as executor:
        yield executor


def test_a_stop_at_an_epochs_last_step_comes_after_what_stands_behind_its_loop(
    executor: ExecutorStub, tmp_path: Path
) -> None:
    """And a checkpoint is there from the last step on, should the time not suffice for that."""
    ends: list[int] = []
    kept: list[int] = []

    def epochs(session: penstock.Session) -> None:
        session.on_checkpoint(lambda _: None, lambda _: None)
        for epoch in session.epochs(2):
            for item in session.iterations(range(3)):
                if (epoch, item, session.step) == (0, 0, 0):
                    executor.say(StopRequest())
                    executor.wait(StepReached)
                    executor.say(StopAtStep(step=3))
                loss = item
            kept.extend(manifest.step for _, manifest in Checkpoints(tmp_path / "c").complete())
            ends.append(epoch * 10 + loss)

    with (
        pytest.raises(SystemExit) as left,
        penstock.Session(read(executor.env(CHECKPOINT_DIR=str(tmp_path / "c")))) as session,
    ):
        epochs(session)
    assert left.value.code == EXIT_PREEMPTED
    assert (ends, kept) == ([2], [3])
    executor.wait_hung_up()
    assert [(saved.step, saved.leaving) for saved in executor.of(CheckpointSaved)] == [(3, False), (3, True)]
    with penstock.Session(read(executor.env(CHECKPOINT_DIR=str(tmp_path / "c"), EPOCH="2"))) as session:
        epochs(session)
    assert ends == [2, 12]
    assert executor.wait(SessionDone).step == 6
