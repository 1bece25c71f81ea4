"""The matching against the reference totals, brute force, and what a schedule must be."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_oracle import assign_lsa, savings_us, starts_us

from penstock_policies.matching import UNFIT
from sweeps import examples


@pytest.fixture(scope="module")
def reference():
    return published.reference("matching.json")


def arrays(case):
    return np.array(case["p"], dtype=np.int64), [np.array(r, dtype=np.int64) for r in case["ready"]]


def test_the_worked_example_has_its_total_and_its_makespan(reference):
    case = reference["worked_example"]
    p, ready = arrays(case)
    found = assign_lsa(p, ready)
    ends = starts_us(p, ready, found) + p[np.arange(len(p)), found.kind]
    assert found.total_us == case["total_completion"] == ends.sum()
    assert ends.max() == case["makespan_with_tie_break"]


def test_the_random_cases_have_their_totals(reference):
    for case in reference["random"]:
        p, ready = arrays(case)
        found = assign_lsa(p, ready)
        assert found.total_us == case["total_completion"], case["seed"]
        ends = starts_us(p, ready, found) + p[np.arange(len(p)), found.kind]
        assert ends.sum() == found.total_us, case["seed"]


def brute_force(p, ready):
    """Least sum of completion times, and least sum of places among such schedules, over all of them."""
    machines = [(t, m) for t, r in enumerate(ready) for m in range(len(r))]
    best = (np.inf, np.inf)
    for where in itertools.product(machines, repeat=len(p)):
        if any(p[j, t] == UNFIT for j, (t, _) in enumerate(where)):
            continue
        total = places = 0
        for t, m in machines:
            lengths = sorted((int(p[j, t]) for j, at in enumerate(where) if at == (t, m)), reverse=True)
            total += sum(ready[t][m] + k * length for k, length in enumerate(lengths, start=1))
            places += sum(range(1, len(lengths) + 1))
        best = min(best, (total, places))
    return best


@st.composite
def instances(draw):
    jobs, kinds = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    length = st.one_of(st.integers(1, 9), st.just(UNFIT))
    rows = draw(st.lists(st.lists(length, min_size=kinds, max_size=kinds), min_size=jobs, max_size=jobs))
    ready = [draw(st.lists(st.integers(0, 9), min_size=1, max_size=2)) for _ in range(kinds)]
    return np.array(rows, dtype=np.int64), [np.array(r, dtype=np.int64) for r in ready]


@settings(deadline=None, max_examples=examples(150))
@given(instances())
def test_the_total_is_optimal_and_ties_go_to_the_least_sum_of_places(instance):
    p, ready = instance
    fitting = (p != UNFIT).any(axis=1)
    found = assign_lsa(p, ready)
    assert (found.kind[~fitting] == -1).all()
    assert (found.kind[fitting] >= 0).all()
    if fitting.any():
        assert (found.total_us, found.place.sum()) == brute_force(p[fitting], ready)


@settings(deadline=None, max_examples=examples(50))
@given(instances())
def test_every_machine_is_filled_from_its_last_place_without_gaps(instance):
    p, ready = instance
    found = assign_lsa(p, ready)
    for t, r in enumerate(ready):
        for m in range(len(r)):
            places = sorted(found.place[(found.kind == t) & (found.machine == m)].tolist())
            assert places == list(range(1, len(places) + 1))


@settings(deadline=None, max_examples=examples(50))
@given(instances())
def test_a_price_is_what_one_more_machine_saves(instance):
    p, ready = instance
    base = assign_lsa(p, ready)
    for t, price in enumerate(savings_us(p, ready)):
        more = [np.append(r, 0) if u == t else r for u, r in enumerate(ready)]
        found = assign_lsa(p, more)
        assert price == max(0, base.total_us - found.total_us)
        assert found.total_us <= base.total_us


def test_no_jobs_and_no_machines_are_no_trouble():
    none = np.zeros((0, 2), dtype=np.int64)
    assert assign_lsa(none, [np.zeros(1, np.int64), np.zeros(1, np.int64)]).total_us == 0
    empty = np.zeros(0, dtype=np.int64)
    assert assign_lsa(np.array([[1, 2]]), [empty, empty]).kind.tolist() == [-1]
    assert assign_lsa(np.array([[1, 2]]), [empty, np.array([5])]).kind.tolist() == [1]


def test_with_a_limited_depth_the_rest_stays_unmatched_and_the_shortest_start():
    p = np.array([[5], [1], [3], [9]])
    found = assign_lsa(p, [np.zeros(1, np.int64)], depth=2)
    assert sorted(found.place.tolist()) == [0, 0, 1, 2]
    assert set(np.flatnonzero(found.place).tolist()) == {1, 2}


def test_a_job_waits_for_a_fast_machine_only_if_that_ends_sooner():
    p = np.array([[10, 100]])
    assert assign_lsa(p, [np.array([89]), np.array([0])]).kind.tolist() == [0]
    assert assign_lsa(p, [np.array([91]), np.array([0])]).kind.tolist() == [1]


def test_whoever_needs_only_the_plain_matching_does_not_load_a_compiler():
    code = "import sys, penstock_matcher.machine; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
