"""Thresholds between queues, worked out from the lengths of jobs that completed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DEFAULT_GPU_S: Final = (3_600.0, 36_000.0)
"""While too few jobs have completed: an hour and ten hours of one device."""

SHORTEST_GPU_S: Final = 1.0
"""Shorter jobs count as so long: what they need is mostly their start, and no preemption for them pays."""
LOAD: Final = 0.9
"""The load for which thresholds are worked out: without a queue, no order matters."""
GRID: Final = 48
"""Quantiles of the lengths that are tried as thresholds."""
_DIGITS: Final = 2
_MARGIN: Final = 1.02


def learnt_thresholds_gpu_s(lengths_gpu_s: Sequence[float]) -> tuple[float, ...]:
    """
    Return the thresholds with which jobs of such lengths are over soonest on average: none, one or two of them.

    Parameters
    ----------
    lengths_gpu_s : (N,) floats, GPU-seconds, positive, rising
        What completed jobs needed; :data:`SHORTEST_GPU_S` where it was less.

    Returns
    -------
    tuple of float
        GPU-seconds, rising, rounded to two digits; empty where one queue is best, as it is where all jobs are about
        equally long. :data:`DEFAULT_GPU_S` where there are no lengths.

    Notes
    -----
    The mean time in the system of a single server with Poisson arrivals at :data:`LOAD`, whose levels are each served
    in the order of arrival, is worked out for all pairs of :data:`GRID` quantiles: O(GRID · N + GRID²). The time that a
    preemption costs is not in it; rounds of the matcher weigh that.

    References
    ----------
    Kleinrock: Queueing Systems, Volume II, 1976, section 4.7 (multilevel processor sharing).

    Examples
    --------
    >>> learnt_thresholds_gpu_s([1.0] * 9 + [100.0])
    (1.1,)
    >>> learnt_thresholds_gpu_s([5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6, 5.7]), learnt_thresholds_gpu_s([])
    ((), (3600.0, 36000.0))
    """
    if not len(lengths_gpu_s):
        return DEFAULT_GPU_S
    levels = _levels(np.sort(np.maximum(np.asarray(lengths_gpu_s, dtype=np.float64), SHORTEST_GPU_S)))
    first, second = np.triu_indices(len(levels.limits), 1)
    top = len(levels.limits) - 1  # no limit: behind it comes nobody
    pairs = _mean_s(levels, first[second < top], second[second < top])
    ones = _mean_s(levels, np.arange(top), np.full(top, top))
    none = float(levels.waits[top] + levels.ended_s[top])
    best = min(none, ones.min(initial=math.inf), pairs.min(initial=math.inf))
    if best == none:
        return ()
    if best == ones.min(initial=math.inf):
        return _rounded(levels.limits[int(ones.argmin())])
    at = int(pairs.argmin())
    return _rounded(levels.limits[first[second < top][at]], levels.limits[second[second < top][at]])


class _Levels(NamedTuple):
    """
    What follows from a limit, for each limit that is tried, and infinity as the last; (L,) arrays each.

    Attributes
    ----------
    limits : GPU-seconds, rising
    busy : share of the time in which a server serves jobs up to the limit only
    waits : mean time until a server has done what was there up to the limit, GPU-seconds
    ended : share of the jobs that end within the limit
    ended_s : what these need, GPU-seconds of the mean over all jobs
    """

    limits: Floats
    busy: Floats
    waits: Floats
    ended: Floats
    ended_s: Floats


def _levels(lengths: Floats) -> _Levels:
    quantiles = np.unique(np.quantile(lengths, np.linspace(0.0, 1.0, GRID + 2)[1:-1], method="inverted_cdf"))
    limits = np.append(quantiles[quantiles < lengths[-1]], math.inf)
    up_to = np.minimum(lengths, limits[:, None])
    rate = LOAD / lengths.mean()
    busy = rate * up_to.mean(axis=1)
    waits = rate * (up_to**2).mean(axis=1) / 2 / (1 - busy)
    within = np.searchsorted(lengths, limits, side="right")
    sums = np.append(0.0, np.cumsum(lengths)) / len(lengths)
    return _Levels(limits, busy, waits, within / len(lengths), sums[within])


def _mean_s(levels: _Levels, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]) -> Floats:
    """Return the mean time in the system with two thresholds, for each pair of limits; the second may be infinite."""
    _, busy, waits, ended, ended_s = levels
    short = waits[first] * ended[first] + ended_s[first]
    middle = (waits[second] * (ended[second] - ended[first]) + ended_s[second] - ended_s[first]) / (1 - busy[first])
    rest = (waits[-1] * (1 - ended[second]) + ended_s[-1] - ended_s[second]) / (1 - busy[second])
    mean: Floats = short + middle + rest
    return mean


def _rounded(*limits: float) -> tuple[float, ...]:
    """
    Return limits with two digits, each a little above what it was, so that jobs of just this length end within it.

    So they are not all new with each edition either. Twice the same counts once.
    """
    return tuple(dict.fromkeys(_above(float(limit)) for limit in limits))


def _above(limit: float) -> float:
    digits = _DIGITS - 1 - math.floor(math.log10(_MARGIN * limit))
    return round(math.ceil(_MARGIN * limit * 10.0**digits) / 10.0**digits, max(digits, 0))
