"""
The Gittins index of jobs whose lengths are known as a distribution only: how likely a job is to end soon, for its cost.

The index of a job that has attained ``a`` is the most completions that one can expect for each GPU-second spent on it,
``G(a) = sup over Δ of P(S - a <= Δ | S > a) / E[min(S - a, Δ) | S > a]``, with ``S`` drawn from the GPU-times of
finished jobs. The job with the highest index goes first. With a fixed quantum Δ there is no supremum: that is the index
of a job that is looked at again after Δ GPU-seconds.

Edge cases, the same in every function here:

* A job that has attained exactly a sample's length has outlived that sample; one that would end exactly at the end of
  the quantum ends within it.
* A job that has outlived *every* sample has the index 0, the lowest: nothing says that it will ever end. So has every
  job while there is no sample at all. Equal indices say nothing about who goes first; orders break such ties by the
  time of entering the queue.

References
----------
Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, section 4.2.
Aalto, Ayesta, Righter: On the Gittins index in the M/G/1 queue, Queueing Systems 63, 2009.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LEAST: Final = 1e-300
"""Expected cost is never less, so that a job that is sure to end at this very moment has a finite index."""


def index(samples_gpu_s: npt.ArrayLike, attained_gpu_s: npt.ArrayLike, quantum_gpu_s: float | None) -> Floats:
    """
    Return the index of each job, in completions per GPU-second; the highest goes first.

    Parameters
    ----------
    samples_gpu_s : (N,) float array, GPU-seconds, positive
        What finished jobs needed, in any order.
    attained_gpu_s : (J,) float array, GPU-seconds, 0 or more
        What each job has had.
    quantum_gpu_s : float or None
        Δ; None for the supremum over all quanta.

    Returns
    -------
    (J,) float array, finite, 0 or more

    Raises
    ------
    ValueError
        If a sample or the quantum is not positive and finite, or an attained service is negative or not finite.

    Notes
    -----
    O((N + J) log N). The supremum is a slope: with ``T(x)`` the total time on test (what N jobs together have had when
    each has run until its end or ``x``), ``G(a)`` is the steepest line from ``(T(a), ended by a)`` to a later point
    ``(T(s), ended by s)``. Only vertices of the upper hull of the points behind ``a`` can be its end; they are found by
    halving, for all jobs at once.

    Examples
    --------
    >>> index([4.0, 8.0, 12.0], [0.0, 4.0, 8.0, 12.0], quantum_gpu_s=4.0).tolist()
    [0.08333333333333333, 0.125, 0.25, 0.0]
    >>> index([4.0, 8.0, 12.0], [0.0, 4.0], quantum_gpu_s=None).tolist()
    [0.125, 0.16666666666666666]
    """
    samples = _checked(samples_gpu_s)
    attained = np.asarray(attained_gpu_s, dtype=np.float64)
    if not np.all((attained >= 0) & np.isfinite(attained)):
        raise ValueError("attained_gpu_s holds a value that is negative or not finite; expected 0 or more GPU-seconds")
    if not samples.size:
        return np.zeros(attained.shape)
    return _supremum(samples, attained) if quantum_gpu_s is None else _within(samples, attained, quantum_gpu_s)


class GittinsCurve:
    """
    The index at one quantum, made ready for being asked about one job at a time.

    Parameters
    ----------
    samples_gpu_s : (N,) float array, GPU-seconds, positive
    quantum_gpu_s : float, GPU-seconds, positive

    Notes
    -----
    O(N log N) once, then O(log N) a question; :func:`index` answers many at once.

    Examples
    --------
    >>> GittinsCurve([4.0, 8.0, 12.0], 4.0).at(4.0)
    0.125
    """

    def __init__(self, samples_gpu_s: npt.ArrayLike, quantum_gpu_s: float) -> None:
        samples = _checked(samples_gpu_s)
        self.quantum_gpu_s = _checked_quantum(quantum_gpu_s)
        self._samples: list[float] = samples.tolist()
        self._sums: list[float] = np.concatenate(([0.0], np.cumsum(samples))).tolist()

    def at(self, attained_gpu_s: float) -> float:
        """Return the index of a job that has had so many GPU-seconds."""
        first = bisect_right(self._samples, attained_gpu_s)
        last = bisect_right(self._samples, attained_gpu_s + self.quantum_gpu_s)
        if last == first:
            return 0.0
        cost = self._sums[last] - self._sums[first] - (last - first) * attained_gpu_s
        cost += self.quantum_gpu_s * (len(self._samples) - last)
        return (last - first) / max(cost, _LEAST)


def published(samples_gpu_s: Sequence[int], quantum_gpu_s: int) -> Floats:
    """
    Return the index as the public simulator of 2019 stored it: rounded, one value for each sample.

    Parameters
    ----------
    samples_gpu_s : (N,) whole GPU-seconds
    quantum_gpu_s : int
        Its only quantum, whatever the queue.

    Returns
    -------
    (N,) float array
        In completions per million GPU-seconds, for jobs that have had one second less than each sorted sample. A job's
        index is that of the smallest sample above what it has had, 0 beyond the last.

    Notes
    -----
    O(N log N). For comparisons with that program only. It counts a job's whole length where the textbook counts what is
    left of it, and it leaves the longest sample out of what may end within the quantum.

    References
    ----------
    https://github.com/SymbioticLab/Tiresias, 2019.
    """
    lengths = sorted(samples_gpu_s)
    n = len(lengths)
    sums = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]
    found = []
    for length in lengths:
        attained = length - 1
        first, last = bisect_right(lengths, attained), bisect_right(lengths, attained + quantum_gpu_s)
        if attained + quantum_gpu_s > lengths[-1] - 1:
            last = n - 1
        likely = round((last - first) / (n - first), 5)
        cost = (sums[last] - sums[first] + quantum_gpu_s * (n - last)) // (n - first)
        found.append(round(1e6 * likely / cost, 4))
    return np.array(found, dtype=np.float64)


def _within(samples: Floats, attained: Floats, quantum_gpu_s: float) -> Floats:
    quantum = _checked_quantum(quantum_gpu_s)
    sums = np.concatenate(([0.0], np.cumsum(samples)))
    first = np.searchsorted(samples, attained, side="right")
    last = np.searchsorted(samples, attained + quantum, side="right")
    ending = last - first
    cost = sums[last] - sums[first] - ending * attained + quantum * (samples.size - last)
    return np.where(ending > 0, ending / np.maximum(cost, _LEAST), 0.0)


class _Hulls(NamedTuple):
    """
    The points (total time on test, jobs ended) of U distinct samples, and the upper hulls of all their suffixes.

    ``edge`` is the slope from each point to its right neighbour on the hull of the points from it on, minus infinity
    for the last; ``jumps[k]`` leads 2^k neighbours to the right.
    """

    spent: Floats
    ended: Floats
    edge: Floats
    jumps: list[Ints]


def _supremum(samples: Floats, attained: Floats) -> Floats:
    values, counts = np.unique(samples, return_counts=True)
    ended = np.cumsum(counts).astype(np.float64)
    before = ended - counts
    left = samples.size - before  # still running on each sample's way
    spent = np.cumsum(left * np.diff(values, prepend=0.0))
    behind = np.searchsorted(values, attained, side="right")
    start = np.minimum(behind, values.size - 1)  # where it is clipped, the job has outlived all: 0 in the end
    from_x, from_y = spent[start] - left[start] * (values[start] - attained), before[start]
    hulls = _hulls(spent, ended)
    at = _tangent(hulls, start, from_x, from_y)
    slope = (hulls.ended[at] - from_y) / np.maximum(hulls.spent[at] - from_x, _LEAST)
    return np.where(behind < values.size, slope, 0.0)


def _hulls(spent: Floats, ended: Floats) -> _Hulls:
    xs, ys, last = spent.tolist(), ended.tolist(), len(spent) - 1
    right, edge = list(range(last + 1)), [-math.inf] * (last + 1)
    for point in range(last - 1, -1, -1):
        best = point + 1
        slope = _slope(xs, ys, point, best)
        while right[best] != best and edge[best] >= slope:
            best = right[best]
            slope = _slope(xs, ys, point, best)
        right[point], edge[point] = best, slope
    jumps = [np.array(right, dtype=np.int64)]
    while jumps[-1][0] != last:
        jumps.append(jumps[-1][jumps[-1]])
    return _Hulls(spent, ended, np.array(edge), jumps)


def _slope(xs: list[float], ys: list[float], start: int, end: int) -> float:
    return (ys[end] - ys[start]) / max(xs[end] - xs[start], _LEAST)


def _tangent(hulls: _Hulls, start: Ints, from_x: Floats, from_y: Floats) -> Ints:
    """Return for each job the point on the hull to which the line is steepest: the first whose edge is no steeper."""

    def rises(at: Ints) -> npt.NDArray[np.bool_]:
        return hulls.edge[at] * np.maximum(hulls.spent[at] - from_x, _LEAST) > hulls.ended[at] - from_y

    more = rises(start)
    at = start
    for jump in reversed(hulls.jumps):
        further = jump[at]
        at = np.where(more & rises(further), further, at)
    return np.where(more, hulls.jumps[0][at], at)


def _checked(samples_gpu_s: npt.ArrayLike) -> Floats:
    samples = np.sort(np.asarray(samples_gpu_s, dtype=np.float64))
    if not np.all((samples > 0) & np.isfinite(samples)):
        raise ValueError("samples_gpu_s holds a length that is not positive and finite; leave it out")
    return samples


def _checked_quantum(quantum_gpu_s: float) -> float:
    if not (quantum_gpu_s > 0 and math.isfinite(quantum_gpu_s)):
        raise ValueError(f"quantum_gpu_s is {quantum_gpu_s}; expected GPU-seconds above 0, or None for the supremum")
    return float(quantum_gpu_s)
