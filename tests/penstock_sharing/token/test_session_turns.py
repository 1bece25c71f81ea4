"""Sessions that take turns: what a script may do, and that the token is held during its steps and nowhere else."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from executor_stub import small_executor
from token_clients import House, house, who

from penstock.sessions import torch_support
from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup, read
from penstock_log.agent_protocol import EXIT_PREEMPTED, AgentEnv, CheckpointSaved, StepReached, StopRequest
from penstock_sharing.token import NoTokenSlot, TokenPassed, TurnRequested

LANE = "0/0"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path, lambda member: [] if member.job_id == "stranger" else [LANE]) as opened:
        yield opened


def inside(served: House, name: str = "script") -> Session:
    return Session(ProcessSetup(job_id=name, epoch=1, lanes=str(served.path)))


def busy(served: House, name: str = "script") -> bool:
    """Say whether a script is in a step, with the token."""
    view = served.broker.view(LANE)
    return view.holder == who(name) and view.busy


def fail_in_a_step(session: Session, first: Callable[[], object]) -> None:
    for _ in session.iterations(range(3)):
        first()
        raise ZeroDivisionError


def test_the_executor_says_where_the_broker_is() -> None:
    assert read({AgentEnv.LANES: "/run/lanes.sock"}).lanes == "/run/lanes.sock"
    assert not read({AgentEnv.LANES: "/run/lanes.sock"}).plain


def test_the_token_is_held_in_a_step_and_not_while_the_next_batch_is_fetched(served: House) -> None:
    during_fetch = []

    def batches() -> Iterator[int]:
        for item in range(3):
            during_fetch.append(bool(served.broker.lanes) and busy(served))
            yield item

    with inside(served) as session:
        assert [busy(served) for _ in session.iterations(batches())] == [True] * 3
    assert during_fetch == [False] * 3


def test_a_break_gives_the_token_back_out_of_an_infinite_stream(served: House) -> None:
    neighbour = served.process("neighbour")
    with inside(served) as session:
        for _ in session.iterations(iter(int, 1)):
            neighbour.tell("enter")
            served.asks(neighbour)
            break
        assert neighbour.hear().startswith("entered")
        assert session.step == 1


def test_an_exception_gives_the_token_back(served: House) -> None:
    neighbour = served.process("neighbour")
    with inside(served) as session:
        with pytest.raises(ZeroDivisionError):
            fail_in_a_step(session, lambda: (neighbour.tell("enter"), served.asks(neighbour)))
        assert neighbour.hear().startswith("entered")


def test_a_generator_that_is_dropped_gives_the_token_back(served: House) -> None:
    neighbour = served.process("neighbour")
    with inside(served) as session:
        loop = session.iterations(range(3))
        next(loop)
        neighbour.tell("enter")
        served.asks(neighbour)
        del loop
        assert neighbour.hear().startswith("entered")


def test_the_end_of_the_session_gives_the_token_back_out_of_an_open_loop(served: House) -> None:
    neighbour = served.process("neighbour")
    with inside(served) as session:
        loop = session.iterations(range(3))
        next(loop)
        neighbour.tell("enter")
        served.asks(neighbour)
    assert neighbour.hear().startswith("entered")
    del loop


def test_a_loop_may_run_in_any_thread(served: House) -> None:
    seen: list[bool] = []
    with inside(served) as session:
        thread = threading.Thread(target=lambda: seen.extend(busy(served) for _ in session.iterations(range(4))))
        thread.start()
        thread.join()
    assert seen == [True] * 4


def test_many_loops_keep_the_token_while_nobody_waits(served: House) -> None:
    with inside(served) as session:
        for _ in range(5):
            for _ in session.iterations(range(4)):
                pass
        assert [counters.turns for counters in served.broker.view(LANE).members] == [1]
    assert served.count(TokenPassed(LANE, None, who("script"))) == 1


def test_workers_that_are_forked_in_a_step_have_no_token_and_disturb_nobody(served: House) -> None:
    with inside(served) as session:
        for _ in session.iterations(range(2)):
            child = os.fork()
            if child == 0:
                held = any(slot.holds for slot in session._boundary.turns.slots)
                os._exit(1 if held else 0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert busy(served)


def test_who_waits_and_is_to_stop_saves_and_leaves_without_a_turn(served: House, tmp_path: Path) -> None:
    neighbour = served.process("neighbour")
    done, fetched = [], []

    def batches() -> Iterator[int]:
        for item in range(100):
            fetched.append(item)
            yield item

    def stop() -> None:
        served.wait_for(TurnRequested(LANE, who("script")), count=2)
        executor.say(StopRequest())

    with small_executor(tmp_path) as executor:
        setup = ProcessSetup(
            job_id="script", epoch=1, lanes=str(served.path), socket=str(executor.path), checkpoint_dir=tmp_path / "c"
        )
        stopper = threading.Thread(target=stop)
        stopper.start()
        with pytest.raises(SystemExit) as left, Session(setup) as session:  # noqa: PT012 - the loop is what is left
            session.on_checkpoint(lambda _: None, lambda _: None)
            for item in session.iterations(batches()):
                done.append(item)
                if item == 2:
                    neighbour.tell("enter")
                    served.asks(neighbour)
        stopper.join()
        assert left.value.code == EXIT_PREEMPTED
        assert executor.wait(StepReached) == StepReached(step=3, held=True)
        saved = executor.wait(CheckpointSaved)
        assert isinstance(saved, CheckpointSaved)
        assert (saved.step, saved.leaving, len(saved.digest)) == (3, True, 64)
    assert (done, fetched) == ([0, 1, 2], [0, 1, 2, 3])
    assert neighbour.hear().startswith("entered")
    assert served.broker.view(LANE).holder == neighbour.who


def test_who_waits_does_not_count_the_wait_as_its_step(served: House, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("penstock.sessions.pace.perf_counter", lambda: now_s[0])
    neighbour = served.process("neighbour")
    neighbour.do("enter")

    def leave() -> None:
        served.wait_for(TurnRequested(LANE, who("script")))
        now_s[0] += 1_000
        neighbour.do("exit")

    with inside(served) as session:
        neighbour_leaves = threading.Thread(target=leave)
        neighbour_leaves.start()
        for _ in session.iterations(range(1)):
            now_s[0] += 3
        neighbour_leaves.join()
        assert session._boundary.pace.loop_s == 3


def test_a_script_that_has_no_slot_ends_with_the_reason(served: House) -> None:
    with pytest.raises(NoTokenSlot, match="not on the rota"), inside(served, "stranger") as session:
        list(session.iterations(range(1)))


def test_the_memory_of_a_process_without_a_framework_is_what_is_resident() -> None:
    before = torch_support.measure()
    assert before is not None
    block = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # new, whatever was freed before
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    during = torch_support.measure()
    block.close()
    after = torch_support.measure()
    later = torch_support.measure()
    assert during is not None
    assert after is not None
    assert later is not None
    assert during.allocated_bytes - before.allocated_bytes >= 60 << 20
    assert after.peak_bytes >= during.allocated_bytes - (1 << 20)
    assert during.peak_bytes - later.peak_bytes >= 60 << 20
    assert not after.on_device
