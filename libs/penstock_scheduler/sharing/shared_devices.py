"""
Shared devices: what a job that shares asks of one, what is on each, and which devices a job may join.

:class:`SharingDemand` is what a job that shares asks: whose it is, how it shares, and what it needs of the memory.
:class:`SharedDevice` is one device with the jobs on it; it says whether there is room for one more.
:class:`SharedDeviceIndex` has a pool's shared devices, as a round changes them, by whose jobs may join them.
:class:`SharedDeviceSurvey` says how the shared devices that a job accepts stand for it, and so why it waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Literal, NamedTuple

import msgspec

from penstock_log import Job, JobSpec, MemoryNeed
from penstock_log.text import gibibytes
from penstock_scheduler.placement import Located
from penstock_sharing.lanes.memory_need import DeviceLoad

Mode = Literal["lane", "fraction"]
Willing = Literal["user", "team", "anyone"]


class SharingGroup(NamedTuple):
    """
    Whose a job is, and with whose it may share a device.

    Examples
    --------
    >>> ann, bob = SharingGroup("ann", "vision", "team"), SharingGroup("bob", "vision", "anyone")
    >>> ann.shares_with(bob), ann.shares_with(SharingGroup("eve", "speech", "anyone"))
    (True, False)
    """

    user: str
    team: str
    share_with: Willing

    def shares_with(self, other: SharingGroup) -> bool:
        """Say whether both are willing."""
        return self._accepts(other) and other._accepts(self)

    def _accepts(self, other: SharingGroup) -> bool:
        """
        Say whether this side is willing to share with the other.

        A user's jobs for one team do not count as jobs of another team; a job without a team counts as its user's only.
        """
        if self.share_with == "anyone":
            return True
        same_team, same_user = self.team == other.team, self.user == other.user
        return same_team and (same_user or (self.share_with == "team" and bool(self.team)))


class SharingDemand(NamedTuple):
    """
    A job that shares.

    Attributes
    ----------
    mode : {"lane", "fraction"}
        The two are never on one device.
    need : MemoryNeed or None
        Memory on each device, as measured or, before that, declared. None for a lane job whose need is not known yet:
        it has its devices alone until it is known.
    fraction : float
        The share of one device, for mode ``fraction``; 1 for lanes.
    gpus : int
        The number of devices of one node on each of which it has a lane.
    most : int
        Jobs on each of its devices, itself among them; 0: as many as the pool allows.
    """

    mode: Mode
    group: SharingGroup
    need: MemoryNeed | None
    fraction: float = 1.0
    gpus: int = 1
    most: int = 0

    @property
    def alone(self) -> bool:
        """Whether no other job may be on its devices."""
        return self.mode == "lane" and self.need is None

    def least_bytes(self, reserve_share: float) -> int:
        """Return how much memory a device must have so that the job fits it at all."""
        if self.need is None:
            return 0
        usable_share = self.fraction if self.mode == "fraction" else 1.0 - reserve_share
        return math.ceil(self.need.alone_bytes / usable_share)

    def needs(self) -> str:
        """Return what the job needs, in words."""
        if self.mode == "fraction":
            return f"{self.fraction:g} of a device"
        return "a device of its own" if self.need is None else gibibytes(self.need.alone_bytes)


def sharing_demand(job: Job, measured: Callable[[Job], MemoryNeed | None]) -> SharingDemand | None:
    """
    Return how a job shares; None for one that has its devices to itself, as samples do.

    Parameters
    ----------
    measured : callable
        Returns what other runs of the job's workload have needed; called only where this job's own need is not known.
    """
    spec = job.spec
    if spec.sharing == "exclusive" or job.sample is not None:
        return None
    group = SharingGroup(spec.user, spec.team, spec.share_with)
    if spec.sharing == "fraction":
        return SharingDemand("fraction", group, spec.memory, spec.fraction)
    return SharingDemand("lane", group, job.need or spec.memory or measured(job), gpus=spec.gpus, most=spec.sharers)


def asking(spec: JobSpec, demand: SharingDemand, reserve_share: float) -> JobSpec:
    """Return the specification of the job for devices that it has to itself, with enough memory for all its needs."""
    least_bytes = demand.least_bytes(reserve_share)
    return msgspec.structs.replace(spec, memory_bytes=least_bytes) if least_bytes > spec.memory_bytes else spec


ROUNDING: Final = 1e-9
"""Ten tenths are a whole."""


@dataclass(frozen=True, slots=True)
class SharingLimits:
    """
    What bounds sharing in a pool.

    Attributes
    ----------
    reserve_share : float
        The share of a device's memory that lanes leave alone.
    most_jobs : int
        The most jobs on one device.
    """

    reserve_share: float
    most_jobs: int


@dataclass(frozen=True, slots=True)
class SharedDevice:
    """
    A device and the jobs on it.

    Attributes
    ----------
    load : DeviceLoad
        The memory that its lanes hold.
    fraction : float
        The sum of its jobs' fractions.
    occupants : mapping of str to SharingDemand
        Job → its demand; all share in one way, the ``mode``.
    groups : frozenset of SharingGroup
        The groups of its jobs.
    alone : bool
        Whether one of its jobs may have no other beside it.
    most : int
        The most jobs on it, as its jobs themselves say; 0 where none says.

    Examples
    --------
    >>> from penstock_log import Device, MemoryNeed
    >>> gpu = Device(index=0, kind="fast", memory_bytes=100, backend="emulated")
    >>> lane = SharingDemand("lane", SharingGroup("ann", "", "user"), MemoryNeed(10, 0, 30))
    >>> shared = SharedDevice.of(("n1", gpu), {"a": lane, "b": lane}, SharingLimits(0.25, 8))
    >>> shared.holds(lane), shared.plus("c", lane).plus("d", lane).holds(lane)
    (True, False)
    >>> shared.taken()
    '2 jobs hold 50 of 100 B'
    """

    at: Located
    limits: SharingLimits
    load: DeviceLoad
    fraction: float
    occupants: Mapping[str, SharingDemand]
    groups: frozenset[SharingGroup]
    mode: str
    alone: bool
    most: int

    @classmethod
    def of(cls, at: Located, occupants: Mapping[str, SharingDemand], limits: SharingLimits) -> SharedDevice:
        """Return a device with these jobs on it."""
        capacity_bytes = at[1].memory_bytes
        load = DeviceLoad(capacity_bytes - int(capacity_bytes * limits.reserve_share))
        for demand in occupants.values():
            load = load.plus(demand.need) if demand.mode == "lane" and demand.need is not None else load
        fraction = math.fsum(
            demand.fraction for demand in occupants.values() if demand.mode == "fraction"
        )  # in any order
        groups = frozenset(demand.group for demand in occupants.values())
        mode = next((demand.mode for demand in occupants.values()), "")
        alone = any(demand.alone for demand in occupants.values())
        most = min((demand.most for demand in occupants.values() if demand.most), default=0)
        return cls(at, limits, load, fraction, occupants, groups, mode, alone, most)

    def holds(self, demand: SharingDemand) -> bool:
        """Say whether one more job may join, and there is room for it."""
        return self._has_memory(demand) and not self.refuses(demand)

    def refuses(self, demand: SharingDemand) -> str:
        """Return what keeps a job away however much room there is, to follow "the device is"; else an empty text."""
        if self.mode != demand.mode:
            return "shared in the other way"
        if demand.alone or self.alone:
            return "with a job whose need is not known yet"
        most = min(filter(None, (self.limits.most_jobs, self.most, demand.most)))
        if len(self.occupants) >= most:
            return f"with {most} job{'s' if most > 1 else ''}, the most"
        if not all(map(demand.group.shares_with, self.groups)):
            return "with jobs that it may not share with"
        return ""

    def growth_bytes(self, demand: SharingDemand) -> int:
        """Return what a job takes of the memory that is left."""
        if demand.mode == "fraction" or demand.need is None:
            return int(demand.fraction * self.at[1].memory_bytes)
        return self.load.growth_bytes(demand.need)

    @property
    def free_bytes(self) -> int:
        """The memory that is left."""
        return self.load.free_bytes - int(self.fraction * self.at[1].memory_bytes)

    def plus(self, job_id: str, demand: SharingDemand) -> SharedDevice:
        """Return the device with one more job."""
        load = self.load.plus(demand.need) if demand.mode == "lane" and demand.need is not None else self.load
        fraction = self.fraction + (demand.fraction if demand.mode == "fraction" else 0.0)
        occupants, groups = {**self.occupants, job_id: demand}, self.groups | {demand.group}
        most = min(filter(None, (self.most, demand.most)), default=0)
        return replace(self, load=load, fraction=fraction, occupants=occupants, groups=groups, most=most)

    def without(self, job_ids: set[str]) -> SharedDevice:
        """Return the device without some of its jobs."""
        left = {job_id: demand for job_id, demand in self.occupants.items() if job_id not in job_ids}
        return SharedDevice.of(self.at, left, self.limits)

    def taken(self) -> str:
        """Return what its jobs hold of it, in words."""
        number = len(self.occupants)
        hold = f"{number} job{'s hold' if number > 1 else ' holds'}"
        capacity_bytes = self.at[1].memory_bytes
        if self.fraction:
            return f"{hold} {self.fraction:.0%} of it"
        if self.alone:
            return f"{hold} all of it until its need is measured"
        held_bytes = self.load.resident_bytes + self.load.ephemeral_bytes
        return f"{hold} {of_bytes(held_bytes, capacity_bytes)}"

    def _has_memory(self, demand: SharingDemand) -> bool:
        if demand.mode == "fraction":
            fits = demand.need is None or demand.need.alone_bytes <= demand.fraction * self.at[1].memory_bytes
            return fits and self.fraction + demand.fraction <= 1.0 + ROUNDING
        return demand.need is not None and self.load.holds(demand.need)


def of_bytes(part: int, whole: int) -> str:
    """
    Return a part of a size, with the unit once.

    Examples
    --------
    >>> of_bytes(2**29, 2**31), of_bytes(3, 2**10)
    ('0.5 of 2 GiB', '0.00293 of 1 KiB')
    """
    text = gibibytes(whole)
    unit = text.split()[1]
    size = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}.get(unit, 1)
    return f"{part / size:.3g} of {text}"


At = tuple[str, int]
"""A node's id and the number of one of its devices."""


class SharedDeviceIndex:
    """
    Shared devices by who may join, so that a job need not look at those of other teams.

    A device whose jobs all share with anyone is open to every job that does so too. A device whose jobs are all of one
    team is open to the jobs of this team. No other device is open to anybody, because a new job has to suit all.

    Parameters
    ----------
    devices : mapping of At to SharedDevice

    Attributes
    ----------
    opened : list of At
        Devices that were opened during the round, in order.
    """

    def __init__(self, devices: Mapping[At, SharedDevice]) -> None:
        self._devices = devices
        self._changed: dict[At, SharedDevice] = {}
        self.opened: list[At] = []
        self._of_team: defaultdict[str, dict[At, None]] = defaultdict(dict)
        self._of_anyone: dict[At, None] = {}
        self._most: dict[tuple[str, bool], tuple[int, int]] = {}
        for at, shared in devices.items():
            self._file(at, shared)

    def __len__(self) -> int:
        return len(self._devices) + len(self.opened)

    def __contains__(self, at: At) -> bool:
        return at in self._devices or at in self._changed

    def __getitem__(self, at: At) -> SharedDevice:
        return self._changed.get(at) or self._devices[at]

    def __iter__(self) -> Iterator[SharedDevice]:
        return (self[at] for at in chain(self._devices, self.opened))

    def put(self, shared: SharedDevice) -> None:
        """Note that a device has one more job, or has been opened."""
        at = key_of(shared.at)
        if at not in self._devices and at not in self._changed:
            self.opened.append(at)
            self._file(at, shared)
            self._most.clear()
        self._changed[at] = shared

    def to(self, group: SharingGroup, since: int = 0) -> Iterator[SharedDevice]:
        """Yield the devices that are open to a group; with ``since``, only those opened after the first so many."""
        team = self._of_team.get(group.team, {})
        if since:
            return (self[at] for at in self.opened[since - 1 :])
        others = (at for at in self._of_anyone if at not in team) if group.share_with == "anyone" else ()
        return (self[at] for at in chain(list(team), others))

    def could(self, demand: SharingDemand) -> bool:
        """Say whether any device that is open to a job may have room for it; if not, none has."""
        group, need = demand.group, demand.need
        if demand.mode == "fraction" or need is None:
            return True
        asked = group.team, group.share_with == "anyone"
        if asked not in self._most:  # devices only fill up from now on
            loads = [shared.load for shared in self.to(group)]
            lane = max((load.usable_bytes - load.resident_bytes for load in loads), default=-1)
            self._most[asked] = max((load.free_bytes for load in loads), default=-1), lane
        free_bytes, lane_bytes = self._most[asked]
        return need.resident_bytes <= free_bytes and need.alone_bytes <= lane_bytes

    def changed(self, at: At) -> bool:
        """Say whether a device has one more job by now."""
        return at in self._changed

    def _file(self, at: At, shared: SharedDevice) -> None:
        teams = {group.team for group in shared.groups}
        if len(teams) == 1:
            self._of_team[teams.pop()][at] = None
        if all(group.share_with == "anyone" for group in shared.groups):
            self._of_anyone[at] = None


def key_of(located: Located) -> At:
    """Return a device's node and number."""
    return located[0], located[1].index


@dataclass(frozen=True)
class SharedDeviceSurvey:
    """
    How the shared devices of a pool stand for one job.

    Attributes
    ----------
    number : int
        Shared devices that the job accepts, whoever shares them.
    refusals : mapping of str to int
        Reason → how many devices refuse the job for it.
    most : SharedDevice or None
        Of the devices that do not refuse it, the one with most room.
    """

    number: int
    refusals: Mapping[str, int]
    most: SharedDevice | None
