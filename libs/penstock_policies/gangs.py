"""
Gangs in the matching: jobs that take several machines of one kind at once. An extension of our own.

AlloX matches jobs of one machine. Here a gang of ``g`` counts as GPU-time: a kind with ``m`` machines serves ``m``
machine-seconds a second, so a job of length ``p`` on ``g`` machines is a load of ``p g`` on a kind of rate ``m``, as
one of length ``p g / m`` on a single machine that is the whole kind. :func:`assign_gangs` matches these loads exactly,
which gives each job its kind, and then places whole gangs, kind by kind, at the earliest time at which enough machines
are free together, in rank order. Among few jobs, moving a single one to another kind is tried as well. Jobs of one
machine alone are matched as AlloX does, exactly.

This is a heuristic, not an optimum: what it costs against trying everything is in ``docs/matching.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from penstock_policies.matching import IMPOSSIBLE_US, Ints, assign, starts_us

MOVED: Final = 64
"""Most jobs among which moves of single ones to other kinds are tried."""


@dataclass(frozen=True)
class GangSchedule:
    """
    When and where each gang runs.

    Attributes
    ----------
    kind : (J,) int array
        Index of the kind; -1 for a gang that no kind can hold.
    start_us : (J,) int array, microseconds
        -1 for a gang that no kind can hold.
    machines : J tuples of ints
        The machines of that kind that it takes; empty for a gang that no kind can hold.
    total_us : int
        Sum of the completion times, microseconds.
    """

    kind: Ints
    start_us: Ints
    machines: tuple[tuple[int, ...], ...]
    total_us: int


def assign_gangs(processing_us: Ints, gpus: Ints, ready_us: Sequence[Ints], rank: Ints | None = None) -> GangSchedule:
    """
    Return a schedule of whole gangs with a small sum of completion times.

    Parameters
    ----------
    processing_us : (J, T) int array, microseconds
        Length of each job on each kind with all of its machines; the largest int64 where it does not fit. Devices of
        different memory are kinds of their own.
    gpus : (J,) int array
        Machines that each job takes at once: an elastic job's present number.
    ready_us : T arrays of (m_t,) ints, microseconds
        When each machine of each kind is next free, at least 0.
    rank : (J,) int array, optional
        Lower first within a kind. Without it, gangs go by rising GPU-time there, which keeps the sum small.

    Raises
    ------
    ValueError
        If a shape is wrong, a time negative, or a gang smaller than one.
    OverflowError
        If the times are so long that 64 bits do not hold their sums.

    Notes
    -----
    The matching's time (see :func:`penstock_policies.matching.assign`) and O(G log m) to place, with G machines taken
    in all; as often as there are jobs and kinds, where they are at most :data:`MOVED`.

    Examples
    --------
    The gang of two takes the kind that has two; the single job does not wait behind it.

    >>> found = assign_gangs(np.array([[4, 9], [5, 6]]), np.array([2, 1]), [np.array([0, 1]), np.array([0])])
    >>> found.kind.tolist(), found.start_us.tolist(), found.machines, found.total_us
    ([0, 1], [1, 0], ((0, 1), (0,)), 11)
    """
    _check(processing_us, gpus, ready_us)
    holds = np.array([len(ready) for ready in ready_us], dtype=np.int64)[None, :] >= gpus[:, None]
    length_us = np.where(holds, processing_us, IMPOSSIBLE_US)
    if (gpus == 1).all():
        found = assign(length_us, ready_us)
        machines = tuple((machine,) if machine >= 0 else () for machine in found.machine.tolist())
        return GangSchedule(found.kind, starts_us(length_us, ready_us, found), machines, found.total_us)
    kind = _kinds(length_us, gpus, ready_us)
    shop = _Shop(length_us, gpus, ready_us, rank)
    if kind.size <= MOVED:
        shop.improve(kind)
    return shop.schedule(kind)


def _kinds(length_us: Ints, gpus: Ints, ready_us: Sequence[Ints]) -> Ints:
    """Match each job by its GPU-time to a kind, taken as one machine that serves at the rate of all."""
    load_us = length_us.copy()
    for kind, ready in enumerate(ready_us):
        fits = length_us[:, kind] != IMPOSSIBLE_US
        load_us[fits, kind] = -(-length_us[fits, kind] * gpus[fits] // max(1, len(ready)))
    whole = [np.array([int(ready.mean())] if len(ready) else [], dtype=np.int64) for ready in ready_us]
    return assign(load_us, whole).kind


@dataclass(frozen=True)
class _Shop:
    """Places whole gangs on the machines of their kinds."""

    length_us: Ints
    gpus: Ints
    ready_us: Sequence[Ints]
    rank: Ints | None

    def improve(self, kind: Ints) -> None:
        """Move single jobs to other kinds while the sum of completion times falls by it: once through all jobs."""
        totals = [self._ends_us(kind, t) for t in range(len(self.ready_us))]
        for job in np.flatnonzero(kind >= 0):
            for other in np.flatnonzero(self.length_us[job] != IMPOSSIBLE_US):
                own = kind[job]
                if other == own:
                    continue
                kind[job] = other
                fresh = self._ends_us(kind, int(own)), self._ends_us(kind, int(other))
                if sum(fresh) < totals[own] + totals[other]:
                    totals[own], totals[other] = fresh
                else:
                    kind[job] = own

    def schedule(self, kind: Ints) -> GangSchedule:
        """Return the schedule in which each job runs on its kind."""
        start_us = np.full(kind.size, -1, dtype=np.int64)
        machines: list[tuple[int, ...]] = [()] * kind.size
        total_us = 0
        for t in range(len(self.ready_us)):
            for job, start, taken in self._placed(kind, t):
                start_us[job], machines[job] = start, tuple(sorted(taken))
                total_us += start + int(self.length_us[job, t])
        return GangSchedule(kind, start_us, tuple(machines), total_us)

    def _ends_us(self, kind: Ints, t: int) -> int:
        return sum(start + int(self.length_us[job, t]) for job, start, _ in self._placed(kind, t))

    def _placed(self, kind: Ints, t: int) -> Iterator[tuple[int, int, list[int]]]:
        """Yield jobs of a kind with start and machines, in rank order, each where enough are free together first."""
        free = [(ready, machine) for machine, ready in enumerate(self.ready_us[t].tolist())]
        heapify(free)
        mine = np.flatnonzero(kind == t)
        order = self.length_us[mine, t] * self.gpus[mine] if self.rank is None else self.rank[mine]
        for job in mine[np.argsort(order, kind="stable")].tolist():
            taken = [heappop(free) for _ in range(int(self.gpus[job]))]
            start = taken[-1][0]
            for _, machine in taken:
                heappush(free, (start + int(self.length_us[job, t]), machine))
            yield job, start, [machine for _, machine in taken]


def _check(processing_us: Ints, gpus: Ints, ready_us: Sequence[Ints]) -> None:
    if processing_us.ndim != 2 or processing_us.shape != (len(gpus), len(ready_us)):
        msg = (
            f"processing_us has the shape {processing_us.shape}: expected ({len(gpus)}, {len(ready_us)}), a row for"
            " each of gpus and a column for each of ready_us"
        )
        raise ValueError(msg)
    if (gpus < 1).any():
        raise ValueError("a gang takes fewer than 1 machine: give each job's present number of machines in gpus")
    if (processing_us < 0).any():
        raise ValueError("a length is negative: give microseconds of at least 0")
