"""
A store of blocks above the disk: local cache, slabs of other nodes' memory, and the file that has everything.

:func:`open_store` opens one. What is written goes to the disk, behind the caller's back, and to the slab of its range,
if one is bound; what is read comes from the nearest tier that has it. A slab is dropped at the first error of any kind:
nothing is lost with it, since the disk has all that it had.

Each range of a slab's size has a lock, under which it is read and written. So what one call reads of a range is what it
had between two writes, and a slab never says a block is valid that an older write could still reach.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from operator import index
from typing import Final, NoReturn, Optional, SupportsIndex, Union

from penstock.leased_connection import Buffer
from penstock.memory.backing_file import PENDING_BYTES, BackingFile
from penstock.memory.chunk_cache import BLOCK_BYTES, CHUNK_BYTES, ChunkCache
from penstock.memory.fork_guard import guard_in_forks, release_guard
from penstock.memory.slab_binding import TIMEOUT_S, SlabLost
from penstock.memory.slab_ranges import SlabRange, SlabRanges, StoreStats
from penstock_log.agent_protocol import AgentEnv

LOCAL_BYTES: Final = 64 << 20
"""Size of the local cache, by default."""
LARGE_BYTES: Final = 256 << 10
"""Requests from this size on pass the local cache by."""
PIECE_BYTES: Final = 4 << 20
"""Longer requests are done in pieces of this size."""
FORK_LAYER: Final = 1
"""Files and dictionaries above a store are locked before it, with layer 0."""

_log = logging.getLogger("penstock.memory")


def open_store(
    size: Optional[int] = None,
    *,
    path: Union[str, os.PathLike[str], None] = None,
    local_bytes: Optional[int] = None,
    socket: Optional[str] = None,
    name: str = "",
) -> BlockStore:
    """
    Open a store of ``size`` bytes, which are zeros at first.

    Parameters
    ----------
    size : int or None
        Bytes; any number above 0. None takes what the job says: ``memory = { spill = "16GiB" }``.
    path : str, path-like or None
        A file for its content, which is created with mode 0600 and kept; opened with its content if it is there
        already. None is a temporary file without a name, in ``TMPDIR``.
    local_bytes : int or None
        How much of this process's memory may hold what was read and written last; 0 is none. None takes what the job
        says (``memory = { local = "2GiB" }``), or else 64 MiB.
    socket : str or None
        The socket of the node's memory agent; None takes that of ``PENSTOCK_MEMORY_SOCKET``. Without an agent, or
        with "", there are the local cache and the disk.
    name : str
        What people see where the memory is listed.

    Returns
    -------
    BlockStore

    Raises
    ------
    ValueError
        If a size is impossible, or neither given nor said by the job.
    OSError
        If the file cannot be opened, or another store has it open.

    Examples
    --------
    >>> with open_store(1 << 20, socket="") as store:
    ...     store.write(10, b"spilled")
    ...     view = memoryview(bytearray(7))
    ...     store.read_into(10, view)
    >>> bytes(view)
    b'spilled'
    """
    local = said_by_job(AgentEnv.MEMORY_LOCAL) if local_bytes is None else local_bytes
    return BlockStore(
        spill_bytes() if size is None else size,
        path=path,
        local_bytes=LOCAL_BYTES if local is None else local,
        socket=socket,
        name=name,
    )


def spill_bytes() -> int:
    """
    Return the size that the job says for its files in borrowed memory.

    Raises
    ------
    ValueError
        If it says none, or this is no job.
    """
    found = said_by_job(AgentEnv.MEMORY_SPILL)
    if found is None:
        message = 'how large? Give a size in bytes, or have the job say it: memory = { spill = "16GiB" }'
        raise ValueError(message)
    return found


def said_by_job(variable: str) -> Optional[int]:
    """
    Return a number of bytes that the executor has put into the environment; None where it has not.

    Raises
    ------
    ValueError
        If somebody else has put there what is no number.
    """
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isdecimal():
        message = f"{variable} is {text!r}; expected a number of bytes, such as {LOCAL_BYTES}"
        raise ValueError(message)
    return int(text)


def checked_bytes(name: str, given: SupportsIndex) -> int:
    """
    Return a number of bytes as an integer, whatever kind of integer it is.

    Raises
    ------
    TypeError
        If it is none, such as a text or a float.
    """
    try:
        return index(given)
    except TypeError:
        message = f"{name} is {given!r}; expected a whole number of bytes, such as {LOCAL_BYTES} or 16 << 30"
        raise TypeError(message) from None


def refuse_copy(thing: object) -> NoReturn:
    """
    Say why something above a store is neither pickled nor copied, and what to do instead.

    Raises
    ------
    TypeError
        Always.
    """
    message = (
        f"a {type(thing).__name__} belongs to the process that opened it, and is neither copied nor pickled: hand on "
        "what you read from it; or fork with it in a global variable, then children can read it; or open one in each "
        "process"
    )
    raise TypeError(message)


class BlockStore:
    """
    Bytes that are in memory as far as there is memory, and on disk always; see :func:`open_store`.

    All methods may be called from any thread. A forked child can read what was written before the fork, and no more.
    A store that nobody has any more is closed.

    Parameters
    ----------
    size, path, local_bytes, socket, name
        As for :func:`open_store`.
    pending_bytes : int
        How much may be on its way to the disk before a write waits.
    timeout_s : float
        For how long a donor may take for each answer before its slab is dropped.
    second_s : float
        How long a second of the store is, by which it measures how active it is and waits for an agent.

    Attributes
    ----------
    size : int
        Bytes.
    """

    def __init__(
        self,
        size: int,
        *,
        path: Union[str, os.PathLike[str], None] = None,
        local_bytes: int = LOCAL_BYTES,
        socket: Optional[str] = None,
        name: str = "",
        pending_bytes: int = PENDING_BYTES,
        timeout_s: float = TIMEOUT_S,
        second_s: float = 1.0,
    ) -> None:
        size, local_bytes = checked_bytes("size", size), checked_bytes("local_bytes", local_bytes)
        if size <= 0 or local_bytes < 0 or pending_bytes <= 0:
            message = f"a store has at least one byte, and no negative cache: {size=}, {local_bytes=}, {pending_bytes=}"
            raise ValueError(message)
        self.size = size
        self._whole = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        self._disk = BackingFile(self._whole, None if path is None else os.fspath(path), pending_bytes=pending_bytes)
        self._cache = ChunkCache(local_bytes)
        self._caching = local_bytes >= CHUNK_BYTES
        self._ranges = SlabRanges(self._whole, socket, name, timeout_s=timeout_s, second_s=second_s)
        self._close_lock = threading.Lock()
        self._closed = False
        self._finalizer = weakref.finalize(self, _clean_up, self._disk, self._ranges)
        guard_in_forks(self, layer=FORK_LAYER)

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def read_into(self, offset: int, view: memoryview) -> None:
        """
        Fill a buffer with the store's bytes from ``offset`` on.

        Parameters
        ----------
        offset : int
            Bytes from the beginning.
        view : memoryview
            Writable and contiguous; or any other such buffer. Nobody else writes to it meanwhile: what was read from
            disk goes from it to the tiers above.

        Raises
        ------
        ValueError
            If it is not within the store, or the store is closed.
        OSError
            If the disk cannot be read.
        """
        target = _flat(view)
        end = self._end(offset, len(target))
        at = offset
        while at < end:
            part = self._ranges.at(at)
            stop = min(end, part.end, at + PIECE_BYTES)
            with part.lock:
                if part.retired:
                    continue
                self._check_open()
                self._read_piece(part, at, target[at - offset : stop - offset])
            at = stop

    def write(self, offset: int, data: Buffer) -> None:
        """
        Write bytes; they are on their way to the disk when it returns, and in the slab of their range if it has one.

        Raises
        ------
        ValueError
            If it is not within the store, or the store is closed.
        OSError
            ``ENOSPC`` if the disk has no room; whatever went wrong with an earlier write that is still not on disk.
            Then the bytes from some place on were not written.
        RuntimeError
            In a forked child.
        """
        source = _flat(data)
        end = self._end(offset, len(source))
        at = offset
        while at < end:
            part = self._ranges.at(at)
            stop = min(end, part.end, at + PIECE_BYTES)
            with part.lock:
                if part.retired:
                    continue
                self._check_open()
                self._write_piece(part, at, source[at - offset : stop - offset])
            at = stop

    def zero(self, offset: int, length: int) -> None:
        """
        Have a range read as zeros; the disk gets the space of whole blocks back, where it can.

        Raises
        ------
        ValueError, OSError, RuntimeError
            As from :meth:`write`.
        """
        end = self._end(offset, length)
        at = offset
        while at < end:
            part = self._ranges.at(at)
            stop = min(end, part.end)
            with part.lock:
                if part.retired:
                    continue
                self._check_open()
                self._zero_piece(part, at, stop)
            at = stop

    def discard(self, offset: int, length: int) -> None:
        """Forget what a range holds, which reads as zeros from now on; as :meth:`zero`."""
        self.zero(offset, length)

    def flush(self) -> None:
        """
        Wait until everything that was written is on disk.

        Raises
        ------
        OSError
            If the disk did not take it: it is kept in memory and tried again.
        """
        self._check_open()
        self._disk.flush()

    def stats(self) -> StoreStats:
        """Return what was read and written so far, and by which tiers."""
        total = self._ranges.stats()
        total.pending_bytes = self._disk.pending
        return total

    def close(self) -> None:
        """
        Give the slabs back, and close the file: what it is to keep is on disk then. Twice does nothing.

        Raises
        ------
        OSError
            If something could not be written; it is lost then.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        release_guard(self, layer=FORK_LAYER)
        self._finalizer.detach()
        self._ranges.close()
        self._disk.close()
        self._cache.clear()

    # --- reading and writing within one range, with its lock held

    def _read_piece(self, part: SlabRange, offset: int, view: memoryview) -> None:
        end = offset + len(view)
        first, last = offset // BLOCK_BYTES * BLOCK_BYTES, -(-end // BLOCK_BYTES) * BLOCK_BYTES
        if first == offset and last == end:
            self._read_blocks(part, offset, view)
        elif len(view) < LARGE_BYTES:
            scratch = memoryview(bytearray(last - first))
            self._read_blocks(part, first, scratch)
            view[:] = scratch[offset - first : end - first]
        else:
            begin, stop = -(-offset // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
            for at, to in ((offset, begin), (begin, stop), (stop, end)):
                if at < to:
                    self._read_piece(part, at, view[at - offset : to - offset])

    def _read_blocks(self, part: SlabRange, offset: int, view: memoryview) -> None:
        """Read whole blocks: from the cache, and what it does not have from below."""
        if not self._caching or len(view) >= LARGE_BYTES:
            self._read_below(part, offset, view)
            return
        missing = self._cache.read(offset, view)
        for begin, end in missing:
            found = view[begin - offset : end - offset]
            self._read_below(part, begin, found)
            self._cache.write(begin, found)
        part.stats.cache_bytes += len(view) - sum(end - begin for begin, end in missing)

    def _read_below(self, part: SlabRange, offset: int, view: memoryview) -> None:
        """Read whole blocks from the slab where it has them, and from disk where not: then the slab gets them."""
        self._ranges.touch(part, len(view))
        at, end = (offset - part.start) // BLOCK_BYTES, (offset - part.start + len(view)) // BLOCK_BYTES
        begin = at
        while part.binding is not None and at < end:
            valid = part.valid[at]
            stop = part.valid.find(1 - valid, at, end)
            stop = end if stop < 0 else stop
            run = view[(at - begin) * BLOCK_BYTES : (stop - begin) * BLOCK_BYTES]
            try:
                if valid:
                    part.binding.read_into(at * BLOCK_BYTES, run)
                    part.stats.slab_bytes += len(run)
                else:
                    self._read_disk(part, part.start + at * BLOCK_BYTES, run)
                    begun, at = at, stop  # the disk has been read, whatever becomes of the slab
                    part.binding.write(begun * BLOCK_BYTES, run)
                    part.valid[begun:stop] = b"\1" * (stop - begun)
                    part.stats.filled_bytes += len(run)
                at = stop
            except SlabLost as lost:
                self._ranges.drop(part, lost)
        if at < end:
            self._read_disk(part, part.start + at * BLOCK_BYTES, view[(at - begin) * BLOCK_BYTES :])

    def _read_disk(self, part: SlabRange, offset: int, view: memoryview) -> None:
        self._disk.read_into(offset, view)
        part.stats.disk_bytes += len(view)

    def _write_piece(self, part: SlabRange, offset: int, data: memoryview) -> None:
        self._disk.reserve(offset, len(data))
        try:
            written = self._disk.write(offset, data)
            self._write_above(part, offset, written)
        except BaseException:  # an interrupt, or a disk that took a part: what is above it may be older than it is
            self._distrust(part, offset, len(data))
            raise
        part.stats.written_bytes += len(data)

    def _write_above(self, part: SlabRange, offset: int, data: Buffer) -> None:
        """Put into the slab and the cache what the disk has been given."""
        self._ranges.touch(part, len(data))
        if part.binding is not None:
            begin, end = offset - part.start, offset - part.start + len(data)
            try:
                part.binding.write(begin, data)
            except SlabLost as lost:
                self._ranges.drop(part, lost)
            else:
                part.stats.sent_bytes += len(data)
                first, last = -(-begin // BLOCK_BYTES), end // BLOCK_BYTES
                if first < last:  # a block that is covered partly stays what it was
                    part.valid[first:last] = b"\1" * (last - first)
        if len(data) < LARGE_BYTES:
            self._cache.write(offset, data)
        else:
            self._cache.forget(offset, len(data))

    def _distrust(self, part: SlabRange, offset: int, length: int) -> None:
        """Have the blocks that a range touches read from disk."""
        self._cache.forget(offset, length)
        if part.binding is not None:
            first, last = (offset - part.start) // BLOCK_BYTES, -(-(offset - part.start + length) // BLOCK_BYTES)
            part.valid[first:last] = bytes(last - first)

    def _zero_piece(self, part: SlabRange, offset: int, end: int) -> None:
        first, last = -(-offset // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
        if first < last:
            self._distrust(part, first, last - first)
        if first >= last or not self._disk.erase(first, last - first):
            first = last = end
        for at, to in ((offset, first), (last, end)):
            for begin in range(at, to, CHUNK_BYTES):
                self._write_piece(part, begin, memoryview(bytes(min(CHUNK_BYTES, to - begin))))

    # --- forks

    def before_fork(self) -> None:
        """Write what is on its way, and keep the state as it is until after the fork."""
        self._close_lock.acquire()
        self._ranges.before_fork()
        self._disk.before_fork()
        self._cache.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._cache.after_fork_in_parent()
        self._disk.after_fork_in_parent()
        self._ranges.after_fork_in_parent()
        self._close_lock.release()

    def after_fork_in_child(self) -> None:
        """Read from the disk from now on, and write nothing."""
        self._finalizer.detach()
        self._close_lock = threading.Lock()
        self._ranges.after_fork_in_child()
        self._cache.after_fork_in_child()
        self._caching = False
        self._disk.after_fork_in_child()

    def _end(self, offset: int, length: int) -> int:
        self._check_open()
        if offset < 0 or length < 0 or offset + length > self.size:
            message = f"bytes {offset} to {offset + length} are not within the store's {self.size}"
            raise ValueError(message)
        return offset + length

    def _check_open(self) -> None:
        if self._closed:
            message = "the store is closed"
            raise ValueError(message)


def _flat(data: Buffer) -> memoryview:
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def _clean_up(disk: BackingFile, ranges: SlabRanges) -> None:
    """Close what a store has left that nobody has any more."""
    if threading.current_thread().name.startswith("penstock-memory"):
        # Garbage is collected in any thread, and one of the store's own may hold a lock, or would wait for itself.
        threading.Thread(target=_close_all, args=(disk, ranges)).start()
    else:
        _close_all(disk, ranges)


def _close_all(disk: BackingFile, ranges: SlabRanges) -> None:
    ranges.close()
    try:
        disk.close()
    except OSError as error:
        _log.error("memory_not_written file=%s error=%s; close a store to be told of it", disk.name, error)
