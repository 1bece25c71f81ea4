"""How the time of a lane is divided, and what is told of it."""

from __future__ import annotations

import pytest

from penstock_executor.sharing.lane_coordinator import TurnClock, TurnLimits
from penstock_executor.sharing.lane_telemetry import TurnShares, lanes_view
from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import MemoryMeter, NodeLane, ShareRequest
from penstock_log import Device, MemoryNeed
from penstock_log.views import SharedRunView
from penstock_sharing.lanes import LaneRules, MemoryReading
from penstock_sharing.token import LaneClientId, LaneTokenView, SlotCounters

A, B = LaneClientId("a", 1, 0), LaneClientId("b", 1, 0)
LANE = NodeLane(0, 0)
SECOND = 1_000_000_000
MIB = 1 << 20


def page(
    holder: LaneClientId | None, *held_s: float, since_s: float = 0.0, begun: bool = True, turn: int = 0
) -> LaneTokenView:
    """A lane of two, and for how long each has had the turn in turns that have ended."""
    members = tuple(
        SlotCounters(who, iterations=0, busy=False, held_ns=int(s * SECOND), turns=0)
        for who, s in zip((A, B), held_s, strict=True)
    )
    return LaneTokenView(holder, int(since_s * SECOND), begun, busy=False, iterations=0, turn=turn, members=members)


def shares_of(*looks: tuple[float, LaneTokenView]) -> TurnShares:
    shares = TurnShares()
    for at_s, view in looks:
        shares.measure({LANE: view}, int(at_s * SECOND))
    return shares


def test_shares_count_turns_that_have_ended_and_the_one_that_lasts() -> None:
    shares = shares_of(
        (10.0, page(A, 4.0, 1.0, since_s=10.0, turn=7)), (11.0, page(B, 4.25, 1.25, since_s=10.5, turn=19))
    )
    assert shares.held == pytest.approx({A: 0.25 / 1.0, B: 0.75})
    assert shares.switches_per_s == {LANE: 12.0}


def test_of_those_who_left_in_their_turn_nothing_is_kept() -> None:
    shares = shares_of((10.0, page(A, 0.0, 0.0, since_s=9.0)))
    shares.measure({}, 11 * SECOND)
    assert (shares.held, shares.switches_per_s) == ({}, {})
    shares.measure({LANE: page(A, 9.0, 0.0, since_s=9.0)}, 12 * SECOND)
    assert shares.held == {A: 0.0, B: 0.0}


def test_a_turn_lasts_between_two_iterations_too() -> None:
    first, then = page(A, 0.0, 0.0, since_s=9.0), page(A, 0.0, 0.0, since_s=9.0)
    assert shares_of((10.0, first), (11.0, then)).held == {A: 1.0, B: 0.0}


def test_a_token_that_its_owner_has_not_taken_yet_counts_for_nobody() -> None:
    first, then = page(B, 1.0, 0.0, since_s=9.9), page(A, 1.0, 0.1, since_s=3.0, begun=False)
    assert shares_of((10.0, first), (11.0, then)).held == {A: 0.0, B: 0.0}


def test_what_moves_to_another_lane_begins_to_be_counted_there() -> None:
    shares = shares_of((10.0, page(None, 5.0, 0.0)), (11.0, page(None, 0.1, 0.0)))
    assert shares.held == {A: 0.0, B: 0.0}


def test_what_is_told_names_lanes_needs_caps_and_those_outside() -> None:
    devices = [Device(index=i, kind="fast", memory_bytes=1000, backend="emulated") for i in range(2)]
    lanes = NodeLanes("n1", devices, LaneRules(most_lanes=1))
    for job, need in (("a", MemoryNeed(10, 0, 100)), ("b", MemoryNeed(20, 5, 200)), ("big", MemoryNeed(900, 0, 50))):
        lanes.arrive(ShareRequest(job_id=job, epoch=1, ranks={0: (0,)}, need=need), 0.0)
    lanes.join(A, 0.0)
    lanes.asks(A, 0.0)
    parts = {1: [SharedRunView(job_id="part", epoch=1, state="fraction", cap_bytes=500)]}
    told = lanes_view(lanes.state, devices, shares_of((1.0, page(A, 0.0, 0.0))), parts, 2.0)
    assert told is not None
    first, second = told.devices
    assert (first.used_bytes, first.lanes[0].holder, first.lanes[0].size_bytes) == (235, "a", 200)
    assert [(m.job_id, m.state, m.cap_bytes) for m in first.lanes[0].members] == [
        ("a", "turn", 210),
        ("b", "idle", 225),
    ]
    assert [(m.job_id, m.state, bool(m.reason)) for m in first.outside] == [("big", "waits", True)]
    assert (second.used_bytes, second.outside) == (500, tuple(parts[1]))


def test_nothing_is_told_where_nothing_is_shared() -> None:
    devices = [Device(index=0, kind="fast", memory_bytes=1000, backend="emulated")]
    assert lanes_view(NodeLanes("n1", devices, LaneRules()).state, devices, TurnShares(), {}, 0.0) is None


# --- leases
def test_nobody_is_warned_while_nobody_waits_or_iterations_end() -> None:
    turns = TurnClock(TurnLimits(warn_s=1.0, take_s=5.0))
    assert [turns.look({A: (1, 0)}, float(s))[A] for s in range(10)] == ["go"] * 10
    assert [turns.look({A: (s, 2)}, 10.0 + s)[A] for s in range(10)] == ["go"] * 10


def test_after_a_warning_the_next_iteration_has_all_of_its_time() -> None:
    turns = TurnClock(TurnLimits(warn_s=1.0, take_s=5.0))
    said = [turns.look({A: (i, 1)}, t)[A] for t, i in ((0.0, 1), (2.0, 1), (3.0, 2), (3.5, 2), (4.0, 2))]
    assert said == ["go", "warn", "go", "go", "warn"]


# --- needs
def sample(kept: int, peak: int, framework: int = 0) -> MemoryReading:
    return MemoryReading(kept * MIB, peak * MIB, framework * MIB)


def test_a_need_is_news_when_it_is_known_and_when_it_has_changed_by_more_than_a_twentieth() -> None:
    meter = MemoryMeter()
    meter.see(0, sample(10, 500), 1)
    assert meter.take_unreported() is None, "the first iteration is not like the others"
    meter.see(0, sample(100, 300, 20), 2)
    assert meter.take_unreported() == MemoryNeed(100 * MIB, 20 * MIB, 200 * MIB)
    meter.see(0, sample(103, 305, 20), 3)
    assert meter.take_unreported() is None
    meter.see(0, sample(120, 320, 20), 4)
    assert meter.take_unreported() == MemoryNeed(120 * MIB, 20 * MIB, 202 * MIB)


def test_a_gang_needs_what_the_largest_of_its_processes_needs() -> None:
    meter = MemoryMeter()
    meter.see(0, sample(100, 300), 2)
    meter.see(1, sample(90, 400), 1)
    assert meter.need is None
    meter.see(1, sample(90, 400), 2)
    assert meter.need == MemoryNeed(100 * MIB, 0, 310 * MIB)


def test_a_process_that_is_heard_of_late_is_measured_by_what_it_says_first() -> None:
    meter = MemoryMeter()
    meter.see(0, sample(100, 300), 50)
    assert meter.need == MemoryNeed(100 * MIB, 0, 200 * MIB)


def test_one_that_was_looked_at_too_late_is_warned_before_anything_is_taken() -> None:
    turns = TurnClock(TurnLimits(warn_s=1.0, take_s=5.0))
    looked = [turns.look({A: (7, 1)}, now_s)[A] for now_s in (0.0, 9.0, 9.5)]
    assert looked == ["go", "warn", "take"]
    unwarned = TurnClock(TurnLimits(warn_s=5.0, take_s=5.0))
    assert [unwarned.look({A: (7, 1)}, now_s)[A] for now_s in (0.0, 9.0)] == ["go", "take"]
