"""
Shortest paths that make a flow optimal: the exact part of the matching.

:func:`balance` moves jobs along shortest paths from levels with too many to places with too few, until none has. It is
successive shortest paths with prices (Dijkstra on reduced costs). The nodes are the levels and the sink, not the jobs:
an arc from level to level stands for the job that loses least by the move.

:func:`from_sink` and :func:`from_level` say where a search can go on from a node. Within a kind, the jobs of a lower
place are the longer ones. So a job needs to be moved only to the level among whose jobs its length belongs: from there
on, moving that level's shortest job down or its longest job up is at least as good. That leaves a few arcs for each job
instead of one for each level.

A search keeps the nodes that it has seen in a binary heap, nearest first, in which a node can come nearer
(:func:`lift`, :func:`drop_first`).
"""

from __future__ import annotations

from typing import Final

from penstock_policies.matching.flow import FAR, NOWHERE, UNFIT, Flow, Ints, Paths, enter, kernel, leave, update_floor

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
        update_floor(flow, last)
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
            update_floor(flow, via)
            update_floor(flow, node)
        elif via == sink:
            flow.units[node] -= 1
        else:
            flow.units[via] += 1
        node = via
    flow.excess[node] -= 1


@kernel
def from_sink(flow: Flow, paths: Paths, size: int) -> int:
    """Reach every level that could give its last machine back; return the heap's new size."""
    reach = flow.first.size // flow.machines.size
    sink = flow.first.size
    for kind in range(flow.machines.size):
        for level in range(kind * reach, kind * reach + flow.depth[kind]):
            if flow.units[level] > 0:
                cost = flow.price[level] - flow.price[sink] - flow.ready[kind, flow.units[level] - 1]
                size = _reach(paths, size, sink, level, NOWHERE, paths.distance[sink] + cost)
    return size


@kernel
def from_level(flow: Flow, paths: Paths, size: int, level: int) -> int:
    """Reach the sink if the level has a machine left, and other levels by moving jobs; return the heap's new size."""
    reach = flow.first.size // flow.machines.size
    kind, sink, units = level // reach, flow.first.size, flow.units[level]
    if units < flow.machines[kind]:
        cost = flow.ready[kind, units] + flow.price[sink] - flow.price[level]
        size = _reach(paths, size, level, sink, NOWHERE, paths.distance[level] + cost)
    if flow.held[level] == 0:
        return size
    size = _along_the_kind(flow, paths, size, level)
    for other in range(flow.machines.size):
        if other != kind and flow.machines[other] > 0:
            _offer_kind(flow, paths, level, other)
            for node in range(other * reach, other * reach + flow.depth[other]):
                if paths.offer[node] < FAR:
                    size = _reach(paths, size, level, node, paths.offerer[node], paths.offer[node])
                    paths.offer[node] = FAR
    return size


@kernel
def _along_the_kind(flow: Flow, paths: Paths, size: int, level: int) -> int:
    """Move the shortest job down and the longest one up, as far as the next level with jobs."""
    reach = flow.first.size // flow.machines.size
    top = level // reach * reach
    bottom = top + flow.depth[level // reach]
    other = level + 1
    while other < bottom:
        size = _move(flow, paths, size, flow.shortest[level], other)
        if flow.held[other] > 0:
            break
        other += 1
    other = level - 1
    while other >= top:
        size = _move(flow, paths, size, flow.longest[level], other)
        if flow.held[other] > 0:
            break
        other -= 1
    return size


@kernel
def _offer_kind(flow: Flow, paths: Paths, level: int, kind: int) -> None:
    """Note the best way from a level to each level of another kind, moving each job to where its length belongs."""
    reach = flow.first.size // flow.machines.size
    own, own_place, top, depth = level // reach, level % reach + 1, kind * reach, flow.depth[kind]
    price, floor, held = flow.price[top : top + depth], flow.floor[top : top + depth], flow.held[top : top + depth]
    offer, offerer = paths.offer[top : top + depth], paths.offerer[top : top + depth]
    distance, longest = paths.distance[top : top + depth], flow.longest[top : top + depth]
    lengths, hints, after = flow.length, flow.hint, flow.after
    start = paths.distance[level] - flow.price[level]
    job = flow.first[level]
    own_before, before = UNFIT, UNFIT
    while job != NOWHERE:
        length, own_length = lengths[job, kind], lengths[job, own]
        if length != UNFIT and (length != before or own_length != own_before):  # those alike stand together mostly
            own_before, before = own_length, length
            left = start - own_place * own_length
            above = _places_above(floor, length, hints[job, kind])
            hints[job, kind] = above
            among = above < depth and lengths[longest[above], kind] > length
            other = min(above, depth - 1)
            while other >= 0:
                far = left + (other + 1) * length + price[other]
                if far < distance[other] and far < offer[other]:
                    offer[other], offerer[other] = far, job
                if among or (other < above and held[other] > 0):
                    break
                other -= 1
        job = after[job]


@kernel
def _places_above(floor: Ints, length: int, hint: int) -> int:
    """Return how many places hold no job shorter than a length; empty ones count with those before them."""
    above = min(hint, floor.size)
    while above < floor.size and floor[above] >= length:
        above += 1
    while above > 0 and floor[above - 1] < length:
        above -= 1
    return above


@kernel
def _move(flow: Flow, paths: Paths, size: int, job: int, to: int) -> int:
    """Reach a level by moving a job there."""
    reach = flow.first.size // flow.machines.size
    level = flow.level[job]
    here = (level % reach + 1) * flow.length[job, level // reach] + flow.price[level]
    there = (to % reach + 1) * flow.length[job, to // reach] + flow.price[to]
    return _reach(paths, size, level, to, job, paths.distance[level] + there - here)


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
def lift(paths: Paths, size: int, node: int) -> int:
    """Put a node where its distance belongs, adding it if it is not there; return the new size."""
    heap, slot, distance = paths.heap, paths.slot, paths.distance
    at = slot[node]
    if at == NOWHERE:
        at = size
        size += 1
    while at > 0:
        parent = (at - 1) // 2
        if distance[heap[parent]] <= distance[node]:
            break
        heap[at] = heap[parent]
        slot[heap[at]] = at
        at = parent
    heap[at] = node
    slot[node] = at
    return size


@kernel
def drop_first(paths: Paths, size: int) -> int:
    """Take the first node away; return the new size."""
    heap, slot, distance = paths.heap, paths.slot, paths.distance
    slot[heap[0]] = NOWHERE
    size -= 1
    if size == 0:
        return size
    node = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and distance[heap[child + 1]] < distance[heap[child]]:
            child += 1
        if distance[node] <= distance[heap[child]]:
            break
        heap[at] = heap[child]
        slot[heap[at]] = at
        at = child
    heap[at] = node
    slot[node] = at
    return size
