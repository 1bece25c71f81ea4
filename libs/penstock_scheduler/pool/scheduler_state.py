"""The fold that rounds are decided from; the matcher decides by it, and whoever asks what-if tries rounds on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from penstock_cluster.nodes import OF_NODES, Cluster
from penstock_log import (
    TERMINAL,
    Event,
    Job,
    JobRank,
    JobsArchived,
    JobsRanked,
    JobState,
    JobTable,
    MemoryNeed,
    PolicySet,
    ReservationCancelled,
    ReservationMade,
    RoundDecided,
    RunEnded,
    RunMeasured,
    Setting,
    WorkloadProfiled,
    lifecycle,
    workload,
)
from penstock_policies.job_lengths import FinishedService
from penstock_policies.queue_policies import BY_QUEUE, DispatchMode, newcomer
from penstock_policies.workload_stats import Speeds
from penstock_scheduler.pool.pool_index import PoolIndex
from penstock_scheduler.pool.pool_view import PoolView, RoundHistory
from penstock_scheduler.priority_classes import NO_CLASSES, Classes
from penstock_scheduler.round_types import RoundRules

REMEMBERED: Final = 256
"""Finished jobs of a pool whose service is remembered."""


class ExplainedRound(msgspec.Struct, frozen=True):
    """
    What the last round of a pool said that explained.

    Attributes
    ----------
    at_s : float
        When it was decided.
    causes : dict of str to str
        Why each job waits.
    decided_s : float
        When the last round was decided, whether it explained or not.
    """

    at_s: float
    causes: dict[str, str]
    decided_s: float


class RulesInForce(NamedTuple):
    """A pool's rules, and the settings that they follow from."""

    settings: RoundRules
    live: Mapping[str, Setting] | None
    rules: RoundRules


@dataclass
class SchedulerCache:
    """
    What follows from a scheduler's state: kept beside it, kept up to date by :func:`fold`, and never saved.

    Attributes
    ----------
    with_nodes : tuple of str or None
        The pools that have or had a node; None after a node came or went.
    indices : dict of str to PoolIndex
        The pools that somebody has asked for.
    finished : dict of str to FinishedService
        Pool → the service of its last finished jobs, until another one completes.
    rules : dict of str to RulesInForce
    """

    with_nodes: tuple[str, ...] | None = None
    indices: dict[str, PoolIndex] = field(default_factory=dict)
    finished: dict[str, FinishedService] = field(default_factory=dict)
    rules: dict[str, RulesInForce] = field(default_factory=dict)


class PoolReservations(msgspec.Struct):
    """
    The reservations of a pool for teams that are not over yet.

    Attributes
    ----------
    made : int
        How many there ever were.
    by_id : dict of str to ReservationMade
        In the order in which they were made.
    """

    made: int = 0
    by_id: dict[str, ReservationMade] = msgspec.field(default_factory=dict)


def note_reservation(reserved: dict[str, PoolReservations], event: ReservationMade | ReservationCancelled) -> bool:
    """
    Take in a reservation, or its end, and say whether anything changes.

    Those that are over are forgotten when another is made, so that their number stays bounded.
    """
    of_pool = reserved.setdefault(event.pool, PoolReservations())
    if isinstance(event, ReservationCancelled):
        return of_pool.by_id.pop(event.reservation_id, None) is not None
    for over in [one.reservation_id for one in of_pool.by_id.values() if one.until_s <= event.at_s]:
        del of_pool.by_id[over]
    of_pool.made += 1
    of_pool.by_id[event.reservation_id] = event
    return True


class SchedulerState(msgspec.Struct, dict=True):
    """
    All that a round depends on but the jobs themselves.

    The state's owner folds the jobs, because some owners forget those that are over.

    Attributes
    ----------
    ranks : dict of str to JobRank
    keys : dict of str to str
        Job → workload key, for those that are not over.
    live : dict of str to dict of str to None
        Pool → ids of its jobs that are not over, in order of submission.
    finished_s : dict of str to list of float
        Pool → service that its last finished jobs needed, seconds at speed 1.
    history : RoundHistory
        The history of rounds: what stopping costs, how far users are, for whom devices are kept.
    promised : set of str
        Waiting jobs for which others were preempted, or that stopped to be resized, until they start.
    explained : dict of str to ExplainedRound
        Pool → what its last round said.
    policies : dict of str to dict of str to Setting
        Pool → what is set live.
    reserved : dict of str to PoolReservations
        Pool → its reservations.
    modes : dict of str to DispatchMode
        Pool → how its order is walked, as the ranker last said.
    needs : dict of str to MemoryNeed
        Workload → what its last run that measured it needed of a device's memory.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    ranks: dict[str, JobRank] = msgspec.field(default_factory=dict)
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    live: dict[str, dict[str, None]] = msgspec.field(default_factory=dict)
    speeds: Speeds = msgspec.field(default_factory=Speeds)
    finished_s: dict[str, list[float]] = msgspec.field(default_factory=dict)
    history: RoundHistory = msgspec.field(default_factory=RoundHistory)
    promised: set[str] = msgspec.field(default_factory=set)
    explained: dict[str, ExplainedRound] = msgspec.field(default_factory=dict)
    policies: dict[str, dict[str, Setting]] = msgspec.field(default_factory=dict)
    reserved: dict[str, PoolReservations] = msgspec.field(default_factory=dict)
    modes: dict[str, DispatchMode] = msgspec.field(default_factory=dict)
    needs: dict[str, MemoryNeed] = msgspec.field(default_factory=dict)

    @cached_property
    def cache(self) -> SchedulerCache:
        """What follows from the state."""
        return SchedulerCache()

    def pools(self) -> Sequence[str]:
        """Return the names of all pools that have or had a node, or have a job that is not over, in order."""
        with_nodes = self.cache.with_nodes
        if with_nodes is None:
            with_nodes = self.cache.with_nodes = tuple(sorted(self.cluster.pools()))
        for name, ids in self.live.items():
            if ids and name not in with_nodes:  # which is rare
                return sorted({*with_nodes, *(name for name, ids in self.live.items() if ids)})
        return with_nodes

    def jobs_of(self, name: str, jobs: JobTable) -> list[Job]:
        """Return a pool's jobs that are not over, in order of submission."""
        return [jobs[job_id] for job_id in self.live.get(name, ())]

    def at_rest(self, name: str) -> bool:
        """Say whether an indexed pool is at rest: no job waits and no run is to move, so a round would do nothing."""
        index = self.cache.indices.get(name)
        return index is not None and not len(index.waiting) and not index.evicting and not index.moving

    def pool(self, name: str, jobs: JobTable, topology: Sequence[str] = (), classes: Classes = NO_CLASSES) -> PoolView:
        """
        Return the view that a round of the pool is decided from.

        Parameters
        ----------
        topology : sequence of str
            Levels of domains.
        classes : mapping of str to PriorityClass
            The pool's classes; as the topology, they are of the rules by which its rounds are decided.
        """
        explained = self.explained.get(name)
        return PoolView(
            name=name,
            cluster=self.cluster,
            index=self._index(name, jobs, tuple(topology), classes),
            ranks=self.ranks,
            mode=self.modes.get(name, BY_QUEUE),
            keys=self.keys,
            speeds=self.speeds,
            finished_s=self._finished(name),
            history=self.history,
            promised=self.promised,
            explained_s=explained.at_s if explained else -math.inf,
            explained=explained.causes if explained else {},
            decided_s=explained.decided_s if explained else -math.inf,
            team_reservations=self.reservations(name),
        )

    def reservations(self, name: str) -> Sequence[ReservationMade]:
        """Return the reservations of a pool for teams, in the order in which they were made."""
        reserved = self.reserved.get(name)
        return tuple(reserved.by_id.values()) if reserved is not None else ()

    def _finished(self, name: str) -> FinishedService:
        ready = self.cache.finished
        if name not in ready:
            ready[name] = FinishedService(self.finished_s.get(name, ()))
        return ready[name]

    def _index(self, name: str, jobs: JobTable, topology: tuple[str, ...], classes: Classes) -> PoolIndex:
        index = self.cache.indices.get(name)
        if index is None or index.topology != topology or index.classes != classes:
            found = self.jobs_of(name, jobs)
            index = PoolIndex(name, self.cluster, self.ranks, found, topology, self.needs, classes)
            self.cache.indices[name] = index
        return index


def fold(known: SchedulerState, jobs: JobTable, event: Event) -> tuple[list[Job], bool]:
    """
    Fold one fact into the jobs and into the scheduler's state.

    Returns
    -------
    list of Job
        The jobs that the fact is about, as they are now.
    bool
        Whether the fact could change what a round decides.
    """
    kind_of_fact = type(event)
    matters = kind_of_fact in OF_NODES and known.cluster.apply(event)
    if matters:
        known.history.classes.clear()
        known.cache.indices.clear()
        known.cache.with_nodes = None
    learn = _TAUGHT_BY.get(kind_of_fact)
    if learn is not None:
        matters = learn(known, jobs, event) or matters
    kind, resized = "", False
    if isinstance(event, RunEnded):
        kind, resized = _kind_of_run(jobs, event), _is_resized(jobs.by_id.get(event.job_id))
    changed = jobs.apply(event)
    if changed:
        _sort_in(known, changed, kind, event.at_s)
        if resized:
            known.promised.update(job.id for job in changed if job.state is JobState.PENDING and job.startable)
    if jobs.sharers:
        for job in lifecycle.beside(jobs, event):
            known.history.note(job, event.at_s, known.cluster, known.speeds.of, known.keys[job.id])
    if indices := known.cache.indices:
        _follow(indices, jobs, changed, event)
    return changed, matters or bool(changed)


def _follow(indices: Mapping[str, PoolIndex], jobs: JobTable, changed: Iterable[Job], event: Event) -> None:
    """Bring the indices up to date."""
    if isinstance(event, RunMeasured):
        changed = [*changed, *(jobs[job_id] for index in indices.values() for job_id in index.sharing.unmeasured)]
    for job in changed:
        if (index := indices.get(job.spec.pool)) is not None:
            index.note(job)
    if isinstance(event, JobsRanked) and (index := indices.get(event.pool)) is not None:
        index.note_ranks(event.ranks)


def _learn_cost(known: SchedulerState, jobs: JobTable, event: RunEnded) -> bool:
    job = jobs.by_id.get(event.job_id)
    if job is not None and job.started_s and job.may_run(event.epoch, event.node_id):
        known.history.costs.end(job, known.keys[job.id], event)
    return False


def _learn_round(known: SchedulerState, _jobs: JobTable, event: RoundDecided) -> bool:
    before = known.explained.get(event.pool)
    if event.explains or before is None:
        causes: dict[str, str] = {wait.job_id: wait.cause for wait in event.waits}
        known.explained[event.pool] = ExplainedRound(event.at_s, causes, event.at_s)
    else:
        known.explained[event.pool] = ExplainedRound(before.at_s, before.causes, event.at_s)
    known.promised.update(p.for_job for p in event.preemptions if p.for_job in known.keys)
    known.history.decided(event)
    return False


def _learn_ranks(known: SchedulerState, _jobs: JobTable, event: JobsRanked) -> bool:
    known.ranks.update((rank.job_id, rank) for rank in event.ranks if rank.job_id in known.keys)
    known.modes[event.pool] = DispatchMode(event.backfills, event.preempts, order=event.order)
    return True


def _learn_speeds(known: SchedulerState, _jobs: JobTable, event: WorkloadProfiled) -> bool:
    known.speeds.apply(event)
    return True


def _learn_policy(known: SchedulerState, _jobs: JobTable, event: PolicySet) -> bool:
    known.policies[event.pool] = event.settings
    return True


def _learn_reservation(known: SchedulerState, _jobs: JobTable, event: ReservationMade | ReservationCancelled) -> bool:
    return note_reservation(known.reserved, event)


def _learn_need(known: SchedulerState, jobs: JobTable, event: RunMeasured) -> bool:
    job = jobs.get(event.job_id)
    if job is None or not job.may_run(event.epoch, event.node_id):
        return False
    key = known.keys[job.id]
    differs = known.needs.get(key) != event.need
    known.needs[key] = event.need
    return differs


def _learn_archive(known: SchedulerState, _jobs: JobTable, event: JobsArchived) -> bool:
    """Forget workloads that no job is left of, and take what finished jobs have taught from the fact."""
    for key in event.workloads:
        known.speeds.forget(key)
        known.needs.pop(key, None)
    for pool, learnt in event.learnt.items():
        known.finished_s[pool] = list(learnt.finished_s)
        known.cache.finished.pop(pool, None)
    return bool(event.workloads or event.learnt)


_TAUGHT_BY: Final[dict[type[Event], Callable[[SchedulerState, JobTable, Any], bool]]] = {
    RunEnded: _learn_cost,
    RoundDecided: _learn_round,
    JobsRanked: _learn_ranks,
    WorkloadProfiled: _learn_speeds,
    PolicySet: _learn_policy,
    ReservationMade: _learn_reservation,
    ReservationCancelled: _learn_reservation,
    RunMeasured: _learn_need,
    JobsArchived: _learn_archive,
}
"""
Kind of fact → what it teaches beside the jobs' lives, before these change; it returns whether a round could come out
otherwise for it.
"""

READ: Final[frozenset[type[Event]]] = OF_NODES | lifecycle.OF_JOBS | _TAUGHT_BY.keys()
"""Kinds of facts that :func:`fold` takes in; others change nothing."""


def _kind_of_run(jobs: JobTable, event: RunEnded) -> str:
    """Return the kind of device of a run that is about to end; the fold drops the placement."""
    job = jobs.by_id.get(event.job_id)
    return job.placement.kind if job is not None and job.placement is not None else ""


def _is_resized(job: Job | None) -> bool:
    """Say whether a run is about to end for another size: its job goes on before others come."""
    return job is not None and job.spec.elastic and job.demand is not None


def _sort_in(known: SchedulerState, jobs: Iterable[Job], kind: str, at_s: float) -> None:
    for job in jobs:
        if job.state is not JobState.PENDING or not job.startable:
            known.promised.discard(job.id)
        if job.state not in TERMINAL:
            if job.id not in known.keys:
                known.keys[job.id] = job.profile_key or workload.key(job.spec)
                known.live.setdefault(job.spec.pool, {})[job.id] = None
                known.history.arrive(job, at_s)
                _rank_newcomer(known, job)
            known.history.note(job, at_s, known.cluster, known.speeds.of, known.keys[job.id])
        elif job.id in known.keys:
            known.history.leave(job, at_s)
            _forget(known, job, kind)


def _rank_newcomer(known: SchedulerState, job: Job) -> None:
    """Give a new job the place that the ranker will give it; else it would come first in orders by length."""
    position = newcomer(known.modes.get(job.spec.pool, BY_QUEUE).order, job.spec, job.submitted_s)
    if job.sample is None and position != job.submitted_s:
        known.ranks[job.id] = JobRank(job_id=job.id, queue=0, position=position, since_s=job.submitted_s)


def _forget(known: SchedulerState, job: Job, kind: str) -> None:
    if job.state is JobState.COMPLETED and job.sample is None and kind:
        service_s = job.served_by(job.finished_s) * known.speeds.of(known.keys[job.id], kind)
        samples = known.finished_s.setdefault(job.spec.pool, [])
        samples.append(service_s)
        del samples[:-REMEMBERED]
        known.cache.finished.pop(job.spec.pool, None)
    known.ranks.pop(job.id, None)
    del known.keys[job.id]
    del known.live[job.spec.pool][job.id]
