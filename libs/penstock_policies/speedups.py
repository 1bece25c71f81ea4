"""What samples say about a workload's speed on each kind of device, and what other workloads say about the rest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def iteration_s(steps: Ints, elapsed_s: Floats) -> float:
    """
    Return the seconds an iteration takes: the slope ``a`` of ``t = a·n + b`` through samples of different length.

    The intercept ``b`` takes the slow first iterations. Where the slope is not positive (noise, or samples of one
    length only), the longest sample's average stands in.

    Parameters
    ----------
    steps : (S,) int array
        Iterations of each sample, at least one of them positive.
    elapsed_s : (S,) float array, seconds

    Raises
    ------
    ValueError
        If no sample has an iteration.

    References
    ----------
    Le et al., AlloX: Compute allocation in hybrid clusters, EuroSys 2020, section 4.2.

    Examples
    --------
    >>> round(iteration_s(np.array([5, 25]), np.array([1.5, 3.5])), 6)
    0.1
    >>> iteration_s(np.array([5, 25]), np.array([3.0, 2.5]))
    0.1
    """
    ran = steps > 0
    if not ran.any():
        raise ValueError("no sample has an iteration; expected steps of 1 or more")
    n, t = steps[ran].astype(np.float64), elapsed_s[ran]
    spread = n - n.mean()
    slope = float(spread @ (t - t.mean()) / (spread @ spread)) if spread.any() else 0.0
    longest = int(np.argmax(n))
    return slope if slope > 0 else float(t[longest] / n[longest])


def refined_s(known_s: float, seen_s: float, weight: float) -> float:
    """
    Return the exponentially weighted average of what was known and what was just seen, in seconds.

    Examples
    --------
    >>> refined_s(1.0, 2.0, weight=0.25)
    1.25
    """
    return known_s + weight * (seen_s - known_s)


def moved(old_s: float, new_s: float, by: float) -> bool:
    """
    Say whether an iteration time changed by more than the fraction ``by``.

    Examples
    --------
    >>> moved(1.0, 1.05, by=0.1), moved(1.0, 0.8, by=0.1)
    (False, True)
    """
    return abs(new_s - old_s) > by * old_s


def speeds(times_s: Floats) -> Floats:
    """
    Return each kind's speed relative to the fastest: in (0, 1], NaN where the time is not known.

    Parameters
    ----------
    times_s : (K,) float array, seconds an iteration, NaN where unknown

    Examples
    --------
    >>> speeds(np.array([0.1, 0.25, np.nan])).tolist()
    [1.0, 0.4, nan]
    """
    if np.isnan(times_s).all():
        return times_s.copy()
    return np.asarray(np.nanmin(times_s) / times_s, dtype=np.float64)


def predicted_s(others_s: Floats, own_s: Floats) -> Floats:
    """
    Fill in a workload's unknown iteration times from the ratios between kinds that other workloads show.

    Parameters
    ----------
    others_s : (W, K) float array, seconds an iteration
        Other workloads on each kind, NaN where not measured.
    own_s : (K,) float array, seconds an iteration
        The workload in question, NaN where not measured.

    Returns
    -------
    (K,) float array
        Known times as they are; unknown ones from the median over all workloads and known kinds of the ratio to
        the known kind; NaN where no workload links the two. Where ``own_s`` is all NaN only ratios can be given: the
        kind that most workloads were measured on is then 1.

    Notes
    -----
    O(W K²).

    Examples
    --------
    >>> others_s = np.array([[1.0, 2.0, np.nan], [1.0, 4.0, 8.0], [1.0, 3.0, np.nan]])
    >>> predicted_s(others_s, np.array([0.5, np.nan, np.nan])).tolist()
    [0.5, 1.5, 4.0]
    """
    known = ~np.isnan(own_s)
    anchors_s = own_s.copy()
    if not known.any() and others_s.size and not np.isnan(others_s).all():
        anchors_s[int(np.argmax((~np.isnan(others_s)).sum(axis=0)))] = 1.0
    filled_s = anchors_s.copy()
    for kind in np.flatnonzero(np.isnan(anchors_s)):
        filled_s[kind] = _through_anchors(others_s, anchors_s, int(kind))
    return filled_s


def _through_anchors(others_s: Floats, anchors_s: Floats, kind: int) -> float:
    anchors = np.flatnonzero(~np.isnan(anchors_s))
    estimates = (others_s[:, [kind]] / others_s[:, anchors] * anchors_s[anchors]).ravel()
    estimates = estimates[~np.isnan(estimates)]
    return float(np.median(estimates)) if estimates.size else float("nan")
