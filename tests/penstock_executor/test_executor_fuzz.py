"""What jobs may send on their sockets: nothing of it ends the executor, hangs it, or keeps others from being heard."""

from __future__ import annotations

import contextlib
import json
import os
import random  # noqa: TID251 - ten thousand small choices, seeded
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from executor_cases import World, python

from penstock_executor.agent_listener import AgentListener
from penstock_executor.launchers import process_launcher
from penstock_executor.launchers.environment import LaunchSite
from penstock_executor.launchers.process_launcher import ShimProcess
from penstock_executor.process_host import ProcessHost
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import AnyEvent, RunCheckpointed, RunEnded, RunWarned
from penstock_log.agent_protocol import LONGEST_METRIC, MOST_METRICS
from penstock_sharing.token import LaneClientId, TokenBroker
from penstock_sharing.token.protocol import JoinRequested

pytestmark = pytest.mark.slow

INPUTS: Final = int(os.environ.get("PENSTOCK_FUZZ_INPUTS", "1000"))
VALUES: Final[list[Callable[[random.Random], Any]]] = [
    lambda rng: rng.choice([0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**70), 10**400]),
    lambda rng: rng.choice([0.5, -0.0, 1e308, -1e308, 1e-320, float("inf"), float("nan")]),
    lambda rng: rng.choice(["", "j1", "loss", "\0", "\ud800", "x" * 300, "../..", "\x1b]0;title\x07", "9" * 5000]),
    lambda rng: rng.choice([None, True, False, [], {}, [[]], {"": None}]),
    lambda rng: [value_of(rng) for _ in range(rng.randrange(3))],
    lambda rng: {f"m{rng.randrange(400)}": rng.random() for _ in range(rng.choice([1, 5, 5, 5, 300]))},
]
AGENT: Final = {
    "hello": {"version": 1, "job_id": "j1", "epoch": 1, "rank": 0, "pid": 1, "step": 0},
    "progress": {"step": 1, "loop_steps": 1, "loop_s": 0.1, "metrics": {"loss": 1.0}, "diverged": [], "memory": None},
    "at": {"step": 1, "held": False},
    "saved": {"step": 1, "leaving": False, "samples": 1, "digest": "0" * 64},
    "save_failed": {"step": 1, "error": "no"},
    "done": {"step": 2, "loop_steps": 2, "loop_s": 0.2, "metrics": {}},
}
LANES: Final = {
    "join": {"version": 1, "job_id": "j1", "epoch": 1, "rank": 0, "places": [["n1-0", 0]]},
    "seated": {"number": 1, "places": [["n1-0", 0]]},
    "sat": {"number": 1},
    "refused": {"reason": "no"},
}


NASTY: Final = (
    b'{"type": "saved", "step": 1, "digest": "\xd8"}',
    b'{"type": "save_failed", "step": 1, "error": "\xff\xfe"}',
    b'{"kind": "join", "version": 1, "job_id": "j1", "epoch": Infinity, "rank": 0}',
    b'{"kind": "sat", "number": 1e999}',
    b"[" * 60_000,
)
"""What did end executors, before anything that is drawn."""


def value_of(rng: random.Random) -> Any:
    return rng.choice(VALUES)(rng)


def input_of(rng: random.Random, kinds: dict[str, dict[str, Any]], tag: str) -> bytes:
    """Return something like a message: with odd values, without some fields, cut, or nothing like one at all."""
    kind = rng.choice(list(kinds))
    message = {tag: kind, **kinds[kind]}
    for _ in range(rng.choice([0, 1, 1, 2])):
        message[rng.choice([*message, "other"])] = value_of(rng)
    if rng.random() < 0.1:
        message.pop(rng.choice(list(message)))
    text = json.dumps(message).encode()
    match rng.randrange(20):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            return text[: rng.randrange(len(text))]
        case 2:
            return b"[" * rng.choice([10, 5_000, 60_000])
        case 3:
            at = rng.randrange(len(text))
            return text[:at] + rng.randbytes(2) + text[at + 2 :]
        case _:
            return text


# --- the agents' socket


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessHost:
    """A host with one run, whose process is this one."""
    monkeypatch.setattr(process_launcher, "belongs_to", lambda pid, process: True)  # noqa: ARG005
    site = LaunchSite(node_id="n1", devices=(), socket="", checkpoints=tmp_path / "checkpoints", cwd="/")
    facts: list[AnyEvent] = []
    found = ProcessHost(
        site,
        tmp_path / "runs",
        clock=time.time,  # noqa: TID251 - of which nothing depends
        watch=lambda place, process: None,  # noqa: ARG005
        report=facts.append,
        wake=lambda: None,
    )
    run = LocalRun(job_id="j1", epoch=1, ranks={0: RunProcess()}, devices=(0,))
    found.runs[run.key] = run
    found._processes[run.key, 0] = ShimProcess(os.getpid(), 0)
    (tmp_path / "runs/j1/1/0").mkdir(parents=True)
    return found


async def test_whatever_comes_on_the_agents_socket_is_no_end_of_the_executor(host: ProcessHost, tmp_path: Path) -> None:
    rng, hello = random.Random(13), json.dumps({"type": "hello", **AGENT["hello"]}).encode() + b"\n"  # noqa: S311
    door, sent = AgentListener(tmp_path / "s", host), 0
    while sent < INPUTS:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(tmp_path / "s"))
            if rng.random() < 0.8:
                agent.sendall(hello)
            with contextlib.suppress(OSError):  # it is hung up on
                for _ in range(rng.randrange(1, 20)):
                    message = NASTY[sent] if sent < len(NASTY) else input_of(rng, AGENT, "type")
                    agent.sendall(message + b"\n" * (rng.random() < 0.95))
                    sent += 1
                    door.catch_up()
            if rng.random() < 0.2:
                host.ask(("j1", 1), "preempted")
        door.catch_up()
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(tmp_path / "s"))
        agent.sendall(hello + b'{"type": "progress", "step": 77, "loop_steps": 77, "loop_s": 1.5}\n')
        door.catch_up()
    rank = host.runs["j1", 1].ranks[0].report
    assert (rank.step, rank.loop_s) == (77, 1.5)
    assert len(rank.metrics) <= MOST_METRICS
    assert all(len(name) <= LONGEST_METRIC for name in rank.metrics)
    door.catch_up()
    door.close()


SHOUTING = """
import json, os, socket
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["PENSTOCK_SOCKET"])
def say(kind, **fields):
    agent.sendall(json.dumps({"type": kind, **fields}).encode() + b"\\n")
say("hello", version=1, job_id="j1", epoch=1, rank=0, pid=os.getpid())
for step in range(20_000):
    say("saved", step=step + 1)
for step in range(3_000):
    say("save_failed", step=step, error="e" * 2_000)
for part in range(96):
    metrics = {f"m{part * 1000 + i}": 0.5 for i in range(1000)}
    say("progress", step=20_000, loop_steps=20_000, loop_s=1.0, metrics=metrics)
say("done", step=20_001, loop_steps=20_001, loop_s=1.0, metrics={"x" * 5_000: 1.0}, diverged=["y" * 5_000])
"""


async def test_a_job_that_shouts_ends_as_it_would_and_its_node_goes_on(world: World) -> None:
    await world.node()
    await world.run("j1", *python(SHOUTING))
    ended = await world.ended("j1")
    assert (ended.outcome, ended.steps, len(ended.metrics)) == ("completed", 20_001, MOST_METRICS)
    facts = [fact for delivery in await world.bus.read("penstock.evt.run.j1") for fact in delivery.commit.facts]
    saved = [fact.step for fact in facts if isinstance(fact, RunCheckpointed)]
    assert saved == sorted(set(saved))
    assert saved[-1] == 20_000
    warned = [fact.warning for fact in facts if isinstance(fact, RunWarned)]
    assert len([warning for warning in warned if "reports more metrics than are kept" in warning]) == 1
    assert isinstance(facts[-1], RunEnded)
    await world.run("j2", *python("print('hello')"))
    assert (await world.ended("j2")).outcome == "completed"


# --- the lanes' socket


@contextlib.contextmanager
def descriptors(rng: random.Random) -> Iterator[list[int]]:
    """Some descriptors to send along: of files, pipes, eventfds, memory."""
    made = []
    for _ in range(rng.choice([0, 0, 1, 2, 4])):
        match rng.randrange(4):
            case 0:
                made.append(os.eventfd(0, os.EFD_NONBLOCK if rng.random() < 0.5 else 0))
            case 1:
                made.append(os.memfd_create("page", os.MFD_ALLOW_SEALING))
                os.truncate(made[-1], rng.choice([0, 10, 4096, 65536]))
            case 2:
                made.append(os.open("/dev/null", os.O_RDWR))
            case _:
                made += os.pipe()
    try:
        yield made
    finally:
        for fd in made:
            os.close(fd)


def test_whatever_comes_on_the_lanes_socket_is_no_end_of_the_executor(tmp_path: Path) -> None:
    rng, broker, sent = random.Random(17), TokenBroker(tmp_path / "lanes"), 0  # noqa: S311
    broker.open("n1-0")
    before = len(os.listdir("/proc/self/fd"))
    while sent < INPUTS:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as member:
            member.connect(str(tmp_path / "lanes"))
            with contextlib.suppress(OSError):
                for _ in range(rng.randrange(1, 8)):
                    message = NASTY[sent] if sent < len(NASTY) else input_of(rng, LANES, "kind")
                    sent += 1
                    with descriptors(rng) as fds:
                        socket.send_fds(member, [message[:60_000] or b"x"], fds)
                    for events in broker.poll():
                        if isinstance(events, JoinRequested) and rng.random() < 0.7:
                            with contextlib.suppress(ValueError):  # it is gone already
                                broker.assign_slots(events.who, ["n1-0"])
        broker.poll()
    for _ in range(3):
        broker.poll()
    assert len(os.listdir("/proc/self/fd")) <= before
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as member:
        member.connect(str(tmp_path / "lanes"))
        member.send(json.dumps({"kind": "join", "version": 1, "job_id": "good", "epoch": 1, "rank": 0}).encode())
        assert JoinRequested(LaneClientId("good", 1, 0), os.getpid()) in [*broker.poll(), *broker.poll()]
    broker.close()
