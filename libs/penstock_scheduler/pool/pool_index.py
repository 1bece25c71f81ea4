"""
Index of one pool: its jobs and devices by what rounds ask of them.

:class:`PoolIndex` has a pool's jobs in rank order, by demand and by the devices that they hold. It says nothing that
the fold does not say, and it is never saved. It is built from the fold, it follows each job that a fact is about, and
it is thrown away when nodes change. So a round costs what can change by it, not a look at every job.

:class:`SharingIndex` is its part for the jobs that share devices. :class:`PoolIndex` keeps it up to date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Generic, Literal, TypeVar

import msgspec
from sortedcontainers import SortedList

from penstock_cluster.nodes import Cluster, Node
from penstock_log import TERMINAL, Device, Job, JobRank, JobSpec, MemoryNeed, Placement, workload
from penstock_log.spec import HostDemand
from penstock_policies.queue_policies import DispatchMode
from penstock_policies.sample_plan import is_sampled
from penstock_scheduler.placement import FreeDevices, Located, Shape, device_class, in_order
from penstock_scheduler.pool.run_columns import PoolGrants
from penstock_scheduler.priority_classes import NO_CLASSES, Classes, levels, place
from penstock_scheduler.round_types import PreemptibleRun, RankedJob
from penstock_scheduler.sharing.co_preemption import tied
from penstock_scheduler.sharing.shared_devices import At, SharedDevice, SharingDemand, SharingLimits, sharing_demand

Key = tuple[int, float, float, str]
"""Queue, position, time of entering the queue, id."""

Demand = tuple[tuple[str, ...], int, int, bool, HostDemand]
"""
Kinds, memory and number of devices, whether it is a sample, processors and memory of the host: equal ones fit, or do
not, together.
"""

Phase = Literal["waiting", "held", "granted"]

_NO_NEEDS: Final[Mapping[str, MemoryNeed]] = MappingProxyType({})


@dataclass
class DemandGroup:
    """
    Waiting jobs of one demand that are not held; there is one at least.

    Attributes
    ----------
    spec : JobSpec
        Of one of them: its demand is that of all.
    keys : SortedList
        In rank order.
    since : SortedList of (seconds, id)
        Since when they wait, where they are gangs.
    """

    spec: JobSpec
    keys: SortedList[Key] = field(default_factory=SortedList)
    since: SortedList[tuple[float, str]] = field(default_factory=SortedList)


class IndexEntry(msgspec.Struct, frozen=True):
    """
    The index's record of one job; ``run`` is its run, and ``shape`` how many devices of each class that has.

    ``held`` follows from the ``placement`` and the number of nodes on which the run has not ended. ``sharing`` is set
    for a job that shares its devices.
    """

    phase: Phase
    key: Key
    ranked: RankedJob
    demand: Demand
    since_s: float = 0.0
    fresh_s: float | None = None
    delayed: bool = False
    stopping: bool = False
    moving: bool = False
    run: PreemptibleRun | None = None
    shape: Shape = ()
    held: tuple[tuple[str, int], ...] = ()
    placement: Placement | None = None
    nodes: int = 0
    sharing: SharingDemand | None = None


class PoolIndex:
    """
    One pool's jobs that are not over, and its devices.

    Parameters
    ----------
    name : str
    cluster : Cluster
    ranks : mapping of str to JobRank
        As the ranker has published them.
    jobs : iterable of Job
        Those of the pool that are not over.
    topology : sequence of str
        Levels of domains that the pool's rules name.
    needs : mapping of str to MemoryNeed
        What runs of each workload have needed.
    classes : mapping of str to PriorityClass
        The pool's classes: jobs of higher ones come first.

    Attributes
    ----------
    nodes : list of Node
        The nodes whose executors are up, by id.
    whole, free : FreeDevices
        Devices that take jobs, of nodes that do: all of them, and those that nobody holds. A round that takes some from
        ``free`` gives them back before it is over.
    waiting, granted : SortedList
        Jobs that wait, held ones among them, and jobs that have devices, in rank order.
    groups : dict of Demand to DemandGroup
    possible : set of Demand
        Demands that the nodes could meet, as a round has found; it need not look again while nodes stay.
    held : set of str
    fresh : SortedList of (seconds, id)
        Waiting jobs that have never run and may be waiting for their speeds or their size, by submission.
    delayed, stopping : dict of str to None
        Waiting jobs that have failed before; runs whose processes are to end.
    sharing : SharingIndex of dict of Demand to DemandGroup
        Those jobs that share devices, which are not in ``groups``.
    grants : PoolGrants
        The runs as columns, without those of jobs that share devices.
    below, of_several : Counter
        Queue → devices of its runs; queue → devices of those of its runs that hold several.
    moving : dict of str to None
        Runs whose jobs are to get another width, decided after they started.

    Notes
    -----
    Noting a job is O(log J).
    """

    def __init__(  # noqa: PLR0917 - what a pool is made of
        self,
        name: str,
        cluster: Cluster,
        ranks: Mapping[str, JobRank],
        jobs: Iterable[Job],
        topology: Sequence[str] = (),
        needs: Mapping[str, MemoryNeed] = _NO_NEEDS,
        classes: Classes = NO_CLASSES,
    ) -> None:
        self.name, self.topology, self.classes = name, tuple(topology), classes
        self._ranks, self._levels = ranks, levels(classes)
        self.nodes: list[Node] = sorted(cluster.staying(name), key=lambda node: node.id)
        self.away: list[Node] = sorted(cluster.away(name), key=lambda node: node.id)
        usable = [node for node in self.nodes if node.usable]
        self._devices = {node.id: {device.index: device for device in node.schedulable} for node in usable}
        self._class_of = {device: device_class(device) for node in usable for device in node.schedulable}
        self.paths = cluster.paths(topology, name)
        self.whole = FreeDevices({node.id: node.schedulable for node in usable}, hosts=usable)
        self.free = FreeDevices({node.id: node.schedulable for node in usable}, self.paths, usable)
        own = [node for node in cluster.nodes.values() if node.pool == name]
        self._node_evicts = any(node.evicting for node in own)
        self._emptied = [(node.id, device.index) for node in own for device, _ in node.emptied_devices()]
        self._holders: dict[tuple[str, int], int] = {}
        self.entries: dict[str, IndexEntry] = {}
        self.waiting: SortedList[Key] = SortedList()
        self.granted: SortedList[Key] = SortedList()
        self.grants = PoolGrants()
        self.groups: dict[Demand, DemandGroup] = {}
        self.possible: set[Demand] = set()
        self.sharing: SharingIndex[dict[Demand, DemandGroup]] = SharingIndex(needs)
        self.held: set[str] = set()
        self.fresh: SortedList[tuple[float, str]] = SortedList()
        self.delayed: dict[str, None] = {}
        self.stopping: dict[str, None] = {}
        self.moving: dict[str, None] = {}
        self.below: Counter[int] = Counter()
        self.of_several: Counter[int] = Counter()
        for job in jobs:
            self.note(job)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def evicting(self) -> bool:
        """Whether a node is being emptied, or a device on which somebody still is."""
        return self._node_evicts or any(at in self._holders for at in self._emptied)

    def note(self, job: Job) -> None:
        """Follow a job that a fact was about, or that has another rank."""
        before = self.entries.get(job.id)
        if before is not None and before.placement is not None and self._stays(job, before):
            self._reckon(before)
            return
        now = None if job.state in TERMINAL else self._entry(job)
        if now is not None and job.spec.sharing != "exclusive":
            now = msgspec.structs.replace(now, sharing=self.sharing.demand_of(job))
        if now is not None and now.run is not None:
            self._reckon(now)
        if now == before:
            return
        if before is not None and before.run is not None:
            if now is None or now.run is None:
                self.grants.drop(job.id)
            elif before.held is now.held and before.sharing is None and now.sharing is None:
                self._leave_order(before)  # it has another place in the order, or is to stop
                self.entries[job.id] = now
                self._enter_order(now)
                return
        if before is not None:
            self._take_out(before)
        if now is not None:
            self._put_in(now)

    def note_ranks(self, ranks: Iterable[JobRank]) -> None:
        """Follow jobs that have another rank."""
        entries = self.entries
        for rank in ranks:
            entry = entries.get(rank.job_id)
            if entry is None:
                continue
            if entry.key == self._key(entry.ranked.job):
                self._reckon(entry)
            else:
                self.note(entry.ranked.job)

    def ranked(self, keys: Iterable[Key]) -> list[RankedJob]:
        """Return jobs by their keys."""
        entries = self.entries
        return [entries[key[3]].ranked for key in keys]

    def runs(self) -> list[PreemptibleRun]:
        """Return all runs in rank order, with those of their devices whose nodes take jobs."""
        return [run for key in self.granted if (run := self.entries[key[3]].run) is not None]

    def has_below(self, queue: int, mode: DispatchMode) -> bool:
        """Say whether any run is of so low a queue that a job of the given queue may preempt it."""
        least = queue + (mode.preempts == "queue")
        return any(count > 0 and below >= least for below, count in self.below.items())

    def key_of_waiting(self, job_id: str) -> Key | None:
        """Return a job's key; None for one that does not wait here."""
        entry = self.entries.get(job_id)
        return entry.key if entry is not None and entry.phase != "granted" else None

    def run(self, job_id: str) -> PreemptibleRun:
        """Return a job's run."""
        run = self.entries[job_id].run
        if run is None:
            raise KeyError(job_id)
        return run

    def _stays(self, job: Job, before: IndexEntry) -> bool:
        """Say whether a run is as its entry says; its job may have started or saved something meanwhile."""
        return (
            before.sharing is None
            and before.ranked.job is job
            and before.placement is job.placement
            and before.nodes == len(job.open_nodes)
            and before.stopping == job.stopping
            and before.moving == (job.demand is not None)
            and before.key == self._key(job)
        )

    def _key(self, job: Job) -> Key:
        return key_of(job, self._ranks, self._levels)

    def _entry(self, job: Job) -> IndexEntry:
        key = self._key(job)
        ranked = RankedJob(key[0], key[1], job.id, job)
        spec, sample = job.spec, job.sample is not None
        demand = (spec.kinds, spec.memory_bytes, spec.gpus, sample, spec.host_demand)
        if job.placement is not None:
            return self._granted(job, job.placement, ranked, key, demand)
        if not job.startable:
            return IndexEntry("held", key, ranked, demand)
        fresh = job.eligible_s if not sample and (is_sampled(spec) or spec.elastic) and not job.epoch else None
        return IndexEntry("waiting", key, ranked, demand, job.queued_since_s, fresh, delayed=job.not_before_s > 0)

    def _granted(self, job: Job, placement: Placement, ranked: RankedJob, key: Key, demand: Demand) -> IndexEntry:
        before, nodes = self.entries.get(job.id), len(job.open_nodes)
        if before is not None and before.run is not None and before.placement is placement and before.nodes == nodes:
            devices, shape, held = before.run.devices, before.shape, before.held
        else:
            held = tuple([(s.node_id, i) for s in placement.slots if s.node_id in job.open_nodes for i in s.devices])
            devices = tuple(self._located(held))
            shape = self._shape(devices)
        return IndexEntry(
            "granted",
            key,
            ranked,
            demand,
            stopping=job.stopping,
            moving=job.demand is not None,
            run=PreemptibleRun(ranked, placement.kind, devices),
            shape=shape,
            held=held,
            placement=placement,
            nodes=nodes,
        )

    def _shape(self, devices: Sequence[Located]) -> Shape:
        if len(devices) == 1:
            return ((self._class_of[devices[0][1]], 1),)
        counts: dict[Device, int] = {}
        for _, device in devices:
            like = self._class_of[device]
            counts[like] = counts.get(like, 0) + 1
        return in_order(counts)

    def _located(self, held: Iterable[tuple[str, int]]) -> list[Located]:
        of_nodes, found = self._devices, []
        for node_id, index in held:
            if node_id in of_nodes and (device := of_nodes[node_id].get(index)) is not None:
                found.append((node_id, device))
        return found

    def _put_in(self, entry: IndexEntry) -> None:
        job_id = entry.ranked.job_id
        self.entries[job_id] = entry
        if entry.sharing is not None:
            self.sharing.demands[job_id] = entry.sharing
        if entry.phase == "granted":
            self._grant(entry)
            return
        self.waiting.add(entry.key)
        if entry.phase == "held":
            self.held.add(job_id)
            return
        groups = self.groups if entry.sharing is None else self.sharing.waiting.setdefault(entry.sharing, {})
        group = groups.get(entry.demand)
        if group is None:
            group = groups[entry.demand] = DemandGroup(entry.ranked.job.spec)
        group.keys.add(entry.key)
        if entry.demand[2] > 1:
            group.since.add((entry.since_s, job_id))
        if entry.fresh_s is not None:
            self.fresh.add((entry.fresh_s, job_id))
        if entry.delayed:
            self.delayed[job_id] = None

    def _take_out(self, entry: IndexEntry) -> None:
        job_id = entry.ranked.job_id
        del self.entries[job_id]
        self.sharing.demands.pop(job_id, None)
        if entry.phase == "granted":
            self._release(entry)
            return
        self.waiting.remove(entry.key)
        if entry.phase == "held":
            self.held.discard(job_id)
            return
        groups = self.groups if entry.sharing is None else self.sharing.waiting[entry.sharing]
        group = groups[entry.demand]
        group.keys.remove(entry.key)
        if entry.demand[2] > 1:
            group.since.remove((entry.since_s, job_id))
        if not len(group.keys):
            del groups[entry.demand]
            if entry.sharing is not None and not groups:
                del self.sharing.waiting[entry.sharing]
        if entry.fresh_s is not None:
            self.fresh.remove((entry.fresh_s, job_id))
        self.delayed.pop(job_id, None)

    def _reckon(self, entry: IndexEntry) -> None:
        """Note in the columns the figures of a job and its rank that change although its entry does not."""
        rank = self._ranks.get(entry.ranked.job_id)
        if entry.run is not None and entry.sharing is None:
            self.grants.put(entry.run, entry.shape, rank.falls_per_s if rank is not None else 0.0)

    def _enter_order(self, entry: IndexEntry) -> None:
        self.granted.add(entry.key)
        self._count(entry.key[0], len(entry.held))
        if entry.stopping:
            self.stopping[entry.ranked.job_id] = None
        if entry.moving:
            self.moving[entry.ranked.job_id] = None

    def _leave_order(self, entry: IndexEntry) -> None:
        self.granted.remove(entry.key)
        self._count(entry.key[0], -len(entry.held))
        self.stopping.pop(entry.ranked.job_id, None)
        self.moving.pop(entry.ranked.job_id, None)

    def _grant(self, entry: IndexEntry) -> None:
        self._enter_order(entry)
        if entry.sharing is not None and entry.run is not None:
            self.sharing.grant(entry.run, stopping=entry.stopping)
        holders, first = self._holders, []
        for at in entry.held:
            holders[at] = count = holders.get(at, 0) + 1
            if count == 1:
                first.append(at)
        self.free.take(self._devices_of(entry, first), entry.ranked.job.spec)

    def _count(self, queue: int, devices: int) -> None:
        self.below[queue] += devices
        if abs(devices) > 1:
            self.of_several[queue] += devices

    def _release(self, entry: IndexEntry) -> None:
        self._leave_order(entry)
        if entry.sharing is not None:
            self.sharing.release(entry.ranked.job_id)
        holders, last = self._holders, []
        for at in entry.held:
            count = holders[at] - 1
            if count:
                holders[at] = count
            else:
                del holders[at]
                last.append(at)
        self.free.give(self._devices_of(entry, last))

    def _devices_of(self, entry: IndexEntry, some: Sequence[tuple[str, int]]) -> Iterable[Located]:
        """Return those of a run's devices that stand in some places, most often all of them."""
        whole = entry.run is not None and len(some) == len(entry.held)
        return entry.run.devices if whole and entry.run is not None else self._located(some)


def key_of(job: Job, ranks: Mapping[str, JobRank], of_classes: Mapping[str, int]) -> Key:
    """
    Return what a job is sorted by.

    A job that the ranker has not seen yet counts as one of queue 0 at its submission: the matcher never waits.

    Parameters
    ----------
    of_classes : mapping of str to int
        The pool's classes, as :func:`penstock_scheduler.priority_classes.levels` returns them.
    """
    rank = ranks.get(job.id)
    if job.sample is not None:
        return -1, job.submitted_s, job.submitted_s, job.id
    if rank is None:
        return place(0, job.spec, of_classes), job.submitted_s, job.submitted_s, job.id
    key = rank.key
    return key if len(of_classes) == 1 else (place(key[0], job.spec, of_classes), *key[1:])


G = TypeVar("G")


class SharingIndex(Generic[G]):
    """
    The sharing jobs of one pool.

    Parameters
    ----------
    needs : mapping of str to MemoryNeed
        What runs of each workload have needed; it may change.

    Attributes
    ----------
    demands : dict of str to SharingDemand
        All of them, by id.
    runs : dict of str to PreemptibleRun
        Runs of jobs that have devices, as far as these are on nodes that take jobs.
    stopping : dict of str to None
        Jobs with devices that are stopping.
    waiting : dict of SharingDemand to G
        Jobs that wait, in groups that :class:`PoolIndex` keeps.

    Notes
    -----
    Noting a job is O(devices that it has).
    """

    def __init__(self, needs: Mapping[str, MemoryNeed]) -> None:
        self._needs = needs
        self.demands: dict[str, SharingDemand] = {}
        self.runs: dict[str, PreemptibleRun] = {}
        self.stopping: dict[str, None] = {}
        self.waiting: dict[SharingDemand, G] = {}
        self._on: dict[At, dict[str, Located]] = {}
        self._shared: dict[At, SharedDevice] = {}
        self._limits: SharingLimits | None = None
        self._tied: dict[str, tuple[str, ...]] | None = None
        self._without_need: set[str] = set()
        self._gangs = 0

    def __bool__(self) -> bool:
        return bool(self.demands)

    @property
    def unmeasured(self) -> list[str]:
        """The jobs whose memory need is not known of themselves: other runs of their workloads may show it."""
        self._without_need &= self.demands.keys()
        return sorted(self._without_need)

    def demand_of(self, job: Job) -> SharingDemand | None:
        """Return how a job shares; None for one that has its devices to itself."""
        if job.spec.sharing == "lane" and job.need is None and job.spec.memory is None:
            self._without_need.add(job.id)
        else:
            self._without_need.discard(job.id)
        return sharing_demand(job, self._measured)

    def grant(self, run: PreemptibleRun, *, stopping: bool) -> None:
        """Note that a job has devices."""
        job_id = run.ranked.job_id
        self.runs[job_id] = run
        self._gangs += len(run.devices) > 1
        if stopping:
            self.stopping[job_id] = None
        for node_id, device in run.devices:
            self._on.setdefault((node_id, device.index), {})[job_id] = node_id, device
        self._forget(run)

    def release(self, job_id: str) -> None:
        """Note that a job has no devices any more."""
        run = self.runs.pop(job_id)
        self._gangs -= len(run.devices) > 1
        self.stopping.pop(job_id, None)
        for node_id, device in run.devices:
            there = self._on[node_id, device.index]
            del there[job_id]
            if not there:
                del self._on[node_id, device.index]
        self._forget(run)

    def leaving(self) -> Iterator[Located]:
        """Yield the devices whose jobs are all stopping."""
        if self.stopping:
            for there in self._on.values():
                if there.keys() <= self.stopping.keys():
                    yield next(iter(there.values()))

    def parts(self) -> dict[str, float]:
        """
        Return as how many devices each job counts.

        A job counts as its fraction or, for each of its lanes, as one device divided by the jobs there. Jobs that are
        stopping do not count among those. Nobody knows yet whom a waiting lane job will join: it counts as whole
        devices.
        """
        found = {job_id: demand.fraction * demand.gpus for job_id, demand in self.demands.items()}
        going_on = {at: len(there.keys() - self.stopping.keys()) for at, there in self._on.items()}
        for job_id, run in self.runs.items():
            if self.demands[job_id].mode == "lane" and job_id not in self.stopping and run.devices:
                found[job_id] = sum(1.0 / going_on[node_id, device.index] for node_id, device in run.devices)
        return found

    def shared(self, limits: SharingLimits) -> dict[At, SharedDevice]:
        """Return the devices that jobs share, but for those whose jobs are all stopping."""
        if limits != self._limits:
            self._limits = limits
            self._shared.clear()
        for at, there in self._on.items():
            if at not in self._shared:
                occupants = {job_id: self.demands[job_id] for job_id in there}
                self._shared[at] = SharedDevice.of(next(iter(there.values())), occupants, limits)
        if not self.stopping:
            return self._shared
        return {at: shared for at, shared in self._shared.items() if not self._on[at].keys() <= self.stopping.keys()}

    @property
    def ties(self) -> dict[str, tuple[str, ...]]:
        """The runs that are tied to each other, as :func:`penstock_scheduler.sharing.co_preemption.tied` has it."""
        if self._tied is None and self._gangs:
            self._tied = tied(run for job_id, run in self.runs.items() if job_id not in self.stopping)
        elif self._tied is None:  # no device is tied to another
            going_on = ((at, self._on[at].keys() - self.stopping.keys()) for at in sorted(self._on))
            self._tied = {f"{node_id}/{index}": tuple(sorted(jobs)) for (node_id, index), jobs in going_on if jobs}
        return self._tied

    def stood_for(self, victim: PreemptibleRun) -> list[PreemptibleRun]:
        """Return the runs that a preempted one stands for: those of a co-preempted set, else itself."""
        jobs = self.ties.get(victim.ranked.job_id) if self.demands else None
        return [self.runs[job_id] for job_id in jobs] if jobs is not None else [victim]

    def _measured(self, job: Job) -> MemoryNeed | None:
        return self._needs.get(job.profile_key or workload.key(job.spec)) if self._needs else None

    def _forget(self, run: PreemptibleRun) -> None:
        """Drop what was worked out from a run."""
        self._tied = None
        for node_id, device in run.devices:
            self._shared.pop((node_id, device.index), None)
