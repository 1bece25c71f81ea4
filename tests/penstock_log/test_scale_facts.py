"""Demands: what a job is to have from its next run on."""

from __future__ import annotations

import pytest
from fact_factories import ended, placed, preempted, started, submitted

from penstock_log import Demand, Event, JobCancelled, JobState, JobTable, TrialsScaled


def fold(*events: Event) -> JobTable:
    jobs = JobTable()
    for event in events:
        jobs.apply(event)
    return jobs


def scaled(epoch: int, at_s: float = 3.0, **fields: object) -> TrialsScaled:
    return TrialsScaled(at_s=at_s, sweep_id="s1", demands=(Demand(job_id="j1", epoch=epoch, **fields),))


def test_a_waiting_job_asks_for_its_new_width_at_once_and_an_older_placement_is_void():
    jobs = fold(submitted(), scaled(0, gpus=4), placed(epoch=1))
    assert (jobs["j1"].state, jobs["j1"].spec.gpus) == (JobState.PENDING, 4)
    assert [job.id for job in jobs.apply(placed(epoch=2))] == ["j1"]


@pytest.mark.parametrize("gpus", [0, -1])
def test_no_job_comes_to_have_no_device_at_all(gpus):
    assert fold(submitted(gpus=2), scaled(0, gpus=gpus))["j1"].spec.gpus == 2


def test_a_running_job_has_its_new_width_from_its_next_run_on():
    jobs = fold(submitted(gpus=2), placed(), started(at_s=2), scaled(1, gpus=1, sharing="lane", sharers=3))
    assert (jobs["j1"].state, jobs["j1"].spec.gpus, jobs["j1"].spec.sharing) == (JobState.RUNNING, 2, "exclusive")
    for event in (preempted(), ended(outcome="preempted", at_s=6)):
        jobs.apply(event)
    job = jobs["j1"]
    assert (job.spec.gpus, job.spec.sharing, job.spec.sharers, job.demand) == (1, "lane", 3, None)
    assert job.attained_gpu_s(50.0) == 2 * 4.0, "what it had on two devices"
    for event in (placed(epoch=2, at_s=6), started(epoch=2, at_s=7)):
        jobs.apply(event)
    assert job.attained_gpu_s(10.0) == 2 * 4.0 + 3.0


def test_service_attained_on_one_device_is_kept_on_four():
    jobs = fold(submitted(), placed(), started(at_s=2), scaled(1, gpus=4), ended(outcome="preempted", at_s=6))
    for event in (placed(epoch=2, at_s=6), started(epoch=2, at_s=8)):
        jobs.apply(event)
    assert jobs["j1"].attained_gpu_s(10.0) == 4.0 + 4 * 2.0


@pytest.mark.parametrize(
    "before",
    [
        (submitted(), placed(), started(), ended()),
        (submitted(), placed(), started(), ended(outcome="failed", exit_code=1)),
        (submitted(), placed(), JobCancelled(at_s=2.0, job_id="j1")),
        (submitted(), JobCancelled(at_s=2.0, job_id="j1")),
        (submitted(), scaled(0, gpus=4), placed(epoch=2)),
    ],
    ids=["completed", "failed", "being cancelled", "cancelled", "placed since"],
)
def test_a_job_that_is_over_or_was_placed_since_is_not_touched(before):
    jobs = fold(*before)
    state, epoch, spec = jobs["j1"].state, jobs["j1"].epoch, jobs["j1"].spec
    stale = 0 if epoch == 2 else epoch
    assert jobs.apply(scaled(stale, gpus=2)) == []
    assert (jobs["j1"].state, jobs["j1"].epoch, jobs["j1"].spec, jobs["j1"].demand) == (state, epoch, spec, None)


def test_a_job_that_ends_before_it_makes_way_is_over():
    jobs = fold(submitted(), placed(), started(), scaled(1, gpus=2), preempted(), ended())
    assert (jobs["j1"].state, jobs["j1"].spec.gpus) == (JobState.COMPLETED, 1)


def test_one_that_leaves_its_lane_for_a_device_gives_its_neighbour_the_time_back():
    lanes = {"sharing": "lane"}
    jobs = fold(submitted("j1", **lanes), submitted("j2", **lanes))
    for event in (placed("j1"), placed("j2"), started("j1"), started("j2"), scaled(1, gpus=1)):
        jobs.apply(event)
    assert jobs["j2"].share == 0.5
    for event in (preempted("j1"), ended("j1", outcome="preempted", at_s=6)):
        jobs.apply(event)
    assert (jobs["j1"].spec.sharing, jobs["j2"].share) == ("exclusive", 1.0)
