"""One run that takes turns on its devices, as the node's lanes know it, and what lanes are called."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock_events import MemoryNeed
from penstock_executor.local import Key, Seat
from penstock_executor.sharing.meter import Meter
from penstock_lanes.wire import Who


class Place(NamedTuple):
    """A lane of this node."""

    device: int
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """
    A run that is to share its devices.

    Attributes
    ----------
    job_id, epoch
        Of the run.
    ranks : dict of int to tuple of int
        Its processes on this node → the devices of each.
    need : MemoryNeed or None
        Of each device, as far as anybody knows.
    priority, service_s, remaining_s
        As in-lane policies want to know it.
    adopted : bool
        It runs already: an earlier executor started it.
    """

    job_id: str
    epoch: int
    ranks: dict[int, tuple[int, ...]]
    need: MemoryNeed | None = None
    priority: int = 0
    service_s: float = 0.0
    remaining_s: float = math.inf
    adopted: bool = False

    @property
    def key(self) -> Key:
        """Of the run."""
        return self.job_id, self.epoch

    @property
    def devices(self) -> tuple[int, ...]:
        """All of its devices, lowest first: the order in which everybody takes them."""
        return tuple(sorted({device for devices in self.ranks.values() for device in devices}))


@dataclass(slots=True, eq=False)
class Party:
    """
    A run among those that share.

    Attributes
    ----------
    sharer : Sharer
    meter : Meter
    known : bool
        What it needs is known; until then nobody else has a turn beside it.
    lanes : dict of int to int
        Device → its lane there; without those on which it waits or is parked.
    sits : dict of int to int
        Device → the lane in whose page its process has its seat; one that is parked keeps the last.
    joined, asking, holding : set of int
        Ranks that are here, that wait for a turn, and that have one.
    tokens : dict of int to set of Place
        Rank → the lanes whose token it has; a process on several devices takes and gives them one after the other.
    turn : bool
        It is its turn on all of its devices.
    turn_s : float
        Since when.
    reach : int
        So many iterations of this turn have been begun, or are about to be, by one that was let go on.
    level : bool
        Whether its processes have done equally many iterations when a turn begins: who knows, of one that was adopted.
    looked : dict of int to int
        Rank → iterations that it had begun when it was looked last.
    pending : MemoryNeed or None
        What it turned out to need, to be taken into account at its next boundary.
    stopped : MemoryNeed or None
        What it needed before its process was stopped in a turn; None while it is not.
    seat : Seat
        How far it has come.
    """

    sharer: Sharer
    meter: Meter
    known: bool
    lanes: dict[int, int] = field(default_factory=dict)
    sits: dict[int, int] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)
    asking: set[int] = field(default_factory=set)
    holding: set[int] = field(default_factory=set)
    tokens: dict[int, set[Place]] = field(default_factory=dict)
    turn: bool = False
    turn_s: float = 0.0
    reach: int = 0
    level: bool = True
    looked: dict[int, int] = field(default_factory=dict)
    pending: MemoryNeed | None = None
    stopped: MemoryNeed | None = None
    seat: Seat = field(default_factory=lambda: Seat("waits"))

    @property
    def job_id(self) -> str:
        """Of the run."""
        return self.sharer.job_id

    @property
    def alone(self) -> bool:
        """Whether it is one process on one device, and hands its turns on by itself."""
        return len(self.sharer.ranks) == 1 and len(self.sharer.devices) == 1

    @property
    def places(self) -> list[Place]:
        """Its lanes."""
        return [Place(device, lane) for device, lane in self.lanes.items()]

    def has_begun_to_give(self, rank: int) -> bool:
        """Whether a process has given the lane of its first device back, but not, as far as is known, all others."""
        has = self.tokens.get(rank)
        return bool(has) and min(place.device for place in has or ()) > min(self.sharer.ranks[rank])

    @property
    def all_ask(self) -> bool:
        """Whether everyone who is here waits for a turn."""
        return bool(self.joined) and self.joined <= self.asking

    def note_token(self, rank: int, place: Place, *, has: bool) -> None:
        """A process has a lane's token, or has it no more."""
        mine = self.tokens.setdefault(rank, set())
        if has:
            mine.add(place)
        else:
            mine.discard(place)

    def pending_needs(self) -> dict[int, MemoryNeed] | None:
        """Return what it turned out to need of each device, which is known with that; None where nothing is new."""
        if self.pending is None:
            return None
        self.known = True
        return dict.fromkeys(self.sharer.devices, self.pending)

    def who(self, rank: int) -> Who:
        """Return the name of one of its processes."""
        return Who(self.sharer.job_id, self.sharer.epoch, rank)

    def whos_on(self, device: int) -> list[Who]:
        """Return its processes on a device."""
        return [self.who(rank) for rank, devices in self.sharer.ranks.items() if device in devices]

    def seats_of(self, rank: int) -> tuple[Place, ...]:
        """Return the lanes in which one of its processes has to sit, in the order in which it takes them."""
        devices = sorted(self.sharer.ranks[rank])
        return tuple(Place(device, self.sits[device]) for device in devices if device in self.sits)
