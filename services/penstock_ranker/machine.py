"""
The ranker's pure part: two-dimensional least attained service, with punctual demotion.

A rank is published only when a job's queue changes (or the job is new), so the log holds K ranks a job at most. Between
events the decider sleeps until the next running job crosses a threshold; it never polls.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_events import TERMINAL, AnyEvent, Event, Job, Jobs, JobsRanked, Rank, subjects
from penstock_events import State as JobState
from penstock_policies import las
from penstock_ranker.settings import Settings


class Place(msgspec.Struct, kw_only=True):
    """A job's published place, and how much it had executed and waited when it was last promoted."""

    queue: int
    position: float
    executed_before_s: float = 0.0
    waited_before_s: float = 0.0


class State(msgspec.Struct):
    """
    The jobs that are not over.

    Attributes
    ----------
    jobs : Jobs
    places : dict of str to Place
        As published.
    unranked, running, paused : set of str
        The jobs whose rank may have to change: new ones, those executing now, those that waited again after a run.
    seq : int
        Last fact that could change a rank.
    """

    jobs: Jobs = msgspec.field(default_factory=Jobs)
    places: dict[str, Place] = msgspec.field(default_factory=dict)
    unranked: set[str] = msgspec.field(default_factory=set)
    running: set[str] = msgspec.field(default_factory=set)
    paused: set[str] = msgspec.field(default_factory=set)
    seq: int = 0


def decider(settings: Settings | None = None) -> Decider[State]:
    """Return the ranker as the shell, the simulator and tests run it."""
    return Decider(
        name="ranker",
        state=State,
        schema="ranker.1",
        apply=apply,
        decide=partial(decide, settings=settings or Settings()),
    )


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in. Samples of the profiler are no business of the ranker's."""
    if isinstance(event, JobsRanked):
        _note_ranks(state, event)
        return
    for job in state.jobs.apply(event):
        state.seq = seq
        _sort_in(state, job)


def decide(state: State, now_s: float, settings: Settings) -> Decision:
    """Return one :class:`JobsRanked` for each pool in which a job's place changes, and the time of the next change."""
    changed: defaultdict[str, list[Rank]] = defaultdict(list)
    wake_s = math.inf
    for job_id in state.unranked | state.running | state.paused:
        rank, next_s = _rank(state.jobs[job_id], state.places.get(job_id), now_s, settings)
        wake_s = min(wake_s, next_s)
        if rank is not None:
            changed[state.jobs[job_id].spec.pool].append(rank)
    proposals = [_proposal(pool, ranks, now_s, state.seq) for pool, ranks in sorted(changed.items())]
    return Decision(proposals=proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _rank(job: Job, place: Place | None, now_s: float, settings: Settings) -> tuple[Rank | None, float]:
    """Return the job's new rank, if it changes, and when to look at it again."""
    before_s = place.executed_before_s if place else 0.0
    running = bool(job.placement and job.started_s)
    since_s = job.started_s if running else math.inf
    crossings = las.crossings_s(job.spec.gpus, job.executed_s - before_s, since_s, settings.thresholds_gpu_s)
    queue = las.queue_at(crossings, now_s)
    next_s = las.next_crossing_s(crossings, now_s)
    attained = job.attained_gpu_s(now_s)
    if place is None:
        position = job.submitted_s if queue == 0 else _entered_s(crossings, queue, job)
        return Rank(job_id=job.id, queue=queue, position=position, attained_gpu_s=attained), next_s
    if queue > place.queue:
        entered_s = _entered_s(crossings, queue, job)
        return Rank(job_id=job.id, queue=queue, position=entered_s, attained_gpu_s=attained), next_s
    return _promotion(job, place, now_s, settings.promote_knob, next_s)


def _promotion(job: Job, place: Place, now_s: float, knob: float | None, next_s: float) -> tuple[Rank | None, float]:
    if place.queue == 0 or job.state is not JobState.PENDING:
        return None, next_s
    waited_s, executed_s = job.waited_s - place.waited_before_s, job.executed_s - place.executed_before_s
    due_s = las.promotion_s(job.pending_since_s, waited_s, executed_s, knob)
    if due_s > now_s:
        return None, min(next_s, due_s)
    return Rank(job_id=job.id, queue=0, position=now_s, attained_gpu_s=job.attained_gpu_s(now_s)), next_s


def _entered_s(crossings: tuple[float, ...], queue: int, job: Job) -> float:
    """Return when a job entered its queue; for one whose run has ended meanwhile, when it began to wait again."""
    crossed_s = crossings[queue - 1]
    return crossed_s if math.isfinite(crossed_s) else job.pending_since_s


def _proposal(pool: str, ranks: list[Rank], now_s: float, cause: int) -> Proposal:
    ordered = tuple(sorted(ranks, key=lambda rank: (rank.queue, rank.position, rank.job_id)))
    fact: AnyEvent = JobsRanked(at_s=now_s, pool=pool, ranks=ordered)
    return Proposal(subject=subjects.rank(pool), facts=(fact,), cause=cause)


def _sort_in(state: State, job: Job) -> None:
    for group in (state.running, state.paused):
        group.discard(job.id)
    if job.state in TERMINAL or job.sample is not None:
        state.unranked.discard(job.id)
        state.places.pop(job.id, None)
        if job.state in TERMINAL:
            state.jobs.forget(job.id)
        return
    if job.id not in state.places:
        state.unranked.add(job.id)
    if job.placement is not None and job.started_s:
        state.running.add(job.id)
    elif job.executed_s:
        state.paused.add(job.id)


def _note_ranks(state: State, event: JobsRanked) -> None:
    for rank in event.ranks:
        job = state.jobs.get(rank.job_id)
        if job is None:
            continue
        state.unranked.discard(job.id)
        before = state.places.get(job.id)
        place = Place(queue=rank.queue, position=rank.position)
        if before is not None:
            place.executed_before_s, place.waited_before_s = before.executed_before_s, before.waited_before_s
            if rank.queue < before.queue:
                place.executed_before_s = rank.attained_gpu_s / job.spec.gpus
                place.waited_before_s = job.waited_by(event.at_s)
        state.places[job.id] = place
