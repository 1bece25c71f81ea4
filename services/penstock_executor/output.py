"""
A process's output on its way from its files to the log: in pieces, at a limited rate, without filling the disk.

What has been read is given back to the file system by punching holes: the files stay append-only for the process, which
may be writing at that very moment, and still take no more room than what is unread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

import msgspec

KEPT_BYTES: Final = 8 * 1024
"""Of what is dropped, the end is kept: it holds the error message."""
PUNCH_BYTES: Final = 1024 * 1024
BLOCK_BYTES: Final = 4096
_KEEP_SIZE_AND_PUNCH: Final = 0x01 | 0x02
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Limit:
    """
    A token bucket.

    Parameters
    ----------
    rate_bytes_per_s, burst_bytes : int
    """

    def __init__(self, rate_bytes_per_s: int, burst_bytes: int) -> None:
        self.rate = rate_bytes_per_s
        self.burst = burst_bytes
        self._tokens = float(burst_bytes)
        self._at_s: float | None = None

    def available(self, now_s: float) -> int:
        """Return how many bytes may pass now."""
        since_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._tokens = min(self.burst, self._tokens + since_s * self.rate)
        self._at_s = now_s
        return max(0, int(self._tokens))

    def take(self, size: int) -> None:
        """Let so many bytes pass, even if they were not available."""
        self._tokens -= size


class Piece(msgspec.Struct, frozen=True):
    """What is to be published next; once it is, reading goes on at ``end``, or further on where too much waits."""

    data: bytes
    end: int
    skip_to: int = 0


class Tail:
    """
    One output file being read while it is written.

    Parameters
    ----------
    path : Path
        Need not exist yet. ``<path>.read`` remembers how far it was published, over restarts of the executor; one that
        is killed between publishing and remembering publishes that piece twice, and never loses one.
    limit : Limit
        May be shared with other files.

    Attributes
    ----------
    dropped_bytes : int
        Over the tail's whole life.
    """

    def __init__(self, path: Path, limit: Limit) -> None:
        self.dropped_bytes = 0
        self._path = path
        self._mark = path.with_name(f"{path.name}.read")
        self._limit = limit
        self._fd = -1
        self._offset = _number(self._mark)
        self._punched = self._offset
        self._gap_bytes = 0

    def look(self, now_s: float, final: bool = False) -> Piece | None:
        """
        Return the next piece; None where there is nothing to publish now.

        What is over the limit is dropped, with a line in its place that says how much. ``final``: the process has
        ended, and the last of its output comes through whatever the limit.
        """
        size = self._size()
        budget = self._limit.available(now_s)
        if final:
            budget = max(budget, KEPT_BYTES)
            self._skip_to(size - budget)
        elif not budget or (self._gap_bytes and budget < min(self._limit.rate, self._limit.burst)):
            self._skip_to(
                size - KEPT_BYTES
            )  # one line about a gap for each second's worth of output, not for each look
            return None
        unread = size - self._offset
        if unread <= 0:
            return None
        data = os.pread(self._fd, min(unread, budget), self._offset)
        if unread <= budget and not final:
            data = _to_line_end(data)
        skip_to = size - KEPT_BYTES if unread > budget else 0
        return Piece(self._gap_line() + data, self._offset + len(data), skip_to)

    def done(self, piece: Piece) -> None:
        """Note that a piece was published, and give its room back."""
        self._limit.take(len(piece.data))
        self._offset, self._gap_bytes = piece.end, 0
        self._skip_to(piece.skip_to)
        self._release()

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _size(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                return 0
        return os.fstat(self._fd).st_size

    def _skip_to(self, offset: int) -> None:
        skipped = offset - self._offset
        if skipped > 0:
            self._gap_bytes += skipped
            self.dropped_bytes += skipped
            self._offset = offset
            self._release()

    def _gap_line(self) -> bytes:
        if not self._gap_bytes:
            return b""
        return f"[penstock: {self._gap_bytes} bytes of output dropped: over {self._limit.rate} bytes/s]\n".encode()

    def _release(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: after a restart, some output is published twice
            self._mark.write_text(str(self._offset))
        end = self._offset // BLOCK_BYTES * BLOCK_BYTES
        if end - self._punched >= PUNCH_BYTES:
            _libc.fallocate(self._fd, _KEEP_SIZE_AND_PUNCH, self._punched, end - self._punched)
            self._punched = end


def _to_line_end(data: bytes) -> bytes:
    """Leave the beginning of an unfinished line for the next time, unless there is no end of line at all."""
    end = data.rfind(b"\n") + 1
    return data[:end] if end else data


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
