"""A sorted collection that changes a little at a time: what is put in order once is never sorted again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound="tuple[Any, ...]")

BLOCK: Final = 512
"""Keys of a block; one that grows to twice as many is divided."""


class SortedKeys(Generic[K]):
    """
    Distinct keys in rising order.

    Kept in blocks of bounded size, with the last key of each block beside: adding and removing is a search among the
    blocks, a search within one, and a move of at most a block.

    Notes
    -----
    ``add``, ``remove``: O(log n) comparisons, and n / 512 words moved where a block comes or goes, which is rare. To
    build: O(n log n), much less for what is nearly in order. Walking: O(1) a key.

    Examples
    --------
    >>> keys = SortedKeys([(3, "c"), (1, "a")])
    >>> keys.add((2, "b"))
    >>> keys.remove((1, "a"))
    >>> list(keys), keys.first
    ([(2, 'b'), (3, 'c')], (2, 'b'))
    """

    def __init__(self, keys: Iterable[K] = ()) -> None:
        self._blocks: list[list[K]] = []
        self._lasts: list[K] = []
        self._size = 0
        if keys:
            self._fill(sorted(keys))

    def _fill(self, ordered: list[K]) -> None:
        self._blocks = [ordered[i : i + BLOCK] for i in range(0, len(ordered), BLOCK)]
        self._lasts = [block[-1] for block in self._blocks]
        self._size = len(ordered)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._blocks)

    def __reversed__(self) -> Iterator[K]:
        return chain.from_iterable(reversed(block) for block in reversed(self._blocks))

    @property
    def first(self) -> K | None:
        """The lowest key; None where there is none."""
        return self._blocks[0][0] if self._blocks else None

    @property
    def last(self) -> K | None:
        """The highest key; None where there is none."""
        return self._lasts[-1] if self._lasts else None

    def since(self, key: tuple[Any, ...]) -> Iterator[K]:
        """Walk the keys from this one on, which need not be there."""
        at = bisect_left(self._lasts, key)
        if at == len(self._blocks):
            return iter(())
        block = self._blocks[at]
        return chain(islice(block, bisect_left(block, key), None), chain.from_iterable(self._blocks[at + 1 :]))

    def add(self, key: K) -> None:
        """Put in a key that is not there yet."""
        self._size += 1
        if not self._blocks:
            self._blocks, self._lasts = [[key]], [key]
            return
        at = 0
        if len(self._lasts) > 1:
            at = bisect_left(self._lasts, key, 0, len(self._lasts) - 1)
        block = self._blocks[at]
        insort(block, key)
        if len(block) >= 2 * BLOCK:
            self._blocks.insert(at + 1, block[BLOCK:])
            self._lasts.insert(at + 1, block[-1])
            del block[BLOCK:]
        self._lasts[at] = block[-1]

    def remove(self, key: K) -> None:
        """
        Take out a key.

        Raises
        ------
        KeyError
            If it is not there.
        """
        at = bisect_left(self._lasts, key) if len(self._lasts) > 1 else 0
        block = self._blocks[at] if at < len(self._blocks) else []
        place = bisect_left(block, key)
        if place == len(block) or block[place] != key:
            raise KeyError(key)
        del block[place]
        self._size -= 1
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]
