"""
A store of blocks above the disk: local cache, slabs of other nodes' memory, and the file that has everything.

:func:`open_store` opens one. What is written goes to the disk, behind the caller's back, and to the slab of its range,
if one is bound; what is read comes from the nearest tier that has it. A slab is bound late, when its range is hot, and
dropped at the first error of any kind: nothing is lost with it, since the disk has all that it had.

Each range of ``slab_bytes`` has a lock, under which it is read and written. So what one call reads of a range is what
it had between two writes, and a slab never says a block is valid that an older write could still reach.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from operator import index
from typing import Final, NoReturn, Optional, Protocol, SupportsIndex, Union

import msgspec

from penstock.memory.agent_link import AgentLink, agent_socket
from penstock.memory.backing_file import PENDING_BYTES, BackingFile
from penstock.memory.chunk_cache import BLOCK_BYTES, CHUNK_BYTES, ChunkCache
from penstock.memory.frames import Buffer
from penstock.memory.slab_binding import TIMEOUT_S, SlabBinding, SlabLost, bind_slab
from penstock_log.agent_protocol import AgentEnv
from penstock_log.memory_messages import SlabAddress
from penstock_policies.slabs import is_hot, smoothed

LOCAL_BYTES: Final = 64 << 20
"""Size of the local cache, by default."""
LARGE_BYTES: Final = 256 << 10
"""Requests from this size on pass the local cache by."""
SLAB_BYTES: Final = 64 << 20
"""Ranges have this size until an agent says how large its slabs are."""
PIECE_BYTES: Final = 4 << 20
"""Longer requests are done in pieces of this size."""
_MOST_PATIENCE: Final = 16

_log = logging.getLogger("penstock.memory")


class StoreStats(msgspec.Struct, kw_only=True):
    """
    Counters of a store since it was opened.

    Attributes
    ----------
    cache_bytes, slab_bytes, disk_bytes : int
        What was read, by the tier that had it.
    written_bytes, filled_bytes : int
        What was written; what was read from disk and then put into a slab.
    sent_bytes : int
        What of the written bytes went to a slab too.
    bound, shared : int
        Slabs that are bound now, and those of them that are memory shared with a donor on this host.
    lost, evicted, refused : int
        Slabs that were dropped after an error, that the agent wanted back, and that were asked for in vain.
    pending_bytes : int
        What is on its way to the disk now.
    agent : bool
        Whether the node's agent is there.
    """

    cache_bytes: int = 0
    slab_bytes: int = 0
    disk_bytes: int = 0
    written_bytes: int = 0
    sent_bytes: int = 0
    filled_bytes: int = 0
    bound: int = 0
    shared: int = 0
    lost: int = 0
    evicted: int = 0
    refused: int = 0
    pending_bytes: int = 0
    agent: bool = False


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


class _Range:
    """A part of the store that one slab has room for; all but its activity is changed under its lock."""

    __slots__ = (
        "activity",
        "asked",
        "binding",
        "end",
        "leaving",
        "lock",
        "number",
        "patience",
        "refusals",
        "retired",
        "start",
        "stats",
        "touched",
        "turn",
        "valid",
    )

    def __init__(self, number: int, start: int, end: int) -> None:
        self.number, self.start, self.end = number, start, end
        self.lock = threading.Lock()
        self.binding: SlabBinding | None = None
        self.valid = bytearray()
        """One byte for each block: whether the slab has what the store has there."""
        self.activity = 0.0
        self.touched = 0
        self.asked = False
        self.turn = 0
        """Counts what makes a slab void that is on its way."""
        self.refusals = self.patience = 0
        """Seconds before a slab is asked for again: longer after each refusal."""
        self.leaving = False
        """Whether the slab is taken away just now: that it fails then is no loss."""
        self.retired = False
        self.stats = StoreStats()


class _Grid:
    """The ranges of a store, by the size of the slabs."""

    def __init__(self, size: int, slab_bytes: int) -> None:
        self.slab_bytes = slab_bytes
        starts = range(0, size, slab_bytes)
        self.ranges = [_Range(i, start, min(start + slab_bytes, size)) for i, start in enumerate(starts)]


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
        self._timeout_s = timeout_s
        self._disk = BackingFile(self._whole, None if path is None else os.fspath(path), pending_bytes=pending_bytes)
        self._cache = ChunkCache(local_bytes)
        self._caching = local_bytes >= CHUNK_BYTES
        self._regrid_lock = threading.Lock()
        self._grid = _Grid(self._whole, SLAB_BYTES)
        self._grids = [self._grid]  # the same, for the finalizer
        self._past = StoreStats()
        self._closed = self._forked = False
        found = agent_socket(socket)
        self._link = AgentLink(found, name, _Owner(self), second_s=second_s) if found else None
        self._finalizer = weakref.finalize(self, _clean_up, self._disk, self._link, self._grids)
        guard_in_forks(self)

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
            Writable and contiguous; or any other such buffer.

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
            part = self._range_at(at)
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
            part = self._range_at(at)
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
            part = self._range_at(at)
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
        grid = self._grid
        total = _sum([self._past, *(part.stats for part in grid.ranges)])
        bindings = [part.binding for part in grid.ranges if part.binding is not None]
        total.bound, total.shared = len(bindings), sum(binding.kind == "shared" for binding in bindings)
        total.pending_bytes = self._disk.pending
        total.agent = self._link is not None and self._link.connected
        return total

    def close(self) -> None:
        """
        Give the slabs back, and close the file: what it is to keep is on disk then. Twice does nothing.

        Raises
        ------
        OSError
            If something could not be written; it is lost then.
        """
        with self._regrid_lock:
            if self._closed:
                return
            for part in self._grid.ranges:
                with part.lock:
                    self._closed = True
                    self._unbind(part)
        _guarded.pop(id(self), None)
        self._finalizer.detach()
        if self._link is not None and not self._forked:
            self._link.close()
        self._disk.close()
        self._cache.clear()

    # --- reading and writing within one range, with its lock held

    def _read_piece(self, part: _Range, offset: int, view: memoryview) -> None:
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

    def _read_blocks(self, part: _Range, offset: int, view: memoryview) -> None:
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

    def _read_below(self, part: _Range, offset: int, view: memoryview) -> None:
        """Read whole blocks from the slab where it has them, and from disk where not: then the slab gets them."""
        self._touch(part, len(view))
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
                self._drop(part, lost)
        if at < end:
            self._read_disk(part, part.start + at * BLOCK_BYTES, view[(at - begin) * BLOCK_BYTES :])

    def _read_disk(self, part: _Range, offset: int, view: memoryview) -> None:
        self._disk.read_into(offset, view)
        part.stats.disk_bytes += len(view)

    def _write_piece(self, part: _Range, offset: int, data: memoryview) -> None:
        self._disk.reserve(offset, len(data))
        self._disk.write(offset, data)
        self._touch(part, len(data))
        part.stats.written_bytes += len(data)
        if part.binding is not None:
            begin, end = offset - part.start, offset - part.start + len(data)
            try:
                part.binding.write(begin, data)
            except SlabLost as lost:
                self._drop(part, lost)
            else:
                part.stats.sent_bytes += len(data)
                first, last = -(-begin // BLOCK_BYTES), end // BLOCK_BYTES
                if first < last:  # a block that is covered partly stays what it was
                    part.valid[first:last] = b"\1" * (last - first)
        if len(data) < LARGE_BYTES:
            self._cache.write(offset, data)
        else:
            self._cache.forget(offset, len(data))

    def _zero_piece(self, part: _Range, offset: int, end: int) -> None:
        first, last = -(-offset // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
        if first >= last or not self._disk.erase(first, last - first):
            first = last = end
        else:
            self._cache.forget(first, last - first)
            if part.binding is not None:
                blocks = (last - first) // BLOCK_BYTES
                begin = (first - part.start) // BLOCK_BYTES
                part.valid[begin : begin + blocks] = bytes(blocks)
        for at, to in ((offset, first), (last, end)):
            for begin in range(at, to, CHUNK_BYTES):
                self._write_piece(part, begin, memoryview(bytes(min(CHUNK_BYTES, to - begin))))

    # --- slabs

    def _touch(self, part: _Range, length: int) -> None:
        """Count pages; ask for a slab as soon as it is certain that the range is hot."""
        part.touched += -(-length // BLOCK_BYTES)
        if part.binding is not None or part.asked or part.patience or self._link is None:
            return
        if (is_hot(part.activity) or is_hot(smoothed(part.touched, 0.0))) and self._link.connected:
            self._ask(part)

    def _ask(self, part: _Range) -> None:
        part.turn += 1
        turn, store = part.turn, weakref.ref(self)

        def answered(address: SlabAddress | None, reason: str) -> None:
            alive = store()
            if alive is not None:
                alive._answered(part, turn, address, reason)

        part.asked = self._link is not None and self._link.borrow(part.number, answered)

    def _answered(self, part: _Range, turn: int, address: SlabAddress | None, reason: str) -> None:
        """Take in what came of asking, in the thread of the link: connecting is left to another one."""
        if address is None:
            self._refused(part, turn, reason)
            return
        thread = threading.Thread(
            target=_bind, args=(weakref.ref(self), part, turn, address, self._timeout_s), name="penstock-memory-bind"
        )
        thread.daemon = True
        thread.start()

    def _refused(self, part: _Range, turn: int, reason: str, *, give_back: bool = False) -> None:
        with part.lock:
            if part.turn != turn:
                return  # it is void already, and was given back where there was something to give
            part.asked = False
            part.refusals += 1
            part.patience = min(2**part.refusals, _MOST_PATIENCE)
            part.stats.refused += 1
            if give_back and self._link is not None:
                self._link.give_back(part.number)
        _log.info("memory_no_slab slab=%s reason=%s", part.number, reason)

    def _bound(self, part: _Range, turn: int, binding: SlabBinding) -> bool:
        """Begin to use a slab, unless it has become void meanwhile; return whether it is used."""
        with part.lock:
            if self._closed or part.retired or part.turn != turn:
                return False
            part.binding, part.asked, part.refusals, part.leaving = binding, False, 0, False
            part.valid = bytearray((part.end - part.start) // BLOCK_BYTES)
            return True

    def _drop(self, part: _Range, lost: SlabLost) -> None:
        """Stop using a slab that failed; the disk has what it had."""
        if part.leaving:  # who takes it away sees to the rest
            self._unbind(part)
            return
        _log.warning("memory_slab_lost slab=%s reason=%s", part.number, lost)
        part.stats.lost += 1
        part.patience = 1
        self._unbind(part)
        if self._link is not None:
            self._link.give_back(part.number)

    def _unbind(self, part: _Range) -> None:
        part.turn += 1
        part.asked = False
        binding, part.binding, part.valid = part.binding, None, bytearray()
        if binding is not None:
            binding.close()

    def _range_at(self, offset: int) -> _Range:
        grid = self._grid
        return grid.ranges[offset // grid.slab_bytes]

    # --- what the link tells: see LinkOwner

    def _agent_welcomed(self, slab_bytes: int) -> None:
        if slab_bytes <= 0 or slab_bytes % CHUNK_BYTES:
            _log.warning(
                "memory_slab_size_unusable slab_bytes=%s; it has to be a multiple of %s", slab_bytes, CHUNK_BYTES
            )
            return
        with self._regrid_lock:
            old = self._grid
            if old.slab_bytes == slab_bytes or self._closed:
                return
            new = _Grid(self._whole, slab_bytes)
            for part in old.ranges:
                part.lock.acquire()
            try:
                for part in old.ranges:
                    part.retired = True
                    self._unbind(part)
                self._past = _sum([self._past, *(part.stats for part in old.ranges)])
                self._grid = self._grids[0] = new
            finally:
                for part in old.ranges:
                    part.lock.release()

    def _agent_gone(self) -> None:
        for part in self._grid.ranges:
            had = self._interrupt(part)
            with part.lock:
                part.stats.lost += had
                self._unbind(part)

    def _slab_evicted(self, number: int, reason: str) -> None:
        ranges = self._grid.ranges
        if not 0 <= number < len(ranges):
            return
        part = ranges[number]
        had = self._interrupt(part)
        with part.lock:
            part.stats.evicted += had
            part.patience = 1
            self._unbind(part)
        _log.info("memory_slab_evicted slab=%s reason=%s", number, reason)

    def _interrupt(self, part: _Range) -> bool:
        """Have a read or write end that waits for the donor of a slab which is over; return whether it was bound."""
        binding = part.binding
        if binding is None:
            return False
        part.leaving = True
        binding.close()
        return True

    def _second_over(self) -> dict[int, float]:
        use: dict[int, float] = {}
        for part in self._grid.ranges:
            measured, part.touched = part.touched, 0
            part.patience = max(0, part.patience - 1)
            if not measured and part.activity < 1e-3 and part.binding is None:
                continue
            part.activity = smoothed(measured, part.activity)
            if part.binding is not None:
                use[part.number] = round(part.activity, 3)
            elif is_hot(part.activity) and part.lock.acquire(blocking=False):  # busy ones ask for themselves
                try:
                    self._touch(part, 0)
                finally:
                    part.lock.release()
        return use

    # --- forks

    def before_fork(self) -> None:
        """Write what is on its way, and keep the state as it is until after the fork."""
        self._regrid_lock.acquire()
        for part in self._grid.ranges:
            part.lock.acquire()
        self._disk.before_fork()
        self._cache.before_fork()
        if self._link is not None:
            self._link.before_fork()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._link is not None:
            self._link.after_fork_in_parent()
        self._cache.after_fork_in_parent()
        self._disk.after_fork_in_parent()
        for part in self._grid.ranges:
            part.lock.release()
        self._regrid_lock.release()

    def after_fork_in_child(self) -> None:
        """Read from the disk from now on, and write nothing."""
        self._finalizer.detach()
        self._forked, self._regrid_lock = True, threading.Lock()
        if self._link is not None:
            self._link.after_fork_in_child()
            self._link = None
        self._cache.after_fork_in_child()
        self._caching = False
        self._disk.after_fork_in_child()
        for part in self._grid.ranges:
            part.lock = threading.Lock()
            if part.binding is not None:
                part.binding.detach()
                part.binding = None

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


class _Owner:
    """Tells a store what its link hears, without keeping the store alive."""

    def __init__(self, store: BlockStore) -> None:
        self._store = weakref.ref(store)

    def agent_welcomed(self, slab_bytes: int) -> None:
        store = self._store()
        if store is not None:
            store._agent_welcomed(slab_bytes)

    def agent_gone(self) -> None:
        store = self._store()
        if store is not None:
            store._agent_gone()

    def slab_evicted(self, slab: int, reason: str) -> None:
        store = self._store()
        if store is not None:
            store._slab_evicted(slab, reason)

    def second_over(self) -> dict[int, float]:
        store = self._store()
        return {} if store is None else store._second_over()


def _bind(store: weakref.ref[BlockStore], part: _Range, turn: int, address: SlabAddress, timeout_s: float) -> None:
    """Connect to a slab, in a thread of its own."""
    binding: SlabBinding | None = None
    try:
        if address.slab_bytes < part.end - part.start:
            message = f"it has {address.slab_bytes} bytes, and {part.end - part.start} are needed"
            raise SlabLost(message)
        binding = bind_slab(address, timeout_s=timeout_s)
    except SlabLost as lost:
        reason = str(lost)
    alive = store()
    if binding is None:
        if alive is not None:
            alive._refused(part, turn, reason, give_back=True)
    elif alive is None or not alive._bound(part, turn, binding):
        binding.close()


def _sum(many: list[StoreStats]) -> StoreStats:
    return StoreStats(**{name: sum(getattr(one, name) for one in many) for name in StoreStats.__struct_fields__})


def _flat(data: Buffer) -> memoryview:
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def _clean_up(disk: BackingFile, link: AgentLink | None, grids: list[_Grid]) -> None:
    """Close what a store has left that nobody has any more."""
    if link is not None:
        link.close()
    for part in grids[0].ranges:
        if part.binding is not None:
            part.binding.close()
    try:
        disk.close()
    except OSError as error:
        _log.error("memory_not_written file=%s error=%s; close a store to be told of it", disk.name, error)


class ForkGuard(Protocol):
    """What has locks, and a state that a fork must not find half changed."""

    def before_fork(self) -> None:
        """Take the locks."""

    def after_fork_in_parent(self) -> None:
        """Release them."""

    def after_fork_in_child(self) -> None:
        """Make new ones: there is no other thread."""


_guarded: weakref.WeakValueDictionary[int, ForkGuard] = weakref.WeakValueDictionary()
_forking: list[ForkGuard] = []


def guard_in_forks(guard: ForkGuard) -> None:
    """Have a fork find something in order; what uses a store is locked before the stores are."""
    _guarded[id(guard)] = guard


def _before_fork() -> None:
    _forking[:] = sorted(_guarded.values(), key=lambda guard: isinstance(guard, BlockStore))
    for guard in _forking:
        guard.before_fork()


def _after_fork_in_parent() -> None:
    for guard in reversed(_forking):
        guard.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for guard in _forking:
        guard.after_fork_in_child()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
