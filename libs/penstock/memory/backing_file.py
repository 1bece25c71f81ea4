"""
The disk below a store: a file that has all of its content, and the writes that are on their way there.

:class:`BackingFile` takes a write as soon as it has a copy and the disk has room for it; one thread writes in the order
of the calls. What is read is the file with those writes laid over it. So nobody waits for the disk but who writes
faster than it for long, and nothing that was accepted can fail for want of space.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple, Union

from penstock.leased_connection import Buffer

EXTENT_BYTES: Final = 64 << 20
"""Space is reserved in pieces of this size."""
PENDING_BYTES: Final = 64 << 20
"""How much may be on its way to the disk, by default."""
_JOINED_BYTES: Final = 4 << 20
_JOINED: Final = 256
_INDEX_BYTES: Final = 256 << 10
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_UNSUPPORTED: Final = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV}

_log = logging.getLogger("penstock.memory")


class _Entry(NamedTuple):
    """A write that is on its way to the disk."""

    number: int
    offset: int
    data: Union[bytes, memoryview]
    """Nobody changes it."""


class BackingFile:
    """
    A file of fixed size, with writes behind.

    All methods may be called from any thread. Who reads and writes the same bytes at the same time sees to the order
    himself.

    Parameters
    ----------
    size : int
        Bytes.
    path : str or None
        Created with mode 0600, or opened with its content, and kept; None is a temporary file that has no name.
    pending_bytes : int
        How much may be on its way to the disk before a write waits.

    Raises
    ------
    OSError
        If the file cannot be opened, or another store has it open.
    """

    def __init__(self, size: int, path: str | None, *, pending_bytes: int = PENDING_BYTES) -> None:
        self.name = path or f"a temporary file in {tempfile.gettempdir()}"
        self._kept = path is not None
        self._most_pending = pending_bytes
        self._fd = _opened(path) if path is not None else _temporary()
        try:
            if os.fstat(self._fd).st_size < size:
                _lengthen(self._fd, size, self.name)
        except BaseException:
            os.close(self._fd)
            raise
        self.size = size
        self._reserving = threading.Lock()
        self._reserved: set[int] = set()
        self._behind = True  # whether writes may be behind: not where space cannot be reserved
        self._changed = threading.Condition()
        self._entries: deque[_Entry] = deque()
        self._index: dict[int, deque[_Entry]] = {}
        self.pending = 0
        self._added = self._written = 0
        self._error: OSError | None = None
        self._failed_sync: OSError | None = None
        self._closing = self._closed = self._forked = False
        self._thread = threading.Thread(target=self._write_behind, name="penstock-memory-disk", daemon=True)
        self._thread.start()

    def reserve(self, offset: int, length: int) -> None:
        """
        Have the disk keep room for a range, so that writing it cannot fail for want of space.

        Raises
        ------
        OSError
            ``ENOSPC`` or ``EDQUOT`` if it has none.
        """
        last = (offset + length - 1) // EXTENT_BYTES
        for extent in range(offset // EXTENT_BYTES, last + 1):
            if extent not in self._reserved and self._behind:
                self._reserve_extent(extent, offset, offset + length)

    def write(self, offset: int, data: Buffer) -> Union[bytes, memoryview]:
        """
        Write bytes behind; their range has been reserved. ``bytes``, and views of them, are kept without a copy.

        Returns
        -------
        bytes or memoryview
            What is written, which stays what it is when the caller changes the buffer.

        Raises
        ------
        OSError
            If an earlier write failed: it is kept in memory and tried again, and this one is not accepted. Where the
            file system cannot reserve space, this write's own error.
        """
        copy = _unchanging(data)
        if not self._behind:
            self._check_forked()
            self.drain()  # what was behind until now goes first
            _write_all(self._fd, [memoryview(copy)], offset)
            return copy
        with self._changed:
            self._check_forked()
            self._raise_error()
            if self.pending and self.pending + len(copy) > self._most_pending:
                self._changed.wait_for(lambda: self._has_room(len(copy)))
                self._raise_error()
            self._added += 1
            entry = _Entry(self._added, offset, copy)
            self._entries.append(entry)
            self.pending += len(copy)
            for place in _places(entry):
                self._index.setdefault(place, deque()).append(entry)
            self._changed.notify_all()
        return copy

    def read_into(self, offset: int, view: memoryview) -> None:
        """
        Read bytes, with the writes that are on their way.

        Raises
        ------
        OSError
            As the disk has it; ``EIO`` if somebody has cut the file off.
        """
        over = self._overlapping(offset, offset + len(view))  # before the disk: what leaves here, is there
        if not (over and over[-1].offset <= offset and over[-1].offset + len(over[-1].data) >= offset + len(view)):
            self._read_disk(offset, view)
        for entry in over:
            begin, end = max(offset, entry.offset), min(offset + len(view), entry.offset + len(entry.data))
            view[begin - offset : end - offset] = memoryview(entry.data)[begin - entry.offset : end - entry.offset]

    def erase(self, offset: int, length: int) -> bool:
        """
        Have a range read as zeros, and give its space back to the disk; what is on its way is waited for.

        Nobody writes to the range meanwhile.

        Returns
        -------
        bool
            Whether the file system can; if not, nothing has changed.

        Raises
        ------
        OSError
            As from :meth:`drain`, or as the disk has it.
        """
        self._check_forked()
        self.drain()
        with self._reserving:
            error = _fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length)
            if error in _UNSUPPORTED:
                return False
            self._reserved.difference_update(range(offset // EXTENT_BYTES, (offset + length - 1) // EXTENT_BYTES + 1))
        if error:
            raise OSError(error, f"cannot give space back: {os.strerror(error)}", self.name)
        return True

    def drain(self) -> None:
        """
        Wait until everything so far is with the operating system.

        Raises
        ------
        OSError
            If it could not be written, which is tried again. ``EBADF`` if the file is closed meanwhile, and what was
            to be written is lost with it.
        """
        if self._forked:
            return  # what was on its way is the parent's to write
        with self._changed:
            self._raise_error()
            added = self._added
            self._changed.wait_for(lambda: self._written >= added or self._error is not None or self._closing)
            self._raise_error()
            if self._written < added:
                raise OSError(errno.EBADF, "it was closed before everything was written", self.name)

    def flush(self) -> None:
        """
        Wait until everything so far is on disk.

        Raises
        ------
        OSError
            As from :meth:`drain`; and once the disk has failed to keep what it was given, each time from then on.
        """
        self.drain()
        if self._failed_sync is None:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._failed_sync = error
        if self._failed_sync is not None:
            number = self._failed_sync.errno or errno.EIO
            raise OSError(number, f"what was written may not be on disk: {os.strerror(number)}", self.name)

    def close(self) -> None:
        """
        Write what is on its way, if the file is kept, and close it.

        Raises
        ------
        OSError
            If it could not be written: the file is closed all the same.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            failed = self._error
            if self._kept:
                self._error = None
                self._changed.notify_all()
        if self._forked:
            os.close(self._fd)
            return
        if self._kept:
            failed = None  # it is tried again
            try:
                self.flush()
            except OSError as error:
                failed = error
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._kept:
            with suppress(OSError):  # a forked child may have it open still, and would keep it locked
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        if failed is not None:
            raise failed

    def before_fork(self) -> None:
        """Write what is on its way, and keep the state as it is until after the fork."""
        if not (self._forked or self._closed):
            try:
                self.drain()
            except OSError as error:  # the child has a copy of what was not written
                _log.warning("memory_not_written_before_fork file=%s error=%s", self.name, error)
        self._reserving.acquire()
        self._changed.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._changed.release()
        self._reserving.release()

    def after_fork_in_child(self) -> None:
        """Read from now on, and write nothing."""
        self._changed, self._reserving = threading.Condition(), threading.Lock()
        self._forked = True

    def _reserve_extent(self, extent: int, begin: int, end: int) -> None:
        start, stop = extent * EXTENT_BYTES, min((extent + 1) * EXTENT_BYTES, self.size)
        with self._reserving:
            self._check_forked()
            error = _fallocate(self._fd, 0, start, stop - start)
            if not error:
                self._reserved.add(extent)
            elif error in _FULL:  # then only what is needed now
                start, stop = max(start, begin), min(stop, end)
                error = _fallocate(self._fd, 0, start, stop - start)
        if error in _UNSUPPORTED:
            _log.info("memory_space_not_reserved file=%s; each write waits for the disk", self.name)
            self._behind = False
        elif error:
            message = f"no room for {end - begin} bytes at {begin}: {os.strerror(error)}; free some, or set TMPDIR"
            raise OSError(error, message, self.name)

    def _has_room(self, length: int) -> bool:
        return not self.pending or self.pending + length <= self._most_pending or self._error is not None

    def _raise_error(self) -> None:
        """Raise an error of the writer, with the lock held, and have it try again."""
        if self._error is not None:
            number, self._error = self._error.errno or errno.EIO, None
            self._changed.notify_all()
            what = f"cannot write: {os.strerror(number)}; {self.pending} bytes are kept in memory and tried again"
            raise OSError(number, what, self.name)

    def _check_forked(self) -> None:
        if self._forked:
            message = (
                "this store belongs to the process that opened it, and a forked child can only read it; "
                "open a store of its own in the child"
            )
            raise RuntimeError(message)

    def _overlapping(self, begin: int, end: int) -> list[_Entry]:
        """Return the writes on their way that touch a range, in their order."""
        if not self._entries:
            return []
        found: dict[int, _Entry] = {}
        with self._changed:
            for place in range(begin // _INDEX_BYTES, (end - 1) // _INDEX_BYTES + 1):
                for entry in self._index.get(place, ()):
                    if entry.offset < end and entry.offset + len(entry.data) > begin:
                        found[entry.number] = entry
        return [found[number] for number in sorted(found)]

    def _read_disk(self, offset: int, view: memoryview) -> None:
        while view:
            count = os.preadv(self._fd, [view], offset)
            if not count:
                raise OSError(errno.EIO, f"the file ends at {offset}: somebody has cut it off", self.name)
            offset, view = offset + count, view[count:]

    def _write_behind(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due)
                if self._closing:
                    return
                batch = self._next_batch()
            try:
                _write_all(self._fd, [memoryview(entry.data) for entry in batch], batch[0].offset)
            except OSError as error:
                _log.warning("memory_disk_failed file=%s error=%s", self.name, error)
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
            else:
                with self._changed:
                    self._remove(batch)
                    self._changed.notify_all()

    def _is_due(self) -> bool:
        return self._closing or (bool(self._entries) and self._error is None)

    def _next_batch(self) -> list[_Entry]:
        """Return the first write, and those after it that go on where it ends."""
        batch: list[_Entry] = []
        size = 0
        for entry in self._entries:
            if batch and (entry.offset != batch[0].offset + size or size >= _JOINED_BYTES or len(batch) >= _JOINED):
                break
            batch.append(entry)
            size += len(entry.data)
        return batch

    def _remove(self, batch: list[_Entry]) -> None:
        for entry in batch:
            self._entries.popleft()
            self.pending -= len(entry.data)
            for place in _places(entry):
                entries = self._index[place]
                entries.popleft()
                if not entries:
                    del self._index[place]
        self._written += len(batch)


def _opened(path: str) -> int:
    """Open a file that is kept, for this store alone."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "a store keeps its content in a regular file, and this is none", path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(
                error.errno, "another store has it open; close that one, or take another path", path
            ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _lengthen(fd: int, size: int, name: str) -> None:
    try:
        os.ftruncate(fd, size)
    except (OSError, OverflowError) as error:
        number = (isinstance(error, OSError) and error.errno) or errno.EFBIG
        raise OSError(number, f"no file can have {size} bytes there: {os.strerror(number)}", name) from error


def _temporary() -> int:
    folder, wanted = tempfile.gettempdir(), os.environ.get("TMPDIR")
    if wanted and os.path.abspath(wanted) != os.path.abspath(folder):
        _log.warning("memory_not_in_tmpdir tmpdir=%s folder=%s; it is no folder that can be written", wanted, folder)
    with tempfile.TemporaryFile(prefix="penstock-memory-", buffering=0) as file:
        return os.dup(file.fileno())


def _unchanging(data: Buffer) -> Union[bytes, memoryview]:
    """Return bytes that nobody can change: the same ones where that is so, else a copy."""
    view = memoryview(data)
    whole = view.obj
    # a small part would keep all of the rest in memory until it is written
    if type(whole) is bytes and (2 * len(view) >= len(whole) or len(view) >= _INDEX_BYTES):
        return view
    return bytes(view)


def _places(entry: _Entry) -> range:
    return range(entry.offset // _INDEX_BYTES, (entry.offset + len(entry.data) - 1) // _INDEX_BYTES + 1)


def _write_all(fd: int, views: list[memoryview], offset: int) -> None:
    while views:
        count = os.pwritev(fd, views, offset)
        offset += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


def _fallocate(fd: int, mode: int, offset: int, length: int) -> int:
    """Allocate or free space, and return the error's number or 0; glibc's ``posix_fallocate`` would write instead."""
    function = _system_fallocate()
    if function is None:
        return errno.ENOSYS
    while True:
        if not function(fd, mode, offset, length):
            return 0
        error = ctypes.get_errno()
        if error != errno.EINTR:
            return error


@cache
def _system_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return Linux's ``fallocate``; None where the system has none."""
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("fallocate64", "fallocate"):
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
            function.restype = ctypes.c_int
            return function  # type: ignore[no-any-return]  # what a library has is not typed
    return None
