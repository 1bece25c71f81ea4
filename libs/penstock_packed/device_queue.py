"""
Queue of the device of a packed host: whose turn it is, and what everybody does next.

:class:`DeviceQueue` decides; it has no clock, no thread, no memory. :class:`~penstock_sharing.lanes.DeviceLanes` says
who may be on the device, and in which lane. It is told what members need as it turns out. The queue asks it for a turn
only for the member that is next here: the one whose request is due first; else, since the device would be idle, the
trial that the lane policy names, as far as a step of it leaves models the time for their targets.

:class:`TrialQueue` orders the trials of one lane by its policy (:mod:`penstock_sharing.lanes.turn_policy`), with two
additions. A trial that would take too long for a model's target is passed over meanwhile. *Patience* counts from the
first time that a trial asked, whoever was preferred to it: trials that were passed over, or that models have kept
waiting, get their turn then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, Literal, NamedTuple, TypeVar, assert_never

from penstock_packed.member import PackedMember
from penstock_packed.request_queue import QueuedRequest, RequestQueue
from penstock_sharing.lanes import (
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
    TurnGranted,
    differs,
)
from penstock_sharing.lanes.turn_policy import TURN_POLICIES, MemberStanding, Name, TurnQueue

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
    """

    def __init__(self, capacity_bytes: int, reserve_bytes: int, rules: LaneRules, quiet_s: float) -> None:
        self.members: dict[str, PackedMember] = {}
        self.endings: list[MemberEnding] = []
        self.targets: RequestQueue[R] = RequestQueue(quiet_s, rules.patience_s)
        self._rules = rules
        self._board = DeviceLanes(capacity_bytes, reserve_bytes, rules)
        self._orders: dict[int, TrialQueue] = {}
        self._models: dict[int, set[str]] = {}
        self._last_s: dict[int, float] = {}
        self._turns: dict[str, int] = {}  # in which lane somebody has its turn, or is about to
        self._picked: dict[str, PackedTurn[R]] = {}  # whom the board has been asked to give a turn
        self._granted: list[str] = []

    def join(self, member: PackedMember, now_s: float) -> None:
        """A member wants to be on the device; one that is over already is only remembered."""
        self.members[member.name] = member
        if member.over:
            return
        if member.target_s is not None:
            self.targets.add(member.name, member.target_s)
        standing = member.standing
        standing.asked_s = now_s  # for its setup
        standing.remaining_s = 0.0 if member.steps else math.inf  # not known before its first step: to be found out
        self._carry(
            self._board.arrive(
                member.name, member.need, now_s, service_s=standing.service_s, priority=standing.priority
            ),
            now_s,
        )

    def next(self, now_s: float) -> PackedTurn[R] | None:
        """Return the next turn, which ends with :meth:`over` or :meth:`left`; None where there is none now."""
        for lane in self._free_lanes(now_s):
            if self._granted:
                break
            go = self._pick(lane, now_s)
            if go is not None:
                self._picked[go.name] = go
                self._turns[go.name] = lane
                self._last_s[lane] = now_s
                self._carry(self._board.want(go.name, now_s), now_s)
        if not self._granted:
            return None
        name = self._granted.pop()
        return self._picked.pop(name)._replace(lane=self._turns[name])

    def over(self, name: str, now_s: float) -> None:
        """A member's turn is over, and what it has shown is noted in the member; it goes on if it is not over."""
        member = self.members[name]
        self._turns.pop(name, None)
        need = member.need if differs(self._board.need(name), member.need) else None
        wants = member.stage == "running" and member.trains
        member.standing.asked_s = None
        if name not in self._board:
            return
        self._carry(self._board.boundary(name, now_s, need=need, wants=False), now_s)
        if not wants:
            return
        if member.lane is None:
            member.standing.asked_s = now_s
        else:
            self._orders[member.lane].ask(member.standing, now_s)

    def left(self, name: str, now_s: float) -> list[QueuedRequest[R]]:
        """A member is over and holds nothing any more, in its turn or not; return the requests that it leaves."""
        self._take_out(self.members[name])
        if name in self._board:
            self._carry(self._board.finish(name, now_s), now_s)
        self._turns.pop(name, None)
        picked = self._picked.pop(name, None)
        return [*(picked.requests if picked else ()), *self.targets.remove(name)]

    def room_bytes(self, name: str) -> int:
        """Return how much more than now a member may hold in its turn."""
        return max(0, self._board.cap_bytes(name) - self.members[name].held_bytes)

    def why(self, name: str, now_s: float) -> str:
        """Return in one sentence why a member gets no turn; empty where it does, or is finished."""
        member = self.members[name]
        if name not in self._board:
            return member.reason
        slack_s, model = self._slack(now_s)
        if member.trains and member.turn_s > slack_s:
            return f"its step takes {1e3 * member.turn_s:.1f} ms; the target of {model} leaves {1e3 * slack_s:.1f} ms"
        return self._board.why(name)

    def idle(self, name: str) -> bool:
        """Say whether a model has answered all requests, and is not in its turn."""
        return name not in self._turns and not self.targets.pending(name)

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return len(self._orders)

    def _free_lanes(self, now_s: float) -> list[int]:
        """Return the lanes without a turn under way: with somebody impatient, with the earliest deadline, in turn."""

        def place(lane: int) -> tuple[bool, float, float]:
            first = self._first(lane, now_s)
            due_s = first[1] if first else math.inf
            return not self._orders[lane].impatient(now_s), due_s, self._last_s.get(lane, 0.0)

        busy = set(self._turns.values())
        free = [lane for lane in self._orders if lane not in busy]
        return sorted(free, key=place) if len(free) > 1 else free

    def _pick(self, lane: int, now_s: float) -> PackedTurn[R] | None:
        order = self._orders[lane]
        first = self._first(lane, now_s)
        if first is not None and not order.impatient(now_s):
            name, _ = first
            return PackedTurn(name, lane, "answer", self.targets.take(name, self.members[name].batch))
        picked = order.take(now_s, self._allowance(now_s))
        if picked is not None:
            return PackedTurn(picked, lane, "setup" if self.members[picked].stage == "new" else "step", [])
        return None

    def _allowance(self, now_s: float) -> Callable[[str], bool]:
        """Return who may have a turn: a member whose turn is too long for a target may not."""
        slack_s, _ = self._slack(now_s)
        return lambda name: self.members[name].turn_s <= slack_s

    def _first(self, lane: int, now_s: float) -> tuple[str, float] | None:
        return self.targets.first(self._models[lane], now_s, lambda name: self.members[name].turn_s)

    def _slack(self, now_s: float) -> tuple[float, str]:
        return self.targets.slack_s(now_s, lambda name: self.members[name].turn_s)

    def _carry(self, changes: list[Change], now_s: float) -> None:
        for change in changes:
            match change:
                case LaneOpened(lane=lane):
                    self._orders[lane] = TrialQueue(self._rules.policy, self._rules.patience_s)
                    self._models[lane] = set()
                case LaneClosed(lane=lane):
                    del self._orders[lane], self._models[lane]
                case (
                    LaneEntered(job_id=name, lane=lane)
                    | MemberMoved(job_id=name, lane=lane)
                    | MemberUnparked(job_id=name, lane=lane)
                ):
                    self._put(self.members[name], lane, now_s)
                case MemberWaits(job_id=name, reason=reason) | MemberParked(job_id=name, reason=reason):
                    self._take_out(self.members[name])
                    self.members[name].reason = reason
                case MemberEvicted(job_id=name, reason=reason) | LaneRefused(job_id=name, reason=reason):
                    self._take_out(self.members[name])
                    self.endings.append(MemberEnding(name, reason))
                case TurnGranted(job_id=name):
                    self._granted.append(name)
                case LaneResized():
                    pass
                case _:
                    assert_never(change)

    def _put(self, member: PackedMember, lane: int, now_s: float) -> None:
        self._take_out(member)
        if member.name in self._turns:
            self._turns[member.name] = lane
        member.lane, member.reason = lane, ""
        self._orders[lane].welcome(member.standing, now_s)
        if not member.trains and member.stage == "running":
            self._models[lane].add(member.name)

    def _take_out(self, member: PackedMember) -> None:
        if member.lane is None:
            return
        if member.lane in self._orders:
            self._orders[member.lane].forget(member.standing)
            self._models[member.lane].discard(member.name)
        member.lane = None

    def serving(self, name: str) -> None:
        """A model is set up: its requests are answered from now on."""
        lane = self.members[name].lane
        if lane is not None:
            self._models[lane].add(name)

    def waiting(self) -> Iterator[str]:
        """Yield the members that have no place on the device."""
        return (name for name, member in self.members.items() if member.lane is None and not member.over)


class TrialQueue:
    """
    The trials of one lane that ask for a turn, and members of any kind that ask for their setup.

    Examples
    --------
    >>> order = TrialQueue("fifo", patience_s=30.0)
    >>> long, short = MemberStanding("long", 0), MemberStanding("short", 1)
    >>> order.ask(long, 0.0), order.ask(short, 0.0)
    (None, None)
    >>> order.take(1.0, lambda name: name == "short"), order.take(1.0, lambda name: True)
    ('short', 'long')
    """

    def __init__(self, policy: Name, patience_s: float | None) -> None:
        self._asking = TurnQueue(TURN_POLICIES[policy], None)
        self._patience_s = patience_s
        self._since: dict[str, tuple[float, MemberStanding]] = {}  # who has asked longest comes first
        self._passed: dict[str, MemberStanding] = {}

    def ask(self, standing: MemberStanding, now_s: float) -> None:
        """Note that a member wants a turn; one that asks already keeps its place."""
        if standing.job_id not in self._since:
            self._since[standing.job_id] = (now_s, standing)
            self._asking.ask(standing, now_s)

    def welcome(self, standing: MemberStanding, now_s: float) -> None:
        """Take in one who comes from elsewhere; it may be asking."""
        asked_s = standing.asked_s
        self._asking.welcome(standing, now_s)
        if asked_s is not None:
            later = {name: since for name, since in self._since.items() if since[0] > asked_s}
            for name in later:
                del self._since[name]
            self._since[standing.job_id] = (asked_s, standing)
            self._since |= later

    def forget(self, standing: MemberStanding) -> None:
        """Take out one who leaves; that it asks is kept, for its next lane."""
        asked = self._since.pop(standing.job_id, None)
        self._passed.pop(standing.job_id, None)
        self._asking.forget(standing)
        standing.asked_s = None if asked is None else asked[0]

    def impatient(self, now_s: float) -> bool:
        """Say whether somebody has asked for too long, so that no request may be preferred to it."""
        if self._patience_s is None or not self._since:
            return False
        asked_s, _ = next(iter(self._since.values()))
        return now_s - asked_s >= self._patience_s

    def take(self, now_s: float, allowed: Callable[[str], bool]) -> str | None:
        """Return who is next of those that are allowed, who then asks no more; whoever is impatient is allowed."""
        if self.impatient(now_s):
            _, standing = next(iter(self._since.values()))
            self.forget(standing)
            standing.asked_s = None
            return standing.job_id
        for standing in [s for name, s in self._passed.items() if allowed(name)]:
            del self._passed[standing.job_id]
            self._asking.ask(standing, now_s)
        while (next_one := self._asking.take(now_s)) is not None:
            if allowed(next_one.job_id):
                del self._since[next_one.job_id]
                return next_one.job_id
            self._passed[next_one.job_id] = next_one
        return None
