"""What jobs that share a device are reckoned to have had of it."""

from __future__ import annotations

import msgspec
import pytest
from fact_factories import ended, placed, preempted, started, submitted
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import JobTable, MemoryNeed, ProfileSample, RoundDecided, RunMeasured, SamplesRequested
from penstock_log.lifecycle import beside

T = 100.0


def lanes(*job_ids: str, **spec: object) -> JobTable:
    jobs = JobTable()
    for job_id in job_ids:
        jobs.apply(submitted(job_id, **{"sharing": "lane", **spec}))
        jobs.apply(placed(job_id))
    return jobs


def test_two_jobs_on_a_device_have_half_of_it_each_while_both_run():
    jobs = lanes("a", "b")
    for event in (started("a", at_s=T), started("b", at_s=T + 10.0), ended("a", at_s=T + 30.0)):
        jobs.apply(event)
    assert jobs["a"].executed_s == 30.0
    assert jobs["a"].attained_gpu_s(T + 99.0) == 10.0 + 20.0 / 2
    assert jobs["b"].attained_gpu_s(T + 35.0) == 20.0 / 2 + 5.0


def test_a_fraction_counts_as_such_whoever_is_beside_it():
    jobs = lanes("a", "b", sharing="fraction", fraction=0.25)
    jobs.apply(started("a", at_s=T))
    jobs.apply(started("b", at_s=T + 4.0))
    assert [jobs[job_id].attained_gpu_s(T + 8.0) for job_id in "ab"] == [2.0, 1.0]


def test_an_exclusive_job_has_all_of_its_devices():
    jobs = lanes("a", sharing="exclusive")
    jobs.apply(started("a", at_s=T))
    assert (jobs["a"].attained_gpu_s(T + 8.0), jobs.sharers) == (8.0, {})


def test_who_is_placed_but_has_not_started_takes_nothing_from_the_others():
    jobs = lanes("a", "b")
    jobs.apply(started("a", at_s=T))
    assert jobs["a"].attained_gpu_s(T + 8.0) == 8.0


def test_a_gang_has_what_it_has_of_its_fullest_device():
    jobs = lanes("a")
    jobs.apply(submitted("g", sharing="lane", gpus=2))
    gang = placed("g")
    slot = msgspec.structs.replace(gang.placements[0].slots[0], devices=(0, 1))
    jobs.apply(msgspec.structs.replace(gang, placements=(msgspec.structs.replace(gang.placements[0], slots=(slot,)),)))
    jobs.apply(started("a", at_s=T))
    jobs.apply(started("g", at_s=T))
    assert jobs["g"].attained_gpu_s(T + 10.0) == 2 * 5.0


def test_a_preempted_job_keeps_what_it_had_and_shares_anew():
    jobs = lanes("a", "b")
    for event in (started("a", at_s=T), started("b", at_s=T), preempted("a"), ended("a", "preempted", at_s=T + 8.0)):
        jobs.apply(event)
    assert (jobs["a"].served_by(T + 50.0), jobs["a"].share, jobs["b"].share) == (4.0, 1.0, 1.0)


def test_a_job_that_is_forgotten_while_it_shares_leaves_its_devices_to_the_others():
    jobs = lanes("a", "b")
    for event in (started("a", at_s=T), started("b", at_s=T)):
        jobs.apply(event)
    jobs["a"].finished_s = T + 4.0
    jobs.forget("a")
    assert (jobs["b"].share, jobs["b"].attained_gpu_s(T + 8.0)) == (1.0, 2.0 + 4.0)
    jobs.apply(ended("b", at_s=T + 8.0))
    assert jobs.sharers == {}


def test_a_lost_node_ends_the_sharing():
    jobs = lanes("a", "b")
    for event in (started("a", at_s=T), started("b", at_s=T)):
        jobs.apply(event)
    jobs.apply(RoundDecided(at_s=T + 6.0, pool="default", lost_nodes=("n1",)))
    assert (jobs.sharers, [jobs[job_id].served_by(T + 9.0) for job_id in "ab"]) == ({}, [3.0, 3.0])


def test_those_beside_a_run_that_starts_or_ends_are_named():
    jobs = lanes("a", "b")
    jobs.apply(started("a", at_s=T))
    second = started("b", at_s=T)
    jobs.apply(second)
    assert [job.id for job in beside(jobs, second)] == ["a"]
    assert beside(jobs, placed("b")) == []


def test_what_a_run_measured_is_remembered_and_old_runs_say_nothing():
    jobs = lanes("a")
    need = MemoryNeed(10, 2, 5)
    jobs.apply(RunMeasured(job_id="a", epoch=0, node_id="n1", at_s=T + 1.0, need=need, iterations=2))
    assert jobs["a"].need is None
    jobs.apply(RunMeasured(job_id="a", epoch=1, node_id="n1", at_s=T + 1.0, need=need, iterations=2))
    assert jobs["a"].need == need


def test_a_sample_of_a_sharing_workload_has_its_device_alone():
    spec = submitted(sharing="lane").spec
    asked = SamplesRequested(
        at_s=T, key="k", spec=spec, samples=(ProfileSample(sample_id="s1", kind="fast", iterations=5),)
    )
    jobs = JobTable()
    jobs.apply(asked)
    assert jobs["s1"].spec.sharing == "exclusive"


times = st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.0, 5.0)), max_size=20)


@given(times)
def test_together_they_have_the_device_while_anybody_runs(steps):
    jobs, running, epochs = JobTable(), set(), dict.fromkeys("abcd", 0)
    now_s, busy_s = T, 0.0
    for job_id in epochs:
        jobs.apply(submitted(job_id, sharing="lane", retries=100))
    for job_id, wait_s in steps:
        busy_s += wait_s if running else 0.0
        now_s += wait_s
        if job_id in running:
            jobs.apply(ended(job_id, "preempted", epoch=epochs[job_id], at_s=now_s))
        else:
            epochs[job_id] += 1
            jobs.apply(placed(job_id, epoch=epochs[job_id], at_s=now_s))
            jobs.apply(started(job_id, epoch=epochs[job_id], at_s=now_s))
        running ^= {job_id}
    assert sum(jobs[job_id].served_by(now_s) for job_id in epochs) == pytest.approx(busy_s)
    assert msgspec.json.decode(msgspec.json.encode(jobs), type=JobTable) == jobs
