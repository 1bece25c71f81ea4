"""Which items of which loop were done before a checkpoint, so that a resumed script repeats and omits none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Done(msgspec.Struct, frozen=True):
    """So many loops in a row that ended after ``items`` items each."""

    items: int
    loops: int


class History(msgspec.Struct):
    """
    The loops that ended, in run lengths, and the items done in the one that is open.

    A script that ran 1,000 equal epochs keeps one :class:`Done`.
    """

    ended: list[Done] = []
    items: int = 0

    def end(self) -> None:
        """The open loop ended, by exhaustion or by ``break``."""
        if self.ended and self.ended[-1].items == self.items:
            self.ended[-1] = Done(self.items, self.ended[-1].loops + 1)
        else:
            self.ended.append(Done(self.items, 1))
        self.items = 0

    def copy(self) -> History:
        """Return a history that later loops do not change."""
        return History(list(self.ended), self.items)

    def replay(self) -> Iterator[tuple[int, bool]]:
        """Yield, for each loop that had begun, its items done and whether it had ended."""
        for run in self.ended:
            for _ in range(run.loops):
                yield run.items, True
        yield self.items, False


def skip(items: Iterable[T], count: int) -> Iterator[T]:
    """
    Return an iterator over all but the first items.

    Sequences are entered at the place, in O(1); everything else is consumed up to it.

    Examples
    --------
    >>> list(skip(range(5), 3)), list(skip(iter("abc"), 2)), list(skip([1], 4))
    ([3, 4], ['c'], [])
    """
    if not count:
        return iter(items)
    if isinstance(items, Sequence):
        return map(items.__getitem__, range(count, len(items)))
    rest = iter(items)
    next(islice(rest, count, count), None)
    return rest
