"""
What the loop works on: the jobs, the queues, the rules, all as arrays.

A job *waits* in the heap of its queue and gang size, or *runs* in the list of its queue, both in the order of its key.
Of a heap only the first can be next to start, because the others need as many devices; so nobody looks at the rest.
Every running job, and with promotion every waiting one, has an alarm: the time at which something about it changes.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from penstock_sim.counted.kernels.heap import NOBODY, Floats, Heap, Ints, new_heap, table

BY_SUBMISSION: Final = 0
BY_DEVICES: Final = 1
BY_TIME_LEFT: Final = 2
BY_SERVICE_LEFT: Final = 3
BY_START: Final = 4
BY_ENTRY: Final = 5
BY_INDEX: Final = 6

WAITING: Final = 0
RUNNING: Final = 1
OVER: Final = 2

RUNS_FROM: Final = -(2.0**52)
"""With ``BY_START``: keys from here up are of jobs that run, in the order of their starts."""
"""From 0 down they are of jobs that were preempted, the last ones first; above are those that entered, in order."""


class Rules(NamedTuple):
    """What is set."""

    by: int
    strict: bool  # whether a walk stops at the first job that does not fit
    preempts: bool
    devices: int
    overhead_s: float
    tick_s: float
    knob: float  # infinite: no promotion


class Samples(NamedTuple):
    """The columns of what is known of lengths, (N + 1,) each."""

    length: Floats  # rising; the last is infinite
    before: Floats  # sum of those before


class Jobs(NamedTuple):
    """The columns of J jobs; what has happened is as of ``since_s``."""

    submit_s: Floats
    gpus: Ints
    gang: Ints  # number of the gang size
    weight: Floats  # of a second against the limits
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


class Queues(NamedTuple):
    """The columns of K queues."""

    limit: Floats  # at which a job leaves it; infinite for the last
    turn: Ints  # number of the queue that is served first, second, …
    fresh: Floats  # index of a job that has just entered, with the floor added
    floor: Floats
    first: Ints  # of those that run
    last: Ints
    held: Ints  # devices
    waiting: Ints


class Sim(NamedTuple):
    """All of it."""

    rules: Rules
    jobs: Jobs
    queues: Queues
    sizes: Ints  # (C,) gang sizes, rising
    samples: Samples
    wait: Heap  # heap `queue * C + size`
    alarm: Heap  # one heap, keys are seconds
    counters: Ints  # (COUNTERS,) those below
    due: Ints  # (J,) room for the jobs whose alarms ring
    stopped: Ints  # (J,) and for those that are preempted


COME: Final = 0
"""Jobs that were submitted."""
DONE: Final = 1
EVENTS: Final = 2
STARTS: Final = 3
"""Keys given to jobs that started, and below to those that were preempted and that entered a queue."""
STOPS: Final = 4
ENTRIES: Final = 5
BUSY: Final = 6
"""Devices in use, and below jobs that wait."""
WAITERS: Final = 7
COUNTERS: Final = 8


def new_jobs(submit_s: Floats, gpus: Ints, duration_s: Floats, weight: Floats, sizes: Ints) -> Jobs:
    """Return jobs, by submission, none of which has been submitted yet."""
    jobs = table(Jobs, len(submit_s))
    jobs.submit_s[:], jobs.gpus[:], jobs.left_s[:], jobs.weight[:] = submit_s, gpus, duration_s, weight
    jobs.gang[:] = np.searchsorted(sizes, gpus)
    jobs.start_s[:] = jobs.end_s[:] = math.nan
    return jobs


def new_queues(limits: Floats, turn: Ints) -> Queues:
    """Return empty queues."""
    queues = table(Queues, len(turn))
    queues.limit[:-1], queues.limit[-1], queues.turn[:] = limits, math.inf, turn
    queues.first[:] = queues.last[:] = NOBODY
    return queues


def new_samples(lengths_gpu_s: Floats) -> Samples:
    """Return what is known of lengths."""
    samples = table(Samples, len(lengths_gpu_s) + 1)
    samples.length[:-1], samples.length[-1] = np.sort(lengths_gpu_s), math.inf
    samples.before[1:] = np.cumsum(samples.length[:-1])
    return samples


def new_sim(rules: Rules, jobs: Jobs, queues: Queues, samples: Samples) -> Sim:
    """Return a simulation before its first event."""
    sizes, number = np.unique(jobs.gpus).astype(np.int64), len(jobs.gpus)
    wait, alarm = new_heap(len(queues.limit) * len(sizes), number), new_heap(1, number)
    counters, due = np.zeros(COUNTERS, dtype=np.int64), np.zeros(number, dtype=np.int64)
    return Sim(rules, jobs, queues, sizes, samples, wait, alarm, counters, due, due.copy())
