"""
A shadow against what really happened: completion times, and how alike the rounds are.

The live shadow does not know how long jobs are before they end; whoever reads the log later does. So :func:`score`
takes the shadow's plan and reads the log once more, with the length of each job known from the beginning. The
completion times are those that the same deciders, under the same policy, from the same moment on, would have reached.

:func:`agreement` compares the shadow's rounds with the real ones: who was started, when, and on which kind of device.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from penstock_bus.port import Delivery, LogReader, Shadowed
from penstock_log import Job, JobState, RoundDecided, codec, subjects
from penstock_simulator.report.intervals import LEVEL, CompletionTimeChange, change
from penstock_simulator.shadow.live_work import LiveWork
from penstock_simulator.shadow.plan import ShadowedLog, ShadowPlan, ShadowStatus, actor_of
from penstock_simulator.shadow.shadow_follower import ShadowFollower

CANNOT_KNOW = (
    "how long jobs are that still run, or were cancelled: they take part and are not scored",
    "what people and tuners would have asked for, had their jobs ended at other times",
    "how fast a job is on a kind of device on which it never ran: there the profiler's ratio holds",
    "what a failed run would have done elsewhere: what it repeated is work, and a job that failed ends where it did",
)


class UnscoredJobs(msgspec.Struct, frozen=True, kw_only=True):
    """
    Jobs of the shadow's time that have no completion to compare.

    Attributes
    ----------
    running, waiting, cancelled, failed : int
        Number of jobs in each state, really.
    """

    running: int
    waiting: int
    cancelled: int
    failed: int


class ShadowScore(msgspec.Struct, frozen=True, kw_only=True):
    """
    A shadow against what really happened.

    Attributes
    ----------
    status : ShadowStatus
        What the shadow said of itself last.
    until_s : float
        The time up to which the shadow was followed.
    all : CompletionTimeChange
        Completion times of all jobs that really completed since the shadow began; differences below 0 are gains.
    teams : dict of str to CompletionTimeChange
        The same for each team.
    behind : int
        Those of them that the shadow has not completed: their age so far, a lower bound, counts as completion time.
    preemptions, shadow_preemptions : int
        Preemptions of the same jobs since the shadow began, really and in the shadow.
    unscored : UnscoredJobs
    agreement : RoundAgreement
        Agreement of the rounds that the shadow published live.
    cannot_know : tuple of str
    level : float
        Confidence level of the intervals.
    """

    status: ShadowStatus
    until_s: float
    all: CompletionTimeChange
    teams: dict[str, CompletionTimeChange]
    behind: int
    preemptions: int
    shadow_preemptions: int
    unscored: UnscoredJobs
    agreement: RoundAgreement
    cannot_know: tuple[str, ...] = CANNOT_KNOW
    level: float = LEVEL


async def score_of(bus: ShadowedLog, status: ShadowStatus, now_s: float, seed: int = 0) -> ShadowScore:
    """Read the log and what a shadow published, and score it up to now."""
    log = await _whole_log(bus)
    pattern = subjects.shadowed(status.plan.name, subjects.ROUNDS)
    published = [one async for one in bus.read_shadow(pattern)]
    return score(log, published, status, now_s, seed)


def score(
    log: Sequence[Delivery], published: Sequence[Shadowed], status: ShadowStatus, until_s: float, seed: int = 0
) -> ShadowScore:
    """
    Score a shadow.

    Parameters
    ----------
    log : sequence of Delivery
        The log from its beginning.
    published : sequence of Shadowed
        The shadow's rounds.
    status : ShadowStatus
    until_s : float
        The time up to which to follow the shadow: not before the log's end.
    seed : int
        Seed of the resamples: the same seed gives the same intervals.
    """
    plan, lengths = status.plan, LiveWork()
    for delivery in log:
        for fact in delivery.commit.known:
            lengths.apply(fact)
    follower = ShadowFollower(plan, lengths)
    for delivery in log:
        follower.feed(delivery)
    follower.begin()
    follower.advance(until_s)
    jobs = [job for job in follower.measured.jobs if _is_of(job, follower)]
    done = [job for job in jobs if job.state is JobState.COMPLETED]
    ends_s = {job.id: follower.executors.tasks[job.id].end_s for job in done}
    teams = sorted({job.spec.team for job in done})

    def changes(rows: list[Job], stream: int) -> CompletionTimeChange:
        was_s = np.array([job.finished_s - job.submitted_s for job in rows], dtype=np.float64)
        ended_s = [ends_s[job.id] if math.isfinite(ends_s[job.id]) else until_s for job in rows]
        is_s = np.array(ended_s, dtype=np.float64) - np.array([job.submitted_s for job in rows], dtype=np.float64)
        return change(was_s, is_s, np.random.default_rng([seed, stream]))

    return ShadowScore(
        status=status,
        until_s=until_s,
        all=changes(done, 0),
        teams={team: changes([job for job in done if job.spec.team == team], 1 + at) for at, team in enumerate(teams)},
        behind=sum(math.isnan(end_s) for end_s in ends_s.values()),
        preemptions=sum(job.preemptions - follower.preempted_before.get(job.id, 0) for job in done),
        shadow_preemptions=sum(follower.executors.tasks[job.id].preemptions for job in done),
        unscored=_unscored(jobs),
        agreement=agreement(real_rounds(log, plan), published_rounds(published, plan)),
    )


def _is_of(job: Job, follower: ShadowFollower) -> bool:
    return job.sample is None and job.id not in follower.over_before and job.id in follower.executors.tasks


def _unscored(jobs: list[Job]) -> UnscoredJobs:
    states = [job.state for job in jobs]
    return UnscoredJobs(
        running=sum(state in {JobState.RUNNING, JobState.PREEMPTING, JobState.COMPLETING} for state in states),
        waiting=states.count(JobState.PENDING),
        cancelled=states.count(JobState.CANCELLED),
        failed=states.count(JobState.FAILED),
    )


async def _whole_log(bus: LogReader) -> list[Delivery]:
    """Return all that the log holds now."""
    found: list[Delivery] = []
    last_seq = await bus.last_seq()
    if last_seq:
        async for delivery in bus.follow():
            found.append(delivery)
            if delivery.seq >= last_seq or not delivery.pending:
                break
    return found


WITHIN_S: Final = 5.0
"""Rounds that are at most this far apart can be the same."""


class RoundAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """
    The real rounds that started jobs, beside the shadow's.

    Attributes
    ----------
    rounds, shadow_rounds : int
        Rounds that started a job, really and in the shadow.
    same : int
        Real rounds for which the shadow has a round that starts the same jobs, at most ``within_s`` apart.
    starts : int
        Jobs that were started for the first time in both.
    same_starts : int
        Those of them whose first starts are at most ``within_s`` apart, on the same kind of device.
    preemptions, shadow_preemptions : int
    """

    rounds: int
    shadow_rounds: int
    same: int
    starts: int
    same_starts: int
    preemptions: int
    shadow_preemptions: int
    within_s: float = WITHIN_S


def real_rounds(log: Iterable[Delivery], plan: ShadowPlan) -> list[RoundDecided]:
    """Return the rounds of the log since a shadow's plan began, of the pools that it follows."""
    found = [fact for delivery in log if delivery.seq > plan.from_seq for fact in delivery.commit.facts]
    return [fact for fact in found if isinstance(fact, RoundDecided) and plan.pool in {"", fact.pool}]


def published_rounds(published: Iterable[Shadowed], plan: ShadowPlan) -> list[RoundDecided]:
    """Return the rounds that a shadow published since its plan began."""
    commits = [codec.decode(one.body) for one in published]
    facts = [fact for commit in commits if commit.actor == actor_of(plan) for fact in commit.facts]
    return [fact for fact in facts if isinstance(fact, RoundDecided)]


def agreement(real: list[RoundDecided], shadow: list[RoundDecided]) -> RoundAgreement:
    """Compare rounds, each list by time; jobs of the profiler's samples count like others."""
    times_s: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for one in shadow:
        times_s[_started(one)].append(one.at_s)
    starting = [one for one in real if one.placements]
    first, first_shadow = _first_starts(real), _first_starts(shadow)
    both = first.keys() & first_shadow.keys()
    return RoundAgreement(
        rounds=len(starting),
        shadow_rounds=sum(bool(one.placements) for one in shadow),
        same=sum(_is_near(one.at_s, times_s.get(_started(one), [])) for one in starting),
        starts=len(both),
        same_starts=sum(_alike(first[job_id], first_shadow[job_id]) for job_id in both),
        preemptions=sum(len(one.preemptions) for one in real),
        shadow_preemptions=sum(len(one.preemptions) for one in shadow),
    )


def _started(one: RoundDecided) -> frozenset[str]:
    return frozenset(placement.job_id for placement in one.placements)


def _first_starts(rounds: list[RoundDecided]) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for one in rounds:
        for placement in one.placements:
            if placement.epoch == 1:
                found.setdefault(placement.job_id, (one.at_s, placement.kind))
    return found


def _alike(real: tuple[float, str], shadow: tuple[float, str]) -> bool:
    return abs(real[0] - shadow[0]) <= WITHIN_S and real[1] == shadow[1]


def _is_near(at_s: float, times_s: list[float]) -> bool:
    """Return whether a time is close to one of some rising times."""
    place = bisect_left(times_s, at_s - WITHIN_S)
    return place < len(times_s) and times_s[place] <= at_s + WITHIN_S
