"""
One lane, what changes about it, and which one fits a job.

:class:`Lane` has its members: who has the turn, and how large the lane is and ought to be. :data:`Change` is what
:class:`penstock_sharing.lanes.DeviceLanes` returns: what has changed, in the order in which it is to be carried out.
:func:`find` chooses the lane that a job gets, and :func:`to_close` the lanes that have to close for it.

A device of ``C`` bytes is safe if ``sum(P + F)`` of its jobs, plus the sizes of its lanes, plus the reserve, is at most
``C``; a lane is as large as the largest ephemeral need of its members. With ``free`` the bytes that are left of that, a
job with resident need ``R = P + F`` and ephemeral need ``E``

1. gets a lane of its own, if ``R + E <= free`` and what is then left is enough for the waiting jobs that could join
   one;
2. else joins the smallest lane that is large enough, if ``R <= free``;
3. else joins the smallest lane that can be made large enough: ``R + E - L <= free``;
4. else waits, or other lanes close for it: their members go to other lanes, which never takes more memory.

References
----------
Yu and Chowdhury, Salus: Fine-Grained GPU Sharing Primitives for Deep Learning Applications, MLSys 2020, section 3.3 and
algorithm 1; the second half of rule 1 and of rule 4 are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from penstock_log import MemoryNeed
from penstock_sharing.lanes.turn_policy import MemberStanding, TurnQueue

Whereabouts = Literal["waiting", "lane", "parked", "leaving"]


@dataclass(slots=True, eq=False)
class LaneMember:
    """
    A job on the device.

    Attributes
    ----------
    need : MemoryNeed
    standing : MemberStanding
        What in-lane policies look at.
    at : {"waiting", "lane", "parked", "leaving"}
        All but those that wait hold what is resident.
    lane : Lane or None
    overtaken : int
        How many that stood behind it have entered since it began to wait, or was parked.
    """

    need: MemoryNeed
    standing: MemberStanding
    at: Whereabouts = "waiting"
    lane: Lane | None = None
    overtaken: int = 0

    @property
    def job_id(self) -> str:
        """Of the job."""
        return self.standing.job_id

    @property
    def entering(self) -> MemoryNeed:
        """What it takes to get it into a lane: of one that is parked, what is resident is there already."""
        return self.need if self.at == "waiting" else MemoryNeed(0, 0, self.need.ephemeral_bytes)


class Lane:
    """
    One lane. Its size follows its members at boundaries, when nobody's ephemeral memory is in it.

    Attributes
    ----------
    number : int
    size_bytes : int
        What the holder of the turn may use.
    wanted_bytes : int
        The largest ephemeral need of its members.
    members : dict of str to LaneMember
        In order of entering.
    holder : LaneMember or None
        Whose turn it is.
    closing : bool
        Its members go elsewhere, the holder at its next boundary.
    """

    __slots__ = ("_held_since_s", "asking", "closing", "holder", "members", "number", "size_bytes", "wanted_bytes")

    def __init__(self, number: int, size_bytes: int, asking: TurnQueue) -> None:
        self.number, self.size_bytes, self.asking = number, size_bytes, asking
        self.wanted_bytes = 0
        self.members: dict[str, LaneMember] = {}
        self.holder: LaneMember | None = None
        self.closing = False
        self._held_since_s = 0.0

    @property
    def reserved_bytes(self) -> int:
        """What counts for it: what its members need, and while one of them is in its turn no less than its size."""
        return max(self.size_bytes, self.wanted_bytes) if self.holder else self.wanted_bytes

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do at the next boundary but to give the turn on."""
        return self.size_bytes == self.wanted_bytes and not self.closing

    @property
    def as_size(self) -> LaneSize:
        """The lane, as far as finding one goes."""
        return LaneSize(self.reserved_bytes, len(self.members), self.number)

    def reserved_with(self, member: LaneMember, need: MemoryNeed) -> int:
        """Return what would count for it if a member needed something else."""
        others = (m.need.ephemeral_bytes for m in self.members.values() if m is not member)
        return max(self.size_bytes if self.holder else 0, need.ephemeral_bytes, *others, 0)

    def add(self, member: LaneMember) -> None:
        """Take in a member; if it asks for a turn, it goes on asking here."""
        self.members[member.job_id] = member
        self.wanted_bytes = max(self.wanted_bytes, member.need.ephemeral_bytes)
        member.lane, member.at, member.overtaken = self, "lane", 0
        self.asking.welcome(member.standing)

    def remove(self, member: LaneMember, now_s: float) -> None:
        """Let a member go; its turn ends with it."""
        if self.holder is member:
            self.release(now_s)
        del self.members[member.job_id]
        self.asking.forget(member.standing)
        member.lane = None
        self.measure()

    def measure(self) -> None:
        """Find the wanted size anew, after a member has left or needs something else."""
        self.wanted_bytes = max((m.need.ephemeral_bytes for m in self.members.values()), default=0)

    def release(self, now_s: float) -> None:
        """End the turn, and count it as service."""
        if self.holder is not None:
            standing, ran_s = self.holder.standing, max(0.0, now_s - self._held_since_s)
            standing.service_s += ran_s
            standing.lane_s += ran_s
            standing.remaining_s = max(0.0, standing.remaining_s - ran_s)
            self.holder = None

    def grant(self, now_s: float, may: Callable[[str], bool] = lambda _: True) -> LaneMember | None:
        """Give the turn to whoever is next of those who may have one; None if nobody of them asks."""
        standing = self.asking.take(now_s, may)
        if standing is None:
            return None
        self.holder, self._held_since_s = self.members[standing.job_id], now_s
        return self.holder

    def give_to(self, member: LaneMember, now_s: float) -> None:
        """Note that a member has the turn, whoever was next."""
        self.asking.pick(member.standing)
        self.holder, self._held_since_s = member, now_s


class LaneOpened(msgspec.Struct, frozen=True):
    """There is a new lane."""

    lane: int
    size_bytes: int


class LaneResized(msgspec.Struct, frozen=True):
    """A lane has another size. Nobody runs in it at this moment: its ephemeral memory is empty."""

    lane: int
    size_bytes: int


class LaneClosed(msgspec.Struct, frozen=True):
    """A lane has no member left, and is gone; its number is not used again."""

    lane: int


class LaneEntered(msgspec.Struct, frozen=True):
    """A job that has waited, or has just arrived, may start: it is a member of a lane."""

    job_id: str
    lane: int


class MemberWaits(msgspec.Struct, frozen=True):
    """A job that has just arrived has to wait; it must take nothing of the device yet."""

    job_id: str
    reason: str


class LaneRefused(msgspec.Struct, frozen=True):
    """A job that has not started needs more than the whole device, and is off the device."""

    job_id: str
    reason: str


class MemberMoved(msgspec.Struct, frozen=True):
    """A member takes its turns in another lane from now on."""

    job_id: str
    lane: int


class MemberParked(msgspec.Struct, frozen=True):
    """A member stays as it is, at its boundary, and gets no turn until it is unparked."""

    job_id: str
    reason: str


class MemberUnparked(msgspec.Struct, frozen=True):
    """A parked job is a member of a lane again."""

    job_id: str
    lane: int


class MemberEvicted(msgspec.Struct, frozen=True):
    """A job has to leave the device: it is to be saved and stopped. Its memory counts until its ``finish``."""

    job_id: str
    reason: str


class TurnGranted(msgspec.Struct, frozen=True):
    """It is a job's turn, until its next ``boundary``."""

    job_id: str
    lane: int


Change: TypeAlias = (
    LaneOpened
    | LaneResized
    | LaneClosed
    | LaneEntered
    | MemberWaits
    | LaneRefused
    | MemberMoved
    | MemberParked
    | MemberUnparked
    | MemberEvicted
    | TurnGranted
)


class LaneSize(NamedTuple):
    """One lane, as far as the choice goes."""

    size_bytes: int
    members: int
    lane: int


class LaneChoice(NamedTuple):
    """Where a job goes; None is a lane of its own."""

    lane: int | None


def find(
    need: MemoryNeed,
    sizes: Sequence[LaneSize],
    free_bytes: int,
    waiting: Iterable[MemoryNeed] = (),
    *,
    may_open: bool = True,
) -> LaneChoice | None:
    """
    Return the lane that a job gets.

    Parameters
    ----------
    need : MemoryNeed
    sizes : sequence of LaneSize
        The lanes, in any order.
    free_bytes : int
        What the safety condition leaves.
    waiting : iterable of MemoryNeed
        Others who wait, first come first.
    may_open : bool
        Whether another lane is worth it; the first one is always.

    Returns
    -------
    LaneChoice or None
        None: it has to wait.

    Notes
    -----
    O(lanes + waiting).

    Examples
    --------
    >>> small, large = MemoryNeed(10, 0, 20), MemoryNeed(10, 0, 60)
    >>> find(small, [], 100), find(small, [LaneSize(60, 1, 0)], 100), find(small, [LaneSize(60, 1, 0)], 15)
    (LaneChoice(lane=None), LaneChoice(lane=None), LaneChoice(lane=0))
    >>> lanes = [LaneSize(20, 1, 0), LaneSize(30, 1, 1)]
    >>> find(large, lanes, 50), find(large, lanes, 30) is None
    (LaneChoice(lane=0), True)
    >>> find(small, [LaneSize(60, 1, 0)], 35, waiting=[small])
    LaneChoice(lane=0)
    """
    resident_bytes, ephemeral_bytes = need.resident_bytes, need.ephemeral_bytes
    if not sizes:
        return LaneChoice(None) if need.alone_bytes <= free_bytes else None
    left_bytes = free_bytes - need.alone_bytes
    if may_open and left_bytes >= 0 and _joinable_bytes(need, sizes, free_bytes, waiting) <= left_bytes:
        return LaneChoice(None)
    fitting = [size for size in sizes if max(0, ephemeral_bytes - size.size_bytes) + resident_bytes <= free_bytes]
    large_enough = [size for size in fitting if size.size_bytes >= ephemeral_bytes]
    return LaneChoice(min(large_enough or fitting).lane) if fitting else None


def best(need: MemoryNeed, sizes: Iterable[LaneSize]) -> int:
    """Return the best-fitting lane for one who needs no more room for what is resident; else the largest one."""
    sizes = list(sizes)
    return min((size for size in sizes if size.size_bytes >= need.ephemeral_bytes), default=max(sizes)).lane


def to_close(need: MemoryNeed, sizes: Sequence[LaneSize], free_bytes: int) -> list[int] | None:
    """
    Return the fewest lanes that have to close so that a job fits; None if closing all but one is not enough.

    The largest lane stays, and takes in whom no other can: so the others free their whole size.

    Examples
    --------
    >>> sizes = [LaneSize(60, 1, 0), LaneSize(50, 1, 1), LaneSize(20, 1, 2), LaneSize(10, 1, 3)]
    >>> to_close(MemoryNeed(30, 0, 60), sizes, 15)
    [2]
    >>> to_close(MemoryNeed(30, 0, 90), sizes, 0)
    [1, 3]
    >>> to_close(MemoryNeed(30, 0, 120), sizes, 0) is None
    True
    """
    if not sizes:
        return None
    largest, *others = sorted(sizes, key=lambda size: (-size.size_bytes, -size.members, size.lane))
    lacking_bytes = need.resident_bytes + max(0, need.ephemeral_bytes - largest.size_bytes) - free_bytes
    closing: list[int] = []
    while lacking_bytes > 0:
        if not others:
            return None
        enough = [size for size in others if size.size_bytes >= lacking_bytes]
        size = min(enough) if enough else others[0]
        others.remove(size)
        closing.append(size.lane)
        lacking_bytes -= size.size_bytes
    return closing


def _joinable_bytes(need: MemoryNeed, sizes: Sequence[LaneSize], free_bytes: int, waiting: Iterable[MemoryNeed]) -> int:
    """Return what those who wait would take, of those who could join some lane if this job took none of its own."""
    size_bytes = max(sizes).size_bytes
    left_bytes = free_bytes - need.resident_bytes - max(0, need.ephemeral_bytes - size_bytes)
    size_bytes = max(size_bytes, need.ephemeral_bytes)
    wanted_bytes = 0
    for other in waiting:
        if other.ephemeral_bytes <= size_bytes and other.resident_bytes <= left_bytes - wanted_bytes:
            wanted_bytes += other.resident_bytes
    return wanted_bytes
