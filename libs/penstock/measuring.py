"""
What turns cost on this machine: two processes in a lane, a third that keeps it, and a bare pipe to compare with.

This is shell code: it forks, spins and reads clocks, which is the whole of its work. Call it from a process that has
one thread.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from time import monotonic_ns, process_time_ns
from typing import Final

import msgspec

from penstock.sessions.loop import Session
from penstock.sessions.setup import Setup
from penstock_lanes import Keeper, Member, Rota, Who

STEP_US: Final = 300
"""An iteration where hand-overs are measured: short, so that there are many, and long enough to name the next."""
LONG_STEP_US: Final = 10_000
_BATCH: Final = 1_000
_LANE: Final = "0/0"
_TOLD_BYTES: Final = 8


class Spread(msgspec.Struct, frozen=True):
    """Of many measurements."""

    median: float
    p99: float


class Middle(msgspec.Struct, frozen=True):
    """Of many measurements, where the tail is the machine's."""

    median: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """
    What turns cost.

    Attributes
    ----------
    handover_us : Spread
        From the end of one process's iteration to the beginning of the other's.
    uncontended_us : Middle
        A boundary of a process that is alone in its lane.
    pipe_us : Middle
        From the writing of a byte to its being read by another process.
    overhead_at_10ms : float
        What a lane of one adds to iterations of 10 ms, as a fraction of them.
    handovers : int
        How many were measured.
    """

    handover_us: Spread
    uncontended_us: Middle
    pipe_us: Middle
    overhead_at_10ms: float
    handovers: int


def measure(iterations: int = 2_000, long_iterations: int = 100) -> Costs:
    """
    Measure all of it; some two seconds, and two more for the long iterations.

    Parameters
    ----------
    iterations : int
        Of each of two processes that hand the token to and fro.
    long_iterations : int
        Of 10 ms, in a lane of one and bare.
    """
    handovers = _handovers(iterations)
    return Costs(
        handover_us=Spread(median=median(handovers), p99=quantiles(handovers, n=100)[-1]),
        uncontended_us=Middle(median=_uncontended_us(50)),
        pipe_us=Middle(median=_pipe_us(iterations)),
        overhead_at_10ms=_overhead(long_iterations),
        handovers=len(handovers),
    )


def _handovers(iterations: int) -> list[float]:
    """Return what each hand-over took, in microseconds."""

    def job(number: int) -> Callable[[Path, memoryview], None]:
        return lambda path, notes: _take_turns(path, f"j{number}", iterations, notes)

    notes = _in_lane([job(0), job(1)], 2 * iterations)
    spans = sorted(
        (begun, ended, number)
        for number, words in enumerate(notes)
        for begun, ended in zip(words[::2], words[1::2], strict=True)
    )
    return [(after[0] - before[1]) / 1e3 for before, after in pairwise(spans) if before[2] != after[2]]


def _take_turns(path: Path, name: str, iterations: int, notes: memoryview) -> None:
    member = Member(str(path), Who(name, 1, 0))
    for index in range(iterations):
        member.enter()
        notes[2 * index] = monotonic_ns()
        _spin(STEP_US)
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

    (notes,) = _in_lane([job], batches)
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

    (notes,) = _in_lane([job], iterations)
    return min(notes) / min(bare) - 1.0


def _spaces(items: Iterable[int]) -> list[int]:
    """Return the time from the beginning of each iteration of 10 ms to that of the next, in nanoseconds."""
    begun = []
    for _ in items:
        begun.append(monotonic_ns())
        _spin(LONG_STEP_US)
    return [after - before for before, after in pairwise(begun)]


def _pipe_us(count: int) -> float:
    """Return what a byte takes from one process to another that waits for it."""
    notes = _shared(count + 1)
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for index in range(count):
            os.read(there[0], 1)
            notes[index] = monotonic_ns() - notes[count]
            os.write(back[1], b"x")
        os._exit(0)
    for _ in range(count):
        notes[count] = monotonic_ns()
        os.write(there[1], b"x")
        os.read(back[0], 1)
    os.waitpid(child, 0)
    for fd in (*there, *back):
        os.close(fd)
    return median(notes[:count]) / 1e3


def _in_lane(jobs: Sequence[Callable[[Path, memoryview], None]], words: int) -> list[list[int]]:
    """Run each job in a process of its own, all in one lane; return what each has noted."""
    notes = [_shared(words) for _ in jobs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lanes.sock"
        keeper = Keeper(path)
        children = [_fork(keeper, partial(job, path, mine)) for job, mine in zip(jobs, notes, strict=True)]
        rota = Rota(keeper, lambda _: [_LANE])
        rota.serve(lambda: rota.gone == len(jobs))
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        rota.close()
        keeper.close()
    if any(statuses):
        raise RuntimeError(f"a measured process ended with {statuses}; expected 0 of each")
    return [mine.tolist() for mine in notes]


def _fork(keeper: Keeper, job: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            keeper.close()
            job()
            code = 0
        finally:
            os._exit(code)
    return child


def _shared(words: int) -> memoryview:
    return memoryview(mmap.mmap(-1, _TOLD_BYTES * words)).cast("Q")


def _spin(us: int) -> None:
    end = monotonic_ns() + us * 1_000
    while monotonic_ns() < end:
        pass
