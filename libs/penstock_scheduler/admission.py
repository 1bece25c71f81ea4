"""
Who may start now, who is preempted for them, and what is kept free: one walk through the waiting jobs in rank order.

Each waiting job takes the first of these that gives it all of its devices at once, on one kind:

1. devices that are free;
2. free devices and those of runs that are already stopping: it keeps both and starts when the stopping ones are gone;
3. the same and the devices of running jobs of a *higher queue number* that may be preempted: the lightest loss first
   (:mod:`penstock_scheduler.preemption`), for a job that is bound to some nodes the lightest there
   (:mod:`penstock_scheduler.node_preemption`). Never within a queue, so two jobs cannot preempt each other in turn;
4. a gang that has waited for ``patience_s`` keeps what is free of the kind that has most for it, and what falls free of
   this kind from then on, until it starts (one gang a kind).

What none of the four gives leaves the job waiting, and smaller jobs behind it may start (backfill). Because a patient
gang stays with its kind, it starts after its patience and the runs that are under way on that kind then, as long as its
rank holds, however many jobs arrive.

An order may forbid backfill, or preemption, or have every job make way for all that come before it
(:class:`penstock_policies.queue_policies.DispatchMode`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from penstock_cluster.nodes import asks, asks_of_host, asks_of_nodes, fits, whole_parts
from penstock_log import JobSpec
from penstock_scheduler.assignment import DeviceSupply
from penstock_scheduler.node_preemption import JobRoom, VictimsOn, choose_on_nodes
from penstock_scheduler.placement import FreeDevices, Located
from penstock_scheduler.pool.run_columns import RunColumns
from penstock_scheduler.preemption import PreemptionCandidates, VictimChoice
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundContext
from penstock_scheduler.sharing.shared_placement import SharedPlacement

MOST_BOUND: Final = 32
"""
Most choices of runs that a round makes for jobs that are bound to nodes: it looks at all nodes for each. Others follow.
"""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Admission(msgspec.Struct):
    """
    What the walk decided.

    Attributes
    ----------
    gangs : list of (RankedJob, kind, devices)
        Start now on these devices; so do jobs that share, where nobody is yet.
    joined : list of (RankedJob, kind, devices)
        Start now on devices that others share already.
    opened : list of Located
        Free devices that some of these take as well.
    singles : list of RankedJob
        One-device jobs in rank order, for the matching; at least the first of them find a free device, and where
        positions within a queue bind, all of them.
    preempted : list of (victim, for whom)
    keeps : dict of str to str
        Jobs that keep devices until they have all of theirs → the kind.
    reserved : dict of str to str
        Those of them that have waited for their patience → the kind that they stay with.
    kept, awaited : list of Located
        Free devices that these keep, and stopping ones.
    wake_s : float
        When the walk could come out otherwise although nothing has happened; infinite if never.
    """

    gangs: list[tuple[RankedJob, str, list[Located]]] = []
    joined: list[tuple[RankedJob, str, list[Located]]] = []
    opened: list[Located] = []
    singles: list[RankedJob] = []
    preempted: list[tuple[PreemptibleRun, RankedJob]] = []
    keeps: dict[str, str] = {}
    reserved: dict[str, str] = {}
    kept: list[Located] = []
    awaited: list[Located] = []
    wake_s: float = math.inf

    def undo(self, supply: DeviceSupply) -> None:
        """Give back what is kept, where no job starts and no run is preempted."""
        supply.free.give(self.kept)
        supply.coming.give(self.awaited)


def admit(
    waiting: Sequence[RankedJob],
    running: Callable[[], RunColumns],
    supply: DeviceSupply,
    context: RoundContext,
    reserved_before: Mapping[str, str] = _NONE,
) -> Admission:
    """
    Walk the waiting jobs and decide who gets devices.

    Parameters
    ----------
    waiting : sequence of RankedJob
        In rank order, those ahead to whom devices are promised; only jobs that may start.
    running : callable
        Returns the runs that may be preempted at all, in any order; it is called only where somebody needs them.
    supply : DeviceSupply
        ``free`` and ``coming`` are changed: what is taken or kept is gone, but a single's device is back for the
        matching to give out.
    context : RoundContext
        Gangs prefer the fastest kind that holds them.
    reserved_before : mapping of str to str
        What :attr:`Admission.reserved` was in the round before.

    Notes
    -----
    O(W + P log P) looks at W jobs and P runs, and a choice of devices for each job that gets some.
    """
    if supply.sharing is None and _each_finds_one(waiting, supply.free):
        return Admission(singles=list(waiting))
    walk = _AdmissionWalk(supply, context, running, reserved_before)
    binds, backfills = context.mode.positions_bind, context.mode.backfills
    shares = supply.sharing.demands if supply.sharing is not None else {}
    for ranked in waiting:
        lent = len(walk.lent)
        served = walk.serve(ranked)
        matched = ranked.job.spec.gpus == 1 and not asks(ranked.job.spec) and ranked.job_id not in shares
        if matched and (not binds or len(walk.lent) > lent):
            walk.found.singles.append(ranked)
        if not served and not backfills:
            break
    walk.finish()
    return walk.found


def _each_finds_one(waiting: Sequence[RankedJob], free: FreeDevices) -> bool:
    """Say whether each job needs one device, and finds a free one whichever the others take."""
    count = len(waiting)
    if count > len(free) or (free.hosts is not None and free.hosts.beyond):
        return False
    for ranked in waiting:
        spec = ranked.job.spec
        if spec.gpus != 1 or asks(spec) or sum(free.kinds(spec).values()) < count:
            return False
    return True


def _alike(one: RankedJob, other: RankedJob) -> bool:
    """Say whether all runs that make way for the later of two jobs make way for the other one too."""
    return one.job.spec.priority_class == other.job.spec.priority_class


class _AdmissionWalk:
    """
    The walk of one try.

    Attributes
    ----------
    lent : list of Located
        Devices that one-device jobs found; the matching gives them out.
    first_left, first_sharing_left : RankedJob or None
        The first jobs that got nothing.
    closed_to : RankedJob or None
        A job that found nothing free and nobody to preempt; so do all behind it, while nothing has changed since.
    found_nothing : set of tuple
        Demands that got nothing: what is free shrinks on the way down the ranks, so equal ones get nothing either.
    bound_choices : int
        How many choices of runs were made for jobs that are bound to nodes, in vain or not.
    most_on : dict of tuple to mapping of str to int
        Node → how many devices are free, stopping or to be preempted there, for jobs of a kind, demand and rank: no
        fewer than there are now, as what others take is not counted.
    """

    def __init__(
        self,
        supply: DeviceSupply,
        context: RoundContext,
        running: Callable[[], RunColumns],
        reserved_before: Mapping[str, str],
    ) -> None:
        self.free, self.coming, self.whole = supply.free, supply.coming, supply.whole
        self.sharing = supply.sharing
        self.context, self.speed, self.rules = context, context.speed, context.rules
        self.running, self.reserved_before = running, reserved_before
        self.lent: list[Located] = []
        self.found = Admission()
        self.first_left: RankedJob | None = None
        self.first_sharing_left: RankedJob | None = None
        self.closed_to: RankedJob | None = None
        self.found_nothing: set[tuple[object, ...]] = set()
        self.bound_choices = 0
        self.most_on: dict[tuple[object, ...], Mapping[str, int]] = {}

    @cached_property
    def victims(self) -> PreemptionCandidates:
        """The runs that may be preempted; where all find free devices, nobody asks for them."""
        return PreemptionCandidates(self.running(), self.context)

    def serve(self, ranked: RankedJob) -> bool:
        """Give the job what it can get; return whether that is all of its devices, now or when others have stopped."""
        sharing, closed_to, reserved = self.sharing, self.closed_to, ranked.job_id in self.reserved_before
        if sharing is not None and ranked.job_id in sharing.demands:
            served, self.closed_to = self._share(ranked, sharing), None
        elif closed_to is not None and closed_to < ranked and not reserved and _alike(closed_to, ranked):
            return False
        elif len(self.free) > 0 or len(self.coming) > 0 or self.victims.below(ranked) or reserved:
            served, self.closed_to = self._place(ranked), None
        else:
            served, self.closed_to = False, closed_to if ranked.sample else ranked
        if not served and not ranked.sample and (self.first_left is None or ranked < self.first_left):
            self.first_left = ranked
        return served

    def finish(self) -> None:
        """Give back what was only lent, and say when a run will be ripe for whom nothing was found."""
        self.free.give(self.lent)
        if self.first_left is not None:
            self.found.wake_s = min(self.found.wake_s, self.victims.ripe_s(self.first_left))

    def _place(self, ranked: RankedJob) -> bool:
        spec = ranked.job.spec
        demand = (spec.kinds, spec.memory_bytes, spec.gpus, ranked.queue, spec.host_demand, spec.priority_class)
        if demand not in self.found_nothing:
            if self._start(ranked) or self._await_stopping(ranked) or self._preempt_for(ranked):
                return True
            self.found_nothing.add(demand)
        if spec.gpus > 1 and spec.gpus_per_node < 2:
            self._reserve_kind(ranked)
        elif spec.gpus_per_node > 1 or asks_of_host(spec):
            self._reserve(ranked, lambda: self.free.roomiest(spec, self.whole))
        return False

    def _start(self, ranked: RankedJob) -> bool:
        job = ranked.job
        kinds = self.free.kinds(job.spec)
        whole = [kind for kind, count in kinds.items() if count >= job.spec.gpus]
        if not whole:
            return False
        kind = min(whole, key=lambda kind: (-self.speed(job, kind), kinds[kind], kind))
        devices = self._choose(self.free, ranked, kind, job.spec.gpus)
        self.free.take(devices, job.spec)
        if job.spec.gpus == 1 and not asks(job.spec):
            self.lent += devices
        else:
            self.found.gangs.append((ranked, kind, devices))
        return True

    def _await_stopping(self, ranked: RankedJob) -> bool:
        """Keep devices of runs that are stopping, and free ones for the rest, where they are enough."""
        job = ranked.job
        if self._is_bound(job.spec):
            return self._await_on_nodes(ranked)
        kinds = self.coming.kinds(job.spec)
        enough = [k for k, count in kinds.items() if count + self.free.count(job.spec, k) >= job.spec.gpus]
        if not enough:
            return False
        kind = min(enough, key=lambda kind: (-self.speed(job, kind), kind))
        stopping = min(job.spec.gpus, self.coming.count(job.spec, kind))
        self._keep(ranked, kind, stopping, job.spec.gpus - stopping)
        return True

    def _preempt_for(self, ranked: RankedJob) -> bool:
        """Preempt the runs with the least loss; keep what they leave, and what is free or stopping of the kind."""
        job, spec, sharing = ranked.job, ranked.job.spec, self.sharing
        if (sharing is not None and sharing.full) or not self.victims.below(ranked):
            return False
        bound = self._is_bound(spec)
        kinds = self.victims.kinds(ranked)
        if bound:
            kinds = [kind for kind in kinds if self._could_be_enough(ranked, kind)]
            if kinds and self.bound_choices >= MOST_BOUND:
                self.found.wake_s = self.context.now_s  # some of the choices were for jobs that are served now
                return False
        enough = self._enough_on_nodes if bound else self._enough
        options = [(kind, found) for kind in kinds if (found := enough(ranked, kind))]
        if not options:
            return False
        kind, chosen = min(options, key=lambda o: (o[1].loss_gpu_s, len(o[1].runs), -self.speed(job, o[0]), o[0]))
        self.victims.take(chosen)
        freed = [device for victim in chosen.runs for device in victim.devices]
        if sharing is not None:
            sharing.close(freed)
        self.found.preempted += [(victim, ranked) for victim in chosen.runs]
        self.found_nothing.clear()  # a gang that is preempted may leave more than was needed
        self.most_on.clear()
        if bound:
            self.coming.give(freed)
            self._keep_on_nodes(ranked, self._room(spec, kind))
            return True
        stopping, free = self._there(ranked, kind)
        self._keep(ranked, kind, stopping, free)
        if len(freed) > 1:  # as much as is lacking; the rest is left for others
            fitting = [located for located in freed if located[1].kind == kind and fits(spec, located[1])]
            kept = set(fitting[: spec.gpus - stopping - free])
            self.coming.give(located for located in freed if located not in kept)
        return True

    def _is_bound(self, spec: JobSpec) -> bool:
        """Say whether it matters on which nodes devices fall free for a job: it cannot have any of a kind."""
        hosts = self.free.hosts
        if asks_of_nodes(spec):
            return hosts is None or not hosts.all_run(spec)
        return hosts is not None and asks(spec) and not (hosts.all_run(spec) and hosts.within_shares(spec))

    def _room(self, spec: JobSpec, kind: str) -> JobRoom:
        return JobRoom(spec, kind, free=self.free, coming=self.coming, whole=self.whole)

    def _await_on_nodes(self, ranked: RankedJob) -> bool:
        """Keep devices of runs that are stopping on nodes of a job, and free ones there, where they are enough."""
        job = ranked.job
        able = self.coming.kinds_without_hosts(job.spec)
        for kind in sorted(able, key=lambda kind: (-self.speed(job, kind), kind)):
            if not self._is_enough_on(job.spec, self._free_or_stopping(job.spec, kind)):
                continue
            room = self._room(job.spec, kind)
            if room.is_enough():
                self._keep_on_nodes(ranked, room)
                return True
        return False

    def _free_or_stopping(self, spec: JobSpec, kind: str) -> Counter[str]:
        """Return node → how many of its devices fit a job and are free or stopping, whatever hosts have left."""
        return Counter(self.free.number_on(spec, kind)) + Counter(self.coming.number_on(spec, kind))

    def _is_enough_on(self, spec: JobSpec, most_on: Mapping[str, int]) -> bool:
        """Say whether the nodes that may run a job would have its devices if it could have so many of each."""
        hosts, left = self.free.hosts, spec.gpus
        for node_id, count in most_on.items():
            if hosts.runs(spec, node_id) if hosts is not None else spec.may_be_on(node_id):
                left -= whole_parts(spec, count)
                if left <= 0:
                    return True
        return False

    def _could_be_enough(self, ranked: RankedJob, kind: str) -> bool:
        """Say whether all runs below a job could make up what it lacks on its nodes, whatever hosts have left."""
        spec = ranked.job.spec
        position = ranked.position if self.victims.by_position else 0.0
        key = (kind, spec.kinds, spec.memory_bytes, spec.priority_class, ranked.queue, position)
        most_on = self.most_on.get(key)
        if most_on is None:
            most_on = self._free_or_stopping(spec, kind)
            victims = self.victims.on_nodes(ranked, kind, self.whole.number_on(spec, kind), lent=False)
            for node_id, there in victims.items():
                most_on[node_id] += sum([gain for _, gain in there])
            self.most_on[key] = most_on
        return self._is_enough_on(spec, most_on)

    def _keep_on_nodes(self, ranked: RankedJob, room: JobRoom) -> None:
        """Keep the stopping and the free devices of its nodes that a job is to have."""
        awaited, kept = room.parts()
        self.coming.take(awaited)
        self.found.awaited += awaited
        self.free.take(kept)
        self.found.kept += kept
        self.found.keeps[ranked.job_id] = room.kind

    def _enough_on_nodes(self, ranked: RankedJob, kind: str) -> VictimChoice | None:
        """Return the lightest runs whose devices make up what the job lacks on its nodes."""
        room, found = self._room(ranked.job.spec, kind), None
        for lent in (True, False) if not ranked.borrows else (False,):
            victims = self.victims.on_nodes(ranked, kind, room.nodes, lent=lent)
            if victims:
                found = self._choose_on_nodes(room, victims)
            while found is not None and (joined := self._joined(found)):
                self.victims.take(VictimChoice(0.0, joined))
                victims = self.victims.on_nodes(ranked, kind, room.nodes, lent=lent)
                found = self._choose_on_nodes(room, victims)
            if found is not None:
                break
        return found

    def _choose_on_nodes(self, room: JobRoom, victims: VictimsOn) -> VictimChoice | None:
        """Return the lightest of these runs that leave enough; where there are none, that was found at once."""
        found = choose_on_nodes(room, victims, by_position=self.victims.by_position)
        self.bound_choices += found is not None
        return found

    def _joined(self, found: VictimChoice) -> tuple[PreemptibleRun, ...]:
        """Return the runs that others have joined in this round, whose devices would not fall free."""
        if self.sharing is None:
            return ()
        return tuple(run for run in found.runs if self.sharing.touched(run.devices))

    def _enough(self, ranked: RankedJob, kind: str) -> VictimChoice | None:
        """Return the lightest runs whose devices make up what the job lacks of a kind."""
        lacking = ranked.job.spec.gpus - sum(self._there(ranked, kind))
        found = self.victims.choose(ranked, kind, lacking)
        while found is not None and (joined := self._joined(found)):
            self.victims.take(VictimChoice(0.0, joined))
            found = self.victims.choose(ranked, kind, lacking)
        return found

    def _there(self, ranked: RankedJob, kind: str) -> tuple[int, int]:
        """Return how many stopping and free devices of a kind a gang has; a job of one device has found none."""
        spec = ranked.job.spec
        return (self.coming.count(spec, kind), self.free.count(spec, kind)) if spec.gpus > 1 else (0, 0)

    def _reserve_kind(self, ranked: RankedJob) -> None:
        """Keep what is free of one kind for a gang: of the kind that it waits for, or that has most for it by now."""
        job, reserved = ranked.job, self.found.reserved
        kind = self.reserved_before.get(ranked.job_id, "")
        whole = self.whole.kinds(job.spec)
        able = [k for k, count in whole.items() if count >= job.spec.gpus and k not in reserved.values()]
        if kind not in able:
            free = self.free.kinds(job.spec)
            open_to = [k for k in able if k in free]
            if not open_to or self._still_waits(ranked):
                return
            kind = min(open_to, key=lambda k: (-free[k], -self.speed(job, k), k))
        reserved[ranked.job_id] = kind
        self._keep(ranked, kind, 0, self.free.count(job.spec, kind))

    def _reserve(self, ranked: RankedJob, choose: Callable[[], Sequence[Located]]) -> None:
        """Keep some free devices for a job once its patience is over."""
        if not self._still_waits(ranked) and (devices := choose()):
            self.free.take(devices)
            self.found.kept += devices
            self.found.keeps[ranked.job_id] = devices[0][1].kind

    def _still_waits(self, ranked: RankedJob) -> bool:
        """Say whether a job waits for less than its patience, and look again when that is over."""
        until_s = ranked.job.queued_since_s + self.rules.patience_s
        if until_s > self.context.now_s:
            self.found.wake_s = min(self.found.wake_s, until_s)
            return True
        return False

    def _keep(self, ranked: RankedJob, kind: str, stopping: int, free: int) -> None:
        """Keep so many stopping and so many free devices of a kind for a job."""
        awaited = self._choose(self.coming, ranked, kind, stopping)
        self.coming.take(awaited)
        self.found.awaited += awaited
        kept = self._choose(self.free, ranked, kind, free)
        self.free.take(kept, ranked.job.spec)
        self.found.kept += kept
        self.found.keeps[ranked.job_id] = kind

    def _choose(self, among: FreeDevices, ranked: RankedJob, kind: str, count: int) -> list[Located]:
        job, context = ranked.job, self.context
        together, first_fit = context.together(job), context.first_fit
        return among.choose(job.spec, kind, count, together=together, first_fit=first_fit, near=job.parked_on)

    # --- jobs that share devices
    def _share(self, ranked: RankedJob, sharing: SharedPlacement) -> bool:
        """Give a job a part of devices that others share, else devices of its own, which others may share later."""
        if sharing.full:
            self.found.wake_s = self.context.now_s
            return False
        if devices := sharing.join(ranked):
            self.found.joined.append((ranked, devices[0][1].kind, devices))
            return True
        hopeless, gpus = sharing.hopeless(ranked), ranked.job.spec.gpus
        if hopeless and not len(self.free):
            return False
        asking = sharing.asking(ranked)
        if all(count < gpus for count in self.whole.kinds(asking.job.spec).values()):
            return False
        return self._open(asking, sharing) or (not hopeless and self._outlast(ranked, asking, sharing))

    def _open(self, ranked: RankedJob, sharing: SharedPlacement) -> bool:
        """Start a job that shares on free devices of one node; a gang also on shared and free ones of one node."""
        job, gpus = ranked.job, ranked.job.spec.gpus
        kinds = self.free.kinds(job.spec)
        enough = [kind for kind, count in kinds.items() if count >= gpus]
        for kind in sorted(enough, key=lambda kind: (-self.speed(job, kind), kinds[kind], kind)):
            devices = self._choose(self.free, ranked, kind, gpus)
            if len({node_id for node_id, _ in devices}) == 1:
                self.free.take(devices)
                self.found.gangs.append((ranked, kind, devices))
                sharing.open(ranked, devices)
                return True
        joined, opened = sharing.complete(ranked, self.free) if gpus > 1 else ([], [])
        if opened:
            self.free.take(opened)
            self.found.opened += opened
            self.found.joined.append((ranked, opened[0][1].kind, [*joined, *opened]))
        return bool(opened)

    def _outlast(self, ranked: RankedJob, asking: RankedJob, sharing: SharedPlacement) -> bool:
        """Keep what others leave for a job, or have them leave; a gang of lanes waits until one node has enough."""
        single = ranked.job.spec.gpus == 1
        if single and (sharing.awaits(ranked) or self._await_stopping(asking)):
            return True
        members = sharing.preempt_members(ranked, self.context) if single else ()
        self.found.preempted += [(member.run, ranked) for member in members]
        if members or (single and self._preempt_for(asking)):
            return True
        sharing.count_miss(ranked)
        if self.first_sharing_left is None and single:  # who comes behind has fewer to make way
            self.first_sharing_left = ranked
            self.found.wake_s = min(self.found.wake_s, sharing.ripe_s(ranked, self.context))
        self._reserve(ranked, lambda: sharing.reserve(ranked if single else asking, self.free))
        return False
