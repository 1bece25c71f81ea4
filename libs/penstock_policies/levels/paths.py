"""
Move jobs along shortest paths from levels with too many to places with too few, until none has: the exact part.

Successive shortest paths with prices (Dijkstra on reduced costs). The nodes are the levels and the sink, not the jobs:
an arc from level to level stands for the job that loses least by the move.
"""

from __future__ import annotations

from typing import Final

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.heap import drop_first, lift
from penstock_policies.levels.seats import enter, leave
from penstock_policies.levels.state import FAR, NOWHERE, UNFIT, Flow, Paths

SETTLED: Final = -2

BALANCED: Final = 0
TOO_DEEP: Final = 1


@kernel
def balance(flow: Flow, paths: Paths) -> int:
    """
    Make the flow optimal: BALANCED; or stop where a kind needs another level than it has: TOO_DEEP.

    The reduced costs must not be negative at the start, and are not at either end.
    """
    reach = flow.first.size // flow.machines.size
    while True:
        for kind in range(flow.machines.size):
            if not _deepened(flow, kind, reach):
                return TOO_DEEP
        target = _search(flow, paths)
        if target == NOWHERE:
            return BALANCED
        _reprice(flow, paths, paths.distance[target])
        _shift(flow, paths, target)
        _forget(paths)


@kernel
def _deepened(flow: Flow, kind: int, reach: int) -> bool:
    """Keep an empty level at the end of a kind; say whether there was one left."""
    last = kind * reach + flow.depth[kind] - 1
    while flow.held[last] > 0 or flow.units[last] > 0:
        if flow.depth[kind] == reach:
            return False
        last += 1
        flow.depth[kind] += 1
        flow.price[last] = min(flow.price[last - 1], flow.ready[kind, 0] + flow.price[-1])
    return True


@kernel
def _search(flow: Flow, paths: Paths) -> int:
    """Find the nearest node that lacks something from any that has too much."""
    sink = flow.first.size
    size = 0
    for node in range(sink + 1):
        if flow.excess[node] > 0:
            paths.distance[node] = 0
            paths.via[node] = NOWHERE
            size = lift(paths, size, node)
    while size > 0:
        node = int(paths.heap[0])
        if flow.excess[node] < 0:
            return node
        size = drop_first(paths, size)
        paths.slot[node] = SETTLED
        if node == sink:
            size = _from_sink(flow, paths, size)
        else:
            size = _to_sink(flow, paths, size, node)
            size = _to_levels(flow, paths, size, node)
    return NOWHERE


@kernel
def _from_sink(flow: Flow, paths: Paths, size: int) -> int:
    """Reach every level that could give its last machine back."""
    reach = flow.first.size // flow.machines.size
    sink = flow.first.size
    for kind in range(flow.machines.size):
        for level in range(kind * reach, kind * reach + flow.depth[kind]):
            if flow.units[level] > 0 and paths.slot[level] != SETTLED:
                cost = flow.price[level] - flow.price[sink] - flow.ready[kind, flow.units[level] - 1]
                size = _reach(paths, size, sink, level, NOWHERE, paths.distance[sink] + cost)
    return size


@kernel
def _to_sink(flow: Flow, paths: Paths, size: int, level: int) -> int:
    """Reach the sink if the level has a machine left."""
    reach = flow.first.size // flow.machines.size
    kind, sink, units = level // reach, flow.first.size, flow.units[level]
    if units == flow.machines[kind] or paths.slot[sink] == SETTLED:
        return size
    cost = flow.ready[kind, units] + flow.price[sink] - flow.price[level]
    return _reach(paths, size, level, sink, NOWHERE, paths.distance[level] + cost)


@kernel
def _to_levels(flow: Flow, paths: Paths, size: int, level: int) -> int:
    """Reach the other levels by moving each of the jobs."""
    reach = flow.first.size // flow.machines.size
    own, own_place = level // reach, level % reach + 1
    job = flow.first[level]
    while job != NOWHERE:
        saved = own_place * flow.length[job, own] + flow.price[level] - paths.distance[level]
        for kind in range(flow.machines.size):
            length = flow.length[job, kind]
            if length == UNFIT:
                continue
            for other in range(kind * reach, kind * reach + flow.depth[kind]):
                cost = (other - kind * reach + 1) * length + flow.price[other] - saved
                if cost < paths.distance[other] and paths.slot[other] != SETTLED:
                    size = _reach(paths, size, level, other, job, cost)
        job = flow.after[job]
    return size


@kernel
def _reach(paths: Paths, size: int, via: int, node: int, mover: int, distance: int) -> int:  # noqa: PLR0917
    """Come to a node, if that is nearer than before."""
    if distance >= paths.distance[node]:
        return size
    paths.distance[node] = distance
    paths.via[node] = via
    paths.mover[node] = mover
    return lift(paths, size, node)


@kernel
def _reprice(flow: Flow, paths: Paths, far: int) -> None:
    """Raise the prices of the nodes nearer than ``far`` by what they are nearer, which leaves the way there free."""
    for node in range(flow.price.size):
        if paths.distance[node] < far:
            flow.price[node] += far - paths.distance[node]


@kernel
def _shift(flow: Flow, paths: Paths, target: int) -> None:
    """Move a job, or a machine, along every arc of the path to a node."""
    sink = flow.first.size
    flow.excess[target] += 1
    node = target
    while paths.via[node] != NOWHERE:
        via, job = paths.via[node], paths.mover[node]
        if job != NOWHERE:
            leave(flow, job)
            enter(flow, job, node)
        elif via == sink:
            flow.units[node] -= 1
        else:
            flow.units[via] += 1
        node = via
    flow.excess[node] -= 1


@kernel
def _forget(paths: Paths) -> None:
    for node in range(paths.distance.size):
        paths.distance[node] = FAR
        paths.slot[node] = NOWHERE
