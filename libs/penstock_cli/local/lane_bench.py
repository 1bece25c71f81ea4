"""
Bench of lanes: what turns cost on this machine.

:func:`measure` runs two processes in a lane with a broker of their own, and for comparison a byte through a pipe and a
bare futex. It also measures what the killing of a process costs its neighbour in a lane: from the signal to the
neighbour's iteration. The kernel frees the memory of a process before anybody hears of its end, so this is measured
with little memory and with much.

This is shell code: it forks, spins and reads clocks, which is the whole of its work. Call it from a process that has
one thread.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic_ns, process_time_ns, sleep
from typing import Final

import msgspec

from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup
from penstock_sharing.token import FifoOwner, LaneClient, LaneClientId, TokenBroker
from penstock_sharing.token.shared_page import FutexWord

STEP_US: Final = 300
"""An iteration where hand-overs are measured: short, so that there are many, and long enough to name the next."""
TURN_STEPS: Final = 5
LONG_STEP_US: Final = 10_000
KILLED_MIB: Final = 200
_BATCH: Final = 1_000
_KILLINGS: Final = 15
_LOOK_S: Final = 0.0005


class TimeSpread(msgspec.Struct, frozen=True):
    """Median and 99th percentile of many measurements."""

    median: float
    p99: float


class TimeMedian(msgspec.Struct, frozen=True):
    """Median of many measurements whose tail is the machine's."""

    median: float


class TimeRange(msgspec.Struct, frozen=True):
    """Median and maximum of a few measurements."""

    median: float
    most: float


class LaneCosts(msgspec.Struct, frozen=True, kw_only=True):
    """
    What turns cost on a machine.

    Attributes
    ----------
    handover_us : TimeSpread
        From the end of one process's iteration to the beginning of the other's; a turn is one iteration of
        :data:`STEP_US`.
    turn_handover_us : TimeSpread
        The same where a turn is :data:`TURN_STEPS` of them, which is the least that an executor gives.
    futex_us, turn_futex_us : TimeSpread
        The same without lanes: two processes that do as much, and wake each other up by a bare futex.
    uncontended_us : TimeMedian
        A boundary of a process that is alone in its lane.
    pipe_us : TimeMedian
        From the writing of a byte to its being read by another process.
    overhead_at_10ms : float
        What a lane of one adds to iterations of 10 ms, as a fraction of them.
    killed_ms, killed_large_ms : TimeRange
        From the killing of a process in its turn to its neighbour's iteration; large: one that has :data:`KILLED_MIB`
        in memory, which the kernel frees before anybody hears of its end.
    handovers : int
        How many were measured.
    """

    handover_us: TimeSpread
    turn_handover_us: TimeSpread
    futex_us: TimeSpread
    turn_futex_us: TimeSpread
    uncontended_us: TimeMedian
    pipe_us: TimeMedian
    overhead_at_10ms: float
    killed_ms: TimeRange
    killed_large_ms: TimeRange
    handovers: int


def measure(iterations: int = 2_000, long_iterations: int = 100) -> LaneCosts:
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
    return LaneCosts(
        handover_us=_spread(handovers),
        turn_handover_us=_spread(_handovers(iterations, TURN_STEPS)),
        futex_us=_spread(_futex_us(iterations // 2, STEP_US)),
        turn_futex_us=_spread(_futex_us(iterations // 4, TURN_STEPS * STEP_US)),
        uncontended_us=TimeMedian(median=_uncontended_us(50)),
        pipe_us=TimeMedian(median=_pipe_us(iterations)),
        overhead_at_10ms=_overhead(long_iterations),
        killed_ms=_extent([_killed_ms(0) for _ in range(killings)]),
        killed_large_ms=_extent([_killed_ms(KILLED_MIB) for _ in range(killings)]),
        handovers=len(handovers),
    )


def _spread(values: list[float]) -> TimeSpread:
    return TimeSpread(median=median(values), p99=sorted(values)[math.ceil(0.99 * len(values)) - 1])


def _extent(values: list[float]) -> TimeRange:
    return TimeRange(median=median(values), most=max(values))


def _handovers(iterations: int, steps: int) -> list[float]:
    """Return what each hand-over took, in microseconds, in turns of so many iterations."""

    here = _shared(2)

    def job(number: int) -> Callable[[Path, memoryview], None]:
        return lambda path, notes: _take_turns(path, number, iterations, notes, here)

    return _handed_over_us(_in_lane([job(0), job(1)], 2 * iterations, steps))


def _take_turns(path: Path, number: int, iterations: int, notes: memoryview, here: memoryview) -> None:
    """Take turns with another process; the first one is not measured, and no other begins before both have had it."""
    member = LaneClient(str(path), LaneClientId(f"j{number}", 1, 0))
    member.enter()
    member.exit()
    here[number] = 1
    while not all(here):
        sleep(_LOOK_S)
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
        member = LaneClient(str(path), LaneClientId("alone", 1, 0))
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
        with Session(ProcessSetup(job_id="alone", lanes=str(path))) as session:
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


_WORD_BYTES: Final = 8
_LINE_BYTES: Final = 64
_WAIT_S: Final = 1.0


def _pipe_us(count: int) -> float:
    """Return the microseconds that a byte takes through a pipe to a process that waits for it."""
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


def _futex_us(count: int, work_us: int) -> list[float]:
    """
    Return the time of each wake-up of two processes that work in turn and wake each other by a futex.

    The longer a turn is, the deeper the other one's processor sleeps, and the colder are its caches.
    """
    notes = [_shared(2 * count), _shared(2 * count)]
    memory = memoryview(mmap.mmap(-1, 2 * _LINE_BYTES))
    futexes = FutexWord(memory, 0), FutexWord(memory, _LINE_BYTES)
    child = os.fork()
    if child == 0:
        _alternate(futexes[1], futexes[0], first=1, work_us=work_us, notes=notes[1])
        os._exit(0)
    _alternate(futexes[0], futexes[1], first=0, work_us=work_us, notes=notes[0])
    os.waitpid(child, 0)
    return _handed_over_us([mine.tolist() for mine in notes])


def _handed_over_us(notes: list[list[int]]) -> list[float]:
    """Return the times between the iterations of two processes; notes are when each began and ended, in ns."""
    spans = sorted(
        (begun, ended, number)
        for number, words in enumerate(notes)
        for begun, ended in zip(words[::2], words[1::2], strict=True)
    )
    return [(after[0] - before[1]) / 1e3 for before, after in pairwise(spans) if before[2] != after[2]]


def _shared(words: int) -> memoryview:
    """Return memory of so many 8-byte words that forked children share."""
    return memoryview(mmap.mmap(-1, _WORD_BYTES * words)).cast("Q")


def _spin(us: int) -> None:
    end = monotonic_ns() + us * 1_000
    while monotonic_ns() < end:
        pass


def _alternate(mine: FutexWord, other: FutexWord, *, first: int, work_us: int, notes: memoryview) -> None:
    """Work whenever the futex says how many turns the other one has had, this turn's one included if it goes first."""
    for index in range(len(notes) // 2):
        while (seen := mine.value.value) < index + first:
            mine.wait(seen, _WAIT_S)
        notes[2 * index] = monotonic_ns()
        _spin(work_us)
        notes[2 * index + 1] = monotonic_ns()
        other.value.value = index + 1
        other.wake()


_SLEPT_S: Final = 0.02
"""In which the neighbour falls asleep, having asked."""
_KILL_LOOK_S: Final = 0.001
_MIB: Final = 1 << 20
_HOLDS, _ASKS, _KILLED, _RUNS = range(4)


def _killed_ms(holding_mib: int) -> float:
    """Kill a process that holds so much memory in its turn; return the time until its neighbour has a turn."""
    words = _shared(4)

    def holder(path: Path, _: memoryview) -> None:
        member = LaneClient(str(path), LaneClientId("killed", 1, 0))
        member.enter()
        held = b"x" * (holding_mib * _MIB)
        words[_HOLDS] = len(held) + 1
        _wait_for(words, _ASKS)
        sleep(_SLEPT_S)
        words[_KILLED] = monotonic_ns()
        os.kill(os.getpid(), signal.SIGKILL)

    def neighbour(path: Path, _: memoryview) -> None:
        _wait_for(words, _HOLDS)
        member = LaneClient(str(path), LaneClientId("neighbour", 1, 0))
        words[_ASKS] = 1
        member.enter()
        words[_RUNS] = monotonic_ns()
        member.close()

    _in_lane([holder, neighbour], 1, ends=(-signal.SIGKILL, 0))
    return (words[_RUNS] - words[_KILLED]) / 1e6


def _wait_for(words: memoryview, index: int) -> None:
    while not words[index]:
        sleep(_KILL_LOOK_S)


LANE: Final = "0/0"


def _in_lane(
    jobs: Sequence[Callable[[Path, memoryview], None]], words: int, steps: int = 1, ends: Sequence[int] = ()
) -> list[list[int]]:
    """
    Run each job, called with the broker's path and memory for its notes, in a process of its own; return the notes.

    All are in one lane, with turns of so many iterations; a process that ends otherwise than ``ends`` says, or than by
    0, is an error.
    """
    notes = [_shared(words) for _ in jobs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lanes.sock"
        broker = TokenBroker(path)
        broker.open(LANE)
        broker.set_quantum(LANE, steps)
        children = [_fork(broker, partial(job, path, mine)) for job, mine in zip(jobs, notes, strict=True)]
        owner = FifoOwner(broker, lambda _: [LANE])
        owner.serve(lambda: owner.gone == len(jobs))
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        owner.close()
        broker.close()
    if statuses != list(ends or [0] * len(jobs)):
        raise RuntimeError(f"a measured process ended with {statuses}; expected {list(ends) or 0}")
    return [mine.tolist() for mine in notes]


def _fork(broker: TokenBroker, job: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            broker.close()
            job()
            code = 0
        finally:
            os._exit(code)
    return child
