"""When each device is next free, and how long each job would take on it: a round as the exact matching takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from penstock_events import Device, Job
from penstock_policies import matching
from penstock_policies.cluster import fits
from penstock_policies.matching import IMPOSSIBLE_US, Ints
from penstock_policies.order import Outlook
from penstock_policies.placement import Free

Busy = Callable[[], Mapping[Device, Sequence[float]]]
"""Tells, by class, in how many seconds each device in use is expected to be free; asked only where that matters."""

LONGEST_US: Final = 10**15
"""Thirty years: what takes longer is taken to take this long."""

_FITTING: Final = 2**59


@dataclass(frozen=True)
class Solved:
    """
    A window's schedule.

    Attributes
    ----------
    kind, machine : (J,) int arrays
        Class of devices and the machine within it; -1 for a job that fits none.
    starts_us : (J,) int array, microseconds from now
        -1 likewise.
    gap_us : int
        0: no schedule has a smaller sum of completion times.
    """

    kind: Ints
    machine: Ints
    starts_us: Ints
    gap_us: int


class Machines:
    """
    The devices of a pool by class of equal ones, and when each is next free.

    Parameters
    ----------
    classes : sequence of Device
        All classes there are.
    free : Free
        Idle devices.
    busy : mapping of Device to floats
        Class → in how many seconds each of its devices in use is expected to be free.
    """

    def __init__(self, classes: Sequence[Device], free: Free, busy: Mapping[Device, Sequence[float]]) -> None:
        idle = free.classes()
        self.ready_us: list[Ints] = []
        for like in classes:
            in_use = np.sort(_whole_us(np.asarray(busy.get(like, ()), dtype=np.float64)))
            self.ready_us.append(np.concatenate([np.zeros(idle.get(like, 0), dtype=np.int64), in_use]))

    def solve(self, lengths_us: Ints) -> Solved:
        """
        Return the schedule of jobs with the least sum of completion times; those that are alike start in their order.

        Parameters
        ----------
        lengths_us : (J, T) int array
            As :func:`lengths_us` gives it.
        """
        ready_us = self.nearest(len(lengths_us))
        unit = _unit(lengths_us, ready_us)
        found = matching.assign(_coarse(lengths_us, unit), [ready // unit for ready in ready_us])
        starts = begins_us(lengths_us, ready_us, found)
        seats = _seats(lengths_us, found.kind, starts)
        return Solved(found.kind[seats], found.machine[seats], starts[seats], found.gap_us)

    def occupy(self, lengths_us: Ints, found: Solved) -> None:
        """Put a schedule's jobs on their devices."""
        for column, ready in enumerate(self.ready_us):
            mine = found.kind == column
            np.add.at(ready, found.machine[mine], lengths_us[mine, column])
            ready.sort()

    def nearest(self, jobs: int) -> list[Ints]:
        """Return the times of the earliest devices of each class, as many as so many jobs could make use of."""
        return [ready[:jobs] for ready in self.ready_us]

    def savings_us(self, lengths_us: Ints) -> Ints:
        """
        Return what one more idle device of each class would take off the sum of the jobs' completion times.

        Returns
        -------
        (T,) int array, microseconds
            0 for a class of which every device is kept for somebody.

        Notes
        -----
        The duals of the matching are not these: they price the first moment of one more device, while its later places
        are worth less than they say, and places that no device is deep enough for have no price. So the matching is
        solved once with a device of each class that is free too late to be of use, and each of these in turn is let
        free at once.
        """
        ready_us = self.nearest(len(lengths_us))
        unit = _unit(lengths_us, ready_us)
        lengths, ready = _coarse(lengths_us, unit), [times // unit for times in ready_us]
        saved = np.zeros(len(ready), dtype=np.int64)
        if not lengths.size:
            return saved
        never = _most(lengths, ready)
        kept = matching.KeptMatching(lengths, [np.append(times, never) if times.size else times for times in ready])
        base_us = kept.assignment().total_us
        for column, times in enumerate(ready):
            if times.size:
                kept.set_ready(column, times.size, 0)
                saved[column] = (base_us - kept.assignment().total_us) * unit
                kept.set_ready(column, times.size, never)
        return saved


def lengths_us(jobs: Sequence[Job], classes: Sequence[Device], outlook: Outlook) -> Ints:
    """Return the (J, T) processing times, :data:`IMPOSSIBLE_US` where a job does not fit."""
    rows: dict[tuple[object, ...], int] = {}
    speeds: list[list[float]] = []  # of each workload that accepts the same devices; 0 where it does not fit
    of_job = []
    for job in jobs:
        alike = (outlook.workload(job), job.spec.kinds, job.spec.memory_bytes)
        row = rows.setdefault(alike, len(speeds))
        if row == len(speeds):
            speeds.append([outlook.speed(job, like.kind) if fits(job.spec, like) else 0.0 for like in classes])
        of_job.append(row)
    speed = np.array(speeds, dtype=np.float64).reshape(len(speeds), len(classes))[of_job]
    service_s = np.asarray(outlook.remaining(jobs), dtype=np.float64)[:, None]
    fitting = speed > 0
    return np.where(fitting, _whole_us(service_s / np.where(fitting, speed, 1.0)), IMPOSSIBLE_US)


def _whole_us(times_s: npt.NDArray[np.float64]) -> Ints:
    """Return times as whole microseconds, at least one."""
    return np.clip(np.rint(times_s * 1e6), 1, LONGEST_US).astype(np.int64)


class _Schedule(Protocol):
    """What both ways of matching give."""

    @property
    def kind(self) -> Ints: ...
    @property
    def machine(self) -> Ints: ...
    @property
    def place(self) -> Ints: ...


def begins_us(lengths_us: Ints, ready_us: Sequence[Ints], found: _Schedule) -> Ints:
    """Return when each job starts in a schedule, microseconds; -1 for an unmatched one."""
    starts = np.full(found.kind.size, -1, dtype=np.int64)
    for column, ready in enumerate(ready_us):
        mine = np.flatnonzero(found.kind == column)
        mine = mine[np.lexsort((-found.place[mine], found.machine[mine]))]
        machine = found.machine[mine]
        first = np.flatnonzero(np.diff(machine, prepend=-1))
        ended = np.cumsum(lengths_us[mine, column])
        before = ended - lengths_us[mine, column]
        queued = np.diff(np.append(first, mine.size))
        starts[mine] = ready[machine] + before - np.repeat(before[first], queued)
    return starts


def _seats(lengths_us: Ints, kind: Ints, starts_us: Ints) -> Ints:
    """Return whose seat each job takes: of jobs that are alike, the higher ranked start, and then end, earlier."""
    rows = np.arange(kind.size)
    never = np.iinfo(np.int64).max
    starts = np.where(kind < 0, never, starts_us)
    lengths = np.where(kind < 0, never, lengths_us[rows, kind])
    _, group = np.unique(lengths_us, axis=0, return_inverse=True)
    seats = rows.copy()
    seats[np.lexsort((rows, group.ravel()))] = np.lexsort((rows, lengths, starts, group.ravel()))
    return seats


def _most(lengths: Ints, ready: Sequence[Ints]) -> int:
    """Return more than any job can add to the sum, at whatever place."""
    longest = int(lengths[lengths != IMPOSSIBLE_US].max(initial=0))
    return 2 * (len(lengths) + 2) * (longest + 1) + max((int(times.max(initial=0)) for times in ready), default=0)


def _unit(lengths: Ints, ready: Sequence[Ints]) -> int:
    """
    Return in how many microseconds to count, so that all sums fit in 64 bits: 1 unless jobs take weeks.

    A thousand jobs of at most three days are counted in microseconds; the longer they are, the coarser is the count.
    """
    return 2 * _most(lengths, ready) * 4 * (len(lengths) + 3) // _FITTING + 1


def _coarse(lengths: Ints, unit: int) -> Ints:
    return lengths if unit == 1 else np.where(lengths == IMPOSSIBLE_US, lengths, -(-lengths // unit))
