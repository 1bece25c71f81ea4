"""The job's side of the protocol against a small executor; scripts that must leave run as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from executor_stub import ExecutorStub, overlay, small_executor, without_digest

import penstock
from penstock.sessions.session import Session
from penstock.sessions.setup import read
from penstock_log.agent_protocol import (
    EXIT_PREEMPTED,
    CheckpointSaved,
    Hello,
    HoldMemory,
    SaveFailed,
    SessionDone,
    StepProgress,
    StepReached,
    StopAtStep,
    StopRequest,
)

COUNTING = """
import time, penstock
with penstock.session() as session:
    seen = []
    session.on_checkpoint(lambda folder: (folder / "seen").write_text(repr(seen)),
                          lambda folder: seen.extend(eval((folder / "seen").read_text())))
    for item in session.iterations(range(int(session.params["steps"]))):
        time.sleep(0.001)
        seen.append(item)
        session.report(items=len(seen), bad=float("nan"))
assert seen == list(range(len(seen))), seen
"""

PAIR = """
import socket, penstock
def exchange():
    peer.sendall(b"x")
    assert peer.recv(1), "the other rank is gone"
with penstock.session() as session:
    path = session.params["socket"]
    if session.rank == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            print("listening", flush=True)
            peer, _ = listener.accept()
    else:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(path)
    session.on_checkpoint(lambda folder: (folder / "state").write_text(str(session.step)), lambda folder: None)
    for _ in session.iterations(range(1_000_000)):
        exchange()
"""


@pytest.fixture
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExecutorStub]:
    with small_executor(tmp_path_factory.mktemp("x")) as running:
        yield running


def start(executor: ExecutorStub, code: str, **env: str) -> subprocess.Popen[str]:
    environ = overlay(os.environ) | executor.env(**env)
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=100)
    return process.returncode, errors


@contextmanager
def leaving() -> Iterator[list[object]]:
    """Catch the session's leaving, and give its exit code."""
    codes: list[object] = []
    try:
        yield codes
    except SystemExit as exit_:
        codes.append(exit_.code)
    assert codes, "the session did not leave"


def inside(executor: ExecutorStub, **env: str) -> Session:
    return Session(read(executor.env(**env)))


def test_a_job_says_hello_progress_and_done(executor: ExecutorStub) -> None:
    process = start(executor, COUNTING, PARAMS='{"steps": 30}')
    done = executor.wait(SessionDone)
    assert (done.step, done.loop_steps, done.metrics) == (30, 30, {"items": 30.0})
    assert 0.03 <= done.loop_s < 30
    hello = executor.wait(Hello)
    assert (hello.version, hello.job_id, hello.epoch, hello.rank, hello.pid) == (1, "j1", 1, 0, process.pid)
    assert len(executor.of(StepProgress)) <= 2 + done.loop_s / 0.25
    assert end(process) == (0, "")


@pytest.mark.slow
def test_a_preempted_job_saves_leaves_and_goes_on_where_it_was(executor: ExecutorStub, tmp_path: Path) -> None:
    env = {"PARAMS": '{"steps": 400}', "CHECKPOINT_DIR": str(tmp_path)}
    process = start(executor, COUNTING, **env)
    executor.wait(StepProgress)
    step = executor.preempt()
    assert without_digest(executor.wait(CheckpointSaved)) == CheckpointSaved(step=step, leaving=True)
    assert end(process) == (EXIT_PREEMPTED, "")
    executor.wait_hung_up()
    assert executor.of(StepProgress)[-1].loop_steps == step
    assert {path.name for path in tmp_path.iterdir()} == {".epoch", f"step-{step}"}
    resumed = start(executor, COUNTING, **env)
    assert executor.wait(StepProgress, when=lambda told: told.loop_steps == 0).step == step
    done = executor.wait(SessionDone)
    assert (done.step, done.loop_steps) == (400, 400 - step)
    assert end(resumed) == (0, "")


def test_a_gang_of_two_processes_stops_after_the_same_step(executor: ExecutorStub, tmp_path: Path) -> None:
    path = executor.path.with_name("pair.sock")
    env = {"WORLD_SIZE": "2", "CHECKPOINT_DIR": str(tmp_path), "PARAMS": json.dumps({"socket": str(path)})}
    first = start(executor, PAIR, RANK="0", **env)
    assert first.stdout is not None
    assert first.stdout.readline() == "listening\n"
    second = start(executor, PAIR, RANK="1", **env)
    for rank in (0, 1):
        executor.wait(StepProgress, rank)
    step = executor.preempt(ranks=2)
    assert without_digest(executor.wait(CheckpointSaved, rank=0)) == CheckpointSaved(step=step, leaving=True)
    assert end(first) == (EXIT_PREEMPTED, "")
    assert end(second) == (EXIT_PREEMPTED, "")
    executor.wait_hung_up(1)
    assert executor.of(StepProgress, rank=1)[-1].step == step
    assert executor.of(CheckpointSaved, rank=1) == []


def test_a_process_inside_a_long_step_answers_at_once(executor: ExecutorStub) -> None:
    with inside(executor) as session:
        for item in session.iterations(range(4)):
            if item == 1:
                executor.say(StopRequest())
                assert executor.wait(StepReached).step == 1
                executor.say(StopAtStep(step=100))
    assert executor.wait(SessionDone).step == 4


def test_a_process_that_is_told_what_it_may_hold_takes_it_to_its_next_boundary(executor: ExecutorStub) -> None:
    with inside(executor, MEMORY_FRACTION="0.25") as session:
        for item in session.iterations(range(4)):
            if item == 1:
                executor.say(HoldMemory(fraction=0.5))
                executor.say(StopRequest())
                assert executor.wait(StepReached).step == 1, "what came before was heard"
                assert session._boundary._limit.fraction == 0.5
                executor.say(StopAtStep(step=100))
    assert executor.wait(SessionDone).step == 4


def test_a_process_waits_at_its_margin_until_the_step_is_named(executor: ExecutorStub, tmp_path: Path) -> None:
    steps: list[int] = []
    waiting = threading.Event()

    def name_the_step() -> None:
        waiting.wait(30)
        executor.say(StopAtStep(step=5))

    other = threading.Thread(target=name_the_step)
    other.start()
    with leaving() as left, inside(executor, CHECKPOINT_DIR=str(tmp_path)) as session:
        session.on_checkpoint(lambda _: steps.append(session.step), lambda _: None)
        for item in session.iterations(range(100)):
            if item == 0:
                executor.say(StopRequest())
                executor.wait(StepReached)
            if item == 1:
                waiting.set()
    other.join()
    assert left == [EXIT_PREEMPTED]
    assert steps == [5]


def test_a_question_before_the_loop_is_answered_with_the_resumed_step(executor: ExecutorStub, tmp_path: Path) -> None:
    with inside(executor, CHECKPOINT_DIR=str(tmp_path), CHECKPOINT_S="1e-9") as session:
        session.on_checkpoint(lambda _: None, lambda _: None)
        list(session.iterations(range(7)))
    with leaving(), inside(executor, CHECKPOINT_DIR=str(tmp_path)) as session:
        executor.wait(Hello, count=2)
        executor.say(StopRequest())
        session.on_checkpoint(lambda _: None, lambda _: None)
        for _ in session.iterations(range(100)):
            executor.wait(StepReached)
            executor.say(StopAtStep(step=9))
            executor.wait(StepReached)
    assert executor.wait(StepReached).step == 7
    assert executor.wait(CheckpointSaved, when=lambda saved: saved.leaving).step == 9


def test_a_checkpoint_that_fails_when_leaving_is_told_and_the_job_goes_on(
    executor: ExecutorStub, tmp_path: Path
) -> None:
    def save(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with inside(executor, CHECKPOINT_DIR=str(tmp_path)) as session:
        session.on_checkpoint(save, lambda _: None)
        for item in session.iterations(range(10)):
            if item == 2:
                executor.preempt()
            elif item == 7:
                executor.say(StopRequest())
                assert executor.wait(StepReached, count=2).step == 7
                executor.say(StopAtStep(step=99))
    failed = executor.of(SaveFailed)
    assert [message.step for message in failed] == [4]
    assert failed[0].error == "OSError: [Errno 28] No space left on device"
    assert executor.wait(SessionDone).step == 10
    assert [path.name for path in tmp_path.iterdir()] == [".epoch"]


def test_a_job_without_checkpoints_still_leaves_when_asked(executor: ExecutorStub) -> None:
    with leaving() as left, inside(executor) as session:
        for item in session.iterations(range(10)):
            if item == 2:
                executor.preempt()
    assert left == [EXIT_PREEMPTED]
    executor.wait_hung_up()
    assert executor.of(StepProgress)[-1].step == 4
    assert executor.of(CheckpointSaved) == []
    assert executor.of(SessionDone) == []


def test_a_stop_that_falls_on_a_break_is_met_before_the_next_loop(executor: ExecutorStub) -> None:
    with leaving(), inside(executor) as session:
        for item in session.iterations(range(10)):
            if item == 0:
                executor.preempt()
            if item == 1:
                break
        list(session.iterations(range(10)))
    executor.wait_hung_up()
    assert executor.of(StepProgress)[-1].step == 2


def test_periodic_checkpoints_are_told(executor: ExecutorStub, tmp_path: Path) -> None:
    with inside(executor, CHECKPOINT_DIR=str(tmp_path), CHECKPOINT_S="1e-9") as session:
        session.on_checkpoint(lambda _: None, lambda _: None)
        list(session.iterations(range(3)))
    executor.wait(SessionDone)
    assert [*map(without_digest, executor.of(CheckpointSaved))] == [
        CheckpointSaved(step=1),
        CheckpointSaved(step=2),
        CheckpointSaved(step=3),
    ]


def test_a_sample_ends_after_its_iterations_and_says_how_long_they_took(executor: ExecutorStub) -> None:
    process = start(executor, COUNTING, PARAMS='{"steps": 100000}', SAMPLE_ITERATIONS="12", CHECKPOINT_DIR="/nowhere")
    done = executor.wait(SessionDone)
    assert (done.step, done.loop_steps) == (12, 12)
    assert done.loop_s >= 0.012
    assert 0.001 <= done.iteration_s < done.loop_s
    assert done.error_s > 0
    assert end(process) == (0, "")


def test_an_ordinary_run_says_how_long_its_iterations_take_once_it_has_told_of_some(executor: ExecutorStub) -> None:
    code = COUNTING.replace(
        "import time, penstock", "import time, penstock\nimport penstock.sessions.boundary as b\nb.PROGRESS_S = 0.0"
    )
    process = start(executor, code, PARAMS='{"steps": 20}')
    done = executor.wait(SessionDone)
    assert executor.of(StepProgress)[0].iteration_s == 0.0, "the first iterations are a warm-up"
    assert 0.001 <= done.iteration_s < done.loop_s
    assert done.error_s > 0
    assert end(process) == (0, "")


def test_a_sample_on_an_emulated_device_reports_the_devices_time(executor: ExecutorStub) -> None:
    code = """
import time, penstock
with penstock.session() as session:
    for _ in session.iterations(range(100)):
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass
"""
    process = start(executor, code, EMULATED_SPEED="0.25", SAMPLE_ITERATIONS="10", DEVICE_KIND="slow")
    done = executor.wait(SessionDone)
    assert done.loop_steps == 10
    assert 0.08 <= done.loop_s <= 0.4
    assert 0.008 <= done.iteration_s <= 0.04
    assert end(process) == (0, "")


@pytest.mark.slow
def test_a_job_works_on_while_its_executor_restarts_and_says_hello_again(executor: ExecutorStub) -> None:
    with inside(executor) as session:
        for item in session.iterations(range(6)):
            if item == 2:
                executor.wait(StepProgress)
                executor.die()
            if item == 4:
                executor.start()
                assert executor.wait(Hello, count=2).step == 4
                executor.preempt()
            if item == 5:
                break
    assert executor.wait(SessionDone).step == 6


@pytest.mark.slow
def test_an_executor_that_dies_with_its_question_open_frees_the_job(executor: ExecutorStub) -> None:
    with inside(executor) as session:
        for item in session.iterations(range(50)):
            if item == 0:
                executor.say(StopRequest())
                executor.wait(StepReached)
            if item == 1:
                threading.Timer(0.05, executor.die).start()
            if item == 48:
                executor.start()
    assert executor.wait(SessionDone).step == 50


@pytest.mark.slow
def test_the_result_waits_for_an_executor_that_is_restarting(executor: ExecutorStub) -> None:
    with inside(executor) as session:
        list(session.iterations(range(3)))
        executor.die()
        threading.Timer(0.3, executor.start).start()
    assert executor.wait(SessionDone).step == 3


def test_a_job_whose_executor_is_not_there_runs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.sessions.agent_client.SEND_LAST_S", 0.01)
    with Session(read(overlay({}, SOCKET=str(tmp_path / "none")))) as session:
        assert list(session.iterations([1, 2])) == [1, 2]
    assert "executor_not_there" in caplog.text


def test_an_exception_ends_the_session_without_done_and_without_the_step_it_broke(executor: ExecutorStub) -> None:
    def script() -> None:
        with inside(executor) as session:
            for item in session.iterations(range(10)):
                if item == 6:
                    raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        script()
    executor.wait_hung_up()
    assert executor.of(SessionDone) == []
    assert executor.of(StepProgress)[-1].step == 6


def test_a_forked_child_does_not_hold_its_killed_parents_connection_open(executor: ExecutorStub) -> None:
    code = """
import os, signal, sys, penstock
with penstock.session() as session:
    for item in session.iterations(range(3)):
        if item == 1 and not os.fork():
            os.read(0, 1)  # outlives its parent
            sys.exit(0)
        if item == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""
    reader, writer = os.pipe()
    environ = overlay(os.environ) | executor.env()
    process = subprocess.Popen([sys.executable, "-c", code], env=environ, stdin=reader)
    os.close(reader)
    executor.wait_hung_up()
    assert process.wait(30) == -9
    os.close(writer)
    assert executor.of(SessionDone) == []


def test_a_forked_child_that_ends_says_nothing_in_its_parents_name(executor: ExecutorStub) -> None:
    code = """
import os, sys, penstock
with penstock.session() as session:
    for item in session.iterations(range(4)):
        if item == 1:
            pid = os.fork()
            if not pid:
                break
    if pid:
        os.waitpid(pid, 0)
"""
    process = start(executor, code)
    assert executor.wait(SessionDone).step == 4
    assert end(process) == (0, "")
    assert (len(executor.of(SessionDone)), len(executor.of(Hello))) == (1, 1)


def test_a_line_that_is_not_understood_does_not_end_the_conversation(
    executor: ExecutorStub, caplog: pytest.LogCaptureFixture
) -> None:
    class Unheard(msgspec.Struct, tag="what a later version says"):
        pass

    with inside(executor) as session:
        for item in session.iterations(range(4)):
            if item == 0:
                executor.wait(StepProgress) if session.step else executor.wait(Hello)
                executor.say(Unheard())
                executor.say(StopRequest())
                executor.wait(StepReached)
                executor.say(StopAtStep(step=50))
    assert executor.wait(SessionDone).step == 4
    assert "executor_line_not_understood" in caplog.text


def test_a_tensor_is_detached_when_reported_and_read_when_sent(executor: ExecutorStub) -> None:
    class Tensor:
        reads = 0

        def detach(self) -> Tensor:
            return self

        def __float__(self) -> float:
            Tensor.reads += 1
            return 0.25

    with penstock.Session(read(executor.env())) as session:
        for _ in session.iterations(range(1000)):
            session.report(loss=Tensor())
    assert executor.wait(SessionDone).metrics == {"loss": 0.25}
    assert Tensor.reads < 100
