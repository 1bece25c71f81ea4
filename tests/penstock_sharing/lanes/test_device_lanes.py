"""What a board decides, case by case; sizes are in units of one byte where no need of larger ones is."""

from __future__ import annotations

import pytest

from penstock_sharing.lanes import (
    DeviceLanes,
    LaneClosed,
    LaneEntered,
    LaneOpened,
    LaneRefused,
    LaneResized,
    LaneRules,
    MemberEvicted,
    MemberMoved,
    MemberParked,
    MemberUnparked,
    MemberWaits,
    MemoryNeed,
    TurnGranted,
)


def need(resident: int, ephemeral: int) -> MemoryNeed:
    return MemoryNeed(resident, 0, ephemeral)


def kinds(changes: list[object]) -> list[type]:
    return [type(change) for change in changes]


def device_of(capacity: int, **jobs: tuple[int, int]) -> DeviceLanes:
    """A board on which these jobs have arrived, one lane for each that fits."""
    device = DeviceLanes(capacity)
    for job_id, (resident, ephemeral) in jobs.items():
        device.arrive(job_id, need(resident, ephemeral), 0.0)
    return device


def members(device: DeviceLanes) -> list[tuple[str, ...]]:
    return [lane.members for lane in device.lanes]


def test_the_reserve_is_left_alone():
    device = DeviceLanes(100, reserve_bytes=20)
    assert device.free_bytes == 80
    assert kinds(device.arrive("a", need(40, 41), 0.0)) == [LaneRefused]
    assert kinds(device.arrive("a", need(40, 40), 0.0)) == [LaneOpened, LaneEntered]
    assert (device.used_bytes, device.free_bytes) == (80, 0)


def test_a_job_gets_a_lane_of_its_own_where_there_is_room():
    assert members(device_of(100, a=(10, 30), b=(10, 30))) == [("a",), ("b",)]


def test_else_it_joins_the_smallest_lane_that_is_large_enough():
    device = device_of(100, a=(10, 20), b=(10, 35), c=(5, 21), d=(5, 16))
    assert members(device) == [("a", "d"), ("b", "c")]


def test_else_it_grows_the_smallest_lane_that_can_be_grown():
    device = device_of(100, a=(10, 20), b=(10, 35), c=(5, 38))
    assert members(device) == [("a", "c"), ("b",)]
    assert [lane.size_bytes for lane in device.lanes] == [38, 35]


def test_a_lane_with_a_turn_under_way_grows_at_the_boundary():
    device = device_of(100, a=(10, 20), b=(10, 35))
    device.want("a", 1.0)
    assert kinds(device.arrive("c", need(5, 38), 1.0)) == [LaneEntered]
    assert (device.lanes[0].size_bytes, device.lanes[0].due, device.free_bytes) == (20, True, 2)
    assert device.want("c", 1.0) == []
    assert device.boundary("a", 2.0) == [LaneResized(0, 38), TurnGranted("c", 0)]


def test_a_lane_shrinks_at_the_boundary_after_its_largest_member_has_left():
    device = device_of(100, a=(10, 30), b=(5, 60))
    assert members(device) == [("a", "b")]
    device.want("a", 0.0)
    assert device.finish("b", 1.0) == []
    assert device.free_bytes == 30
    assert device.boundary("a", 2.0) == [LaneResized(0, 30), TurnGranted("a", 0)]
    assert device.free_bytes == 60


def test_lanes_close_where_a_job_would_fit_if_there_were_fewer():
    device = device_of(100, a=(10, 35), b=(10, 35))
    assert device.arrive("c", need(20, 30), 0.0) == [MemberMoved("b", 0), LaneClosed(1), LaneEntered("c", 0)]


def test_a_lane_that_closes_waits_for_the_turn_that_is_under_way():
    device = device_of(100, a=(10, 35), b=(10, 35))
    device.want("a", 0.0)
    device.want("b", 0.0)
    (waits,) = device.arrive("c", need(20, 30), 1.0)
    assert waits == MemberWaits("c", "a lane closes at its next boundary; then it is looked at again")
    closing = next(lane for lane in device.lanes if lane.due)
    (holder,) = closing.members
    changes = device.boundary(holder, 2.0)
    assert kinds(changes) == [MemberMoved, LaneClosed, LaneEntered]
    assert members(device) == [(*({"a", "b"} - {holder}), holder, "c")]


def test_a_lane_stays_open_where_nobody_waits_for_its_closing_any_more():
    device = device_of(100, a=(10, 35), b=(10, 35))
    device.want("a", 0.0)
    device.want("b", 0.0)
    device.arrive("c", need(20, 30), 1.0)
    assert [lane.due for lane in device.lanes] == [False, True]
    device.finish("c", 2.0)
    assert [lane.due for lane in device.lanes] == [False, False]
    assert device.boundary("b", 3.0) == [TurnGranted("b", 1)]


def test_nobody_takes_the_room_that_a_closing_lane_makes_for_another():
    device = device_of(100, a=(10, 35), b=(5, 35))
    device.want("a", 0.0)
    device.want("b", 0.0)
    device.arrive("c", need(30, 30), 1.0)
    assert kinds(device.arrive("tiny", need(1, 1), 1.0)) == [MemberWaits]
    assert device.waiting == ("c", "tiny")


def test_without_merging_a_job_waits_until_somebody_leaves():
    device = DeviceLanes(100, rules=LaneRules(merges=False))
    device.arrive("a", need(10, 35), 0.0)
    device.arrive("b", need(10, 35), 0.0)
    assert kinds(device.arrive("c", need(20, 30), 0.0)) == [MemberWaits]
    assert kinds(device.finish("a", 1.0)) == [LaneClosed, LaneOpened, LaneEntered]


def test_a_waiting_job_is_overtaken_so_often_and_no_more():
    device = DeviceLanes(100, rules=LaneRules(overtakes=2))
    device.arrive("a", need(40, 20), 0.0)
    device.arrive("large", need(60, 20), 0.0)
    for job_id in ("b", "c", "d"):
        device.arrive(job_id, need(5, 10), 0.0)
    assert device.waiting == ("large", "d")
    assert "large stands before it, has been overtaken 2 times" in device.why("d")
    device.finish("a", 1.0)
    assert device.waiting == ()


def test_what_passed_a_job_before_it_entered_does_not_count_when_it_is_parked():
    device = DeviceLanes(100, rules=LaneRules(overtakes=1))
    device.arrive("a", need(60, 20), 0.0)
    device.arrive("b", need(30, 20), 0.0)
    device.arrive("c", need(10, 5), 0.0)
    device.finish("a", 1.0)
    device.measured("b", need(30, 65), 2.0)
    assert device.parked == ("b",)
    assert kinds(device.arrive("d", need(1, 1), 3.0))[:2] == [LaneOpened, LaneEntered]
    assert kinds(device.arrive("e", need(1, 1), 4.0)) == [MemberWaits]


def test_a_job_that_turns_out_to_need_less_makes_room():
    device = device_of(100, a=(60, 30), b=(20, 10))
    assert device.waiting == ("b",)
    assert kinds(device.measured("a", need(45, 30), 1.0)) == [LaneEntered]


def test_one_that_needs_a_larger_lane_gets_it_at_its_boundary():
    device = device_of(100, a=(10, 30))
    device.want("a", 0.0)
    assert device.boundary("a", 1.0, need=need(10, 50)) == [LaneResized(0, 50), TurnGranted("a", 0)]
    assert device.cap_bytes("a") == 60


def test_one_that_needs_more_than_its_lane_can_have_moves_to_one_that_is_large_enough():
    device = device_of(100, a=(10, 20), b=(10, 50))
    device.want("a", 0.0)
    device.want("b", 0.0)
    assert device.boundary("a", 1.0, need=need(10, 45)) == [MemberMoved("a", 1), LaneClosed(0)]
    assert device.boundary("b", 2.0) == [TurnGranted("a", 1)]


def test_what_one_gives_up_by_moving_counts_as_free_for_it():
    device = device_of(90, a=(10, 20), b=(10, 50))
    device.want("a", 0.0)
    assert device.boundary("a", 1.0, need=need(15, 45)) == [MemberMoved("a", 1), LaneClosed(0), TurnGranted("a", 1)]


def test_one_that_exceeds_what_there_is_is_parked_and_its_neighbours_go_on():
    device = device_of(100, a=(10, 20), b=(30, 20))
    device.want("b", 0.0)
    device.want("a", 0.0)
    changes = device.boundary("b", 1.0, need=need(30, 65))
    assert kinds(changes) == [MemberParked, LaneClosed]
    assert device.parked == ("b",)
    assert device.cap_bytes("b") == 30
    assert device.boundary("a", 2.0) == [TurnGranted("a", 0)]
    assert kinds(device.finish("a", 3.0)) == [LaneClosed, LaneOpened, MemberUnparked, TurnGranted]


def test_the_parked_come_back_oldest_first_and_before_those_that_wait():
    device = device_of(100, a=(10, 10), b=(10, 10), c=(10, 10))
    for job_id in ("b", "c"):
        device.measured(job_id, need(10, 75), 1.0)
    device.arrive("w", need(0, 75), 1.0)
    assert (device.parked, device.waiting) == (("b", "c"), ("w",))
    changes = device.finish("a", 2.0)
    assert [type(c) for c in changes if isinstance(c, MemberUnparked | LaneEntered)] == [
        MemberUnparked,
        MemberUnparked,
        LaneEntered,
    ]
    assert members(device) == [("b", "c", "w")]


def test_one_that_leaks_has_to_leave_and_until_then_nobody_runs_in_what_it_has_taken():
    device = device_of(100, a=(10, 20), b=(30, 40))
    device.want("a", 0.0)
    device.want("b", 0.0)
    changes = device.boundary("b", 1.0, need=need(85, 5))
    assert kinds(changes) == [MemberEvicted, LaneClosed]
    assert device.leaving == ("b",)
    assert device.boundary("a", 2.0) == []
    assert device.finish("b", 3.0) == [TurnGranted("a", 0)]


def test_where_caps_are_not_kept_lanes_take_turns_with_each_other_until_the_one_that_leaks_is_gone():
    device = device_of(100, a=(5, 20), b=(5, 20), c=(5, 40))
    for job_id in ("a", "b", "c"):
        device.want(job_id, 0.0)
    assert kinds(device.boundary("c", 1.0, need=need(65, 1))) == [MemberEvicted, LaneClosed]
    assert device.boundary("a", 2.0) == []
    assert device.boundary("b", 3.0) == [TurnGranted("a", 0)]
    assert device.boundary("a", 4.0, wants=False) == [TurnGranted("b", 1)]
    device.want("a", 5.0)
    assert device.finish("c", 6.0) == [TurnGranted("a", 0)]


def test_who_is_innocent_of_a_leak_does_not_have_to_leave_for_it():
    device = device_of(100, a=(10, 20), b=(30, 40))
    device.want("b", 0.0)
    device.boundary("b", 1.0, need=need(85, 5))
    assert device.measured("a", need(10, 19), 2.0) == [LaneResized(0, 19)]
    assert kinds(device.measured("a", need(11, 19), 3.0)) == [MemberParked, LaneClosed]
    assert device.leaving == ("b",)
    assert kinds(device.finish("b", 4.0)) == [LaneOpened, MemberUnparked]


def test_who_keeps_more_than_a_leaver_gives_back_has_to_leave_as_well():
    device = device_of(100, a=(10, 20), b=(30, 20), c=(10, 20))
    device.want("b", 0.0)
    device.boundary("b", 1.0, need=need(70, 5))
    assert device.measured("a", need(71, 20), 2.0)[0] == MemberEvicted(
        "a", "it keeps 0.0 MiB more between turns; others lack 0.0 MiB of that"
    )
    assert device.leaving == ("b", "a")


def test_one_that_could_never_run_again_has_to_leave():
    device = device_of(100, a=(10, 20))
    device.want("a", 0.0)
    assert kinds(device.boundary("a", 1.0, need=need(10, 95))) == [MemberEvicted, LaneClosed]


def test_where_all_are_parked_the_last_one_leaves_so_that_the_first_can_go_on():
    device = device_of(100, a=(40, 10), b=(40, 10))
    device.measured("b", need(40, 30), 1.0)
    assert device.parked == ("b",)
    assert kinds(device.measured("a", need(40, 50), 2.0)) == [MemberEvicted, LaneClosed]
    assert (device.parked, device.leaving) == (("b",), ("a",))
    assert kinds(device.finish("a", 3.0)) == [LaneOpened, MemberUnparked]


def test_the_last_member_leaves_a_lane_before_the_lane_closes():
    device = device_of(100, a=(40, 40))
    device.gained(2, 1.0, 0.0)
    device.arrive("b", need(20, 20), 0.0)
    device.want("a", 0.0)
    device.want("b", 0.0)
    assert kinds(device.boundary("a", 1.0, need=need(40, 55))) == [MemberParked, LaneResized, TurnGranted]
    assert device.boundary("b", 2.0, need=need(20, 70)) == [
        MemberEvicted("b", "it is parked, and nobody is left whose end would make room"),
        LaneClosed(0),
    ]
    assert (device.parked, device.leaving) == (("a",), ("b",))


def test_one_more_lane_that_gains_too_little_closes_and_is_not_tried_again_for_a_while():
    device = device_of(100, a=(10, 20), b=(10, 20))
    assert device.gained(2, 1.4, 0.0) == []
    assert device.gained(2, 1.04, 1.0) == [MemberMoved("a", 1), LaneClosed(0)]
    assert kinds(device.arrive("c", need(10, 20), 100.0)) == [LaneEntered]
    device.arrive("d", need(1, 1), 601.0)
    assert len(device.lanes) == 4


def test_a_board_of_one_lane_shares_time_alone():
    device = DeviceLanes(100, rules=LaneRules(most_lanes=1))
    for job_id in ("a", "b"):
        device.arrive(job_id, need(10, 20), 0.0)
    assert members(device) == [("a", "b")]


def test_members_spread_again_when_there_is_room():
    device = device_of(100, a=(10, 30), b=(10, 30), c=(40, 10))
    assert members(device) == [("a", "b"), ("c",)]
    changes = device.finish("c", 1.0)
    assert sorted(members(device)) == [("a",), ("b",)]
    assert kinds(changes) == [LaneClosed, LaneOpened, MemberMoved]


def test_a_holder_is_not_moved_to_spread():
    device = device_of(100, a=(10, 30), b=(10, 30), c=(40, 10))
    device.want("b", 0.5)
    assert [change.job_id for change in device.finish("c", 1.0) if isinstance(change, MemberMoved)] == ["a"]


def test_a_job_that_dies_in_its_turn_gives_the_turn_on():
    device = device_of(60, a=(10, 30), b=(10, 30))
    device.want("a", 0.0)
    device.want("b", 0.0)
    assert device.finish("a", 1.0) == [TurnGranted("b", 0)]


def test_a_turn_counts_as_service_and_shortens_what_is_left():
    device = DeviceLanes(60, rules=LaneRules(policy="srtf"))
    device.arrive("a", need(10, 30), 0.0, remaining_s=10.0)
    device.arrive("b", need(10, 30), 0.0, remaining_s=7.0)
    device.want("a", 0.0)
    device.want("b", 0.0)
    assert device.boundary("a", 2.0) == [TurnGranted("b", 0)]
    assert device.boundary("b", 3.0, remaining_s=9.0) == [TurnGranted("a", 0)]


def test_one_that_asked_while_it_waited_gets_its_turn_when_it_enters():
    device = device_of(60, a=(40, 20), b=(10, 20))
    device.want("b", 0.0)
    assert device.waiting == ("b",)
    assert device.finish("a", 1.0) == [LaneClosed(0), LaneOpened(1, 20), LaneEntered("b", 1), TurnGranted("b", 1)]


def test_a_lane_is_due_only_while_something_waits_for_its_boundary():
    device = device_of(60, a=(10, 30), b=(10, 30))
    device.want("a", 0.0)
    assert [lane.due for lane in device.lanes] == [False]
    device.want("b", 0.0)
    assert [lane.due for lane in device.lanes] == [True]


def test_reasons_name_sizes():
    device = DeviceLanes(1000 * 2**20)
    device.arrive("a", need(600 * 2**20, 300 * 2**20), 0.0)
    (waits,) = device.arrive("b", need(500 * 2**20, 2**20), 0.0)
    assert waits.reason == "it takes 500.0 MiB and a lane of 1.0 MiB; 100.0 MiB are free beside the lanes"
    assert device.why("a") == ""


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda device: device.arrive("a", need(1, 1), 0.0), "a is on the device already"),
        (lambda device: device.boundary("a", 0.0), "not the turn of job a"),
        (lambda device: device.finish("nobody", 0.0), "nobody is not on the device"),
        (lambda device: device.gained(1, 1.0, 0.0), "expected 2 or more"),
    ],
)
def test_what_cannot_have_happened_is_an_error(act, message):
    with pytest.raises(ValueError, match=message):
        act(device_of(60, a=(10, 30)))


@pytest.mark.parametrize("wrong", [{"policy": "lottery"}, {"overtakes": -1}, {"most_lanes": 0}, {"patience_s": -1.0}])
def test_rules_out_of_range_are_an_error(wrong):
    with pytest.raises(ValueError, match="expected"):
        LaneRules(**wrong)


def test_a_reserve_beyond_the_capacity_is_an_error():
    with pytest.raises(ValueError, match="reserve 11"):
        DeviceLanes(10, 11)


def test_the_worked_example_of_the_documentation():
    device = DeviceLanes(16, reserve_bytes=1)
    seen = []

    def look() -> None:
        lanes = "; ".join(f"{lane.size_bytes}: {', '.join(sorted(lane.members))}" for lane in device.lanes)
        seen.append((lanes, device.used_bytes))

    for job_id, (resident, ephemeral) in {"a": (1, 4), "b": (1, 3), "c": (2, 2), "d": (1, 1), "e": (1, 5)}.items():
        device.arrive(job_id, need(resident, ephemeral), 0.0)
        look()
    assert kinds(device.arrive("f", need(6, 2), 0.0)) == [MemberWaits]
    for happens in (
        lambda: device.finish("c", 1.0),
        lambda: device.finish("d", 2.0),
        lambda: device.measured("e", need(1, 7), 3.0),
        lambda: device.finish("f", 4.0),
    ):
        happens()
        look()
    assert seen == [
        ("4: a", 5),
        ("4: a; 3: b", 9),
        ("4: a; 3: b; 2: c", 13),
        ("4: a; 3: b; 2: c; 1: d", 15),
        ("5: a, e; 3: b, c; 1: d", 15),
        ("5: a, b, d, e, f", 15),
        ("5: a, b, e, f", 14),
        ("4: a, b, f", 13),
        ("4: a, b; 7: e", 14),
    ]
