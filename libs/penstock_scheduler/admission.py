"""
Who may start now, who is preempted for them, and what is kept free: one walk through the waiting jobs in rank order.

Each waiting job takes the first of these that gives it all of its devices at once, on one kind:

1. devices that are free;
2. free devices and those of runs that are already stopping: it keeps both and starts when the stopping ones are gone;
3. the same and the devices of running jobs of a *higher queue number* that may be preempted: the lightest loss first
   (:mod:`penstock_scheduler.preemption`). Never within a queue, so two jobs cannot preempt each other in turn;
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final

import msgspec

from penstock_cluster.nodes import asks, fits
from penstock_scheduler.assignment import DeviceSupply
from penstock_scheduler.placement import FreeDevices, Located
from penstock_scheduler.pool.run_columns import RunColumns
from penstock_scheduler.preemption import PreemptionCandidates, VictimChoice
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundContext
from penstock_scheduler.sharing.shared_placement import SharedPlacement

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
    running: RunColumns | Iterable[PreemptibleRun] | Callable[[], RunColumns],
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
    running : RunColumns, or iterable of PreemptibleRun, or callable that returns RunColumns
        Runs that may be preempted at all, in any order.
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
    walk = _Walk(supply, context, running, reserved_before)
    binds, backfills = context.mode.positions_bind, context.mode.backfills
    for ranked in waiting:
        lent = len(walk.lent)
        served = not walk.passes(ranked) and walk.visit(ranked)
        if walk.shares(ranked):
            pass  # it is placed, or waits, without the matching
        elif ranked.job.spec.gpus == 1 and not asks(ranked.job.spec) and (not binds or len(walk.lent) > lent):
            walk.found.singles.append(ranked)
        if not served and not backfills:
            break
    walk.finish()
    return walk.found


def _each_finds_one(waiting: Sequence[RankedJob], free: FreeDevices) -> bool:
    """Say whether each job needs one device, and finds a free one whichever the others take."""
    count = len(waiting)
    if count > len(free):
        return False
    if free.hosts is not None and free.hosts.beyond:
        return False
    for ranked in waiting:
        spec = ranked.job.spec
        if spec.gpus != 1 or asks(spec) or sum(free.kinds(spec).values()) < count:
            return False
    return True


class _Walk:
    def __init__(
        self,
        supply: DeviceSupply,
        context: RoundContext,
        running: RunColumns | Iterable[PreemptibleRun] | Callable[[], RunColumns],
        reserved_before: Mapping[str, str],
    ) -> None:
        self.free, self.coming, self.whole = supply.free, supply.coming, supply.whole
        self.speed, self.together, self.first_fit = context.speed, context.together, context.first_fit
        self.now_s, self.rules = context.now_s, context.rules
        self.context, self.running, self.reserved_before = context, running, reserved_before
        self.sharing = supply.sharing
        self.lent: list[Located] = []
        self.found = Admission()
        self.first_left: RankedJob | None = None
        self.closed_to: RankedJob | None = None  # while nothing has changed since
        self.first_sharing_left: RankedJob | None = None
        # Demands that got nothing: what is free shrinks on the way down the ranks, so equal ones get nothing either.
        self.found_nothing: set[tuple[object, ...]] = set()

    @cached_property
    def victims(self) -> PreemptionCandidates:
        """The runs that may be preempted; where all find free devices, nobody asks for them."""
        return PreemptionCandidates(self.running() if callable(self.running) else self.running, self.context)

    def passes(self, ranked: RankedJob) -> bool:
        """Say whether there is nothing to look at: a job before this one found nothing free and nobody to preempt."""
        closed_to = self.closed_to
        return (
            closed_to is not None
            and closed_to < ranked
            and not (ranked.job_id in self.reserved_before or self.shares(ranked))
        )

    def visit(self, ranked: RankedJob) -> bool:
        """Give the job what it can get; return whether that is all of its devices, now or when others have stopped."""
        if self.sharing is not None and ranked.job_id in self.sharing.demands:
            served, self.closed_to = self._share(ranked, self.sharing), None
        elif self._open_to(ranked):
            served, self.closed_to = self._serve(ranked), None
        else:
            served, self.closed_to = False, self.closed_to if ranked.sample else ranked
        if served:
            return True
        if not ranked.sample and (self.first_left is None or ranked < self.first_left):
            self.first_left = ranked
        return False

    def shares(self, ranked: RankedJob) -> bool:
        """Say whether a job shares its devices with others."""
        return self.sharing is not None and ranked.job_id in self.sharing.demands

    def finish(self) -> None:
        """Give back what was only lent, and say when a run will be ripe for whom nothing was found."""
        self.free.give(self.lent)
        if self.first_left is not None:
            self.found.wake_s = min(self.found.wake_s, self.victims.ripe_s(self.first_left))

    def _open_to(self, ranked: RankedJob) -> bool:
        """Say whether the job could get anything at all: free devices, or a run that ranks lower."""
        some = len(self.free) > 0 or len(self.coming) > 0
        return some or self.victims.below(ranked) or ranked.job_id in self.reserved_before

    def _serve(self, ranked: RankedJob) -> bool:
        spec = ranked.job.spec
        demand = (spec.kinds, spec.memory_bytes, spec.gpus, ranked.queue, spec.cpus, spec.host_memory_bytes)
        if demand not in self.found_nothing:
            if self._start(ranked) or self._keep_stopping(ranked) or self._preempt_for(ranked):
                return True
            self.found_nothing.add(demand)
        if spec.gpus > 1:
            self._reserve_kind(ranked)
        elif asks(spec):
            self._reserve_host(ranked)
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

    def _share(self, ranked: RankedJob, sharing: SharedPlacement) -> bool:
        """Give a job room on devices that others share, else devices of its own, which others may share later."""
        if sharing.full:
            self.found.wake_s = self.now_s
            return False
        if devices := sharing.join(ranked):
            self.found.joined.append((ranked, devices[0][1].kind, devices))
            return True
        hopeless = sharing.hopeless(ranked)
        if hopeless and not len(self.free):
            return False
        asking, gpus = sharing.asking(ranked), ranked.job.spec.gpus
        if all(count < gpus for count in self.whole.kinds(asking.job.spec).values()):
            return False
        if self._open(asking, sharing) or (gpus > 1 and self._complete(asking, sharing)):
            return True
        return not hopeless and self._outlast(ranked, asking, sharing)

    def _outlast(self, ranked: RankedJob, asking: RankedJob, sharing: SharedPlacement) -> bool:
        """Keep what others leave for a job, or have them leave; a gang of lanes waits until one node has room."""
        if ranked.job.spec.gpus > 1:
            return self._reserve_shared(asking, sharing)
        if sharing.awaits(ranked) or self._keep_stopping(asking) or self._preempt_members(ranked, sharing):
            return True
        return self._preempt_for(asking) or self._reserve_shared(ranked, sharing)

    def _open(self, ranked: RankedJob, sharing: SharedPlacement) -> bool:
        """Start a job that shares on free devices of one node."""
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
        return False

    def _complete(self, ranked: RankedJob, sharing: SharedPlacement) -> bool:
        """Start a gang of lanes on shared and on free devices of one node."""
        joined, opened = sharing.complete(ranked, self.free)
        if opened:
            self.free.take(opened)
            self.found.opened += opened
            self.found.joined.append((ranked, opened[0][1].kind, [*joined, *opened]))
        return bool(opened)

    def _preempt_members(self, ranked: RankedJob, sharing: SharedPlacement) -> bool:
        """Preempt some of those that share a device, so that a job can join the others there."""
        chosen = sharing.preempt_members(ranked, self.context)
        self.found.preempted += [(member.run, ranked) for member in chosen]
        return bool(chosen)

    def _reserve_shared(self, ranked: RankedJob, sharing: SharedPlacement) -> bool:
        """Let nobody else onto devices that have most room for a job whose patience is over; it has to wait."""
        sharing.count_miss(ranked)
        if self.first_sharing_left is None and ranked.job.spec.gpus == 1:  # who comes behind has fewer to make way
            self.first_sharing_left = ranked
            self.found.wake_s = min(self.found.wake_s, sharing.ripe_s(ranked, self.context))
        until_s = ranked.job.pending_since_s + self.rules.patience_s
        if until_s > self.now_s:
            self.found.wake_s = min(self.found.wake_s, until_s)
        elif free := sharing.reserve(ranked, self.free):
            self.free.take(free)
            self.found.kept += free
            self.found.keeps[ranked.job_id] = free[0][1].kind
        return False

    def _keep_stopping(self, ranked: RankedJob) -> bool:
        job = ranked.job
        kinds = self.coming.kinds(job.spec)
        enough = [k for k, count in kinds.items() if count + self.free.count(job.spec, k) >= job.spec.gpus]
        if not enough:
            return False
        self._keep(ranked, min(enough, key=lambda kind: (-self.speed(job, kind), kind)))
        return True

    def _preempt_for(self, ranked: RankedJob) -> bool:
        if (self.sharing is not None and self.sharing.full) or not self.victims.below(ranked):
            return False
        if asks(ranked.job.spec) and not (self.free.hosts is None or self.free.hosts.within_shares(ranked.job.spec)):
            return False  # what a run leaves is its devices' shares, which need not be enough
        options = [(kind, found) for kind in self.victims.kinds(ranked) if (found := self._enough(ranked, kind))]
        if not options:
            return False
        job = ranked.job
        kind, chosen = min(options, key=lambda o: (o[1].loss_gpu_s, len(o[1].runs), -self.speed(job, o[0]), o[0]))
        self.victims.take(chosen)
        if self.sharing is not None:
            self.sharing.close(device for victim in chosen.runs for device in victim.devices)
        self.found.preempted += [(victim, ranked) for victim in chosen.runs]
        self._keep_with(ranked, kind, [device for victim in chosen.runs for device in victim.devices])
        self.found_nothing.clear()  # a gang that is preempted may leave more than was needed
        return True

    def _enough(self, ranked: RankedJob, kind: str) -> VictimChoice | None:
        """Return the lightest runs whose devices make up what the job lacks of a kind."""
        spec = ranked.job.spec
        there = self.free.count(spec, kind) + self.coming.count(spec, kind) if spec.gpus > 1 else 0
        found = self.victims.choose(ranked, kind, spec.gpus - there)
        while self.sharing is not None and found is not None and (gone := self._joined_by_others(found)).runs:
            self.victims.take(gone)
            found = self.victims.choose(ranked, kind, spec.gpus - there)
        return found

    def _joined_by_others(self, choice: VictimChoice) -> VictimChoice:
        """Return those of a choice whose devices somebody has joined in this round: they would not fall free."""
        touched = self.sharing.touched if self.sharing is not None else lambda _: False
        return VictimChoice(0.0, tuple(run for run in choice.runs if touched(run.devices)))

    def _keep_with(self, ranked: RankedJob, kind: str, freed: Sequence[Located]) -> None:
        """Keep all of a kind that is free or stopping, and of what is freed as much as is lacking; leave the rest."""
        spec = ranked.job.spec
        stopping = free = 0
        if spec.gpus > 1:  # one that needs a single device has found none
            stopping, free = self.coming.count(spec, kind), self.free.count(spec, kind)
            self._keep_coming(ranked, kind, stopping)
        self._keep_free(ranked, kind, free)
        if len(freed) > 1:
            fitting = [located for located in freed if located[1].kind == kind and fits(spec, located[1])]
            kept = set(fitting[: spec.gpus - stopping - free])
            self.coming.give(located for located in freed if located not in kept)

    def _keep(self, ranked: RankedJob, kind: str) -> None:
        """Keep stopping devices first, and free ones for the rest."""
        spec = ranked.job.spec
        stopping = min(spec.gpus, self.coming.count(spec, kind))
        self._keep_coming(ranked, kind, stopping)
        self._keep_free(ranked, kind, spec.gpus - stopping)

    def _keep_coming(self, ranked: RankedJob, kind: str, count: int) -> None:
        devices = self._choose(self.coming, ranked, kind, count)
        self.coming.take(devices)
        self.found.awaited += devices

    def _keep_free(self, ranked: RankedJob, kind: str, count: int) -> None:
        devices = self._choose(self.free, ranked, kind, count)
        self.free.take(devices, ranked.job.spec)
        self.found.kept += devices
        self.found.keeps[ranked.job_id] = kind

    def _choose(self, among: FreeDevices, ranked: RankedJob, kind: str, count: int) -> list[Located]:
        job = ranked.job
        return among.choose(job.spec, kind, count, together=self.together(job), first_fit=self.first_fit)

    def _reserve_kind(self, ranked: RankedJob) -> None:
        kind = self._stay(ranked) or self._settle(ranked)
        if kind:
            self.found.reserved[ranked.job_id] = kind
            self._keep_free(ranked, kind, self.free.count(ranked.job.spec, kind))

    def _reserve_host(self, ranked: RankedJob) -> None:
        """Keep what is free of one node for a job that waits for room on a host, once its patience is over."""
        until_s = ranked.job.pending_since_s + self.rules.patience_s
        if until_s > self.now_s:
            self.found.wake_s = min(self.found.wake_s, until_s)
        elif devices := self.free.roomiest(ranked.job.spec, self.whole):
            self.free.take(devices)
            self.found.kept += devices
            self.found.keeps[ranked.job_id] = devices[0][1].kind

    def _stay(self, ranked: RankedJob) -> str:
        kind = self.reserved_before.get(ranked.job_id, "")
        return kind if kind and self._could_hold(ranked, kind) else ""

    def _settle(self, ranked: RankedJob) -> str:
        """Return the kind that a patient gang waits for from now on: the one that has most for it."""
        job = ranked.job
        kinds = {kind: count for kind, count in self.free.kinds(job.spec).items() if self._could_hold(ranked, kind)}
        patient_until_s = job.pending_since_s + self.rules.patience_s
        if kinds and patient_until_s > self.now_s:
            self.found.wake_s = min(self.found.wake_s, patient_until_s)
            return ""
        return min(kinds, key=lambda kind: (-kinds[kind], -self.speed(job, kind), kind), default="")

    def _could_hold(self, ranked: RankedJob, kind: str) -> bool:
        spec = ranked.job.spec
        return kind not in self.found.reserved.values() and self.whole.count(spec, kind) >= spec.gpus
