"""
Move jobs along shortest paths from levels with too many to places with too few, until none has: the exact part.

Successive shortest paths with prices (Dijkstra on reduced costs). The nodes are the levels and the sink, not the jobs:
an arc from level to level stands for the job that loses least by the move.
"""

from __future__ import annotations

from typing import Final

from penstock_policies.levels.arcs import from_level, from_sink
from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.heap import drop_first, lift
from penstock_policies.levels.seats import enter, lay_floor, leave
from penstock_policies.levels.state import FAR, NOWHERE, Flow, Paths

BALANCED: Final = 0
TOO_DEEP: Final = 1


@kernel
def balance(flow: Flow, paths: Paths) -> int:
    """
    Make the flow optimal: BALANCED; or stop where a kind needs another level than it has: TOO_DEEP.

    The reduced costs must not be negative at the start, and are not at either end.
    """
    while True:
        for kind in range(flow.machines.size):
            if not _deepened(flow, kind):
                return TOO_DEEP
        target = _search(flow, paths)
        if target == NOWHERE:
            return BALANCED
        _reprice(flow, paths, paths.distance[target])
        _shift(flow, paths, target)
        paths.distance[:] = FAR
        paths.slot[:] = NOWHERE


@kernel
def _deepened(flow: Flow, kind: int) -> bool:
    """Keep an empty level at the end of a kind; say whether there was one left."""
    reach = flow.first.size // flow.machines.size
    last = kind * reach + flow.depth[kind] - 1
    while flow.held[last] > 0 or flow.units[last] > 0:
        if flow.depth[kind] == reach:
            return False
        last += 1
        flow.depth[kind] += 1
        flow.price[last] = min(flow.price[last - 1], flow.ready[kind, 0] + flow.price[-1])
        lay_floor(flow, last)
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
        size = from_sink(flow, paths, size) if node == sink else from_level(flow, paths, size, node)
    return NOWHERE


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
            lay_floor(flow, via)
            lay_floor(flow, node)
        elif via == sink:
            flow.units[node] -= 1
        else:
            flow.units[via] += 1
        node = via
    flow.excess[node] -= 1
