"""What can share a device, against every division of the jobs into lanes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sharing.lanes import DeviceLanes, DeviceLoad, LaneEntered, LaneRules, MemoryNeed
from sweeps import examples

USABLE = 100
needs = st.builds(MemoryNeed, st.integers(0, 30), st.integers(0, 10), st.integers(0, 70))


def divisions(jobs: list[MemoryNeed]) -> Iterator[list[list[MemoryNeed]]]:
    """Every way to divide jobs into lanes."""
    if not jobs:
        yield []
        return
    first, *rest = jobs
    for lanes in divisions(rest):
        yield [[first], *lanes]
        for at, lane in enumerate(lanes):
            yield [*lanes[:at], [first, *lane], *lanes[at + 1 :]]


def is_safe(lanes: list[list[MemoryNeed]], usable: int = USABLE) -> bool:
    resident = sum(need.resident_bytes for lane in lanes for need in lane)
    return resident + sum(max(need.ephemeral_bytes for need in lane) for lane in lanes) <= usable


def fullest(jobs: list[MemoryNeed]) -> list[int]:
    """The most jobs that can share a device, by trying all sets: their positions."""
    sets = (list(some) for n in range(len(jobs), 0, -1) for some in combinations(range(len(jobs)), n))
    return next((some for some in sets if is_safe([[jobs[at] for at in some]])), [])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(needs, max_size=5), needs)
def test_jobs_can_share_if_and_only_if_some_division_into_lanes_is_safe(there, newcomer):
    expected = any(is_safe(lanes) for lanes in divisions([*there, newcomer]))
    assert DeviceLoad.of(USABLE + 7, 7, there).holds(newcomer) is expected


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(needs, max_size=8), st.randoms(use_true_random=False))
def test_a_device_lets_in_all_that_it_holds_in_whatever_order_they_come(jobs, random):
    order = fullest(jobs)
    random.shuffle(order)
    device = DeviceLanes(USABLE)
    for at in order:
        device.arrive(f"j{at}", jobs[at], 0.0)
    assert not device.waiting
    assert sorted(job_id for lane in device.lanes for job_id in lane.members) == sorted(f"j{at}" for at in order)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(needs, max_size=8))
def test_one_that_waits_at_the_head_of_the_line_would_fit_into_no_division(jobs):
    device = DeviceLanes(USABLE)
    for at, need in enumerate(jobs):
        device.arrive(f"j{at}", need, 0.0)
    inside = [device.need(job_id) for lane in device.lanes for job_id in lane.members]
    if device.waiting:
        assert not DeviceLoad.of(USABLE, 0, inside).holds(device.need(device.waiting[0]))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(needs, max_size=8))
def test_without_merging_the_board_is_safe_and_never_lets_in_more_than_the_fullest_set(jobs):
    device = DeviceLanes(USABLE, rules=LaneRules(merges=False))
    entered = [
        c for at, need in enumerate(jobs) for c in device.arrive(f"j{at}", need, 0.0) if isinstance(c, LaneEntered)
    ]
    assert is_safe([[device.need(job_id) for job_id in lane.members] for lane in device.lanes])
    assert len(entered) <= len(fullest(jobs))


def test_one_job_more_of_the_same_size_is_kept_out_by_a_byte():
    there = [MemoryNeed(10, 5, 55)]
    assert DeviceLoad.of(100, 0, there).holds(MemoryNeed(20, 10, 55))
    assert not DeviceLoad.of(100, 1, there).holds(MemoryNeed(20, 10, 55))
