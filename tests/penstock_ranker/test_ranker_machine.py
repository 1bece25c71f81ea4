"""The ranker's decisions: who is where in the order, and when that changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranker_facts import ended, rank, ranked, running, spec, submitted

from penstock_bus.settings import SettingsError, load
from penstock_log import JobCancelled, ProfileSample, SamplesRequested
from penstock_ranker import machine
from penstock_ranker.machine import RankerSettings
from penstock_testing import Scenario
from sweeps import examples


@pytest.fixture
def ranker() -> Scenario[machine.RankerState]:
    return Scenario(machine.decider(RankerSettings(thresholds_gpu_s=(4.0, 8.0))))


def test_a_new_job_enters_queue_0_at_its_submit_time_and_is_ranked_once(ranker):
    ranker.at(11.0).when(submitted("j1", 10.0)).then(ranked(11.0, rank("j1", 0, 10.0)))
    ranker.at(12.0).then().then_wakes_at(None)


def test_each_pool_has_an_order_of_its_own(ranker):
    ranker.at(3.0).when(submitted("a", 1.0), submitted("b", 2.0, pool="lab"))
    ranker.then(ranked(3.0, rank("a", 0, 1.0)), ranked(3.0, rank("b", 0, 2.0), pool="lab"))


def test_a_job_is_demoted_punctually_by_devices_times_seconds(ranker):
    ranker.given(submitted("j1", 0.0, gpus=2)).settle()
    ranker.given(*running("j1", 10.0, gpus=2)).at(10.5).then().then_wakes_at(12.0)
    ranker.at(12.0).then(ranked(12.0, rank("j1", 1, 12.0, 4.0))).then_wakes_at(14.0)
    ranker.at(14.0).then(ranked(14.0, rank("j1", 2, 14.0, 8.0))).then_wakes_at(None)


def test_a_late_wake_up_still_gives_the_time_of_the_crossing_as_the_position(ranker):
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.given(*running("j1", 10.0)).at(17.0).then(ranked(17.0, rank("j1", 1, 14.0, 7.0))).then_wakes_at(18.0)


def test_service_counts_over_all_runs_of_a_job(ranker):
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.given(*running("j1", 10.0), ended("j1", 13.0), *running("j1", 20.0, epoch=2))
    ranker.at(20.0).then().then_wakes_at(21.0)
    ranker.at(21.0).then(ranked(21.0, rank("j1", 1, 21.0, 4.0)))


def test_a_crossing_just_before_the_run_ended_is_not_missed(ranker):
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.given(*running("j1", 10.0), ended("j1", 15.0)).at(15.5)
    ranker.then(ranked(15.5, rank("j1", 1, 15.0, 5.0))).then_wakes_at(None)


def test_a_job_placed_but_not_yet_started_gathers_no_service(ranker):
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.given(running("j1", 10.0)[0]).at(50.0).then().then_wakes_at(None)


@pytest.mark.parametrize("last", [ended("j1", 15.0, outcome="completed"), JobCancelled(job_id="j2", at_s=15.0)])
def test_a_job_that_is_over_is_forgotten(ranker, last):
    ranker.given(submitted("j1", 0.0), submitted("j2", 1.0)).settle()
    ranker.given(*running("j1", 10.0), last).at(20.0)
    over = last.job_id
    assert over not in ranker.state.places
    assert ranker.state.jobs.get(over) is None
    assert all(item.job_id != over for fact in ranker.facts() for item in fact.ranks)


def test_samples_are_not_ranked(ranker):
    sample = ProfileSample(sample_id="s1", kind="fast", iterations=4)
    ranker.when(SamplesRequested(key="k", spec=spec(), samples=(sample,), at_s=0.0)).then().then_wakes_at(None)
    ranker.given(*running("s1", 1.0)).at(100.0).then().then_wakes_at(None)


def test_without_thresholds_the_order_is_first_come_first_served():
    ranker = Scenario(machine.decider(RankerSettings(thresholds_gpu_s=())))
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.given(*running("j1", 10.0)).at(1e6).then().then_wakes_at(None)


def test_without_a_knob_nobody_is_promoted(ranker):
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.given(*running("j1", 10.0), ended("j1", 15.0)).at(15.0).settle()
    ranker.at(1e6).then().then_wakes_at(None)


def test_with_a_knob_a_starving_job_goes_back_to_queue_0_and_both_counters_start_again():
    ranker = Scenario(machine.decider(RankerSettings(thresholds_gpu_s=(4.0, 8.0), promote_knob=2.0)))
    ranker.given(submitted("j1", 10.0)).settle()
    ranker.given(*running("j1", 10.0), ended("j1", 15.0)).at(15.0).settle()
    ranker.then_wakes_at(25.0)
    ranker.at(25.0).then(ranked(25.0, rank("j1", 0, 25.0, 5.0))).then_wakes_at(None)
    ranker.given(*running("j1", 30.0, epoch=2)).at(30.0).then().then_wakes_at(34.0)
    ranker.at(34.0).then(ranked(34.0, rank("j1", 1, 34.0, 9.0)))
    ranker.given(ended("j1", 36.0, epoch=2)).at(36.0).then().then_wakes_at(36.0 + 2.0 * (36.0 - 30.0) - (30.0 - 25.0))


@pytest.mark.parametrize("thresholds", [(2.0, 1.0), (0.0, 1.0), (3.0, 3.0)])
def test_thresholds_that_do_not_rise_are_refused_with_what_was_expected(thresholds):
    with pytest.raises(ValueError, match="expected rising numbers of GPU-seconds"):
        RankerSettings(thresholds_gpu_s=thresholds)


def test_so_are_they_where_a_service_loads_its_settings():
    with pytest.raises(SettingsError, match=r"\[ranker\]: thresholds_gpu_s is \[5.0, 3.0\]; expected rising numbers"):
        load(RankerSettings, "ranker", environ={"PENSTOCK_RANKER_THRESHOLDS_GPU_S": "[5, 3]"})


times = st.lists(st.floats(0.1, 20.0), min_size=1, max_size=12)


@settings(deadline=None, max_examples=examples(60))
@given(runs=times, gaps=times, gpus=st.integers(1, 3))
def test_following_the_wake_ups_a_job_falls_one_queue_at_a_time_and_never_later_than_its_crossing(runs, gaps, gpus):
    ranker = Scenario(machine.decider(RankerSettings(thresholds_gpu_s=(4.0, 8.0, 16.0))))
    ranker.given(submitted("j1", 0.0, gpus=gpus)).settle()
    now_s, attained, queue = 1.0, 0.0, 0
    for epoch, (run_s, gap_s) in enumerate(zip(runs, gaps, strict=False), start=1):
        ranker.given(*running("j1", now_s, epoch=epoch, gpus=gpus)).at(now_s)
        end_s = now_s + run_s
        while (wake_s := ranker.decision().wake_at_s) is not None and wake_s <= end_s:
            (fact,) = ranker.at(wake_s).settle()
            (item,) = fact.ranks
            assert item.queue == queue + 1
            assert item.position == wake_s
            queue = item.queue
        attained += gpus * run_s
        ranker.given(ended("j1", end_s, epoch=epoch)).at(end_s).settle()
        queue = ranker.state.places["j1"].queue
        assert queue in {sum(t <= attained + slack for t in (4.0, 8.0, 16.0)) for slack in (-1e-6, 1e-6)}
        now_s = end_s + gap_s
