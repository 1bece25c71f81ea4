"""
What turns cost on this machine: two processes in a lane, a third that keeps it, and a bare pipe to compare with.

This is shell code: it forks, spins and reads clocks, which is the whole of its work. Call it from a process that has
one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic_ns, process_time_ns, sleep
from typing import Final

import msgspec

from penstock.bare import futex_us, handed_over_us, pipe_us, shared, spin
from penstock.killing import killed_ms
from penstock.lane_run import in_lane
from penstock.sessions.loop import Session
from penstock.sessions.setup import Setup
from penstock_lanes import Member, Who

STEP_US: Final = 300
"""An iteration where hand-overs are measured: short, so that there are many, and long enough to name the next."""
TURN_STEPS: Final = 5
LONG_STEP_US: Final = 10_000
KILLED_MIB: Final = 200
_BATCH: Final = 1_000
_KILLINGS: Final = 15
_LOOK_S: Final = 0.0005


class Spread(msgspec.Struct, frozen=True):
    """Of many measurements."""

    median: float
    p99: float


class Middle(msgspec.Struct, frozen=True):
    """Of many measurements, where the tail is the machine's."""

    median: float


class Extent(msgspec.Struct, frozen=True):
    """Of a few measurements."""

    median: float
    most: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """
    What turns cost.

    Attributes
    ----------
    handover_us : Spread
        From the end of one process's iteration to the beginning of the other's; a turn is one iteration of
        :data:`STEP_US`.
    turn_handover_us : Spread
        The same where a turn is :data:`TURN_STEPS` of them, which is the least that an executor gives.
    futex_us, turn_futex_us : Spread
        The same without lanes: two processes that do as much, and wake each other up by a bare futex.
    uncontended_us : Middle
        A boundary of a process that is alone in its lane.
    pipe_us : Middle
        From the writing of a byte to its being read by another process.
    overhead_at_10ms : float
        What a lane of one adds to iterations of 10 ms, as a fraction of them.
    killed_ms, killed_large_ms : Extent
        From the killing of a process in its turn to its neighbour's iteration; large: one that has :data:`KILLED_MIB`
        in memory, which the kernel frees before anybody hears of its end.
    handovers : int
        How many were measured.
    """

    handover_us: Spread
    turn_handover_us: Spread
    futex_us: Spread
    turn_futex_us: Spread
    uncontended_us: Middle
    pipe_us: Middle
    overhead_at_10ms: float
    killed_ms: Extent
    killed_large_ms: Extent
    handovers: int


def measure(iterations: int = 2_000, long_iterations: int = 100) -> Costs:
    """
    Measure all of it; some ten seconds. Fifteen holders of each size are killed, fewer where iterations are few.

    Parameters
    ----------
    iterations : int
        Of each of two processes that hand the token to and fro.
    long_iterations : int
        Of 10 ms, in a lane of one and bare.
    """
    handovers = _handovers(iterations, 1)
    killings = max(1, min(_KILLINGS, iterations // 100))
    return Costs(
        handover_us=_spread(handovers),
        turn_handover_us=_spread(_handovers(iterations, TURN_STEPS)),
        futex_us=_spread(futex_us(iterations // 2, STEP_US)),
        turn_futex_us=_spread(futex_us(iterations // 4, TURN_STEPS * STEP_US)),
        uncontended_us=Middle(median=_uncontended_us(50)),
        pipe_us=Middle(median=pipe_us(iterations)),
        overhead_at_10ms=_overhead(long_iterations),
        killed_ms=_extent([killed_ms(0) for _ in range(killings)]),
        killed_large_ms=_extent([killed_ms(KILLED_MIB) for _ in range(killings)]),
        handovers=len(handovers),
    )


def _spread(values: list[float]) -> Spread:
    return Spread(median=median(values), p99=sorted(values)[math.ceil(0.99 * len(values)) - 1])


def _extent(values: list[float]) -> Extent:
    return Extent(median=median(values), most=max(values))


def _handovers(iterations: int, steps: int) -> list[float]:
    """Return what each hand-over took, in microseconds, in turns of so many iterations."""

    here = shared(2)

    def job(number: int) -> Callable[[Path, memoryview], None]:
        return lambda path, notes: _take_turns(path, number, iterations, notes, here)

    return handed_over_us(in_lane([job(0), job(1)], 2 * iterations, steps))


def _take_turns(path: Path, number: int, iterations: int, notes: memoryview, here: memoryview) -> None:
    """Take turns with another process; the first one is not measured, and no other begins before both have had it."""
    member = Member(str(path), Who(f"j{number}", 1, 0))
    member.enter()
    member.exit()
    here[number] = 1
    while not all(here):
        sleep(_LOOK_S)
    for index in range(iterations):
        member.enter()
        notes[2 * index] = monotonic_ns()
        spin(STEP_US)
        notes[2 * index + 1] = monotonic_ns()
        member.exit()
    member.close()


def _uncontended_us(batches: int) -> float:
    """Return what a boundary takes where nobody waits, in microseconds of the processor: it makes no system call."""

    def job(path: Path, notes: memoryview) -> None:
        member = Member(str(path), Who("alone", 1, 0))
        member.enter()
        for index in range(batches):
            before = process_time_ns()
            for _ in range(_BATCH):
                member.exit()
                member.enter()
            notes[index] = process_time_ns() - before
        member.exit()
        member.close()

    (notes,) = in_lane([job], batches)
    return median(notes) / _BATCH / 1e3


def _overhead(iterations: int) -> float:
    """
    Return by which fraction an iteration of 10 ms takes longer in a lane of one than in a bare loop.

    Of each the shortest: what else a machine does lengthens an iteration by milliseconds.
    """
    bare = _spaces(range(iterations + 1))

    def job(path: Path, notes: memoryview) -> None:
        with Session(Setup(job_id="alone", lanes=str(path))) as session:
            for index, space in enumerate(_spaces(session.iterations(range(iterations + 1)))):
                notes[index] = space

    (notes,) = in_lane([job], iterations)
    return min(notes) / min(bare) - 1.0


def _spaces(items: Iterable[int]) -> list[int]:
    """Return the time from the beginning of each iteration of 10 ms to that of the next, in nanoseconds."""
    begun = []
    for _ in items:
        begun.append(monotonic_ns())
        spin(LONG_STEP_US)
    return [after - before for before, after in pairwise(begun)]
