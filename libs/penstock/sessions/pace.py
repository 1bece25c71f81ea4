"""
The time that iterations take, and on an emulated device the time that they are made to take.

This is shell code: it reads clocks and sleeps, which is the whole of its work.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time, sleep
from typing import Final, NamedTuple, Protocol

from penstock.sessions.timing import UNKNOWN, Blocks, Measured, trimmed

LEAST_SLEEP_S: Final = 0.004
"""Debts below this are carried on: a sleep costs some 60 microseconds, more than many a short iteration."""
MOST_CREDIT_S: Final = 0.05
"""How far a process that the host kept waiting may catch up; without a limit it would later run too fast for long."""


class Clocks(NamedTuple):
    """Wall time and CPU time of this process in seconds, and how to sleep; a test puts its own here."""

    wall: Callable[[], float] = perf_counter
    cpu: Callable[[], float] = process_time
    sleep: Callable[[float], object] = sleep


class Pace(Protocol):
    """Measures a loop, boundary by boundary."""

    @property
    def loop_s(self) -> float:
        """The seconds of all iterations together."""

    def resume(self) -> float:
        """A loop starts, or goes on after something that is not part of an iteration; return how long that took."""

    def lap(self) -> float:
        """Return the clock at the end of an iteration, in seconds."""

    def settle(self) -> None:
        """Sleep what is owed, however little."""

    def measured(self, steps: int) -> Measured:
        """Return how long an iteration takes, as far as is known after so many of this run."""


def pace(emulated_speed: float = 0.0, *, sample: bool = False) -> Pace:
    """
    Return what measures a session's loops.

    Parameters
    ----------
    emulated_speed : float
        Of the emulated device, relative to this host; 0 on a real one.
    sample : bool
        Whether this is a profiler's sample, of which each single iteration counts.
    """
    measuring: Pace = EmulatedPace(emulated_speed) if emulated_speed else HostPace()
    return SamplePace(measuring) if sample else measuring


class HostPace:
    """On a real device: wall time, nothing added."""

    def __init__(self) -> None:
        self.loop_s = 0.0
        self._blocks = Blocks()
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

    def measured(self, steps: int) -> Measured:
        """Close a block of iterations, and return what all blocks say."""
        return self._blocks.measured(steps, self.loop_s)


class EmulatedPace:
    """
    On an emulated device: an iteration of ``c`` CPU seconds takes ``c / speed`` seconds.

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
        self._blocks = Blocks()
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

    def measured(self, steps: int) -> Measured:
        """Close a block of iterations, and return what all blocks say."""
        return self._blocks.measured(steps, self.loop_s)


class SamplePace:
    """In a profiler's sample: keeps the time of each iteration, which is little to keep since samples are short."""

    def __init__(self, pace: Pace) -> None:
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

    def measured(self, steps: int) -> Measured:
        """Return what the single iterations of this run say; the first ones are a warm-up."""
        return trimmed(self._laps[:steps]) if steps else UNKNOWN
