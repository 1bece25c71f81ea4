"""Nodes with an executor and a memory agent each, for tests of checkpoints in peers' memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from executor_cases import Node, World, end_processes

from penstock_bus import Bus
from penstock_bus.shell import Shell
from penstock_log import RunStarted, subjects
from penstock_log.memory_messages import SlabOffer
from penstock_memory.machine import MemorySettings
from penstock_memory.runner import run as run_agent

MIB = 1 << 20
TRAINING = """
import sys, penstock
seen = []
with penstock.session() as session:
    def save(folder):
        (folder / "seen").write_text(repr(seen))
        (folder / "weights").mkdir()
        (folder / "weights" / "first").write_bytes(bytes(range(256)) * 10_000)
    def load(folder):
        assert (folder / "weights" / "first").read_bytes() == bytes(range(256)) * 10_000
        seen.extend(eval((folder / "seen").read_text()))
    session.on_checkpoint(save, load)
    print("begins at", session.step, "with", len(seen), flush=True)
    for item in session.iterations(range(10**9)):
        seen.append(item)
        if len(seen) == 20:
            print("far enough", flush=True)
"""


class Agent:
    """A memory agent on the world's bus."""

    def __init__(self, world: World, node_id: str, **settings: Any) -> None:
        self.world, self.node_id = world, node_id
        chosen = {"slab_bytes": MIB, "headroom_bytes": 64 * MIB, "most_lent_bytes": 64 * MIB, **settings}
        data = world.folder / node_id / "memory"
        self.settings = MemorySettings(node_id=node_id, data_dir=str(data), address="127.0.0.1", **chosen)

    async def start(self) -> None:
        """Start it, and wait until it offers."""
        offer = asyncio.ensure_future(self.offer(lambda _: True))
        self.shell = Shell(self.world.bus, "memory")
        self.task = asyncio.create_task(run_agent(self.shell, self.settings))
        await asyncio.wait({offer, self.task}, return_when=asyncio.FIRST_COMPLETED)
        assert offer.done(), self.task

    async def offer(self, condition: Callable[[SlabOffer], bool]) -> SlabOffer:
        """Return its next offer that is as wanted."""
        async with asyncio.timeout(30):
            async for _, body in self.world.bus.subscribe(subjects.memory_offer(self.node_id)):
                if condition(offer := msgspec.json.decode(body, type=SlabOffer)):
                    return offer
        raise AssertionError("telemetry does not end")

    async def kill(self) -> None:
        """End it without a word to anybody."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class Cluster(World):
    """A world whose nodes have memory agents too, and disks of their own."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        super().__init__(bus, folder)
        self.agents: dict[str, Agent] = {}

    async def machine(self, node_id: str, *, agent: bool = True, **settings: Any) -> Node:
        """Return a node with an executor and an agent."""
        if agent:
            self.agents[node_id] = Agent(self, node_id, **settings.pop("lends", {}))
            await self.agents[node_id].start()
        where = self.folder / node_id
        chosen = {
            "checkpoint_dir": "",
            "checkpoint_memory_dir": str(where / "shm"),
            "memory_dir": str(where / "memory") if agent else "",
            "pass_env": ("PYTHONPATH",),
            "park_bytes": 0,  # what is preempted is to load its checkpoint
            **settings,
        }
        return await self.node(node_id, **chosen)

    async def preempted(self, job_id: str, epoch: int = 1, node_id: str = "n1") -> int:
        """Preempt a job that is far enough; return its steps."""
        await self.says(job_id, "far enough")
        await self.preempt(job_id, epoch)
        return (await self.ended(job_id, epoch, node_id)).steps

    async def started(self, job_id: str, epoch: int, node_id: str) -> RunStarted:
        """Return how a run began."""
        return await self.fact(RunStarted, job_id, lambda fact: (fact.epoch, fact.node_id) == (epoch, node_id))


@asynccontextmanager
async def cluster_on(bus: Bus, folder: Path) -> AsyncIterator[Cluster]:
    """A cluster whose executors, agents and processes are gone afterwards."""
    cluster = Cluster(bus, folder)
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.kill()
        end_processes(folder)
        for agent in cluster.agents.values():
            await agent.kill()
