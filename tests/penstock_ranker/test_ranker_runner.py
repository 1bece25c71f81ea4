"""The ranker on a bus: ranks in the log, demotion by its own alarm, restarts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock_bus import Append, Bus
from penstock_bus.shell import Shell
from penstock_log import (
    AnyEvent,
    Commit,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    subjects,
)
from penstock_ranker.__main__ import run
from penstock_ranker.machine import PoolSettings, RankerSettings
from penstock_testing import eventually, subject_of


@pytest.fixture(params=["memory_bus", "nats_bus"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(request.param)


@asynccontextmanager
async def ranker(bus: Bus, replica_id: str = "r1", **chosen: Any) -> AsyncIterator[Shell]:
    shell = Shell(bus, "ranker", replica_id)
    task = asyncio.create_task(run(shell, RankerSettings(**{"thresholds_gpu_s": (0.4, 1e6), **chosen})))
    try:
        yield shell
    finally:
        shell.stopping.set()
        await task


async def tell(bus: Bus, *facts: AnyEvent) -> None:
    for fact in facts:
        commit = Commit(id=uuid.uuid4().hex, actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


def submitted(job_id: str) -> JobSubmitted:
    return JobSubmitted(job_id=job_id, at_s=1.0, spec=JobSpec(name="a", command=("true",), gpus=2))


async def ranks(bus: Bus) -> list[JobRank]:
    deliveries = await bus.read(subjects.rank("default"))
    facts = [fact for delivery in deliveries for fact in delivery.commit.facts]
    return [rank for fact in facts if isinstance(fact, JobsRanked) for rank in fact.ranks]


async def is_in(bus: Bus, job_id: str, queue: int) -> bool:
    return any(rank.job_id == job_id and rank.queue == queue for rank in await ranks(bus))


async def test_a_running_job_is_demoted_at_its_crossing_without_any_event(bus: Bus) -> None:
    async with ranker(bus) as shell:
        await tell(bus, submitted("j1"))
        await eventually(lambda: is_in(bus, "j1", 0))
        placement = Placement(job_id="j1", epoch=1, kind="fast", slots=(Slot(node_id="n1", devices=(0, 1)),))
        now_s = shell.now_s()
        await tell(
            bus,
            RoundDecided(pool="default", at_s=now_s, placements=(placement,)),
            RunStarted(job_id="j1", epoch=1, node_id="n1", devices=(0, 1), at_s=now_s),
        )
        await eventually(lambda: is_in(bus, "j1", 1))
    first, second = await ranks(bus)
    assert (first.queue, second.queue) == (0, 1)
    assert second.position == pytest.approx(now_s + 0.2, abs=1e-6)


async def test_a_restart_ranks_nobody_twice_with_snapshots_and_without(bus: Bus) -> None:
    async with ranker(bus, "r1"):
        await tell(bus, submitted("j1"))
        await eventually(lambda: is_in(bus, "j1", 0))
    for replica_id, job_id in (("r2", "j2"), ("r3", "j3")):
        async with ranker(bus, replica_id):
            await tell(bus, submitted(job_id))
            await eventually(lambda job_id=job_id: is_in(bus, job_id, 0))
        await bus.delete_snapshots()
    assert [rank.job_id for rank in await ranks(bus)] == ["j1", "j2", "j3"]


async def test_a_pool_by_index_goes_by_its_prior_until_a_restart_chooses_another_order(
    bus: Bus, tmp_path: Path
) -> None:
    prior = tmp_path / "prior.csv"
    prior.write_text("0.5\n0.5\n0.5\n900\n")
    by_index = PoolSettings(order="2d-gittins", prior_file=str(prior), thresholds_gpu_s=(1e3,))
    async with ranker(bus, "r1", pools={"default": by_index}):
        placement = Placement(job_id="j1", epoch=1, kind="fast", slots=(Slot(node_id="n1", devices=(0, 1)),))
        await tell(
            bus,
            submitted("j1"),
            RoundDecided(pool="default", at_s=2.0, placements=(placement,)),
            RunStarted(job_id="j1", epoch=1, node_id="n1", devices=(0, 1), at_s=2.0),
            RunEnded(job_id="j1", epoch=1, node_id="n1", outcome="preempted", at_s=2.2),
        )
        await eventually(lambda: was_put(bus, lambda position: position < -1.0))
    async with ranker(bus, "r2", thresholds_gpu_s=(1e3,)):
        await eventually(lambda: was_put(bus, lambda position: position == 1.0))
    assert (await ranks(bus))[-1].position == 1.0


async def was_put(bus: Bus, where: Callable[[float], bool]) -> bool:
    return any(where(rank.position) for rank in await ranks(bus))
