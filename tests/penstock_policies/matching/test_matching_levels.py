"""The matching on levels against slow oracles, the reference totals, and what a schedule must be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_cases import arrays, by_flow, instances
from matching_oracle import assign_lsa, starts_us
from published import reference

from penstock_policies.matching import UNFIT, warm
from penstock_policies.matching.flow import KERNELS
from penstock_policies.matching.solver import KeptMatching, assign
from sweeps import examples, sampled


def test_the_worked_example_has_its_total_and_its_makespan():
    case = reference("matching.json")["worked_example"]
    p, ready = arrays(case)
    found = assign(p, ready)
    ends = starts_us(p, ready, found) + p[np.arange(len(p)), found.kind]
    assert found.total_us == case["total_completion"] == ends.sum() == 85
    assert ends.max() == case["makespan_with_tie_break"] == 25
    assert found.gap_us == 0


def test_the_random_cases_have_their_totals():
    for case in reference("matching.json")["random"]:
        p, ready = arrays(case)
        found = assign(p, ready)
        assert (found.total_us, found.gap_us) == (case["total_completion"], 0), case["seed"]
        ends = starts_us(p, ready, found) + p[np.arange(len(p)), found.kind]
        assert ends.sum() == found.total_us, case["seed"]


@settings(deadline=None, max_examples=examples(200))
@given(instances())
def test_total_and_places_are_those_of_the_expanded_matrix(instance):
    p, ready = instance
    found = assign(p, ready)
    oracle = assign_lsa(p, ready)
    assert (found.kind >= 0).tolist() == (oracle.kind >= 0).tolist()
    assert (found.total_us, found.gap_us) == (oracle.total_us, 0)
    if p[p != UNFIT].max(initial=0) < 10**9:  # beyond, the oracle's floats drop the tie-break
        assert found.place.sum() == oracle.place.sum()


def interpreted(p, ready):
    try:
        KERNELS.interpreted = True
        return assign(p, ready)
    finally:
        KERNELS.interpreted = False


@settings(deadline=None, max_examples=examples(100))
@given(instances())
def test_interpreted_kernels_find_the_very_schedule_that_compiled_ones_do(instance):
    with np.errstate(all="raise"):
        slow, fast = interpreted(*instance), assign(*instance)
    assert (slow.total_us, slow.gap_us) == (fast.total_us, fast.gap_us)
    for name in ("kind", "place", "machine"):
        assert getattr(slow, name).tolist() == getattr(fast, name).tolist(), name
    assert [prices.tolist() for prices in slow.price_us] == [prices.tolist() for prices in fast.price_us]


def test_jobs_that_are_all_alike_have_the_same_machines_interpreted_as_compiled():
    p, ready = np.full((40, 2), 7), [np.zeros(3, np.int64), np.zeros(30, np.int64)]
    assert interpreted(p, ready).machine.tolist() == assign(p, ready).machine.tolist()


@settings(deadline=None, max_examples=examples(50))
@given(instances(max_jobs=8))
def test_total_and_places_are_those_of_a_min_cost_flow(instance):
    found = assign(*instance)
    assert (found.total_us, found.place.sum()) == by_flow(*instance)


@settings(deadline=None, max_examples=examples(100))
@given(instances(max_jobs=20))
def test_the_schedule_fills_every_machine_without_gaps_and_has_the_total_it_says(instance):
    p, ready = instance
    found = assign(p, ready)
    for t, r in enumerate(ready):
        for m in range(len(r)):
            places = sorted(found.place[(found.kind == t) & (found.machine == m)].tolist())
            assert places == list(range(1, len(places) + 1))
    matched = np.flatnonzero(found.kind >= 0)
    ends = starts_us(p, ready, found)[matched] + p[matched, found.kind[matched]]
    assert ends.sum() == found.total_us


@settings(deadline=None, max_examples=examples(100))
@given(instances(), st.data())
def test_a_kept_matching_stays_optimal_as_jobs_come_and_go_and_machines_change(instance, data):
    p, ready = instance
    kept = KeptMatching(p, ready)
    rows, ready, gone = [row.tolist() for row in p], [r.copy() for r in ready], set()
    for _ in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["add", "remove", "ready"]))
        if what == "add":
            row = data.draw(st.lists(st.integers(0, 50), min_size=p.shape[1], max_size=p.shape[1]))
            job = kept.add(np.array(row))
            assert job in gone or job == len(rows)
            rows[job : job + 1] = [row]
            gone.discard(job)
        elif what == "remove" and len(gone) < len(rows):
            job = data.draw(st.sampled_from(sorted(set(range(len(rows))) - gone)))
            rows[job] = [UNFIT] * p.shape[1]
            gone.add(job)
            kept.remove(job)
        elif what == "ready" and (kinds := [t for t, r in enumerate(ready) if len(r)]):
            kind = data.draw(st.sampled_from(kinds))
            machine = data.draw(st.integers(0, len(ready[kind]) - 1))
            ready[kind][machine] = data.draw(st.integers(0, 100))
            kept.set_ready(kind, machine, int(ready[kind][machine]))
        found, fresh = kept.assignment(), assign(np.array(rows, dtype=np.int64).reshape(-1, p.shape[1]), ready)
        assert (found.total_us, found.place.sum(), found.gap_us) == (fresh.total_us, fresh.place.sum(), 0)


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("machines", [[1], [3, 3], [1, 40, 7], [30, 30, 30]])
def test_larger_instances_are_proved_optimal(machines, spread):
    rng = np.random.default_rng(7)
    base, speed = rng.integers(1, 400, (600, 1)), np.arange(1, len(machines) + 1)
    p = (base * 1000 / speed * rng.lognormal(0, spread, (600, len(machines)))).astype(np.int64)
    found = assign(p, [rng.integers(0, 300_000, m) * (rng.random(m) < 0.9) for m in machines])
    assert found.gap_us == 0
    assert (found.kind >= 0).all()


@pytest.mark.parametrize("jobs", [700, 2000])
def test_jobs_that_all_prefer_the_same_kinds_equally_are_proved_optimal(jobs):
    rng = np.random.default_rng(1)
    p = (rng.lognormal(20, 1.5, (jobs, 1)) / np.arange(1, 5)).astype(np.int64)
    ready = [(rng.exponential(1.8e9, jobs // 40) * (rng.random(jobs // 40) < 0.9)).astype(np.int64) for _ in range(4)]
    assert assign(p, ready).gap_us == 0


@pytest.mark.parametrize("lengths", [1, 3, 400])
@pytest.mark.parametrize("workloads", sampled([4, 1, 60]))
def test_many_jobs_of_few_workloads_are_matched_as_by_the_expanded_matrix(workloads, lengths):
    rng = np.random.default_rng(workloads + lengths)
    speeds, base = rng.lognormal(0, 0.5, (workloads, 3)), rng.integers(1000, 90_000, lengths)
    p = (rng.choice(base, 400)[:, None] / speeds[rng.integers(0, workloads, 400)]).astype(np.int64)
    ready = [rng.integers(0, 200_000, machines) * (rng.random(machines) < 0.9) for machines in (12, 30, 9)]
    found = assign(p, ready)
    oracle = assign_lsa(p, ready, depth=int(found.place.max()) + 1)
    assert (found.total_us, found.place.sum(), found.gap_us) == (oracle.total_us, oracle.place.sum(), 0)


def test_the_kernels_can_be_compiled_ahead():
    warm()


def test_no_kinds_no_machines_and_no_jobs_are_no_trouble():
    empty = np.zeros(0, dtype=np.int64)
    assert assign(np.zeros((0, 1), dtype=np.int64), [np.array([3])]).total_us == 0
    assert assign(np.zeros((2, 0), dtype=np.int64), []).kind.tolist() == [-1, -1]
    assert assign(np.array([[1, 2]]), [empty, empty]).kind.tolist() == [-1]
    assert assign(np.array([[1, 2]]), [empty, np.array([5])]).kind.tolist() == [1]


def test_equal_jobs_share_the_machines_evenly():
    found = assign(np.full((12, 2), 5), [np.zeros(2, np.int64), np.zeros(2, np.int64)])
    assert (found.total_us, found.gap_us) == (4 * 5 * (1 + 2 + 3), 0)
    assert sorted(found.place.tolist()) == [1] * 4 + [2] * 4 + [3] * 4


def test_times_beyond_64_bits_are_refused_and_said_so():
    with pytest.raises(OverflowError, match="do not fit in 64 bits; give shorter times"):
        assign(np.full((4, 1), 2**59), [np.array([0])])
    kept = KeptMatching(np.array([[5]]), [np.array([0])])
    with pytest.raises(OverflowError, match="64 bits"):
        kept.add(np.array([2**61]))
    assert kept.assignment().total_us == 5


def test_wrong_shapes_and_negative_times_are_refused():
    with pytest.raises(ValueError, match=r"expected \(jobs, 2\)"):
        assign(np.array([[1]]), [np.array([0]), np.array([0])])
    with pytest.raises(ValueError, match="negative"):
        assign(np.array([[-1]]), [np.array([0])])


def test_a_deep_queue_of_long_jobs_is_matched_exactly_without_the_tie_break():
    p = np.random.default_rng(0).integers(1, 24 * 3600 * 10**6, (6000, 1))
    found = assign(p, [np.zeros(1, np.int64)])
    assert (found.total_us, found.gap_us) == (int(np.sort(p[:, 0]).cumsum().sum()), 0)


def test_a_long_job_that_comes_later_only_costs_the_tie_break():
    kept = KeptMatching(np.array([[5, 6], [7, 8]]), [np.array([0]), np.array([1])])
    job = kept.add(np.array([2**52, 2**53]))
    assert (kept.assignment().total_us, kept.assignment().gap_us) == (5 + (5 + 2**52) + (1 + 8), 0)
    kept.set_ready(0, 0, 2**51)
    assert kept.assignment().gap_us == 0
    kept.remove(job)
    assert (kept.assignment().total_us, kept.assignment().gap_us) == ((1 + 6) + (1 + 6 + 8), 0)


def test_a_kept_matching_needs_no_more_room_than_for_the_most_jobs_at_once():
    kept, rng = KeptMatching(np.zeros((0, 2), dtype=np.int64), [np.zeros(2, np.int64)] * 2), np.random.default_rng(2)
    jobs = [kept.add(rng.integers(1, 99, 2)) for _ in range(20)]
    for turn in range(200):
        kept.remove(jobs[turn % 20])
        jobs[turn % 20] = kept.add(rng.integers(1, 99, 2))
    assert (len(kept.assignment().kind), sorted(jobs), kept.assignment().gap_us) == (20, list(range(20)), 0)


def test_a_job_cannot_be_taken_away_twice():
    kept = KeptMatching(np.array([[5], [7]]), [np.array([0])])
    kept.remove(1)
    for job in (1, 2, -1):
        with pytest.raises(ValueError, match=f"no job in row {job}"):
            kept.remove(job)
