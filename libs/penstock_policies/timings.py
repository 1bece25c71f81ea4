"""
The two lines behind measured iteration times: computation over the local batch, communication over the devices.

Each point of them is a weighted sum of timings, so that their errors, and what points have in common, carry through.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from penstock_events import Scalability, Timing
from penstock_policies.elastic import Floats, Ints

UNKNOWN_ERROR: Final = 0.1
"""Standard error of a timing that comes without one, as a share of it."""


class Lines(NamedTuple):
    """
    What N timings say of ``t_proc`` and ``t_comm``.

    Attributes
    ----------
    fewest : int
        Devices behind ``t_proc``: one, or the fewest that were timed. ``t_comm`` is what more devices add.
    local, over : (L,), (W,) int array
        Local batches at which ``t_proc`` is known, and widths at which ``t_comm`` is.
    proc, comm : (L, N), (W, N) float array
        Weights of the timings in each point.
    time_s, errors_s : (N,) float array
    """

    fewest: int
    local: Ints
    over: Ints
    proc: Floats
    comm: Floats
    time_s: Floats
    errors_s: Floats

    def error_s(self, local: int, gpus: int) -> float:
        """Return the standard error of an iteration."""
        parts = weights(local, self.local) @ self.proc
        if gpus > 1 and len(self.over):
            parts = parts + weights(1.0 / gpus, 1.0 / self.over) @ self.comm
        return math.sqrt(float(parts**2 @ self.errors_s**2))


def lines(known: Scalability) -> Lines:
    """
    Read the lines off timings; of two of the same, the later one counts.

    Raises
    ------
    ValueError
        If there is no timing.
    """
    timings = list({(each.gpus, each.local_batch): each for each in known.timings}.values())
    if not timings:
        raise ValueError(f"there is no timing on {known.kind}; expected one at least")
    timings.sort(key=lambda each: (each.gpus, each.local_batch))
    gpus, batch = np.array([(each.gpus, each.local_batch) for each in timings], dtype=np.int64).T
    errors_s = np.array([error_s_of(each) for each in timings])
    fewest = int(gpus[0])
    first = gpus == fewest
    every = np.eye(len(timings))
    more = every - np.array([weights(each, batch[first]) for each in batch]) @ every[first]
    over = np.unique(gpus[~first]) if fewest == 1 else np.unique(gpus)
    comm = [_mean(more[gpus == width], errors_s) if width > fewest else 0.0 * errors_s for width in over]
    return Lines(
        fewest=fewest,
        local=batch[first],
        over=over,
        proc=every[first],
        comm=np.reshape(comm, (len(over), len(timings))),
        time_s=np.array([each.iteration_s for each in timings]),
        errors_s=errors_s,
    )


def error_s_of(timing: Timing) -> float:
    """Return the standard error of a timing, seconds."""
    return timing.error_s or UNKNOWN_ERROR * timing.iteration_s


def _mean(points: Floats, errors_s: Floats) -> Floats:
    """Return the mean of weighted sums, by the inverse of their variances."""
    share = 1.0 / np.maximum(points**2 @ errors_s**2, np.finfo(np.float64).tiny)
    return np.asarray(share @ points / share.sum(), dtype=np.float64)


def weights(at: float, known: Floats | Ints) -> Floats:
    """
    Return how much values at K places count in that at another: along lines between and beyond them.

    Examples
    --------
    >>> weights(3, np.array([2, 4, 8])).tolist(), weights(12, np.array([2, 4, 8])).tolist()
    ([0.5, 0.5, 0.0], [0.0, -1.0, 2.0])
    """
    found, order = np.zeros(len(known)), np.argsort(known)
    if len(known) == 1:
        found[0] = 1.0
        return found
    rising_at = np.asarray(known, dtype=np.float64)[order]
    left = int(np.clip(np.searchsorted(rising_at, at, side="right") - 1, 0, len(known) - 2))
    share = (at - rising_at[left]) / (rising_at[left + 1] - rising_at[left])
    found[order[left]], found[order[left + 1]] = 1 - share, share
    return found


def rising(values: Floats, variances: Floats) -> Floats:
    """
    Return the nearest values that never fall, each counted by the inverse of its variance.

    Notes
    -----
    Neighbours that fall are pooled until none does. O(N).

    References
    ----------
    Ayer et al., An empirical distribution function for sampling with incomplete information, Ann. Math. Stat. 1955.

    Examples
    --------
    >>> rising(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    blocks: list[tuple[float, float, int]] = []
    for value, variance in zip(values.tolist(), variances.tolist(), strict=True):
        block = (value, 1.0 / max(variance, 1e-300), 1)
        while blocks and blocks[-1][0] >= block[0]:
            mean, share, count = blocks.pop()
            both = share + block[1]
            block = ((mean * share + block[0] * block[1]) / both, both, count + block[2])
        blocks.append(block)
    return np.repeat([mean for mean, _, _ in blocks], [count for _, _, count in blocks])
