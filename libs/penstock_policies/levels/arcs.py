"""
Where a search can go on from a node that it has come to.

Within a kind the jobs of a lower place are the longer ones. So a job needs to be moved only to the level among whose
jobs its length belongs, or between which: from there on, moving that level's shortest job down or its longest job up
is at least as good. That leaves a few arcs for each job instead of one for each level.
"""

from __future__ import annotations

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.heap import lift
from penstock_policies.levels.state import FAR, NOWHERE, UNFIT, Flow, Ints, Paths


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
