"""
The flow that the kernels work on: jobs in levels, machines' units under them, a price on each level.

A *level* is a place, counted from the end, on any machine of a kind. A job of length ``p`` in place ``k`` costs
``k p``; the ``n``-th job of a level takes the ``n``-th machine to be ready and costs its ready time (a *unit* of the
level).
Lengths and ready times are multiplied by ``scale`` and each length has 1 added, so that among equal sums the one with
the least sum of places is the smaller.

Level ``(t, k)`` has the index ``t * reach + k - 1``; the index after the last one is the sink.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
