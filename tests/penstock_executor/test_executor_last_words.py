"""What a process said last is heard, however busy the executor is when the process ends."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from executor_cases import World, python, speaking, world_on

from penstock_bus import BusError
from penstock_bus.follower import background
from penstock_bus.memory import MemoryBus
from penstock_executor import agent_listener
from penstock_executor.agent_listener import AgentConnection
from penstock_executor.launchers import process_launcher
from penstock_executor.launchers.fork_launcher import ForkLauncher
from penstock_log import RunCheckpointed, RunWarned
from penstock_log.agent_protocol import VERSION, FromJob, Hello, StepReached, StopAtStep
from penstock_testing import eventually

pytestmark = pytest.mark.slow

BLOCKED_S = 0.03
"""How long one turn of the busy loop takes: a timer of a few milliseconds lapses before anything is read."""
LEAVING_A_CHILD = """
import json, os, socket, sys, time

def say(kind, **fields):
    agent.sendall(json.dumps({"type": kind, **fields}).encode() + b"\\n")

agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["PENSTOCK_SOCKET"])
say("hello", version=1, job_id=os.environ["PENSTOCK_JOB_ID"], epoch=1, rank=0, pid=os.getpid())
there, tell = os.pipe()
if child := os.fork():
    os.read(there, 1)
    print(child, flush=True)
    say("done", step=7, loop_steps=7, loop_s=0.5)
    os._exit(0)
os.setsid()
os.write(tell, b".")
time.sleep(600)
"""


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop stand still from a process's start to its end: all that it says is unread then."""
    start = ForkLauncher.start

    def started(*arguments: Any, **more: Any) -> process_launcher.ShimProcess:
        process = start(*arguments, **more)
        ended = process_launcher.exit_fd(process)
        select.select([ended], [], [])
        os.close(ended)
        return process

    monkeypatch.setattr(ForkLauncher, "start", started)


@asynccontextmanager
async def busy() -> AsyncIterator[None]:
    """Let every turn of the loop take long, as on a node with much to do."""

    async def block() -> None:
        while True:
            time.sleep(BLOCKED_S)  # noqa: ASYNC251 - it is to block
            await asyncio.sleep(0)

    async with background(block()):
        yield


@pytest.mark.usefixtures("blocked")
def test_many_that_end_before_their_greetings_are_read_have_each_said_all(tmp_path: Path) -> None:
    jobs = [f"j{number}" for number in range(6)]

    async def play() -> None:
        async with world_on(MemoryBus(), tmp_path) as world, busy():
            for device, job in enumerate(jobs):
                await world.submit(job, *speaking("6", "save_at=4"))
                await world.place(job, device)
            await world.node(devices="fast:6@1.0:1GiB")  # finds all leases at once
            for job in jobs:
                ended = await world.ended(job)
                assert (ended.steps, ended.metrics) == (6, {"loss": 0.25, "rank": 0})
                assert (await world.fact(RunCheckpointed, job)).step == 4

    uvloop.run(play())  # on which services run, and which takes in one connection in each of its turns


async def test_a_child_that_keeps_the_connection_open_does_not_keep_the_run_from_ending(world: World) -> None:
    await world.node()
    await world.run("j1", *python(LEAVING_A_CHILD))
    ended = await world.ended("j1")
    assert (ended.outcome, ended.steps) == ("completed", 7)
    child = int(await world.output("j1"))
    assert process_launcher.gone(child)


class Listener:
    """Believes everybody, and remembers what was said."""

    def __init__(self) -> None:
        self.heard: list[FromJob] = []
        self.left: list[AgentConnection] = []

    def may_speak(self, uid: int, job_id: str = "", epoch: int = 0) -> bool:  # noqa: ARG002
        return True

    def accept(self, line: AgentConnection, hello: Hello) -> bool:  # noqa: ARG002
        self.heard.append(hello)
        return True

    def handle(self, line: AgentConnection, message: FromJob) -> None:  # noqa: ARG002
        self.heard.append(message)

    def disconnected(self, line: AgentConnection) -> None:
        self.left.append(line)


HELLO = Hello(version=VERSION, job_id="j1", epoch=1, rank=0, pid=1)
SAID = [HELLO, *(StepReached(step=step) for step in range(3))]
LINES = b"".join(msgspec.json.encode(message) + b"\n" for message in SAID)


@pytest.mark.parametrize("size", [1, 7, 64, len(LINES)])
def test_lines_are_understood_however_they_arrive(size: int) -> None:
    ours, theirs = socket.socketpair()
    listener, over = Listener(), []
    line = AgentConnection(ours, listener, over.append)
    with theirs:
        for at in range(0, len(LINES), size):
            theirs.sendall(LINES[at : at + size])
            line.read()
            line.read()  # there is nothing
        assert listener.heard == SAID
        assert not listener.left
    line.read()
    assert over == listener.left == [line]


def test_one_that_does_not_read_is_hung_up_on_and_still_heard() -> None:
    ours, theirs = socket.socketpair()
    listener = Listener()
    line = AgentConnection(ours, listener, lambda _: None)
    theirs.sendall(LINES)
    for step in range(100_000):
        line.send(StopAtStep(step=step))
    with theirs, theirs.makefile("rb") as file:
        said = [msgspec.json.decode(each, type=StopAtStep).step for each in file]
        assert said == list(range(len(said)))
        assert 0 < len(said) < 100_000
    line.send(StopAtStep(step=0))
    line.read()
    assert listener.heard == SAID
    line.close()


def test_nobody_is_kept_waiting_by_one_who_never_stops_talking() -> None:
    ours, theirs = socket.socketpair()

    class Answering(Listener):
        def handle(self, line: AgentConnection, message: FromJob) -> None:
            super().handle(line, message)
            theirs.sendall(msgspec.json.encode(message) + b"\n")

    listener = Answering()
    line = AgentConnection(ours, listener, lambda _: None)
    with theirs:
        theirs.sendall(LINES)
        line.read()
        assert listener.heard == SAID
        line.read()
        assert listener.heard == SAID + SAID[1:]
    line.close()


async def test_connections_wait_while_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_listener, "FULL_S", 0.01)
    listener = Listener()
    door = agent_listener.AgentListener(tmp_path / "agent.sock", listener)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as process:
        process.connect(str(tmp_path / "agent.sock"))
        process.sendall(LINES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            door.catch_up()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not listener.heard
        await eventually(lambda: listener.heard == SAID)
    door.close()


def test_what_was_said_before_hanging_up_is_heard_although_nothing_can_be_answered() -> None:
    ours, theirs = socket.socketpair()
    listener = Listener()
    line = AgentConnection(ours, listener, lambda _: None)
    with theirs:
        line.send(StopAtStep(step=1))  # it never reads this one
        theirs.sendall(LINES)
    line.send(StopAtStep(step=2))
    line.read()
    assert listener.heard == SAID
    line.read()
    assert listener.left == [line]


async def test_series_that_the_server_refuses_are_a_warning_and_the_executor_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = MemoryBus()

    async def refused(*_: object) -> None:
        raise BusError("rolling up is not permitted (of a stream that an earlier version made)")

    monkeypatch.setattr(bus, "write_series", refused)
    async with world_on(bus, tmp_path) as world:
        await world.node(devices="fast:1@1.0:1GiB")
        await world.run("j1", *speaking("6"))
        assert (await world.ended("j1")).outcome == "completed"
        warned = await world.fact(RunWarned, "j1")
        assert "its metrics are not kept as series up to its end: rolling up" in warned.warning
        await world.run("j2", *speaking("6"))
        assert (await world.ended("j2")).outcome == "completed"
