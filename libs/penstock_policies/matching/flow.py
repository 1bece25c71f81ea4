"""
The flow on which the matching's kernels work: jobs in levels, units of machines under them, a price on each level.

A *level* is a place, counted from the end, on any machine of a kind. A job of length ``p`` in place ``k`` costs
``k p``. The ``n``-th job of a level takes the ``n``-th machine to be ready, a *unit* of the level, and costs its ready
time. Lengths and ready times are multiplied by ``scale`` and each length has 1 added, so that among equal sums the one
with the least sum of places is the smaller. Level ``(t, k)`` has the index ``t * reach + k - 1``; the index after the
last one is the sink.

:class:`Flow` and :class:`Paths` are the arrays. :func:`kernel` marks a function as a kernel, compiled once for all
processes that can read the same directory. :func:`enter`, :func:`leave` and the functions after them put jobs into
levels and take them out, and keep the lengths of each level's jobs. :func:`choose` and :func:`cheapest` find the
cheapest level for a job at given prices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock_policies.kernels import Kernel, Kernels

Ints = npt.NDArray[np.int64]
Hints = npt.NDArray[np.int32]

UNFIT: Final = int(np.iinfo(np.int64).max)
"""Length of a job on a kind that it does not fit."""

FAR: Final = int(np.iinfo(np.int64).max)
NOWHERE: Final = -1


class Flow(NamedTuple):
    """
    The arrays of a flow over J jobs, T kinds, reach levels a kind, L = T * reach.

    Reduced costs are never negative: for a job in level l and any level m,
    ``cost(m) + price[m] >= cost(l) + price[l]``;
    and ``ready of the last unit taken <= price[l] - price[sink] <= ready of the next``.
    """

    length: Ints  # (J, T)
    ready: Ints  # (T, most machines), sorted, of which the first `machines[t]` count
    machines: Ints  # (T,)
    depth: Ints  # (T,) levels looked at; the last one holds nothing
    price: Ints  # (L + 1,)
    units: Ints  # (L,) machines taken
    held: Ints  # (L,) jobs in it
    excess: Ints  # (L + 1,) jobs minus units; at the sink units minus jobs
    level: Ints  # (J,) NOWHERE for a job that is not there
    first: Ints  # (L,) list of the jobs in a level
    after: Ints  # (J,)
    before: Ints  # (J,)
    shortest: Ints  # (L,) jobs
    longest: Ints  # (L,)
    floor: Ints  # (L,) length of the shortest job in the level or, where that is empty, in the nearest one above
    hint: Hints  # (J, T) the last place whose floor was at least the job's length, when last looked up


class Paths(NamedTuple):
    """Room for one search for shortest paths; between searches all distances are FAR."""

    distance: Ints  # (L + 1,)
    via: Ints  # (L + 1,) node before
    mover: Ints  # (L + 1,) job moved from there, NOWHERE for an arc of the sink
    offer: Ints  # (L + 1,) distance by way of the level that is looked at, FAR between looks
    offerer: Ints  # (L + 1,) job that would move
    heap: Ints  # (L + 1,) nodes, nearest first
    slot: Ints  # (L + 1,) where in the heap a node is; NOWHERE when it is not


def new_flow(length: Ints, ready: Ints, machines: Ints, reach: int) -> Flow:
    """Return a flow that holds nothing."""
    jobs, kinds = length.shape
    levels = kinds * reach
    return Flow(
        length=length,
        ready=ready,
        machines=machines,
        depth=np.ones(kinds, dtype=np.int64),
        price=np.zeros(levels + 1, dtype=np.int64),
        units=np.zeros(levels, dtype=np.int64),
        held=np.zeros(levels, dtype=np.int64),
        excess=np.zeros(levels + 1, dtype=np.int64),
        level=np.full(jobs, NOWHERE, dtype=np.int64),
        first=np.full(levels, NOWHERE, dtype=np.int64),
        after=np.full(jobs, NOWHERE, dtype=np.int64),
        before=np.full(jobs, NOWHERE, dtype=np.int64),
        shortest=np.full(levels, NOWHERE, dtype=np.int64),
        longest=np.full(levels, NOWHERE, dtype=np.int64),
        floor=np.full(levels, FAR, dtype=np.int64),
        hint=np.zeros((jobs, kinds), dtype=np.int32),
    )


def new_paths(levels: int) -> Paths:
    """Return room for searches over so many levels."""
    return Paths(
        distance=np.full(levels + 1, FAR, dtype=np.int64),
        via=np.full(levels + 1, NOWHERE, dtype=np.int64),
        mover=np.full(levels + 1, NOWHERE, dtype=np.int64),
        offer=np.full(levels + 1, FAR, dtype=np.int64),
        offerer=np.full(levels + 1, NOWHERE, dtype=np.int64),
        heap=np.zeros(levels + 1, dtype=np.int64),
        slot=np.full(levels + 1, NOWHERE, dtype=np.int64),
    )


def deeper(flow: Flow) -> Flow:
    """Return the same flow with room for twice as many places."""
    kinds, old = flow.machines.size, flow.first.size // flow.machines.size
    grown = new_flow(flow.length, flow.ready, flow.machines, 2 * old)
    for name in ("units", "held", "first", "shortest", "longest", "floor", "price", "excess"):
        was, now = getattr(flow, name), getattr(grown, name)
        now[: kinds * 2 * old].reshape(kinds, 2 * old)[:, :old] = was[: kinds * old].reshape(kinds, old)
    grown.price[-1], grown.excess[-1] = flow.price[-1], flow.excess[-1]
    level = np.where(flow.level >= 0, flow.level // max(old, 1) * 2 * old + flow.level % max(old, 1), NOWHERE)
    return grown._replace(depth=flow.depth, level=level, after=flow.after, before=flow.before, hint=flow.hint)


def roomier(flow: Flow) -> Flow:
    """Return the same flow with room for twice as many jobs, at least 16."""
    more = max(16, flow.level.size)
    kinds = flow.machines.size
    return flow._replace(
        length=np.vstack([flow.length, np.full((more, kinds), UNFIT)]),
        level=np.append(flow.level, np.full(more, NOWHERE)),
        after=np.append(flow.after, np.full(more, NOWHERE)),
        before=np.append(flow.before, np.full(more, NOWHERE)),
        hint=np.vstack([flow.hint, np.zeros((more, kinds), dtype=np.int32)]),
    )


KERNELS: Final = Kernels("matching", Path(__file__).parent)


def kernel(function: Kernel) -> Kernel:
    """Return the function as a kernel: compiled, or interpreted while ``KERNELS`` say so."""
    return KERNELS.switched(function)


@kernel
def enter(flow: Flow, job: int, level: int) -> None:
    """Put a job into a level."""
    first = flow.first[level]
    flow.after[job] = first
    flow.before[job] = NOWHERE
    if first != NOWHERE:
        flow.before[first] = job
    flow.first[level] = job
    flow.level[job] = level
    flow.held[level] += 1
    kind = level // (flow.first.size // flow.machines.size)
    length = flow.length[job, kind]
    if first == NOWHERE or length < flow.length[flow.shortest[level], kind]:
        flow.shortest[level] = job
    if first == NOWHERE or length > flow.length[flow.longest[level], kind]:
        flow.longest[level] = job


@kernel
def leave(flow: Flow, job: int) -> None:
    """Take a job out of its level."""
    level, after, before = flow.level[job], flow.after[job], flow.before[job]
    if before == NOWHERE:
        flow.first[level] = after
    else:
        flow.after[before] = after
    if after != NOWHERE:
        flow.before[after] = before
    flow.level[job] = NOWHERE
    flow.held[level] -= 1
    if job == flow.shortest[level] or job == flow.longest[level]:
        _measure(flow, level)


@kernel
def _measure(flow: Flow, level: int) -> None:
    """Look for the shortest and the longest job of a level."""
    kind = level // (flow.first.size // flow.machines.size)
    job = flow.first[level]
    shortest, longest = job, job
    while job != NOWHERE:
        if flow.length[job, kind] < flow.length[shortest, kind]:
            shortest = job
        if flow.length[job, kind] > flow.length[longest, kind]:
            longest = job
        job = flow.after[job]
    flow.shortest[level], flow.longest[level] = shortest, longest


@kernel
def update_floor(flow: Flow, level: int) -> None:
    """Note the floor of a level that was changed, and of the empty ones below it."""
    reach = flow.first.size // flow.machines.size
    kind = level // reach
    floor = flow.floor[level - 1] if level > kind * reach else FAR
    if flow.held[level] > 0:
        floor = flow.length[flow.shortest[level], kind]
    flow.floor[level] = floor
    level += 1
    while level < kind * reach + flow.depth[kind] and flow.held[level] == 0:
        flow.floor[level] = floor
        level += 1


@kernel
def take_units(flow: Flow, level: int) -> None:
    """Take the machines under a level that its price pays for; of those it just pays for, as many as it has jobs."""
    flow.units[level] = min(paid_units(flow, level), max(_gaining_units(flow, level), flow.held[level]))


@kernel
def paid_units(flow: Flow, level: int) -> int:
    """Return how many machines are ready at a level's price, or before."""
    kind = level // (flow.first.size // flow.machines.size)
    offer = flow.price[level] - flow.price[-1]
    return int(np.searchsorted(flow.ready[kind, : flow.machines[kind]], offer, side="right"))


@kernel
def _gaining_units(flow: Flow, level: int) -> int:
    """Return how many machines are ready before a level's price."""
    kind = level // (flow.first.size // flow.machines.size)
    offer = flow.price[level] - flow.price[-1]
    return int(np.searchsorted(flow.ready[kind, : flow.machines[kind]], offer, side="left"))


@kernel
def arrive(flow: Flow, job: int, level: int) -> None:
    """Put one more job into its level, which then has one job too many."""
    enter(flow, job, level)
    update_floor(flow, level)
    flow.excess[level] += 1
    flow.excess[-1] -= 1


@kernel
def depart(flow: Flow, job: int) -> None:
    """Take a job out of its level, which then has one job too few."""
    level = flow.level[job]
    leave(flow, job)
    update_floor(flow, level)
    flow.excess[level] -= 1
    flow.excess[-1] += 1


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
