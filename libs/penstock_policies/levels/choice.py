"""Which place of which kind is cheapest for a job, at given prices."""

from __future__ import annotations

import numpy as np

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.state import FAR, NOWHERE, UNFIT, Flow, Ints


@kernel
def choose(length: Ints, price: Ints, depth: Ints, cost: Ints, level: Ints) -> None:
    """
    Find each job's cheapest level.

    Parameters
    ----------
    length : (J, T) int array
    price : (T, reach) int array
    depth : (T,) int array
        How many places of each kind there are to choose from.
    cost, level : (J,) int arrays
        Written: what the level costs and which one it is; FAR and NOWHERE for a job that fits none.

    Notes
    -----
    O(J T log reach).
    """
    kinds, reach = price.shape
    cost[:] = FAR
    level[:] = NOWHERE
    for kind in range(kinds):
        if depth[kind] == 0:
            continue
        corner = _corners(price[kind, : depth[kind]])
        for job in range(cost.size):
            own = length[job, kind]
            if own == UNFIT:
                continue
            place = _cheapest_place(price[kind], corner, own)
            here = place * own + price[kind, place - 1]
            if here < cost[job]:
                cost[job], level[job] = here, kind * reach + place - 1


@kernel
def cheapest(flow: Flow, job: int) -> int:
    """Return the cheapest level for one job; NOWHERE if it fits no kind that has machines."""
    reach = flow.first.size // flow.machines.size
    best, found = FAR, NOWHERE
    for kind in range(flow.machines.size):
        length = flow.length[job, kind]
        if length == UNFIT or flow.machines[kind] == 0:
            continue
        for place in range(1, flow.depth[kind] + 1):
            level = kind * reach + place - 1
            cost = place * length + flow.price[level]
            if cost < best:
                best, found = cost, level
    return found


@kernel
def _corners(price: Ints) -> Ints:
    """Return the places that are cheapest for some length, rising: the corners of the prices' lower hull."""
    found = np.empty(price.size, dtype=np.int64)
    size = 0
    for place in range(1, price.size + 1):
        while size > 1 and not _bends(price, found[size - 2], found[size - 1], place):
            size -= 1
        found[size] = place
        size += 1
    return found[:size]


@kernel
def _bends(price: Ints, left: int, middle: int, right: int) -> bool:
    """Say whether the price falls faster before a place than after it; exactly, without a product that overflows."""
    fall, width = price[left - 1] - price[middle - 1], middle - left
    next_fall, next_width = price[middle - 1] - price[right - 1], right - middle
    whole, next_whole = fall // width, next_fall // next_width
    if whole != next_whole:
        return bool(whole > next_whole)
    return bool((fall - whole * width) * next_width > (next_fall - next_whole * next_width) * width)


@kernel
def _cheapest_place(price: Ints, corner: Ints, length: int) -> int:
    """Return the place with the least ``place * length + price``."""
    low, high = 0, corner.size - 1
    while low < high:
        middle = (low + high) // 2
        near, far = corner[middle], corner[middle + 1]
        if (far - near) * length >= price[near - 1] - price[far - 1]:
            high = middle
        else:
            low = middle + 1
    return int(corner[low])
