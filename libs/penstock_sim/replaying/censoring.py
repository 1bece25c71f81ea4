"""
What can be said of completion times where some are only known to be longer than so much.

A job that was killed, failed or still ran counts as one that had not completed by then (right-censored). The product
limit of Kaplan and Meier then gives the share of jobs that have not completed after each time, and the area below it up
to a horizon the mean of the completion time or the horizon, whichever is shorter. It rests on one assumption: that a
job which was censored would have gone on like those that were not. People do kill jobs that go badly, so it is a view
beside the plain averages, not a better truth.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_sim.trace import Floats


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """
    Completion times of all jobs, censored ones among them.

    Attributes
    ----------
    mean_s : float
        Mean of the completion time or the horizon, whichever is shorter.
    median_s : float or None
        None where more than half are not known to complete.
    least_s : float
        Average if every censored job had completed the moment at which it was last seen: less than the truth.
    """

    mean_s: float
    median_s: float | None
    least_s: float


def estimate(times_s: Floats, completed: npt.NDArray[np.bool_], horizon_s: float) -> Estimate:
    """
    Return what is known of completion times.

    Parameters
    ----------
    times_s : (J,) float array, seconds
        From submission to completion, or to when the job was last seen; at least one.
    completed : (J,) bool array
    horizon_s : float
        Up to where the mean looks; the same for all that are compared, and no longer than the longest time of each.

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
    Estimate(mean_s=2.3333333333333335, median_s=3.0, least_s=2.0)
    """
    at_s, left = survival(times_s, completed)
    edges_s = np.minimum(np.concatenate([[0.0], at_s, [horizon_s]]), horizon_s)
    shares = np.concatenate([[1.0], left])
    half = np.flatnonzero(left <= 0.5)
    return Estimate(
        mean_s=float((np.diff(np.maximum.accumulate(edges_s)) * shares).sum()),
        median_s=float(at_s[half[0]]) if half.size else None,
        least_s=float(times_s.mean()),
    )


def survival(times_s: Floats, completed: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """
    Return when jobs complete, rising, and the share that has not completed after each: the product limit.

    Of a completion and a censoring at the same time, the completion came first.
    """
    at_s, which = np.unique(times_s[completed], return_inverse=True)
    ended = np.bincount(which, minlength=at_s.size)
    at_risk = times_s.size - np.searchsorted(np.sort(times_s), at_s, side="left")
    left: Floats = np.cumprod(1.0 - ended / at_risk, dtype=np.float64)
    return at_s, left
