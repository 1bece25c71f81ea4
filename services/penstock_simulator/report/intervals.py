"""Intervals of the difference between two schedules of the same jobs: the percentiles of a paired bootstrap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from penstock_simulator.trace import Floats, Ints

RESAMPLES: Final = 2000
LEVEL: Final = 0.95
LEAST_JOBS: Final = 5
"""Of fewer jobs a resample says nothing: the interval would be far too narrow."""
_CELLS: Final = 1 << 21
"""Resampled jobs held at a time."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds between which a figure lies in ``LEVEL`` of the resamples."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


class CompletionTimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """
    What became of the completion times of the same jobs under another schedule; differences below 0 are gains.

    Attributes
    ----------
    jobs : int
    was_avg_s, avg_s, was_p95_s, p95_s : float
        Before and after; the 95th percentile is by nearest rank. 0 without jobs.
    avg_change_s, p95_change_s : float
        After less before.
    ratio : float or None
        Average after over average before; None where that was 0.
    avg_interval_s, p95_interval_s, ratio_interval : Interval or None
        Of the two differences and the ratio; None of fewer than :data:`LEAST_JOBS` jobs.
    """

    jobs: int
    was_avg_s: float
    avg_s: float
    avg_change_s: float
    avg_interval_s: Interval | None
    ratio: float | None
    ratio_interval: Interval | None
    was_p95_s: float
    p95_s: float
    p95_change_s: float
    p95_interval_s: Interval | None

    @property
    def certain(self) -> bool:
        """Whether all of the interval of the average's difference lies on one side of 0."""
        return self.avg_interval_s is not None and 0.0 not in self.avg_interval_s


def change(was_s: Floats, is_s: Floats, rng: np.random.Generator, resamples: int = RESAMPLES) -> CompletionTimeChange:
    """
    Compare the completion times of the same jobs under two schedules.

    Parameters
    ----------
    was_s, is_s : (J,) float arrays, seconds
        A row is one job, finite in both.
    rng : np.random.Generator
        The same generator state gives the same intervals.
    resamples : int

    Raises
    ------
    ValueError
        If the arrays differ in length or hold a time that is not finite.

    Notes
    -----
    Pairs are drawn with replacement, so whatever is equal in both schedules cancels. An interval covers which jobs
    happened to be there. It does not cover what the replay gets wrong, nor that jobs of one queue delay each other,
    which makes it rather too narrow. O(resamples · J) time, a bounded number of resamples in memory.

    References
    ----------
    Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13 (percentile intervals).

    Examples
    --------
    >>> found = change(np.full(9, 10.0), np.full(9, 8.0), np.random.default_rng(1))
    >>> found.avg_change_s, found.avg_interval_s, found.ratio, found.certain
    (-2.0, Interval(low=-2.0, high=-2.0), 0.8, True)
    """
    if was_s.shape != is_s.shape or not (np.isfinite(was_s).all() and np.isfinite(is_s).all()):
        raise ValueError("expected two finite times of each job; leave out jobs that did not finish in both")
    jobs = was_s.size
    was_avg_s, avg_s = (float(times_s.mean()) if jobs else 0.0 for times_s in (was_s, is_s))
    was_p95_s, p95_s = (p95(times_s) for times_s in (was_s, is_s))
    drawn = _drawn(was_s, is_s, rng, resamples) if jobs >= LEAST_JOBS else None
    return CompletionTimeChange(
        jobs=jobs,
        was_avg_s=was_avg_s,
        avg_s=avg_s,
        avg_change_s=avg_s - was_avg_s,
        avg_interval_s=interval(drawn[:, 1] - drawn[:, 0]) if drawn is not None else None,
        ratio=avg_s / was_avg_s if was_avg_s > 0 else None,
        ratio_interval=interval(drawn[:, 1] / drawn[:, 0]) if drawn is not None and drawn[:, 0].all() else None,
        was_p95_s=was_p95_s,
        p95_s=p95_s,
        p95_change_s=p95_s - was_p95_s,
        p95_interval_s=interval(drawn[:, 3] - drawn[:, 2]) if drawn is not None else None,
    )


def interval(drawn: Floats) -> Interval:
    """Return the percentile interval of a figure's (B,) resampled values."""
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high))


def picks(jobs: int, rng: np.random.Generator, resamples: int) -> Iterator[Ints]:
    """Yield blocks of resamples, together ``resamples`` rows of J job numbers each."""
    at_once = max(1, _CELLS // max(jobs, 1))
    for done in range(0, resamples, at_once):
        yield rng.integers(jobs, size=(min(at_once, resamples - done), jobs))


def p95(times_s: Floats) -> float:
    """Return the 95th percentile by nearest rank; 0 of no times."""
    rank = _rank(times_s.size)
    return float(np.partition(times_s, rank)[rank]) if times_s.size else 0.0


def _rank(jobs: int) -> int:
    return max(0, math.ceil(0.95 * jobs) - 1)


def _drawn(was_s: Floats, is_s: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """Return (B, 4): averages before and after, and 95th percentiles before and after."""
    rank, blocks = _rank(was_s.size), []
    for rows in picks(was_s.size, rng, resamples):
        was, after = was_s[rows], is_s[rows]
        ranked = (np.partition(times_s, rank, axis=1)[:, rank] for times_s in (was, after))
        blocks.append(np.column_stack([was.mean(axis=1), after.mean(axis=1), *ranked]))
    return np.concatenate(blocks)
