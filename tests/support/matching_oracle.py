"""Plain oracles of the matching: the expanded matrix, solved by scipy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from penstock_policies.matching import UNFIT, MatchedSchedule

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_EXACT: Final = 2.0**53  # whole numbers up to here are exact in the solver's floats


@dataclass(frozen=True)
class ExpandedSchedule:
    """
    A schedule of all jobs.

    Attributes
    ----------
    kind : (J,) int array
        Index of the kind; -1 for a job that fits no kind (or found no place within ``depth``).
    machine : (J,) int array
        Index of the machine within its kind; -1 likewise.
    place : (J,) int array
        Counted from the end: 1 runs last; 0 for an unmatched job.
    total_us : int
        Sum of the completion times of the matched jobs, microseconds.
    """

    kind: Ints
    machine: Ints
    place: Ints
    total_us: int


def assign_lsa(processing_us: Ints, ready_us: Sequence[Ints], depth: int | None = None) -> ExpandedSchedule:
    """
    Return the schedule with the least sum of completion times; among equals one with the least sum of places.

    The tie-break starts work on idle machines instead of queueing it behind other work.

    Parameters
    ----------
    processing_us : (J, T) int array, microseconds
        Length of each job on each kind, at least 0; ``UNFIT`` where it does not fit.
    ready_us : T arrays of (m_t,) ints, microseconds
        When each machine of each kind is next free; 0 for an idle one.
    depth : int, optional
        Most jobs on one machine; by default all of them. With less, jobs beyond the places stay unmatched (kind -1):
        for callers that only start the first job of each machine now.

    Notes
    -----
    O(J^3 m) at worst, with m machines in all: for tens of jobs. Exact while ``J^2`` times the total is below 2^53;
    beyond that the tie-break is dropped first.

    Examples
    --------
    Two kinds of two idle machines each; queueing the first job behind the third would cost the same.

    >>> p = np.array([[10, 20], [15, 25], [20, 100], [20, 90]])
    >>> found = assign_lsa(p, [np.zeros(2, np.int64), np.zeros(2, np.int64)])
    >>> found.total_us, found.kind.tolist(), found.place.tolist()
    (85, [1, 1, 0, 0], [1, 1, 1, 1])
    """
    jobs = processing_us.shape[0]
    slots = _Slots.expand(ready_us, jobs if depth is None else min(depth, jobs))
    none = np.full(jobs, -1, dtype=np.int64)
    kind, machine, place = none.copy(), none.copy(), np.zeros(jobs, dtype=np.int64)
    fitting = np.flatnonzero((processing_us[:, np.unique(slots.kind)] != UNFIT).any(axis=1))
    if not fitting.size:
        return ExpandedSchedule(kind=kind, machine=machine, place=place, total_us=0)
    cost = slots.cost(processing_us[fitting])
    rows, columns = linear_sum_assignment(_with_tie_break(cost, slots.place, spare=depth is not None))
    matched = columns < slots.kind.size
    rows, columns = rows[matched], columns[matched]
    chosen = fitting[rows]
    kind[chosen], machine[chosen], place[chosen] = slots.kind[columns], slots.machine[columns], slots.place[columns]
    return ExpandedSchedule(kind=kind, machine=machine, place=place, total_us=round(float(cost[rows, columns].sum())))


def starts_us(processing_us: Ints, ready_us: Sequence[Ints], found: ExpandedSchedule | MatchedSchedule) -> Ints:
    """
    Return when each job starts in a schedule; -1 for an unmatched one.

    Parameters
    ----------
    processing_us, ready_us
        As for :func:`assign_lsa`.

    Returns
    -------
    (J,) int array, microseconds

    Examples
    --------
    >>> p, ready = np.array([[4], [7]]), [np.array([10])]
    >>> starts_us(p, ready, assign_lsa(p, ready)).tolist()
    [10, 14]
    """
    starts = np.full(found.kind.size, -1, dtype=np.int64)
    until: dict[tuple[int, int], int] = {}
    for job in np.lexsort((-found.place, found.machine, found.kind)).tolist():
        kind, machine = int(found.kind[job]), int(found.machine[job])
        if kind < 0:
            continue
        starts[job] = until.get((kind, machine), int(ready_us[kind][machine]))
        until[kind, machine] = int(starts[job]) + int(processing_us[job, kind])
    return starts


def savings_us(processing_us: Ints, ready_us: Sequence[Ints], depth: int | None = None) -> list[int]:
    """
    Return what one more idle machine of each kind would take off the sum of completion times: its price.

    Solves the matching once more for each kind. With ``depth``, jobs that only then find a place count as no saving.

    Examples
    --------
    >>> savings_us(np.array([[4, 9], [4, 9]]), [np.array([0]), np.array([0])])
    [4, 0]
    """
    base = assign_lsa(processing_us, ready_us, depth)
    prices = []
    for kind in range(processing_us.shape[1]):
        more = [np.append(ready, 0) if t == kind else ready for t, ready in enumerate(ready_us)]
        found = assign_lsa(processing_us, more, depth)
        same = bool(((found.kind >= 0) == (base.kind >= 0)).all())
        prices.append(max(0, base.total_us - found.total_us) if same else 0)
    return prices


@dataclass(frozen=True)
class _Slots:
    """The columns of the expanded matrix: every place of every machine."""

    kind: Ints
    machine: Ints
    place: Ints
    ready_us: Ints

    @classmethod
    def expand(cls, ready_us: Sequence[Ints], depth: int) -> _Slots:
        counts = [len(ready) for ready in ready_us]
        kinds = np.repeat(np.arange(len(counts)), counts)
        machines = np.array([machine for count in counts for machine in range(count)], dtype=np.int64)
        ready = np.concatenate([*ready_us, np.zeros(0, dtype=np.int64)])
        return cls(
            kind=np.repeat(kinds, depth).astype(np.int64),
            machine=np.repeat(machines, depth),
            place=np.tile(np.arange(1, depth + 1, dtype=np.int64), kinds.size),
            ready_us=np.repeat(ready, depth),
        )

    def cost(self, processing_us: Ints) -> Floats:
        length_us = np.where(processing_us == UNFIT, np.inf, processing_us)[:, self.kind]
        return np.asarray(length_us * self.place + self.ready_us, dtype=np.float64)


def _with_tie_break(cost: Floats, place: Ints, *, spare: bool) -> Floats:
    """Return the cost in which a smaller sum of places wins among equals; ``spare`` adds a last resort for each job."""
    jobs = cost.shape[0]
    finite = np.where(np.isfinite(cost), cost, 0.0)
    bound = float(finite.max(axis=1).sum()) + 1.0
    largest = bound * jobs if spare else bound
    scale = jobs * int(place.max()) + 1
    cost = cost * scale + place if largest * scale < _EXACT else cost
    if not spare:
        return cost
    resort = np.where(np.eye(jobs, dtype=bool), bound * scale, np.inf)
    return np.hstack([cost, resort])
