"""What running side by side gains, and that lanes which gain nothing close."""

from __future__ import annotations

import pytest

from penstock_executor.sharing.lane_telemetry import LEAST_LOOKS, ParallelGain
from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import NodeLane, ShareRequest
from penstock_log import Device, MemoryNeed
from penstock_sharing.lanes import LaneRules
from penstock_sharing.token import LaneClientId, LaneTokenView, SlotCounters


class Pages:
    """Two lanes of one device, as they count over time."""

    def __init__(self) -> None:
        self.beside = ParallelGain()
        self.counted: dict[tuple[int, str], list[int]] = {}

    def look(self, *lanes: dict[str, float], looks: int = LEAST_LOOKS + 1) -> list[tuple[int, int, float]]:
        """Let each job of each lane do ten iterations of so many seconds in each look; return all that is found."""
        found = []
        self.counted = {key: self.counted.get(key, [0, 0]) for key in self._keys(lanes)}
        for _ in range(looks):
            found += self.beside.look({NodeLane(0, n): self._view(n, jobs) for n, jobs in enumerate(lanes)})
            for (n, job), counted in self.counted.items():
                counted[0] += 10
                counted[1] += int(10 * lanes[n][job] * 1e9)
        return found

    def _keys(self, lanes: tuple[dict[str, float], ...]) -> list[tuple[int, str]]:
        return [(n, job) for n, jobs in enumerate(lanes) for job in jobs]

    def _view(self, lane: int, jobs: dict[str, float]) -> LaneTokenView:
        members = tuple(
            SlotCounters(LaneClientId(job, 1, 0), self.counted[lane, job][0], False, self.counted[lane, job][1], 0)
            for job in jobs
        )
        return LaneTokenView(None, 0, False, False, 0, 0, members)


@pytest.mark.parametrize(("beside_s", "ratio"), [(0.010, 2.0), (0.020, 1.0), (0.016, 1.25)])
def test_two_lanes_are_compared_with_one_by_the_job_that_was_in_both(beside_s: float, ratio: float) -> None:
    pages = Pages()
    assert pages.look({"a": 0.010}) == []
    ((device, lanes, found),) = pages.look({"a": beside_s}, {"b": 0.5}, looks=3 * LEAST_LOOKS)
    assert (device, lanes, found) == (0, 2, pytest.approx(ratio))


def test_nothing_is_compared_before_it_was_seen_often_enough() -> None:
    pages = Pages()
    pages.look({"a": 0.010})
    assert pages.look({"a": 0.020}, {"b": 0.5}, looks=LEAST_LOOKS) == []


def test_a_lane_in_which_nobody_works_does_not_count() -> None:
    pages = Pages()
    pages.look({"a": 0.010})
    assert pages.look({"a": 0.010}, {"idle": 0.0}, looks=3 * LEAST_LOOKS) == []


def test_a_job_that_is_over_is_compared_with_nothing() -> None:
    pages = Pages()
    pages.look({"a": 0.010})
    pages.beside.forget("a")
    assert pages.look({"a": 0.010}, {"b": 0.5}, looks=3 * LEAST_LOOKS) == []


def test_lanes_that_gain_nothing_become_one() -> None:
    lanes = NodeLanes("n1", [Device(index=0, kind="fast", memory_bytes=1000, backend="emulated")], LaneRules())
    for job in ("a", "b"):
        lanes.arrive(ShareRequest(job_id=job, epoch=1, ranks={0: (0,)}, need=MemoryNeed(10, 0, 100)), 0.0)
    assert len(lanes.state.lanes_of[0].lanes) == 2
    for job in ("a", "b"):
        assert lanes.join(LaneClientId(job, 1, 0), 0.5)
    lanes.asks(LaneClientId("a", 1, 0), 0.5)
    lanes.gained(0, 2, 1.02, 1.0)
    assert lanes.desired_turn(NodeLane(0, 0)).recall, "its lane closes at its next boundary"
    lanes.passed(NodeLane(0, 0), LaneClientId("a", 1, 0), None, 2.0)
    (lane,) = lanes.state.lanes_of[0].lanes
    assert set(lane.members) == {"a", "b"}
    moved = [fact for fact in lanes.take().facts if fact.at_s == 2.0]
    assert [getattr(fact, "change", "") for fact in moved] == ["moved"]
    lanes.asks(LaneClientId("b", 1, 0), 3.0)
    lanes.asks(LaneClientId("a", 1, 0), 3.0)
    desired = lanes.desired_turn(NodeLane(0, 1))
    assert (desired.holder, desired.after) == (LaneClientId("b", 1, 0), LaneClientId("a", 1, 0))
