"""From levels back to machines, and the proof that nothing is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock_policies.levels.choice import choose
from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.state import NOWHERE, Flow, Ints


@dataclass(frozen=True)
class Assignment:
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


def read_off(processing_us: Ints, ready_us: Sequence[Ints], flow: Flow, scale: int) -> Assignment:
    """Return the schedule that a balanced flow stands for."""
    jobs, kinds = processing_us.shape
    reach = max(1, flow.first.size // max(1, kinds))
    level = flow.level[:jobs]
    kind = np.where(level != NOWHERE, level // reach, -1)
    place = np.where(level != NOWHERE, level % reach + 1, 0)
    machine = np.full(jobs, -1, dtype=np.int64)
    seat_on_machines(flow.length, flow.ready, level, reach, machine)
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
    return Assignment(kind=kind, place=place, machine=machine, total_us=total, price_us=tuple(prices), gap_us=gap)


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
def seat_on_machines(length: Ints, ready: Ints, level: Ints, reach: int, machine: Ints) -> None:
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
