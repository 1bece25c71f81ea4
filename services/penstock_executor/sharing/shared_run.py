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
from msgspec.structs import astuple

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
    What a run asks of the devices that it shares.

    Attributes
    ----------
    job_id, epoch
        Names of the run.
    ranks : dict of int to tuple of int
        Process rank → devices, of its processes on this node.
    need : MemoryNeed or None
        Memory that it needs of each device, as far as it is known.
    priority, service_s, remaining_s
        What turn policies ask of a run.
    adopted : bool
        Whether it runs already: an earlier executor started it.
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
        """All devices of the run, lowest first: the order in which every process takes them."""
        return tuple(sorted({device for devices in self.ranks.values() for device in devices}))


@dataclass(slots=True)
class IdleLooks:
    """
    A count of looks at which nothing had changed, and of the looks that it takes before something is done.

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
        """Look once; return whether it has been the same for long enough; the next time takes twice as many looks."""
        if what != self.what:
            self.what, self.looks = what, 0
            return False
        self.looks += 1
        if self.looks < self.enough:
            return False
        self.looks, self.enough = 0, 2 * self.enough
        return True


@dataclass(slots=True)
class RunTurn:
    """
    One turn of a run; an empty one stands for none.

    Attributes
    ----------
    begun_s : float
    let : set of int
        Process ranks that have their token in this turn, or are named to have it.
    reach : int
        Most iterations that a process has begun, or is about to begin, after it was let go on in this turn.
    idle : IdleLooks
        Looks at processes that wait for others of the gang.
    """

    begun_s: float = 0.0
    let: set[int] = field(default_factory=set)
    reach: int = 0
    idle: IdleLooks = field(default_factory=IdleLooks)


@dataclass(slots=True, eq=False)
class SharedRun:
    """
    One run among those that share, as its processes report it.

    Whether the run has its turn is not kept here: :class:`penstock_sharing.lanes.LaneGangs` says so. Who has a lane's
    token is kept once for all runs (:class:`~penstock_executor.sharing.sharing_state.TokenTracker`).

    Attributes
    ----------
    request : ShareRequest
    meter : MemoryMeter
    known : bool
        Whether its need is known; until then no other run has a turn beside it.
    lanes : dict of int to int
        Device → the run's lane there; without devices on which it waits or is parked.
    slot_lanes : dict of int to int
        Device → the lane in whose page its process has its slot; a parked process keeps the last one.
    joined, asking : set of int
        Process ranks that are here, and those that wait for their token.
    turn : RunTurn
    outside : set of int
        Process ranks that may be in an iteration without a turn here: the iteration began under an earlier executor,
        or the token was taken from them in it. They may wait in it for others of the gang.
    pending : MemoryNeed or None
        A new need, which counts from the run's next boundary.
    stopped : MemoryNeed or None
        The need before a process was stopped in its turn; None while no process is stopped.
    hurried_s : float or None
        When the run was told to stop.
    progress : SharingProgress
        How far the run has come.
    """

    request: ShareRequest
    meter: MemoryMeter
    known: bool
    lanes: dict[int, int] = field(default_factory=dict)
    slot_lanes: dict[int, int] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)
    asking: set[int] = field(default_factory=set)
    turn: RunTurn = field(default_factory=RunTurn)
    outside: set[int] = field(default_factory=set)
    pending: MemoryNeed | None = None
    stopped: MemoryNeed | None = None
    hurried_s: float | None = None
    progress: SharingProgress = field(default_factory=lambda: SharingProgress("waits"))

    @property
    def job_id(self) -> str:
        """Of the run."""
        return self.request.job_id

    @property
    def alone(self) -> bool:
        """Whether the run is one process on one device, which hands its turns on by itself."""
        return len(self.request.ranks) == 1 and len(self.request.devices) == 1

    @property
    def places(self) -> list[NodeLane]:
        """The lanes of the run."""
        return [NodeLane(device, lane) for device, lane in self.lanes.items()]

    @property
    def is_gang(self) -> bool:
        """Whether the run has several processes, which may wait for each other."""
        return len(self.request.ranks) > 1

    @property
    def all_ask(self) -> bool:
        """Whether every process here waits for a turn, or may be in an iteration and wait there for those that do."""
        return bool(self.asking) and self.joined <= self.asking | self.outside

    def pending_needs(self) -> dict[int, MemoryNeed] | None:
        """Return the run's new need of each device, which becomes known with this; None if there is no new need."""
        if self.pending is None:
            return None
        self.known = True
        return dict.fromkeys(self.request.devices, self.pending)

    def who(self, rank: int) -> LaneClientId:
        """Return the client id of one of the run's processes."""
        return LaneClientId(self.request.job_id, self.request.epoch, rank)

    def whos_on(self, device: int) -> list[LaneClientId]:
        """Return the client ids of the run's processes on a device."""
        return [self.who(rank) for rank, devices in self.request.ranks.items() if device in devices]

    def slots_of(self, rank: int) -> tuple[NodeLane, ...]:
        """Return the lanes in which a process has its slots, in the order in which it takes their tokens."""
        devices = sorted(self.request.ranks[rank])
        return tuple(NodeLane(device, self.slot_lanes[device]) for device in devices if device in self.slot_lanes)


REPORTED_CHANGE: Final = 0.05
"""A need is reported again once a part of it has changed by more than this share of the last report."""
GRAIN_BYTES: Final = 2**20
"""Changes below this are not reported: a process's resident memory wavers by as much."""
LEAST_ITERATIONS: Final = 2
"""Of which the first does not count: optimizer state appears during it."""


class MemoryMeter:
    """
    One run's need of each of its devices: in each part, the largest need of its processes here.

    Attributes
    ----------
    iterations : int
        Iterations that all measured processes have done in this run.
    reported : MemoryNeed or None
        The need as the log has it.

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

    def __init__(self, reported: MemoryNeed | None = None) -> None:
        self.reported = reported
        self._estimates: dict[int, MemoryEstimate] = {}
        self._iterations: dict[int, int] = {}

    @property
    def iterations(self) -> int:
        """Iterations that every process with a reading has done."""
        return min(self._iterations.values(), default=0)

    @property
    def need(self) -> MemoryNeed | None:
        """The need as known by now; None before every process has done its second iteration."""
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
        """Add the reading of one process after ``iterations`` iterations of this run."""
        estimate = self._estimates.setdefault(rank, MemoryEstimate())
        if iterations >= LEAST_ITERATIONS and estimate.need is None:
            estimate.see(sample)  # the first that is seen is not the first that was done
        estimate.see(sample)
        self._iterations[rank] = iterations

    def take_unreported(self) -> MemoryNeed | None:
        """Return the need if the log should have it, and count it as reported."""
        need = self.need
        if need is None or (self.reported is not None and not changed(self.reported, need)):
            return None
        self.reported = need
        return need


def changed(reported: MemoryNeed, need: MemoryNeed, share: float = REPORTED_CHANGE) -> bool:
    """
    Return whether a need differs in any part by more than a share from what the log has.

    Examples
    --------
    >>> mib = 1 << 20
    >>> changed(MemoryNeed(100 * mib), MemoryNeed(104 * mib)), changed(MemoryNeed(100 * mib), MemoryNeed(94 * mib))
    (False, True)
    """
    pairs = zip(astuple(reported), astuple(need), strict=True)
    return any(abs(now - before) > max(share * before, GRAIN_BYTES) for before, now in pairs)


class DesiredTurn(msgspec.Struct, frozen=True):
    """
    What one lane's page should say.

    Attributes
    ----------
    holder : LaneClientId or None
        The process that has the token; None: the token stays with the broker, or returns to it.
    after : LaneClientId or None
        The process that has it next; None: the holder keeps it.
    recall : bool
        Whether the holder gives the token back at its next boundary, because something comes before the next turn.
    turn_s : float, seconds
        The shortest turn of the holder, if a process is named.
    not_before_s : float
        The earliest time to ask the holder for the token.
    """

    holder: LaneClientId | None = None
    after: LaneClientId | None = None
    recall: bool = False
    turn_s: float = 0.0
    not_before_s: float = 0.0


@dataclass(slots=True)
class SharingCommands:
    """
    Commands of the lanes: what has to be done.

    Attributes
    ----------
    facts : list
        Facts to append to the log, in order.
    slot_assignments : dict of LaneClientId to tuple of NodeLane
        Process → the lanes in which it has its slots from now on.
    caps : dict of Key to dict of int to int
        Run → device → the most bytes that the run may hold there.
    ended : dict of Key to str
        Run to end at once → why.
    opened, closed : list of NodeLane
        Lanes that are new, and lanes that are gone.
    touched : set of NodeLane
        Lanes whose desired turn may have changed.
    woken : bool
        Whether some run may start now, or has to leave.
    """

    facts: list[RunMeasured | LaneChanged | RunWarned] = field(default_factory=list)
    slot_assignments: dict[LaneClientId, tuple[NodeLane, ...]] = field(default_factory=dict)
    caps: dict[Key, dict[int, int]] = field(default_factory=dict)
    ended: dict[Key, str] = field(default_factory=dict)
    opened: list[NodeLane] = field(default_factory=list)
    closed: list[NodeLane] = field(default_factory=list)
    touched: set[NodeLane] = field(default_factory=set)
    woken: bool = False
