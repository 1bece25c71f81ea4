"""The assigner on a bus: assignments in the log, one replica that leads, and one that takes over."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aggregation_cases import asked, measured, node, offered, placed, submitted

from penstock_assigner.__main__ import run
from penstock_bus import Append, Bus
from penstock_bus.shell import Shell
from penstock_log import AggregationAssigned, AnyEvent, Commit, JobTable, subjects
from penstock_scheduler.aggregation.aggregation_table import AggregationTable
from penstock_scheduler.aggregation.assignment_step import AssignerSettings
from penstock_testing import eventually, subject_of


@pytest.fixture(params=["memory_bus", "nats_bus"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(request.param)


@asynccontextmanager
async def assigner(bus: Bus, replica_id: str) -> AsyncIterator[Shell]:
    shell = Shell(bus, "assigner", replica_id)
    task = asyncio.create_task(run(shell, AssignerSettings()))
    try:
        yield shell
    finally:
        shell.stopping.set()
        await task


async def tell(bus: Bus, *facts: AnyEvent) -> None:
    for fact in facts:
        commit = Commit(id=uuid.uuid4().hex, actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


async def assigned(bus: Bus) -> list[AggregationAssigned]:
    deliveries = await bus.read(subjects.aggregation("default"))
    facts = [fact for delivery in deliveries for fact in delivery.commit.facts]
    return [fact for fact in facts if isinstance(fact, AggregationAssigned)]


async def phases(bus: Bus, expected: list[tuple[str, str]]) -> bool:
    return [(fact.job_id, fact.phase) for fact in await assigned(bus)] == expected


async def table(bus: Bus) -> AggregationTable:
    """Return what the log says of aggregation."""
    found, jobs = AggregationTable(), JobTable()
    for delivery in await bus.read(f"{subjects.ROOT}.evt.>"):
        for fact in delivery.commit.facts:
            found.apply(fact, jobs, jobs.apply(fact))
    return found


@pytest.mark.slow
async def test_of_two_replicas_one_assigns_and_the_other_goes_on_from_there(bus: Bus) -> None:
    await tell(bus, node("n1"), offered("n1", 2))
    async with assigner(bus, "r2"):
        async with assigner(bus, "r1"):
            await tell(bus, submitted("j1"), placed("j1"), asked("j1"))
            await eventually(lambda: phases(bus, [("j1", "profile")]))
        run = (await table(bus)).runs["j1"]
        await tell(bus, *measured(run, 1.0, 0.1, steps=20))
        await tell(bus, submitted("j2"), placed("j2"), asked("j2"))
        expected = [("j1", "profile"), ("j1", "packed"), ("j2", "profile")]
        await eventually(lambda: phases(bus, expected))
    assert len(await assigned(bus)) == len(expected), "nobody assigns again what is assigned"
