"""Facts of an agent on their way: in order, each once, whatever becomes of the bus and of who writes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from penstock_aggregator.fact_queue import MOST_IN_ONE, FactQueue
from penstock_bus import Append, TooLarge
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_log import AggregatorEnded, AggregatorStarted, subjects
from penstock_testing import eventually


class SlowBus:
    """A bus whose answers to appends are held back."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.stored, self.may_answer = asyncio.Event(), asyncio.Event()

    async def append(self, item: Append) -> int:
        seq = await self._bus.append(item)
        self.stored.set()
        await self.may_answer.wait()
        return seq


def started(number: int) -> AggregatorStarted:
    return AggregatorStarted(at_s=1.0, node_id="n1", aggregator=f"n1/{number}")


async def numbers(bus: MemoryBus) -> list[int]:
    commits = [delivery.commit for delivery in await bus.read(subjects.aggregator("n1"))]
    facts = [fact for commit in commits for fact in commit.facts if isinstance(fact, AggregatorStarted)]
    return [int(fact.aggregator.partition("/")[2]) for fact in facts]


async def test_facts_are_stored_in_order_and_many_in_one_commit(memory_bus: MemoryBus) -> None:
    queue = FactQueue(memory_bus, "n1")
    count = MOST_IN_ONE + 10
    results = [queue.put(started(number)) for number in range(count)]
    await queue.flush()
    assert await numbers(memory_bus) == list(range(count))
    assert [result.result() for result in results] == [1] * MOST_IN_ONE + [2] * 10


async def test_a_commit_whose_answer_was_not_waited_for_is_stored_once(memory_bus: MemoryBus) -> None:
    bus = SlowBus(memory_bus)
    queue = FactQueue(bus, "n1")  # type: ignore[arg-type]  # of a bus, it only appends
    queue.put(started(0))
    writing = asyncio.create_task(queue.write())
    await bus.stored.wait()
    queue.put(started(1))
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    bus.may_answer.set()
    await queue.flush()
    assert await numbers(memory_bus) == [0, 1]


async def test_facts_that_are_too_large_together_go_by_themselves_and_one_that_is_too_large_alone_is_left_out() -> None:
    async with MemoryBus(MemoryServer(max_body_bytes=1000)) as bus:
        queue = FactQueue(bus, "n1")
        results = [queue.put(started(number)) for number in range(30)]
        huge = queue.put(AggregatorEnded(at_s=1.0, node_id="n1", aggregator="n1/9", why="x" * 2000))
        results += [queue.put(started(number)) for number in range(30, 40)]
        await queue.flush()
        assert await numbers(bus) == list(range(40))
        assert isinstance(huge.exception(), TooLarge)
        assert all(result.result() for result in results)


@pytest.mark.slow
async def test_facts_wait_for_a_bus_that_is_away(memory_bus: MemoryBus) -> None:
    queue = FactQueue(memory_bus, "n1")
    writing = asyncio.create_task(queue.write())
    memory_bus.disconnect()
    for number in range(3):
        queue.put(started(number))
        await asyncio.sleep(0)
    memory_bus.reconnect()
    found: list[int] = []

    async def all_are_there() -> bool:
        found[:] = await numbers(memory_bus)
        return len(found) == 3

    await eventually(all_are_there)
    assert found == [0, 1, 2]
    writing.cancel()
