"""
The gateway's state: everything that people ask about, folded from all facts; and what it announces by itself.

It announces the end of each job, and cancels the trials of a cancelled sweep. What people command is not decided here
but in :mod:`penstock_gateway.accept` and :mod:`penstock_gateway.acts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_events import (
    TERMINAL,
    Event,
    Job,
    JobCancelled,
    JobFinished,
    Jobs,
    JobsRanked,
    RoundDecided,
    RunRewound,
    RunWarned,
    ScaleDecided,
    SweepCancelled,
    TrialsMeasured,
    Wait,
    WorkloadProfiled,
    WorkloadScaled,
    lifecycle,
    subjects,
)
from penstock_gateway import history, sizing, sweeps
from penstock_gateway.announcements import announcement
from penstock_gateway.history import History
from penstock_gateway.settings import Settings
from penstock_gateway.sweeps import Sweep
from penstock_policies.rounds.known import Known, fold

SCHEMA: Final = "gateway.v10"


class State(Known):
    """
    The read model: what rounds are decided from, so that it can be asked what a round would do, and what was.

    Attributes
    ----------
    jobs : Jobs
        All that ever were, samples among them.
    children : dict of str to list of str
        Sweep id → ids of its trials' jobs.
    samples : dict of str to list of str
        Workload key → ids of its samples.
    scaled : dict of str to WorkloadScaled
        Workload key → how it goes with batch size and devices.
    measured : dict of str to TrialsMeasured
        Workload key → what sweeps have shown of it.
    waits : dict of str to dict of str to Wait
        Pool → job id → why it waits, of the pool's last round.
    to_announce, to_cancel : dict of str to int
        Job id → sequence of the commit that calls for it.
    """

    jobs: Jobs = msgspec.field(default_factory=Jobs)
    histories: dict[str, History] = msgspec.field(default_factory=dict)
    sweeps: dict[str, Sweep] = msgspec.field(default_factory=dict)
    children: dict[str, list[str]] = msgspec.field(default_factory=dict)
    samples: dict[str, list[str]] = msgspec.field(default_factory=dict)
    profiles: dict[str, WorkloadProfiled] = msgspec.field(default_factory=dict)
    scaled: dict[str, WorkloadScaled] = msgspec.field(default_factory=dict)
    measured: dict[str, TrialsMeasured] = msgspec.field(default_factory=dict)
    waits: dict[str, dict[str, Wait]] = msgspec.field(default_factory=dict)
    to_announce: dict[str, int] = msgspec.field(default_factory=dict)
    to_cancel: dict[str, int] = msgspec.field(default_factory=dict)

    def wait_of(self, job: Job) -> Wait | None:
        """Return what the last round said about a job."""
        return self.waits.get(job.spec.pool, {}).get(job.id)


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in, in place."""
    changed, _ = fold(state, state.jobs, event)
    if isinstance(event, ScaleDecided):
        _note_demands(state, changed, event)
    for job in changed:
        _note(state, job, event, seq)
        sweeps.follow(state.sweeps, job, event)
    sweeps.apply(state.sweeps, event, seq)
    sweeps.count_devices(state.sweeps, state.cluster, event)
    match event:
        case JobFinished():
            _announced(state, event.job_id)
        case SweepCancelled():
            for job_id in state.children.get(event.sweep_id, ()):
                _follow_up(state, state.jobs[job_id], seq)
        case _:
            _learn(state, event)


def decide(state: State, now_s: float) -> Decision:
    """Announce what has ended, and cancel the trials of cancelled sweeps."""
    announcements = [announcement(state.jobs[job_id], seq) for job_id, seq in state.to_announce.items()]
    cancellations = [_cancellation(state, state.jobs[job_id], seq, now_s) for job_id, seq in state.to_cancel.items()]
    return Decision(announcements + cancellations)


def decider(settings: Settings) -> Decider[State]:  # noqa: ARG001 - all services are made alike
    """Return the gateway's decider; every replica may decide, and conflicts sort it out."""
    return Decider(name="gateway", state=State, schema=SCHEMA, apply=apply, decide=decide, leads=False)


def _learn(state: State, event: Event) -> None:
    match event:
        case RoundDecided():
            state.waits[event.pool] = {wait.job_id: wait for wait in event.waits}
        case JobsRanked():
            for rank in event.ranks:
                if (past := state.histories.get(rank.job_id)) is not None:
                    past.rank = rank
        case RunWarned() | RunRewound():
            if (past := state.histories.get(event.job_id)) is not None:
                past.warn(event)
        case WorkloadProfiled():
            state.profiles[event.key] = event
        case WorkloadScaled():
            state.scaled[event.key] = event
        case TrialsMeasured():
            state.measured[event.key] = event
        case _:
            pass


def _note(state: State, job: Job, event: Event, seq: int) -> None:
    past = state.histories.get(job.id)
    if past is None:
        past = state.histories[job.id] = history.begin(job, event, seq)
        _index(state, job)
    past.note(job, event, seq)
    _follow_up(state, job, seq)


def _note_demands(state: State, changed: Iterable[Job], event: ScaleDecided) -> None:
    """Note what was decided about sizes, with those who make way for others, and for whom."""
    heeded = {job.id for job in changed}
    demands = {demand.job_id: demand for demand in event.demands if demand.job_id in heeded}
    takes = sizing.givers(demands.values())
    for job_id, demand in demands.items():
        past = state.histories.get(job_id)
        if past is not None and past.sizing is not None:
            past.sizing.demanded(state.jobs[job_id], demand, event, takes.get(job_id, {}))
    for job_id, givers in takes.items():
        if (past := state.histories.get(job_id)) is not None:
            past.freed = givers


def _index(state: State, job: Job) -> None:
    if job.sample is not None:
        state.samples.setdefault(job.profile_key, []).append(job.id)
    elif job.spec.parent:
        state.children.setdefault(job.spec.parent, []).append(job.id)


def _follow_up(state: State, job: Job, seq: int) -> None:
    """Note what the gateway itself owes the job: an announcement, or a cancellation."""
    if job.sample is not None:
        return
    if job.state in TERMINAL and not state.histories[job.id].announced:
        state.to_announce.setdefault(job.id, seq)
    parent = state.sweeps.get(job.spec.parent)
    doomed = parent is not None and parent.cancelled is not None
    if doomed and job.state not in TERMINAL and job.state is not lifecycle.State.COMPLETING:
        state.to_cancel.setdefault(job.id, seq)
    else:
        state.to_cancel.pop(job.id, None)


def _announced(state: State, job_id: str) -> None:
    state.to_announce.pop(job_id, None)
    if (past := state.histories.get(job_id)) is not None:
        past.announced = True


def _cancellation(state: State, job: Job, cause: int, now_s: float) -> Proposal:
    sweep = state.sweeps[job.spec.parent]
    by = sweep.cancelled.by if sweep.cancelled is not None else ""
    fact = JobCancelled(at_s=now_s, job_id=job.id, by=by, reason=f"its sweep {sweep.id} was cancelled")
    return Proposal(subject=subjects.job(job.id), facts=(fact,), cause=cause)
