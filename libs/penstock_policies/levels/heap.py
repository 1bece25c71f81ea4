"""A binary heap of the nodes seen by a search, nearest first, in which a node can come nearer."""

from __future__ import annotations

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.state import NOWHERE, Paths


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
