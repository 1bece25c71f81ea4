"""A session that is stopped to be resized: in the middle of a checkpoint, and where one process cannot load it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from executor_stub import ExecutorStub, overlay, small_executor, without_digest

import penstock
from penstock.sessions.checkpoint import CheckpointDamaged, Checkpoints
from penstock.sessions.loop_position import LoopHistory
from penstock.sessions.setup import SessionError, read
from penstock_log.agent_protocol import EXIT_PREEMPTED, CheckpointSaved, SaveFailed, StepProgress

SIZE = 40


@pytest.fixture
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorStub]:
    with small_executor(tmp_path_factory.mktemp("x")) as running:
        yield running


class Script:
    """Its state is the rows that it has seen; ``while_saving`` is called in the middle of each of its saves."""

    def __init__(self, while_saving: Callable[[int], object] = lambda _: None) -> None:
        self.seen: list[int] = []
        self.saves = 0
        self._while_saving = while_saving

    def save(self, folder: Path) -> None:
        (folder / "first").write_text(repr(self.seen[:4]))
        self.saves += 1
        self._while_saving(self.saves)
        (folder / "rest").write_text(repr(self.seen[4:]))

    def load(self, folder: Path) -> None:
        self.seen = [*eval((folder / "first").read_text()), *eval((folder / "rest").read_text())]  # noqa: S307

    def run(self, **env: str) -> penstock.Session:
        with penstock.Session(read(env)) as session:
            session.on_checkpoint(self.save, self.load)
            for rows in session.iterations(session.sampler(SIZE)):
                self.seen += rows.tolist()
        return session


def test_a_stop_that_falls_into_a_checkpoint_waits_for_it_and_nothing_is_lost(
    executor: ExecutorStub, tmp_path: Path
) -> None:
    agreed = []
    folder = {"CHECKPOINT_DIR": str(tmp_path)}

    def stop(saves: int) -> None:
        if saves == 1:
            agreed.append(executor.preempt())

    first = Script(while_saving=stop)
    with pytest.raises(SystemExit) as left:
        first.run(**executor.env(**folder, CHECKPOINT_S="1e-9", BATCH_SIZE="4"))
    executor.wait_hung_up()
    assert left.value.code == EXIT_PREEMPTED
    assert not executor.of(SaveFailed)
    saved = executor.of(CheckpointSaved)
    assert (saved[0].step, saved[0].leaving, saved[0].samples) == (1, False, 4)
    assert without_digest(saved[-1]) == CheckpointSaved(step=agreed[0], samples=4 * agreed[0], leaving=True)
    assert [manifest.step for _, manifest in Checkpoints(tmp_path).complete()] == [agreed[0], agreed[0] - 1]

    second = Script()
    session = second.run(**executor.env(**folder, BATCH_SIZE="7", EPOCH="2"))
    assert sorted(second.seen) == list(range(SIZE))
    assert session.samples == SIZE


def test_a_stop_that_falls_into_a_checkpoint_that_fails_still_ends_with_one(
    executor: ExecutorStub, tmp_path: Path
) -> None:
    def stop(saves: int) -> None:
        if saves == 1:
            executor.preempt()
            raise OSError(28, "No space left on device")

    first = Script(while_saving=stop)
    with pytest.raises(SystemExit) as left:
        first.run(**executor.env(CHECKPOINT_DIR=str(tmp_path), CHECKPOINT_S="1e-9", BATCH_SIZE="4"))
    executor.wait_hung_up()
    assert left.value.code == EXIT_PREEMPTED
    assert executor.of(SaveFailed)[0].step == 1
    assert executor.of(CheckpointSaved)[-1].leaving
    assert executor.of(StepProgress)[-1].samples == executor.of(CheckpointSaved)[-1].samples == len(first.seen)


def wide(folder: Path, rank: int, world_size: int) -> penstock.Session:
    return penstock.Session(
        read(overlay({}, CHECKPOINT_DIR=str(folder), RANK=str(rank), WORLD_SIZE=str(world_size), BATCH_SIZE="8"))
    )


def refuse(folder: Path) -> None:
    if folder.name == "step-9":
        raise RuntimeError("size mismatch: it was saved by another number of processes")


def two_checkpoints(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    for step in (5, 9):
        checkpoints.save(step, LoopHistory(items=step), lambda path: (path / "state").touch())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_of_a_gang_that_cannot_load_ends_and_does_not_go_on_from_another_step(
    rank: int, tmp_path: Path
) -> None:
    two_checkpoints(tmp_path)
    with (
        pytest.raises(
            CheckpointDamaged, match=r"step-9 cannot be loaded: RuntimeError\('size mismatch.*of its gang may"
        ),
        wide(tmp_path, rank, 2) as session,
    ):
        session.on_checkpoint(lambda _: None, refuse)
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-5", "step-9"}, "the old width can load them"


def test_a_process_alone_takes_the_checkpoint_before(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    with wide(tmp_path, 0, 1) as session:
        session.on_checkpoint(lambda _: None, refuse)
        assert session.step == 5


def test_a_batch_smaller_than_the_gang_is_refused_with_what_to_do() -> None:
    with (
        penstock.Session(read(overlay({}, BATCH_SIZE="3", WORLD_SIZE="4"))) as session,
        pytest.raises(SessionError, match=r"a batch of 3 cannot be divided among 4 processes; set batch_size"),
    ):
        session.sampler(SIZE)
