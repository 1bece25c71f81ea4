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


@dataclass(slots=True)
class Seen:
    """
    Looks at which nothing had changed, and how many of them it takes before something is done about it.

    Examples
    --------
    >>> seen = Seen()
    >>> [seen.again("stuck") for _ in range(6)]  # after one look, then after two more, then after four
    [False, True, False, True, False, False]
    """

    what: object = None
    looks: int = 0
    enough: int = 1

    def again(self, what: object) -> bool:
        """Look; return whether it has been the same for long enough, which is twice as long the next time."""
        if what != self.what:
            self.what, self.looks = what, 0
            return False
        self.looks += 1
        if self.looks < self.enough:
            return False
        self.looks, self.enough = 0, 2 * self.enough
        return True


@dataclass(slots=True, eq=False)
class Party:
    """
    A run among those that share, as its processes were heard of.

    Whether it is its turn is not kept here: :class:`penstock_policies.lanes.Gangs` says so; and who has a lane's token
    is kept once for all, as the pages tell it (:class:`~penstock_executor.sharing.passing.Passing`).

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
    joined, asking : set of int
        Ranks that are here, and that wait for their token.
    let : set of int
        Ranks that have their token in this turn, or are to have it: they are named. Empty while it is not its turn.
    outside : set of int
        Ranks that may be in an iteration although nobody gave them a turn for it here: it began under an earlier
        executor, or the token was taken from them in it. They may wait in it for others of the gang.
    turn_s : float
        Since when it has had its turn.
    reach : int
        So many iterations have been begun, or are about to be, by one that was let go on in this turn.
    seen : Seen
        What was seen of those who wait for others of the gang, for how many looks, and how many it takes.
    pending : MemoryNeed or None
        What it turned out to need, to be taken into account at its next boundary.
    stopped : MemoryNeed or None
        What it needed before its process was stopped in a turn; None while it is not.
    hurried_s : float or None
        Since when it is to stop.
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
    let: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    turn_s: float = 0.0
    reach: int = 0
    seen: Seen = field(default_factory=Seen)
    pending: MemoryNeed | None = None
    stopped: MemoryNeed | None = None
    hurried_s: float | None = None
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

    @property
    def is_gang(self) -> bool:
        """Whether it is several processes, which may wait for each other."""
        return len(self.sharer.ranks) > 1

    @property
    def all_ask(self) -> bool:
        """Whether everyone who is here waits for a turn, or may be in an iteration and wait there for those who do."""
        return bool(self.asking) and self.joined <= self.asking | self.outside

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
