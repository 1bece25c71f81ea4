"""
The ranker's pure part: the order of each pool's jobs, by the rules that are set for it.

A rank is published only when a job's place changes by itself: it is new, it crosses a threshold, it is promoted, or it
waits again and its position is another than before. Between events the decider sleeps until the next of these; it never
polls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET

from penstock_bus import Decider, Decision, Proposal
from penstock_events import (
    TERMINAL,
    Event,
    Job,
    JobFinished,
    Jobs,
    JobsRanked,
    PolicySet,
    Rank,
    RunWarned,
    Setting,
    WorkloadProfiled,
    shares,
    subjects,
)
from penstock_events import State as JobState
from penstock_policies.lengths import Lengths
from penstock_policies.order import BY_QUEUE, Manner
from penstock_policies.pools import Ordering
from penstock_policies.ranking import Ranking
from penstock_ranker.book import Book, Chosen
from penstock_ranker.place import Place, published, rank_of
from penstock_ranker.settings import Settings

MOST_RANKS: Final = 2_000
"""Ranks of one fact: about 300 kB. More than these follow in the next."""


class State(msgspec.Struct, dict=True):
    """
    The jobs that are not over, and how long others were.

    Attributes
    ----------
    jobs : Jobs
        Samples of the profiler among them: they are no business of the ranker's.
    places : dict of str to Place
        As published.
    lengths : dict of str to Lengths
        Pool → GPU-times of its jobs that completed.
    live : dict of str to dict of str to Setting
        Pool → what is set live.
    manners : dict of str to Manner
        Pool → how its order is to be walked, as published.
    seq : int
        Last fact that could change a rank.
    """

    jobs: Jobs = msgspec.field(default_factory=Jobs)
    places: dict[str, Place] = msgspec.field(default_factory=dict)
    lengths: dict[str, Lengths] = msgspec.field(default_factory=dict)
    live: dict[str, dict[str, Setting]] = msgspec.field(default_factory=dict)
    manners: dict[str, Manner] = msgspec.field(default_factory=dict)
    seq: int = 0


def decider(
    settings: Settings | None = None, priors_gpu_s: Mapping[str, Sequence[float]] | None = None
) -> Decider[State]:
    """
    Return the ranker as the shell, the simulator and tests run it.

    Parameters
    ----------
    settings : Settings, optional
    priors_gpu_s : mapping of str to (P,) floats, GPU-seconds, rising, optional
        What the prior files that the settings name hold: :meth:`Settings.priors`.
    """
    chosen = Chosen(settings or Settings(), priors_gpu_s or {})
    return Decider(
        name="ranker",
        state=State,
        schema="ranker.9",
        apply=apply,
        decide=partial(decide, chosen=chosen),
        ignores=frozenset({JobFinished, RunWarned, WorkloadProfiled}),
    )


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in."""
    if isinstance(event, JobsRanked):
        _note_ranks(state, event)
        return
    if isinstance(event, PolicySet):
        _set_live(state, event, seq)
        return
    book: Book | None = state.__dict__.get("book")
    for job in state.jobs.apply(event):
        state.seq = seq
        if job.state in TERMINAL:
            _conclude(state, job, book)
        elif job.sample is None and book is not None:
            book.note(job)
    if state.jobs.sharers:
        _note_beside(state, event, seq)


def _note_beside(state: State, event: Event, seq: int) -> None:
    """Follow the jobs that have another share of a device because somebody came or went there."""
    for job in shares.beside(state.jobs, event):
        state.seq = seq
        if (book := _open_book(state)) is not None:
            book.note(job)


def decide(state: State, now_s: float, chosen: Chosen) -> Decision:
    """
    Return one :class:`JobsRanked` for each pool in which a job's place changes, and the time of the next change.

    Notes
    -----
    Looks at the jobs whose place changes, and at one more of each pool.
    """
    proposals, wake_s = [], math.inf
    book: Book = state.__dict__.get("book") or _new_book(state, chosen)
    for pool, ranking in sorted(book.rankings.items()):
        ranks, next_s = _due(state, ranking, now_s)
        wake_s = min(wake_s, next_s)
        manner = ranking.ladder.manner
        if ranks or (manner != state.manners.get(pool, BY_QUEUE) and len(ranking)):
            fact = JobsRanked(
                at_s=now_s,
                pool=pool,
                ranks=ranks,
                backfills=manner.backfills,
                preempts=manner.preempts,
                order=manner.order,
            )
            proposals.append(Proposal(subject=subjects.rank(pool), facts=(fact,), cause=state.seq))
    return Decision(proposals=proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _due(state: State, ranking: Ranking, now_s: float) -> tuple[tuple[Rank, ...], float]:
    if (first_s := ranking.first_s) > now_s:  # as mostly
        return (), first_s
    moves = ranking.due(now_s, MOST_RANKS + 1)
    next_s = ranking.next_s(now_s) if len(moves) <= MOST_RANKS else now_s
    ordered = sorted(moves[:MOST_RANKS], key=lambda move: (move.queue, move.position, move.entered_s, move.job_id))
    order = ranking.ladder.order
    return tuple([rank_of(move, state.jobs[move.job_id], now_s, order) for move in ordered]), next_s


def _conclude(state: State, job: Job, book: Book | None) -> None:
    state.places.pop(job.id, None)
    state.jobs.forget(job.id)
    if job.sample is not None:
        return
    if book is not None:
        book.remove(job)
    if job.state is JobState.COMPLETED:
        lengths = state.lengths.setdefault(job.spec.pool, Lengths())
        if lengths.add(job.id, job.attained_gpu_s(job.finished_s)) and book is not None:
            book.learn(job.spec.pool)


def _note_ranks(state: State, event: JobsRanked) -> None:
    state.manners[event.pool] = Manner(event.backfills, event.preempts, order=event.order)
    book = _open_book(state)
    for rank in event.ranks:
        job = state.jobs.by_id.get(rank.job_id)
        if job is None or job.sample is not None:
            continue
        place = state.places[job.id] = published(rank, event.at_s, job, state.places.get(job.id))
        if book is not None:
            book.put(job, place)


def _set_live(state: State, event: PolicySet, seq: int) -> None:
    """Go by other settings: where they concern the order, every job of the pool gets a place anew, by its service."""
    before = state.live.get(event.pool, {})
    state.live[event.pool] = event.settings
    if all(before.get(name, UNSET) == event.settings.get(name, UNSET) for name in Ordering.__struct_fields__):
        return
    for job in state.jobs:
        if job.spec.pool == event.pool:
            state.places.pop(job.id, None)
    state.__dict__.pop("book", None)
    state.seq = seq


def _open_book(state: State) -> Book | None:
    """Return the book beside the state; None before it was first asked for."""
    return state.__dict__.get("book")


def _new_book(state: State, chosen: Chosen) -> Book:
    ranked = (job for job in state.jobs if job.sample is None)
    book = state.__dict__["book"] = Book(chosen, ranked, state.places, state.lengths, state.live)
    return book
