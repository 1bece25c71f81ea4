"""
The kernels' arrays: the jobs, the queues and the rules of the counting event loop.

:func:`kernel` compiles a function once for all processes that can read the same directory.

A job *waits* in the heap of its queue and gang size, or *runs* in the list of its queue, both in the order of its key.
Only the first job of a heap can be next to start, as the others need as many devices; the rest is not looked at.
Every running job, and with promotion every waiting one, has an alarm: the time at which something about it changes.

A :class:`Heap` holds as many pairing heaps as it has roots, and any job can be taken out of it. A job is in at most one
heap of a :class:`Heap`. Jobs are compared by two keys and then by number.

References
----------
Fredman, Sedgewick, Sleator, Tarjan: The pairing heap, Algorithmica 1, 1986.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
import numpy.typing as npt

from penstock_policies.kernels import Kernel, Kernels

KERNELS: Final = Kernels("counting", Path(__file__).parent)


def kernel(function: Kernel) -> Kernel:
    """
    Return a function that is compiled for the machine at its first call, or loaded from the kernels' directory.

    Kernels are compiled without numba's run time: no kernel makes an array, and counting references to arrays that
    kernels hand on took two thirds of the time.
    """
    return KERNELS.compiled(function, _nrt=False)


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NO_JOB: Final = -1

Columns = TypeVar("Columns", bound=tuple[npt.NDArray[np.generic], ...])


class Heap(NamedTuple):
    """The links and keys of J jobs, and the heaps that they are in."""

    links: HeapLinks
    root: Ints  # (H,) first of each heap, NO_JOB where it is empty


class HeapLinks(NamedTuple):
    """The columns of a record array, (J,) each."""

    child: Ints
    after: Ints  # next sibling
    before: Ints  # sibling before, or parent of a first child
    key: Floats
    tie: Floats


def new_heap(heaps: int, jobs: int) -> Heap:
    """Return empty heaps for a number of jobs."""
    return Heap(table(HeapLinks, jobs), np.full(heaps, NO_JOB, dtype=np.int64))


def table(columns: type[Columns], rows: int) -> Columns:
    """
    Return a record array of zeros with the named columns.

    It is one array, and not one for each column, because numba counts references to each array that it hands on.
    """
    types = get_type_hints(columns, include_extras=True)
    dtype = np.dtype([(name, np.int64 if kind == Ints else np.float64) for name, kind in types.items()])
    return cast("Columns", np.zeros(rows, dtype=dtype).view(np.recarray))


@kernel
def precedes(links: HeapLinks, one: int, other: int) -> bool:
    """Return whether a job comes before another."""
    if links.key[one] != links.key[other]:
        return bool(links.key[one] < links.key[other])
    if links.tie[one] != links.tie[other]:
        return bool(links.tie[one] < links.tie[other])
    return one < other


@kernel
def push(heap: Heap, which: int, job: int) -> None:
    """Put a job into a heap."""
    links = heap.links
    links.child[job] = links.after[job] = links.before[job] = NO_JOB
    heap.root[which] = _meld(links, heap.root[which], job)


@kernel
def remove(heap: Heap, which: int, job: int) -> None:
    """Take a job out of its heap, the first or any other."""
    links = heap.links
    rest = _pair(links, links.child[job])
    if heap.root[which] == job:
        heap.root[which] = rest
        return
    before, after = links.before[job], links.after[job]
    if links.child[before] == job:
        links.child[before] = after
    else:
        links.after[before] = after
    if after != NO_JOB:
        links.before[after] = before
    heap.root[which] = _meld(links, heap.root[which], rest)


@kernel
def _meld(links: HeapLinks, one: int, other: int) -> int:
    if one == NO_JOB:
        return other
    if other == NO_JOB:
        return one
    if precedes(links, other, one):
        one, other = other, one
    first = links.child[one]
    links.after[other], links.before[other] = first, one
    if first != NO_JOB:
        links.before[first] = other
    links.child[one] = other
    links.after[one] = links.before[one] = NO_JOB
    return one


@kernel
def _pair(links: HeapLinks, first: int) -> int:
    """Meld siblings two by two, and then the pairs from the last to the first; return the first of them all."""
    pairs = NO_JOB
    while first != NO_JOB:
        second = links.after[first]
        rest = NO_JOB
        if second != NO_JOB:
            rest = links.after[second]
            links.after[second] = NO_JOB
        links.after[first] = NO_JOB
        pair = _meld(links, first, second)
        links.after[pair] = pairs
        pairs = pair
        first = rest
    found = NO_JOB
    while pairs != NO_JOB:
        rest = links.after[pairs]
        links.after[pairs] = NO_JOB
        found = _meld(links, found, pairs)
        pairs = rest
    if found != NO_JOB:
        links.before[found] = NO_JOB
    return found


BY_KEY: Final = 0
"""Jobs go by the policy's key within a queue."""
BY_FALLING_KEY: Final = 1
"""They go by a key that falls as they run, of all of them alike."""
BY_OVERTAKING_KEY: Final = 2
"""They go by a key that falls by as much as they have devices: those that run overtake each other."""
BY_START: Final = 3
"""They go by their starts: who runs, then who was preempted, then who entered the queue."""
BY_INDEX: Final = 4
"""They go by the Gittins index."""

WAITING: Final = 0
RUNNING: Final = 1
OVER: Final = 2

RUNS_FROM: Final = -(2.0**52)
"""With ``BY_START``: keys from here up are of jobs that run, in the order of their starts."""
"""From 0 down they are of jobs that were preempted, the last ones first; above are those that entered, in order."""


class KernelRules(NamedTuple):
    """The settings of a simulation."""

    by: int
    strict: bool  # whether a walk stops at the first job that does not fit
    preempts: bool
    devices: int
    overhead_s: float
    tick_s: float
    knob: float  # infinite: no promotion


class LengthColumns(NamedTuple):
    """The columns of the known lengths, (N + 1,) each."""

    length: Floats  # rising; the last is infinite
    before: Floats  # sum of those before


class JobColumns(NamedTuple):
    """The columns of J jobs; their times count up to ``since_s``."""

    submit_s: Floats
    gpus: Ints
    gang: Ints  # number of the gang size
    weight: Floats  # of a second against the limits
    key_fixed: Floats  # of the key, what stays
    key_entered: Floats  # and its weights of the time of entering the queue, and of what is left
    key_left: Floats
    left_s: Floats
    served_s: Floats  # since the last promotion
    waited_s: Floats  # since the last promotion
    held_s: Floats  # devices held, all runs together
    since_s: Floats
    queue: Ints
    phase: Ints
    before: Ints  # in the list of running ones
    after: Ints
    start_s: Floats
    end_s: Floats
    preemptions: Ints
    promotions: Ints


class QueueColumns(NamedTuple):
    """The columns of K queues."""

    limit: Floats  # at which a job leaves it; infinite for the last
    turn: Ints  # number of the queue that is served first, second, …
    fresh: Floats  # index of a job that has just entered, with the floor added
    floor: Floats
    first: Ints  # of those that run
    last: Ints
    held: Ints  # devices
    waiting: Ints


class KernelState(NamedTuple):
    """The whole state of a simulation."""

    rules: KernelRules
    jobs: JobColumns
    queues: QueueColumns
    sizes: Ints  # (C,) gang sizes, rising
    samples: LengthColumns
    wait: Heap  # heap `queue * C + size`
    alarm: Heap  # one heap, keys are seconds
    counters: Ints  # (COUNTERS,) those below
    due: Ints  # (J,) room for the jobs whose alarms ring
    stopped: Ints  # (J,) and for those that are preempted


SUBMITTED: Final = 0
"""Jobs that were submitted."""
ENDED: Final = 1
EVENTS: Final = 2
STARTS: Final = 3
"""Keys given to jobs that started, and below to those that were preempted and that entered a queue."""
STOPS: Final = 4
ENTRIES: Final = 5
BUSY: Final = 6
"""Devices in use, and below jobs that wait."""
WAITING_JOBS: Final = 7
COUNTERS: Final = 8


def new_jobs(submit_s: Floats, gpus: Ints, duration_s: Floats, weight: Floats, sizes: Ints) -> JobColumns:
    """Return the columns of jobs, by submission, before any of them is submitted."""
    jobs = table(JobColumns, len(submit_s))
    jobs.submit_s[:], jobs.gpus[:], jobs.left_s[:], jobs.weight[:] = submit_s, gpus, duration_s, weight
    jobs.gang[:] = np.searchsorted(sizes, gpus)
    jobs.start_s[:] = jobs.end_s[:] = math.nan
    return jobs


def new_queues(limits: Floats, turn: Ints) -> QueueColumns:
    """Return empty queues."""
    queues = table(QueueColumns, len(turn))
    queues.limit[:-1], queues.limit[-1], queues.turn[:] = limits, math.inf, turn
    queues.first[:] = queues.last[:] = NO_JOB
    return queues


def new_samples(lengths_gpu_s: Floats) -> LengthColumns:
    """Return the columns of the known lengths."""
    samples = table(LengthColumns, len(lengths_gpu_s) + 1)
    samples.length[:-1], samples.length[-1] = np.sort(lengths_gpu_s), math.inf
    samples.before[1:] = np.cumsum(samples.length[:-1])
    return samples


def new_sim(rules: KernelRules, jobs: JobColumns, queues: QueueColumns, samples: LengthColumns) -> KernelState:
    """Return a simulation before its first event."""
    sizes, number = np.unique(jobs.gpus).astype(np.int64), len(jobs.gpus)
    wait, alarm = new_heap(len(queues.limit) * len(sizes), number), new_heap(1, number)
    counters, due = np.zeros(COUNTERS, dtype=np.int64), np.zeros(number, dtype=np.int64)
    return KernelState(rules, jobs, queues, sizes, samples, wait, alarm, counters, due, due.copy())
