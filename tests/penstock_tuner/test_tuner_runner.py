from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tuner_facts import ended, random_spec, swept

from penstock_bus import Append, Bus, Conflict
from penstock_bus.follower import background
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_log import Commit, JobSpec, JobSubmitted, SweepFinished, SweepSubmitted, TrialFinished, subjects
from penstock_testing import eventually, subject_of
from penstock_tuner.machine import TunerSettings
from penstock_tuner.runner import WINDOW, run

FIRST, SECOND = "s1-t000", "s1-t001"


class Gateway:
    """Accepts trials from the work queue as the real one does; may swallow the first few, or refuse some."""

    def __init__(self, bus: Bus, swallow: int = 0, refuse: tuple[str, ...] = ()) -> None:
        self.bus, self.swallow, self.refuse = bus, swallow, refuse
        self.submissions: Counter[str] = Counter()

    async def accept(self) -> None:
        async for work in self.bus.work("gateway", [subjects.INBOX_JOBS]):
            spec = msgspec.json.decode(work.body, type=JobSpec)
            self.submissions[spec.id] += 1
            if spec.id in self.refuse:
                await work.reject("it is not wanted")
                continue
            if self.submissions.total() > self.swallow:
                await append(self.bus, JobSubmitted(at_s=2.0, job_id=spec.id, spec=spec), expected=0)
            await work.ack()


async def append(bus: Bus, fact: Any, expected: int | None = None) -> None:
    commit = Commit(id=f"{subject_of(fact)}-{fact.at_s}-{type(fact).__name__}", actor="test", facts=(fact,))
    try:
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=expected))
    except Conflict:
        assert expected == 0, "only a submission may be a repetition"


@asynccontextmanager
async def tuner(bus: Bus, replica_id: str = "r1", resubmit_s: float = 30.0) -> AsyncIterator[Shell]:
    shell = Shell(bus, "tuner", replica_id)
    task = asyncio.create_task(run(shell, TunerSettings(resubmit_s=resubmit_s)))
    try:
        yield shell
    finally:
        shell.stopping.set()
        await task


async def said(bus: Bus, kind: type) -> list[Any]:
    deliveries = await bus.read(subjects.sweep("s1"))
    return [fact for delivery in deliveries for fact in delivery.commit.facts if isinstance(fact, kind)]


async def submitted(bus: Bus) -> list[str]:
    deliveries = await bus.read(subjects.job("s1-t000")) + await bus.read(subjects.job("s1-t001"))
    return sorted(fact.job_id for delivery in deliveries for fact in delivery.commit.facts)


@pytest.fixture(params=["memory_bus", "nats_bus"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(request.param)


async def test_a_sweep_goes_all_the_way_over_a_bus(bus: Bus) -> None:
    gateway = Gateway(bus)
    async with background(gateway.accept()), tuner(bus):
        await append(bus, swept())
        await eventually(lambda: gateway.submissions == {FIRST: 1, SECOND: 1})
        for job_id, accuracy in ((FIRST, 0.7), (SECOND, 0.9)):
            for number, fact in enumerate(ended(job_id, acc=accuracy)):
                await append(bus, msgspec.structs.replace(fact, at_s=10.0 * accuracy + number))
        await eventually(lambda: has_finished(bus))
    (finish,) = await said(bus, SweepFinished)
    assert (finish.state, finish.best_job_id, finish.best_value) == ("completed", SECOND, 0.9)
    assert len(await said(bus, TrialFinished)) == 2


async def has_finished(bus: Bus) -> bool:
    return bool(await said(bus, SweepFinished))


async def test_a_long_sweep_never_floods_the_queue(memory_bus: MemoryBus) -> None:
    gateway, most = Gateway(memory_bus), 0
    trials = 2 * WINDOW + 1

    async def watch() -> None:
        nonlocal most
        while True:
            await memory_bus.server.changed.wait()
            most = max(most, queued(memory_bus))

    async with background(gateway.accept(), watch()), tuner(memory_bus):
        await append(memory_bus, SweepSubmitted(at_s=1.0, sweep_id="s1", spec=random_spec(trials)))
        await eventually(lambda: len(gateway.submissions) == trials)
    assert set(gateway.submissions.values()) == {1}
    assert 1 < most <= WINDOW


async def test_a_trial_that_the_gateway_never_saw_is_submitted_again(memory_bus: MemoryBus) -> None:
    gateway = Gateway(memory_bus, swallow=3)
    async with background(gateway.accept()), tuner(memory_bus, resubmit_s=0.05):
        await append(memory_bus, swept())
        await eventually(lambda: both_submitted(memory_bus))
    assert gateway.submissions.total() > 3


@pytest.mark.slow
async def test_a_trial_that_the_gateway_refuses_is_given_up_with_the_reason(bus: Bus) -> None:
    gateway = Gateway(bus, refuse=(FIRST,))
    async with background(gateway.accept()), tuner(bus, resubmit_s=0.5):
        await append(bus, swept())
        await eventually(lambda: has_reported(bus, FIRST))
        for fact in ended(SECOND, acc=0.9):
            await append(bus, fact)
        await eventually(lambda: has_finished(bus))
    first, second = await said(bus, TrialFinished)
    assert (first.job_id, first.state, first.reason) == (FIRST, "failed", "refused: it is not wanted")
    assert first.problem == "refused"
    assert (second.job_id, second.state, second.reason) == (SECOND, "completed", "")
    (finish,) = await said(bus, SweepFinished)
    assert (finish.state, finish.best_job_id) == ("completed", SECOND)
    assert gateway.submissions[FIRST] <= 2


async def test_a_sweep_whose_trials_are_all_refused_fails_with_the_reason(memory_bus: MemoryBus) -> None:
    gateway = Gateway(memory_bus, refuse=(FIRST, SECOND))
    async with background(gateway.accept()), tuner(memory_bus, resubmit_s=0.05):
        await append(memory_bus, swept())
        await eventually(lambda: has_finished(memory_bus))
    (finish,) = await said(memory_bus, SweepFinished)
    assert finish.state == "failed"
    assert finish.reason.startswith("no trial gave a finite 'acc' (2 refused); s1-t00")
    assert finish.reason.endswith(": refused: it is not wanted")


async def has_reported(bus: Bus, job_id: str) -> bool:
    return any(fact.job_id == job_id for fact in await said(bus, TrialFinished))


async def both_submitted(bus: Bus) -> bool:
    return await submitted(bus) == [FIRST, SECOND]


@pytest.mark.slow
async def test_a_tuner_that_restarts_in_mid_sweep_submits_nothing_twice_in_effect(memory_bus: MemoryBus) -> None:
    gateway = Gateway(memory_bus)
    async with tuner(memory_bus, "r1"):
        await append(memory_bus, swept())
        await eventually(lambda: queued(memory_bus) == 2)
    async with tuner(memory_bus, "r2"):
        await eventually(lambda: queued(memory_bus) == 4, why="the second tuner submits both trials as well")
        async with background(gateway.accept()):
            await eventually(lambda: gateway.submissions == {FIRST: 2, SECOND: 2})
    assert await submitted(memory_bus) == [FIRST, SECOND]
    await memory_bus.delete_snapshots()
    async with tuner(memory_bus, "r3") as shell, background(gateway.accept()):
        await eventually(lambda: shell.vitals.leading)
    assert gateway.submissions == {FIRST: 2, SECOND: 2}, "accepted trials were submitted again"


def queued(bus: MemoryBus) -> int:
    return len(bus.server.work)


async def test_a_standby_submits_nothing_until_it_leads(memory_bus: MemoryBus) -> None:
    gateway = Gateway(memory_bus)
    async with tuner(memory_bus, "r1") as first:
        await eventually(lambda: first.vitals.leading)
        async with tuner(memory_bus, "r2") as second, background(gateway.accept()):
            await eventually(lambda: second.vitals.ready)
            await append(memory_bus, swept())
            await eventually(lambda: both_submitted(memory_bus))
            assert not second.vitals.leading
    assert gateway.submissions == {FIRST: 1, SECOND: 1}
