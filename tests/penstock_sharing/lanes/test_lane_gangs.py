"""Jobs on several devices: they take their turns together, and none waits for another in a circle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sharing.lanes import (
    TURN_POLICIES,
    DeviceChange,
    DeviceLanes,
    GangComplete,
    GangTurn,
    LaneEntered,
    LaneGangs,
    LaneRefused,
    LaneRules,
    MemberEvicted,
    MemberParked,
    MemberUnparked,
    MemberWaits,
    MemoryNeed,
    TurnGranted,
)
from sweeps import examples


def need(resident: int, ephemeral: int) -> MemoryNeed:
    return MemoryNeed(resident, 0, ephemeral)


def node(devices: int = 2, capacity: int = 100, rules: LaneRules | None = None) -> LaneGangs:
    return LaneGangs({device: DeviceLanes(capacity, rules=rules) for device in range(devices)})


def on_both(resident: int, ephemeral: int) -> dict[int, MemoryNeed]:
    return {1: need(resident, ephemeral), 0: need(resident, ephemeral)}


def whole(changes: list[object]) -> list[object]:
    return [each for each in changes if isinstance(each, GangComplete | GangTurn)]


def test_a_gang_that_asks_no_more_gives_up_what_it_has_of_a_turn():
    gangs = node(rules=LaneRules(most_lanes=1))
    gangs.arrive("gang", on_both(10, 40), 0.0)
    gangs.arrive("a", {1: need(10, 40)}, 0.0)
    assert GangTurn("a") in gangs.want("a", 1.0)
    assert GangTurn("gang") not in gangs.want("gang", 2.0)
    gangs.arrive("b", {0: need(10, 40)}, 3.0)
    assert GangTurn("b") not in gangs.want("b", 3.0), "the gang has its turn on the first device"
    assert GangTurn("b") in gangs.rest("gang", 4.0)
    assert GangTurn("gang") not in gangs.boundary("a", 5.0, wants=False)
    gangs.boundary("b", 6.0, wants=False)
    assert GangTurn("gang") in gangs.want("gang", 7.0)


def test_a_gang_starts_when_it_has_a_lane_on_each_of_its_devices():
    gangs = node()
    gangs.arrive("small", {1: need(60, 20)}, 0.0)
    changes = gangs.arrive("gang", on_both(30, 20), 0.0)
    assert [(each.device, type(each.change)) for each in changes][1:] == [(0, LaneEntered), (1, MemberWaits)]
    assert whole(gangs.finish("small", 1.0)) == [GangComplete("gang")]


def test_gangs_take_their_turns_together_and_in_turn():
    gangs = node(rules=LaneRules(most_lanes=1))
    for job_id in ("a", "b"):
        gangs.arrive(job_id, on_both(10, 20), 0.0)
    assert whole(gangs.want("a", 0.0)) == [GangTurn("a")]
    assert whole(gangs.want("b", 0.0)) == []
    assert whole(gangs.boundary("a", 1.0)) == [GangTurn("b")]
    assert whole(gangs.boundary("b", 2.0)) == [GangTurn("a")]
    assert whole(gangs.finish("a", 3.0)) == [GangTurn("b")]


def test_a_gang_asks_for_a_device_only_when_it_has_the_one_before():
    gangs = node(rules=LaneRules(most_lanes=1))
    for job_id, needs in {"a": {0: need(1, 9)}, "b": {1: need(1, 9)}, "gang": on_both(1, 9)}.items():
        gangs.arrive(job_id, needs, 0.0)
    gangs.want("a", 0.0)
    gangs.want("gang", 0.0)
    assert whole(gangs.want("b", 0.0)) == [GangTurn("b")]
    assert whole(gangs.boundary("b", 1.0)) == [GangTurn("b")]
    assert gangs.boundary("a", 1.0) == [DeviceChange(0, TurnGranted("gang", 0))]
    assert whole(gangs.boundary("b", 2.0)) == [GangTurn("gang")]


def test_a_gang_that_is_parked_on_one_device_asks_for_none():
    gangs = node()
    gangs.arrive("other", {1: need(30, 30)}, 0.0)
    gangs.arrive("gang", on_both(20, 20), 0.0)
    gangs.want("gang", 0.0)
    changes = gangs.boundary("gang", 1.0, needs={1: need(20, 60)})
    assert any(isinstance(each, DeviceChange) and isinstance(each.change, MemberParked) for each in changes)
    assert [lane.holder for device in gangs.lanes_of.values() for lane in device.lanes] == [None, None]
    changes = gangs.finish("other", 2.0)
    assert any(isinstance(each, DeviceChange) and isinstance(each.change, MemberUnparked) for each in changes)
    assert whole(changes) == [GangTurn("gang")]


def test_a_gang_that_has_to_leave_one_device_takes_no_turn_on_the_others():
    gangs = node()
    gangs.arrive("gang", on_both(20, 20), 0.0)
    gangs.want("gang", 0.0)
    changes = gangs.boundary("gang", 1.0, needs={1: need(20, 90)})
    assert any(isinstance(each, DeviceChange) and isinstance(each.change, MemberEvicted) for each in changes)
    assert [lane.holder for lane in gangs.lanes_of[0].lanes] == [None]
    gangs.finish("gang", 2.0)
    assert [device.used_bytes for device in gangs.lanes_of.values()] == [0, 0]


def test_a_gang_that_one_device_refuses_is_on_none():
    gangs = node()
    changes = gangs.arrive("gang", {0: need(10, 10), 1: need(90, 20)}, 0.0)
    assert any(isinstance(each.change, LaneRefused) for each in changes)
    assert "gang" not in gangs
    assert [device.used_bytes for device in gangs.lanes_of.values()] == [0, 0]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda gangs: gangs.arrive("gang", on_both(1, 1), 0.0), "expected a new job"),
        (lambda gangs: gangs.arrive("new", {7: need(1, 1)}, 0.0), "devices of this node"),
        (lambda gangs: gangs.arrive("new", {}, 0.0), "devices of this node"),
        (lambda gangs: gangs.boundary("gang", 0.0), "not the turn of job gang"),
        (lambda gangs: gangs.finish("nobody", 0.0), "nobody is not here"),
    ],
)
def test_what_cannot_have_happened_to_a_gang_is_an_error(act, message):
    gangs = node()
    gangs.arrive("gang", on_both(1, 1), 0.0)
    with pytest.raises(ValueError, match=message):
        act(gangs)


needs_on_some = st.dictionaries(
    st.integers(0, 2), st.builds(need, st.integers(0, 30), st.integers(0, 60)), min_size=1, max_size=3
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(needs_on_some, min_size=1, max_size=8),
    st.sampled_from(sorted(TURN_POLICIES)),
    st.sampled_from([None, 1]),
    st.data(),
)
def test_no_gang_waits_in_a_circle(jobs, policy, most_lanes, data):
    gangs = node(3, rules=LaneRules(policy=policy, most_lanes=most_lanes))
    has_turn, now_s = set(), 0.0

    def hear(changes: list[object]) -> None:
        for each in changes:
            if isinstance(each, GangTurn):
                has_turn.add(each.job_id)

    for at, needs in enumerate(jobs):
        hear(gangs.arrive(f"j{at}", needs, now_s))
        hear(gangs.want(f"j{at}", now_s))
    left = {f"j{at}": 2 for at in range(len(jobs))}
    while left:
        assert has_turn, f"{sorted(left)} are left, and none has its turn"
        job_id = data.draw(st.sampled_from(sorted(has_turn)))
        has_turn.discard(job_id)
        now_s += 1.0
        left[job_id] -= 1
        if left[job_id]:
            hear(gangs.boundary(job_id, now_s))
        else:
            del left[job_id]
            hear(gangs.finish(job_id, now_s))
        holders = [(d, lane.holder) for d, device in gangs.lanes_of.items() for lane in device.lanes if lane.holder]
        for holder in has_turn:
            assert {d for d, who in holders if who == holder} == set(jobs[int(holder[1:])])
    assert all(device.used_bytes == 0 for device in gangs.lanes_of.values())
