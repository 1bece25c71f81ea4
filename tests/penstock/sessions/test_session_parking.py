"""A session that is parked in place of leaving: what it says, what it asks of its script, and as what it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_stub import ExecutorStub, overlay, small_executor

from penstock.sessions.parking import ParkRule
from penstock_log.agent_protocol import (
    EXIT_PREEMPTED,
    CheckpointSaved,
    GoOn,
    Hello,
    ReadyToPark,
    SessionDone,
    StepProgress,
    StopAtStep,
)

SCRIPT = """
import os, time, penstock
with penstock.session() as session:
    session.on_checkpoint(lambda folder: (folder / "state").write_text("s"), lambda folder: print("loads"))
    {setup}
    for item in session.iterations(range(10**6)):
        time.sleep(0.001)
        if session.step > 3 and os.environ["PENSTOCK_EPOCH"] == "3":
            break
"""
ON_PARK = 'session.on_park(lambda: print("away", session.step), lambda: print("back", os.environ["PENSTOCK_EPOCH"]))'


@pytest.fixture
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorStub]:
    with small_executor(tmp_path_factory.mktemp("x")) as running:
        yield running


def start(executor: ExecutorStub, folder: Path, setup: str = "pass", backend: str = "cpu") -> subprocess.Popen[str]:
    environ = overlay(os.environ) | executor.env(CHECKPOINT_DIR=str(folder), BACKEND=backend)
    code = [sys.executable, "-c", SCRIPT.format(setup=setup)]
    return subprocess.Popen(code, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit status and the output of a script, whose errors are shown."""
    output, errors = process.communicate(timeout=100)
    sys.stderr.write(errors)
    return process.returncode, output


def test_it_saves_says_that_it_is_ready_and_goes_on_as_later_runs(executor: ExecutorStub, tmp_path: Path) -> None:
    process = start(executor, tmp_path, ON_PARK, backend="cuda")
    for epoch in (1, 2):
        executor.wait(StepProgress, count=epoch)
        step = executor.preempt(park=True, count=epoch)
        assert executor.wait(ReadyToPark, count=epoch).step == step
        saved = executor.wait(CheckpointSaved, count=epoch)
        assert (saved.step, saved.leaving) == (step, True)
        assert (tmp_path / ".epoch").read_text() == str(epoch)
        executor.say(GoOn(epoch=epoch + 1))
        hello = executor.wait(Hello, count=epoch + 1)
        assert (hello.epoch, hello.step, hello.pid) == (epoch + 1, step, process.pid)
        told = executor.wait(StepProgress, when=lambda told: told.loop_steps == 0 and told.step > 0, count=epoch)
        assert told.step == step
    done = executor.wait(SessionDone)
    assert done.loop_steps == done.step - step
    code, output = end(process)
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()] == ["away", "back", "away", "back"]
    assert output.splitlines()[-1] == "back 3"


@pytest.mark.parametrize("park", [False, True])
@pytest.mark.parametrize(
    ("setup", "backend"),
    [("session.on_park(None)", "cpu"), ("session.on_park(lambda: 1 / 0)", "cpu"), ("pass", "cuda"), ("pass", "")],
)
def test_it_leaves(executor: ExecutorStub, tmp_path: Path, setup: str, backend: str, *, park: bool) -> None:
    process = start(executor, tmp_path, setup, backend)
    executor.wait(StepProgress)
    executor.preempt(park=park)
    assert end(process)[0] == EXIT_PREEMPTED
    assert executor.of(ReadyToPark) == []
    assert executor.wait(CheckpointSaved).leaving


def test_it_leaves_when_it_is_told_so_after_all(executor: ExecutorStub, tmp_path: Path) -> None:
    process = start(executor, tmp_path)
    executor.wait(StepProgress)
    step = executor.preempt(park=True)
    executor.wait(ReadyToPark)
    executor.say(StopAtStep(step=step))
    assert end(process)[0] == EXIT_PREEMPTED


def test_what_pytorch_holds_is_moved_without_being_named(executor: ExecutorStub, tmp_path: Path) -> None:
    process = start(executor, tmp_path, "session.park_torch()", backend="cuda")
    executor.wait(StepProgress)
    step = executor.preempt(park=True)
    executor.wait(ReadyToPark)
    executor.say(GoOn(epoch=3))
    assert executor.wait(Hello, count=2).step == step
    assert end(process)[0] == 0


def test_what_was_moved_is_moved_back_where_it_is_not_parked_after_all(executor: ExecutorStub, tmp_path: Path) -> None:
    undo = 'session.on_park(lambda: 0); session._boundary.parking.undo = lambda: print("undone") or 1 / 0'
    process = start(executor, tmp_path, undo, backend="cuda")
    executor.wait(StepProgress)
    step = executor.preempt(park=True)
    executor.wait(ReadyToPark)
    executor.say(StopAtStep(step=step))
    assert end(process) == (EXIT_PREEMPTED, "undone\n")


def test_what_was_moved_stays_where_the_executor_hangs_up_as_others_may_have_the_device(
    executor: ExecutorStub, tmp_path: Path
) -> None:
    ends = 'import atexit; atexit.register(print, "ends"); session.on_park(lambda: print("away"))'
    undo = f'{ends}; session._boundary.parking.undo = lambda: print("undone")'
    process = start(executor, tmp_path, undo, backend="cuda")
    executor.wait(StepProgress)
    executor.preempt(park=True)
    executor.wait(ReadyToPark)
    executor.die()
    assert end(process) == (EXIT_PREEMPTED, "away\n")


def test_a_script_that_moves_its_state_by_itself_does_what_it_does_at_its_end(
    executor: ExecutorStub, tmp_path: Path
) -> None:
    ends = 'import atexit; atexit.register(print, "ends"); session.on_park(lambda: print("away"))'
    process = start(executor, tmp_path, ends, backend="cuda")
    executor.wait(StepProgress)
    executor.preempt(park=True)
    executor.wait(ReadyToPark)
    executor.die()
    assert end(process) == (EXIT_PREEMPTED, "away\nends\n")


def test_what_was_moved_is_back_where_the_run_that_goes_on_is_given_up_at_once(
    executor: ExecutorStub, tmp_path: Path
) -> None:
    process = start(executor, tmp_path, ON_PARK, backend="cuda")
    executor.wait(StepProgress)
    executor.preempt(park=True)
    executor.wait(ReadyToPark)
    (tmp_path / ".epoch").write_text("9")
    executor.say(GoOn(epoch=3))
    code, output = end(process)
    assert (code, output.split()[::2]) == (EXIT_PREEMPTED, ["away", "back"])


def test_it_leaves_when_its_executor_is_gone(executor: ExecutorStub, tmp_path: Path) -> None:
    process = start(executor, tmp_path)
    executor.wait(StepProgress)
    executor.preempt(park=True)
    executor.wait(ReadyToPark)
    executor.die()
    assert end(process)[0] == EXIT_PREEMPTED


def test_a_script_that_is_never_to_be_parked_stays_so() -> None:
    rule = ParkRule("cpu")
    assert rule.allows
    rule.refused = True
    rule.away = lambda: None
    assert not rule.allows
