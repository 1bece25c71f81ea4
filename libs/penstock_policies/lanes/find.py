"""
Which lane a job gets, and which lanes have to close so that it gets one: pure arithmetic on sizes.

A device of ``C`` bytes is safe if ``sum(P + F)`` of its jobs, plus the sizes of its lanes, plus the reserve, is at most
``C``; a lane is as large as the largest ephemeral need of its members. With ``free`` the bytes that are left of that, a
job with resident need ``R = P + F`` and ephemeral need ``E``

1. gets a lane of its own, if ``R + E <= free`` and what is then left is enough for the waiting jobs that could join
   one;
2. else joins the smallest lane that is large enough, if ``R <= free``;
3. else joins the smallest lane that can be made large enough: ``R + E - L <= free``;
4. else waits, or other lanes close for it: their members go to other lanes, which never takes more memory.

References
----------
Yu and Chowdhury, Salus: Fine-Grained GPU Sharing Primitives for Deep Learning Applications, MLSys 2020, section 3.3 and
algorithm 1; the second half of rule 1 and of rule 4 are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock_events import MemoryNeed


class Lot(NamedTuple):
    """One lane, as far as the choice goes."""

    size_bytes: int
    members: int
    lane: int


class Place(NamedTuple):
    """Where a job goes; None is a lane of its own."""

    lane: int | None


def find(
    need: MemoryNeed, lots: Sequence[Lot], free_bytes: int, waiting: Iterable[MemoryNeed] = (), *, may_open: bool = True
) -> Place | None:
    """
    Return the lane that a job gets.

    Parameters
    ----------
    need : MemoryNeed
    lots : sequence of Lot
        The lanes, in any order.
    free_bytes : int
        What the safety condition leaves.
    waiting : iterable of MemoryNeed
        Others who wait, first come first.
    may_open : bool
        Whether another lane is worth it; the first one is always.

    Returns
    -------
    Place or None
        None: it has to wait.

    Notes
    -----
    O(lanes + waiting).

    Examples
    --------
    >>> small, large = MemoryNeed(10, 0, 20), MemoryNeed(10, 0, 60)
    >>> find(small, [], 100), find(small, [Lot(60, 1, 0)], 100), find(small, [Lot(60, 1, 0)], 15)
    (Place(lane=None), Place(lane=None), Place(lane=0))
    >>> find(large, [Lot(20, 1, 0), Lot(30, 1, 1)], 50), find(large, [Lot(20, 1, 0), Lot(30, 1, 1)], 30) is None
    (Place(lane=0), True)
    >>> find(small, [Lot(60, 1, 0)], 35, waiting=[small])
    Place(lane=0)
    """
    resident_bytes, ephemeral_bytes = need.resident_bytes, need.ephemeral_bytes
    if not lots:
        return Place(None) if need.alone_bytes <= free_bytes else None
    left_bytes = free_bytes - need.alone_bytes
    if may_open and left_bytes >= 0 and _joinable_bytes(need, lots, free_bytes, waiting) <= left_bytes:
        return Place(None)
    fitting = [lot for lot in lots if max(0, ephemeral_bytes - lot.size_bytes) + resident_bytes <= free_bytes]
    large_enough = [lot for lot in fitting if lot.size_bytes >= ephemeral_bytes]
    return Place(min(large_enough or fitting).lane) if fitting else None


def best(need: MemoryNeed, lots: Iterable[Lot]) -> int:
    """Return the best-fitting lane for one who needs no more room for what is resident; else the largest one."""
    lots = list(lots)
    return min((lot for lot in lots if lot.size_bytes >= need.ephemeral_bytes), default=max(lots)).lane


def to_close(need: MemoryNeed, lots: Sequence[Lot], free_bytes: int) -> list[int] | None:
    """
    Return the fewest lanes that have to close so that a job fits; None if closing all but one is not enough.

    The largest lane stays, and takes in whom no other can: so the others free their whole size.

    Examples
    --------
    >>> lots = [Lot(60, 1, 0), Lot(50, 1, 1), Lot(20, 1, 2), Lot(10, 1, 3)]
    >>> to_close(MemoryNeed(30, 0, 60), lots, 15)
    [2]
    >>> to_close(MemoryNeed(30, 0, 90), lots, 0)
    [1, 3]
    >>> to_close(MemoryNeed(30, 0, 120), lots, 0) is None
    True
    """
    if not lots:
        return None
    largest, *others = sorted(lots, key=lambda lot: (-lot.size_bytes, -lot.members, lot.lane))
    lacking_bytes = need.resident_bytes + max(0, need.ephemeral_bytes - largest.size_bytes) - free_bytes
    closing: list[int] = []
    while lacking_bytes > 0:
        if not others:
            return None
        enough = [lot for lot in others if lot.size_bytes >= lacking_bytes]
        lot = min(enough) if enough else others[0]
        others.remove(lot)
        closing.append(lot.lane)
        lacking_bytes -= lot.size_bytes
    return closing


def _joinable_bytes(need: MemoryNeed, lots: Sequence[Lot], free_bytes: int, waiting: Iterable[MemoryNeed]) -> int:
    """Return what those who wait would take, of those who could join some lane if this job took none of its own."""
    size_bytes = max(lots).size_bytes
    left_bytes = free_bytes - need.resident_bytes - max(0, need.ephemeral_bytes - size_bytes)
    size_bytes = max(size_bytes, need.ephemeral_bytes)
    wanted_bytes = 0
    for other in waiting:
        if other.ephemeral_bytes <= size_bytes and other.resident_bytes <= left_bytes - wanted_bytes:
            wanted_bytes += other.resident_bytes
    return wanted_bytes
