from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from profiler_facts import ELASTIC, ELASTIC_KEY, KEY, ends, node, sampled, spec, submitted

from penstock_bus import Append, Bus
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_log import Commit, SamplesRequested, WorkloadProfiled, WorkloadScaled, subjects, workload
from penstock_profiler.__main__ import owner, run
from penstock_profiler.machine import ProfilerSettings
from penstock_testing import eventually, subject_of


async def append(bus: Bus, *facts: Any) -> None:
    for fact in facts:
        last_seq = await bus.last_seq()
        commit = Commit(id=f"test-{last_seq}", actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


@asynccontextmanager
async def profiler(
    bus: Bus, replica_id: str = "r1", clock: Callable[[], float] | None = None, *, heard: bool = True
) -> AsyncIterator[Shell]:
    shell = Shell(bus, "profiler", replica_id, **({"clock": clock} if clock else {}))
    async with shell.serving() if heard else nullcontext():
        task = asyncio.create_task(run(shell, ProfilerSettings()))
        try:
            yield shell
        finally:
            shell.stopping.set()
            await task


async def said(bus: Bus, key: str = KEY) -> list[tuple[str, type]]:
    deliveries = await bus.read(subjects.profile(key))
    return [(delivery.commit.actor, type(fact)) for delivery in deliveries for fact in delivery.commit.facts]


async def has_said(bus: Bus, kind: type, key: str = KEY) -> bool:
    return kind in [what for _, what in await said(bus, key)]


@pytest.fixture(params=["memory_bus", "nats_bus"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(request.param)


async def test_an_unseen_workload_is_sampled_and_answered_over_a_bus(bus: Bus) -> None:
    async with profiler(bus):
        await append(bus, node("n1", "fast", "slow"), submitted())
        await eventually(lambda: has_said(bus, SamplesRequested))
        await append(bus, *sampled("fast", 0.1), *sampled("slow", 0.4))
        await eventually(lambda: has_said(bus, WorkloadProfiled))
        await append(bus, submitted("j2"))
    assert [what for _, what in await said(bus)] == [SamplesRequested, WorkloadProfiled]


async def test_an_elastic_workload_is_sampled_at_its_sizes_and_answered_twice(memory_bus: MemoryBus) -> None:
    async with profiler(memory_bus):
        await append(memory_bus, node("n1", "fast", "fast"), submitted(**ELASTIC))
        await eventually(lambda: has_said(memory_bus, SamplesRequested, ELASTIC_KEY))
        (asked,) = await memory_bus.read(subjects.profile(ELASTIC_KEY))
        await append(memory_bus, *ends(asked.commit.facts[0].samples))
        await eventually(lambda: has_said(memory_bus, WorkloadScaled, ELASTIC_KEY))
    assert [what for _, what in await said(memory_bus, ELASTIC_KEY)] == [
        SamplesRequested,
        WorkloadProfiled,
        WorkloadScaled,
    ]


async def test_a_profiler_without_snapshots_knows_what_it_knew(memory_bus: MemoryBus) -> None:
    async with profiler(memory_bus):
        await append(memory_bus, node("n1", "fast"), submitted())
        await eventually(lambda: has_said(memory_bus, WorkloadProfiled))
    await memory_bus.delete_snapshots()
    async with profiler(memory_bus, "r2") as shell:
        await append(memory_bus, submitted("j2"))
        target = await memory_bus.last_seq()
        await eventually(lambda: shell.vitals.ready and shell.vitals.last_seq >= target)
    assert len(await said(memory_bus)) == 1


@pytest.mark.slow
async def test_replicas_share_the_keys_and_a_dead_ones_move(memory_bus: MemoryBus) -> None:
    now_s = 1000.0  # stands still, so that no heartbeat is late on a busy machine

    def clock() -> float:
        return now_s

    keys = {f"m{n}": workload.key(spec(model=f"m{n}")) for n in range(40)}
    of_second = {model: key for model, key in keys.items() if owner(key, ["r1", "r2"]) == "r2"}
    assert 5 < len(of_second) < 35
    async with profiler(memory_bus, "r1", clock) as first:
        async with profiler(memory_bus, "r2", clock) as second:
            await eventually(lambda: first.peers() == second.peers() == ["r1", "r2"])
            await append(memory_bus, node("n1", "fast"), *(submitted(m, model=m) for m in list(keys)[:20]))
            for model in list(keys)[:20]:
                await eventually(lambda key=keys[model]: has_said(memory_bus, WorkloadProfiled, key))
                expected = "profiler/r2" if model in of_second else "profiler/r1"
                assert await said(memory_bus, keys[model]) == [(expected, WorkloadProfiled)]
        late = next(model for model in list(keys)[20:] if model in of_second)
        await append(memory_bus, submitted(late, model=late))
        target = await memory_bus.last_seq()
        await eventually(lambda: first.vitals.last_seq >= target)
        now_s += 60.0  # the dead replica's last heartbeat is long ago
        await eventually(lambda: has_said(memory_bus, WorkloadProfiled, keys[late]))
        assert await said(memory_bus, keys[late]) == [("profiler/r1", WorkloadProfiled)]


async def test_replicas_that_do_not_know_of_each_other_still_answer_once(memory_bus: MemoryBus) -> None:
    async with profiler(memory_bus, "r1", heard=False), profiler(memory_bus, "r2", heard=False):
        await append(memory_bus, node("n1", "fast"), *(submitted(f"j{n}", model=f"m{n}") for n in range(20)))
        for n in range(20):
            key = workload.key(spec(model=f"m{n}"))
            await eventually(lambda key=key: has_said(memory_bus, WorkloadProfiled, key))
            assert len(await said(memory_bus, key)) == 1
