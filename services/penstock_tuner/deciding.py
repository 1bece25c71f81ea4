"""What each sweep makes true next: reports of trials that ended, a group of new ones, other widths, or its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from penstock_bus import Decision, Proposal
from penstock_events import AnyEvent, TrialFinished, TrialGroupOpened, TrialRetried, TrialsScaled, subjects
from penstock_policies import search
from penstock_tuner import resizing, trials
from penstock_tuner.state import State
from penstock_tuner.sweep import Sweep

REPORTS: Final = 1000
"""Ends of trials reported in one commit, so that it stays well below a message's limit."""


def remembering() -> Callable[[State, float], Decision]:
    """
    Return a :func:`decide` that asks a search once only as long as nothing changes.

    A search may take milliseconds to say that it waits, and is asked after every fact. That it waits, given the same
    facts about its sweep and the nodes, need not be found out again; forgetting it changes nothing.
    """
    waits: dict[str, tuple[int, int]] = {}
    rests: dict[str, tuple[int, int, int]] = {}
    again_s: dict[str, float] = {}

    def decide(state: State, now_s: float) -> Decision:
        proposals = []
        for sweep in state.sweeps.values():
            asked, looked = (sweep.cause, state.nodes_seq), (sweep.cause, state.nodes_seq, state.leases_seq)
            facts: tuple[AnyEvent, ...] = ()
            if waits.get(sweep.id) != asked and not (facts := _next_facts(state, sweep, now_s)):
                waits[sweep.id] = asked
            if not facts and (rests.get(sweep.id) != looked or again_s.get(sweep.id, math.inf) <= now_s):
                facts, again_s[sweep.id] = _moves(state, sweep, now_s)
                if not facts:
                    rests[sweep.id] = looked
            if facts:
                proposals.append(Proposal(subject=subjects.sweep(sweep.id), facts=facts, cause=sweep.cause))
        for gone in again_s.keys() - state.sweeps.keys():
            for seen in (waits, rests, again_s):
                seen.pop(gone, None)
        wake_s = min(again_s.values(), default=math.inf)
        return Decision(proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)

    return decide


def _next_facts(state: State, sweep: Sweep, now_s: float) -> tuple[AnyEvent, ...]:
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
        return (*sweep.news(now_s), *opened)
    return () if sweep.running else (*sweep.news(now_s), sweep.finish(now_s))


def _reports(sweep: Sweep, now_s: float) -> tuple[AnyEvent, ...]:
    return tuple(
        TrialFinished(
            at_s=now_s,
            sweep_id=sweep.id,
            job_id=job_id,
            state=end.state,
            value=end.value,
            problem=end.problem,
            reason=end.reason,
        )
        for job_id, end in list(sweep.ended.items())[:REPORTS]
    )


def _retries(sweep: Sweep, now_s: float) -> tuple[AnyEvent, ...]:
    return tuple(
        TrialRetried(
            at_s=now_s, sweep_id=sweep.id, job_id=job_id, trial=trials.alone(sweep.running[job_id]), reason=reason
        )
        for job_id, reason in list(sweep.to_retry.items())[:REPORTS]
    )


def _next_group(state: State, sweep: Sweep, now_s: float) -> tuple[AnyEvent, ...]:
    if not sweep.groups:
        search.check(sweep.spec)
    there = trials.devices(sweep.spec, state.cluster, state.leases)
    wanted = search.next_runs(sweep.spec, sweep.past, there.all)
    if not wanted:
        return ()
    group = trials.group(sweep, wanted, there, max(0, there.idle - _claimed(state, sweep)))
    return (TrialGroupOpened(at_s=now_s, sweep_id=sweep.id, group=sweep.groups, trials=group),)


def _claimed(state: State, sweep: Sweep) -> int:
    """Return how many idle devices are for trials of the sweep that have been opened and have none yet."""
    waiting = [trial for trial in sweep.running.values() if trial.job_id not in state.leases.of_job]
    return math.ceil(sum(trial.gpus / trial.packed for trial in waiting))


def _moves(state: State, sweep: Sweep, now_s: float) -> tuple[tuple[AnyEvent, ...], float]:
    """Return the widths that trials are to have instead of theirs, and when to look again."""
    there = trials.devices(sweep.spec, state.cluster, state.leases)
    others = (job_id for job_id in state.waits.get(sweep.spec.job.pool, ()) if job_id not in sweep.running)
    others_wait = any(job_id in state.jobs.by_id and job_id not in state.leases.of_job for job_id in others)
    found, again_s = resizing.demands(sweep, state.jobs, state.leases, there, now_s, others_wait=others_wait)
    return ((TrialsScaled(at_s=now_s, sweep_id=sweep.id, demands=found),) if found else ()), again_s
