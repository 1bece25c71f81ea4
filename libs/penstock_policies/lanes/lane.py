"""One lane and its members: who has the turn, and how large the lane is and ought to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock_events import MemoryNeed
from penstock_policies.lanes.find import Lot
from penstock_policies.lanes.turns import Asking, Standing

Whereabouts = Literal["waiting", "lane", "parked", "leaving"]


@dataclass(slots=True, eq=False)
class Member:
    """
    A job on the board.

    Attributes
    ----------
    need : MemoryNeed
    standing : Standing
        What in-lane policies look at.
    at : {"waiting", "lane", "parked", "leaving"}
        All but those that wait hold what is resident.
    lane : Lane or None
    overtaken : int
        How many that stood behind it have entered since it began to wait, or was parked.
    """

    need: MemoryNeed
    standing: Standing
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
    members : dict of str to Member
        In order of entering.
    holder : Member or None
        Whose turn it is.
    closing : bool
        Its members go elsewhere, the holder at its next boundary.
    """

    __slots__ = ("_held_since_s", "asking", "closing", "holder", "members", "number", "size_bytes", "wanted_bytes")

    def __init__(self, number: int, size_bytes: int, asking: Asking) -> None:
        self.number, self.size_bytes, self.asking = number, size_bytes, asking
        self.wanted_bytes = 0
        self.members: dict[str, Member] = {}
        self.holder: Member | None = None
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
    def lot(self) -> Lot:
        """The lane, as far as finding one goes."""
        return Lot(self.reserved_bytes, len(self.members), self.number)

    def reserved_with(self, member: Member, need: MemoryNeed) -> int:
        """Return what would count for it if a member needed something else."""
        others = (m.need.ephemeral_bytes for m in self.members.values() if m is not member)
        return max(self.size_bytes if self.holder else 0, need.ephemeral_bytes, *others, 0)

    def add(self, member: Member, now_s: float) -> None:
        """Take in a member; if it asks for a turn, it goes on asking here."""
        self.members[member.job_id] = member
        self.wanted_bytes = max(self.wanted_bytes, member.need.ephemeral_bytes)
        member.lane, member.at, member.overtaken = self, "lane", 0
        self.asking.welcome(member.standing, now_s)

    def remove(self, member: Member, now_s: float) -> None:
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

    def grant(self, now_s: float) -> Member | None:
        """Give the turn to whoever is next; None if nobody asks."""
        standing = self.asking.take(now_s)
        if standing is None:
            return None
        self.holder, self._held_since_s = self.members[standing.job_id], now_s
        return self.holder

    def hand(self, member: Member, now_s: float) -> None:
        """Note that a member has the turn, whoever was next."""
        self.asking.pick(member.standing)
        self.holder, self._held_since_s = member, now_s
