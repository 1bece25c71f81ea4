"""The best schedule in one kind, shortest job first on the machine that is free first, and the prices it implies."""

from __future__ import annotations

import numpy as np

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.state import Ints


@kernel
def price_kind(lengths: Ints, ready: Ints, price: Ints) -> None:
    """
    Write the prices of a kind's places when it has these jobs.

    Parameters
    ----------
    lengths : (n,) int array, rising
    ready : (m,) int array, rising
    price : (reach,) int array
        Written. Jobs that a machine has beyond ``reach`` are left out.
    """
    reach = price.size
    taken = _machines_in_use(lengths, ready, reach)
    low, high = np.full(reach + 1, ready[0]), np.full(reach + 1, ready[0])
    small, large = np.zeros(reach + 1, dtype=np.int64), np.zeros(reach + 1, dtype=np.int64)
    end = lengths.size
    used = 0
    while used < reach and taken[used] > 0 and end > 0:
        start = max(0, end - taken[used])
        small[used], large[used] = lengths[start], lengths[end - 1]
        end = start
        used += 1
    for place in range(used - 1, -1, -1):
        low[place] = max(low[place + 1] + large[place + 1], ready[taken[place] - 1])
        high[place] = high[place + 1] + small[place]
        if taken[place] < ready.size:
            high[place] = min(high[place], ready[taken[place]])
    price[:] = ready[0]
    for place in range(used):
        least, most = low[place], high[place]
        if place > 0:
            least = max(least, price[place - 1] - small[place - 1])
            most = min(most, price[place - 1] - large[place])
        price[place] = least + (most - least) // 2


@kernel
def _machines_in_use(lengths: Ints, ready: Ints, reach: int) -> Ints:
    """Return how many machines have at least 1, 2, ... reach jobs."""
    free, who = ready.copy(), np.arange(ready.size)
    done = np.zeros(ready.size, dtype=np.int64)
    for length in lengths:
        done[who[0]] += 1
        _end_later(free, who, free[0] + length)
    taken = np.zeros(reach + 1, dtype=np.int64)
    for jobs in done:
        taken[jobs if jobs < reach else reach] += 1
    for place in range(reach - 1, 0, -1):
        taken[place] += taken[place + 1]
    return taken[1:]


@kernel
def _end_later(free: Ints, who: Ints, until: int) -> None:
    """Let the first of a heap of machines be free at another time."""
    machine, at = who[0], 0
    while True:
        child = 2 * at + 1
        if child >= free.size:
            break
        if child + 1 < free.size and free[child + 1] < free[child]:
            child += 1
        if until <= free[child]:
            break
        free[at], who[at] = free[child], who[child]
        at = child
    free[at], who[at] = until, machine
