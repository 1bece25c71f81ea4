"""Who comes after the holder of a turn, said ahead of time, and turns that are handed on without asking."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_sharing.lanes import (
    TURN_POLICIES,
    DeviceChange,
    DeviceLanes,
    GangComplete,
    GangTurn,
    LaneGangs,
    LaneResized,
    LaneRules,
    MemberParked,
    MemoryNeed,
    TurnForecast,
    TurnGranted,
)
from sweeps import examples

ONE_LANE = {"most_lanes": 1}


def device_of(policy: str, *jobs: str, patience_s: float | None = None, **of_jobs: dict[str, float]) -> DeviceLanes:
    """A board with one lane in which all jobs ask; the first has its turn since 0."""
    device = DeviceLanes(1000, 0, LaneRules(policy=policy, patience_s=patience_s, **ONE_LANE))  # type: ignore[arg-type]
    for job_id in jobs:
        device.arrive(job_id, MemoryNeed(1, 0, 10), 0.0, **of_jobs.get(job_id, {}))
    for job_id in jobs:
        device.want(job_id, 0.0)
    return device


def granted(changes: list[object]) -> list[str]:
    return [change.job_id for change in changes if isinstance(change, TurnGranted)]


@given(
    policy=st.sampled_from(sorted(TURN_POLICIES)),
    patience_s=st.sampled_from([None, 3.0]),
    longer=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=1, max_size=25),
    priorities=st.lists(st.integers(0, 1), min_size=3, max_size=3),
)
@settings(max_examples=examples(60), deadline=None)
@example(policy="fair", patience_s=3.0, longer=[2.0, 2.0, 0.0, 0.0, 0.0], priorities=[0, 0, 0])
def test_a_turn_that_is_handed_on_as_said_goes_to_whom_the_board_would_have_given_it(
    policy: str, patience_s: float | None, longer: list[float], priorities: list[int]
) -> None:
    more = {job: {"priority": priority, "remaining_s": 9.0} for job, priority in zip("abc", priorities, strict=True)}
    device, now_s, holder = device_of(policy, "a", "b", "c", patience_s=patience_s, **more), 0.0, "a"
    for turn, extra_s in enumerate(longer):
        ahead = device.ahead(holder, now_s)
        assert ahead is not None
        if math.isinf(ahead.lead_s):
            assert granted(deepcopy(device).boundary(holder, now_s + 1.0)) == [holder]
            return
        if ahead.lead_s > 0.1:  # until then, the board would have it go on
            assert granted(deepcopy(device).boundary(holder, now_s + 0.9 * ahead.lead_s)) == [holder]
        assert granted(deepcopy(device).boundary(holder, now_s + ahead.lead_s + 1e-7)) == [ahead.job_id]
        now_s += ahead.lead_s + extra_s + 0.01 * math.sqrt(turn + 2)  # sums that no patience meets to the moment
        assert device.passed(holder, ahead.job_id, now_s, wants=True) == []
        holder = ahead.job_id


def test_under_fair_a_job_of_short_iterations_goes_on_until_it_is_level() -> None:
    device = device_of("fair", "short", "long")
    assert device.ahead("short", 0.0) == TurnForecast("long", 0.0)
    device.passed("short", "long", 1.0, wants=True)
    device.passed("long", "short", 4.0, wants=True)
    assert device.ahead("short", 4.0) == TurnForecast("long", 2.0)


def test_nobody_is_ahead_where_nobody_asks_or_the_lane_is_to_change() -> None:
    device = DeviceLanes(100, 0, LaneRules(**ONE_LANE))  # type: ignore[arg-type]
    device.arrive("a", MemoryNeed(10, 0, 40), 0.0)
    device.arrive("b", MemoryNeed(10, 0, 30), 0.0)
    device.want("a", 0.0)
    assert device.ahead("a", 0.0) is None
    device.want("b", 1.0)
    assert device.ahead("a", 1.0) == TurnForecast("b", 0.0)
    device.measured("b", MemoryNeed(10, 0, 50), 2.0)
    assert device.ahead("a", 2.0) is None
    assert LaneResized(lane=0, size_bytes=50) in device.boundary("a", 3.0)


def test_a_turn_handed_on_counts_as_service_and_changes_nothing_else() -> None:
    device = device_of("las", "a", "b")
    device.passed("a", "b", 3.0)
    assert [lane.holder for lane in device.lanes] == ["b"]
    assert granted(device.boundary("b", 4.0, wants=True)) == ["b"], "a does not ask"
    device.want("a", 4.0)
    assert granted(device.boundary("b", 5.0)) == ["b"], "two seconds are less than three"


def test_who_is_hurried_is_next_under_every_policy() -> None:
    for policy in TURN_POLICIES:
        device = device_of(policy, "a", "b", "c", patience_s=0.0, a={"priority": 5}, b={"priority": 4})
        device.hurry("c")
        assert device.ahead("a", 1.0) == TurnForecast("c", 0.0), policy
        assert granted(device.boundary("a", 2.0)) == ["c"], policy
        device.want("a", 2.0)
        assert granted(device.boundary("c", 3.0)) == ["c"], f"{policy}: it is still to stop"


def test_a_turn_cannot_be_handed_to_somebody_who_is_not_of_the_lane() -> None:
    device = device_of("fair", "a", "b")
    with pytest.raises(ValueError, match="cannot hand its turn to a; expected the holder"):
        device.passed("b", "a", 1.0)


def test_a_gang_of_one_hands_its_turn_on_and_a_larger_one_does_not() -> None:
    gangs = LaneGangs({0: DeviceLanes(1000, 0, LaneRules(**ONE_LANE)), 1: DeviceLanes(1000)})  # type: ignore[arg-type]
    for job_id in ("a", "b"):
        assert GangComplete(job_id) in gangs.arrive(job_id, {0: MemoryNeed(1, 0, 10)}, 0.0)
        gangs.want(job_id, 0.0)
    assert gangs.passed("a", "b", 1.0, wants=True) == []
    assert GangTurn("a") in gangs.boundary("b", 2.0)
    gangs.arrive("both", {0: MemoryNeed(1, 0, 10), 1: MemoryNeed(1, 0, 10)}, 3.0)
    with pytest.raises(ValueError, match="two jobs on the same single device"):
        gangs.passed("a", "both", 4.0)


def test_a_gang_between_its_turns_may_be_parked_by_what_it_turns_out_to_need() -> None:
    gangs = LaneGangs({0: DeviceLanes(100), 1: DeviceLanes(100)})
    gangs.arrive("a", {0: MemoryNeed(10, 0, 20), 1: MemoryNeed(10, 0, 20)}, 0.0)
    gangs.arrive("b", {0: MemoryNeed(40, 0, 20)}, 0.0)
    gangs.want("b", 0.0)
    changes = gangs.measured("a", {0: MemoryNeed(10, 0, 60)}, 1.0)
    assert any(isinstance(on, DeviceChange) and isinstance(on.change, MemberParked) for on in changes)
    assert not any(isinstance(one, GangTurn) for one in gangs.want("a", 2.0))
