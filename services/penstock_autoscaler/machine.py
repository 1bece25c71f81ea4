"""
The autoscaler's pure part: the fold of nodes, jobs, their order, and how their workloads scale.

It sizes the elastic jobs of a pool anew when a job comes or goes, a node does, the order changes, or something is
learnt of a workload; and at an interval, since a run that is too young to be resized grows older.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock_autoscaler.deciding import remembering
from penstock_autoscaler.settings import Settings
from penstock_autoscaler.state import WORKLOADS, Because, State
from penstock_bus import Decider
from penstock_events import (
    TERMINAL,
    Event,
    Job,
    JobFinished,
    JobHeld,
    JobReleased,
    JobsRanked,
    JobSubmitted,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunWarned,
    SamplesRequested,
    ScaleDecided,
    WorkloadProfiled,
    WorkloadScaled,
)
from penstock_events import State as JobState
from penstock_policies.autoscale.knows import key_of
from penstock_policies.cluster import OF_NODES
from penstock_policies.order import Manner

__all__ = ["State", "apply", "decider"]


def decider(settings: Settings | None = None) -> Decider[State]:
    """Return the autoscaler as the shell, the simulator and tests run it."""
    return Decider(
        name="autoscaler",
        state=State,
        schema="autoscaler.3",
        apply=apply,
        decide=remembering(settings or Settings()),
        ignores=frozenset({JobFinished, RunWarned, RunMeasured}),
    )


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in."""
    match event:
        case JobsRanked():
            _note_ranks(state, event, seq)
        case WorkloadScaled():
            _note_scaled(state, event, seq)
        case WorkloadProfiled():
            state.speeds.apply(event)
            _note_key(state, event.key, seq)
        case _ if type(event) in OF_NODES and state.cluster.apply(event):
            for name in state.pools:
                state.note(name, seq, "nodes")
    _learn(state, event, seq)
    changed = state.jobs.apply(event)
    if isinstance(event, ScaleDecided):
        _note_void(state, event, changed)
    _sort_in(state, changed, event, seq)


def _note_ranks(state: State, event: JobsRanked, seq: int) -> None:
    pool = state.pool(event.pool)
    moved = False
    for rank in event.ranks:
        if rank.job_id in pool.jobs:
            moved = moved or rank.job_id in state.ranks
            state.ranks[rank.job_id] = rank
    pool.manner = Manner(event.backfills, event.preempts)
    state.note(event.pool, seq, "order" if moved else None)


def _note_scaled(state: State, event: WorkloadScaled, seq: int) -> None:
    state.scaled.pop(event.key, None)
    state.scaled[event.key] = event.kinds
    if len(state.scaled) > WORKLOADS:
        del state.scaled[next(iter(state.scaled))]
    _note_key(state, event.key, seq)


def _note_key(state: State, key: str, seq: int) -> None:
    """Note that something was learnt of a workload."""
    for name, pool in state.pools.items():
        if any(key_of(state.jobs[job_id]) == key for job_id in pool.elastic):
            state.note(name, seq, "profile")


def _learn(state: State, event: Event, seq: int) -> None:
    """Take in what a fact says beside the jobs' lives, before these change."""
    match event:
        case RoundDecided():
            for preemption in event.preemptions:
                state.costs.ask(preemption.job_id, event.at_s)
        case RunEnded():
            job = state.jobs.get(event.job_id)
            if job is not None and job.started_s and job.may_run(event.epoch, event.node_id):
                state.costs.end(job, key_of(job), event)
                if job.spec.elastic and job.demand is not None and job.placement is not None:
                    state.returning[job.id] = (*job.demand.kinds, job.placement.kind)[0]
                if job.spec.elastic or job.sample is not None:
                    state.shown.note_end(job, key_of(job), event)
        case RunCheckpointed():
            job = state.jobs.get(event.job_id)
            if job is not None and job.spec.elastic and job.placement is not None and job.epoch == event.epoch:
                if not state.shown.saves.get(key := key_of(job), False):
                    state.note(job.spec.pool, seq)
                state.shown.note_checkpoint(job, key, event)
        case _:
            pass


def _note_void(state: State, event: ScaleDecided, changed: Iterable[Job]) -> None:
    """Note demands that changed nothing, so that they are not made again."""
    told = {job.id for job in changed}
    for demand in event.demands:
        if demand.job_id in state.jobs.by_id and demand.job_id not in told:
            state.void[demand.job_id] = demand


def _sort_in(state: State, changed: Iterable[Job], event: Event, seq: int) -> None:
    because = _because(event)
    for job in changed:
        if job.placement is None:
            state.costs.forget(job.id)
        if job.held or job.state is JobState.RUNNING:
            state.returning.pop(job.id, None)
        if job.state in TERMINAL:
            _forget(state, job)
        else:
            _keep(state, job)
        if job.state in TERMINAL:
            state.note(job.spec.pool, seq, "completion")
        elif not isinstance(event, RunCheckpointed | RunMeasured | RunRewound) and (
            job.spec.elastic or not isinstance(event, RunStarted)
        ):
            state.note(job.spec.pool, seq, because)


def _because(event: Event) -> Because | None:
    match event:
        case JobSubmitted() | SamplesRequested() | JobReleased():
            return "arrival"
        case JobHeld() | RunEnded():
            return "completion"
        case RoundDecided() if event.lost_nodes:
            return "nodes"
        case _:
            return None


def _keep(state: State, job: Job) -> None:
    pool = state.pool(job.spec.pool)
    pool.jobs[job.id] = None
    if job.spec.elastic and job.sample is None:
        pool.elastic[job.id] = None


def _forget(state: State, job: Job) -> None:
    pool = state.pool(job.spec.pool)
    pool.jobs.pop(job.id, None)
    pool.elastic.pop(job.id, None)
    state.ranks.pop(job.id, None)
    state.void.pop(job.id, None)
    state.returning.pop(job.id, None)
    state.shown.forget(job.id)
    state.jobs.forget(job.id)
