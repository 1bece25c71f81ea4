"""A small cluster for tests: executors on one bus, and the test itself as gateway and matcher."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock_bus import Append, Bus
from penstock_bus.shell import Shell
from penstock_executor.launchers import process_launcher
from penstock_executor.runner import run
from penstock_executor.settings import ExecutorSettings
from penstock_log import (
    AnyEvent,
    Commit,
    JobCancelled,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    Placement,
    Preemption,
    ProfileSample,
    RoundDecided,
    RunEnded,
    SamplesRequested,
    Slot,
    subjects,
)
from penstock_testing import subject_of

F = TypeVar("F", bound=AnyEvent)
JOB = Path(__file__).with_name("speaking_job.py")
PATIENCE_S = 60.0


class Node:
    """One executor; may be killed and started again on the same folder."""

    def __init__(self, bus: Bus, folder: Path, node_id: str = "n1", **settings: Any) -> None:
        self.bus = bus
        settings = {"devices": "fast:2@1.0:1GiB", "data_dir": str(folder / node_id), **settings}
        settings.setdefault("checkpoint_dir", str(folder / "checkpoints"))
        settings.setdefault("run_as", "executor")
        self.settings = ExecutorSettings(node_id=node_id, **settings)

    async def start(self) -> None:
        """Start it, and wait until it has joined."""
        before = len(await self.bus.read(subjects.node(self.settings.node_id)))
        self.shell = Shell(self.bus, "executor")
        self.task = asyncio.create_task(run(self.shell, self.settings))
        async with asyncio.timeout(PATIENCE_S):
            async for _ in self.bus.follow(subjects=[subjects.node(self.settings.node_id)]):
                before -= 1
                if before < 0:
                    return

    async def kill(self) -> None:
        """End it without letting it do anything about its runs."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def stop(self) -> None:
        """Stop it in good order."""
        self.shell.stopping.set()
        await self.task


class World:
    """The bus, as a test writes and reads it."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        self.bus, self.folder = bus, folder
        self.nodes: list[Node] = []
        self._ids = itertools.count()

    def now_s(self) -> float:
        """Return a time of which only the order matters."""
        return 1_700_000_000.0 + next(self._ids)

    async def node(self, node_id: str = "n1", **settings: Any) -> Node:
        """Return a node that has joined."""
        node = Node(self.bus, self.folder, node_id, **settings)
        self.nodes.append(node)
        await node.start()
        return node

    async def write(self, *facts: AnyEvent) -> int:
        """Append facts of one entity."""
        commit = Commit(id=f"test-{next(self._ids)}", actor="test", facts=facts)
        return await self.bus.append(Append(subject=subject_of(facts[0]), commit=commit, expected=None))

    async def submit(self, job_id: str, *command: str, **spec: Any) -> None:
        """Submit a job."""
        job = JobSpec(name=job_id, command=command, **{"grace_s": 30.0, "checkpoint_s": 0.0, **spec})
        await self.write(JobSubmitted(job_id=job_id, spec=job, at_s=self.now_s()))

    async def sample(self, sample_id: str, *command: str) -> None:
        """Ask for a sample."""
        spec = JobSpec(name="s", command=command)
        sample = ProfileSample(sample_id=sample_id, kind="fast", iterations=5)
        await self.write(SamplesRequested(key="k", spec=spec, samples=(sample,), at_s=self.now_s()))

    async def place(self, job_id: str, *devices: int, epoch: int = 1, node_id: str = "n1") -> None:
        """Place a job on devices of one node."""
        await self.place_on(job_id, {node_id: devices or (0,)}, epoch)

    async def place_on(self, job_id: str, slots: dict[str, Sequence[int]], epoch: int = 1) -> None:
        """Place a job on devices of several nodes."""
        given = tuple(Slot(node_id=node_id, devices=tuple(devices)) for node_id, devices in slots.items())
        placement = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=given)
        await self.write(RoundDecided(pool="default", placements=(placement,), at_s=self.now_s()))

    async def run(self, job_id: str, *command: str, **spec: Any) -> None:
        """Submit a job and place it on device 0 of the first node."""
        await self.submit(job_id, *command, **spec)
        await self.place(job_id)

    async def preempt(self, job_id: str, epoch: int = 1) -> None:
        """Preempt a job."""
        preemption = Preemption(job_id=job_id, epoch=epoch, reason="outranked")
        await self.write(RoundDecided(pool="default", preemptions=(preemption,), at_s=self.now_s()))

    async def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        await self.write(JobCancelled(job_id=job_id, by="alice", at_s=self.now_s()))

    async def lose(self, node_id: str) -> None:
        """Declare a node lost."""
        await self.write(RoundDecided(pool="default", lost_nodes=(node_id,), at_s=self.now_s()))

    async def fact(self, kind: type[F], job_id: str, when: Callable[[F], bool] = lambda _: True) -> F:
        """Return the first fact of a kind about a job, waiting for it."""
        async with asyncio.timeout(PATIENCE_S):
            async for delivery in self.bus.follow(subjects=[subjects.run(job_id)]):
                for fact in delivery.commit.facts:
                    if isinstance(fact, kind) and when(fact):
                        return fact
        raise AssertionError("a follower ended")

    async def ended(self, job_id: str, epoch: int = 1, node_id: str = "n1") -> RunEnded:
        """Return how a run ended, waiting for it."""
        return await self.fact(RunEnded, job_id, lambda fact: fact.epoch == epoch and fact.node_id == node_id)

    async def facts(self, job_id: str) -> list[str]:
        """Return the names of the facts that there are about a job's runs."""
        deliveries = await self.bus.read(subjects.run(job_id))
        return [type(fact).__name__ for delivery in deliveries for fact in delivery.commit.facts]

    async def joined(self, node_id: str = "n1") -> list[NodeJoined]:
        """Return what a node said when it joined."""
        deliveries = await self.bus.read(subjects.node(node_id))
        return [fact for delivery in deliveries for fact in delivery.commit.facts if isinstance(fact, NodeJoined)]

    async def output(self, job_id: str) -> bytes:
        """Return what a job printed so far."""
        return b"".join([line.data async for line in self.bus.read_output(job_id)])

    async def says(self, job_id: str, text: str, times: int = 1) -> None:
        """Wait until a job has printed something, so many of its processes for example."""
        seen = b""
        async with asyncio.timeout(PATIENCE_S):
            async for line in self.bus.read_output(job_id, follow=True):
                seen += line.data
                if seen.count(text.encode()) >= times:
                    return

    async def progress(self, job_id: str, when: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Return the first progress told about a job from now on."""
        async with asyncio.timeout(PATIENCE_S):
            async for _, body in self.bus.subscribe(subjects.progress(job_id)):
                told: dict[str, Any] = msgspec.json.decode(body)
                if when(told):
                    return told
        raise AssertionError("a listener ended")


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a few lines of Python."""
    return (sys.executable, "-c", code, *arguments)


def speaking(*arguments: str) -> tuple[str, ...]:
    """Return the command of a job that speaks the agent protocol; see ``speaking_job.py``."""
    return (sys.executable, "-S", str(JOB), *arguments)


@asynccontextmanager
async def world_on(bus: Bus, folder: Path) -> AsyncIterator[World]:
    """A world whose executors and processes are gone afterwards."""
    world = World(bus, folder)
    try:
        yield world
    finally:
        for node in world.nodes:
            await node.kill()
        end_processes(folder)


def end_processes(folder: Path) -> None:
    """Kill whatever a test left running."""

    for pid in folder.glob("*/runs/*/*/*/pid"):
        if (process := process_launcher.adopt(pid.parent)) is not None:
            process_launcher.signal_group(process, signal.SIGKILL)
        process_launcher.clean_up(pid.parent)
