"""Many connections to the agent's socket, and silent ones: what one user does there keeps no other's jobs away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock_executor import agent_listener
from penstock_executor.agent_listener import AgentConnection, AgentListener, RefusalLog
from penstock_log.agent_protocol import VERSION, FromJob, Hello, StepReached
from penstock_testing import eventually

HELLO = msgspec.json.encode(Hello(version=VERSION, job_id="j1", epoch=1, rank=0, pid=os.getpid())) + b"\n"


class Heard:
    """A handler that takes everybody, and keeps what was said."""

    def __init__(self) -> None:
        self.said: list[FromJob] = []
        self.gone = 0

    def may_speak(self, uid: int, job_id: str = "", epoch: int = 0) -> bool:  # noqa: ARG002 - of the protocol
        return True

    def accept(self, connection: AgentConnection, hello: Hello) -> bool:  # noqa: ARG002 - of the protocol
        return True

    def handle(self, connection: AgentConnection, message: FromJob) -> None:  # noqa: ARG002 - of the protocol
        self.said.append(message)

    def disconnected(self, connection: AgentConnection) -> None:  # noqa: ARG002 - of the protocol
        self.gone += 1


def connected(path: Path, said: bytes = b"") -> socket.socket:
    process = socket.socket(socket.AF_UNIX)
    process.connect(str(path))
    process.sendall(said)
    return process


def is_open(process: socket.socket) -> bool:
    process.setblocking(False)
    try:
        return process.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


async def test_one_user_has_a_part_of_the_connections_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_listener, "LEAST_OF_ONE", 8)
    monkeypatch.setattr(agent_listener, "SHARE", 1 << 30)
    heard, path = Heard(), tmp_path / "agent.sock"
    listener = AgentListener(path, heard)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connected(path, HELLO))
        flood = [stack.enter_context(connected(path)) for _ in range(50)]
        listener.catch_up()
        assert [is_open(process) for process in (first, *flood)] == [True] * 8 + [False] * 43
        flood[0].close()  # a place that becomes free is another's
        listener.catch_up()
        late = stack.enter_context(connected(path, HELLO))
        listener.catch_up()
        assert is_open(late)
        first.sendall(msgspec.json.encode(StepReached(step=7)) + b"\n")
        listener.catch_up()
        assert len(heard.said) == 1
    listener.close()


async def test_another_users_process_comes_in_beside_a_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_listener, "LEAST_OF_ONE", 4)
    monkeypatch.setattr(agent_listener, "SHARE", 1 << 30)
    uids = iter([1000] * 20 + [1001])
    monkeypatch.setattr(agent_listener, "peer", lambda _: (os.getpid(), next(uids)))
    path = tmp_path / "agent.sock"
    listener = AgentListener(path, Heard())
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(connected(path)) for _ in range(20)]
        other = stack.enter_context(connected(path, HELLO))
        listener.catch_up()
        assert sum(is_open(process) for process in flood) == 4
        assert is_open(other)
    listener.close()


async def test_a_process_that_says_nothing_is_hung_up_on_and_one_that_said_hello_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_listener, "HELLO_S", 0.05)
    path = tmp_path / "agent.sock"
    listener = AgentListener(path, Heard())
    with connected(path) as silent, connected(path, HELLO[:-5]) as halfway, connected(path, HELLO) as proper:
        await eventually(lambda: not is_open(silent) and not is_open(halfway))
        assert is_open(proper)
    listener.close()


async def test_a_hello_that_waits_while_the_executor_is_busy_is_heard_before_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_listener, "HELLO_S", 0.0)
    path = tmp_path / "agent.sock"
    listener = AgentListener(path, Heard())
    with connected(path, HELLO) as process:
        for _ in range(5):
            await asyncio.sleep(0)
        listener.catch_up()
        await asyncio.sleep(0)
        assert is_open(process)
    listener.close()


def test_refused_connections_are_logged_a_few_times_and_then_counted() -> None:
    now_s = 0.0
    refusals = RefusalLog(lambda: now_s)
    with capture_logs() as logs:
        for _ in range(1_000):
            refusals.note("a line that is no message", pid=7)
        now_s = 11.0
        refusals.note("a line that is no message", pid=8)
    told = [(one["event"], one.get("pid", one.get("unlogged"))) for one in logs]
    assert told == [("agent_connection_refused", 7)] * 10 + [
        ("agent_connections_refused", 990),
        ("agent_connection_refused", 8),
    ]
