"""Machines: exact schedules of them, ties in rank order, and what one more of them saves."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from matching_cases import instances
from matching_oracle import assign_lsa, savings_us, starts_us

from penstock_log import Device
from penstock_policies.matching import UNFIT
from penstock_policies.matching.solver import assign
from penstock_scheduler.assignment import LONGEST_US, DeviceSchedule, begins_us
from penstock_scheduler.placement import FreeDevices
from sweeps import examples


def machines(ready_us: list[list[int]]) -> DeviceSchedule:
    """So many kinds, and when the devices of each are free."""
    found = DeviceSchedule([], FreeDevices({}), {})
    found.ready_us = [np.sort(np.array(times, dtype=np.int64)) for times in ready_us]
    return found


@settings(deadline=None, max_examples=examples(40))
@given(instances())
def test_a_window_is_solved_exactly_and_proved(instance):
    lengths, ready = instance
    found = machines([times.tolist() for times in ready]).solve(lengths)
    placed = np.flatnonzero(found.kind >= 0)
    ends = found.starts_us[placed] + lengths[placed, found.kind[placed]]
    assert found.gap_us == 0
    assert int(ends.sum()) == assign_lsa(lengths, ready).total_us


@settings(deadline=None, max_examples=examples(40))
@given(instances())
def test_starts_are_those_of_a_walk_along_each_machine(instance):
    lengths, ready = instance
    found = assign(lengths, ready)
    assert begins_us(lengths, ready, found).tolist() == starts_us(lengths, ready, found).tolist()


@settings(deadline=None, max_examples=examples(40))
@given(instances(max_jobs=8))
def test_a_saving_is_what_solving_once_more_finds(instance):
    lengths, ready = instance
    saved = machines([times.tolist() for times in ready]).savings_us(lengths)
    for times, one, other in zip(ready, saved.tolist(), savings_us(lengths, ready), strict=True):
        assert one == (other if times.size else 0)


def test_the_duals_alone_say_more_than_one_more_device_saves():
    lengths, ready = np.array([[4], [4], [4]]), [[0]]
    duals = assign(lengths, [np.zeros(1, dtype=np.int64)]).price_us[0]
    assert machines(ready).savings_us(lengths).tolist() == [8]
    assert int(duals.sum()) > 8


def test_of_jobs_that_are_alike_the_first_starts_first_and_then_ends_first():
    found = machines([[0, 3], [0]]).solve(np.array([[4, 6]] * 3))
    ends = found.starts_us + np.where(found.kind == 0, 4, 6)
    assert found.starts_us.tolist() == [0, 0, 3]
    assert ends.tolist() == [4, 6, 7]


def test_jobs_of_years_are_counted_in_coarser_units_and_still_proved():
    lengths = np.full((300, 2), LONGEST_US)
    lengths[:, 1] = LONGEST_US // 3
    lengths[7] = UNFIT
    found = machines([[0], [0, LONGEST_US]]).solve(lengths)
    assert found.gap_us == 0
    assert sorted(np.flatnonzero(found.starts_us == 0).tolist()) == [0, 1]
    assert found.kind[7] == found.starts_us[7] == -1


def test_devices_are_sorted_into_their_classes_by_when_they_are_free():
    fast = Device(index=0, kind="fast", memory_bytes=8, backend="emulated")
    slow = Device(index=0, kind="slow", memory_bytes=8, backend="emulated")
    found = DeviceSchedule([fast, slow], FreeDevices({"n1": [fast]}), {fast: [5.0], slow: [0.0]})
    assert [times.tolist() for times in found.ready_us] == [[0, 5_000_000], [1]]
