"""
What it takes to wake another process up on this machine, without lanes: a byte through a pipe, and a bare futex.

Shell code, as :mod:`penstock.measuring` is: it forks, spins and reads clocks.
"""

from __future__ import annotations

import mmap
import os
from itertools import pairwise
from statistics import median
from time import monotonic_ns
from typing import Final

from penstock_lanes.futex import Word

_WORD_BYTES: Final = 8
_LINE_BYTES: Final = 64
_PATIENCE_S: Final = 1.0


def pipe_us(count: int) -> float:
    """Return what a byte takes from one process to another that waits for it."""
    notes = shared(count + 1)
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


def futex_us(count: int, work_us: int) -> list[float]:
    """
    Return what each wake-up takes of two processes that work in turn, and wake each other up by a futex.

    Parameters
    ----------
    count : int
        Turns of each.
    work_us : int
        How long a turn is: the longer, the deeper the other one's processor sleeps, and the colder are its caches.
    """
    notes = [shared(2 * count), shared(2 * count)]
    memory = memoryview(mmap.mmap(-1, 2 * _LINE_BYTES))
    bells = Word(memory, 0), Word(memory, _LINE_BYTES)
    child = os.fork()
    if child == 0:
        _alternate(bells[1], bells[0], first=1, work_us=work_us, notes=notes[1])
        os._exit(0)
    _alternate(bells[0], bells[1], first=0, work_us=work_us, notes=notes[0])
    os.waitpid(child, 0)
    return handed_over_us([mine.tolist() for mine in notes])


def handed_over_us(notes: list[list[int]]) -> list[float]:
    """
    Return the times from the end of one's iteration to the beginning of another's.

    Parameters
    ----------
    notes : list of list of int, nanoseconds
        Of each process: when its iterations began and ended.
    """
    spans = sorted(
        (begun, ended, number)
        for number, words in enumerate(notes)
        for begun, ended in zip(words[::2], words[1::2], strict=True)
    )
    return [(after[0] - before[1]) / 1e3 for before, after in pairwise(spans) if before[2] != after[2]]


def shared(words: int) -> memoryview:
    """Return words of 8 bytes that forked children share."""
    return memoryview(mmap.mmap(-1, _WORD_BYTES * words)).cast("Q")


def spin(us: int) -> None:
    """Keep the processor busy."""
    end = monotonic_ns() + us * 1_000
    while monotonic_ns() < end:
        pass


def _alternate(mine: Word, other: Word, *, first: int, work_us: int, notes: memoryview) -> None:
    """Work whenever the bell says how many turns the other one has had, this turn's one included if it goes first."""
    for index in range(len(notes) // 2):
        while (seen := mine.value.value) < index + first:
            mine.wait(seen, _PATIENCE_S)
        notes[2 * index] = monotonic_ns()
        spin(work_us)
        notes[2 * index + 1] = monotonic_ns()
        other.value.value = index + 1
        other.wake()
