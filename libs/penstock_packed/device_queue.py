"""
Queue of the device of a packed host: whose turn it is, and what everybody does next.

:class:`DeviceQueue` decides; it has no clock, no thread, no memory. :class:`~penstock_sharing.lanes.DeviceLanes` says
who is in which lane, who asks for a turn there, and who has it; it hears what members need as it turns out. Next is the
model whose request is due first; else, since the device would be idle, the trial that the lane policy names, as far as
a step of it leaves models the time for their targets. Trials that are too long for that are passed over, until their
patience is over: then they are next, before any request.
"""

from __future__ import annotations

import math
from typing import Generic, Literal, NamedTuple, TypeVar

from penstock_packed.member import PackedMember
from penstock_packed.request_queue import QueuedRequest, RequestQueue
from penstock_sharing.lanes import Change, DeviceLanes, LaneRefused, LaneRules, MemberEvicted, differs

R = TypeVar("R")


class PackedTurn(NamedTuple, Generic[R]):
    """A member's turn: its setup, a step of a trial, or a model's step for some requests."""

    name: str
    lane: int
    what: Literal["setup", "step", "answer"]
    requests: list[QueuedRequest[R]]


class MemberEnding(NamedTuple):
    """A member that has to go, and why."""

    name: str
    reason: str


class DeviceQueue(Generic[R]):
    """
    One device, its members, and whose turn it is.

    Parameters
    ----------
    capacity_bytes, reserve_bytes : int
    rules : LaneRules
        ``most_lanes`` is how many turns there may be at a time.
    quiet_s : float
        A model that nobody has asked for so long keeps no trial from a turn.

    Attributes
    ----------
    members : dict of str to PackedMember
    endings : list of MemberEnding
        Members that the device has no room for. Whoever runs them ends them, and says :meth:`left`.
    targets : RequestQueue
    """

    def __init__(self, capacity_bytes: int, reserve_bytes: int, rules: LaneRules, quiet_s: float) -> None:
        self.members: dict[str, PackedMember] = {}
        self.endings: list[MemberEnding] = []
        self.targets: RequestQueue[R] = RequestQueue(quiet_s, rules.patience_s)
        self._lanes = DeviceLanes(capacity_bytes, reserve_bytes, rules, on_call=True)
        self._last_s: dict[int, float] = {}  # when the last turn of a lane began

    def join(self, member: PackedMember, now_s: float) -> None:
        """Let a member onto the device, or wait for room; one that is over already is only remembered."""
        name = member.name
        self.members[name] = member
        if member.over:
            return
        if member.target_s is not None:
            self.targets.add(name, member.target_s)
        remaining_s = 0.0 if member.steps else math.inf  # not known before its first step: to be found out
        self._note(
            self._lanes.arrive(
                name,
                member.need,
                now_s,
                service_s=member.service_s,
                remaining_s=remaining_s,
                priority=member.priority,
            )
        )
        if name in self._lanes:
            self._lanes.want(name, now_s)  # for its setup

    def next(self, now_s: float) -> PackedTurn[R] | None:
        """Return the next turn, which ends with :meth:`over` or :meth:`left`; None where there is none now."""
        for lane in self._free_lanes(now_s):
            turn = self._pick(lane, now_s)
            if turn is not None:
                self._last_s[lane] = now_s
                return turn
        return None

    def over(self, name: str, now_s: float) -> None:
        """End a member's turn; what it has shown is noted in the member, and it goes on if it is not over."""
        member = self.members[name]
        if name in self._lanes:
            need = member.need if differs(self._lanes.need(name), member.need) else None
            wants = member.stage == "running" and member.trains
            self._note(self._lanes.boundary(name, now_s, need=need, wants=wants, remaining_s=member.remaining_s))

    def left(self, name: str, now_s: float) -> list[QueuedRequest[R]]:
        """Forget a member that holds nothing any more, in its turn or not; return the requests that it leaves."""
        if name in self._lanes:
            self._note(self._lanes.finish(name, now_s))
        return self.targets.remove(name)

    def room_bytes(self, name: str) -> int:
        """Return how much more than now a member may hold in its turn."""
        return max(0, self._lanes.cap_bytes(name) - self.members[name].held_bytes)

    def why(self, name: str, now_s: float) -> str:
        """Return in one sentence why a member gets no turn; empty where it does, or is finished."""
        member = self.members[name]
        if name not in self._lanes:
            return member.reason
        slack_s, model = self.targets.slack_s(now_s, self._turn_s)
        if member.trains and member.turn_s > slack_s:
            return f"its step takes {1e3 * member.turn_s:.1f} ms; the target of {model} leaves {1e3 * slack_s:.1f} ms"
        return self._lanes.why(name)

    def idle(self, name: str) -> bool:
        """Return whether a model has answered all requests, and is not in its turn."""
        return not self._lanes.has_turn(name) and not self.targets.pending(name)

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return len(self._lanes.lanes)

    def _free_lanes(self, now_s: float) -> list[int]:
        """Return the lanes without a turn under way: with somebody impatient, with the earliest deadline, in turn."""

        def place(lane: int) -> tuple[bool, float, float]:
            first = self._first(lane, now_s)
            due_s = first[1] if first else math.inf
            return not self._lanes.is_impatient(lane, now_s), due_s, self._last_s.get(lane, 0.0)

        free = self._lanes.free_lanes
        return sorted(free, key=place) if len(free) > 1 else free

    def _pick(self, lane: int, now_s: float) -> PackedTurn[R] | None:
        first = self._first(lane, now_s)
        if first is not None and not self._lanes.is_impatient(lane, now_s):
            name, _ = first
            self._lanes.give_turn(lane, now_s, name)
            return PackedTurn(name, lane, "answer", self.targets.take(name, self.members[name].batch))
        slack_s, _ = self.targets.slack_s(now_s, self._turn_s)
        picked = self._lanes.give_turn(lane, now_s, may=lambda name: self._turn_s(name) <= slack_s)
        if picked is None:
            return None
        return PackedTurn(picked, lane, "setup" if self.members[picked].stage == "new" else "step", [])

    def _first(self, lane: int, now_s: float) -> tuple[str, float] | None:
        """Return the model of a lane whose request is next, and its deadline; models that are not set up yet wait."""

        def answers_here(name: str) -> bool:
            return self.members[name].stage == "running" and self._lanes.lane_of(name) == lane

        return self.targets.first(answers_here, now_s, self._turn_s)

    def _turn_s(self, name: str) -> float:
        return self.members[name].turn_s

    def _note(self, changes: list[Change]) -> None:
        """Note who has to end; that members wait, are parked or move is asked of the lanes where it matters."""
        for change in changes:
            if isinstance(change, MemberEvicted | LaneRefused):
                self.endings.append(MemberEnding(change.job_id, change.reason))
