"""
Two-dimensional least attained service: which queue a job is in, and when it leaves it.

Attained service is devices x executed time, in GPU-seconds, so that no duration has to be known. ``K - 1`` thresholds
make ``K`` queues, 0 served first; a job is in queue ``q`` once it has crossed the first ``q`` thresholds. Queues are
counted by crossing *times*, not by comparing service with thresholds: a decider that sleeps until a crossing then finds
the job demoted when it wakes, whatever the rounding.

References
----------
Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def queues(attained: Floats, thresholds_gpu_s: Sequence[float]) -> Ints:
    """
    Return the queue of each job.

    Parameters
    ----------
    attained : (J,) float array, GPU-seconds
    thresholds_gpu_s : (K - 1,) floats, GPU-seconds, rising
        Empty for one queue, which is plain FIFO.

    Returns
    -------
    (J,) int array, 0 … K - 1

    Notes
    -----
    O(J log K). A job exactly at a threshold has crossed it.

    Examples
    --------
    >>> queues(np.array([0.0, 4.0, 9.0]), [4.0, 8.0])
    array([0, 1, 2])
    """
    return np.searchsorted(np.asarray(thresholds_gpu_s, dtype=np.float64), attained, side="right").astype(np.int64)


def crossings_s(gpus: int, executed_s: float, since_s: float, thresholds_gpu_s: Sequence[float]) -> tuple[float, ...]:
    """
    Return when a running job crosses, or crossed, each threshold.

    Parameters
    ----------
    gpus : int
    executed_s : float
        Seconds executed before ``since_s``.
    since_s : float
        Time from which it has been running; infinite for a job that does not run: what it has crossed gives -inf.
    thresholds_gpu_s : (K - 1,) floats, GPU-seconds, rising

    Returns
    -------
    (K - 1,) floats, seconds on the clock of ``since_s``

    Examples
    --------
    >>> crossings_s(2, 1.0, 100.0, [4.0, 8.0])
    (101.0, 103.0)
    >>> crossings_s(2, 3.0, math.inf, [4.0, 8.0])
    (-inf, inf)
    """
    left_s = (threshold / gpus - executed_s for threshold in thresholds_gpu_s)
    if math.isinf(since_s):
        return tuple(-math.inf if left <= 0 else math.inf for left in left_s)
    return tuple(since_s + left for left in left_s)


def queue_at(crossings: Sequence[float], now_s: float) -> int:
    """
    Return the queue at a time, from the output of :func:`crossings_s`.

    Examples
    --------
    >>> queue_at((101.0, 103.0), 101.0)
    1
    """
    return sum(crossing <= now_s for crossing in crossings)


def promotion_s(pending_since_s: float, waited_s: float, executed_s: float, knob: float | None) -> float:
    """
    Return when a starving job goes back to queue 0: once it has waited ``knob`` times what it has executed.

    Parameters
    ----------
    pending_since_s : float
        Since when it has been waiting.
    waited_s, executed_s : float
        Waited before that, and executed, both since the last promotion; the caller resets both.
    knob : float or None
        None switches promotion off.

    Returns
    -------
    float, seconds; infinite for a job that has executed nothing: it has never been demoted

    Examples
    --------
    >>> promotion_s(100.0, waited_s=3.0, executed_s=4.0, knob=2.0)
    105.0
    """
    if knob is None or executed_s <= 0:
        return math.inf
    return pending_since_s + knob * executed_s - waited_s
