"""
Words that say where they belong and which version they are, and what may be found in a store.

A store is seen as words of 8 bytes. Each has one writer. A reader knows which version of a word was written before it
read, and which had been begun once it had read: any other one is stale, torn or lost. The versions are in a file that
is mapped, so that they outlive a client that is killed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORD_BYTES = 8


class WordVersions:
    """
    The versions of all words of a store.

    Attributes
    ----------
    begun, done, safe, zeroed : (W,) int64 arrays
        The version that was last begun, last acknowledged, last flushed, and last written as zeros.
    """

    def __init__(self, path: Path, words: int) -> None:
        new = not path.exists()
        rows = np.memmap(path, np.int64, "w+" if new else "r+", shape=(4, words))
        self.begun, self.done, self.safe, self.zeroed = rows
        self.words = words

    def encoded(self, begin: int, end: int, version: int) -> bytes:
        """Return words of a version."""
        return ((np.arange(begin, end, dtype=np.int64) + 1 << 32) | version).tobytes()

    def problem(self, begin: int, found: np.ndarray, least: np.ndarray, most: np.ndarray) -> str:
        """
        Return what is wrong with words that were found from ``begin`` on; empty where nothing is.

        Parameters
        ----------
        found, least, most : (n,) int64 arrays
            The words, and the oldest and the newest version that they may have.
        """
        end = begin + len(found)
        versions = found & 0xFFFFFFFF
        good = (found >> 32 == np.arange(begin, end) + 1) & (least <= versions) & (versions <= most)
        good |= (found == 0) & (least == 0)
        if good.all():
            return ""
        zeroed = self.zeroed_by(begin, end)
        good |= (found == 0) & (least <= zeroed) & (zeroed <= most)
        if good.all():
            return ""
        at = int(np.flatnonzero(~good)[0])
        place, version = int(found[at]) >> 32, int(versions[at])
        return (
            f"{int((~good).sum())} of {len(found)} words wrong from word {begin + at} on: it says word {place - 1}, "
            f"version {version}; expected version {int(least[at])} to {int(most[at])} (zeros at {int(zeroed[at])})"
        )

    def zeroed_by(self, begin: int, end: int) -> np.ndarray:
        """Return a copy of when words were last zeroed."""
        return np.array(self.zeroed[begin:end])
