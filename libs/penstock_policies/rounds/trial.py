"""What the matcher's round would do if a job were another: the production round, on a pool that is so for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec

from penstock_events import Job, Jobs, JobSpec, Placement, Rank, RoundDecided, State, Wait, workload
from penstock_policies.order import Rules
from penstock_policies.orders import newcomer
from penstock_policies.progress import Progress
from penstock_policies.rounds.decide import decide_pool
from penstock_policies.rounds.pool import Pool

TRIED: Final = "what-if"
"""Id of a job that is not there."""

MOST_ROUNDS: Final = 8
"""Rounds of one moment that are tried one after the other."""

_ALL_WAITS: Final = 1_000_000


def start_of(pool: Pool, job_id: str, now_s: float, rules: Rules) -> Placement | None:
    """Return where a job of the pool starts if a round is decided now; None if it does not."""
    found, _ = decide_pool(pool, now_s, msgspec.structs.replace(rules, max_waits=0))
    placements = found.placements if found is not None else ()
    return next((placement for placement in placements if placement.job_id == job_id), None)


@contextmanager
def settled(pool: Pool, job_id: str, now_s: float, rules: Rules) -> Iterator[tuple[Pool, Placement | None]]:
    """
    Be the pool after the rounds of this moment, with where a job of it starts in them; None if it does not.

    Notes
    -----
    A round may stop others for a job, and the next one start it on what is idle, since it comes first from then on.
    """
    unexplained = msgspec.structs.replace(rules, max_waits=0)
    with ExitStack() as stack:
        for _ in range(MOST_ROUNDS):
            found, _again_s = decide_pool(pool, now_s, unexplained)
            if found is None:
                break
            if placed := next((each for each in found.placements if each.job_id == job_id), None):
                yield pool, placed
                return
            pool = stack.enter_context(decided(pool, found))
        yield pool, None


def wait_of(pool: Pool, job_id: str, now_s: float, rules: Rules) -> Wait | None:
    """Return why a job of the pool waits if a round is decided now; None if it starts."""
    unsaid = msgspec.structs.replace(pool, explained={}, explained_s=0.0)
    found, _ = decide_pool(unsaid, now_s, msgspec.structs.replace(rules, max_waits=_ALL_WAITS, explain_every_s=0.0))
    waits = found.waits if found is not None else ()
    return next((wait for wait in waits if wait.job_id == job_id), None)


@contextmanager
def changed(pool: Pool, *jobs: Job) -> Iterator[Pool]:
    """
    Be the pool with these states of its jobs, or with these jobs beside its own, for as long as the context lasts.

    Notes
    -----
    O(log J) a job: the pool's roster is changed, and changed back.
    """
    before = [(job, pool.roster.entries.get(job.id)) for job in jobs]
    for job in jobs:
        pool.roster.note(job)
    keys = {job.id: job.profile_key or workload.key(job.spec) for job in jobs}
    try:
        yield pool if keys.items() <= pool.keys.items() else msgspec.structs.replace(pool, keys={**pool.keys, **keys})
    finally:
        for job, entry in before:
            pool.roster.note(entry.ranked.job if entry is not None else _gone(job))


@contextmanager
def submitted(
    pool: Pool,
    spec: JobSpec,
    now_s: float,
    instead_of: Job | None = None,
    *,
    key: str = "",
    sized: bool | None = None,
) -> Iterator[Pool]:
    """
    Be the pool with one more job, called :data:`TRIED` and submitted now; without the one it is ``instead_of``.

    Parameters
    ----------
    key : str
        That of its workload, where its specification is not what tells it.
    sized : bool, optional
        Whether the job is tried as if what it asks for had been decided by the autoscaler; None: if it is elastic.

    Notes
    -----
    It has the place that the ranker gives to a job that comes now.
    """
    job = Job(id=TRIED, spec=spec, submitted_s=now_s, pending_since_s=now_s, held=spec.hold, profile_key=key)
    job.epoch = int(spec.elastic if sized is None else sized)
    position = newcomer(pool.manner.order, spec, now_s)
    rank = Rank(job_id=TRIED, queue=0, position=position, since_s=None if position == now_s else now_s)
    progress = _with_user(pool.progress, spec.user, now_s, again=instead_of is not None)
    books = msgspec.structs.replace(pool.books, progress={**pool.books.progress, pool.name: progress})
    gone = [_gone(instead_of)] if instead_of is not None else []
    with _ranked(pool, rank), changed(msgspec.structs.replace(pool, books=books), *gone, job) as tried:
        yield tried


@contextmanager
def decided(pool: Pool, found: RoundDecided) -> Iterator[Pool]:
    """Be the pool as it is once a round of it is in the log."""
    touched = {p.job_id for p in found.placements} | {p.job_id for p in found.preemptions}
    jobs = Jobs({job_id: msgspec.structs.replace(pool.roster.entries[job_id].ranked.job) for job_id in touched})
    jobs.apply(found)
    started = {placement.job_id for placement in found.placements}
    promised = {*pool.promised, *(p.for_job for p in found.preemptions)} - started
    books = msgspec.structs.replace(pool.books, staying={**pool.books.staying, pool.name: found.keeps})
    with changed(msgspec.structs.replace(pool, promised=promised, books=books), *jobs) as then:
        yield then


@contextmanager
def _ranked(pool: Pool, rank: Rank) -> Iterator[None]:
    """Let a job that is not there have a rank for as long as the context lasts."""
    before = pool.ranks.get(rank.job_id)
    pool.ranks[rank.job_id] = rank
    try:
        yield
    finally:
        if before is not None:
            pool.ranks[rank.job_id] = before
        else:
            del pool.ranks[rank.job_id]


def _gone(job: Job) -> Job:
    return msgspec.structs.replace(job, state=State.CANCELLED)


def _with_user(progress: Progress, user: str, now_s: float, *, again: bool) -> Progress:
    """Return the accounts in which a user is active; if ``again``, he may have gone and come back."""
    account = progress.active.get(user)
    if account is not None and not (again and account.jobs == 1):
        return progress
    found = Progress(active={**progress.active}, rested={**progress.rested}, rates=progress.rates)
    if account is not None:
        found.active[user] = msgspec.structs.replace(account)
        found.leave(user, now_s)
    elif user in found.rested:
        found.rested[user] = msgspec.structs.replace(found.rested[user])
    found.arrive(user, now_s)
    return found
