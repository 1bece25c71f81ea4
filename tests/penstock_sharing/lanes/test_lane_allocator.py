"""The arithmetic of finding a lane, to the byte, and of which lanes close."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sharing.lanes import MemoryNeed
from penstock_sharing.lanes.lane import LaneChoice, LaneSize, best, find, to_close
from penstock_sharing.lanes.lane_allocator import LaneGains
from sweeps import examples

OWN = LaneChoice(None)


def need(resident: int, ephemeral: int) -> MemoryNeed:
    return MemoryNeed(resident, 0, ephemeral)


@pytest.mark.parametrize(
    ("free", "expected"),
    [(30, OWN), (29, LaneChoice(1)), (10, LaneChoice(1)), (9, None)],
)
def test_a_lane_of_its_own_or_one_that_is_large_enough(free, expected):
    assert find(need(10, 20), [LaneSize(30, 1, 0), LaneSize(25, 1, 1)], free) == expected


@pytest.mark.parametrize(
    ("free", "expected"),
    [(50, OWN), (49, LaneChoice(1)), (25, LaneChoice(1)), (24, LaneChoice(0)), (20, LaneChoice(0)), (19, None)],
)
def test_a_lane_that_can_be_made_large_enough(free, expected):
    assert find(need(10, 40), [LaneSize(30, 1, 0), LaneSize(25, 1, 1)], free) == expected


@pytest.mark.parametrize(
    ("free", "expected"),
    [(30 + 12, OWN), (30 + 11, LaneChoice(0)), (30, LaneChoice(0)), (29, LaneChoice(0))],
)
def test_a_lane_of_its_own_must_leave_what_those_take_who_could_join_one(free, expected):
    waiting = [need(5, 40), need(100, 0), need(7, 1), need(1, 41)]
    assert find(need(10, 20), [LaneSize(40, 1, 0)], free, waiting) == expected
    assert find(need(10, 4), [LaneSize(40, 1, 0)], 14, waiting) == OWN, "nobody could join, so nothing has to be left"


def test_room_is_left_only_for_those_who_would_all_fit():
    waiting = [need(30, 0)] * 3
    assert find(need(10, 20), [LaneSize(40, 1, 0)], 89, waiting) == LaneChoice(0)
    assert find(need(10, 20), [LaneSize(40, 1, 0)], 90, waiting) == OWN


def test_the_first_lane_opens_even_where_no_other_is_worth_it():
    assert find(need(10, 20), [], 30, may_open=False) == OWN
    assert find(need(10, 20), [], 29) is None
    assert find(need(10, 20), [LaneSize(5, 1, 0)], 1000, may_open=False) == LaneChoice(0)


def test_of_equal_lanes_the_one_with_the_fewest_members():
    assert find(need(10, 20), [LaneSize(20, 3, 0), LaneSize(20, 2, 1)], 10) == LaneChoice(1)
    assert best(need(10, 20), [LaneSize(20, 3, 0), LaneSize(20, 2, 1), LaneSize(90, 0, 2)]) == 1
    assert best(need(10, 95), [LaneSize(20, 3, 0), LaneSize(90, 0, 2)]) == 2


sizes = st.lists(st.integers(0, 30), min_size=1, max_size=5).map(
    lambda sizes: [LaneSize(size, 1, lane) for lane, size in enumerate(sizes)]
)


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), sizes, st.integers(-20, 40))
def test_the_fewest_lanes_close_that_make_a_job_fit(resident, ephemeral, there, free):
    largest = max(there, key=lambda size: (size.size_bytes, -size.lane))
    lacking = resident + max(0, ephemeral - largest.size_bytes) - free
    others = [size for size in there if size is not largest]
    enough = [
        count
        for count in range(len(others) + 1)
        if any(sum(size.size_bytes for size in some) >= lacking for some in combinations(others, count))
    ]
    closing = to_close(need(resident, ephemeral), there, free)
    if closing is None:
        assert not enough
    else:
        assert len(closing) == enough[0]
        assert sum(there[lane].size_bytes for lane in closing) >= lacking
        assert largest.lane not in closing


def test_a_number_of_lanes_that_gained_too_little_rules_out_larger_ones_for_a_while():
    gains = LaneGains(least=0.05, retry_s=100.0)
    assert gains.most(0.0) == float("inf")
    gains.see(3, 1.049, 0.0)
    gains.see(2, 1.05, 0.0)
    assert gains.most(99.0) == 2
    assert gains.most(100.0) == float("inf")
    gains.see(3, 1.02, 200.0)
    gains.see(3, 1.3, 210.0)
    assert gains.most(211.0) == float("inf")


@pytest.mark.parametrize("wrong", [(1, 1.0), (2, 0.0), (2, float("nan"))])
def test_a_gain_of_nonsense_is_an_error(wrong):
    with pytest.raises(ValueError, match="out of range"):
        LaneGains(0.05, 1.0).see(*wrong, now_s=0.0)
