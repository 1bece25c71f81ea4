"""
One device: members, who waits, who is parked, whose turn it is.

:class:`DeviceLanes` is a fold: it takes in what happens on the device and returns what changes. It reads no clock and
holds no memory itself; whoever runs the jobs carries the changes out in their order. :class:`LaneMembers` holds the
jobs: who waits, who is parked, who has to leave, and what a change of one means for the others.

A *boundary* is the moment between two turns of a job at which its ephemeral memory is empty. A lane changes its size,
and a job its lane, only there; so no change waits for more than the turn that is under way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import assert_never

from penstock_log import MemoryNeed
from penstock_sharing.lanes.lane import Change, Lane, LaneMember, LaneRefused, MemberEvicted, MemberParked, MemberWaits
from penstock_sharing.lanes.lane_allocator import LaneAllocator
from penstock_sharing.lanes.turn_policy import LaneRules, MemberStanding, TurnForecast


@dataclass(frozen=True, slots=True)
class LaneView:
    """
    What one lane looks like from outside.

    Attributes
    ----------
    lane, size_bytes : int
    members : tuple of str
        In order of entering.
    holder : str or None
        Whose turn it is.
    due : bool
        Whether something waits for the holder's next boundary. While nothing does, it need not tell of its boundaries.
    """

    lane: int
    size_bytes: int
    members: tuple[str, ...]
    holder: str | None
    due: bool


class DeviceLanes:
    """
    One device's lanes.

    Parameters
    ----------
    capacity_bytes, reserve_bytes : int
        The device's memory, and what of it is left alone.
    rules : LaneRules
    on_call : bool
        Whether turns are given by :meth:`give_turn` alone, for an owner with reasons of its own who is next; else a
        turn is given as soon as somebody asks and the lane is free.

    Raises
    ------
    ValueError
        If the reserve is not between 0 and the capacity.

    Notes
    -----
    Always: ``sum(P + F)`` of all that hold memory, and the sizes of all lanes, and the reserve, are at most the
    capacity; unless a job has kept more than it had been given. Until it has left, or lanes have shrunk at their next
    boundaries, turns are given only so far as the memory that is really free allows.

    ``boundary`` and ``want`` are O(log members) where nothing else has changed, all others O((jobs + lanes) x changes).

    Examples
    --------
    >>> device = DeviceLanes(capacity_bytes=100)
    >>> device.arrive("a", MemoryNeed(10, 0, 40), now_s=0.0)
    [LaneOpened(lane=0, size_bytes=40), LaneEntered(job_id='a', lane=0)]
    >>> device.arrive("b", MemoryNeed(10, 0, 45), now_s=0.0)
    [LaneEntered(job_id='b', lane=0), LaneResized(lane=0, size_bytes=45)]
    >>> device.want("a", now_s=1.0), device.want("b", now_s=1.5)
    ([TurnGranted(job_id='a', lane=0)], [])
    >>> device.boundary("a", now_s=2.0)
    [TurnGranted(job_id='b', lane=0)]
    >>> device.used_bytes, device.free_bytes
    (65, 35)
    """

    def __init__(
        self, capacity_bytes: int, reserve_bytes: int = 0, rules: LaneRules | None = None, *, on_call: bool = False
    ) -> None:
        if not 0 <= reserve_bytes <= capacity_bytes:
            raise ValueError(f"reserve {reserve_bytes} is out of range; expected 0 to the capacity, {capacity_bytes}")
        self.rules = rules or LaneRules()
        self._allocator = LaneAllocator(capacity_bytes - reserve_bytes, self.rules, on_call=on_call)
        self._members = LaneMembers(self._allocator)
        self._arrived = 0

    def arrive(
        self,
        job_id: str,
        need: MemoryNeed,
        now_s: float,
        *,
        service_s: float = 0.0,
        remaining_s: float = math.inf,
        priority: int = 0,
    ) -> list[Change]:
        """
        A job wants to share the device.

        Parameters
        ----------
        service_s, remaining_s, priority
            As in :class:`penstock_sharing.lanes.turn_policy.MemberStanding`.

        Returns
        -------
        list of Change
            With ``Entered``, ``MemberWaits`` or ``Refused`` for this job among them.

        Raises
        ------
        ValueError
            If the job is on the device already.
        """
        if job_id in self._members.members:
            raise ValueError(f"job {job_id} is on the device already; expected its finish before it arrives again")
        standing = MemberStanding(job_id, self._arrived, service_s, remaining_s, priority)
        self._arrived += 1
        self._members.add(LaneMember(need, standing))
        self._members.settle(now_s)
        if job_id in self._members.waiting:
            self._allocator.changes.append(MemberWaits(job_id, self.why(job_id)))
        return self._take_changes()

    def want(self, job_id: str, now_s: float) -> list[Change]:
        """A job is ready for its next turn; one that waits or is parked may ask as well, and gets it when it can."""
        member = self._member(job_id)
        lane = member.lane
        if lane is None:
            member.standing.asked_s = now_s
        elif lane.holder is not member:
            lane.asking.ask(member.standing, now_s)
            self._allocator.grant(lane, now_s)
        return self._take_changes()

    def rest(self, job_id: str) -> None:
        """A job asks for no turn any more, as when its process is saving its state to leave: nobody waits for it."""
        member = self._member(job_id)
        member.standing.asked_s = None
        if member.lane is not None:
            member.lane.asking.forget(member.standing)

    def boundary(
        self,
        job_id: str,
        now_s: float,
        *,
        need: MemoryNeed | None = None,
        wants: bool = True,
        remaining_s: float | None = None,
    ) -> list[Change]:
        """
        A job's turn is over, and its ephemeral memory is empty.

        Parameters
        ----------
        need : MemoryNeed or None
            As measured now; None: as before.
        wants : bool
            Whether it is ready for another turn.
        remaining_s : float or None
            What is left of it; None: what was left, less the turn.

        Returns
        -------
        list of Change
            It goes on only if ``Granted`` for this job is among them.

        Raises
        ------
        ValueError
            If it is not its turn.
        """
        member, lane = self._holder(job_id)
        lane.release(now_s)
        if remaining_s is not None:
            member.standing.remaining_s = remaining_s
        if wants:
            lane.asking.ask(member.standing, now_s)
        if need is not None and need != member.need:
            self._members.reestimate(member, need, now_s)
            self._members.settle(now_s)
        elif lane.settled and not self._allocator.tight:
            self._allocator.grant(lane, now_s)
        else:
            self._members.settle(now_s)
        return self._take_changes()

    def give_turn(
        self, lane: int, now_s: float, job_id: str | None = None, may: Callable[[str], bool] = lambda _: True
    ) -> str | None:
        """
        Give the turn of a lane that is one of :attr:`free_lanes`; return who has it now.

        Parameters
        ----------
        job_id : str or None
            A member of the lane that gets it, whoever is next; None: whoever is next.
        may : callable
            Whether a job may be next; others keep their places, and one that has asked for too long may always.
        """
        there = self._allocator.lanes[lane]
        if job_id is not None:
            there.give_to(self._member(job_id), now_s)
        else:
            there.grant(now_s, may)
        return there.holder.job_id if there.holder is not None else None

    def is_impatient(self, lane: int, now_s: float) -> bool:
        """Return whether somebody has asked for a turn in a lane for too long, and so is next."""
        return self._allocator.lanes[lane].asking.is_impatient(now_s)

    def passed(self, job_id: str, to: str, now_s: float, *, wants: bool = False) -> list[Change]:
        """
        A job's turn is over, and it has handed it straight to another member of its lane, as :meth:`ahead` had said.

        Who is next may have changed since; the turn is that of whoever has it. Whatever else is to be done at a
        boundary of this lane waits for the next one.

        Parameters
        ----------
        wants : bool
            Whether the first one is ready for another turn.

        Raises
        ------
        ValueError
            If it was not its turn, or the other one is in another lane.
        """
        member, other = self._member(job_id), self._member(to)
        lane = member.lane
        if lane is None or lane.holder is not member or other.lane is not lane or other is member:
            raise ValueError(f"job {job_id} cannot hand its turn to {to}; expected the holder, and another of its lane")
        lane.release(now_s)
        if wants:
            lane.asking.ask(member.standing, now_s)
        lane.give_to(other, now_s)
        if not lane.settled or self._allocator.tight:
            self._members.settle(now_s)
        return self._take_changes()

    def ahead(self, job_id: str, now_s: float) -> TurnForecast | None:
        """
        Return who is next after a job whose turn begins now, as far as can be said.

        None where nobody else asks, or where something else is to be done at the end of this turn: then
        :meth:`boundary` has to say who is next.
        """
        member, lane = self._holder(job_id)
        if not lane.settled or self._allocator.tight:
            return None
        return lane.asking.ahead(member.standing, now_s)

    def hurry(self, job_id: str) -> None:
        """A job is to stop at a boundary: until it has left, its requests go before those of others."""
        member = self._member(job_id)
        member.standing.hurried = True
        if member.lane is not None:
            member.lane.asking.hurry(member.standing)

    def measured(self, job_id: str, need: MemoryNeed, now_s: float) -> list[Change]:
        """A job turns out to need more, or less. For whoever has the turn, this is a boundary."""
        member = self._member(job_id)
        if self.has_turn(job_id):
            return self.boundary(job_id, now_s, need=need)
        if need != member.need:
            self._members.reestimate(member, need, now_s)
            self._members.settle(now_s)
        return self._take_changes()

    def finish(self, job_id: str, now_s: float) -> list[Change]:
        """A job is over, by itself or not, and holds no memory any more; its turn is over, too."""
        member = self._member(job_id)
        self._members.drop(member, now_s)
        self._members.settle(now_s)
        return self._take_changes()

    def gained(self, lanes: int, ratio: float, now_s: float) -> list[Change]:
        """
        Running side by side has been measured.

        Parameters
        ----------
        lanes : int
        ratio : float
            Throughput of so many lanes over that of one fewer, with the same jobs. Below ``1 + least_gain``, the
            smallest lanes close until there are fewer.
        """
        self._allocator.gains.see(lanes, ratio, now_s)
        by_size = sorted(self._allocator.sizes, reverse=True)
        most = int(min(self._allocator.most_lanes(now_s), len(by_size)))
        self._allocator.close([size.lane for size in by_size[most:]], now_s)
        self._members.settle(now_s)
        return self._take_changes()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._members.members

    @property
    def lanes(self) -> tuple[LaneView, ...]:
        """The lanes, oldest first."""
        return tuple(
            LaneView(
                lane=lane.number,
                size_bytes=lane.size_bytes,
                members=tuple(lane.members),
                holder=lane.holder.job_id if lane.holder else None,
                due=lane.holder is not None and (len(lane.asking) > 0 or not lane.settled or self._allocator.tight),
            )
            for lane in self._allocator.lanes.values()
        )

    @property
    def free_lanes(self) -> list[int]:
        """Lanes in which a turn may begin now, oldest first."""
        return [lane.number for lane in self._allocator.lanes.values() if self._allocator.may_run(lane)]

    def lane_of(self, job_id: str) -> int | None:
        """Return the lane of a job; None for one that waits, is parked, or is not here."""
        member = self._members.members.get(job_id)
        return member.lane.number if member is not None and member.lane is not None else None

    @property
    def waiting(self) -> tuple[str, ...]:
        """Jobs that have not started, first come first."""
        return tuple(self._members.waiting)

    @property
    def parked(self) -> tuple[str, ...]:
        """Jobs that are parked, the oldest first."""
        return tuple(self._members.parked)

    @property
    def leaving(self) -> tuple[str, ...]:
        """Jobs that have been told to leave and have not finished yet."""
        return tuple(self._members.leaving)

    @property
    def used_bytes(self) -> int:
        """What counts as used, without the reserve: ``sum(P + F)`` and the lanes."""
        return self._allocator.usable_bytes - self._allocator.free_bytes

    @property
    def free_bytes(self) -> int:
        """What is left; negative only after a job has kept more than it had been given."""
        return self._allocator.free_bytes

    def has_turn(self, job_id: str) -> bool:
        """Return whether a job has the turn of its lane."""
        member = self._members.members.get(job_id)
        return member is not None and member.lane is not None and member.lane.holder is member

    def need(self, job_id: str) -> MemoryNeed:
        """Return what a job needs, as far as is known."""
        return self._member(job_id).need

    def cap_bytes(self, job_id: str) -> int:
        """Return the most that a job may hold in its turn: more would be taken from others. 0 for one that waits."""
        member = self._member(job_id)
        if member.at == "waiting":
            return 0
        return member.need.resident_bytes + (member.lane.size_bytes if member.lane else 0)

    def why(self, job_id: str) -> str:
        """Return in one sentence why a job is not in a lane; empty for one that is."""
        return self._members.why(self._member(job_id))

    def _member(self, job_id: str) -> LaneMember:
        if job_id not in self._members.members:
            raise ValueError(f"job {job_id} is not on the device; expected one that has arrived and has not finished")
        return self._members.members[job_id]

    def _holder(self, job_id: str) -> tuple[LaneMember, Lane]:
        member = self._member(job_id)
        if member.lane is None or member.lane.holder is not member:
            raise ValueError(f"it is not the turn of job {job_id}; expected the holder of a turn")
        return member, member.lane

    def _take_changes(self) -> list[Change]:
        changes, self._allocator.changes = self._allocator.changes, []
        return changes


class LaneMembers:
    """
    The jobs of one device.

    Attributes
    ----------
    members : dict of str to LaneMember
        All of them.
    waiting, parked, leaving : dict of str to LaneMember
        Those that are not in a lane, each the oldest first. The parked stand before the waiting.
    """

    def __init__(self, allocator: LaneAllocator) -> None:
        self._allocator = allocator
        self.members: dict[str, LaneMember] = {}
        self.waiting: dict[str, LaneMember] = {}
        self.parked: dict[str, LaneMember] = {}
        self.leaving: dict[str, LaneMember] = {}

    def add(self, member: LaneMember) -> None:
        """Take in a job that has arrived, unless the device is too small for it."""
        self.members[member.job_id] = self.waiting[member.job_id] = member
        self._refuse_or_keep(member)

    def drop(self, member: LaneMember, now_s: float) -> None:
        """Forget a job that is over."""
        if member.at != "waiting":
            self._allocator.resident_bytes -= member.need.resident_bytes
        self._take_out(member, now_s)
        del self.members[member.job_id]

    def reestimate(self, member: LaneMember, need: MemoryNeed, now_s: float) -> None:
        """Give a job another need: it stays, moves, is parked, or has to leave. No other job does, for its sake."""
        stays, more_bytes = self._allocator.stays(member, need), need.resident_bytes - member.need.resident_bytes
        member.need = need
        if member.at == "waiting":
            self._refuse_or_keep(member)
            return
        self._allocator.resident_bytes += more_bytes
        if need.alone_bytes > self._allocator.usable_bytes:
            self._evict(member, now_s, f"it needs {mib(need.alone_bytes)}, more than the device has")
        elif member.lane is not None and stays:
            member.lane.measure()
        elif member.lane is not None:
            self._displace(member, now_s)
        lacking_bytes = -self._allocator.soon_free_bytes - sum(m.need.resident_bytes for m in self.leaving.values())
        if more_bytes > 0 and lacking_bytes > 0:  # even when those have left that are leaving, who may be the cause
            keeps, lacking = mib(more_bytes), mib(lacking_bytes)
            self._evict(member, now_s, f"it keeps {keeps} more between turns; others lack {lacking} of that")

    def settle(self, now_s: float) -> None:
        """Bring everything in order that may have come out of it; turns last."""
        self._allocator.trim(now_s)
        self._admit(now_s)
        if not self.waiting and not self.parked:
            self._allocator.reopen(now_s)
            self._allocator.spread(now_s)
        self._allocator.trim(now_s)
        self._relieve(now_s)
        for lane in self._allocator.lanes.values():
            self._allocator.grant(lane, now_s)

    def why(self, member: LaneMember) -> str:
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

    def _line(self) -> Iterator[LaneMember]:
        return chain(self.parked.values(), self.waiting.values())

    def _admit(self, now_s: float) -> None:
        """Let in who can, in order; those behind one that cannot may pass it a bounded number of times."""
        passed: list[LaneMember] = []
        for member in list(self._line()):
            entered = self._enter(member, now_s)
            if not entered and self._allocator.close_lanes_for(member.entering, now_s):
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

    def _enter(self, member: LaneMember, now_s: float) -> bool:
        others = (other.entering for other in self._line() if other is not member)
        if not self._allocator.enter(member, now_s, others):
            return False
        self.waiting.pop(member.job_id, None)
        self.parked.pop(member.job_id, None)
        return True

    def _displace(self, member: LaneMember, now_s: float) -> None:
        """Take a member out of its lane into another one, or park it."""
        if member.lane is not None:
            member.lane.remove(member, now_s)
        if not self._allocator.enter(member, now_s):
            member.at = "parked"
            self.parked[member.job_id] = member
            self._allocator.changes.append(MemberParked(member.job_id, self._lacks(member)))

    def _relieve(self, now_s: float) -> None:
        """Have the one that was parked last leave where nobody runs, since nothing else would ever make room."""
        if self.parked and not self._allocator.lanes and not self.leaving:
            newest = next(reversed(self.parked.values()))
            self._evict(newest, now_s, "it is parked, and nobody is left whose end would make room")

    def _evict(self, member: LaneMember, now_s: float, reason: str) -> None:
        if member.at == "leaving":
            return
        self._take_out(member, now_s)
        member.at = "leaving"
        self.leaving[member.job_id] = member
        changes = self._allocator.changes
        parked = [isinstance(each, MemberParked) and each.job_id == member.job_id for each in changes]
        at = parked.index(True) if any(parked) else len(changes)  # where it left its lane, which may have closed since
        changes[at : at + 1] = [MemberEvicted(member.job_id, reason)]

    def _take_out(self, member: LaneMember, now_s: float) -> None:
        if member.lane is not None:
            member.lane.remove(member, now_s)
        for group in (self.waiting, self.parked, self.leaving):
            group.pop(member.job_id, None)

    def _refuse_or_keep(self, member: LaneMember) -> None:
        if member.need.alone_bytes > self._allocator.usable_bytes:
            del self.members[member.job_id], self.waiting[member.job_id]
            reason = f"it needs {mib(member.need.alone_bytes)}; the device has {mib(self._allocator.usable_bytes)}"
            self._allocator.changes.append(LaneRefused(member.job_id, reason))

    def _lets_nobody_pass(self, member: LaneMember) -> bool:
        return member.overtaken >= self._allocator.rules.overtakes

    def _lacks(self, member: LaneMember) -> str:
        if any(lane.closing for lane in self._allocator.lanes.values()):
            return "a lane closes at its next boundary; then it is looked at again"
        first = next((m for m in self._line() if m is member or self._lets_nobody_pass(m)), member)
        if first is not member:
            return (
                f"{first.job_id} stands before it, has been overtaken {first.overtaken} times, and is not passed again"
            )
        need, free_bytes = member.entering, max(0, self._allocator.free_bytes)
        takes = f"{mib(need.resident_bytes)} and a lane of {mib(need.ephemeral_bytes)}"
        return f"it takes {takes}; {mib(free_bytes)} are free beside the lanes"


def mib(size_bytes: int) -> str:
    """Return a size for people to read."""
    return f"{size_bytes / 2**20:,.1f} MiB"
