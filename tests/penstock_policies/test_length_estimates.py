"""What is expected of lengths and speeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import KindSpeed, WorkloadProfiled
from penstock_policies import job_lengths
from penstock_policies.workload_stats import Speeds

lengths = st.floats(0.01, 1e6)


@given(st.lists(lengths, min_size=1, max_size=30), st.lists(st.floats(0.0, 2e6), min_size=1, max_size=5))
def test_the_remaining_service_is_the_mean_over_samples_that_are_longer(samples, attained):
    found = job_lengths.remaining_s(np.array(attained), samples, prior_s=60.0)
    for a, left_s in zip(attained, found, strict=True):
        longer = [s - a for s in samples if s > a]
        assert left_s == pytest.approx(np.mean(longer) if longer else a, rel=1e-6, abs=1e-6)
        assert left_s >= 0


def test_a_job_that_has_run_over_what_it_declared_is_believed_less_and_less():
    assert [job_lengths.declared_s(5.0, attained_s) for attained_s in (4.0, 5.0, 6.0, 50.0)] == [1.0, 0.1, 1.0, 45.0]


def test_a_job_that_has_outlived_the_prior_is_expected_to_take_as_long_again():
    assert job_lengths.remaining_s(np.array([10.0, 600.0]), [], prior_s=60.0).tolist() == [60.0, 600.0]


def profiled(key: str, **speeds: float) -> WorkloadProfiled:
    known = tuple(KindSpeed(kind=kind, iteration_s=1.0, speed=speed) for kind, speed in speeds.items())
    return WorkloadProfiled(at_s=0.0, key=key, speeds=known)


def test_an_unknown_speed_is_the_median_of_other_workloads_on_that_kind():
    speeds = Speeds()
    for key, slow in (("a", 0.2), ("b", 0.4), ("c", 0.9)):
        speeds.apply(profiled(key, fast=1.0, slow=slow))
    assert (speeds.of("new", "slow"), speeds.of("a", "slow"), speeds.of("new", "tpu")) == (0.4, 0.2, 1.0)


def test_later_knowledge_of_a_workload_replaces_what_was_known():
    speeds = Speeds()
    speeds.apply(profiled("a", slow=0.5))
    speeds.apply(profiled("a", fast=1.0))
    assert speeds.knows("a")
    assert (speeds.of("a", "fast"), speeds.of("a", "slow")) == (1.0, 1.0)


def test_a_speed_that_could_not_be_measured_counts_as_unknown():
    speeds = Speeds()
    speeds.apply(profiled("a", slow=0.0))
    assert speeds.knows("a")
    assert speeds.of("a", "slow") == 1.0


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e6)), max_size=9))
def test_many_jobs_have_left_what_each_has(jobs):
    declared, attained = np.array([d for d, _ in jobs]), np.array([a for _, a in jobs])
    expected = job_lengths.remaining_s(attained, [3.0, 50.0], 60.0)
    found = job_lengths.left_s(declared, attained, expected)
    one_by_one = [
        job_lengths.declared_s(d, a) if d > 0 else e for (d, a), e in zip(jobs, expected.tolist(), strict=True)
    ]
    assert found.tolist() == one_by_one
