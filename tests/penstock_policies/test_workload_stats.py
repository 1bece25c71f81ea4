from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies.workload_stats import iteration_s, moved, predicted_s, refined_s, speeds

NAN = float("nan")
times = st.floats(min_value=1e-6, max_value=1e3)


@given(slope=times, start_s=st.floats(0, 100), short=st.integers(1, 20), more=st.integers(1, 100))
def test_the_slope_of_an_exact_line_is_found_whatever_the_start_up_costs(slope, start_s, short, more):
    steps = np.array([short, short + more])
    assert iteration_s(steps, slope * steps + start_s) == pytest.approx(slope, rel=1e-4, abs=1e-9)


def test_a_longer_sample_that_took_less_time_falls_back_to_its_average():
    assert iteration_s(np.array([5, 25]), np.array([3.0, 2.5])) == 0.1


def test_samples_of_equal_length_fall_back_to_an_average():
    assert iteration_s(np.array([10, 10]), np.array([2.0, 2.0])) == 0.2


def test_samples_without_an_iteration_do_not_count():
    assert iteration_s(np.array([0, 4]), np.array([9.0, 2.0])) == 0.5
    with pytest.raises(ValueError, match="no sample has an iteration"):
        iteration_s(np.array([0, 0]), np.array([1.0, 1.0]))


@given(values=st.lists(times, min_size=1, max_size=8))
def test_speeds_are_above_zero_and_the_fastest_is_one(values):
    found = speeds(np.array(values))
    assert found.max() == 1.0
    assert found.min() > 0.0


def test_unknown_times_give_unknown_speeds():
    assert np.isnan(speeds(np.array([NAN, NAN]))).all()


def test_a_kind_is_predicted_by_the_median_ratio_of_other_workloads():
    others_s = np.array([[1.0, 2.0], [2.0, 6.0], [1.0, 100.0]])
    assert predicted_s(others_s, np.array([0.5, NAN])).tolist() == [0.5, 1.5]


def test_an_unmeasured_workload_gets_ratios_to_the_kind_that_most_were_measured_on():
    others_s = np.array([[1.0, 2.0], [2.0, NAN]])
    assert predicted_s(others_s, np.array([NAN, NAN])).tolist() == [1.0, 2.0]


def test_what_nothing_links_stays_unknown():
    assert np.isnan(predicted_s(np.array([[NAN, 2.0]]), np.array([1.0, NAN]))[1])
    assert np.isnan(predicted_s(np.empty((0, 2)), np.array([NAN, NAN]))).all()


@given(own=st.lists(st.one_of(st.just(NAN), times), min_size=3, max_size=3), seed=st.integers(0, 99))
def test_measured_times_are_never_overwritten(own, seed):
    others_s = np.random.default_rng(seed).uniform(0.1, 1.0, (4, 3))
    own_s = np.array(own)
    known = ~np.isnan(own_s)
    filled_s = predicted_s(others_s, own_s)
    assert filled_s[known].tolist() == own_s[known].tolist()
    assert not np.isnan(filled_s).any()


@given(known=times, seen=times, weight=st.floats(0, 1))
def test_a_refined_time_lies_between_the_old_and_the_new(known, seen, weight):
    low, high = sorted((known, seen))
    assert low - 1e-9 * high <= refined_s(known, seen, weight) <= high * (1 + 1e-9)


def test_small_changes_do_not_count_as_moved():
    assert not moved(1.0, 1.09, by=0.1)
    assert moved(1.0, 1.2, by=0.1)
    assert moved(1.0, 0.8, by=0.1)
