from __future__ import annotations

from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import published
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies.slabs import (
    all_lightly_active,
    better_donor,
    donor_choices,
    eviction_sample,
    is_hot,
    least_active,
    slabs_to_offer,
    smoothed,
)

GIB = 1 << 30
RUNS = 500


def reference(table: str) -> Any:
    return published.reference("infiniswap.json")[f"infiniswap_{table}"]


def test_activity_and_hot_slabs_are_those_of_the_reference():
    case = reference("ewma_hot")
    activity = 0.0
    for measured, expected, hot in zip(case["measured"], case["A"], case["hot_at"], strict=True):
        activity = smoothed(measured, activity, case["alpha"])
        assert round(activity, 6) == expected
        assert is_hot(activity, case["hot"]) == hot


def test_the_defaults_are_those_of_the_reference():
    case = reference("ewma_hot")
    assert smoothed(1.0, 0.0) == case["alpha"]
    assert not is_hot(case["hot"])
    assert is_hot(np.nextafter(case["hot"], np.inf))


def test_batch_eviction_finds_lightly_active_slabs_as_often_as_the_reference_says():
    for case in reference("batch_eviction_prob"):
        found = all_lightly_active(case["E"], case["E_extra"], case["p_busy"])
        assert round(found, 6) == case["P_all_E_lightly_active"], case


def test_batch_eviction_of_busy_slabs_by_chance_agrees_with_its_probability():
    rng = np.random.default_rng(7)
    missed = 0
    for _ in range(2_000):
        busy = rng.random(40) < 0.3
        asked = eviction_sample(range(40), 10, 5, rng)
        evicted = least_active({slab: float(busy[slab]) for slab in asked}, 10)
        missed += not busy[evicted].any()
    expected = all_lightly_active(10, 5, 0.3)
    assert missed / 2_000 == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 2_000) ** 0.5)


class Spread(NamedTuple):
    """Slabs of the fullest machine and of the middle one, and machines that lend to the client."""

    largest: int
    median: int
    distinct: int


def spread(case: dict[str, Any], rng: np.random.Generator) -> Spread:
    """
    Return how the slabs of one client lie after they were placed one by one.

    The set-up of the reference, which its file does not say and which gives its nine means: each machine holds 0 to 20
    slabs of others before, each number as likely. A slab goes to the least loaded of those that are asked. The median
    of the even number of machines is the upper one.
    """
    load = dict(enumerate(rng.integers(0, 21, case["machines"]).tolist()))
    names = {str(machine): 1 for machine in load}
    mine: set[str] = set()
    for _ in range(case["slabs"]):
        asked = donor_choices(names, mine if case["prefer_new_machines"] else (), rng, case["choices"])
        donor = better_donor({name: GIB - load[int(name)] for name in asked})
        assert donor is not None
        load[int(donor)] += 1
        mine.add(donor)
    loads = sorted(load.values())
    return Spread(loads[-1], loads[len(loads) // 2], len(mine))


@pytest.mark.slow
@pytest.mark.parametrize("at", range(3), ids=["one choice", "two choices", "two choices, new machines first"])
def test_slabs_spread_over_machines_as_in_the_reference(at):
    case = reference("placement_sim")[at]
    rng = np.random.default_rng(11 + at)
    runs = [spread(case, rng) for _ in range(RUNS)]
    for expected, values in (
        (case["mean_max"], [run.largest for run in runs]),
        (case["mean_median"], [run.median for run in runs]),
        (case["mean_distinct_machines"], [run.distinct for run in runs]),
    ):
        error = stdev(values) * (1 / RUNS + 1 / case["runs"]) ** 0.5  # both means are of runs; 0.01: its rounding
        assert mean(values) == pytest.approx(expected, abs=3 * error + 0.01)


def test_a_node_offers_what_is_free_beyond_its_headroom():
    assert slabs_to_offer(10 * GIB, 2 * GIB, GIB, 0) == 8
    assert slabs_to_offer(10 * GIB, 2 * GIB, 3 * GIB, 0) == 2
    assert slabs_to_offer(2 * GIB, 2 * GIB, GIB, 0) == 0


def test_a_node_with_less_than_its_headroom_free_takes_all_slabs_back():
    assert slabs_to_offer(GIB, 2 * GIB, GIB, 5) == 0


def test_slabs_are_added_only_where_more_than_the_hysteresis_fit():
    assert slabs_to_offer(5 * GIB, 0, GIB, 4) == 4
    assert slabs_to_offer(6 * GIB, 0, GIB, 4) == 6
    assert slabs_to_offer(5 * GIB, 0, GIB, 4, hysteresis=0) == 5
    assert slabs_to_offer(8 * GIB, 0, GIB, 4, hysteresis=4) == 4


def test_slabs_are_taken_back_at_once():
    assert slabs_to_offer(4 * GIB - 1, 0, GIB, 4, hysteresis=3) == 3


@pytest.mark.parametrize("slab_bytes", [0, -GIB])
def test_a_slab_without_a_size_is_refused(slab_bytes):
    with pytest.raises(ValueError, match=r"slab_bytes is -?\d+; expected the positive size of a slab"):
        slabs_to_offer(GIB, 0, slab_bytes, 0)


@pytest.mark.slow
@given(st.integers(0, 1 << 40), st.integers(0, 1 << 36), st.integers(1 << 20, GIB), st.integers(0, 10_000))
def test_an_offer_never_eats_the_headroom_and_does_not_change_twice(free, headroom, slab, offered):
    offer = slabs_to_offer(free, headroom, slab, offered)
    assert offer * slab <= max(0, free - headroom)
    assert slabs_to_offer(free, headroom, slab, offer) == offer


def choose(donors: dict[str, int], lending: set[str], choices: int = 2) -> set[frozenset[str]]:
    """Return all choices that chance makes of some donors."""
    rng = np.random.default_rng(3)
    return {frozenset(donor_choices(donors, lending, rng, choices)) for _ in range(200)}


def test_donors_that_lend_to_the_client_are_not_asked_where_others_are_left():
    assert choose({"a": 1, "b": 1, "c": 1, "d": 9}, {"d"}) == {
        frozenset("ab"),
        frozenset("ac"),
        frozenset("bc"),
    }


def test_donors_without_a_free_slab_are_not_asked():
    assert choose({"a": 1, "b": 0, "c": 2}, set()) == {frozenset("ac")}
    assert choose({"a": 0, "b": 0}, set()) == {frozenset()}


def test_donors_that_lend_are_asked_where_too_few_others_are_left():
    assert choose({"a": 1, "b": 1}, {"a"}) == {frozenset("ab")}
    assert choose({"a": 1, "b": 1, "c": 1}, {"a", "b", "c"}) == {frozenset("ab"), frozenset("ac"), frozenset("bc")}
    assert choose({"a": 1}, {"a"}) == {frozenset("a")}


def test_the_donor_with_the_most_free_memory_is_better_and_the_first_of_equal_ones():
    assert better_donor({"a": GIB, "b": 3 * GIB, "c": 3 * GIB}) == "b"
    assert better_donor({"a": 0, "b": 0}) is None
    assert better_donor({}) is None


def test_eviction_asks_after_no_slab_twice_and_after_all_where_they_are_few():
    rng = np.random.default_rng(5)
    assert len(set(eviction_sample(range(100), 10, 5, rng))) == 15
    assert sorted(eviction_sample(["a", "b", "c"], 2, 5, rng)) == ["a", "b", "c"]
    assert eviction_sample([], 2, 5, rng) == []


def test_eviction_asks_after_each_slab_equally_often():
    rng = np.random.default_rng(5)
    asked = np.bincount([slab for _ in range(4_000) for slab in eviction_sample(range(8), 1, 1, rng)])
    assert asked == pytest.approx(np.full(8, 1_000), abs=4 * (4_000 * 0.25 * 0.75) ** 0.5)


def test_the_least_active_slabs_go_first_and_equal_ones_in_order():
    assert least_active({"a": 5.0, "b": 0.0, "c": 1.0, "d": 0.0}, 3) == ["b", "d", "c"]
    assert least_active({"a": 5.0}, 3) == ["a"]
    assert least_active({"a": 5.0}, 0) == []
