"""The exact matching: begin with prices, balance, read off machines and the proof; and keep it as jobs come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from penstock_policies.levels.answer import Assignment, read_off
from penstock_policies.levels.choice import cheapest
from penstock_policies.levels.coarse import set_prices
from penstock_policies.levels.paths import TOO_DEEP, balance
from penstock_policies.levels.seats import arrive, depart
from penstock_policies.levels.start import reseat, seat_all, seat_rest
from penstock_policies.levels.state import NOWHERE, UNFIT, Flow, Ints, Paths, deeper, new_flow, new_paths, roomier

MOST_US: Final = 2**60
"""Places times the longest length plus the latest ready time have to be below this, for 64 bits to hold sums."""


def assign(processing_us: Ints, ready_us: Sequence[Ints]) -> Assignment:
    """
    Return the schedule with the least sum of completion times; among equals one with the least sum of places.

    The tie-break starts work on idle machines instead of queueing it behind other work.

    Parameters
    ----------
    processing_us : (J, T) int array, microseconds
        Length of each job on each kind, at least 0; the largest int64 where it does not fit.
    ready_us : T arrays of (m_t,) ints, microseconds
        When each machine of each kind is next free, at least 0.

    Raises
    ------
    ValueError
        If a shape is wrong or a time is negative.
    OverflowError
        If places times the longest time reach :data:`MOST_US`: a queue of 13 million jobs of a day on one machine.

    Notes
    -----
    The total is exact wherever it is given. The tie-break is while places, squared, times the longest time are below
    :data:`MOST_US` (3,600 jobs of a day on one machine, a year on 200 machines); beyond, ties are broken as they come.
    There is room for four times as many places as the jobs would fill evenly, and those count.

    Exact for busy machines too. O(J T log m) to begin, O(J T) at worst for each job that the beginning left unseated:
    about one in a hundred, one in twenty where many jobs are alike, and most of them where these have to share kinds
    of fewer than 8 machines. Memory O(J T + levels).

    References
    ----------
    Le et al., AlloX: Compute allocation in hybrid clusters, EuroSys 2020, section 4.

    Examples
    --------
    Two kinds of two idle machines each; queueing the first job behind the third would cost the same.

    >>> p = np.array([[10, 20], [15, 25], [20, 100], [20, 90]])
    >>> found = assign(p, [np.zeros(2, np.int64), np.zeros(2, np.int64)])
    >>> found.total_us, found.gap_us, found.kind.tolist(), found.place.tolist()
    (85, 0, [1, 1, 0, 0], [1, 1, 1, 1])
    """
    return KeptMatching(processing_us, ready_us).assignment()


class KeptMatching:
    """
    An optimal matching that stays optimal as jobs come and go and machines become free earlier or later.

    Parameters
    ----------
    processing_us, ready_us
        As for :func:`assign`.

    Examples
    --------
    >>> kept = KeptMatching(np.array([[4], [7]]), [np.array([10])])
    >>> kept.add(np.array([5])), kept.assignment().total_us
    (2, 59)
    >>> kept.remove(1)
    >>> kept.assignment().place.tolist()
    [2, 0, 1]
    """

    def __init__(self, processing_us: Ints, ready_us: Sequence[Ints]) -> None:
        _check(processing_us, ready_us)
        self._processing_us = np.array(processing_us, dtype=np.int64)
        self._ready_us = [np.array(ready, dtype=np.int64) for ready in ready_us]
        self._used = len(processing_us)
        self._vacant: list[int] = []
        self._longest_us = _longest(self._processing_us)
        self._flow: Flow
        self._paths: Paths
        self._begin(self._reach())

    def add(self, processing_us: Ints) -> int:
        """
        Add a job; return its row in the assignment: that of a job taken away before, or a new one.

        Parameters
        ----------
        processing_us : (T,) int array, microseconds
        """
        row = np.asarray(processing_us, dtype=np.int64)
        _check(row[None, :], self._ready_us)
        longest_us = max(self._longest_us, _longest(row))
        self._refuse_overflow(self._places(), longest_us)
        self._longest_us = longest_us
        job = self._vacant.pop() if self._vacant else self._new_row()
        self._processing_us[job] = row
        self._flow.length[job] = _scaled(row, self._scale)
        if self._overflows():
            self._begin(self._places())
        elif len(self._ready_us):
            level = cheapest(self._flow, job)
            if level != NOWHERE:
                arrive(self._flow, job, level)
                self._balance()
        return job

    def remove(self, job: int) -> None:
        """Take a job away, by its row: it ended, started or was cancelled. The row is unmatched until a job gets it."""
        if job in self._vacant or not 0 <= job < self._used:
            msg = f"there is no job in row {job}: give a row that add returned, or one of the first, and only once"
            raise ValueError(msg)
        if self._flow.level[job] != NOWHERE:
            depart(self._flow, job)
            self._balance()
        self._processing_us[job] = UNFIT
        self._flow.length[job] = UNFIT
        self._vacant.append(job)

    def set_ready(self, kind: int, machine: int, ready_us: int) -> None:
        """Let a machine be free at another time. Costs a look at every job."""
        before = self._ready_us[kind][machine]
        self._ready_us[kind][machine] = ready_us
        try:
            _check(self._processing_us[:0], self._ready_us)
            self._refuse_overflow(self._places(), self._longest_us)
        except (OverflowError, ValueError):
            self._ready_us[kind][machine] = before
            raise
        if self._overflows():
            self._begin(self._places())
            return
        self._flow.ready[kind, : len(self._ready_us[kind])] = np.sort(self._ready_us[kind]) * self._scale
        reseat(self._flow)
        if self._full():
            self._begin(2 * self._places())
        self._balance(seat_rest)

    def assignment(self) -> Assignment:
        """Return the schedule of all jobs, in the order of their rows."""
        return read_off(self._processing_us[: self._used], self._ready_us, self._flow, self._scale)

    def _new_row(self) -> int:
        job = self._used
        if job == self._flow.level.size:
            self._flow = roomier(self._flow)
            self._processing_us = np.vstack([self._processing_us, np.full_like(self._flow.length[job:], UNFIT)])
        self._used += 1
        return job

    def _places(self) -> int:
        """Return for how many places of each kind there is room."""
        return self._flow.first.size // max(1, len(self._ready_us))

    def _reach(self) -> int:
        machines = max(1, sum(len(ready) for ready in self._ready_us))
        return min(self._used + 2, 4 * self._used // machines + 16)

    def _begin(self, reach: int) -> None:
        """Guess the prices, seat the jobs and balance, from nothing."""
        self._longest_us = _longest(self._processing_us)
        self._refuse_overflow(reach, self._longest_us)
        self._scale = _scale(reach, self._most_us(reach, self._longest_us))
        machines = np.array([len(ready) for ready in self._ready_us], dtype=np.int64)
        ready = np.zeros((machines.size, machines.max(initial=1)), dtype=np.int64)
        for kind, times in enumerate(self._ready_us):
            ready[kind, : len(times)] = np.sort(times) * self._scale
        length = _scaled(self._processing_us, self._scale)
        self._flow = new_flow(length, ready, machines, reach)
        self._paths = new_paths(self._flow.first.size)
        if not machines.size:
            return
        deepest = 2 * reach if self._most_us(2 * reach, self._longest_us) * self._scale < MOST_US else reach
        seat_all(self._flow, set_prices(self._flow, deepest))
        if self._full():
            self._begin(2 * reach)
        self._balance(seat_rest)

    def _full(self) -> bool:
        """Say whether a kind has no empty place left."""
        flow = self._flow
        if not flow.machines.size:
            return False
        last = flow.first.size // flow.machines.size * np.arange(1, flow.machines.size + 1) - 1
        return bool((flow.held[last] > 0).any() or (flow.units[last] > 0).any())

    def _balance(self, work: Callable[[Flow, Paths], int] = balance) -> None:
        while self._flow.machines.size and work(self._flow, self._paths) == TOO_DEEP:
            reach = 2 * self._places()
            self._refuse_overflow(reach, self._longest_us)
            if self._scale > 1 and (reach >= self._scale or self._overflows(reach)):
                self._begin(reach)
                return
            self._flow = deeper(self._flow)
            self._paths = new_paths(self._flow.first.size)

    def _most_us(self, reach: int, longest_us: int) -> int:
        """Return more than any cost of a place."""
        return reach * (longest_us + 1) + max((int(ready.max(initial=0)) for ready in self._ready_us), default=0)

    def _overflows(self, reach: int | None = None) -> bool:
        """Say whether costs at the present scale are too large."""
        return self._most_us(reach or self._places(), self._longest_us) * self._scale >= MOST_US

    def _refuse_overflow(self, reach: int, longest_us: int) -> None:
        most_us = self._most_us(reach, longest_us)
        if most_us >= MOST_US:
            msg = (
                f"a queue of {reach} jobs of up to {longest_us} us may end after {most_us} us: expected less than"
                f" {MOST_US} us, for sums of such times do not fit in 64 bits; give shorter times or fewer jobs for"
                " each machine"
            )
            raise OverflowError(msg)


def _scale(reach: int, most_us: int) -> int:
    """
    Return by how much to multiply times: more than any place, with room to grow, so that places only break ties.

    Where no such multiple fits, 1: then ties are broken as they come.
    """
    roomy = max(1024, 1 << (8 * reach).bit_length())
    for scale in (roomy, reach + 1):
        if most_us * scale < MOST_US:
            return scale
    return 1


def _scaled(processing_us: Ints, scale: int) -> Ints:
    fits = processing_us != UNFIT
    place = 1 if scale > 1 else 0
    return np.where(fits, np.where(fits, processing_us, 0) * scale + place, UNFIT)


def _longest(processing_us: Ints) -> int:
    return int(processing_us[processing_us != UNFIT].max(initial=0))


def _check(processing_us: Ints, ready_us: Sequence[Ints]) -> None:
    if processing_us.ndim != 2 or processing_us.shape[1] != len(ready_us):
        msg = f"processing_us has the shape {processing_us.shape}: expected (jobs, {len(ready_us)}), a column a kind"
        raise ValueError(msg)
    if (processing_us < 0).any() or any((np.asarray(ready) < 0).any() for ready in ready_us):
        msg = "a time is negative: give lengths and ready times of at least 0 us, counted from now"
        raise ValueError(msg)
