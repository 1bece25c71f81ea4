"""
Pace: the time that iterations take, and on an emulated device the time that they are made to take.

:class:`HostPace`, :class:`EmulatedPace` and :class:`SamplePace` measure a loop, boundary by boundary. This is shell
code: reading clocks and sleeping is the whole of its work.

The functions below are pure and estimate how long an iteration takes, from many: a mean, and its standard error. A
profiler's sample keeps every iteration (:func:`trimmed`). An ordinary run has no time to lose between two steps, and
knows only how many were done between two lines of progress (:class:`IterationBlocks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, variance
from time import perf_counter, process_time, sleep
from typing import Final, NamedTuple, Protocol

LEAST_SLEEP_S: Final = 0.004
"""Debts below this are carried on: a sleep costs some 60 microseconds, more than many a short iteration."""
MOST_CREDIT_S: Final = 0.05
"""How far a process that the host kept waiting may catch up; without a limit it would later run too fast for long."""


class Clocks(NamedTuple):
    """Wall time and CPU time of this process in seconds, and how to sleep; a test puts its own here."""

    wall: Callable[[], float] = perf_counter
    cpu: Callable[[], float] = process_time
    sleep: Callable[[float], object] = sleep


class IterationPace(Protocol):
    """A measurement of a loop, boundary by boundary."""

    @property
    def loop_s(self) -> float:
        """The seconds of all iterations together."""

    def resume(self) -> float:
        """Go on measuring after something that is not part of an iteration; return how long that took."""

    def lap(self) -> float:
        """Return the clock at the end of an iteration, in seconds."""

    def settle(self) -> None:
        """Sleep what is owed, however little."""

    def measured(self, steps: int) -> MeanTime:
        """Return how long an iteration takes, as far as is known after this number of the run's iterations."""


def pace(emulated_speed: float = 0.0, *, sample: bool = False) -> IterationPace:
    """
    Return what measures a session's loops.

    Parameters
    ----------
    emulated_speed : float
        Of the emulated device, relative to this host; 0 on a real one.
    sample : bool
        Whether this is a profiler's sample, of which each single iteration counts.
    """
    measuring: IterationPace = EmulatedPace(emulated_speed) if emulated_speed else HostPace()
    return SamplePace(measuring) if sample else measuring


class HostPace:
    """The pace on a real device: wall time, nothing added."""

    def __init__(self) -> None:
        self.loop_s = 0.0
        self._blocks = IterationBlocks()
        self._mark = perf_counter()

    def resume(self) -> float:
        """Start measuring here."""
        before, self._mark = self._mark, perf_counter()
        return self._mark - before

    def lap(self) -> float:
        """Add the time since the last mark."""
        now = perf_counter()
        self.loop_s += now - self._mark
        self._mark = now
        return now

    def settle(self) -> None:
        """Nothing is ever owed."""

    def measured(self, steps: int) -> MeanTime:
        """Close a block of iterations, and return the mean over all blocks."""
        return self._blocks.measured(steps, self.loop_s)


class EmulatedPace:
    """
    The pace on an emulated device: an iteration of ``c`` CPU seconds takes ``c / speed`` seconds.

    ``loop_s`` is the emulated time. It counts the CPU time of the whole process, all threads, and neither what an
    iteration waits for nor what the host's other processes take from it, so that devices emulated on a busy laptop keep
    their ratio. A script should keep its numeric library to one thread.

    Parameters
    ----------
    speed : float
        Relative to this host; above 1 the device cannot be emulated in real time, only in ``loop_s``.
    """

    def __init__(self, speed: float, clocks: Clocks | None = None) -> None:
        self.loop_s = 0.0
        self._blocks = IterationBlocks()
        self._clocks = clocks or Clocks()
        self._speed = speed
        self._owed_s = 0.0
        self._wall_s, self._cpu_s = self._clocks.wall(), self._clocks.cpu()

    def resume(self) -> float:
        """Start measuring here."""
        before_s, self._wall_s = self._wall_s, self._clocks.wall()
        self._cpu_s = self._clocks.cpu()
        return self._wall_s - before_s

    def lap(self) -> float:
        """Add the emulated time of the iteration, and sleep once enough is owed."""
        wall_s, cpu_s = self._clocks.wall(), self._clocks.cpu()
        emulated_s = (cpu_s - self._cpu_s) / self._speed
        self.loop_s += emulated_s
        self._owed_s = max(self._owed_s + emulated_s - (wall_s - self._wall_s), -MOST_CREDIT_S)
        self._wall_s, self._cpu_s = wall_s, cpu_s
        if self._owed_s >= LEAST_SLEEP_S:
            self.settle()
        return self._wall_s

    def settle(self) -> None:
        """Sleep what is owed; what the sleep takes too long becomes credit."""
        if self._owed_s > 0:
            self._clocks.sleep(self._owed_s)
            wall_s = self._clocks.wall()
            self._owed_s -= wall_s - self._wall_s
            self._wall_s = wall_s

    def measured(self, steps: int) -> MeanTime:
        """Close a block of iterations, and return the mean over all blocks."""
        return self._blocks.measured(steps, self.loop_s)


class SamplePace:
    """The pace of a profiler's sample: it keeps the time of each iteration, which are few, as samples are short."""

    def __init__(self, pace: IterationPace) -> None:
        self._pace = pace
        self._laps: list[float] = []

    @property
    def loop_s(self) -> float:
        """The seconds of all iterations together."""
        return self._pace.loop_s

    def resume(self) -> float:
        """Start measuring here."""
        return self._pace.resume()

    def lap(self) -> float:
        """Add the iteration's time, and keep it."""
        before_s = self._pace.loop_s
        now = self._pace.lap()
        self._laps.append(self._pace.loop_s - before_s)
        return now

    def settle(self) -> None:
        """Sleep what is owed."""
        self._pace.settle()

    def measured(self, steps: int) -> MeanTime:
        """Return the mean of this run's single iterations; the first ones are a warm-up."""
        return trimmed(self._laps[:steps]) if steps else UNKNOWN


WARM_UP: Final = 5
"""Iterations at the beginning that do not count, where there are enough: the first ones allocate and compile."""

TRIMMED: Final = 0.1
"""Part of the iterations that is left out on either side: what the host's other work, or an epoch's end, has made."""


class MeanTime(NamedTuple):
    """Mean seconds of an iteration, and the standard error of that mean; 0 where not known."""

    iteration_s: float = 0.0
    error_s: float = 0.0


UNKNOWN: Final = MeanTime()


def trimmed(times_s: Sequence[float]) -> MeanTime:
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
        return MeanTime(fmean(kept))
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    return MeanTime(fmean(kept), math.sqrt(variance(winsorized) / count) * count / len(kept))


class IterationBlocks:
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

    def measured(self, steps: int, loop_s: float) -> MeanTime:
        """Close the block that ends after so many steps and seconds of the run, and return the mean over all blocks."""
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

    def _ratio(self) -> MeanTime:
        mean_s = self._time_sum / self._steps_sum
        if self._n == 1:
            return MeanTime(mean_s)
        residual = self._time_squared - 2 * mean_s * self._products + mean_s * mean_s * self._steps_squared
        spread = math.sqrt(max(residual, 0.0) * self._n / (self._n - 1))
        return MeanTime(mean_s, spread / self._steps_sum)
