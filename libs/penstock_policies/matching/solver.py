"""
The exact matching, kept optimal as jobs come and go, and its proof.

:func:`assign` solves one problem; :class:`KeptMatching` stays optimal as jobs come and go. Both begin with guessed
prices (:mod:`.start_prices`), balance the flow (:mod:`.shortest_paths`), and read machines off the levels. The prices
of the result prove that no schedule is better: :attr:`MatchedSchedule.gap_us` is what is missing to the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock_policies.matching.flow import (
    KERNELS,
    NOWHERE,
    UNFIT,
    Flow,
    Ints,
    Paths,
    arrive,
    cheapest,
    choose,
    deeper,
    depart,
    kernel,
    new_flow,
    new_paths,
    roomier,
)
from penstock_policies.matching.shortest_paths import TOO_DEEP, balance
from penstock_policies.matching.start_prices import assign_all, assign_rest, reassign_all, set_prices

MOST_US: Final = 2**60
"""Places times the longest length plus the latest ready time have to be below this, for 64 bits to hold sums."""


def assign(processing_us: Ints, ready_us: Sequence[Ints]) -> MatchedSchedule:
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

    Exact for busy machines too. O(J T log m) to begin, O(J T) at worst for each job that the beginning left unassigned:
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


def warm() -> None:
    """
    Go once through everything that is compiled, on two jobs, so that no later call waits for the compiler.

    It loads what is kept, in half a second; else it compiles for some twenty seconds and keeps the result where it can.
    It may be called again and from any thread, also while the kernels are interpreted.
    """
    with KERNELS.compiling():
        kept = KeptMatching(np.array([[1, 2], [2, 3]]), [np.array([0]), np.array([1])])
        kept.remove(kept.add(np.array([1, 1])))
        kept.set_ready(0, 0, 1)
        kept.assignment()


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
        reassign_all(self._flow)
        if self._full():
            self._begin(2 * self._places())
        self._balance(assign_rest)

    def assignment(self) -> MatchedSchedule:
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
        """Guess the prices, assign the jobs and balance, from nothing."""
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
        assign_all(self._flow, set_prices(self._flow, deepest))
        if self._full():
            self._begin(2 * reach)
        self._balance(assign_rest)

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


@dataclass(frozen=True)
class MatchedSchedule:
    """
    A schedule of all jobs, with its prices.

    Attributes
    ----------
    kind : (J,) int array
        Index of the kind; -1 for a job that fits no kind that has machines.
    place : (J,) int array
        Counted from the end: 1 runs last; 0 for an unmatched job.
    machine : (J,) int array
        Index of the machine within its kind; -1 for an unmatched job.
    total_us : int
        Sum of the completion times of the matched jobs, microseconds.
    price_us : T arrays of (depth_t,) ints, microseconds
        What one more machine in that place of that kind would be worth: when it would have to be ready to be of use.
        The last one of each kind is unused.
    gap_us : int
        The total less the bound that the prices prove: 0 for an optimum.
    """

    kind: Ints
    place: Ints
    machine: Ints
    total_us: int
    price_us: tuple[Ints, ...]
    gap_us: int


def read_off(processing_us: Ints, ready_us: Sequence[Ints], flow: Flow, scale: int) -> MatchedSchedule:
    """Return the schedule that a balanced flow stands for."""
    jobs, kinds = processing_us.shape
    reach = max(1, flow.first.size // max(1, kinds))
    level = flow.level[:jobs]
    kind = np.where(level != NOWHERE, level // reach, -1)
    place = np.where(level != NOWHERE, level % reach + 1, 0)
    machine = np.full(jobs, -1, dtype=np.int64)
    assign_machines(flow.length, flow.ready, level, reach, machine)
    for t, ready in enumerate(ready_us):
        here = kind == t
        machine[here] = np.argsort(ready, kind="stable")[machine[here]]
    # A scaled price with its place added back rounds down to a price in microseconds that proves as much.
    step = 1 if scale > 1 else 0
    prices = [
        (flow.price[t * reach : t * reach + depth] - flow.price[-1] + step * np.arange(1, depth + 1)) // scale
        for t, depth in enumerate(np.where(flow.machines > 0, flow.depth, 0).tolist())
    ]
    total = _total_us(processing_us, ready_us, kind, place, machine)
    gap = total - _bound_us(processing_us, ready_us, prices)
    return MatchedSchedule(kind=kind, place=place, machine=machine, total_us=total, price_us=tuple(prices), gap_us=gap)


def _total_us(processing_us: Ints, ready_us: Sequence[Ints], kind: Ints, place: Ints, machine: Ints) -> int:
    jobs = np.flatnonzero(kind >= 0)
    total = _sum(processing_us[jobs, kind[jobs]] * place[jobs])
    return total + sum(_sum(ready[machine[jobs[kind[jobs] == t]]]) for t, ready in enumerate(ready_us))


def _bound_us(processing_us: Ints, ready_us: Sequence[Ints], price_us: Sequence[Ints]) -> int:
    """
    Return the least total that the prices prove for the jobs that fit a kind with machines.

    The dual of the matching: each job pays its cheapest level, less what the machines earn at these prices.
    """
    depth = np.array([len(prices) for prices in price_us], dtype=np.int64)
    price = np.zeros((depth.size, depth.max(initial=1)), dtype=np.int64)
    for t, prices in enumerate(price_us):
        price[t, : len(prices)] = prices
    cost, level = np.empty(len(processing_us), dtype=np.int64), np.empty(len(processing_us), dtype=np.int64)
    choose(processing_us, price, depth, cost, level)
    earned = sum(
        _sum(np.maximum(0, prices[:, None] - ready[None, :])) for prices, ready in zip(price_us, ready_us, strict=True)
    )
    return _sum(cost[level != NOWHERE]) - earned


def _sum(times: Ints) -> int:
    """Return the sum, whatever its size."""
    return (int((times >> 32).sum()) << 32) + int((times & 0xFFFFFFFF).sum())


@kernel
def assign_machines(length: Ints, ready: Ints, level: Ints, reach: int, machine: Ints) -> None:
    """
    Give the jobs of each level the machines in order of readiness, the longest job to the one that is free first.

    Which of a level's jobs takes which of its machines does not change the sum; this way the last one ends early.
    """
    jobs, kinds = level.size, length.shape[1]
    counts = np.zeros(kinds * reach + 1, dtype=np.int64)
    for job in range(jobs):
        if level[job] != NOWHERE:
            counts[level[job] + 1] += 1
    starts = counts.cumsum()
    filled = starts.copy()
    order = np.zeros(starts[-1], dtype=np.int64)
    for job in range(jobs):
        if level[job] != NOWHERE:
            order[filled[level[job]]] = job
            filled[level[job]] += 1
    for kind in range(kinds):
        free = ready[kind].copy()
        for at in range((kind + 1) * reach - 1, kind * reach - 1, -1):
            members = order[starts[at] : starts[at + 1]]
            if members.size == 0:
                continue
            longest_first = members[np.argsort(-length[members, kind], kind="mergesort")]  # stable, as interpreted
            first_free = np.argsort(free[: members.size], kind="mergesort")
            for job, chosen in zip(longest_first, first_free):  # noqa: B905 - numba knows no strict
                machine[job] = chosen
                free[chosen] += length[job, kind]
