"""
The tuner's pure part: open a sweep's trials, see them end, and name the best.

Submitting the trials is not a decision but its consequence: ``State.unaccepted`` has the opened trials that the gateway
has not accepted yet, and the runner submits those, again and again under the same ids, until none is left.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_events import (
    TERMINAL,
    AnyEvent,
    Event,
    Job,
    Jobs,
    JobSpec,
    JobSubmitted,
    SamplesRequested,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    TrialFinished,
    TrialGroupOpened,
    subjects,
)
from penstock_policies import search
from penstock_policies.cluster import Cluster
from penstock_tuner import trials
from penstock_tuner.settings import Settings
from penstock_tuner.sweep import Ended, Sweep

REPORTS: Final = 1000
"""Ends of trials reported in one commit, so that it stays well below a message's limit."""


_LIKE_A_TRIAL: Final = re.compile(r"-t\d{3,}$")


class State(msgspec.Struct):
    """
    Nodes, sweeps that are not over, and their trials' jobs.

    Attributes
    ----------
    sweep_of : dict of str to str
        Sweep of each opened trial that is not reported, by job id.
    unaccepted : dict of str to str
        The part of it that the gateway has not accepted and that is still wanted, oldest first.
    strangers : set of str
        Ids that look like a trial's but were taken by other jobs.
    due : set of str
        Sweeps with something to decide.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jobs: Jobs = msgspec.field(default_factory=Jobs)
    sweeps: dict[str, Sweep] = msgspec.field(default_factory=dict)
    sweep_of: dict[str, str] = msgspec.field(default_factory=dict)
    unaccepted: dict[str, str] = msgspec.field(default_factory=dict)
    strangers: set[str] = msgspec.field(default_factory=set)
    due: set[str] = msgspec.field(default_factory=set)


def decider(_settings: Settings | None = None) -> Decider[State]:
    """Return the tuner as the shell, the simulator and tests run it; no setting changes what it decides."""
    return Decider(name="tuner", state=State, schema="tuner.1", apply=apply, decide=decide)


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in."""
    match event:
        case SweepSubmitted():
            state.sweeps.setdefault(event.sweep_id, Sweep(id=event.sweep_id, spec=event.spec))
            _settle(state, event.sweep_id, seq)
        case SweepCancelled():
            _cancel(state, event.sweep_id, seq)
        case TrialGroupOpened():
            _open(state, event, seq)
        case TrialFinished():
            _report(state, event, seq)
        case SweepFinished():
            _forget(state, event.sweep_id)
        case JobSubmitted():
            _accept(state, event, seq)
        case SamplesRequested():
            pass  # samples are jobs, but no trials
        case _:
            _note_rest(state, event, seq)


def decide(state: State, now_s: float) -> Decision:
    """Return what each due sweep makes true next."""
    proposals = []
    for sweep_id in sorted(state.due):
        sweep = state.sweeps[sweep_id]
        facts = _next_facts(state, sweep, now_s)
        proposals.append(Proposal(subject=subjects.sweep(sweep_id), facts=facts, cause=sweep.cause))
    return Decision(proposals)


def submission(state: State, job_id: str) -> JobSpec | None:
    """Return the job of a trial that has to be submitted; None once it need not be."""
    sweep = state.sweeps.get(state.unaccepted.get(job_id, ""))
    return trials.job_spec(sweep.id, sweep.spec, sweep.running[job_id]) if sweep is not None else None


def _next_facts(state: State, sweep: Sweep, now_s: float) -> tuple[AnyEvent, ...]:
    if sweep.ended:
        ended = list(sweep.ended.items())[:REPORTS]
        return tuple(
            TrialFinished(at_s=now_s, sweep_id=sweep.id, job_id=job_id, state=end.state, value=end.value)
            for job_id, end in ended
        )
    if not _wants_trials(sweep):
        return (sweep.finish(now_s),)
    try:
        group = trials.group(sweep.id, sweep.spec, sweep.groups, state.cluster)
    except search.BadSpace as error:
        return (SweepFinished(at_s=now_s, sweep_id=sweep.id, state="failed", reason=str(error)),)
    return (TrialGroupOpened(at_s=now_s, sweep_id=sweep.id, group=sweep.groups, trials=group),)


def _wants_trials(sweep: Sweep) -> bool:
    return not sweep.cancelled and (sweep.groups == 0 or sweep.opened < search.size(sweep.spec))


def _settle(state: State, sweep_id: str, seq: int) -> None:
    """Keep ``due`` true to a sweep that something happened to."""
    sweep = state.sweeps[sweep_id]
    sweep.cause = seq
    if sweep.ended or not sweep.running or _wants_trials(sweep):
        state.due.add(sweep_id)
    else:
        state.due.discard(sweep_id)


def _cancel(state: State, sweep_id: str, seq: int) -> None:
    sweep = state.sweeps.get(sweep_id)
    if sweep is not None:
        sweep.cancelled = True
        _drop_unaccepted(state, sweep)
        _settle(state, sweep_id, seq)


def _open(state: State, event: TrialGroupOpened, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None:
        return
    for job_id in sweep.open(event):
        state.sweep_of[job_id] = sweep.id
        if job_id in state.strangers:
            sweep.drop(job_id, Ended("failed"))
        else:
            state.unaccepted[job_id] = sweep.id
    if sweep.cancelled:
        _drop_unaccepted(state, sweep)
    _settle(state, sweep.id, seq)


def _drop_unaccepted(state: State, sweep: Sweep) -> None:
    for job_id in [job_id for job_id in sweep.running if job_id in state.unaccepted]:
        del state.unaccepted[job_id]
        sweep.drop(job_id, Ended("cancelled"))


def _report(state: State, event: TrialFinished, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None or state.sweep_of.pop(event.job_id, None) is None:
        return
    sweep.report(event)
    state.unaccepted.pop(event.job_id, None)
    state.jobs.forget(event.job_id)
    _settle(state, sweep.id, seq)


def _forget(state: State, sweep_id: str) -> None:
    sweep = state.sweeps.pop(sweep_id, None)
    state.due.discard(sweep_id)
    for job_id in (*sweep.running, *sweep.ended) if sweep is not None else ():
        state.sweep_of.pop(job_id, None)
        state.unaccepted.pop(job_id, None)
        state.jobs.forget(job_id)


def _accept(state: State, event: JobSubmitted, seq: int) -> None:
    sweep = state.sweeps.get(state.sweep_of.get(event.job_id, ""))
    if sweep is None:
        if _LIKE_A_TRIAL.search(event.job_id):
            state.strangers.add(event.job_id)
        return
    state.unaccepted.pop(event.job_id, None)
    if event.spec.parent == sweep.id:
        state.jobs.apply(event)
    else:  # somebody took the id: the gateway will refuse the trial for ever
        sweep.drop(event.job_id, Ended("failed"))
        _settle(state, sweep.id, seq)


def _note_rest(state: State, event: Event, seq: int) -> None:
    state.cluster.apply(event)
    for job in state.jobs.apply(event):
        if job.state in TERMINAL:
            _end(state, job, seq)


def _end(state: State, job: Job, seq: int) -> None:
    sweep = state.sweeps[state.sweep_of[job.id]]
    sweep.end(job)
    state.jobs.forget(job.id)
    _settle(state, sweep.id, seq)
