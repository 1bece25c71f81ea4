"""The autoscaler on a bus: sizes in the log, one that leads, and one that takes over."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scaling_facts import decisions, elastic, job, node, scaled, widths

from penstock_autoscaler.__main__ import run
from penstock_bus import Append, Bus
from penstock_bus.shell import Shell
from penstock_log import AnyEvent, Commit, ScaleDecided, subjects
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_testing import eventually, subject_of


@pytest.fixture(params=["memory_bus", "nats_bus"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(request.param)


@asynccontextmanager
async def autoscaler(bus: Bus, replica_id: str) -> AsyncIterator[Shell]:
    shell = Shell(bus, "autoscaler", replica_id)
    task = asyncio.create_task(run(shell, SizingSettings()))
    try:
        yield shell
    finally:
        shell.stopping.set()
        await task


async def tell(bus: Bus, *facts: AnyEvent) -> None:
    for fact in facts:
        commit = Commit(id=uuid.uuid4().hex, actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


async def decided(bus: Bus) -> list[ScaleDecided]:
    deliveries = await bus.read(subjects.scale("default"))
    return decisions([fact for delivery in deliveries for fact in delivery.commit.facts])


async def has_sizes(bus: Bus, expected: dict[str, int]) -> bool:
    return widths(list(await decided(bus))) == expected


@pytest.mark.slow
async def test_a_job_is_sized_by_the_one_that_leads_and_the_next_by_whoever_takes_over(bus: Bus) -> None:
    await tell(bus, node(fast=3), scaled(elastic(1, 2)))
    async with autoscaler(bus, "r2"):
        async with autoscaler(bus, "r1"):
            await tell(bus, job("a", elastic(1, 2)))
            await eventually(lambda: has_sizes(bus, {"a": 2}))
        await tell(bus, job("b", elastic(1, 2), 2.0))
        await eventually(lambda: has_sizes(bus, {"a": 2, "b": 1}))
    assert len(await decided(bus)) == 2, "nobody decides again what is decided"
