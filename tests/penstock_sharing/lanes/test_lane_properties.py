"""What must hold on a device whatever happens on it: random arrivals, turns, ends, crashes and wrong estimates."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock_sharing.lanes import (
    TURN_POLICIES,
    Change,
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
from sweeps import examples

CAPACITY, RESERVE = 110, 10
USABLE = CAPACITY - RESERVE

sizes = st.integers(0, 40)
needs = st.builds(MemoryNeed, sizes, st.integers(0, 5), st.integers(0, 60))
rules_of_the_device = st.builds(
    LaneRules,
    policy=st.sampled_from(sorted(TURN_POLICIES)),
    patience_s=st.sampled_from([None, 5.0]),
    overtakes=st.integers(0, 3),
    most_lanes=st.sampled_from([None, 1, 2]),
    merges=st.booleans(),
    spreads=st.booleans(),
)


class Device(RuleBasedStateMachine):
    """Processes on a device, which do as they like within their caps; the board is asked and obeyed."""

    @initialize(rules=rules_of_the_device)
    def start(self, rules: LaneRules) -> None:
        self.rules = rules
        self.now_s = 0.0
        self.device = DeviceLanes(CAPACITY, RESERVE, rules)
        self.resident: dict[str, int] = {}  # what each process really holds between its turns
        self.in_turn: dict[str, int] = {}  # what each one that has the turn really takes beside
        self.arrived: list[str] = []
        self.overtaken: dict[str, int] = {}
        self.lanes: dict[int, int] = {}
        self.lane_of: dict[str, int] = {}

    def hear(self, changes: list[Change]) -> None:
        """Carry out what the board says, in order, as processes would."""
        for change in changes:
            match change:
                case LaneOpened() | LaneResized() | LaneClosed():
                    self.hear_of_a_lane(change)
                case TurnGranted(job_id, lane):
                    self.give_turn(job_id, lane)
                case _:
                    self.hear_of_a_job(change)

    def hear_of_a_lane(self, change: LaneOpened | LaneResized | LaneClosed) -> None:
        match change:
            case LaneOpened(lane, size):
                assert lane not in self.lanes
                self.lanes[lane] = size
            case LaneResized(lane, size):
                assert not any(self.lane_of[j] == lane for j in self.in_turn), "a lane is resized under its holder"
                self.lanes[lane] = size
            case LaneClosed(lane):
                assert lane not in self.lane_of.values()
                del self.lanes[lane]

    def hear_of_a_job(self, change: Change) -> None:
        assert change.job_id not in self.in_turn, "a job is moved or stopped during its turn"
        match change:
            case LaneEntered(job_id, lane):
                assert job_id not in self.resident
                self.resident[job_id] = self.device.need(job_id).resident_bytes
                self.lane_of[job_id] = lane
                self.overtaken.pop(job_id, None)
                for other in self.overtaken:
                    self.overtaken[other] += self.arrived.index(other) < self.arrived.index(job_id)
            case MemberMoved(job_id, lane) | MemberUnparked(job_id, lane):
                self.lane_of[job_id] = lane
            case MemberParked(job_id, reason) | MemberEvicted(job_id, reason):
                assert reason
                self.lane_of.pop(job_id, None)
            case MemberWaits(job_id, reason):
                assert reason
                self.overtaken[job_id] = 0
            case LaneRefused(job_id, _):
                self.overtaken.pop(job_id, None)

    def give_turn(self, job_id: str, lane: int) -> None:
        assert self.lane_of[job_id] == lane
        assert not any(self.lane_of[j] == lane for j in self.in_turn), "two have the turn of a lane"
        assert self.device.need(job_id).ephemeral_bytes <= self.lanes[lane]
        self.in_turn[job_id] = self.lanes[lane]  # the worst that its cap allows
        assert sum(self.resident.values()) + sum(self.in_turn.values()) <= USABLE

    def holders(self) -> list[str]:
        return sorted(self.in_turn)

    @rule(need=needs, remaining_s=st.floats(0.0, 9.0), priority=st.integers(0, 2), ready=st.booleans())
    def arrive(self, need: MemoryNeed, remaining_s: float, priority: int, ready: bool) -> None:
        job_id = f"j{len(self.arrived)}"
        self.arrived.append(job_id)
        self.hear(self.device.arrive(job_id, need, self.now_s, remaining_s=remaining_s, priority=priority))
        assert (need.alone_bytes > USABLE) == (job_id not in self.device)
        if ready and job_id in self.device:
            self.hear(self.device.want(job_id, self.now_s))

    @rule(data=st.data())
    @precondition(lambda self: any(j in self.device for j in self.arrived))
    def want(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from([j for j in self.arrived if j in self.device]))
        if job_id not in self.in_turn:
            self.hear(self.device.want(job_id, self.now_s))

    @rule(data=st.data(), wants=st.booleans(), took_s=st.floats(0.0, 3.0))
    @precondition(lambda self: self.in_turn)
    def boundary(self, data: st.DataObject, wants: bool, took_s: float) -> None:
        job_id = data.draw(st.sampled_from(self.holders()))
        self.now_s += took_s
        del self.in_turn[job_id]
        self.hear(self.device.boundary(job_id, self.now_s, wants=wants))

    @rule(data=st.data())
    @precondition(lambda self: self.in_turn)
    def boundary_of_one_that_needs_something_else(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.holders()))
        cap_bytes = self.device.cap_bytes(job_id)
        resident_bytes = data.draw(st.integers(0, cap_bytes))  # leaking is bounded by the cap, wishing is not
        need = MemoryNeed(resident_bytes, 0, data.draw(st.integers(0, 70)))
        del self.in_turn[job_id]
        self.resident[job_id] = resident_bytes
        self.hear(self.device.boundary(job_id, self.now_s, need=need))

    @rule(data=st.data(), need=needs)
    @precondition(lambda self: self.device.waiting)
    def one_that_waits_is_estimated_anew(self, data: st.DataObject, need: MemoryNeed) -> None:
        self.hear(self.device.measured(data.draw(st.sampled_from(self.device.waiting)), need, self.now_s))

    @rule(data=st.data())
    @precondition(lambda self: any(j in self.device for j in self.arrived))
    def finish_or_crash(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from([j for j in self.arrived if j in self.device]))
        for known in (self.resident, self.in_turn, self.lane_of, self.overtaken):
            known.pop(job_id, None)
        self.hear(self.device.finish(job_id, self.now_s))

    @rule(lanes=st.integers(2, 4), ratio=st.floats(0.8, 1.5))
    def side_by_side_is_measured(self, lanes: int, ratio: float) -> None:
        self.hear(self.device.gained(lanes, ratio, self.now_s))

    @invariant()
    def memory_is_never_over_capacity(self) -> None:
        assert sum(self.resident.values()) + sum(self.in_turn.values()) <= USABLE
        lanes = [max(self.device.need(j).ephemeral_bytes for j in v.members) for v in self.device.lanes]
        assert self.device.leaving or sum(self.resident.values()) + sum(lanes) <= USABLE

    @invariant()
    def the_books_are_those_of_the_processes(self) -> None:
        assert {v.lane: v.size_bytes for v in self.device.lanes} == self.lanes
        assert {j: v.lane for v in self.device.lanes for j in v.members} == self.lane_of
        assert sorted(v.holder for v in self.device.lanes if v.holder) == self.holders()
        assert self.device.free_bytes == USABLE - sum(self.resident.values()) - sum(
            max(v.size_bytes, *(self.device.need(j).ephemeral_bytes for j in v.members)) for v in self.device.lanes
        )

    @invariant()
    def whoever_does_not_run_can_expect_to(self) -> None:
        for job_id in (*self.device.waiting, *self.device.parked):
            assert self.device.why(job_id)
            assert self.device.lanes or self.device.leaving, "all wait, and nobody's end will change that"

    @invariant()
    def no_more_than_so_many_pass_one_that_waits(self) -> None:
        assert all(count <= self.rules.overtakes for count in self.overtaken.values())

    def teardown(self) -> None:
        """When nothing new arrives and all are ready, everybody gets turns, or has to leave: none is stuck."""
        if not hasattr(self, "device"):
            return
        for job_id in self.arrived:
            if job_id in self.device and job_id not in self.in_turn:
                self.hear(self.device.want(job_id, self.now_s))
        while ends := (*self.device.leaving, *self.holders()):
            self.now_s += 10.0
            for known in (self.resident, self.in_turn, self.lane_of, self.overtaken):
                known.pop(ends[0], None)
            self.hear(self.device.finish(ends[0], self.now_s))
        assert not [job_id for job_id in self.arrived if job_id in self.device]
        assert self.device.used_bytes == 0


TestDevice = Device.TestCase
TestDevice.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
