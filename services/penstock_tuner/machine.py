"""
The tuner's pure part: open a sweep's trials, see them end, and name the best.

Submitting the trials is not a decision but its consequence: ``State.unaccepted`` has the opened trials that the gateway
has not accepted yet, and the runner submits those, again and again under the same ids, until none is left.
"""

from __future__ import annotations

import copy
import re
from typing import Final

from penstock_bus import Decider
from penstock_events import (
    TERMINAL,
    Event,
    Job,
    JobSpec,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    RoundDecided,
    RunEnded,
    RunStarted,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    TrialsMeasured,
    workload,
)
from penstock_tuner import trials
from penstock_tuner.deciding import remembering
from penstock_tuner.measures import Measures
from penstock_tuner.paces import Paces
from penstock_tuner.settings import Settings
from penstock_tuner.state import State
from penstock_tuner.sweep import Sweep

WORKLOADS: Final = 1000
"""Workloads whose penalties are remembered."""
_LIKE_A_TRIAL: Final = re.compile(r"-t\d{3,}(-r\d+)?(-a)?$")
_TAKEN: Final = "its id belongs to another job"
_ABOUT_NODES: Final = (NodeJoined, NodeLeft, NodeDrained, NodeResumed)
_FOR_DEVICES: Final = frozenset({"capacity", "gang", "host_cpus", "host_memory", "order", "fairness", "later_place"})


def decider(_settings: Settings | None = None) -> Decider[State]:
    """Return the tuner as the shell, the simulator and tests run it; no setting changes what it decides."""
    return Decider(name="tuner", state=State, schema="tuner.8", apply=apply, decide=remembering())


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in."""
    match event:
        case SweepSubmitted():
            _begin(state, event, seq)
        case SweepCancelled():
            _cancel(state, event.sweep_id, seq)
        case TrialGroupOpened():
            _open(state, event, seq)
        case TrialFinished():
            _report(state, event, seq)
        case TrialRetried():
            _retry(state, event, seq)
        case TrialsMeasured():
            if (sweep := state.sweeps.get(event.sweep_id)) is not None:
                sweep.told = event
        case SweepFinished():
            _forget(state, event.sweep_id)
        case JobSubmitted():
            _accept(state, event, seq)
        case _:
            _note_rest(state, event, seq)


def submission(state: State, job_id: str) -> JobSpec | None:
    """Return the job of a trial that has to be submitted; None once it need not be."""
    sweep = state.sweeps.get(state.unaccepted.get(job_id, ""))
    return trials.job_spec(sweep.id, sweep.spec, sweep.running[job_id]) if sweep is not None else None


def _cancel(state: State, sweep_id: str, seq: int) -> None:
    sweep = state.sweeps.get(sweep_id)
    if sweep is not None:
        sweep.cancelled, sweep.cause = True, seq
        for job_id, reason in sweep.to_retry.items():
            sweep.drop(job_id, "failed", problem="memory", reason=reason)
        sweep.to_retry.clear()
        _drop_unaccepted(state, sweep)


def _open(state: State, event: TrialGroupOpened, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None:
        return
    for job_id in sweep.open(event):
        _await(state, sweep, job_id)
    if sweep.cancelled:
        _drop_unaccepted(state, sweep)
    sweep.cause = seq


def _await(state: State, sweep: Sweep, job_id: str) -> None:
    """Have a trial's job submitted, unless its id belongs to somebody else."""
    state.sweep_of[job_id] = sweep.id
    if job_id in state.strangers:
        sweep.drop(job_id, "failed", problem="refused", reason=_TAKEN)
    else:
        state.unaccepted[job_id] = sweep.id


def _retry(state: State, event: TrialRetried, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None or not sweep.retry(event):
        return
    state.sweep_of.pop(event.job_id, None)
    _await(state, sweep, event.trial.job_id)
    if sweep.cancelled:
        _drop_unaccepted(state, sweep)
    sweep.cause = seq


def _drop_unaccepted(state: State, sweep: Sweep) -> None:
    for job_id in [job_id for job_id in sweep.running if job_id in state.unaccepted]:
        del state.unaccepted[job_id]
        sweep.drop(job_id, "cancelled")


def _report(state: State, event: TrialFinished, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None or state.sweep_of.get(event.job_id) != sweep.id or not sweep.report(event):
        return
    del state.sweep_of[event.job_id]
    state.unaccepted.pop(event.job_id, None)
    sweep.cause = seq


def _begin(state: State, event: SweepSubmitted, seq: int) -> None:
    """Begin a sweep, with what sweeps over the same workload have shown."""
    known = state.measures.get(workload.key(event.spec.job), Measures())
    fresh = Sweep(id=event.sweep_id, spec=event.spec, paces=Paces(measures=copy.deepcopy(known)))
    state.sweeps.setdefault(event.sweep_id, fresh).cause = seq


def _forget(state: State, sweep_id: str) -> None:
    sweep = state.sweeps.pop(sweep_id, None)
    if sweep is not None:
        key = workload.key(sweep.spec.job)
        state.measures.pop(key, None)
        state.measures[key] = sweep.measures
        if len(state.measures) > WORKLOADS:
            del state.measures[next(iter(state.measures))]
    for job_id in (*sweep.running, *sweep.ended) if sweep is not None else ():
        state.sweep_of.pop(job_id, None)
        state.unaccepted.pop(job_id, None)


def _accept(state: State, event: JobSubmitted, seq: int) -> None:
    state.jobs.apply(event)
    sweep = state.sweeps.get(state.sweep_of.get(event.job_id, ""))
    if sweep is None:
        if _LIKE_A_TRIAL.search(event.job_id):
            state.strangers.add(event.job_id)
        return
    state.unaccepted.pop(event.job_id, None)
    if event.spec.parent != sweep.id:  # somebody took the id: the gateway will refuse the trial for ever
        sweep.drop(event.job_id, "failed", problem="refused", reason=_TAKEN)
        sweep.cause = seq


def _note_rest(state: State, event: Event, seq: int) -> None:
    state.cluster.apply(event)
    if isinstance(event, _ABOUT_NODES) or (isinstance(event, RoundDecided) and event.lost_nodes):
        state.nodes_seq = seq
    if isinstance(event, RoundDecided):
        state.waits[event.pool] = [wait.job_id for wait in event.waits if wait.cause in _FOR_DEVICES]
    gpus = _gpus(state, event)
    for job in state.jobs.apply(event):
        if state.leases.note(job) or isinstance(event, RunStarted):
            state.leases_seq = seq
        if (sweep := _sweep_of(state, job)) is not None:
            sweep.paces.follow(sweep.running[job.id], job, event, gpus)
            if isinstance(event, RunEnded):
                sweep.note_run(job, event)
        if job.state in TERMINAL:
            _end(state, sweep, job, seq)


def _gpus(state: State, event: Event) -> int:
    """Return how many devices the job has whose run is about to end: the fold may give it another width with that."""
    job = state.jobs.get(event.job_id) if isinstance(event, RunEnded) else None
    return job.spec.gpus if job is not None else 1


def _sweep_of(state: State, job: Job) -> Sweep | None:
    """Return the sweep whose trial a job is that is not over; a job of another that took its id is none."""
    sweep = state.sweeps.get(state.sweep_of.get(job.id, ""))
    return sweep if sweep is not None and job.id in sweep.running and job.spec.parent == sweep.id else None


def _end(state: State, sweep: Sweep | None, job: Job, seq: int) -> None:
    state.jobs.forget(job.id)
    if sweep is not None:
        sweep.end(job)
        sweep.cause = seq
