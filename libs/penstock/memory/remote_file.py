"""
A store as a file, and as an array.

:class:`RemoteFile` is what ``open(path, "r+b", buffering=0)`` returns, of fixed size and above memory of other nodes.
:class:`RemoteArray` is a part of it as an array that is used as ``numpy.memmap`` is: what is taken from it by an index
is an ordinary array, read at that moment; what is set is written at that moment.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, NoReturn, Optional, Union

from penstock.leased_connection import Buffer
from penstock.memory.block_store import BlockStore, open_store, refuse_copy
from penstock.memory.fork_guard import guard_in_forks
from penstock.memory.slab_ranges import StoreStats

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = np.ndarray[Any, np.dtype[Any]]

_APART_BYTES: Final = 32 << 10
"""Rows of a stepped slice that are so far apart are read one by one."""
_BATCH_BYTES: Final = 8 << 20
"""So much is read at once of rows that are iterated over, or in between those of a stepped slice."""


class RemoteFile(io.RawIOBase):
    """
    A file of fixed size above other nodes' memory; all zeros at first.

    All methods may be called from any thread; ``read``, ``write`` and ``seek`` share one position, :meth:`pread` and
    :meth:`pwrite` use none.

    Parameters
    ----------
    size : int or None
        Bytes; None takes what the job says (``spill``), or all of a given store.
    path, local_bytes, socket, name
        As for :func:`~penstock.memory.block_store.open_store`.
    store : BlockStore or None
        A store to be used, which stays open when the file is closed; None opens one of ``size``.

    Examples
    --------
    >>> with RemoteFile(1 << 16, socket="") as file:
    ...     matrix = file.array("f4", (64, 32))
    ...     matrix[3] = 1.5
    ...     float(matrix[2:5].sum())
    48.0
    """

    def __init__(
        self,
        size: Optional[int] = None,
        *,
        path: Union[str, os.PathLike[str], None] = None,
        local_bytes: Optional[int] = None,
        socket: Optional[str] = None,
        name: str = "",
        store: Optional[BlockStore] = None,
    ) -> None:
        super().__init__()
        self._ready = False
        if store is not None and size is not None and size > store.size:
            message = f"the store has {store.size} bytes, and the file was to have {size}"
            raise ValueError(message)
        self._owns = store is None
        self.store = store or open_store(size, path=path, local_bytes=local_bytes, socket=socket, name=name)
        self.size = self.store.size if size is None else size
        self._position = 0
        self._lock = threading.RLock()
        self.rows_lock = threading.Lock()
        """Held while an array reads rows, changes parts of them and writes them back."""
        self._ready = True
        guard_in_forks(self, layer=0)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)  # a copy would close the store of the original

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def pread(self, length: int, offset: int) -> bytearray:
        """
        Return the bytes from ``offset`` on, fewer than ``length`` only at the end of the file.

        Raises
        ------
        ValueError
            If a number is negative, or the file is closed.
        OSError
            If the disk cannot be read.
        """
        data = bytearray(self._fitting(offset, length))
        self.store.read_into(offset, memoryview(data))
        return data

    def pread_into(self, view: Union[bytearray, memoryview], offset: int) -> int:
        """Fill a buffer from ``offset`` on, as :meth:`pread`; return how many bytes there were."""
        target = memoryview(view)
        target = target.cast("B") if target.nbytes else memoryview(bytearray())
        count = self._fitting(offset, len(target))
        self.store.read_into(offset, target[:count])
        return count

    def pwrite(self, data: Buffer, offset: int) -> int:
        """
        Write bytes at ``offset``; return how many, which is all.

        Raises
        ------
        ValueError
            If the offset is negative, or the file is closed.
        OSError
            ``ENOSPC`` if they end behind the file, of which nothing is written then, or the disk has no room.
        """
        size = memoryview(data).nbytes
        if self._fitting(offset, size) < size:
            message = f"the file has {self.size} bytes, and {size} at {offset} end behind it"
            raise OSError(errno.ENOSPC, message)
        self.store.write(offset, data)
        return size

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the position on; see ``io.RawIOBase``."""
        with self._lock:
            count = self.pread_into(buffer, self._position)
            self._position += count
        return count

    def write(self, data: Any) -> int:
        """Write at the position; see :meth:`pwrite`."""
        with self._lock:
            count = self.pwrite(data, self._position)
            self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, as ``io.RawIOBase`` does."""
        self._check_open()
        with self._lock:
            base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}.get(whence)
            if base is None or base + offset < 0:
                message = f"cannot go to {offset} (whence {whence}): it has to be 0 or later, from whence 0, 1 or 2"
                raise ValueError(message)
            self._position = base + offset
            return self._position

    def tell(self) -> int:
        """Return the position."""
        self._check_open()
        return self._position

    def flush(self) -> None:
        """Wait until everything is on disk."""
        if self._ready and not self.closed:
            self.store.flush()

    def stats(self) -> StoreStats:
        """Return what was read and written so far, and by which tiers."""
        return self.store.stats()

    def close(self) -> None:
        """
        Close the file, and its store unless it was given.

        Raises
        ------
        OSError
            If something could not be written.
        """
        try:
            if self._ready and not self.closed and self._owns:
                self._ready = False  # there is nothing left to flush
                self.store.close()
        finally:
            super().close()

    def array(self, dtype: npt.DTypeLike, shape: Union[int, Sequence[int]], *, offset: int = 0) -> RemoteArray:
        """
        Return a part of the file as an array.

        Parameters
        ----------
        dtype, shape
            As for ``numpy.memmap``, in C order; no Python objects.
        offset : int
            Where it begins, in bytes.

        Raises
        ------
        ValueError
            If it does not fit, or has Python objects.
        """
        return RemoteArray(self, dtype, shape, offset=offset)

    def before_fork(self) -> None:
        """Have nobody move the position, or change parts of rows, until after the fork."""
        self.rows_lock.acquire()
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()
        self.rows_lock.release()

    def after_fork_in_child(self) -> None:
        """Go on, with a position of its own."""
        self._lock, self.rows_lock = threading.RLock(), threading.Lock()

    def _fitting(self, offset: int, length: int) -> int:
        self._check_open()
        if offset < 0 or length < 0:
            message = f"neither an offset nor a length is negative: {offset}, {length}"
            raise ValueError(message)
        return max(0, min(length, self.size - offset))

    def _check_open(self) -> None:
        if self.closed:
            message = "the file is closed"
            raise ValueError(message)


class RemoteArray:
    """
    A part of a :class:`RemoteFile` as an array of fixed type and shape, in C order.

    Indices are those of numpy. What an index gives is read from the store, whole rows at a time, and is an array of its
    own: changing it changes nothing here, while ``array[index] = value`` writes. A list of row numbers, or a mask, may
    be the first index too. ``numpy.asarray`` reads all of it.

    Attributes
    ----------
    dtype, shape, ndim, size, itemsize, nbytes
        As for an array.

    Examples
    --------
    >>> with RemoteFile(4096, socket="") as file:
    ...     table = file.array("i4", (10, 3))
    ...     table[::2] = [1, 2, 3]
    ...     table[8, 1] = 7
    ...     table[6:, 1:].tolist()
    [[2, 3], [0, 0], [7, 3], [0, 0]]
    """

    def __init__(
        self, file: RemoteFile, dtype: npt.DTypeLike, shape: Union[int, Sequence[int]], *, offset: int = 0
    ) -> None:
        import numpy as np  # noqa: PLC0415 - only arrays need it

        self.file, self.offset = file, offset
        self.dtype = np.dtype(dtype)
        self.shape: tuple[int, ...] = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))
        self.ndim, self.size, self.itemsize = len(self.shape), prod(self.shape), self.dtype.itemsize
        self.nbytes = self.size * self.itemsize
        if self.dtype.hasobject or not self.shape or min(self.shape) < 0:
            message = f"an array in a file has a shape, and no Python objects: {self.dtype}, {self.shape}"
            raise ValueError(message)
        if offset < 0 or offset + self.nbytes > file.size:
            message = f"{self.nbytes} bytes at {offset} are not within the file's {file.size}"
            raise ValueError(message)
        self._row_shape = self.shape[1:]
        self._row_bytes = prod(self._row_shape) * self.itemsize

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"RemoteArray(shape={self.shape}, dtype={self.dtype})"

    def __getitem__(self, index: Any) -> Any:
        first, rest = self._split(index)
        if isinstance(first, int):
            return self._read(range(first, first + 1))[(0, *rest)]
        rows = self._read(first)
        return rows[(slice(None), *rest)] if rest else rows

    def __setitem__(self, index: Any, value: Any) -> None:
        import numpy as np  # noqa: PLC0415 - only arrays need it

        first, rest = self._split(index)
        while rest and isinstance(rest[-1], slice) and rest[-1] == slice(None) and len(rest) < self.ndim:
            rest = rest[:-1]  # whole rows need not be read
        rows = range(first, first + 1) if isinstance(first, int) else first
        if not rest:
            if isinstance(first, int):
                value = np.asarray(value)[None] if np.ndim(value) == len(self._row_shape) else value
            whole = np.broadcast_to(np.asarray(value, dtype=self.dtype), (len(rows), *self._row_shape))
            self._write(rows, whole)
            return
        with self.file.rows_lock:  # two threads that set parts of the same rows, by this array or another one
            found = self._read(rows)
            found[(0, *rest) if isinstance(first, int) else (slice(None), *rest)] = value
            self._write(rows, found)

    def __iter__(self) -> Iterator[Any]:
        for block in self.blocks(max(1, _BATCH_BYTES // max(1, self._row_bytes))):
            yield from block

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Array:
        if copy is False:
            message = "an array in a store is copied when it is read; ask for a part of it by an index"
            raise ValueError(message)
        whole = self._read(range(len(self)))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def blocks(self, rows: int) -> Iterator[Array]:
        """
        Yield the array from its beginning to its end, ``rows`` rows at a time; the last block may have fewer.

        Raises
        ------
        ValueError
            If ``rows`` is less than 1.
        """
        if rows < 1:
            message = f"a block has one row or more, and not {rows}"
            raise ValueError(message)
        for begin in range(0, len(self), rows):
            yield self._read(range(begin, min(begin + rows, len(self))))

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self.file.flush()

    def _split(self, index: Any) -> tuple[Union[int, Sequence[int]], tuple[Any, ...]]:
        """Return the rows that an index is about, one number or several, and what is left for them."""
        indices = index if isinstance(index, tuple) else (index,)
        if not indices:
            return range(len(self)), ()
        if indices[0] is Ellipsis:
            named = sum(each is not None for each in indices[1:])
            if named < self.ndim:  # it stands for the rows, and maybe more
                return range(len(self)), () if len(indices) == 1 else indices
            indices = indices[1:]
        first, rest = indices[0], tuple(indices[1:])
        if first is None:
            message = "no new axis comes before the rows: take them first, and then [None]"
            raise IndexError(message)
        if isinstance(first, slice):
            return range(*first.indices(len(self))), rest
        if not hasattr(first, "__len__"):
            return self._row_number(first), rest
        if any(hasattr(each, "__len__") for each in rest):
            message = "only one list of numbers is an index here; take the rows first, and the rest of what comes"
            raise IndexError(message)
        return self._row_numbers(first), rest

    def _row_number(self, given: Any) -> int:
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            message = f"rows are a number, a slice, a list of numbers or a mask, and not {given!r}"
            raise IndexError(message)
        number = given.__index__()
        if not -len(self) <= number < len(self):
            message = f"index {number} is out of bounds for {len(self)} rows"
            raise IndexError(message)
        return int(number) % len(self)

    def _row_numbers(self, given: Any) -> list[int]:
        import numpy as np  # noqa: PLC0415 - only arrays need it

        numbers = np.asarray(given)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            numbers = np.flatnonzero(numbers)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            message = f"rows are a list of numbers or a mask of {len(self)}, and not {given!r}"
            raise IndexError(message)
        return [self._row_number(number) for number in numbers.tolist()]

    def _read(self, rows: Sequence[int]) -> Array:
        import numpy as np  # noqa: PLC0415 - only arrays need it

        found = np.empty((len(rows), *self._row_shape), self.dtype)
        if not found.nbytes:
            return found
        for places, begin, end, step in self._runs(rows):
            into = found[places]
            if step == 1:
                self._transfer(into, begin)
            else:
                span = np.empty((end - begin, *self._row_shape), self.dtype)
                self._transfer(span, begin)
                into[...] = span[::step] if step > 0 else span[::-1][::-step]
        return found

    def _transfer(self, rows: Array, begin: int) -> None:
        view = rows.reshape(-1).view("u1").data
        self.file.store.read_into(self.offset + begin * self._row_bytes, view)

    def _write(self, rows: Sequence[int], values: Array) -> None:
        import numpy as np  # noqa: PLC0415 - only arrays need it

        if not values.nbytes:
            return
        stride = rows.step if isinstance(rows, range) else 0
        if stride == 1:
            most = max(1, _BATCH_BYTES // self._row_bytes)
            for at in range(0, len(rows), most):
                self._write_rows(rows[at], np.ascontiguousarray(values[at : at + most]))
        else:
            for row, value in zip(rows, values):
                self._write_rows(row, np.ascontiguousarray(value))

    def _write_rows(self, row: int, values: Array) -> None:
        self.file.store.write(self.offset + row * self._row_bytes, values.reshape(-1).view("u1").data)

    def _runs(self, rows: Sequence[int]) -> Iterator[tuple[slice, int, int, int]]:
        """
        Yield how to read rows: where they go in the result, the rows from ``begin`` to before ``end``, every ``step``.

        Rows that are far apart are read one by one; of those that are near, what lies between is read too.
        """
        if not isinstance(rows, range):
            at = 0
            while at < len(rows):
                stop = at + 1
                while stop < len(rows) and rows[stop] == rows[stop - 1] + 1:
                    stop += 1
                yield slice(at, stop), rows[at], rows[at] + stop - at, 1
                at = stop
            return
        step = rows.step
        if step == 1:
            yield slice(0, len(rows)), rows[0], rows[-1] + 1, 1
        elif abs(step) * self._row_bytes >= _APART_BYTES:
            for at, row in enumerate(rows):
                yield slice(at, at + 1), row, row + 1, 1
        else:
            most = max(1, _BATCH_BYTES // (abs(step) * self._row_bytes))
            for at in range(0, len(rows), most):
                some = rows[at : at + most]
                yield slice(at, at + len(some)), min(some[0], some[-1]), max(some[0], some[-1]) + 1, step
