"""
Pairing heaps of jobs, as many as there are roots, in which a job can be taken out anywhere.

A job is in at most one heap of a ``Heap``; jobs are compared by two keys and then by number.

References
----------
Fredman, Sedgewick, Sleator, Tarjan: The pairing heap, Algorithmica 1, 1986.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
import numpy.typing as npt

from penstock_sim.counted.kernels.compiled import kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NOBODY: Final = -1

Columns = TypeVar("Columns", bound=tuple[npt.NDArray[np.generic], ...])


class Heap(NamedTuple):
    """The links and keys of J jobs, and the heaps that they are in."""

    links: Links
    root: Ints  # (H,) first of each heap, NOBODY where it is empty


class Links(NamedTuple):
    """The columns of a record array, (J,) each."""

    child: Ints
    after: Ints  # next sibling
    before: Ints  # sibling before, or parent of a first child
    key: Floats
    tie: Floats


def new_heap(heaps: int, jobs: int) -> Heap:
    """Return so many empty heaps for so many jobs."""
    return Heap(table(Links, jobs), np.full(heaps, NOBODY, dtype=np.int64))


def table(columns: type[Columns], rows: int) -> Columns:
    """
    Return a record array of zeros with the named columns.

    One array, and not one a column, because numba counts references to each array that it hands on.
    """
    types = get_type_hints(columns, include_extras=True)
    dtype = np.dtype([(name, np.int64 if kind == Ints else np.float64) for name, kind in types.items()])
    return cast("Columns", np.zeros(rows, dtype=dtype).view(np.recarray))


@kernel
def precedes(links: Links, one: int, other: int) -> bool:
    """Say whether a job comes before another."""
    if links.key[one] != links.key[other]:
        return bool(links.key[one] < links.key[other])
    if links.tie[one] != links.tie[other]:
        return bool(links.tie[one] < links.tie[other])
    return one < other


@kernel
def push(heap: Heap, which: int, job: int) -> None:
    """Put a job into a heap."""
    links = heap.links
    links.child[job] = links.after[job] = links.before[job] = NOBODY
    heap.root[which] = _meld(links, heap.root[which], job)


@kernel
def remove(heap: Heap, which: int, job: int) -> None:
    """Take a job out of its heap, the first or any other."""
    links = heap.links
    rest = _pair(links, links.child[job])
    if heap.root[which] == job:
        heap.root[which] = rest
        return
    before, after = links.before[job], links.after[job]
    if links.child[before] == job:
        links.child[before] = after
    else:
        links.after[before] = after
    if after != NOBODY:
        links.before[after] = before
    heap.root[which] = _meld(links, heap.root[which], rest)


@kernel
def _meld(links: Links, one: int, other: int) -> int:
    if one == NOBODY:
        return other
    if other == NOBODY:
        return one
    if precedes(links, other, one):
        one, other = other, one
    first = links.child[one]
    links.after[other], links.before[other] = first, one
    if first != NOBODY:
        links.before[first] = other
    links.child[one] = other
    links.after[one] = links.before[one] = NOBODY
    return one


@kernel
def _pair(links: Links, first: int) -> int:
    """Meld siblings two by two, and then the pairs from the last to the first; return the first of them all."""
    pairs = NOBODY
    while first != NOBODY:
        second = links.after[first]
        rest = NOBODY
        if second != NOBODY:
            rest = links.after[second]
            links.after[second] = NOBODY
        links.after[first] = NOBODY
        pair = _meld(links, first, second)
        links.after[pair] = pairs
        pairs = pair
        first = rest
    found = NOBODY
    while pairs != NOBODY:
        rest = links.after[pairs]
        links.after[pairs] = NOBODY
        found = _meld(links, found, pairs)
        pairs = rest
    if found != NOBODY:
        links.before[found] = NOBODY
    return found
