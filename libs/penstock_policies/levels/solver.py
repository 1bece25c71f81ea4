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

_MOST: Final = 2**60  # costs below this can be added to prices in 64 bits


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
        If the times are so long that 64 bits do not hold their sums.

    Notes
    -----
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
        self._longest_us = _longest(self._processing_us)
        self._flow: Flow
        self._paths: Paths
        self._begin(self._reach())

    def add(self, processing_us: Ints) -> int:
        """
        Add a job; return its row in the assignment.

        Parameters
        ----------
        processing_us : (T,) int array, microseconds
        """
        row = np.asarray(processing_us, dtype=np.int64)
        _check(row[None, :], self._ready_us)
        longest_us = max(self._longest_us, _longest(row))
        self._refuse_overflow(self._flow.first.size // max(1, len(self._ready_us)), longest_us)
        self._longest_us = longest_us
        job = self._used
        if job == self._flow.level.size:
            self._flow = roomier(self._flow)
            self._processing_us = np.vstack([self._processing_us, np.full_like(self._flow.length[job:], UNFIT)])
        self._used += 1
        self._processing_us[job] = row
        self._flow.length[job] = _scaled(row, self._scale)
        if len(self._ready_us):
            level = cheapest(self._flow, job)
            if level != NOWHERE:
                arrive(self._flow, job, level)
                self._balance()
        return job

    def remove(self, job: int) -> None:
        """Take a job away, by its row: it ended, started or was cancelled. Its row stays, unmatched."""
        if self._flow.level[job] != NOWHERE:
            depart(self._flow, job)
            self._balance()
        self._processing_us[job] = UNFIT
        self._flow.length[job] = UNFIT

    def set_ready(self, kind: int, machine: int, ready_us: int) -> None:
        """Let a machine be free at another time. Costs a look at every job."""
        before = self._ready_us[kind][machine]
        self._ready_us[kind][machine] = ready_us
        try:
            _check(self._processing_us[:0], self._ready_us)
            self._refuse_overflow(self._flow.first.size // len(self._ready_us), self._longest_us)
        except (OverflowError, ValueError):
            self._ready_us[kind][machine] = before
            raise
        self._flow.ready[kind, : len(self._ready_us[kind])] = np.sort(self._ready_us[kind]) * self._scale
        reseat(self._flow)
        if self._full():
            self._begin(2 * self._flow.first.size // len(self._ready_us))
        self._balance(seat_rest)

    def assignment(self) -> Assignment:
        """Return the schedule of all jobs, in the order of their rows."""
        return read_off(self._processing_us[: self._used], self._ready_us, self._flow, self._scale)

    def _reach(self) -> int:
        machines = max(1, sum(len(ready) for ready in self._ready_us))
        return min(self._used + 2, 4 * self._used // machines + 16)

    def _begin(self, reach: int) -> None:
        """Guess the prices, seat the jobs and balance, from nothing."""
        self._scale = _scale(reach, self._most_us(reach, self._longest_us))
        self._refuse_overflow(reach, self._longest_us)
        machines = np.array([len(ready) for ready in self._ready_us], dtype=np.int64)
        ready = np.zeros((machines.size, machines.max(initial=1)), dtype=np.int64)
        for kind, times in enumerate(self._ready_us):
            ready[kind, : len(times)] = np.sort(times) * self._scale
        length = _scaled(self._processing_us, self._scale)
        self._flow = new_flow(length, ready, machines, reach)
        self._paths = new_paths(self._flow.first.size)
        if not machines.size:
            return
        deepest = 2 * reach if self._most_us(2 * reach, self._longest_us) * self._scale < _MOST else reach
        set_prices(self._flow, deepest)
        seat_all(self._flow)
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
            reach = 2 * self._flow.first.size // self._flow.machines.size
            if reach >= self._scale:
                self._begin(reach)
                return
            self._refuse_overflow(reach, self._longest_us)
            self._flow = deeper(self._flow)
            self._paths = new_paths(self._flow.first.size)

    def _most_us(self, reach: int, longest_us: int) -> int:
        """Return more than any cost of a place."""
        return reach * (longest_us + 1) + max((int(ready.max(initial=0)) for ready in self._ready_us), default=0)

    def _refuse_overflow(self, reach: int, longest_us: int) -> None:
        most_us = self._most_us(reach, longest_us)
        if most_us * self._scale >= _MOST:
            msg = (
                f"a queue of {reach} jobs of up to {longest_us} us may end after {most_us} us: sums of such times, with"
                " places to break ties, do not fit in 64 bits; give shorter times or fewer jobs for each machine"
            )
            raise OverflowError(msg)


def _scale(reach: int, most_us: int) -> int:
    """Return by how much to multiply times: more than any place, with room to grow, so that places only break ties."""
    roomy = max(1024, 1 << (8 * reach).bit_length())
    return roomy if most_us * roomy < _MOST else reach + 1


def _scaled(processing_us: Ints, scale: int) -> Ints:
    fits = processing_us != UNFIT
    return np.where(fits, np.where(fits, processing_us, 0) * scale + 1, UNFIT)


def _longest(processing_us: Ints) -> int:
    return int(processing_us[processing_us != UNFIT].max(initial=0))


def _check(processing_us: Ints, ready_us: Sequence[Ints]) -> None:
    if processing_us.ndim != 2 or processing_us.shape[1] != len(ready_us):
        msg = f"processing_us has the shape {processing_us.shape}: expected (jobs, {len(ready_us)}), a column a kind"
        raise ValueError(msg)
    if (processing_us < 0).any() or any((np.asarray(ready) < 0).any() for ready in ready_us):
        msg = "a time is negative: give lengths and ready times of at least 0 us, counted from now"
        raise ValueError(msg)
