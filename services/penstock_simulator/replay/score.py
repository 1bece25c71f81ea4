"""
One schedule of the same jobs against another: over all jobs, for each team and user, and for single jobs.

:func:`score` compares what really happened with a policy. :func:`estimate` takes in jobs whose completion times are
only known to be longer than some time.

A job that was killed, failed or still ran counts as one that had not completed by then (right-censored). The product
limit of Kaplan and Meier then gives the share of jobs that have not completed after each time. The area below it up to
a horizon is the mean of the completion time or the horizon, whichever is shorter. The estimate rests on one assumption:
that a censored job would have gone on like those that were not. People do kill jobs that go badly, so it is a view
beside the plain averages, not a better truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_simulator.outcome import Outcome
from penstock_simulator.report.intervals import LEVEL, RESAMPLES, CompletionTimeChange, change
from penstock_simulator.trace import Floats

TOLERANCE: Final = 0.05
"""Share by which the average JCT of a replay may be off under the policy that was recorded."""
MOST: Final = 10
"""Jobs that gain and that lose most, of each."""
_EVEN_S: Final = 0.05
"""A job that ends earlier or later by less has not changed."""


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """One job's completion time, really and under the other schedule."""

    id: str
    name: str
    team: str
    user: str
    gpus: int
    was_s: float
    jct_s: float
    change_s: float


class CensoredTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Completion times with censored jobs, really and under the other schedule, up to a common horizon."""

    jobs: int
    censored: int
    horizon_s: float
    was: CompletionEstimate
    now: CompletionEstimate


class ReplayScore(msgspec.Struct, frozen=True, kw_only=True):
    """
    One policy against what really happened.

    Attributes
    ----------
    all : CompletionTimeChange
        The change over all jobs that completed in both.
    teams, users : dict of str to CompletionTimeChange
        Name → the same for each team and user. The empty name stands for jobs without one.
    gained, lost : tuple of JobChange
        The ten jobs that gain most, and the ten that lose most; the largest change first.
    everybody : CensoredTimes
        The change with jobs that have no true length.
    unfinished : tuple of str
        Jobs that completed really and do not complete under the other schedule.
    resamples : int
    level : float
        Confidence level of the intervals.
    """

    all: CompletionTimeChange
    teams: dict[str, CompletionTimeChange]
    users: dict[str, CompletionTimeChange]
    gained: tuple[JobChange, ...]
    lost: tuple[JobChange, ...]
    everybody: CensoredTimes
    unfinished: tuple[str, ...]
    resamples: int = RESAMPLES
    level: float = LEVEL


class ReplayCheck(msgspec.Struct, frozen=True, kw_only=True):
    """
    The error of replays: the log replayed under the policy and with the settings under which it was recorded.

    Attributes
    ----------
    policy : str
    jobs : int
        Jobs that completed in both.
    was_avg_s, avg_s : float
    off : float or None
        Average JCT, replayed over measured, less 1; None if no job completed in both.
    tolerance : float
        The largest error that allows a verdict on other policies.
    holds : bool
    differ : tuple of JobChange
        The jobs whose completion times differ most, the most first.
    """

    policy: str
    jobs: int
    was_avg_s: float
    avg_s: float
    off: float | None
    tolerance: float
    holds: bool
    differ: tuple[JobChange, ...]


def check(found: ReplayScore, policy: str) -> ReplayCheck:
    """Return how far a replay is off, by the score of the one under the recorded policy."""
    change = found.all
    off = change.ratio - 1.0 if change.ratio is not None else None
    holds = off is not None and (abs(off) <= TOLERANCE or abs(change.avg_change_s) < _EVEN_S)
    return ReplayCheck(
        policy=policy,
        jobs=change.jobs,
        was_avg_s=change.was_avg_s,
        avg_s=change.avg_s,
        off=off,
        tolerance=TOLERANCE,
        holds=holds and not found.unfinished,
        differ=tuple(sorted((*found.gained, *found.lost), key=lambda job: -abs(job.change_s))[:MOST]),
    )


def without_intervals(found: ReplayScore) -> ReplayScore:
    """Return a score without the intervals of its differences."""

    def bare(one: CompletionTimeChange) -> CompletionTimeChange:
        return msgspec.structs.replace(one, avg_interval_s=None, ratio_interval=None, p95_interval_s=None)

    return msgspec.structs.replace(
        found,
        all=bare(found.all),
        teams={name: bare(one) for name, one in found.teams.items()},
        users={name: bare(one) for name, one in found.users.items()},
    )


def score(
    was: Outcome,
    now: Outcome,
    *,
    left_s: Floats,
    names: Sequence[str] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> ReplayScore:
    """
    Compare two schedules of the same jobs.

    Parameters
    ----------
    was, now : Outcome
        Outcomes of the same trace of J jobs. Jobs of ``was`` without an end are censored; if they end in ``now``, they
        are killed there too.
    left_s : (J,) float array, seconds
        When each job was last seen in ``was``, on the trace's clock: its end, or when it was killed, or the log's end.
    names : sequence of str, (J,), optional
        What people call the jobs.
    seed : int
        Seed of the resamples: the same seed gives the same intervals.
    """
    trace, both = was.trace, was.finished & now.finished
    was_s, now_s = was.end_s - trace.submit_s, now.end_s - trace.submit_s

    def changes(rows: npt.NDArray[np.bool_], *stream: int) -> CompletionTimeChange:
        return change(was_s[rows], now_s[rows], np.random.default_rng([seed, *stream]), resamples)

    def groups(labels: Sequence[str], stream: int) -> dict[str, CompletionTimeChange]:
        found = np.array(labels, dtype=object)
        names_seen = sorted(set(found[both].tolist())) if len(found) else []
        return {name: changes(both & (found == name), stream, at) for at, name in enumerate(names_seen)}

    def jobs(rows: Iterable[np.int64]) -> tuple[JobChange, ...]:
        return tuple(
            JobChange(
                id=str(trace.job_ids[row]),
                name=str(names[row]) if names else "",
                team=str(trace.vcs[row]) if trace.vcs else "",
                user=str(trace.users[row]) if trace.users else "",
                gpus=int(trace.num_gpus[row]),
                was_s=float(was_s[row]),
                jct_s=float(now_s[row]),
                change_s=float(now_s[row] - was_s[row]),
            )
            for row in map(int, rows)
        )

    order = np.flatnonzero(both)[np.argsort((now_s - was_s)[both], kind="stable")]
    return ReplayScore(
        all=changes(both, 0),
        teams=groups(trace.vcs, 1),
        users=groups(trace.users, 2),
        gained=jobs(row for row in order[:MOST] if now_s[row] < was_s[row] - _EVEN_S),
        lost=jobs(row for row in order[::-1][:MOST] if now_s[row] > was_s[row] + _EVEN_S),
        everybody=_everybody(was, now, left_s),
        unfinished=tuple(str(trace.job_ids[row]) for row in np.flatnonzero(was.finished & ~now.finished).tolist()),
        resamples=resamples,
    )


def _everybody(was: Outcome, now: Outcome, left_s: Floats) -> CensoredTimes:
    """Return both estimates: a job that is really censored is censored in the other schedule where it is killed."""
    submit_s = was.trace.submit_s
    last_s = float(np.nanmax(now.end_s, initial=float(submit_s[-1])))
    was_s = np.where(was.finished, was.end_s, left_s) - submit_s
    now_s = np.maximum(np.where(now.finished, now.end_s, last_s) - submit_s, 0.0)
    horizon_s = float(min(was_s.max(), now_s.max()))
    return CensoredTimes(
        jobs=was_s.size,
        censored=int((~was.finished).sum()),
        horizon_s=horizon_s,
        was=estimate(was_s, was.finished, horizon_s),
        now=estimate(now_s, was.finished & now.finished, horizon_s),
    )


class CompletionEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """
    Completion times of all jobs, censored ones among them.

    Attributes
    ----------
    mean_s : float
        Mean of the completion time or the horizon, whichever is shorter.
    median_s : float or None
        None if more than half are not known to complete.
    least_s : float
        Average as if every censored job had completed when it was last seen: less than the truth.
    """

    mean_s: float
    median_s: float | None
    least_s: float


def estimate(times_s: Floats, completed: npt.NDArray[np.bool_], horizon_s: float) -> CompletionEstimate:
    """
    Return what is known of completion times.

    Parameters
    ----------
    times_s : (J,) float array, seconds
        Times from submission to completion, or to when the job was last seen; at least one.
    completed : (J,) bool array
    horizon_s : float
        The horizon of the mean; the same for all compared schedules, and no longer than the longest time of each.

    Notes
    -----
    O(J log J).

    References
    ----------
    Kaplan and Meier, *Nonparametric Estimation from Incomplete Observations*, JASA 53, 1958; the restricted mean:
    Irwin, *The standard error of an estimate of expectation of life*, J. Hygiene 47, 1949.

    Examples
    --------
    >>> estimate(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), 3.0)
    CompletionEstimate(mean_s=2.3333333333333335, median_s=3.0, least_s=2.0)
    """
    at_s, left = survival(times_s, completed)
    edges_s = np.minimum(np.concatenate([[0.0], at_s, [horizon_s]]), horizon_s)
    shares = np.concatenate([[1.0], left])
    half = np.flatnonzero(left <= 0.5)
    return CompletionEstimate(
        mean_s=float((np.diff(np.maximum.accumulate(edges_s)) * shares).sum()),
        median_s=float(at_s[half[0]]) if half.size else None,
        least_s=float(times_s.mean()),
    )


def survival(times_s: Floats, completed: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """
    Return when jobs complete, rising, and the share that has not completed after each: the product limit.

    If a completion and a censoring have the same time, the completion comes first.
    """
    at_s, which = np.unique(times_s[completed], return_inverse=True)
    ended = np.bincount(which, minlength=at_s.size)
    at_risk = times_s.size - np.searchsorted(np.sort(times_s), at_s, side="left")
    left: Floats = np.cumprod(1.0 - ended / at_risk, dtype=np.float64)
    return at_s, left
