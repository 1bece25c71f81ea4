"""What timings say of throughput: what was timed comes back, and nothing else comes out too well."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_log import Batch, JobSpec, Scalability, Timing
from penstock_policies.elastic import allocate, best_batch, scaling, table
from penstock_policies.scaling_model import (
    LEAST_WEIGHT,
    UNKNOWN_ERROR,
    assumed,
    cap,
    profile,
    profiles,
    refined,
    throughput,
)
from sweeps import examples


def timing(gpus: int, local_batch: int, iteration_s: float, error_s: float = 0.001) -> Timing:
    return Timing(gpus=gpus, local_batch=local_batch, iteration_s=iteration_s, error_s=error_s)


def known(*timings: Timing, kind: str = "x", per_gpu_cap: int = 0) -> Scalability:
    return Scalability(kind=kind, timings=timings, per_gpu_cap=per_gpu_cap)


def spec(most: int = 8, batch: Batch | None = None, **more: Any) -> JobSpec:
    fields = {"name": "a", "command": ("x",), "min_gpus": 1, "max_gpus": most, "batch": batch, "batch_size": 64}
    return JobSpec(**{**fields, **more})


TIMED = known(
    timing(1, 32, 0.10), timing(1, 64, 0.18), timing(1, 128, 0.34), timing(2, 64, 0.20), timing(4, 64, 0.21, 0.004)
)
"""The reference's compute-bound profile, as the profiler would time it."""

FREE = Batch(min=64, max=512, step=32, per_gpu_max=128)


def test_timings_of_a_known_profile_give_that_profile() -> None:
    found = profile(TIMED, spec(batch=FREE))
    assert (found.b_min, found.b_max, found.batch_step, found.per_gpu_cap) == (64, 512, 32, 128)
    assert found.t_comm_s == pytest.approx({2: 0.02, 4: 0.03})
    assert [best_batch(found, gpus) for gpus in (1, 2, 4)] == [128, 256, 512]
    assert scaling(found, 4) == pytest.approx([1, 17 / 9, 2.778378, 136 / 37], abs=0.02)  # 3 lies between 2 and 4


def test_what_was_timed_comes_back_with_the_error_that_it_came_with() -> None:
    for each in TIMED.timings:
        batch = each.gpus * each.local_batch
        speed, error = throughput(TIMED, spec(batch=FREE), batch, each.gpus)
        assert speed == pytest.approx(batch / each.iteration_s)
        assert error == pytest.approx(speed * each.error_s / each.iteration_s)


def test_errors_grow_with_the_distance_from_what_was_timed() -> None:
    one = spec(64, Batch(min=64, max=8192, per_gpu_max=128))
    errors = [throughput(TIMED, one, 64 * gpus, gpus) for gpus in (4, 8, 64)]
    relative = [error / speed for speed, error in errors]
    assert relative == sorted(relative)
    assert relative[-1] > 1.5 * relative[0]
    blind = known(Timing(local_batch=64, iteration_s=0.2))
    speed, error = throughput(blind, spec(), 64, 1)
    assert error == pytest.approx(UNKNOWN_ERROR * speed)
    assert math.isnan(throughput(TIMED, one, 8192, 1)[0])


def test_a_fixed_batch_is_the_only_one() -> None:
    found = profile(TIMED, spec(batch_size=96))
    assert (found.b_min, found.b_max) == (96, 96)
    assert table(found, range(1, 3))[0].tolist() == [96, 96]


def test_the_fewest_devices_of_all_limits_count_and_none_is_passed_by_far_unmeasured() -> None:
    free = Batch(min=32, max=4096)
    assert cap(TIMED, spec(batch=free)) == 256  # twice what was timed
    assert cap(known(*TIMED.timings, per_gpu_cap=200), spec(batch=free)) == 200
    assert cap(known(*TIMED.timings, per_gpu_cap=200), spec(batch=FREE)) == 128
    assert cap(TIMED, spec(batch=Batch(min=1024, max=4096))) == 1024  # as it begins, it has to fit


def test_communication_that_comes_out_below_nothing_is_little_and_never_falls_with_more_devices() -> None:
    found = profile(known(timing(1, 64, 0.2), timing(2, 64, 0.19), timing(4, 64, 0.25), timing(8, 64, 0.24)), spec())
    assert 0 < found.t_comm_s[2] < 0.001
    assert found.t_comm_s[4] == found.t_comm_s[8] == pytest.approx(0.045)


def test_several_timings_of_a_width_count_by_how_sure_they_are() -> None:
    one = timing(1, 32, 0.1, 1e-6), timing(1, 64, 0.2, 1e-6)
    found = profile(known(*one, timing(2, 32, 0.12, 0.01), timing(2, 64, 0.25, 0.02)), spec())
    assert found.t_comm_s[2] == pytest.approx(0.02 * 0.8 + 0.05 * 0.2, rel=1e-3)


def test_times_that_fall_with_the_batch_are_averaged_by_how_sure_they_are() -> None:
    found = profile(known(timing(1, 32, 0.2, 0.01), timing(1, 64, 0.1, 0.02)), spec())
    assert found.t_proc_s[32] == found.t_proc_s[64] == pytest.approx(0.18)


def test_beyond_the_largest_batch_samples_do_not_come_for_nothing() -> None:
    flat = profile(known(timing(1, 32, 0.2), timing(1, 64, 0.2)), spec(batch=Batch(min=32, max=512)))
    assert float(flat.throughput(128, 1)) == pytest.approx(128 / 0.3)
    steep = profile(known(timing(1, 32, 0.1), timing(1, 64, 0.3)), spec(batch=Batch(min=1, max=512)))
    assert float(steep.throughput(1, 1)) == pytest.approx(320)  # a line would have it below 0 seconds


def test_a_job_timed_on_one_device_only_is_taken_to_scale_as_most_do() -> None:
    fixed = profile(known(timing(1, 64, 0.2)), spec())
    assert scaling(fixed, 8)[[1, 3, 7]] == pytest.approx([2**0.8, 4**0.8, 8**0.8], rel=0.01)
    free = profile(known(timing(1, 64, 0.2)), spec(batch=Batch(min=64, max=512, per_gpu_max=64)))
    assert scaling(free, 8)[[1, 3, 7]] == pytest.approx([2**0.8, 4**0.8, 8**0.8], rel=0.01)


def test_a_job_that_fits_on_two_devices_at_least_is_timed_from_there() -> None:
    timed = known(timing(2, 64, 0.20), timing(2, 128, 0.36), timing(4, 64, 0.23))
    found = profile(timed, spec(min_gpus=2, gpus=2, batch_size=256))
    assert found.throughput(256, [2, 4]) == pytest.approx([256 / 0.36, 256 / 0.23], rel=0.001)
    alone = profile(known(timing(2, 64, 0.2)), spec(min_gpus=2, gpus=2, batch_size=128))
    assert alone.throughput(128, [2, 4, 8]) == pytest.approx(640 * np.array([1, 2**0.8, 4**0.8]), rel=0.01)


def test_a_job_of_which_nothing_is_known_gets_the_fewest_devices_and_its_own_batch() -> None:
    one = assumed(spec(batch=Batch(min=32, max=512), batch_size=64))
    assert allocate(scaling(one, 8)[None, :], 8).tolist() == [1]
    assert best_batch(one, 1) == 64
    large = assumed(spec(batch=Batch(min=32, max=512, per_gpu_max=32), batch_size=64))
    assert allocate(scaling(large, 8)[None, :], 8).tolist() == [2]


def test_a_kind_without_timings_is_judged_by_its_speed_and_left_out_without() -> None:
    found = profiles(spec(), [TIMED], ["x", "y", "z"], {"x": 1.0, "y": 0.5})
    assert list(found) == ["x", "y"]
    assert found["y"].throughput(64, [1, 2]) == pytest.approx(found["x"].throughput(64, [1, 2]) / 2)
    elsewhere = profiles(spec(), [TIMED], ["y", "z"], {"x": 1.0, "y": 0.5})
    assert list(elsewhere) == ["y"]


def test_with_nothing_known_all_kinds_are_alike_but_for_their_speeds() -> None:
    found = profiles(spec(), [], ["x", "y"], {"y": 2.0})
    assert float(found["y"].throughput(64, 1)) == 2 * float(found["x"].throughput(64, 1))
    assert list(profiles(spec(), [known(kind="x")], ["x"], {})) == ["x"]


def test_no_timing_at_all_is_no_profile() -> None:
    with pytest.raises(ValueError, match="no timing on x"):
        profile(known(), spec())


def test_a_new_observation_counts_by_how_sure_it_is_within_bounds() -> None:
    before = timing(1, 32, 0.1, 0.002)
    assert refined(before, 0.2, 0.002).iteration_s == pytest.approx(0.15)
    assert refined(before, 0.2, 1.0).iteration_s == pytest.approx(0.1 + 0.1 * LEAST_WEIGHT)
    assert refined(before, 0.2, 1e-9).iteration_s == pytest.approx(0.2 - 0.1 * LEAST_WEIGHT)
    with pytest.raises(ValueError, match="expected seconds above 0"):
        refined(before, 0.0, 0.1)


def test_observations_that_agree_make_it_surer_and_others_less_sure() -> None:
    before = timing(1, 32, 0.1, 0.002)
    assert refined(before, 0.1, 0.002).error_s < 0.002
    assert refined(before, 0.2, 0.002).error_s > 0.002


@settings(max_examples=examples(60))
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4),
    st.lists(st.floats(0.01, 2.0), max_size=3),
    st.integers(1, 40),
    st.booleans(),
)
def test_whatever_was_timed_more_samples_or_devices_never_take_negative_time(
    proc_s: list[float], wide_s: list[float], batch_max: int, free: bool
) -> None:
    timings = [timing(1, 16 * 2**at, time_s) for at, time_s in enumerate(proc_s)]
    timings += [timing(2 ** (at + 1), 32, time_s) for at, time_s in enumerate(wide_s)]
    one = spec(16, Batch(min=16, max=16 * batch_max, step=16) if free else None)
    found = profile(known(*timings), one)
    batches, speeds = table(found, range(1, 17))
    assert (speeds[batches > 0] > 0).all()
    assert np.isfinite(speeds[batches > 0]).all()
    assert batches[0] > 0  # one device holds the smallest
    local = np.arange(1, found.per_gpu_cap + 1)
    times_s = local / found.throughput(local, 1)
    assert (np.diff(times_s) >= -1e-9).all()  # a larger batch takes no less time
