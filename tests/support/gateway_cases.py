"""Facts, and a gateway on the bus in memory, for the gateway's tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import msgspec

from penstock_bus import Append, Bus, NoResponders, ServiceError
from penstock_bus.shell import Shell
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.runner import run
from penstock_log import (
    AnyEvent,
    Commit,
    Device,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    NodeJoined,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    SweepSpec,
    Uniform,
    Wait,
    subjects,
)
from penstock_log.views import View
from penstock_testing import subject_of

V = TypeVar("V", bound=View)
NOW_S = 1_700_000_000.0
PATIENCE_S = 60.0


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"name": "job", "command": ("true",), "profile": "off", **fields})


def sweep_spec(**fields: Any) -> SweepSpec:
    space = {"lr": Uniform(low=0.1, high=1.0)}
    return SweepSpec(**{"name": "s", "job": spec(), "space": space, "metric": "accuracy", "trials": 2, **fields})


def submitted(job_id: str = "j1", at_s: float = NOW_S, **fields: Any) -> JobSubmitted:
    return JobSubmitted(at_s=at_s, job_id=job_id, spec=spec(id=job_id, **fields))


def joined(node_id: str = "n1", *, fast: int = 2, slow: int = 0, cpu: int = 0, pool: str = "default") -> NodeJoined:
    kinds = ["fast"] * fast + ["slow"] * slow + ["cpu"] * cpu
    devices = tuple(
        Device(index=i, kind=kind, memory_bytes=1 << 30, backend="cpu" if kind == "cpu" else "emulated")
        for i, kind in enumerate(kinds)
    )
    return NodeJoined(at_s=NOW_S, node_id=node_id, devices=devices, pool=pool)


def placed(
    job_id: str = "j1", *devices: int, epoch: int = 1, node: str = "n1", kind: str = "fast", at_s: float = NOW_S + 1
) -> RoundDecided:
    slots = (Slot(node_id=node, devices=devices or (0,)),)
    placement = Placement(job_id=job_id, epoch=epoch, kind=kind, slots=slots)
    return RoundDecided(at_s=at_s, pool="default", placements=(placement,))


def preempted(job_id: str = "j1", *, epoch: int = 1, at_s: float = NOW_S + 3, reason: str = "") -> RoundDecided:
    preemptions = (Preemption(job_id=job_id, epoch=epoch, reason=reason),)
    return RoundDecided(at_s=at_s, pool="default", preemptions=preemptions)


def waits(*found: Wait, at_s: float = NOW_S + 1) -> RoundDecided:
    return RoundDecided(at_s=at_s, pool="default", waits=found)


def ranked(job_id: str = "j1", queue: int = 0, position: float = 0.0, at_s: float = NOW_S) -> JobsRanked:
    return JobsRanked(at_s=at_s, pool="default", ranks=(JobRank(job_id=job_id, queue=queue, position=position),))


def started(job_id: str = "j1", *, epoch: int = 1, node: str = "n1", at_s: float = NOW_S + 2) -> RunStarted:
    return RunStarted(at_s=at_s, job_id=job_id, epoch=epoch, node_id=node, devices=(0,))


def ended(
    job_id: str = "j1", outcome: Any = "completed", *, epoch: int = 1, at_s: float = NOW_S + 5, **more: Any
) -> RunEnded:
    return RunEnded(at_s=at_s, job_id=job_id, epoch=epoch, node_id="n1", outcome=outcome, **more)


class Gateway:
    """A running gateway, and what a user and the other services do to it."""

    def __init__(self, bus: Bus, shell: Shell) -> None:
        self.bus, self.shell = bus, shell

    async def told(self, *facts: AnyEvent) -> int:
        """Append facts as their own services would; return the last sequence."""
        seq = 0
        for number, fact in enumerate(facts):
            commit_id = f"told-{await self.bus.last_seq()}-{number}"
            commit = Commit(id=commit_id, actor="test", facts=(fact,))
            seq = await self.bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))
        return seq

    async def command(self, name: str, body: Any) -> dict[str, Any]:
        return await self._ask(subjects.command(name), body)

    async def query(self, name: str, body: Any = b"") -> dict[str, Any]:
        return await self._ask(subjects.query(name), body)

    async def _ask(self, subject: str, body: Any) -> dict[str, Any]:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        answer = json.loads(await self.bus.request(subject, raw, timeout_s=PATIENCE_S))
        assert isinstance(answer, dict)
        return answer


@asynccontextmanager
async def gateway(bus: Bus, *facts: AnyEvent, settings: GatewaySettings | None = None) -> AsyncIterator[Gateway]:
    """Run a gateway whose log begins with these facts."""
    clock = count()
    shell = Shell(bus, "gateway", replica_id="r1", clock=lambda: NOW_S + 100 + next(clock) / 1000)
    running = Gateway(bus, shell)
    await running.told(*facts)
    task = asyncio.create_task(
        run(shell, settings or GatewaySettings(append_timeout_s=PATIENCE_S, query_timeout_s=PATIENCE_S))
    )
    try:
        while not await _serves(running):
            assert not task.done(), task.exception()
            await asyncio.sleep(0)
        yield running
    finally:
        shell.stopping.set()
        await task


async def _serves(running: Gateway) -> bool:
    try:
        await running.query("status")
    except NoResponders:
        return False
    return True


async def answer_or_error(asking: Awaitable[Any]) -> tuple[int, str] | None:
    """Return the code and the message with which a request is refused; None where it is answered."""
    try:
        await asking
    except ServiceError as error:
        return error.code, str(error)
    return None


async def refusal(asking: Awaitable[Any]) -> tuple[int, str]:
    """Return the code and the message with which a request is refused."""
    refused = await answer_or_error(asking)
    assert refused is not None, "it was not refused"
    return refused
