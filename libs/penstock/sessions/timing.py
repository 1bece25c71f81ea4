"""
How long an iteration takes, from many: a mean, and how far it may be off. Pure: no clock.

A profiler's sample keeps every iteration (:func:`trimmed`). An ordinary run has no time to lose between two steps, and
knows only how many were done between two lines of progress (:class:`Blocks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Final, NamedTuple

WARM_UP: Final = 5
"""Iterations at the beginning that do not count, where there are enough: the first ones allocate and compile."""

TRIMMED: Final = 0.1
"""Part of the iterations that is left out on either side: what the host's other work, or an epoch's end, has made."""


class Measured(NamedTuple):
    """Mean seconds of an iteration, and the standard error of that mean; 0 where not known."""

    iteration_s: float = 0.0
    error_s: float = 0.0


UNKNOWN: Final = Measured()


def trimmed(times_s: Sequence[float]) -> Measured:
    """
    Return the trimmed mean of single iterations, and its standard error.

    Up to :data:`WARM_UP` first ones are left out, a fifth of all at most.

    References
    ----------
    Tukey and McLaughlin, Less vulnerable confidence and significance procedures for location based on a single sample:
    Trimming/Winsorization 1, Sankhya A 25, 1963.

    Examples
    --------
    >>> found = trimmed([99.0, 9.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0])
    >>> found.iteration_s, round(found.error_s, 3)
    (2.0, 0.378)
    """
    warm = sorted(times_s[min(WARM_UP, len(times_s) // 5) :])
    if not warm:
        return UNKNOWN
    count, cut = len(warm), int(TRIMMED * len(warm))
    kept = warm[cut : count - cut]
    if len(kept) < 2:
        return Measured(fmean(kept))
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    return Measured(fmean(kept), math.sqrt(variance(winsorized) / count) * count / len(kept))


class Blocks:
    """
    The iterations of a run in blocks, of each of which count and time are known; the first is a warm-up.

    The mean is that of all iterations. Its standard error is that of a ratio of sums, from how much the blocks differ:
    iterations that depend on their neighbours (a slow epoch, a busy hour) make it larger, as they should.

    References
    ----------
    Cochran, Sampling techniques, 3rd edition, Wiley 1977, chapter 6.
    """

    def __init__(self) -> None:
        self._steps, self._loop_s = 0, 0.0
        self._first = True
        self._n = self._steps_sum = 0
        self._time_sum = self._steps_squared = self._products = self._time_squared = 0.0

    def measured(self, steps: int, loop_s: float) -> Measured:
        """Close the block that ends after so many steps and seconds of the run, and return what all blocks say."""
        count, time_s = steps - self._steps, loop_s - self._loop_s
        if count > 0:
            self._steps, self._loop_s = steps, loop_s
            self._add(count, time_s)
        return self._ratio() if self._n else UNKNOWN

    def _add(self, count: int, time_s: float) -> None:
        if self._first:
            self._first = False
            return
        self._n += 1
        self._steps_sum += count
        self._time_sum += time_s
        self._steps_squared += count * count
        self._products += count * time_s
        self._time_squared += time_s * time_s

    def _ratio(self) -> Measured:
        mean_s = self._time_sum / self._steps_sum
        if self._n == 1:
            return Measured(mean_s)
        residual = self._time_squared - 2 * mean_s * self._products + mean_s * mean_s * self._steps_squared
        spread = math.sqrt(max(residual, 0.0) * self._n / (self._n - 1))
        return Measured(mean_s, spread / self._steps_sum)
