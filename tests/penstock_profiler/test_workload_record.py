"""What samples and real runs make of a workload's curve on one kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiler_facts import ELASTIC, ended, spec

from penstock_log import ProfileSample, RunEnded
from penstock_policies.sample_plan import SamplePoint
from penstock_profiler.workload_record import MOST_TIMINGS, SampleRecord, ScalingCurve


def run(**fields: Any) -> RunEnded:
    return ended("j1", **({"loop_steps": 100, "batch_size": 64, "iteration_s": 0.1, "error_s": 0.001} | fields))


def sized(gpus: int = 1, **fields: Any) -> Any:
    return spec(**(ELASTIC | {"gpus": gpus} | fields))


def sampled(*points: tuple[SamplePoint, float]) -> ScalingCurve:
    curve = ScalingCurve()
    for point, iteration_s in points:
        assert not curve.sampled(point, run(batch_size=point.batch_size, iteration_s=iteration_s))
    return curve


def timings(curve: ScalingCurve) -> list[tuple[int, int, float, int]]:
    return [(each.gpus, each.local_batch, pytest.approx(each.iteration_s), each.runs) for each in curve.timings]


# --- samples


def test_no_field_of_a_sample_keeps_its_default_because_the_request_has_another_name() -> None:
    own = {"over", "steps", "loop_s", "failure"}
    assert set(SampleRecord.__struct_fields__) - set(ProfileSample.__struct_fields__) == own


def test_samples_become_timings_in_order():
    curve = sampled((SamplePoint(2, 128), 0.12), (SamplePoint(1, 64), 0.1), (SamplePoint(1, 16), 0.03))
    assert timings(curve) == [(1, 16, 0.03, 1), (1, 64, 0.1, 1), (2, 64, 0.12, 1)]
    assert [each.error_s for each in curve.timings] == [0.001] * 3
    assert (curve.fits, curve.too_large, curve.cap) == (64, 0, 0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"iteration_s": -0.1}, "it gave an iteration time of -0.1 s; expected a number above 0"),
        ({"iteration_s": math.nan}, "it gave an iteration time of nan s; expected a number above 0"),
        ({"iteration_s": math.inf}, "it gave an iteration time of inf s; expected a number above 0"),
        ({"iteration_s": 0.0, "loop_s": -3.0}, "it gave an iteration time of -0.03 s; expected a number above 0"),
        ({"iteration_s": 0.0, "loop_s": 0.0}, "it gave an iteration time of 0 s; expected a number above 0"),
        ({"error_s": math.nan}, "it gave an error of nan s for its iteration time; expected 0 or more"),
        ({"iteration_s": 0.0, "loop_steps": 0}, "opaque: it reported no iterations"),
        ({"batch_size": 128}, "it was to use a batch of 64 and used 128"),
        (
            {"batch_size": 0},
            "it was to use a batch of 64 and asked for none; session.sampler() does, or session.batch_size",
        ),
        ({"outcome": "failed", "reason": "exit code 1"}, "exit code 1"),
        ({"outcome": "lost"}, "lost"),
        ({"outcome": "failed", "out_of_memory": True}, "it ran out of memory"),
    ],
)
def test_what_gives_no_measure_is_refused_and_said(fields, reason):
    curve = ScalingCurve()
    assert curve.sampled(SamplePoint(1, 64), run(**fields)) == reason
    assert curve.timings == []
    assert curve.failures == {"one device with 64 samples": reason}


def test_a_script_that_tells_only_a_sum_is_measured_by_it_without_an_error():
    curve = ScalingCurve()
    assert not curve.sampled(SamplePoint(1, 64), run(iteration_s=0.0, error_s=0.0, loop_s=5.0))
    assert timings(curve) == [(1, 64, 0.05, 1)]
    assert curve.timings[0].error_s == 0.0


def test_a_script_whose_batch_is_always_the_same_need_not_ask_for_it():
    curve = ScalingCurve()
    assert not curve.sampled(SamplePoint(2, 64), run(batch_size=0), usual=64)
    assert timings(curve) == [(2, 32, 0.1, 1)]
    assert curve.sampled(SamplePoint(1, 16), run(batch_size=0), usual=64) == "it was to use a batch of 16 and used 64"


# --- memory


def test_a_device_holds_the_largest_batch_that_has_run_where_a_larger_one_has_not():
    curve = sampled((SamplePoint(1, 16), 0.03), (SamplePoint(2, 128), 0.1))
    curve.sampled(SamplePoint(1, 256), run(outcome="failed", out_of_memory=True))
    assert (curve.fits, curve.too_large, curve.cap) == (64, 256, 64)


@pytest.mark.parametrize(("smallest", "cap"), [(64, 63), (1, 1)])
def test_where_nothing_has_run_a_device_holds_less_than_what_failed(smallest, cap):
    curve = ScalingCurve()
    curve.sampled(SamplePoint(1, smallest), run(outcome="failed", out_of_memory=True))
    assert curve.cap == cap


def test_a_real_run_without_enough_memory_lowers_what_a_device_is_taken_to_hold():
    curve = sampled((SamplePoint(1, 16), 0.03), (SamplePoint(1, 64), 0.1), (SamplePoint(1, 256), 0.3))
    curve.ran(sized(gpus=2, batch_size=256), run(outcome="failed", out_of_memory=True, batch_size=256))
    assert (curve.fits, curve.too_large, curve.cap) == (64, 128, 64)


# --- real runs


def test_a_real_run_refines_the_timing_of_its_size():
    curve = sampled((SamplePoint(2, 128), 0.1))
    curve.ran(sized(gpus=2), run(batch_size=128, iteration_s=0.2))
    (timing,) = curve.timings
    assert 0.1 < timing.iteration_s < 0.2
    assert timing.runs == 2
    assert timing.error_s > 0.001, "two runs that differ by more than their errors are less sure than each"


def test_a_real_run_of_another_size_adds_a_timing():
    curve = sampled((SamplePoint(1, 64), 0.1))
    curve.ran(sized(gpus=3), run(batch_size=100, iteration_s=0.07))
    assert timings(curve) == [(1, 64, 0.1, 1), (3, 34, 0.07, 1)]


def test_a_real_run_counts_at_the_batch_that_it_really_used():
    curve = ScalingCurve()
    curve.ran(sized(gpus=2, batch_size=512), run(batch_size=128))
    assert timings(curve) == [(2, 64, 0.1, 1)]


def test_a_script_that_uses_no_batch_that_it_is_given_teaches_nothing():
    curve = ScalingCurve()
    curve.ran(sized(), run(batch_size=0))
    assert curve.timings == []
    curve.ran(sized(batch=None, batch_size=64), run(batch_size=0))
    assert timings(curve) == [(1, 64, 0.1, 1)]


@pytest.mark.parametrize("iteration_s", [0.0, -1.0, math.nan, math.inf])
def test_a_real_run_without_a_time_teaches_nothing(iteration_s):
    curve = ScalingCurve()
    curve.ran(sized(), run(iteration_s=iteration_s, loop_s=0.0))
    assert curve == ScalingCurve()


def test_only_so_many_sizes_are_kept_and_those_are_still_refined():
    curve = ScalingCurve()
    for batch in range(1, MOST_TIMINGS + 20):
        curve.ran(sized(), run(batch_size=batch))
    assert len(curve.timings) == MOST_TIMINGS
    curve.ran(sized(), run(batch_size=1, iteration_s=0.5))
    assert curve.timings[0].runs == 2


# --- between sizes


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.001, 10.0)), max_size=6), st.integers(1, 1000))
def test_the_time_on_one_device_is_positive_wherever_any_is_known(known, local_batch):
    curve = ScalingCurve()
    for batch, iteration_s in known:
        curve.ran(sized(), run(batch_size=batch, iteration_s=iteration_s))
    alone_s = curve.alone_s(local_batch)
    assert (alone_s > 0) == bool(known)
    assert math.isfinite(alone_s)


def test_between_two_batches_the_time_lies_on_the_line():
    curve = sampled((SamplePoint(1, 20), 0.02), (SamplePoint(1, 60), 0.06), (SamplePoint(2, 60), 9.0))
    assert [curve.alone_s(batch) for batch in (20, 40, 60, 100)] == pytest.approx([0.02, 0.04, 0.06, 0.1])
    assert curve.alone_s(1) == pytest.approx(0.01), "not below half of what the smallest took"
