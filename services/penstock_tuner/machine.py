"""
The tuner's settings, state, apply, decide.

A search says what to try. The tuner opens a sweep's trials, sees them end, reports them, and names the best. For each
sweep a decision makes one thing true: the reports of ended trials, a group of new ones, other widths, or the sweep's
end. :class:`TunerState` has nodes, jobs and sweeps that are not over, and what sweeps have shown of workloads.

The submission of a trial is no decision but follows from one: :attr:`TunerState.unaccepted` has the opened trials that
the gateway has not accepted yet, and the runner submits these under the same ids until none is left.

:class:`TunerSettings` come from the table ``[tuner]`` or from ``PENSTOCK_TUNER_…``.
"""

from __future__ import annotations

import copy
import math
import re
from itertools import islice
from typing import Final

import msgspec

from penstock_bus import UNHURRIED_S, Decider, Decision, Proposal
from penstock_cluster.nodes import Cluster
from penstock_log import (
    TERMINAL,
    AnyEvent,
    Event,
    Job,
    JobSpec,
    JobSubmitted,
    JobTable,
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
    TrialsScaled,
    subjects,
    workload,
)
from penstock_log.decision_facts import FOR_DEVICES
from penstock_log.records import compose
from penstock_policies import search
from penstock_tuner import trials
from penstock_tuner.sweep_state import SweepState
from penstock_tuner.trial_speed import TrialMeasures, TrialSpeeds
from penstock_tuner.trials import GrantedDevices

WORKLOADS: Final = 1000
"""Workloads whose penalties are remembered."""
_LIKE_A_TRIAL: Final = re.compile(r"-t\d{3,}(-r\d+)?(-a)?$")
_TAKEN: Final = "its id belongs to another job"


def decider(_settings: TunerSettings | None = None) -> Decider[TunerState]:
    """Return the tuner as the shell, the simulator and tests run it; no setting changes what it decides."""
    return Decider(
        name="tuner",
        state=TunerState,
        schema="tuner.11",
        apply=apply,
        decide=SweepDecisions().decide,
        gather_s=lambda state: 0.0 if state.sweeps else UNHURRIED_S,
    )


def apply(state: TunerState, event: Event, seq: int) -> None:
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
                sweep.last_report = event
        case SweepFinished():
            _forget(state, event.sweep_id)
        case JobSubmitted():
            _accept(state, event, seq)
        case _:
            _note_rest(state, event, seq)


def submission(state: TunerState, job_id: str) -> JobSpec | None:
    """Return the job of a trial that still has to be submitted, or None."""
    sweep = state.sweeps.get(state.unaccepted.get(job_id, ""))
    return trials.job_spec(sweep.id, sweep.spec, sweep.running[job_id]) if sweep is not None else None


def _cancel(state: TunerState, sweep_id: str, seq: int) -> None:
    sweep = state.sweeps.get(sweep_id)
    if sweep is not None:
        sweep.cancelled, sweep.cause = True, seq
        for job_id, reason in sweep.to_retry.items():
            sweep.drop(job_id, "failed", problem="memory", reason=reason)
        sweep.to_retry.clear()
        _drop_unaccepted(state, sweep)


def _open(state: TunerState, event: TrialGroupOpened, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None:
        return
    for job_id in sweep.open(event):
        _await(state, sweep, job_id)
    if sweep.cancelled:
        _drop_unaccepted(state, sweep)
    sweep.cause = seq


def _await(state: TunerState, sweep: SweepState, job_id: str) -> None:
    """Mark a trial's job for submission, unless its id belongs to another job."""
    state.sweep_of[job_id] = sweep.id
    if job_id in state.foreign_ids:
        sweep.drop(job_id, "failed", problem="refused", reason=_TAKEN)
    else:
        state.unaccepted[job_id] = sweep.id


def _retry(state: TunerState, event: TrialRetried, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None or not sweep.retry(event):
        return
    state.sweep_of.pop(event.job_id, None)
    _await(state, sweep, event.trial.job_id)
    if sweep.cancelled:
        _drop_unaccepted(state, sweep)
    sweep.cause = seq


def _drop_unaccepted(state: TunerState, sweep: SweepState) -> None:
    for job_id in [job_id for job_id in sweep.running if job_id in state.unaccepted]:
        del state.unaccepted[job_id]
        sweep.drop(job_id, "cancelled")


def _report(state: TunerState, event: TrialFinished, seq: int) -> None:
    sweep = state.sweeps.get(event.sweep_id)
    if sweep is None or state.sweep_of.get(event.job_id) != sweep.id or not sweep.report(event):
        return
    del state.sweep_of[event.job_id]
    state.unaccepted.pop(event.job_id, None)
    sweep.cause = seq


def _begin(state: TunerState, event: SweepSubmitted, seq: int) -> None:
    known = state.measures.get(workload.key(event.spec.job), TrialMeasures())
    fresh = SweepState(id=event.sweep_id, spec=event.spec, speeds=TrialSpeeds(measures=copy.deepcopy(known)))
    state.sweeps.setdefault(event.sweep_id, fresh).cause = seq


def _forget(state: TunerState, sweep_id: str) -> None:
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


def _accept(state: TunerState, event: JobSubmitted, seq: int) -> None:
    state.jobs.apply(event)
    sweep = state.sweeps.get(state.sweep_of.get(event.job_id, ""))
    if sweep is None:
        if _LIKE_A_TRIAL.search(event.job_id):
            state.foreign_ids.add(event.job_id)
        return
    state.unaccepted.pop(event.job_id, None)
    if event.spec.parent != sweep.id:  # somebody took the id: the gateway will refuse the trial for ever
        sweep.drop(event.job_id, "failed", problem="refused", reason=_TAKEN)
        sweep.cause = seq


def _note_rest(state: TunerState, event: Event, seq: int) -> None:
    if state.cluster.apply(event):
        state.nodes_seq = seq
    if isinstance(event, RoundDecided):
        state.waits[event.pool] = [wait.job_id for wait in event.waits if wait.cause in FOR_DEVICES]
    gpus = _gpus(state, event)
    for job in state.jobs.apply(event):
        if state.grants.note(job) or isinstance(event, RunStarted):
            state.grants_seq = seq
        if (sweep := _sweep_of(state, job)) is not None:
            sweep.speeds.follow(sweep.running[job.id], job, event, gpus)
            if isinstance(event, RunEnded):
                sweep.note_run(job, event)
        if job.state in TERMINAL:
            _end(state, sweep, job, seq)


def _gpus(state: TunerState, event: Event) -> int:
    """Return the devices of a job whose run is about to end: with its end the fold may give it another width."""
    job = state.jobs.get(event.job_id) if isinstance(event, RunEnded) else None
    return job.spec.gpus if job is not None else 1


def _sweep_of(state: TunerState, job: Job) -> SweepState | None:
    """Return the open sweep whose trial a job is; None for another's job that took a trial's id."""
    sweep = state.sweeps.get(state.sweep_of.get(job.id, ""))
    return sweep if sweep is not None and job.id in sweep.running and job.spec.parent == sweep.id else None


def _end(state: TunerState, sweep: SweepState | None, job: Job, seq: int) -> None:
    state.jobs.forget(job.id)
    if sweep is not None:
        sweep.end(job)
        sweep.cause = seq


REPORTS: Final = 1000
"""Ends of trials reported in one commit, so that it stays well below a message's limit."""


class SweepLook(msgspec.Struct):
    """
    What was there when a sweep was last looked at and nothing was to do.

    Attributes
    ----------
    searched : tuple of int, or None
        Last facts about the sweep and the nodes when its search opened nothing.
    resized : tuple of int, or None
        The same with the last fact about granted devices, when no trial got another width.
    again_s : float
        When to look at widths again although nothing changes.
    """

    searched: tuple[int, int] | None = None
    resized: tuple[int, int, int] | None = None
    again_s: float = math.inf


class SweepDecisions:
    """
    Decisions that ask a search only once as long as nothing changes.

    A search may take milliseconds to say that it waits, and every fact asks it. Given the same facts about its sweep
    and the nodes its answer is the same, so it is remembered; forgetting it changes nothing.
    """

    def __init__(self) -> None:
        self._looks: dict[str, SweepLook] = {}

    def decide(self, state: TunerState, now_s: float) -> Decision:
        """Return the next facts of each sweep, and when to look again."""
        self._looks = {sweep_id: self._looks.get(sweep_id) or SweepLook() for sweep_id in state.sweeps}
        proposals = [
            Proposal(subject=subjects.sweep(sweep.id), facts=facts, cause=sweep.cause)
            for sweep in state.sweeps.values()
            if (facts := _facts(state, sweep, self._looks[sweep.id], now_s))
        ]
        wake_s = min((look.again_s for look in self._looks.values()), default=math.inf)
        return Decision(proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _facts(state: TunerState, sweep: SweepState, look: SweepLook, now_s: float) -> tuple[AnyEvent, ...]:
    asked = sweep.cause, state.nodes_seq
    if look.searched != asked:
        if facts := _next_facts(state, sweep, now_s):
            return facts
        look.searched = asked
    if look.resized == (*asked, state.grants_seq) and look.again_s > now_s:
        return ()
    facts, look.again_s = _resizes(state, sweep, now_s)
    if not facts:
        look.resized = (*asked, state.grants_seq)
    return facts


def _next_facts(state: TunerState, sweep: SweepState, now_s: float) -> tuple[AnyEvent, ...]:
    if sweep.ended:
        return _reports(sweep, now_s)
    if sweep.to_retry:
        return _retries(sweep, now_s)
    try:
        opened = () if sweep.cancelled else _next_group(state, sweep, now_s)
    except search.BadSpace as error:
        if sweep.running:  # of a search whose library is gone: what runs is not lost
            return ()
        return (msgspec.structs.replace(sweep.finish(now_s), state="failed", reason=str(error)),)
    if opened:
        return (*sweep.new_measures(now_s), *opened)
    return () if sweep.running else (*sweep.new_measures(now_s), sweep.finish(now_s))


def _reports(sweep: SweepState, now_s: float) -> tuple[AnyEvent, ...]:
    ends = islice(sweep.ended.items(), REPORTS)
    return tuple(compose(TrialFinished, end, at_s=now_s, sweep_id=sweep.id, job_id=job_id) for job_id, end in ends)


def _retries(sweep: SweepState, now_s: float) -> tuple[AnyEvent, ...]:
    return tuple(
        TrialRetried(
            at_s=now_s, sweep_id=sweep.id, job_id=job_id, trial=trials.alone(sweep.running[job_id]), reason=reason
        )
        for job_id, reason in islice(sweep.to_retry.items(), REPORTS)
    )


def _next_group(state: TunerState, sweep: SweepState, now_s: float) -> tuple[AnyEvent, ...]:
    if not sweep.groups:
        search.check(sweep.spec)
    available = trials.devices(sweep.spec, state.cluster, state.grants)
    wanted = search.next_runs(sweep.spec, sweep.past, available.all)
    if not wanted:
        return ()
    group = trials.group(sweep, wanted, available, max(0, available.idle - _claimed(state, sweep)))
    return (TrialGroupOpened(at_s=now_s, sweep_id=sweep.id, group=sweep.groups, trials=group),)


def _claimed(state: TunerState, sweep: SweepState) -> int:
    waiting = [trial for trial in sweep.running.values() if trial.job_id not in state.grants.of_job]
    return math.ceil(sum(trial.gpus / trial.packed for trial in waiting))


def _resizes(state: TunerState, sweep: SweepState, now_s: float) -> tuple[tuple[AnyEvent, ...], float]:
    available = trials.devices(sweep.spec, state.cluster, state.grants)
    others = (job_id for job_id in state.waits.get(sweep.spec.job.pool, ()) if job_id not in sweep.running)
    others_wait = any(job_id in state.jobs.by_id and job_id not in state.grants.of_job for job_id in others)
    found, again_s = trials.demands(sweep, state.jobs, state.grants, available, now_s, others_wait=others_wait)
    return ((TrialsScaled(at_s=now_s, sweep_id=sweep.id, demands=found),) if found else ()), again_s


class TunerState(msgspec.Struct):
    """
    Nodes, jobs and sweeps that are not over.

    Attributes
    ----------
    sweep_of : dict of str to str
        Job id → sweep, of each opened trial that is not reported.
    unaccepted : dict of str to str
        The part of it that is still wanted and that the gateway has not accepted, oldest first.
    foreign_ids : set of str
        Ids that look like a trial's but were taken by other jobs.
    measures : dict of str to TrialMeasures
        Workload key → what its last sweep has shown; the latest comes last.
    waits : dict of str to list of str
        Pool → jobs that wait for devices, by its last round.
    nodes_seq, grants_seq : int
        Sequences of the last fact about nodes, and of the last one that gave or took devices.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jobs: JobTable = msgspec.field(default_factory=JobTable)
    sweeps: dict[str, SweepState] = msgspec.field(default_factory=dict)
    sweep_of: dict[str, str] = msgspec.field(default_factory=dict)
    unaccepted: dict[str, str] = msgspec.field(default_factory=dict)
    foreign_ids: set[str] = msgspec.field(default_factory=set)
    measures: dict[str, TrialMeasures] = msgspec.field(default_factory=dict)
    grants: GrantedDevices = msgspec.field(default_factory=GrantedDevices)
    waits: dict[str, list[str]] = msgspec.field(default_factory=dict)
    nodes_seq: int = 0
    grants_seq: int = 0


class TunerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    How trials are submitted.

    Attributes
    ----------
    resubmit_s : float
        Seconds after which a trial that the gateway has not accepted is submitted again, under the same id.
    """

    resubmit_s: float = 5.0

    def __post_init__(self) -> None:
        if self.resubmit_s <= 0:
            raise ValueError(f"resubmit_s is {self.resubmit_s}; expected a number of seconds above 0")
