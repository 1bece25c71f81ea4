"""
The lanes of a device and the memory they take.

:class:`LaneAllocator` opens, resizes and closes lanes, and gives turns in them; it does not know who waits.
:class:`LaneGains` remembers what each number of lanes has gained, and so whether one more is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from penstock_log import MemoryNeed
from penstock_sharing.lanes.lane import (
    Change,
    Lane,
    LaneClosed,
    LaneEntered,
    LaneMember,
    LaneOpened,
    LaneResized,
    LaneSize,
    MemberMoved,
    MemberUnparked,
    TurnGranted,
    Whereabouts,
    best,
    find,
    to_close,
)
from penstock_sharing.lanes.turn_policy import TURN_POLICIES, LaneRules, TurnQueue

ENTRY_CHANGE: Final[dict[Whereabouts, type[LaneEntered] | type[MemberUnparked] | type[MemberMoved]]] = {
    "waiting": LaneEntered,
    "parked": MemberUnparked,
    "lane": MemberMoved,
}
"""How it is said that a job is in a lane, by where it was before."""


class LaneAllocator:
    """
    The lanes of one device.

    Attributes
    ----------
    resident_bytes : int
        ``sum(P + F)`` of all that hold memory: members, parked and leaving.
    on_call : bool
        Turns are given only by who asks for that, and not to whoever is next as soon as a lane is free.
    tight : bool
        More is promised than there is, because somebody has taken more than it was given: turns are given only so far
        as the memory that is really free allows.
    changes : list of Change
        Changes that nobody has taken yet.
    """

    def __init__(self, usable_bytes: int, rules: LaneRules, *, on_call: bool = False) -> None:
        self.usable_bytes, self.rules, self.on_call = usable_bytes, rules, on_call
        self.lanes: dict[int, Lane] = {}
        self.gains = LaneGains(rules.least_gain, rules.retry_s)
        self.resident_bytes = 0
        self.tight = False
        self.changes: list[Change] = []
        self._opened = 0

    @property
    def free_bytes(self) -> int:
        """What the safety condition leaves."""
        return self.usable_bytes - self.resident_bytes - sum(lane.reserved_bytes for lane in self.lanes.values())

    @property
    def soon_free_bytes(self) -> int:
        """The same after the boundary of every turn that is under way."""
        return self.usable_bytes - self.resident_bytes - sum(lane.wanted_bytes for lane in self.lanes.values())

    @property
    def sizes(self) -> list[LaneSize]:
        """The lanes that a job may go to."""
        return [lane.as_size for lane in self.lanes.values() if not lane.closing]

    def most_lanes(self, now_s: float) -> float:
        """Return how many lanes may be open: at least one."""
        return max(1, min(self.gains.most(now_s), self.rules.most_lanes or math.inf))

    def stays(self, member: LaneMember, need: MemoryNeed) -> bool:
        """Say whether a member may stay where it is with another need."""
        lane = member.lane
        if lane is None or lane.closing:
            return False
        more_bytes = need.resident_bytes - member.need.resident_bytes
        more_bytes += lane.reserved_with(member, need) - lane.reserved_bytes
        return more_bytes <= max(0, self.free_bytes)

    def enter(self, member: LaneMember, now_s: float, waiting: Iterable[MemoryNeed] = ()) -> bool:
        """Let a job that waits, is parked, or has just been taken out into a lane; False where no lane is found."""
        sizes = self.sizes
        may_open = len(sizes) < self.most_lanes(now_s)
        place = find(member.entering, sizes, self.free_bytes, waiting, may_open=may_open)
        if place is None:
            return False
        lane = self._open(member.need.ephemeral_bytes) if place.lane is None else self.lanes[place.lane]
        if member.at == "waiting":
            self.resident_bytes += member.need.resident_bytes
        self.changes.append(ENTRY_CHANGE[member.at](member.job_id, lane.number))
        lane.add(member)
        return True

    def close_lanes_for(self, need: MemoryNeed, now_s: float) -> bool:
        """Let lanes close where a job would then fit; those at a boundary do at once. False where it would not fit."""
        coming_bytes = sum(lane.reserved_bytes for lane in self.lanes.values() if lane.closing)
        closing = to_close(need, self.sizes, self.free_bytes + coming_bytes) if self.rules.merges else None
        if closing is None:
            return False
        self.close(closing, now_s)
        return True

    def close(self, numbers: Iterable[int], now_s: float) -> None:
        """Let lanes close: their members go to others, the holder of the turn at its next boundary."""
        for number in numbers:
            self.lanes[number].closing = True
        self.trim(now_s)

    def reopen(self, now_s: float) -> None:
        """Let those lanes stay that were to close for somebody who no longer waits."""
        for lane in self.lanes.values():
            if lane.closing and len(self.sizes) < self.most_lanes(now_s):
                lane.closing = False

    def trim(self, now_s: float) -> None:
        """Empty the lanes that are closing, and give those that are at a boundary the size that their members need."""
        for lane in list(self.lanes.values()):
            if lane.closing:
                self._empty(lane, now_s)
            if not lane.members:
                del self.lanes[lane.number]
                self.changes.append(LaneClosed(lane.number))
        for lane in self.lanes.values():
            if lane.holder is None and lane.size_bytes != lane.wanted_bytes:
                lane.size_bytes = lane.wanted_bytes
                self.changes.append(LaneResized(lane.number, lane.size_bytes))
        self.tight = self.free_bytes < 0

    def spread(self, now_s: float) -> None:
        """Move members that are between turns from the fullest lanes to new ones, or else to emptier ones."""
        while self.rules.spreads and self._spread_one(now_s):
            pass

    def grant(self, lane: Lane, now_s: float) -> None:
        """Give the turn of a lane to whoever is next, if nobody has it and it is safe."""
        if self.may_run(lane) and not self.on_call:
            holder = lane.grant(now_s)
            if holder is not None:
                self.changes.append(TurnGranted(holder.job_id, lane.number))

    def may_run(self, lane: Lane) -> bool:
        """Return whether a turn may begin in a lane now: nobody has it, and it is safe."""
        return lane.holder is None and not (self.tight and self._running_bytes() + lane.size_bytes > self.usable_bytes)

    def _open(self, size_bytes: int) -> Lane:
        lane = Lane(self._opened, size_bytes, TurnQueue(TURN_POLICIES[self.rules.policy], self.rules.patience_s))
        self._opened += 1
        self.lanes[lane.number] = lane
        self.changes.append(LaneOpened(lane.number, size_bytes))
        return lane

    def _move(self, member: LaneMember, to: Lane, now_s: float) -> None:
        if member.lane is not None:
            member.lane.remove(member, now_s)
        to.add(member)
        self.changes.append(MemberMoved(member.job_id, to.number))

    def _empty(self, lane: Lane, now_s: float) -> None:
        if not self.sizes:  # the others have closed meanwhile
            lane.closing = False
            return
        for member in [m for m in lane.members.values() if m is not lane.holder]:
            self._move(member, self.lanes[best(member.need, self.sizes)], now_s)

    def _spread_one(self, now_s: float) -> bool:
        free_bytes, sizes = self.free_bytes, self.sizes
        may_open = len(sizes) < self.most_lanes(now_s)
        for lane in sorted(self.lanes.values(), key=lambda lane: (-len(lane.members), lane.number)):
            if lane.closing or len(lane.members) < 2:
                continue
            emptier = [size for size in sizes if size.members + 2 <= len(lane.members)]
            for member in [m for m in reversed(lane.members.values()) if m is not lane.holder]:
                need_bytes = member.need.ephemeral_bytes
                if may_open and need_bytes <= free_bytes:
                    self._move(member, self._open(need_bytes), now_s)
                    return True
                size = min(
                    (size for size in emptier if size.size_bytes >= need_bytes), key=attrgetter("members"), default=None
                )
                if size is not None:
                    self._move(member, self.lanes[size.lane], now_s)
                    return True
        return False

    def _running_bytes(self) -> int:
        return self.resident_bytes + sum(lane.size_bytes for lane in self.lanes.values() if lane.holder is not None)


class LaneGains:
    """
    What each number of lanes has gained over one fewer, as measured outside.

    Not measured is taken to be worth a try. A number that was not worth it is not tried again for ``retry_s``, and no
    larger one either; then the jobs are others.

    Parameters
    ----------
    least : float
        The least gain that counts as real: 0.05 is 5 % more throughput.
    retry_s : float, seconds

    Examples
    --------
    >>> gains = LaneGains(least=0.05, retry_s=600.0)
    >>> gains.see(lanes=2, ratio=1.40, now_s=0.0)
    >>> gains.see(lanes=3, ratio=1.02, now_s=10.0)
    >>> gains.most(20.0), gains.most(610.0)
    (2, inf)
    """

    def __init__(self, least: float, retry_s: float) -> None:
        self._least, self._retry_s = least, retry_s
        self._until_s: dict[int, float] = {}  # by number of lanes that were not worth it

    def see(self, lanes: int, ratio: float, now_s: float) -> None:
        """
        Take in a measurement.

        Parameters
        ----------
        lanes : int
            2 or more.
        ratio : float
            Throughput of so many lanes over that of one fewer, with the same jobs.
        now_s : float, seconds
        """
        if lanes < 2 or not ratio > 0:
            raise ValueError(f"lanes={lanes}, ratio={ratio} are out of range; expected 2 or more, and more than 0")
        if ratio < 1.0 + self._least:
            self._until_s[lanes] = now_s + self._retry_s
        else:
            self._until_s.pop(lanes, None)

    def most(self, now_s: float) -> float:
        """Return how many lanes are worth it at most; infinite where nothing speaks against another."""
        return min((lanes - 1 for lanes, until_s in self._until_s.items() if now_s < until_s), default=math.inf)
