"""The simulator that works by events: published end times and figures, and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest
from fast_path_cases import TIRESIAS, golden, trace_of, traces
from hypothesis import given, settings
from hypothesis import strategies as st
from published import large_trace

from penstock_simulator.fast import FAST_POLICIES, simulate
from penstock_simulator.fast.fast_path import Thrashing, levels
from penstock_simulator.fast.tiresias_2019 import Count, PublishedJob, PublishedRules, run
from penstock_simulator.outcome import summary
from penstock_simulator.traces import read
from penstock_simulator.virtual_cluster import parse
from sweeps import examples

FEW = settings(max_examples=examples(40), deadline=None)
PREEMPTIVE = ("fewest-gpus", "srtf", "srsf", "las", "2d-las", "2d-gittins")
SETTINGS = st.fixed_dictionaries(
    {"thresholds_gpu_s": st.sampled_from([(4.0, 16.0), (3.0,), ()]), "levels": st.sampled_from([0, 4])},
    optional={"promote_knob": st.sampled_from([0.5, 2.0]), "within": st.sampled_from(["start", "entry"])},
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "policy"),
    [("fifo", "fifo"), ("fjf", "fifo-backfill"), ("shortest", "srtf"), ("dlas_gpu_jumpfix", "2d-las")],
)
def test_the_published_end_times_are_those_of_every_job(column, policy):
    trace, ends = golden()
    found = simulate(trace, parse("64x4"), policy)
    assert np.array_equal(found.end_s, ends[f"tiresias_{column}_end"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "thresholds", "mean_s"),
    [
        ("fifo", "3250,7200", 154_971),
        ("fifo-backfill", "3250,7200", 59_577),
        ("2d-las", "3250,7200", 34_338),
        ("2d-las", ",".join(str(3600 * 8**k) for k in range(6)), 31_338),
    ],
)
def test_the_philly_trace_on_1600_devices_takes_as_long_as_others_found(policy, thresholds, mean_s):
    trace = read(large_trace("philly_12vc_109532.csv.gz"), "csv")
    found = simulate(trace, parse("400x4"), policy, settings={"thresholds_gpu_s": thresholds})
    assert round(found.jct_s.mean()) == mean_s


@pytest.mark.slow
def test_the_gittins_order_of_the_philly_trace_is_within_two_percent_of_what_others_found():
    trace = read(large_trace("philly_12vc_109532.csv.gz"), "csv")
    for devices, mean_s in ((2_000, 29_041), (1_200, 50_152)):
        found = simulate(trace, parse(f"1x{devices}"), "2d-gittins")
        assert found.jct_s.mean() == pytest.approx(mean_s, rel=0.02)


def test_punctual_demotion_changes_the_published_mean_as_was_found():
    trace = read(TIRESIAS / "60_job_x10.csv", "tiresias")
    assert round(simulate(trace, parse("2x4"), "2d-las").jct_s.mean(), 3) == 8729.667
    assert round(simulate(trace, parse("2x4"), "2d-las", compat="tiresias-2019").jct_s.mean(), 3) == 7620.75


def test_the_published_example_of_shortest_remaining_service():
    found = simulate(trace_of([(0, 2, 2), (0, 1, 8), (0, 2, 6)]), parse("1x2"), "srsf")
    assert found.end_s.tolist() == [2, 10, 16]


def test_a_job_that_crosses_makes_way_at_that_moment():
    found = simulate(
        trace_of([(0, 2, 10), (1, 2, 3)]), parse("1x2"), "2d-las", settings={"thresholds_gpu_s": (5.0,), "tick_s": 0}
    )
    assert found.end_s.tolist() == [12.5, 13.0]  # each its 2.5 s, then to the end, who crossed first
    assert found.start_s.tolist() == [0.0, 2.5]


def test_a_resumption_costs_its_overhead():
    trace = trace_of([(0, 1, 10), (2, 1, 1)])
    found = simulate(trace, parse("1x1"), "srtf", overhead_s=4.0)
    assert found.end_s.tolist() == [15.0, 3.0]
    assert found.executed_s.tolist() == [14.0, 1.0]


def test_a_starving_job_is_promoted_when_it_has_waited_so_many_times_what_it_executed():
    rows = [(0, 1, 20), (1, 1, 4), (1, 1, 4), (1, 1, 4), (1, 1, 4)]
    knob = {"thresholds_gpu_s": (4.0,), "promote_knob": 2.0}
    found = simulate(trace_of(rows), parse("1x1"), "2d-las", settings=knob)
    without = simulate(trace_of(rows), parse("1x1"), "2d-las", settings={"thresholds_gpu_s": (4.0,)})
    assert found.promotions.tolist() == [1, 0, 0, 0, 0]
    assert without.promotions.sum() == 0
    assert without.end_s.tolist() == [36, 8, 12, 16, 20]


def test_levels_are_served_by_index_and_the_last_one_last():
    limits, turn = levels(np.array([1.0, 100.0, 100.0, 100.0]), 3)
    assert limits.tolist() == [1.0, 100.0]
    assert turn.tolist() == [0, 1, 2]
    _, turn = levels(np.array([8.0, 8.5, 9.0, 9.5, 10.0, 1.0]), 4)
    assert turn[0] == 2  # most end on the way from 3.2 to 10


def test_the_timeline_says_who_waits_and_what_is_busy():
    found = simulate(trace_of([(0, 1, 4), (1, 1, 4)]), parse("1x1"), "fifo", timeline=True)
    assert found.timeline is not None
    rows = zip(found.timeline.at_s, found.timeline.busy_gpus, found.timeline.waiting_jobs, strict=True)
    assert list(rows) == [(0, 1, 0), (1, 1, 1), (4, 1, 0), (8, 0, 0)]
    assert simulate(trace_of([(0, 1, 4)]), parse("1x1"), "fifo").timeline is None


def test_it_can_be_ended_early_with_what_there_is():
    rows = [(float(number), 1, 1.5) for number in range(40_000)]
    found = simulate(trace_of(rows), parse("1x2"), "fifo", go_on=lambda over, _: over < 10_000)
    assert 10_000 < found.finished.sum() < 40_000


def test_nothing_comes_of_nothing():
    found = simulate(trace_of([]), parse("1x2"), "2d-gittins")
    assert summary(found).jobs == found.events == 0


def test_a_policy_that_only_stops_and_resumes_jobs_is_said_to_do_so():
    knob = {"thresholds_gpu_s": (3.0,), "promote_knob": 0.5}
    with pytest.raises(Thrashing, match=r"made good the 1\.5 s .* raise promote_knob"):
        simulate(trace_of([(0, 1, 4), (0, 4, 2)]), parse("1x4"), "2d-las", settings=knob, overhead_s=1.5)


@FEW
@given(traces(devices=(1, 2, 3, 4)), st.sampled_from(FAST_POLICIES), SETTINGS, st.sampled_from([0.0, 1.5]))
def test_every_job_ends_once_and_no_service_is_lost_and_no_device_given_twice(trace, policy, chosen, overhead_s):
    if "promote_knob" in chosen:
        overhead_s = 0.0  # who is promoted at once and stopped at once pays for ever
    found = simulate(trace, parse("1x4"), policy, settings=chosen, overhead_s=overhead_s, timeline=True)
    assert found.finished.all()
    assert np.all(found.start_s >= trace.submit_s)
    assert np.all(found.end_s >= found.start_s + trace.duration_s)
    work_s = trace.duration_s + overhead_s * found.preemptions
    assert found.executed_s == pytest.approx(work_s)
    assert found.timeline is not None
    assert np.all(np.diff(found.timeline.at_s) >= 0)
    assert found.timeline.busy_gpus.max() <= 4
    spans = np.diff(found.timeline.at_s)
    assert (spans * found.timeline.busy_gpus[:-1]).sum() == pytest.approx((work_s * trace.num_gpus).sum())


@FEW
@given(traces(devices=(1,)), st.sampled_from(FAST_POLICIES), SETTINGS)
def test_on_one_device_nothing_is_faster_on_average_than_least_time_left_first(trace, policy, chosen):
    best = simulate(trace, parse("1x1"), "srtf")
    assert best.jct_s.mean() <= simulate(trace, parse("1x1"), policy, settings=chosen).jct_s.mean() + 1e-9


@FEW
@given(traces(devices=(1, 2, 3, 4)))
def test_fifo_starts_jobs_in_the_order_of_submission(trace):
    assert np.all(np.diff(simulate(trace, parse("1x4"), "fifo").start_s) >= 0)


@FEW
@given(traces(devices=(1, 2, 3, 4)), st.sampled_from(["fifo", "fifo-backfill", "fewest-gpus", "las", "2d-las"]))
def test_it_agrees_with_a_scan_of_all_jobs_by_the_published_rules_and_punctual_demotion(trace, policy):
    limits = (8, 24)
    columns = zip(trace.num_gpus.tolist(), trace.submit_s, trace.duration_s, strict=True)
    jobs = [PublishedJob(gpus, int(at_s), int(lasts_s)) for gpus, at_s, lasts_s in columns]
    scanned = run(jobs, Count(4), PublishedRules(policy, limits, punctual=True))
    found = simulate(trace, parse("1x4"), policy, settings={"thresholds_gpu_s": limits}, timeline=True)
    assert found.end_s.tolist() == [job.end_s for job in jobs]
    assert found.preemptions.tolist() == [job.preemptions for job in jobs]
    assert found.timeline is not None
    points = zip(found.timeline.at_s, found.timeline.busy_gpus, found.timeline.waiting_jobs, strict=True)
    assert list(points) == scanned
