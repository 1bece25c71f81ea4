"""
A mapping whose values are in memory of other nodes and on disk.

A value is pickled by protocol 5: large buffers of arrays, NumPy's and Arrow's, go to the store as they are, without a
copy in between, and come back into memory of their own. The keys, and where each value is, stay in the process.
"""

from __future__ import annotations

import errno
import pickle
import threading
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, MutableMapping
from typing import Final, Generic, NoReturn, Optional, TypeVar

from penstock.leased_connection import Buffer
from penstock.memory.block_store import BlockStore, checked_bytes, open_store, refuse_copy, spill_bytes
from penstock.memory.chunk_cache import BLOCK_BYTES
from penstock.memory.fork_guard import guard_in_forks
from penstock.memory.frames import checksum_of
from penstock.memory.slab_ranges import StoreStats

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_OUT_OF_BAND: Final = 4096
"""Smaller buffers go into the pickle."""


class SpillDict(MutableMapping[K, V], Generic[K, V]):
    """
    A bounded dictionary above other nodes' memory.

    What ``spilled[key]`` returns is a copy, which is stored again only by setting it. All methods may be called from
    any thread. A forked child can read what was stored before the fork, until the parent puts something else in its
    place.

    Parameters
    ----------
    size : int or None
        How many bytes the values may have together, each rounded up to 4 KiB, and so each of its large buffers. None
        takes what the job says (``spill``).
    local_bytes, socket, name
        As for :func:`~penstock.memory.block_store.open_store`.

    Examples
    --------
    >>> with SpillDict(1 << 20, socket="") as spilled:
    ...     spilled["words"] = ["a", "list"]
    ...     spilled["more"] = bytearray(100_000)
    ...     len(spilled["more"]), spilled.pop("words"), len(spilled)
    (100000, ['a', 'list'], 1)
    """

    def __init__(
        self,
        size: Optional[int] = None,
        *,
        local_bytes: Optional[int] = None,
        socket: Optional[str] = None,
        name: str = "",
    ) -> None:
        self.size = (spill_bytes() if size is None else checked_bytes("size", size)) // BLOCK_BYTES * BLOCK_BYTES
        if self.size <= 0:
            message = f"a spilled dictionary has {BLOCK_BYTES} bytes or more, and not {size}"
            raise ValueError(message)
        self.store: BlockStore = open_store(self.size, local_bytes=local_bytes, socket=socket, name=name)
        self._lock = threading.Lock()
        self._space = FreeSpace(self.size)
        self._places: dict[K, _Place] = {}
        guard_in_forks(self, layer=0)

    def __enter__(self) -> SpillDict[K, V]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def __getitem__(self, key: K) -> V:
        with self._lock:
            place = self._places[key]
            place.readers += 1
        try:
            parts = self._read(place)
        finally:
            with self._lock:
                place.readers -= 1
                self._release(place)
        value: V = pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - this process has written it
        return value

    def __setitem__(self, key: K, value: V) -> None:
        buffers: list[memoryview] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            """Return whether it goes into the pickle."""
            try:
                raw = buffer.raw()
            except BufferError:  # it is not contiguous
                return True
            if raw.nbytes < _OUT_OF_BAND:
                return True
            buffers.append(raw)
            return False

        first = pickle.dumps(value, protocol=5, buffer_callback=keep)
        place = self._write([memoryview(first), *buffers])
        with self._lock:
            before = self._places.get(key)
            self._places[key] = place
            if before is not None:
                before.dropped = True
                self._release(before)

    def __delitem__(self, key: K) -> None:
        with self._lock:
            place = self._places.pop(key)
            place.dropped = True
            self._release(place)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            keys = list(self._places)
        return iter(keys)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def free_bytes(self) -> int:
        """How many bytes are free, in one piece or several."""
        with self._lock:
            return self._space.free_bytes

    def stats(self) -> StoreStats:
        """Return what was read and written so far, and by which tiers."""
        return self.store.stats()

    def close(self) -> None:
        """Forget all values, and give the memory back."""
        with self._lock:
            self._places.clear()
        self.store.close()

    def before_fork(self) -> None:
        """Keep the state as it is until after the fork."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on, with what was stored until now."""
        self._lock = threading.Lock()

    def _write(self, parts: list[memoryview]) -> _Place:
        sizes = [part.nbytes for part in parts]
        needed = sum(map(_rounded, sizes))
        with self._lock:
            begin = self._space.take(needed)
            if begin is None:
                message = (
                    f"no room for a value of {needed} bytes: {self._space.free_bytes} of {self.size} are free, "
                    f"{self._space.longest} at most in one piece; delete some, or make it larger"
                )
                raise OSError(errno.ENOSPC, message)
        place = _Place(begin, needed, sizes, [])
        try:
            at = begin
            for part in parts:
                self._write_part(at, part)
                place.checksums.append(checksum_of(part))
                at += _rounded(part.nbytes)
        except BaseException:
            with self._lock:
                self._space.give(begin, needed)
            raise
        return place

    def _write_part(self, at: int, part: memoryview) -> None:
        """Write whole blocks: one that is written partly would be of no use in a slab."""
        whole = part.nbytes // BLOCK_BYTES * BLOCK_BYTES
        self.store.write(at, part[:whole])
        if whole < part.nbytes:
            self.store.write(at + whole, bytes(part[whole:]).ljust(BLOCK_BYTES, b"\0"))

    def _read(self, place: _Place) -> list[Buffer]:
        parts: list[Buffer] = []
        at = place.begin
        for size, checksum in zip(place.sizes, place.checksums):
            part = bytearray(size)
            self.store.read_into(at, memoryview(part))
            if checksum_of(part) != checksum:
                message = (
                    "the value is not there any more: the process that stored it has put another one in its place "
                    "since this one was forked; read what a child needs before, or hand it over otherwise"
                )
                raise RuntimeError(message)
            parts.append(part)
            at += _rounded(size)
        return parts

    def _release(self, place: _Place) -> None:
        """Free the space of a value that is dropped and read by nobody, with the lock held."""
        if place.dropped and not place.readers:
            place.dropped = False
            self._space.give(place.begin, place.length)


class _Place:
    """Where a value is: the pickle and its large buffers, one behind the other, each from a block's beginning on."""

    __slots__ = ("begin", "checksums", "dropped", "length", "readers", "sizes")

    def __init__(self, begin: int, length: int, sizes: list[int], checksums: list[int]) -> None:
        self.begin, self.length, self.sizes, self.checksums = begin, length, sizes, checksums
        self.readers, self.dropped = 0, False


class FreeSpace:
    """
    The free pieces of a range, by their places: the first that is large enough is taken, and neighbours are joined.

    Examples
    --------
    >>> space = FreeSpace(100)
    >>> space.take(60), space.take(60), space.take(40)
    (0, None, 60)
    >>> space.give(0, 60)
    >>> space.give(60, 40)
    >>> space.longest
    100
    """

    def __init__(self, size: int) -> None:
        self._pieces: list[tuple[int, int]] = [(0, size)]
        self.free_bytes = size

    @property
    def longest(self) -> int:
        """Size of the largest piece."""
        return max((length for _, length in self._pieces), default=0)

    def take(self, length: int) -> int | None:
        """Return the beginning of ``length`` bytes that are free no more; None if no piece is so long."""
        for at, (begin, size) in enumerate(self._pieces):
            if size >= length:
                if size == length:
                    del self._pieces[at]
                else:
                    self._pieces[at] = (begin + length, size - length)
                self.free_bytes -= length
                return begin
        return None

    def give(self, begin: int, length: int) -> None:
        """Have a piece free again."""
        self.free_bytes += length
        at = bisect_left(self._pieces, (begin, 0))
        if at < len(self._pieces) and self._pieces[at][0] == begin + length:
            length += self._pieces.pop(at)[1]
        if at and sum(self._pieces[at - 1]) == begin:
            begin, length = self._pieces[at - 1][0], self._pieces[at - 1][1] + length
            del self._pieces[at - 1]
        insort(self._pieces, (begin, length))


def _rounded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
