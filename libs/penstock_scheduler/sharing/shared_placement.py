"""
Placement of jobs that share devices, in the course of one round.

:class:`SharedPlacement` puts a job onto devices that others share already, best fit, or has some of them make way.
For a job whose patience is over, :func:`device` and :func:`node` choose devices to reserve
(:class:`SharedReservation`): no other job gets onto these, and each job that ends there makes room.
:class:`NegativeCache` holds the demands for which a round found nothing: a job that needs as much finds nothing either,
and does not look.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from penstock_cluster.nodes import fits
from penstock_log import Device, JobSpec
from penstock_scheduler.placement import FreeDevices, Located, device_class
from penstock_scheduler.round_types import RankedJob, RoundContext, Speed
from penstock_scheduler.sharing.co_preemption import CoPreemption, PreemptibleSharingRuns, SharingRun, runs_to_preempt
from penstock_scheduler.sharing.shared_devices import (
    At,
    SharedDevice,
    SharedDeviceIndex,
    SharedDeviceSurvey,
    SharingDemand,
    SharingLimits,
    asking,
    key_of,
)

LOOKED_AT: Final = 64
"""Most devices of which a round considers to preempt some of those who share it, for one job."""

MOST_ACTS: Final = 2_000
"""Runs that share and start or make way in a round: about 400 kB of its fact. Others follow in the next."""


def device(open_to: Iterable[SharedDevice]) -> SharedReservation | None:
    """Return the device that has most room; None if there is none."""
    most = max(open_to, key=lambda shared: (shared.free_bytes, key_of(shared.at)), default=None)
    return None if most is None else SharedReservation(most.at[1].kind, [most], [])


def node(
    ranked: RankedJob, demand: SharingDemand, open_to: Iterable[SharedDevice], free: FreeDevices
) -> SharedReservation | None:
    """
    Return as many devices of one node and kind as a gang of lanes needs; None where no node has as many.

    The node is the one on which most of them are free or have room already, then the one with most room. Neither
    figure falls while no other job gets onto these devices.
    """
    spec = ranked.job.spec
    shared: defaultdict[tuple[str, str], list[SharedDevice]] = defaultdict(list)
    for one in open_to:
        shared[one.at[1].kind, one.at[0]].append(one)
    empty = {kind: free.standing(spec, kind) for kind in free.kinds(spec)}
    options = []
    for (kind, node_id), there in shared.items():
        idle = [(node_id, device) for device in empty.get(kind, {}).get(node_id, [])][: demand.gpus]
        lacking = demand.gpus - len(idle)
        if lacking <= len(there):
            roomiest = sorted(there, key=lambda one: (-one.holds(demand), -one.free_bytes, key_of(one.at)))[:lacking]
            ready = len(idle) + sum(one.holds(demand) for one in roomiest)
            free_bytes = sum(one.free_bytes for one in roomiest) + sum(device.memory_bytes for _, device in idle)
            options.append((-ready, -free_bytes, node_id, kind, roomiest, idle))
    if not options:
        return None
    _, _, _, kind, roomiest, idle = min(options, key=lambda option: option[:4])
    return SharedReservation(kind, roomiest, idle)


class SharedPlacement:
    """
    The shared devices of a pool while a round decides.

    Parameters
    ----------
    devices : mapping of At to SharedDevice
        The shared devices with all jobs on them, without devices whose jobs are all stopping.
    demands : mapping of str to SharingDemand
        Job that waits or is on a device → its demand.
    stopping : collection of str
        Jobs on devices that are asked to stop.
    sharing_runs : callable
        Returns what preempting each job on a device would cost that some waiting job may preempt.
    speed : callable
        Gives the speed of a job on a kind.
    limits : SharingLimits

    Notes
    -----
    A look costs O(shared devices of the job's team). A job does not look if it needs no less than another that found
    nothing, or more than any device of its team has left.
    """

    def __init__(
        self,
        devices: Mapping[At, SharedDevice],
        demands: Mapping[str, SharingDemand],
        *,
        stopping: Iterable[str],
        sharing_runs: Callable[[], Mapping[str, SharingRun]],
        speed: Speed,
        limits: SharingLimits,
    ) -> None:
        self.demands, self.limits = demands, limits
        self._devices, self._sharing_runs, self._speed = SharedDeviceIndex(devices), sharing_runs, speed
        self._stopping = set(stopping)
        self._preemptible = PreemptibleSharingRuns(sharing_runs, self._stopping)
        self._closed: set[At] = set()
        self._reserved_kinds: set[str] = set()
        self._not_joined, self._incomplete, self._not_preempted = NegativeCache(), NegativeCache(), NegativeCache()
        self._misses: Counter[Hashable] = Counter()
        self._acts = 0
        self._surveys: dict[tuple[object, ...], SharedDeviceSurvey] = {}

    def __len__(self) -> int:
        return len(self._devices)

    def survey(self, spec: JobSpec, demand: SharingDemand) -> SharedDeviceSurvey:
        """Return how the shared devices stand for a job; worked out once for all jobs that may share with the same."""
        of = spec.kinds, spec.memory_bytes, demand.mode, demand.group, demand.alone, demand.most
        if of not in self._surveys:
            number = sum(count for like, count in self._classes.items() if fits(spec, like))
            open_to = (shared for shared in self._devices.to(demand.group) if fits(spec, shared.at[1]))
            refused = [(shared, shared.refuses(demand)) for shared in open_to]
            refusals = Counter(why for _, why in refused if why)
            if number > len(refused):
                refusals["with jobs that it may not share with"] += number - len(refused)
            able = (shared for shared, why in refused if not why)
            most = max(able, key=lambda shared: (shared.free_bytes, key_of(shared.at)), default=None)
            self._surveys[of] = SharedDeviceSurvey(number, refusals, most)
        return self._surveys[of]

    @cached_property
    def _classes(self) -> Counter[Device]:
        return Counter(device_class(shared.at[1]) for shared in self._devices)

    @property
    def full(self) -> bool:
        """Say whether as many jobs start or make way as one round may contain."""
        return self._acts >= MOST_ACTS

    def asking(self, ranked: RankedJob) -> RankedJob:
        """Return the job as one that asks for devices to itself, with enough memory for all its needs."""
        job, demand = ranked.job, self.demands[ranked.job_id]
        spec = asking(job.spec, demand, self.limits.reserve_share)
        return ranked if spec is job.spec else ranked._replace(job=msgspec.structs.replace(job, spec=spec))

    def join(self, ranked: RankedJob) -> list[Located]:
        """Give the job shared devices that have room for it, and return them; none if too few have room."""
        demand, seen = self.demands[ranked.job_id], len(self._devices.opened) + 1
        if demand.alone or not self._devices.could(demand):
            return []
        since = self._not_joined.seen(ranked, demand)
        if since == seen:
            return []
        open_to = [shared for shared in self._open_to(ranked, since * (demand.gpus == 1)) if shared.holds(demand)]
        chosen = self._together(ranked, open_to) if demand.gpus > 1 else self._best(ranked, open_to)
        if not chosen:
            self._not_joined.note(ranked, demand, seen)
        self._acts += bool(chosen)
        for shared in chosen:
            self._put(ranked, shared)
        return [shared.at for shared in chosen]

    def complete(self, ranked: RankedJob, free: FreeDevices) -> tuple[list[Located], list[Located]]:
        """
        Return devices of one node for a gang of lanes: shared ones as far as there are any, and free ones for the rest.

        It returns nothing where no node has enough. The job has the shared devices from now on; the caller takes the
        free ones.
        """
        demand, spec = self.demands[ranked.job_id], ranked.job.spec
        if not any(free.kinds(spec).values()) or self._incomplete.seen(ranked, demand):
            return [], []
        shared: defaultdict[tuple[str, str], list[SharedDevice]] = defaultdict(list)
        for one in self._open_to(ranked) if not demand.alone else ():
            if one.holds(demand):
                shared[one.at[1].kind, one.at[0]].append(one)
        options = []
        for kind in free.kinds(spec):
            for node_id, devices in free.standing(spec, kind).items():
                lacking = demand.gpus - len(shared[kind, node_id])
                if 0 < lacking <= len(devices):
                    options.append((-self._speed(ranked.job, kind), lacking, len(devices), node_id, kind))
        if not options:
            self._incomplete.note(ranked, demand)
            return [], []
        _, lacking, _, node_id, kind = min(options)
        for one in shared[kind, node_id]:
            self._put(ranked, one)
        opened = [(node_id, device) for device in free.standing(spec, kind)[node_id][:lacking]]
        self.open(ranked, opened)
        return [one.at for one in shared[kind, node_id]], opened

    def open(self, ranked: RankedJob, devices: Iterable[Located]) -> None:
        """Note that a job has devices that nobody had; other jobs may join it."""
        self._acts += 1
        self._surveys.clear()
        for located in devices:
            self._devices.put(SharedDevice.of(located, {ranked.job_id: self.demands[ranked.job_id]}, self.limits))

    def hopeless(self, ranked: RankedJob) -> bool:
        """Say whether looking for runs that make way for the job is vain: enough jobs before it have looked in vain."""
        return self._misses[_like(ranked)] >= MOST_MISSES

    def count_miss(self, ranked: RankedJob) -> None:
        """Note that no run makes way for a job."""
        self._misses[_like(ranked)] += 1

    def awaits(self, ranked: RankedJob) -> bool:
        """Keep room for a job where runs that are stopping will leave enough; say whether there is such a place."""
        demand = self.demands[ranked.job_id]
        if not self._leaving or demand.alone or demand.gpus > 1 or self._in_vain(ranked):
            return False
        later = []
        for at in self._leaving:
            shared = self._devices[at]
            left = shared.without(self._stopping)
            if left.occupants and left.holds(demand) and self._is_open(ranked, shared):
                later.append(shared)
        for shared in self._best(ranked, later):
            self._put(ranked, shared)
            return True
        return False

    def preempt_members(self, ranked: RankedJob, context: RoundContext) -> tuple[SharingRun, ...]:
        """
        Return the runs of one device that make room for a job with the least loss; the device is kept for the job.

        Notes
        -----
        Of the devices that would do, it looks at the :data:`LOOKED_AT` ones with the lightest runs.
        """
        demand = self.demands[ranked.job_id]
        if demand.alone or demand.gpus > 1 or self._in_vain(ranked):
            return ()
        best = min(self._co_preemptions(ranked, context), key=lambda option: option[:4], default=None)
        if best is None:
            self._not_preempted.note(ranked, demand, rank=(ranked.queue, ranked.job.spec.priority_class))
            return ()
        self._not_preempted.clear()
        self._stopping.update(member.job_id for member in best.runs)
        self._leaving.update((key_of(at), None) for member in best.runs for at in member.run.devices)
        self._preemptible.stop(best.runs)
        self._acts += len(best.runs)
        self._put(ranked, self._devices[best.at])
        return best.runs

    def _co_preemptions(self, ranked: RankedJob, context: RoundContext) -> Iterator[CoPreemption]:
        demand = self.demands[ranked.job_id]
        there = (self._devices[at] for at in self._preemptible.devices(ranked, context) if at in self._devices)
        able = (
            shared
            for shared in there
            if self._preemptible.could(ranked, context, shared, demand) and self._is_open(ranked, shared)
        )
        for shared in islice(able, LOOKED_AT):
            at = key_of(shared.at)
            if gone := runs_to_preempt(shared, demand, self._preemptible.on(ranked, context, at), self._stopping):
                slowness = -self._speed(ranked.job, shared.at[1].kind)
                yield CoPreemption(sum(member.loss_gpu_s for member in gone), len(gone), slowness, at, gone)

    def ripe_s(self, ranked: RankedJob, context: RoundContext) -> float:
        """Return when the next sharing run that ranks below a job will have lasted long enough to be preempted."""
        if self.demands[ranked.job_id].gpus > 1:
            return math.inf
        after = (member for member in self._sharing_runs().values() if member.comes_after(ranked, context))
        return min((ripe_s for member in after if (ripe_s := member.ripe_s(context)) > context.now_s), default=math.inf)

    def reserve(self, ranked: RankedJob, free: FreeDevices) -> Sequence[Located]:
        """
        Reserve the devices with most room for a job whose patience is over: for one job of each kind.

        Returns
        -------
        Free devices that the caller keeps for it too, if it is a gang.
        """
        demand = self.demands[ranked.job_id]
        if demand.alone or self._reserved_kinds >= {like.kind for like in self._classes}:
            return ()
        open_to = (
            shared
            for shared in self._open_to(ranked)
            if not shared.refuses(demand) and shared.at[1].kind not in self._reserved_kinds
        )
        kept = node(ranked, demand, open_to, free) if demand.gpus > 1 else device(open_to)
        if kept is None:
            return ()
        self._closed.update(key_of(shared.at) for shared in kept.shared)
        self._reserved_kinds.add(kept.kind)
        return kept.free

    def close(self, devices: Iterable[Located]) -> None:
        """Let no job onto devices that are promised to others."""
        keys = [key_of(located) for located in devices]
        self._closed.update(keys)
        self._acts += sum(len(self._devices[at].occupants) for at in keys if at in self._devices)

    def touched(self, devices: Iterable[Located]) -> bool:
        """Say whether any of these devices has been given or promised to a job in this round."""
        return any(self._devices.changed(key_of(located)) for located in devices)

    def _open_to(self, ranked: RankedJob, since: int = 0) -> Iterator[SharedDevice]:
        spec, group = ranked.job.spec, self.demands[ranked.job_id].group
        asked = self._devices.to(group, since)
        return (shared for shared in asked if key_of(shared.at) not in self._closed and fits(spec, shared.at[1]))

    def _is_open(self, ranked: RankedJob, shared: SharedDevice) -> bool:
        return key_of(shared.at) not in self._closed and fits(ranked.job.spec, shared.at[1])

    @cached_property
    def _leaving(self) -> dict[At, None]:
        """The devices that some of their jobs are leaving."""
        if not self._stopping:
            return {}
        found = (shared for shared in self._devices if not self._stopping.isdisjoint(shared.occupants))
        return {key_of(shared.at): None for shared in found}

    def _best(self, ranked: RankedJob, open_to: Sequence[SharedDevice]) -> list[SharedDevice]:
        """Return the fastest device, then that on which the job takes least, then that with least left over."""
        demand = self.demands[ranked.job_id]

        def key(shared: SharedDevice) -> tuple[float, int, int, At]:
            speed = self._speed(ranked.job, shared.at[1].kind)
            return -speed, shared.growth_bytes(demand), shared.free_bytes, key_of(shared.at)

        return [min(open_to, key=key)] if open_to else []

    def _together(self, ranked: RankedJob, open_to: Sequence[SharedDevice]) -> list[SharedDevice]:
        """Return devices of one node and kind, of as few sets of jobs as possible; none if no node has enough."""
        count = self.demands[ranked.job_id].gpus
        places: defaultdict[tuple[str, str], list[SharedDevice]] = defaultdict(list)
        for shared in open_to:
            places[shared.at[0], shared.at[1].kind].append(shared)
        options = []
        for (node_id, kind), found in places.items():
            if len(found) >= count:
                chosen, sets = _fewest_sets(found, count)
                options.append((-self._speed(ranked.job, kind), sets, len(found), node_id, kind, chosen))
        return min(options, key=lambda option: option[:5])[5] if options else []

    def _in_vain(self, ranked: RankedJob) -> bool:
        """Say whether a job that needs no more than this one has found no run that makes room for it."""
        rank = ranked.queue, ranked.job.spec.priority_class
        return self._not_preempted.seen(ranked, self.demands[ranked.job_id], rank=rank) > 0

    def _put(self, ranked: RankedJob, shared: SharedDevice) -> None:
        self._surveys.clear()
        self._devices.put(shared.plus(ranked.job_id, self.demands[ranked.job_id]))


def _fewest_sets(found: Sequence[SharedDevice], count: int) -> tuple[list[SharedDevice], int]:
    """Return so many devices, those with the same jobs together, and how many sets of jobs they have."""
    by_set: defaultdict[frozenset[str], list[SharedDevice]] = defaultdict(list)
    for shared in sorted(found, key=lambda shared: key_of(shared.at)):
        by_set[frozenset(shared.occupants)].append(shared)
    enough = [same for same in by_set.values() if len(same) >= count]
    if enough:
        return min(enough, key=len)[:count], 1
    chosen: list[SharedDevice] = []
    sets = 0
    for same in sorted(by_set.values(), key=len, reverse=True):
        if len(chosen) < count:
            chosen, sets = [*chosen, *same][:count], sets + 1
    return chosen, sets


class SharedReservation(NamedTuple):
    """Devices of one kind: those that are shared, and those that nobody has."""

    kind: str
    shared: Sequence[SharedDevice]
    free: Sequence[Located]


MOST_MISSES: Final = 16
"""Jobs of one team and choice of kinds for whom a round asks in vain who could make way for them."""


class NegativeCache:
    """
    Demands that found nothing in a round, each with the number of devices that it looked at.

    In the course of a round room only shrinks, but for devices that are opened. So a job that accepts the same devices
    and needs as much of the memory, or more, finds nothing among those that were looked at.

    Examples
    --------
    >>> from penstock_log import Job, JobSpec, MemoryNeed
    >>> from penstock_scheduler.sharing.shared_devices import SharingGroup
    >>> ranked = RankedJob(0, 0.0, "a", Job(id="a", spec=JobSpec(name="a", command=("true",)), submitted_s=0.0))
    >>> def lane(resident, ephemeral):
    ...     return SharingDemand("lane", SharingGroup("ann", "", "user"), MemoryNeed(resident, 0, ephemeral))
    >>> cache = NegativeCache()
    >>> cache.note(ranked, lane(2, 5), seen=1)
    >>> cache.seen(ranked, lane(3, 5)), cache.seen(ranked, lane(3, 4))
    (1, 0)
    """

    def __init__(self) -> None:
        self._found: defaultdict[Hashable, list[tuple[int, int, int]]] = defaultdict(list)

    def note(self, ranked: RankedJob, demand: SharingDemand, seen: int = 1, rank: Hashable = ()) -> None:
        """Note that a job has found nothing among the first ``seen``; with ``rank``, for jobs of this rank."""
        self._found[_class(ranked, demand, rank)].append((*_size(demand), seen))

    def seen(self, ranked: RankedJob, demand: SharingDemand, rank: Hashable = ()) -> int:
        """Return among how many of the first devices a job would look in vain; 0 where no job looked for as little."""
        misses = self._found.get(_class(ranked, demand, rank))
        if not misses:
            return 0
        resident, ephemeral = _size(demand)
        return max((seen for r, e, seen in misses if r <= resident and e <= ephemeral), default=0)

    def clear(self) -> None:
        """Forget all demands: a run may make way now that did not before."""
        self._found.clear()


def _like(ranked: RankedJob) -> Hashable:
    spec = ranked.job.spec
    return spec.kinds, spec.team, ranked.queue


def _class(ranked: RankedJob, demand: SharingDemand, rank: Hashable) -> Hashable:
    spec = ranked.job.spec
    one_size = demand if demand.mode == "fraction" or demand.need is None else demand.group
    return rank, spec.kinds, spec.memory_bytes, demand.gpus, demand.most, one_size


def _size(demand: SharingDemand) -> tuple[int, int]:
    if demand.mode == "fraction" or demand.need is None:
        return 0, 0
    return demand.need.resident_bytes, demand.need.ephemeral_bytes
