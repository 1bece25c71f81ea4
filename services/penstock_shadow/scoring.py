"""
What a shadow is worth: completion times under it against what really happened.

The live shadow does not know how long jobs are before they end; whoever reads the log later does. So the score takes
the shadow's plan and reads the log once more, each job having its length from the beginning: the completion times are
those that the same deciders, under the same policy, from the same moment on, would have reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from penstock_bus.port import Bus, Delivery, Shadowed
from penstock_events import Job, State, subjects
from penstock_shadow.follower import Follower
from penstock_shadow.measured import Measured
from penstock_shadow.plan import Status
from penstock_shadow.rounds import Agreement, agreement, published_rounds, real_rounds
from penstock_sim.report.intervals import LEVEL, Change, change

CANNOT_KNOW = (
    "how long jobs are that still run, or were cancelled: they take part and are not scored",
    "what people and tuners would have asked for, had their jobs ended at other times",
    "how fast a job is on a kind of device on which it never ran: there the profiler's ratio holds",
    "what a failed run would have done elsewhere: what it repeated is work, and a job that failed ends where it did",
)


class Unscored(msgspec.Struct, frozen=True, kw_only=True):
    """
    Jobs of the time without a completion to compare.

    Attributes
    ----------
    running, waiting, cancelled, failed : int
        What they really are.
    """

    running: int
    waiting: int
    cancelled: int
    failed: int


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """
    A shadow against what really happened.

    Attributes
    ----------
    status : Status
        What the shadow said of itself last.
    until_s : float
        Up to when the shadow was followed.
    all : Change
        Completion times of all jobs that really completed since the shadow began; differences below 0 are gains.
    teams : dict of str to Change
        The same for each team.
    behind : int
        Those of them that the shadow has not completed: they count as old as they are, which is the least.
    preemptions, shadow_preemptions : int
        Of the same jobs, since the shadow began.
    unscored : Unscored
    agreement : Agreement
        Of what was published live.
    cannot_know : tuple of str
    level : float
        Of the intervals.
    """

    status: Status
    until_s: float
    all: Change
    teams: dict[str, Change]
    behind: int
    preemptions: int
    shadow_preemptions: int
    unscored: Unscored
    agreement: Agreement
    cannot_know: tuple[str, ...] = CANNOT_KNOW
    level: float = LEVEL


async def score_of(bus: Bus, status: Status, now_s: float, seed: int = 0) -> Score:
    """Read the log and what a shadow published, and score it up to now."""
    log = await _whole_log(bus)
    pattern = subjects.shadowed(status.plan.name, subjects.ROUNDS)
    published = [one async for one in bus.read_shadow(pattern)]
    return score(log, published, status, now_s, seed)


def score(
    log: Sequence[Delivery], published: Sequence[Shadowed], status: Status, until_s: float, seed: int = 0
) -> Score:
    """
    Score a shadow.

    Parameters
    ----------
    log : sequence of Delivery
        From its beginning.
    published : sequence of Shadowed
        The shadow's rounds.
    status : Status
    until_s : float
        How far to follow the shadow: not before the log's end.
    seed : int
        Of the resamples: the same seed gives the same intervals.
    """
    plan, lengths = status.plan, Measured()
    for delivery in log:
        for fact in delivery.commit.facts:
            lengths.apply(fact)
    follower = Follower(plan, lengths)
    for delivery in log:
        follower.feed(delivery)
    follower.begin()
    follower.advance(until_s)
    jobs = [job for job in follower.measured.jobs if _is_of(job, follower)]
    done = [job for job in jobs if job.state is State.COMPLETED]
    ends_s = {job.id: follower.executors.tasks[job.id].end_s for job in done}
    teams = sorted({job.spec.team for job in done})

    def changes(rows: list[Job], stream: int) -> Change:
        was_s = np.array([job.finished_s - job.submitted_s for job in rows], dtype=np.float64)
        ended_s = [ends_s[job.id] if math.isfinite(ends_s[job.id]) else until_s for job in rows]
        is_s = np.array(ended_s, dtype=np.float64) - np.array([job.submitted_s for job in rows], dtype=np.float64)
        return change(was_s, is_s, np.random.default_rng([seed, stream]))

    return Score(
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


def _is_of(job: Job, follower: Follower) -> bool:
    return job.sample is None and job.id not in follower.over_before and job.id in follower.executors.tasks


def _unscored(jobs: list[Job]) -> Unscored:
    states = [job.state for job in jobs]
    return Unscored(
        running=sum(state in {State.RUNNING, State.PREEMPTING, State.COMPLETING} for state in states),
        waiting=states.count(State.PENDING),
        cancelled=states.count(State.CANCELLED),
        failed=states.count(State.FAILED),
    )


async def _whole_log(bus: Bus) -> list[Delivery]:
    """Return all that the log holds now."""
    found: list[Delivery] = []
    last_seq = await bus.last_seq()
    if last_seq:
        async for delivery in bus.follow():
            found.append(delivery)
            if delivery.seq >= last_seq or not delivery.pending:
                break
    return found
