"""Time limits of jobs: when they are over, what becomes of the run, and how they are extended."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_cases import (
    NOW_S,
    Gateway,
    ended,
    gateway,
    joined,
    placed,
    preempted,
    refusal,
    spec,
    started,
    submitted,
)

from penstock_bus.memory import MemoryBus
from penstock_gateway import time_limits
from penstock_log import AnyEvent, Job, JobCancelled, JobTable, JobTimedOut, JobTimeSet
from penstock_log.job_state import JobState

SINCE_S = NOW_S + 2
"""When the job's first run begins; the gateway's clock is 98 s later."""


async def timed_out(served: Gateway, job_id: str = "j1") -> JobTimedOut:
    async for delivery in served.bus.follow():
        for fact in delivery.commit.facts:
            if isinstance(fact, JobTimedOut) and fact.job_id == job_id:
                return fact
    raise AssertionError("the log has ended")


def over(executed_s: float = 98.0, limit_s: float = 50.0) -> JobTimedOut:
    return JobTimedOut(at_s=NOW_S + 100, job_id="j1", limit_s=limit_s, executed_s=executed_s)


def folded(*facts: AnyEvent) -> Job:
    jobs = JobTable()
    for fact in facts:
        jobs.apply(fact)
    return jobs["j1"]


async def test_a_run_whose_time_is_over_is_stopped_with_a_checkpoint_and_the_job_has_failed() -> None:
    facts = [joined(), submitted(time_limit_s=50.0, retries=3), placed(), started()]
    async with gateway(MemoryBus(), *facts) as served:
        fact = await timed_out(served)
        assert (fact.limit_s, fact.executed_s) == (50.0, pytest.approx(98.0, abs=1.0))
        job = (await served.query("job", {"id": "j1"}))["job"]
        assert (job["state"], job["reason"]) == ("PR", "its time limit of 50.0 s is over")  # as one that is preempted
        why = await served.query("why", {"id": "j1"})
        assert why["evidence"] == "its time limit of 50.0 s is over: it is being stopped, and may save a checkpoint"
        await served.told(ended("j1", "preempted", at_s=NOW_S + 101))
        job = (await served.query("job", {"id": "j1"}))["job"]
        assert (job["state"], job["reason"]) == ("F", "its time limit of 50.0 s is over")


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("preempted", "F"), ("failed", "F"), ("lost", "F"), ("completed", "CD")],
)
def test_what_becomes_of_the_run_decides_only_whether_it_ended_well(outcome: str, state: str) -> None:
    job = folded(submitted(time_limit_s=50.0, retries=3), placed(), started(), over(), ended("j1", outcome))
    assert job.state == JobState(state)


def test_a_job_that_is_cancelled_while_it_is_stopped_for_its_time_is_cancelled() -> None:
    cancel = JobCancelled(at_s=NOW_S + 101, job_id="j1", by="ada")
    job = folded(submitted(time_limit_s=50.0), placed(), started(), over(), cancel)
    assert (job.state, job.reason) == (JobState.COMPLETING, "cancelled by ada")
    job = folded(submitted(time_limit_s=50.0), placed(), started(), over(), cancel, ended("j1", "cancelled"))
    assert job.state is JobState.CANCELLED


def test_only_time_in_runs_counts_and_all_runs_count() -> None:
    first = (submitted(time_limit_s=50.0), placed(), started(at_s=SINCE_S), preempted(at_s=SINCE_S + 30))
    job = folded(*first, ended("j1", "preempted", at_s=SINCE_S + 30))
    assert (job.executed_s, time_limits.due_s(job)) == (30.0, None)
    later_s = SINCE_S + 1000
    job = folded(
        *first,
        ended("j1", "preempted", at_s=SINCE_S + 30),
        placed(epoch=2, at_s=later_s),
        started(epoch=2, at_s=later_s),
    )
    assert time_limits.due_s(job) == later_s + 20


def test_a_job_that_waits_and_has_no_time_left_has_failed_at_once() -> None:
    begun = (submitted(time_limit_s=50.0), placed(), started(at_s=SINCE_S), preempted(at_s=SINCE_S + 49))
    job = folded(*begun, ended("j1", "preempted", at_s=SINCE_S + 60))
    assert time_limits.due_s(job) == SINCE_S + 60
    assert folded(*begun, ended("j1", "preempted", at_s=SINCE_S + 60), over(60.0)).state is JobState.FAILED


async def test_the_gateway_wakes_up_for_the_next_end() -> None:
    facts = [joined(), submitted(time_limit_s=5_000.0), placed(), started()]
    async with gateway(MemoryBus(), *facts) as served:
        why = await served.query("why", {"id": "j1"})
        assert "its time limit of 1 h 23 min ends it in 1 h 21 min" in why["evidence"]
    found, wake_s = time_limits.proposals({"j1": NOW_S + 10, "j2": NOW_S + 5}, lambda _: None, NOW_S)
    assert (found, wake_s) == ([], NOW_S + 5)


async def test_a_limit_is_extended_set_and_removed() -> None:
    facts = [joined(), submitted(time_limit_s=5_000.0), placed(), started()]
    async with gateway(MemoryBus(), *facts) as served:

        async def extend(**asked: Any) -> str:
            return str((await served.command("extend", {"id": "j1", **asked}))["message"])

        assert (await extend(limit_s=7_200.0)).startswith("job j1 may run for 2 h 0 min, of which 1 min 38 s is over")
        assert (await served.query("job", {"id": "j1"}))["time_limit_s"] == 7_200.0
        assert await extend(limit_s=7_200.0) == "job j1 may run for 2 h 0 min already"
        assert await extend(limit_s=0) == "job j1 may run as long as it likes"
        for wrong in ({}, {"limit_s": 2e9}, {"limit_s": -1}):
            code, _ = await refusal(extend(**wrong))
            assert code == 400
        assert "so its time is over and it is being stopped" in await extend(limit_s=60.0)
        await timed_out(served)
        code, text = await refusal(extend(limit_s=600.0))
        assert (code, "is being stopped: its time limit of 1 min 0 s is over" in text) == (409, True)
        # the specification is as it was: the same job, submitted again, is the same
        spec = (await served.query("job", {"id": "j1"}))["spec"]
        assert spec["time_limit_s"] == 5_000.0
        assert not (await served.command("submit", {"spec": spec}))["created"]


async def test_a_run_that_is_stopped_for_its_time_is_told_and_accounted_for_as_no_preemption() -> None:
    stopped = ended("j1", "preempted", at_s=NOW_S + 12, steps=10, loop_steps=10, loop_s=10.0, reason="time is over")
    facts = [joined(), submitted(time_limit_s=50.0), placed(), started(at_s=SINCE_S), over(), stopped]
    async with gateway(MemoryBus(), *facts) as served:
        sums = (await served.query("usage", {"by": "job"}))["total"]["usage"]
        assert sums["lost_gpu_s"] == pytest.approx(11.0)
        assert (sums.get("lost_to_preemption_gpu_s", 0.0), sums.get("preemptions", 0)) == (0.0, 0)
        detail = await served.query("job", {"id": "j1"})
        assert (detail["job"]["preemptions"], detail["runs"][0]["outcome"]) == (0, "timed_out")
        lines = (await served.query("story", {"id": "j1"}))["lines"]
        assert "run stopped on n1 after step 10: time is over" in [line["text"] for line in lines]


async def test_a_run_before_the_one_that_is_stopped_for_its_time_was_preempted_all_the_same() -> None:
    first = [placed(), started(), preempted(), ended("j1", "preempted")]
    second = [placed(epoch=2, at_s=NOW_S + 6), started(epoch=2, at_s=NOW_S + 7), over()]
    facts = [
        joined(),
        submitted(time_limit_s=50.0),
        *first,
        *second,
        ended("j1", "preempted", epoch=2, at_s=NOW_S + 99),
    ]
    async with gateway(MemoryBus(), *facts) as served:
        sums = (await served.query("usage", {"by": "job"}))["total"]["usage"]
        assert (sums["preemptions"], sums["lost_to_preemption_gpu_s"]) == (1, pytest.approx(4.0))
        texts = [line["text"] for line in (await served.query("story", {"id": "j1"}))["lines"]]
        assert texts.count("run preempted on n1") == texts.count("run stopped on n1") == 1


def test_a_limit_that_is_set_later_counts_what_has_run() -> None:
    facts = (submitted(), placed(), started(at_s=SINCE_S))
    job = folded(*facts, JobTimeSet(at_s=SINCE_S + 9, job_id="j1", limit_s=60.0))
    assert time_limits.due_s(job) == SINCE_S + 60
    assert time_limits.due_s(folded(*facts)) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"warn_signal": "USR1"}, "warn_s: there is no time limit to warn of"),
        ({"warn_s": 60.0}, "warn_s: there is no time limit to warn of"),
        ({"time_limit_s": 300.0, "warn_s": 600.0}, "warn_s: expected less than the time limit of 300 s, got 600"),
    ],
)
async def test_a_warning_that_could_not_come_in_time_is_refused(fields: dict[str, Any], problem: str) -> None:
    async with gateway(MemoryBus(), joined()) as served:
        code, text = await refusal(served.command("submit", {"spec": spec(**fields)}))
        assert code == 400
        assert problem in text
