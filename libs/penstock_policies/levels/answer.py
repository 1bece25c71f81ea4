"""From levels back to machines, and the proof that nothing is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.state import FAR, NOWHERE, UNFIT, Ints


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


def total_us(processing_us: Ints, ready_us: Sequence[Ints], kind: Ints, place: Ints, machine: Ints) -> int:
    """Return the sum of the completion times of the matched jobs."""
    jobs = np.flatnonzero(kind >= 0)
    total = int((processing_us[jobs, kind[jobs]] * place[jobs]).sum())
    for t, ready in enumerate(ready_us):
        total += int(ready[machine[jobs[kind[jobs] == t]]].sum())
    return total


def bound_us(processing_us: Ints, ready_us: Sequence[Ints], price_us: Sequence[Ints]) -> int:
    """
    Return the least total that the prices prove for the jobs that fit a kind with machines.

    Notes
    -----
    The dual of the matching: each job pays its cheapest level, less what the machines earn at these prices.
    O(J times levels).
    """
    paid = np.full(processing_us.shape[0], FAR, dtype=np.int64)
    earned = 0
    for t, prices in enumerate(price_us):
        if not len(ready_us[t]):
            continue
        for place, price in enumerate(prices.tolist(), start=1):
            fits = processing_us[:, t] != UNFIT
            paid[fits] = np.minimum(paid[fits], processing_us[fits, t] * place + price)
            earned += int(np.maximum(0, price - ready_us[t]).sum())
    return int(paid[paid != FAR].sum()) - earned


@kernel
def seat_on_machines(length: Ints, ready: Ints, level: Ints, reach: int, machine: Ints) -> None:
    """
    Give the jobs of each level the machines in order of readiness, the longest job to the one that is free first.

    Which of a level's jobs takes which of its machines does not change the sum; this way the last one ends early.
    """
    jobs, kinds = length.shape
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
            longest_first = members[np.argsort(-length[members, kind])]
            first_free = np.argsort(free[: members.size])
            for job, chosen in zip(longest_first, first_free):  # noqa: B905 - numba knows no strict
                machine[job] = chosen
                free[chosen] += length[job, kind]
