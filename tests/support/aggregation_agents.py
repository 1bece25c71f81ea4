"""Nodes with aggregation agents on one bus, ranks that speak with them, and the test itself as assigner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from executor_cases import World

from penstock_aggregator.machine import AggregatorSettings
from penstock_aggregator.runner import run
from penstock_bus import Bus
from penstock_bus.service_folder import AGGREGATOR_SOCKET, path_in, secret_in
from penstock_bus.shell import Shell
from penstock_log import (
    AggregationAssigned,
    AggregatorsAllocated,
    AggregatorsOffered,
    AggregatorsRecycled,
    AggregatorStarted,
    AnyEvent,
    PartPlaced,
    subjects,
)
from penstock_log.aggregation_messages import (
    VERSION,
    AggregationDenied,
    AggregationPending,
    AggregationToClient,
    AskAggregation,
    PartsAt,
    ToAggregator,
    VectorLayout,
    run_token,
)
from penstock_testing import eventually

PROGRAM = (sys.executable, "-S", str(Path(__file__).with_name("aggregator_program.py")))
PATIENCE_S = 60.0
F = TypeVar("F", bound=AnyEvent)
LAYOUT = VectorLayout(dtype="f4", parts=(16, 8))


class Agent:
    """A node's agent; may be killed and started again on the same folder."""

    def __init__(self, bus: Bus, folder: Path, node_id: str, program: Sequence[str], **settings: Any) -> None:
        self.bus, self.node_id, self.data, self.program = bus, node_id, folder / node_id / "aggregator", program
        self.ranks: list[Rank] = []
        chosen = {"address": "127.0.0.1", "host": "127.0.0.1", "most": 2, **settings}
        self.settings = AggregatorSettings(node_id=node_id, data_dir=str(self.data), **chosen)

    @property
    def socket(self) -> Path:
        """Where ranks come."""
        return path_in(self.data, AGGREGATOR_SOCKET, for_all=True)

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.shell = Shell(self.bus, "aggregator")
        self.task = asyncio.create_task(run(self.shell, self.settings, self.program))
        await eventually(lambda: self.shell.vitals.ready or self.task.done())
        if self.task.done():
            self.task.result()

    async def kill(self) -> None:
        """End it without a word to anybody."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def stop(self) -> None:
        """Stop it in good order."""
        self.shell.stopping.set()
        await self.task

    def token(self, job_id: str, epoch: int = 1) -> str:
        """Return what the node's executor gives to the processes of a run."""
        return run_token(secret_in(self.data), job_id, epoch)

    def orders(self, name: str) -> list[ToAggregator]:
        """Return the orders of an aggregator that was allocated last under this name, pings left out."""
        number = name.rpartition("/")[2]
        files = sorted(
            self.data.glob(f"*%2F{number}-*.orders"), key=lambda path: int(path.name.split("-")[-1].split(".")[0])
        )
        lines = files[-1].read_bytes().splitlines() if files else []
        return [msgspec.json.decode(line, type=ToAggregator) for line in lines]

    def processes(self) -> dict[str, int]:
        """Return the processes of its aggregators, by name."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode().split("\0")
                if "--socket" in words and words[words.index("--socket") + 1].startswith(f"{self.data}/"):
                    socket = Path(words[words.index("--socket") + 1])
                    found[unquote(socket.name.rpartition("-")[0])] = int(path.parent.name)
        return found

    def running(self) -> set[str]:
        """Return the names of its aggregators whose processes run."""
        return set(self.processes())

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Signal an aggregator."""
        os.kill(self.processes()[name], signum)


class Rank:
    """A rank's connection to its node's agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def ask(cls, agent: Agent, job_id: str = "j1", rank: int = 0, epoch: int = 1, **more: Any) -> Rank:
        """Connect, and ask for aggregation."""
        found = cls(*await asyncio.open_unix_connection(str(agent.socket)))
        asked = {"version": VERSION, "world_size": 1, "layout": LAYOUT, "token": agent.token(job_id, epoch), **more}
        agent.ranks.append(found)  # a connection that nothing refers to is closed
        found.say(AskAggregation(pid=os.getpid(), job_id=job_id, epoch=epoch, rank=rank, **asked))
        return found

    def say(self, message: msgspec.Struct | bytes) -> None:
        """Send a line."""
        self.writer.write(message if isinstance(message, bytes) else msgspec.json.encode(message) + b"\n")

    async def hear(self, kind: type[Any] = object) -> Any:
        """Return the next message, which is to be of a kind."""
        line = await asyncio.wait_for(self.reader.readline(), PATIENCE_S)
        assert line, "the agent has hung up"
        message = msgspec.json.decode(line, type=AggregationToClient)
        assert isinstance(message, kind), message
        return message

    async def parts(self) -> PartsAt:
        """Wait for where the parts are."""
        while isinstance(message := await self.hear(), AggregationPending):
            pass
        assert isinstance(message, PartsAt), message
        return message

    async def denied(self) -> str:
        """Wait until the agent hangs up, and return why."""
        while not isinstance(message := await self.hear(), AggregationDenied):
            pass
        assert await asyncio.wait_for(self.reader.read(), PATIENCE_S) == b""
        await self.close()
        return message.reason

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Nodes(World):
    """Nodes with agents; the test writes what the matcher and the assigner would write."""

    def __init__(self, bus: Bus, folder: Path, program: Sequence[str] = PROGRAM) -> None:
        super().__init__(bus, folder)
        self.program = program
        self.agents: dict[str, Agent] = {}

    async def agent(self, node_id: str = "n1", **settings: Any) -> Agent:
        """Return a node's agent that is ready."""
        self.agents[node_id] = agent = Agent(self.bus, self.folder, node_id, self.program, **settings)
        await agent.start()
        return agent

    async def job(self, job_id: str = "j1", *node_ids: str, epoch: int = 1) -> None:
        """Have a job run on nodes."""
        if epoch == 1:
            await self.submit(job_id, "true")
        await self.place_on(job_id, dict.fromkeys(node_ids or ("n1",), (0,)), epoch)

    async def allocate(self, *names: str) -> None:
        """Allocate aggregators, and wait until they run."""
        began = await self.write_allocated(*names)
        for name in names:
            await self.said(AggregatorStarted, lambda fact, name=name: fact.aggregator == name, after=began)

    async def write_allocated(self, *names: str) -> int:
        """Allocate aggregators, and return the sequence of that."""
        return await self.write(AggregatorsAllocated(at_s=self.now_s(), pool="default", aggregators=names))

    async def recycle(self, *names: str) -> None:
        """Recycle aggregators."""
        await self.write(AggregatorsRecycled(at_s=self.now_s(), pool="default", aggregators=names))

    async def assign(
        self, generation: int, *placed: PartPlaced, job_id: str = "j1", epoch: int = 1, **more: Any
    ) -> None:
        """Assign a run's parts."""
        about = {"pool": "default", "job_id": job_id, "epoch": epoch, "generation": generation, "phase": "profile"}
        await self.write(AggregationAssigned(at_s=self.now_s(), placed=placed, **{**about, **more}))

    async def said(
        self, kind: type[F], when: Callable[[F], bool] = lambda _: True, *, node_id: str = "", after: int = 0
    ) -> F:
        """Return the first fact of a kind that an agent has written, waiting for it."""
        subject = subjects.aggregator(node_id) if node_id else f"{subjects.ROOT}.evt.aggregator.*"
        async with asyncio.timeout(PATIENCE_S):
            async for delivery in self.bus.follow(after_seq=after, subjects=[subject]):
                for fact in delivery.commit.facts:
                    if isinstance(fact, kind) and when(fact):
                        return fact
        raise AssertionError("a follower ended")

    async def all_said(self, node_id: str = "n1") -> list[str]:
        """Return the names of the facts that a node's agent has written, but for its offers."""
        deliveries = await self.bus.read(subjects.aggregator(node_id))
        facts = [fact for delivery in deliveries for fact in delivery.commit.facts]
        return [type(fact).__name__ for fact in facts if not isinstance(fact, AggregatorsOffered)]


def on(aggregator: str, part: int = 0, generation: int = 1, **more: Any) -> PartPlaced:
    """A part that is placed."""
    return PartPlaced(part=part, aggregator=aggregator, generation=generation, **more)


@asynccontextmanager
async def nodes_on(bus: Bus, program: Sequence[str] = PROGRAM) -> AsyncIterator[Nodes]:
    """
    Nodes whose agents and aggregators are gone afterwards.

    Aggregators are known by the paths of their sockets, so those have to have room in the agents' own folders.
    """
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        nodes = Nodes(bus, Path(folder), program)
        try:
            yield nodes
        finally:
            for agent in nodes.agents.values():
                await agent.kill()
