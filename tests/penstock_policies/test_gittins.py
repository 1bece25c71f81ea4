"""The Gittins index against its definition, and the published table of the public simulator."""

from __future__ import annotations

import csv
import math

import numpy as np
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_policies import gittins
from sweeps import examples

lengths = st.lists(st.one_of(st.integers(1, 12).map(float), st.floats(0.01, 1e6)), min_size=1, max_size=25)
services = st.lists(st.one_of(st.integers(0, 13).map(float), st.floats(0.0, 1.1e6)), min_size=1, max_size=10)


def defined(samples: list[float], attained: float, quantum: float) -> float:
    """P(S - a <= Δ | S > a) / E[min(S - a, Δ) | S > a], word for word."""
    left = [s - attained for s in samples if s > attained]
    if not left:
        return 0.0
    likely = sum(s <= attained + quantum for s in samples if s > attained) / len(left)
    return likely / (math.fsum(min(each, quantum) for each in left) / len(left))


def supremum(samples: list[float], attained: float) -> float:
    """The most over all quanta that end at a sample: between two, the likelihood stays and the cost grows."""
    return max((_up_to(samples, attained, end) for end in samples if end > attained), default=0.0)


def _up_to(samples: list[float], attained: float, end: float) -> float:
    left = [min(s, end) - attained for s in samples if s > attained]
    return sum(attained < s <= end for s in samples) / math.fsum(left)


@given(lengths, services, st.one_of(st.integers(1, 6).map(float), st.floats(0.1, 1e6)))
def test_with_a_quantum_it_is_its_definition(samples, attained, quantum):
    expected = [defined(samples, a, quantum) for a in attained]
    assert gittins.index(samples, attained, quantum) == pytest.approx(expected, rel=1e-4)


@given(lengths, services)
def test_without_one_it_is_the_most_over_all_quanta(samples, attained):
    expected = [supremum(samples, a) for a in attained]
    assert gittins.index(samples, attained, None) == pytest.approx(expected, rel=1e-4)


@given(lengths, services, st.floats(0.1, 1e6))
def test_no_quantum_beats_the_supremum(samples, attained, quantum):
    most = gittins.index(samples, attained, None)
    assert np.all(gittins.index(samples, attained, quantum) <= most * (1 + 1e-4))


@given(lengths, services, st.floats(0.1, 1e6))
def test_one_job_at_a_time_gives_the_same_as_all_at_once(samples, attained, quantum):
    curve = gittins.GittinsCurve(samples, quantum)
    assert [curve.at(a) for a in attained] == gittins.index(samples, attained, quantum).tolist()


@pytest.mark.parametrize("quantum", [3.0, None])
def test_a_job_that_has_outlived_every_sample_has_the_lowest_index(quantum):
    found = gittins.index([2.0, 5.0], [0.0, 4.9, 5.0, 6.0, 1e300], quantum)
    assert found[0] > 0
    assert found[1] > 0
    assert found[2:].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("quantum", [3.0, None])
def test_without_samples_all_are_equal(quantum):
    assert gittins.index([], [0.0, 7.0], quantum).tolist() == [0.0, 0.0]


def test_having_had_a_samples_length_is_having_outlived_it_and_the_end_of_the_quantum_is_within_it():
    assert gittins.index([4.0, 8.0], [4.0], 4.0).tolist() == [1 / 4]


def test_equal_samples_count_each():
    assert gittins.index([4.0, 4.0, 4.0, 40.0], [0.0], None).tolist() == [3 / 16]


@given(st.floats(0.01, 1e6), st.integers(1, 20), st.floats(0.0, 0.99))
def test_where_all_jobs_are_equally_long_the_index_is_one_over_what_is_left(length, count, part):
    attained = length * part
    assert gittins.index([length] * count, [attained], None)[0] == pytest.approx(1 / (length - attained), rel=1e-6)


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf])
def test_a_length_that_is_none_is_refused(sample):
    with pytest.raises(ValueError, match="not positive and finite"):
        gittins.index([1.0, sample], [0.0], None)


@pytest.mark.parametrize("quantum", [0.0, -1.0, math.nan, math.inf])
def test_a_quantum_that_is_none_is_refused(quantum):
    with pytest.raises(ValueError, match="expected GPU-seconds above 0"):
        gittins.index([1.0], [0.0], quantum)


@pytest.mark.parametrize("attained", [-1.0, math.nan, math.inf])
def test_a_service_that_is_none_is_refused(attained):
    with pytest.raises(ValueError, match="expected 0 or more"):
        gittins.index([1.0], [attained], None)


@settings(max_examples=examples(20))
@given(st.lists(st.floats(0.1, 100.0), min_size=40, max_size=200), st.integers(0, 2**32 - 1))
def test_the_order_of_the_samples_does_not_matter(samples, seed):
    mixed = np.random.default_rng(seed).permutation(samples)
    attained = np.linspace(0.0, 110.0, 50)
    for quantum in (5.0, None):
        assert gittins.index(samples, attained, quantum).tolist() == gittins.index(mixed, attained, quantum).tolist()


def test_the_table_of_the_public_simulator_is_met_to_the_last_digit():
    with (published.REFERENCE / "tiresias" / "gpu_time_s_1000.csv").open() as file:
        samples = [int(row["duration"]) for row in csv.DictReader(file)]
    stored = gittins.published(samples, 3250)
    places = np.searchsorted(sorted(samples), [0.0, 500.0, 3250.0, 20000.0, 1e6], side="right")
    assert stored[places].tolist() == [299.701, 249.8181, 87.4493, 11.4736, 0.9037]
