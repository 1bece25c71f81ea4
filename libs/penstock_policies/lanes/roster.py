"""The jobs of one device: who waits, who is parked, who has to leave, and what a change of one means for the others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import assert_never

from penstock_events import MemoryNeed
from penstock_policies.lanes.changes import Evicted, Parked, Refused
from penstock_policies.lanes.deck import Deck
from penstock_policies.lanes.lane import Member


class Roster:
    """
    The jobs of one device.

    Attributes
    ----------
    members : dict of str to Member
        All of them.
    waiting, parked, leaving : dict of str to Member
        Those that are not in a lane, each the oldest first. The parked stand before the waiting.
    """

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        self.members: dict[str, Member] = {}
        self.waiting: dict[str, Member] = {}
        self.parked: dict[str, Member] = {}
        self.leaving: dict[str, Member] = {}

    def add(self, member: Member) -> None:
        """Take in a job that has arrived, unless the device is too small for it."""
        self.members[member.job_id] = self.waiting[member.job_id] = member
        self._refuse_or_keep(member)

    def drop(self, member: Member, now_s: float) -> None:
        """Forget a job that is over."""
        if member.at != "waiting":
            self._deck.resident_bytes -= member.need.resident_bytes
        self._take_out(member, now_s)
        del self.members[member.job_id]

    def reestimate(self, member: Member, need: MemoryNeed, now_s: float) -> None:
        """Give a job another need: it stays, moves, is parked, or has to leave. No other job does, for its sake."""
        stays, more_bytes = self._deck.stays(member, need), need.resident_bytes - member.need.resident_bytes
        member.need = need
        if member.at == "waiting":
            self._refuse_or_keep(member)
            return
        self._deck.resident_bytes += more_bytes
        if need.alone_bytes > self._deck.usable_bytes:
            self._evict(member, now_s, f"it needs {mib(need.alone_bytes)}, more than the device has")
        elif member.lane is not None and stays:
            member.lane.measure()
        elif member.lane is not None:
            self._displace(member, now_s)
        if more_bytes > 0 and self._deck.soon_free_bytes < 0:
            lacking = mib(-self._deck.soon_free_bytes)
            self._evict(member, now_s, f"it keeps {mib(more_bytes)} more between turns; others lack {lacking} of that")

    def settle(self, now_s: float) -> None:
        """Bring everything in order that may have come out of it; turns last."""
        self._deck.trim(now_s)
        self._admit(now_s)
        if not self.waiting and not self.parked:
            self._deck.reopen(now_s)
            self._deck.spread(now_s)
        self._deck.trim(now_s)
        self._relieve(now_s)
        for lane in self._deck.lanes.values():
            self._deck.grant(lane, now_s)

    def why(self, member: Member) -> str:
        """Return in one sentence why a job is not in a lane; empty for one that is."""
        match member.at:
            case "lane":
                return ""
            case "leaving":
                return "it has to leave the device"
            case "waiting" | "parked":
                return self._lacks(member)
            case _:
                assert_never(member.at)

    def _line(self) -> Iterator[Member]:
        return chain(self.parked.values(), self.waiting.values())

    def _admit(self, now_s: float) -> None:
        """Let in who can, in order; those behind one that cannot may pass it a bounded number of times."""
        passed: list[Member] = []
        for member in list(self._line()):
            entered = self._enter(member, now_s)
            if not entered and self._deck.make_room(member.entering, now_s):
                entered = self._enter(member, now_s)
                if not entered:
                    return  # a lane closes for it at the next boundary: nobody else takes that room
            if entered:
                for other in passed:
                    other.overtaken += 1
            else:
                passed.append(member)
            if any(self._lets_nobody_pass(other) for other in passed):
                return

    def _enter(self, member: Member, now_s: float) -> bool:
        others = (other.entering for other in self._line() if other is not member)
        if not self._deck.enter(member, now_s, others):
            return False
        self.waiting.pop(member.job_id, None)
        self.parked.pop(member.job_id, None)
        return True

    def _displace(self, member: Member, now_s: float) -> None:
        """Take a member out of its lane into another one, or park it."""
        if member.lane is not None:
            member.lane.remove(member, now_s)
        if not self._deck.enter(member, now_s):
            member.at = "parked"
            self.parked[member.job_id] = member
            self._deck.changes.append(Parked(member.job_id, self._lacks(member)))

    def _relieve(self, now_s: float) -> None:
        """Have the one that was parked last leave where nobody runs, since nothing else would ever make room."""
        if self.parked and not self._deck.lanes and not self.leaving:
            newest = next(reversed(self.parked.values()))
            self._evict(newest, now_s, "it is parked, and nobody is left whose end would make room")

    def _evict(self, member: Member, now_s: float, reason: str) -> None:
        if member.at == "leaving":
            return
        self._take_out(member, now_s)
        member.at = "leaving"
        self.leaving[member.job_id] = member
        changes = self._deck.changes
        changes[:] = [each for each in changes if not (isinstance(each, Parked) and each.job_id == member.job_id)]
        changes.append(Evicted(member.job_id, reason))

    def _take_out(self, member: Member, now_s: float) -> None:
        if member.lane is not None:
            member.lane.remove(member, now_s)
        for group in (self.waiting, self.parked, self.leaving):
            group.pop(member.job_id, None)

    def _refuse_or_keep(self, member: Member) -> None:
        if member.need.alone_bytes > self._deck.usable_bytes:
            del self.members[member.job_id], self.waiting[member.job_id]
            reason = f"it needs {mib(member.need.alone_bytes)}; the device has {mib(self._deck.usable_bytes)}"
            self._deck.changes.append(Refused(member.job_id, reason))

    def _lets_nobody_pass(self, member: Member) -> bool:
        return member.overtaken >= self._deck.rules.overtakes

    def _lacks(self, member: Member) -> str:
        if any(lane.closing for lane in self._deck.lanes.values()):
            return "a lane closes at its next boundary; then it is looked at again"
        first = next((m for m in self._line() if m is member or self._lets_nobody_pass(m)), member)
        if first is not member:
            return (
                f"{first.job_id} stands before it, has been overtaken {first.overtaken} times, and is not passed again"
            )
        need, free_bytes = member.entering, max(0, self._deck.free_bytes)
        takes = f"{mib(need.resident_bytes)} and a lane of {mib(need.ephemeral_bytes)}"
        return f"it takes {takes}; {mib(free_bytes)} are free beside the lanes"


def mib(size_bytes: int) -> str:
    """Return a size for people to read."""
    return f"{size_bytes / 2**20:,.1f} MiB"
