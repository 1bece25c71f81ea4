"""
One run that takes turns on its devices, its measured need, and commands about it.

A :class:`ShareRequest` is what a run asks of its devices, and a :class:`SharedRun` the run as its processes report it.
:class:`MemoryMeter` measures what the run needs of a device's memory, and says when the log should know.
:class:`DesiredTurn` is what a lane's page should say, and :class:`SharingCommands` what has to be done by whoever has
the pages, the processes and the log. A :class:`NodeLane` names a lane. All of it is pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from penstock_executor.run_state import Key, SharingProgress
from penstock_log import LaneChanged, MemoryNeed, RunMeasured, RunWarned
from penstock_sharing.lanes import MemoryEstimate, MemoryReading
from penstock_sharing.token.protocol import LaneClientId


class NodeLane(NamedTuple):
    """A lane of this node."""

    device: int
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
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
class IdleLooks:
    """
    Looks at which nothing had changed, and how many of them it takes before something is done about it.

    Examples
    --------
    >>> seen = IdleLooks()
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
class SharedRun:
    """
    A run among those that share, as its processes were heard of.

    Whether it is its turn is not kept here: :class:`penstock_sharing.lanes.Gangs` says so; and who has a lane's token
    is kept once for all, as the pages tell it (:class:`~penstock_executor.sharing.sharing_state.TokenTracker`).

    Attributes
    ----------
    sharer : ShareRequest
    meter : MemoryMeter
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
    seen : IdleLooks
        What was seen of those who wait for others of the gang, for how many looks, and how many it takes.
    pending : MemoryNeed or None
        What it turned out to need, to be taken into account at its next boundary.
    stopped : MemoryNeed or None
        What it needed before its process was stopped in a turn; None while it is not.
    hurried_s : float or None
        Since when it is to stop.
    seat : SharingProgress
        How far it has come.
    """

    sharer: ShareRequest
    meter: MemoryMeter
    known: bool
    lanes: dict[int, int] = field(default_factory=dict)
    sits: dict[int, int] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)
    asking: set[int] = field(default_factory=set)
    let: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    turn_s: float = 0.0
    reach: int = 0
    seen: IdleLooks = field(default_factory=IdleLooks)
    pending: MemoryNeed | None = None
    stopped: MemoryNeed | None = None
    hurried_s: float | None = None
    seat: SharingProgress = field(default_factory=lambda: SharingProgress("waits"))

    @property
    def job_id(self) -> str:
        """Of the run."""
        return self.sharer.job_id

    @property
    def alone(self) -> bool:
        """Whether it is one process on one device, and hands its turns on by itself."""
        return len(self.sharer.ranks) == 1 and len(self.sharer.devices) == 1

    @property
    def places(self) -> list[NodeLane]:
        """Its lanes."""
        return [NodeLane(device, lane) for device, lane in self.lanes.items()]

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

    def who(self, rank: int) -> LaneClientId:
        """Return the name of one of its processes."""
        return LaneClientId(self.sharer.job_id, self.sharer.epoch, rank)

    def whos_on(self, device: int) -> list[LaneClientId]:
        """Return its processes on a device."""
        return [self.who(rank) for rank, devices in self.sharer.ranks.items() if device in devices]

    def seats_of(self, rank: int) -> tuple[NodeLane, ...]:
        """Return the lanes in which one of its processes has to sit, in the order in which it takes them."""
        devices = sorted(self.sharer.ranks[rank])
        return tuple(NodeLane(device, self.sits[device]) for device in devices if device in self.sits)


NEWS: Final = 0.05
"""A part of the need that has changed by more than this share of what was told is told again."""
GRAIN_BYTES: Final = 2**20
"""Changes below this are no news: a process's resident memory wavers by as much."""
LEAST_ITERATIONS: Final = 2
"""Of which the first does not count: optimizer state appears during it."""


class MemoryMeter:
    """
    One run's need of each of its devices: the most of its processes here in each part.

    Attributes
    ----------
    iterations : int
        That the measured processes have done in this run, at least.
    told : MemoryNeed or None
        As it was told to the log.

    Examples
    --------
    >>> meter = MemoryMeter()
    >>> meter.see(0, MemoryReading(allocated_bytes=3 << 20, peak_bytes=9 << 20), iterations=1)
    >>> meter.need is None
    True
    >>> meter.see(0, MemoryReading(allocated_bytes=3 << 20, peak_bytes=7 << 20), iterations=2)
    >>> meter.need
    MemoryNeed(persistent_bytes=3145728, framework_bytes=0, ephemeral_bytes=4194304)
    """

    def __init__(self, told: MemoryNeed | None = None) -> None:
        self.told = told
        self._estimates: dict[int, MemoryEstimate] = {}
        self._iterations: dict[int, int] = {}

    @property
    def iterations(self) -> int:
        """What every process that has said anything has done at least."""
        return min(self._iterations.values(), default=0)

    @property
    def need(self) -> MemoryNeed | None:
        """What is known by now; None before every process has done its second iteration."""
        needs = [estimate.need for estimate in self._estimates.values()]
        known = [need for need in needs if need is not None]
        if not known or len(known) < len(needs) or self.iterations < LEAST_ITERATIONS:
            return None
        return MemoryNeed(
            max(need.persistent_bytes for need in known),
            max(need.framework_bytes for need in known),
            max(need.ephemeral_bytes for need in known),
        )

    def see(self, rank: int, sample: MemoryReading, iterations: int) -> None:
        """Take in what one process has shown after so many iterations of this run."""
        estimate = self._estimates.setdefault(rank, MemoryEstimate())
        if iterations >= LEAST_ITERATIONS and estimate.need is None:
            estimate.see(sample)  # the first that is seen is not the first that was done
        estimate.see(sample)
        self._iterations[rank] = iterations

    def news(self) -> MemoryNeed | None:
        """Return the need if the log should know of it, and count it as told."""
        need = self.need
        if need is None or (self.told is not None and not changed(self.told, need)):
            return None
        self.told = need
        return need


def changed(told: MemoryNeed, need: MemoryNeed, share: float = NEWS) -> bool:
    """
    Say whether a need differs by more than a share from what was told, in any of its parts.

    Examples
    --------
    >>> mib = 1 << 20
    >>> changed(MemoryNeed(100 * mib), MemoryNeed(104 * mib)), changed(MemoryNeed(100 * mib), MemoryNeed(94 * mib))
    (False, True)
    """
    pairs = (
        (told.persistent_bytes, need.persistent_bytes),
        (told.framework_bytes, need.framework_bytes),
        (told.ephemeral_bytes, need.ephemeral_bytes),
    )
    return any(abs(now - before) > max(share * before, GRAIN_BYTES) for before, now in pairs)


class DesiredTurn(msgspec.Struct, frozen=True):
    """
    What one lane's page should say.

    Attributes
    ----------
    holder : LaneClientId or None
        Who is to have the token; None: nobody, it stays with or comes home to the keeper.
    after : LaneClientId or None
        Who has it next; None: the holder keeps it.
    recall : bool
        The holder is to give it back at its next boundary, since something is to be done before the next turn.
    turn_s : float, seconds
        How long the holder's turn is at least, if somebody is named.
    not_before_s : float
        Until then the holder is not to be asked for the token.
    """

    holder: LaneClientId | None = None
    after: LaneClientId | None = None
    recall: bool = False
    turn_s: float = 0.0
    not_before_s: float = 0.0


@dataclass(slots=True)
class SharingCommands:
    """
    What has to be done.

    Attributes
    ----------
    facts : list
        To be appended to the log, in order.
    seatings : dict of LaneClientId to tuple of NodeLane
        Processes → the lanes in which they sit from now on.
    caps : dict of Key to dict of int to int
        Runs → device → the most bytes that it may hold there.
    ended : dict of Key to str
        Runs that are to be ended at once, and why.
    opened, closed : list of NodeLane
        Lanes that are new, and lanes that are gone.
    touched : set of NodeLane
        Lanes whose wish may have changed.
    woken : bool
        Whether some run may start now, or has to leave.
    """

    facts: list[RunMeasured | LaneChanged | RunWarned] = field(default_factory=list)
    seatings: dict[LaneClientId, tuple[NodeLane, ...]] = field(default_factory=dict)
    caps: dict[Key, dict[int, int]] = field(default_factory=dict)
    ended: dict[Key, str] = field(default_factory=dict)
    opened: list[NodeLane] = field(default_factory=list)
    closed: list[NodeLane] = field(default_factory=list)
    touched: set[NodeLane] = field(default_factory=set)
    woken: bool = False
