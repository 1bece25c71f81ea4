"""Ranks, agents, aggregators and the assigner together: what is summed stays right, whatever ends meanwhile."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import numpy as np
import pytest
import pytest_asyncio
from aggregation_agents import Agent, Nodes, Rank, nodes_on

from penstock.aggregation import VectorExchange
from penstock_aggregator.supervisor import PROGRAM
from penstock_assigner.__main__ import run as run_assigner
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_log import (
    AggregationAssigned,
    AggregationLeft,
    AggregatorEnded,
    Device,
    NodeJoined,
    subjects,
)
from penstock_log.aggregation_messages import PartsAt, UpdateRule, VectorLayout
from penstock_scheduler.aggregation.assignment_step import AssignerSettings
from penstock_testing import eventually

pytestmark = pytest.mark.slow
LAYOUT = VectorLayout(dtype="f4", parts=(1000, 500))
MEAN = UpdateRule()
SGD = UpdateRule(name="momentum", lr=0.1, momentum=0.9)


class TrainingRank:
    """A rank that pushes and pulls in a thread, and whose conversation with its agent is the test's."""

    def __init__(self, agent: Agent, job_id: str, rank: int, world_size: int, rule: UpdateRule) -> None:
        self.agent, self.job_id, self.rank, self.world_size, self.rule = agent, job_id, rank, world_size, rule
        self.loop = asyncio.get_running_loop()
        self.exchange = VectorExchange(
            LAYOUT, rule, rank=rank, world_size=world_size, on_lost=self._say_lost, timeout_s=60.0
        )
        self.results: list[np.ndarray] = []
        self.told: list[PartsAt] = []
        self.go_on = threading.Semaphore(0)

    def _say_lost(self, lost: object) -> None:
        self.loop.call_soon_threadsafe(lambda: self.connection.say(lost))  # type: ignore[arg-type]

    async def start(self) -> None:
        about = {"world_size": self.world_size, "layout": LAYOUT, "rule": self.rule}
        self.connection = await Rank.ask(self.agent, self.job_id, self.rank, **about)
        self.listening = asyncio.create_task(self._listen())
        self.ended = asyncio.Event()
        # Not one of the loop's own, for which the loop of a test that has failed would wait.
        threading.Thread(target=self._train, daemon=True).start()

    async def _listen(self) -> None:
        with suppress(AssertionError):
            while True:
                self.told.append(await self.connection.parts())
                self.exchange.placed(self.told[-1])

    def _train(self) -> None:
        try:
            self.exchange.begin(np.zeros(1500, "f4"))
            while self.go_on.acquire() and self.rank >= 0:
                step = len(self.results)
                pushed = values_of(self.rank, step)
                self.exchange.exchange(pushed)
                self.results.append(pushed)
        finally:
            self.loop.call_soon_threadsafe(self.ended.set)

    def steps(self, count: int) -> None:
        """Let it do so many steps more."""
        self.go_on.release(count)

    async def end(self) -> None:
        self.rank = -1
        self.go_on.release()
        await self.ended.wait()
        self.exchange.close()
        self.listening.cancel()
        await self.connection.close()


def values_of(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng((rank, step)).normal(size=1500).astype("f4")


@pytest_asyncio.fixture
async def nodes(memory_bus: MemoryBus) -> AsyncIterator[Nodes]:
    shell = Shell(memory_bus, "assigner")
    assigner = asyncio.create_task(run_assigner(shell, AssignerSettings()))
    async with nodes_on(memory_bus, PROGRAM) as found:
        yield found
    shell.stopping.set()
    await assigner


async def joined(nodes: Nodes, **most: int) -> list[Agent]:
    """Return the agents of nodes that have joined, each of which runs so many aggregators at most."""
    device = Device(index=0, kind="cpu", memory_bytes=1, backend="cpu")
    for node_id in most:
        await nodes.write(NodeJoined(node_id=node_id, pool="default", devices=(device,), at_s=nodes.now_s()))
    return [await nodes.agent(node_id, most=count) for node_id, count in most.items()]


async def assigned(nodes: Nodes) -> list[AggregationAssigned]:
    found = [fact for one in await nodes.bus.read(subjects.aggregation("default")) for fact in one.commit.facts]
    return [fact for fact in found if isinstance(fact, AggregationAssigned)]


@pytest.mark.parametrize(("rule", "how"), [(MEAN, signal.SIGKILL), (SGD, signal.SIGKILL), (MEAN, signal.SIGSTOP)])
async def test_a_gang_on_two_nodes_sums_through_the_loss_of_an_aggregator_bit_for_bit(
    nodes: Nodes, rule: UpdateRule, how: signal.Signals
) -> None:
    agents = await joined(nodes, n1=2, n2=2)
    await nodes.job("j1", "n1", "n2")
    ranks = [TrainingRank(agent, "j1", rank, 2, rule) for rank, agent in enumerate(agents)]
    for rank in ranks:
        await rank.start()
    for rank in ranks:
        rank.steps(5)
    await eventually(lambda: all(len(rank.results) == 5 for rank in ranks))
    first = (await assigned(nodes))[0].placed[0].aggregator
    {agent.node_id: agent for agent in agents}[first.partition("/")[0]].signal(first, how)
    for rank in ranks:
        rank.steps(5)
    await eventually(lambda: all(len(rank.results) == 10 for rank in ranks))
    assert (await nodes.said(AggregatorEnded)).aggregator == first
    parameters, momentum = np.zeros(1500, "f4"), np.zeros(1500, "f4")
    for step in range(10):
        expected = (values_of(0, step) + values_of(1, step)) * np.float32(0.5)
        if rule is SGD:
            momentum = expected if step == 0 else momentum * np.float32(0.9) + expected
            parameters = parameters - np.float32(0.1) * momentum
            expected = parameters
        for rank in ranks:
            if rule is MEAN:
                assert rank.results[step].tobytes() == expected.tobytes(), step
            else:
                np.testing.assert_allclose(rank.results[step], expected, rtol=1e-5, atol=1e-6)
        assert ranks[0].results[step].tobytes() == ranks[1].results[step].tobytes()
    assert len({part.aggregator for parts in ranks[0].told for part in parts.parts}) == 2
    for rank in ranks:
        await rank.end()
    assert (await nodes.said(AggregationLeft)).job_id == "j1"


async def test_an_aggregator_that_ends_while_the_bus_is_away_is_replaced_when_it_is_back(
    nodes: Nodes, memory_bus: MemoryBus
) -> None:
    (n1,) = await joined(nodes, n1=2)
    await nodes.job("j1", "n1")
    rank = TrainingRank(n1, "j1", 0, 1, MEAN)
    await rank.start()
    rank.steps(3)
    await eventually(lambda: len(rank.results) == 3)
    memory_bus.disconnect()
    rank.steps(3)
    await eventually(lambda: len(rank.results) == 6, why="what is summed needs no bus")
    n1.signal("n1/0", signal.SIGKILL)
    await eventually(lambda: not n1.running())
    rank.steps(3)
    memory_bus.reconnect()
    await eventually(lambda: len(rank.results) == 9)
    assert [one.tobytes() for one in rank.results] == [values_of(0, step).tobytes() for step in range(9)]
    await rank.end()


async def test_an_agent_that_is_killed_takes_its_aggregators_along_and_ranks_join_those_of_the_next_one(
    nodes: Nodes,
) -> None:
    n1, n2 = await joined(nodes, n1=1, n2=0)
    await nodes.job("j1", "n2")
    rank = TrainingRank(n2, "j1", 0, 1, MEAN)
    await rank.start()
    rank.steps(3)
    await eventually(lambda: len(rank.results) == 3)
    await n1.kill()
    assert n1.running() == set()
    await n1.start()
    rank.steps(3)
    await eventually(lambda: len(rank.results) == 6)
    assert [one.tobytes() for one in rank.results] == [values_of(0, step).tobytes() for step in range(6)]
    assert {part.aggregator for parts in rank.told for part in parts.parts} == {"n1/0", "n1/1"}
    await rank.end()
