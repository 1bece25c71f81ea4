"""Least recently used chunks of a store, in the process's own memory: the nearest tier."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from penstock.leased_connection import Buffer

BLOCK_BYTES: Final = 4096
CHUNK_BYTES: Final = 64 << 10


class _Chunk:
    """64 KiB, and a bit for each of its blocks that holds what the store has there."""

    __slots__ = ("data", "valid")

    def __init__(self) -> None:
        self.data = memoryview(bytearray(CHUNK_BYTES))
        self.valid = 0


class ChunkCache:
    """
    Copies of blocks of 4 KiB, in chunks of 64 KiB; those that were not used for longest go first.

    Parameters
    ----------
    limit_bytes : int
        How much it holds at most; with less than a chunk it holds nothing.

    Examples
    --------
    >>> cache = ChunkCache(1 << 20)
    >>> cache.write(4096, bytes(8192))
    >>> view = memoryview(bytearray(16384))
    >>> cache.read(0, view)
    [(0, 4096), (12288, 16384)]
    """

    def __init__(self, limit_bytes: int) -> None:
        self._most = limit_bytes // CHUNK_BYTES
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()

    def read(self, offset: int, view: memoryview) -> list[tuple[int, int]]:
        """
        Fill ``view`` with what is cached from ``offset`` on; both are whole blocks.

        Returns
        -------
        list of (begin, end)
            The bytes of the store that are not cached, in order.
        """
        if not self._chunks:
            return [(offset, offset + len(view))]
        missing: list[tuple[int, int]] = []
        with self._lock:
            for number, begin, end in _parts(offset, len(view)):
                chunk = self._chunks.get(number)
                start = number * CHUNK_BYTES
                if chunk is None:
                    _extend(missing, start + begin, start + end)
                    continue
                self._chunks.move_to_end(number)
                wanted = _mask(begin, end)
                if chunk.valid & wanted == wanted:
                    view[start + begin - offset : start + end - offset] = chunk.data[begin:end]
                    continue
                for at in range(begin, end, BLOCK_BYTES):
                    if chunk.valid >> at // BLOCK_BYTES & 1:
                        here = start + at - offset
                        view[here : here + BLOCK_BYTES] = chunk.data[at : at + BLOCK_BYTES]
                    else:
                        _extend(missing, start + at, start + at + BLOCK_BYTES)
        return missing

    def write(self, offset: int, data: Buffer) -> None:
        """Keep a copy of what was read or written; a block that it covers partly is changed if it is cached."""
        if not self._most:
            return
        view = memoryview(data)
        with self._lock:
            for number, begin, end in _parts(offset, len(view)):
                chunk = self._chunks.get(number)
                whole = _mask(-(-begin // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES)
                if chunk is None:
                    if not whole:
                        continue
                    chunk = self._chunks[number] = self._unused()
                else:
                    self._chunks.move_to_end(number)
                here = number * CHUNK_BYTES + begin - offset
                chunk.data[begin:end] = view[here : here + end - begin]
                chunk.valid |= whole

    def forget(self, offset: int, length: int) -> None:
        """Drop the blocks that a range touches."""
        if not self._chunks or not length:
            return
        with self._lock:
            for number, begin, end in _parts(offset, length):
                chunk = self._chunks.get(number)
                if chunk is not None:
                    chunk.valid &= ~_mask(begin // BLOCK_BYTES * BLOCK_BYTES, -(-end // BLOCK_BYTES) * BLOCK_BYTES)
                    if not chunk.valid:
                        del self._chunks[number]

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._chunks.clear()

    def _unused(self) -> _Chunk:
        """Return a chunk that holds nothing, with the lock held; the one that was not used for longest, if all are."""
        if len(self._chunks) < self._most:
            return _Chunk()
        _, chunk = self._chunks.popitem(last=False)
        chunk.valid = 0
        return chunk

    def before_fork(self) -> None:
        """Keep the state as it is until after the fork."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Drop everything, and hold nothing from now on: the parent changes what was cached."""
        self._lock = threading.Lock()
        self._chunks, self._most = OrderedDict(), 0


def _parts(offset: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of a range in each chunk: its number, and where the part begins and ends in it."""
    end = offset + length
    while offset < end:
        number, begin = divmod(offset, CHUNK_BYTES)
        size = min(CHUNK_BYTES - begin, end - offset)
        yield number, begin, begin + size
        offset += size


def _mask(begin: int, end: int) -> int:
    """Return the bits of the blocks between two places in a chunk."""
    count = (end - begin) // BLOCK_BYTES
    return ((1 << count) - 1) << begin // BLOCK_BYTES if count > 0 else 0


def _extend(runs: list[tuple[int, int]], begin: int, end: int) -> None:
    """Add a run behind others, as a part of the last one where they touch."""
    if runs and runs[-1][1] == begin:
        runs[-1] = (runs[-1][0], end)
    else:
        runs.append((begin, end))
