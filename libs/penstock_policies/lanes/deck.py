"""The lanes of one device and the memory that they and their members take; who waits is the board's business."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from penstock_events import MemoryNeed
from penstock_policies.lanes.changes import Change, Closed, Entered, Granted, Moved, Opened, Resized, Unparked
from penstock_policies.lanes.find import Lot, best, find, to_close
from penstock_policies.lanes.gain import Gains
from penstock_policies.lanes.lane import Lane, Member, Whereabouts
from penstock_policies.lanes.rules import Rules
from penstock_policies.lanes.turns import POLICIES, Asking

SAID: Final[dict[Whereabouts, type[Entered] | type[Unparked] | type[Moved]]] = {
    "waiting": Entered,
    "parked": Unparked,
    "lane": Moved,
}
"""How it is said that a job is in a lane, by where it was before."""


class Deck:
    """
    The lanes of one device.

    Attributes
    ----------
    resident_bytes : int
        ``sum(P + F)`` of all that hold memory: members, parked and leaving.
    tight : bool
        More is promised than there is, because somebody has taken more than it was given: turns are given only so far
        as the memory that is really free allows.
    changes : list of Change
        What has not been told yet.
    """

    def __init__(self, usable_bytes: int, rules: Rules) -> None:
        self.usable_bytes, self.rules = usable_bytes, rules
        self.lanes: dict[int, Lane] = {}
        self.gains = Gains(rules.least_gain, rules.retry_s)
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
    def lots(self) -> list[Lot]:
        """The lanes that a job may go to."""
        return [lane.lot for lane in self.lanes.values() if not lane.closing]

    def most_lanes(self, now_s: float) -> float:
        """Return how many lanes may be open: at least one."""
        return max(1, min(self.gains.most(now_s), self.rules.most_lanes or math.inf))

    def stays(self, member: Member, need: MemoryNeed) -> bool:
        """Say whether a member may stay where it is with another need."""
        lane = member.lane
        if lane is None or lane.closing:
            return False
        more_bytes = need.resident_bytes - member.need.resident_bytes
        more_bytes += lane.reserved_with(member, need) - lane.reserved_bytes
        return more_bytes <= max(0, self.free_bytes)

    def enter(self, member: Member, now_s: float, waiting: Iterable[MemoryNeed] = ()) -> bool:
        """Let a job that waits, is parked, or has just been taken out into a lane; False where no lane is found."""
        lots = self.lots
        may_open = len(lots) < self.most_lanes(now_s)
        place = find(member.entering, lots, self.free_bytes, waiting, may_open=may_open)
        if place is None:
            return False
        lane = self._open(member.need.ephemeral_bytes) if place.lane is None else self.lanes[place.lane]
        if member.at == "waiting":
            self.resident_bytes += member.need.resident_bytes
        self.changes.append(SAID[member.at](member.job_id, lane.number))
        lane.add(member, now_s)
        return True

    def make_room(self, need: MemoryNeed, now_s: float) -> bool:
        """Let lanes close where a job would then fit; those at a boundary do at once. False where it would not fit."""
        coming_bytes = sum(lane.reserved_bytes for lane in self.lanes.values() if lane.closing)
        closing = to_close(need, self.lots, self.free_bytes + coming_bytes) if self.rules.merges else None
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
            if lane.closing and len(self.lots) < self.most_lanes(now_s):
                lane.closing = False

    def trim(self, now_s: float) -> None:
        """Empty the lanes that are closing, and give those that are at a boundary the size that their members need."""
        for lane in list(self.lanes.values()):
            if lane.closing:
                self._empty(lane, now_s)
            if not lane.members:
                del self.lanes[lane.number]
                self.changes.append(Closed(lane.number))
        for lane in self.lanes.values():
            if lane.holder is None and lane.size_bytes != lane.wanted_bytes:
                lane.size_bytes = lane.wanted_bytes
                self.changes.append(Resized(lane.number, lane.size_bytes))
        self.tight = self.free_bytes < 0

    def spread(self, now_s: float) -> None:
        """Move members that are between turns from the fullest lanes to new ones, or else to emptier ones."""
        while self.rules.spreads and self._spread_one(now_s):
            pass

    def grant(self, lane: Lane, now_s: float) -> None:
        """Give the turn of a lane to whoever is next, if nobody has it and it is safe."""
        if lane.holder is None and not (self.tight and self._running_bytes() + lane.size_bytes > self.usable_bytes):
            holder = lane.grant(now_s)
            if holder is not None:
                self.changes.append(Granted(holder.job_id, lane.number))

    def _open(self, size_bytes: int) -> Lane:
        lane = Lane(self._opened, size_bytes, Asking(POLICIES[self.rules.policy], self.rules.patience_s))
        self._opened += 1
        self.lanes[lane.number] = lane
        self.changes.append(Opened(lane.number, size_bytes))
        return lane

    def _move(self, member: Member, to: Lane, now_s: float) -> None:
        if member.lane is not None:
            member.lane.remove(member, now_s)
        to.add(member, now_s)
        self.changes.append(Moved(member.job_id, to.number))

    def _empty(self, lane: Lane, now_s: float) -> None:
        if not self.lots:  # the others have closed meanwhile
            lane.closing = False
            return
        for member in [m for m in lane.members.values() if m is not lane.holder]:
            self._move(member, self.lanes[best(member.need, self.lots)], now_s)

    def _spread_one(self, now_s: float) -> bool:
        free_bytes, lots = self.free_bytes, self.lots
        may_open = len(lots) < self.most_lanes(now_s)
        for lane in sorted(self.lanes.values(), key=lambda lane: (-len(lane.members), lane.number)):
            if lane.closing or len(lane.members) < 2:
                continue
            emptier = [lot for lot in lots if lot.members + 2 <= len(lane.members)]
            for member in [m for m in reversed(lane.members.values()) if m is not lane.holder]:
                need_bytes = member.need.ephemeral_bytes
                if may_open and need_bytes <= free_bytes:
                    self._move(member, self._open(need_bytes), now_s)
                    return True
                lot = min(
                    (lot for lot in emptier if lot.size_bytes >= need_bytes), key=attrgetter("members"), default=None
                )
                if lot is not None:
                    self._move(member, self.lanes[lot.lane], now_s)
                    return True
        return False

    def _running_bytes(self) -> int:
        return self.resident_bytes + sum(lane.size_bytes for lane in self.lanes.values() if lane.holder is not None)
