"""
Who may start now, who is preempted for them, and what is kept free: one walk through the waiting jobs in rank order.

Each waiting job takes the first of these that gives it all of its devices at once, on one kind:

1. devices that are free;
2. free devices and those of runs that are already stopping: it keeps both and starts when the stopping ones are gone;
3. the same and the devices of running jobs of a *higher queue number* that have run long enough: these are preempted,
   lowest ranked first. Never within a queue, so two jobs cannot preempt each other in turn. Long enough is
   ``min_run_s``, and so long that the workload's measured overhead (starting, resuming, stopping; where nothing of a
   preempted run was kept, all of it) is at most ``overhead_share`` of the run: whatever arrives, a job advances;
4. a gang that has waited for ``patience_s`` keeps what is free of the kind that has most for it (one gang a kind).

What none of the four gives leaves the job waiting, and smaller jobs behind it may start (backfill). A gang's time to
wait for its turn is so bounded by its patience and the runs that are under way then, as long as its rank holds.

Known shortcut: victims are chosen by rank, not by what is lost since their last checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock_policies.cluster import fits
from penstock_policies.order import Outlook, Ranked, Running, Supply
from penstock_policies.placement import Located


@dataclass
class Admission:
    """
    What the walk decided.

    Attributes
    ----------
    gangs : list of (Ranked, kind, devices)
        Start now on these devices.
    singles : list of Ranked
        One-device jobs in rank order, for the matching; at least the first of them find a free device.
    preempted : list of (victim, for whom)
    keeps : dict of str to str
        Jobs that keep devices until they have all of theirs → the kind.
    kept : list of Located
        Free devices that these keep.
    wake_s : float
        When the walk could come out otherwise although nothing has happened; infinite if never.
    """

    gangs: list[tuple[Ranked, str, list[Located]]] = field(default_factory=list)
    singles: list[Ranked] = field(default_factory=list)
    preempted: list[tuple[Running, Ranked]] = field(default_factory=list)
    keeps: dict[str, str] = field(default_factory=dict)
    kept: list[Located] = field(default_factory=list)
    wake_s: float = math.inf


def admit(waiting: Sequence[Ranked], running: Iterable[Running], supply: Supply, outlook: Outlook) -> Admission:
    """
    Walk the waiting jobs and decide who gets devices.

    Parameters
    ----------
    waiting : sequence of Ranked
        In rank order, those ahead to whom devices are promised; only jobs that may start.
    running : iterable of Running
        Runs that may be preempted at all, in any order.
    supply : Supply
        ``free`` and ``coming`` are changed: what is taken or kept is gone, but a single's device is back for the
        matching to give out.
    outlook : Outlook
        Gangs prefer the fastest kind that holds them.

    Notes
    -----
    O(W + P log P) looks at W jobs and P runs, and one look at every node for each job that gets devices.
    """
    walk = _Walk(supply, outlook, sorted(running, reverse=True))
    for ranked in waiting:
        if ranked.job.spec.gpus == 1:
            walk.found.singles.append(ranked)
        if walk.open_to(ranked):
            walk.visit(ranked)
    supply.free.give(walk.lent)
    return walk.found


class _Walk:
    def __init__(self, supply: Supply, outlook: Outlook, victims: list[Running]) -> None:
        self.free, self.coming, self.whole = supply.free, supply.coming, supply.whole
        self.speed, self.overhead, self.together = outlook.speed, outlook.overhead, outlook.together
        self.now_s, self.rules = outlook.now_s, outlook.rules
        self.victims = victims  # lowest ranked first
        self.lent: list[Located] = []
        self.found = Admission()
        # Demands that got nothing: what is free shrinks on the way down the ranks, so equal ones get nothing either.
        self.futile: set[tuple[object, ...]] = set()

    def open_to(self, ranked: Ranked) -> bool:
        """Say whether the job could get anything at all: free devices, or a run that ranks lower."""
        return len(self.free) > 0 or len(self.coming) > 0 or self._outranks_somebody(ranked)

    def visit(self, ranked: Ranked) -> None:
        spec = ranked.job.spec
        demand = (spec.kinds, spec.memory_bytes, spec.gpus, ranked.sample)
        if demand not in self.futile:
            if self._start(ranked) or self._keep_stopping(ranked) or self._preempt_for(ranked):
                return
            self.futile.add(demand)
        if spec.gpus > 1:
            self._keep_what_is_free(ranked)

    def _start(self, ranked: Ranked) -> bool:
        job = ranked.job
        kinds = self.free.kinds(job.spec)
        whole = [kind for kind, count in kinds.items() if count >= job.spec.gpus]
        if not whole:
            return False
        kind = min(whole, key=lambda kind: (-self.speed(job, kind), kinds[kind], kind))
        devices = self.free.choose(job.spec, kind, job.spec.gpus, together=self.together(job))
        self.free.take(devices)
        if job.spec.gpus == 1:
            self.lent += devices
        else:
            self.found.gangs.append((ranked, kind, devices))
        return True

    def _keep_stopping(self, ranked: Ranked) -> bool:
        job = ranked.job
        kinds = self.coming.kinds(job.spec)
        enough = [k for k, count in kinds.items() if count + self.free.count(job.spec, k) >= job.spec.gpus]
        if not enough:
            return False
        self._keep(ranked, min(enough, key=lambda kind: (-self.speed(job, kind), kind)))
        return True

    def _preempt_for(self, ranked: Ranked) -> bool:
        if not self._outranks_somebody(ranked):
            return False
        options = [(kind, found) for kind in self._kinds_of_victims(ranked) if (found := self._enough(ranked, kind))]
        if not options:
            return False
        job = ranked.job
        kind, chosen = min(options, key=lambda option: (len(option[1]), -self.speed(job, option[0]), option[0]))
        for victim in chosen:
            self.victims.remove(victim)
            self.coming.give(victim.devices)
            self.found.preempted.append((victim, ranked))
        self._keep(ranked, kind)
        self.futile.clear()  # a gang that is preempted may leave more than was needed
        return True

    def _enough(self, ranked: Ranked, kind: str) -> list[Running]:
        """Return the lowest ranked runs whose devices make up what the job lacks of a kind; empty if they do not."""
        spec = ranked.job.spec
        lacking = spec.gpus - self.free.count(spec, kind) - self.coming.count(spec, kind)
        chosen: list[tuple[Running, int]] = []
        for victim in self.victims:
            if lacking <= 0 or victim.ranked.queue <= ranked.queue:
                break
            gain = sum(device.kind == kind and fits(spec, device) for _, device in victim.devices)
            if gain and self._ripe(victim):
                chosen.append((victim, gain))
                lacking -= gain
        if lacking > 0:
            return []
        for victim, gain in reversed(chosen[:-1]):  # whom a later, larger victim made superfluous
            if lacking + gain <= 0:
                chosen.remove((victim, gain))
                lacking += gain
        return [victim for victim, _ in chosen]

    def _ripe(self, victim: Running) -> bool:
        job = victim.ranked.job
        if not job.started_s:
            return False
        ripe_s = job.started_s + max(self.rules.min_run_s, self.overhead(job) / self.rules.overhead_share)
        if ripe_s > self.now_s:
            self.found.wake_s = min(self.found.wake_s, ripe_s)
        return ripe_s <= self.now_s

    def _keep(self, ranked: Ranked, kind: str) -> None:
        """Keep stopping devices first, and free ones for the rest."""
        spec = ranked.job.spec
        stopping = self.coming.choose(spec, kind, spec.gpus, together=self.together(ranked.job))
        self.coming.take(stopping)
        self._keep_free(ranked, kind, spec.gpus - len(stopping))

    def _keep_free(self, ranked: Ranked, kind: str, count: int) -> None:
        devices = self.free.choose(ranked.job.spec, kind, count, together=self.together(ranked.job))
        self.free.take(devices)
        self.found.kept += devices
        self.found.keeps[ranked.job_id] = kind

    def _keep_what_is_free(self, ranked: Ranked) -> None:
        spec, taken = ranked.job.spec, set(self.found.keeps.values())
        kinds = {
            kind: count
            for kind, count in self.free.kinds(spec).items()
            if kind not in taken and self.whole.count(spec, kind) >= spec.gpus
        }
        patient_until_s = ranked.job.pending_since_s + self.rules.patience_s
        if kinds and patient_until_s > self.now_s:
            self.found.wake_s = min(self.found.wake_s, patient_until_s)
        elif kinds:
            kind = min(kinds, key=lambda kind: (-kinds[kind], -self.speed(ranked.job, kind), kind))
            self._keep_free(ranked, kind, kinds[kind])

    def _outranks_somebody(self, ranked: Ranked) -> bool:
        return bool(self.victims) and not ranked.sample and self.victims[0].ranked.queue > ranked.queue

    def _kinds_of_victims(self, ranked: Ranked) -> list[str]:
        kinds = {v.kind for v in self.victims if v.ranked.queue > ranked.queue}
        return sorted(kinds)
