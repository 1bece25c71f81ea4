"""
The streams of a session: numbered chunks on one side, a descriptor that never blocks on the other.

:class:`OutgoingStream` reads only what was asked for, and :class:`IncomingStream` takes only what comes next, so that
neither holds more than a window of chunks: a command that prints without end waits, as at a pipe that nobody reads, and
so does a client whose command reads nothing. Both belong to the event loop, and do at most a chunk's work in a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final, TypeVar

from penstock_log.session_messages import CHUNK_BYTES, POLL_S, WINDOW, ChunkRead, ChunkTaken

_WRITE_BYTES: Final = 64 * 1024
_END_OF_INPUT: Final = b"\x04"
"""What a terminal takes for the end of what is typed."""
T = TypeVar("T")


class ChunkRefused(Exception):
    """A chunk's number is none that can come now."""


class OutgoingStream:
    """
    What a descriptor gives, in chunks; each is made when it is asked for, and kept until it has come.

    Parameters
    ----------
    fd : int
        A pipe, a terminal or a connection; the stream closes it.
    """

    def __init__(self, fd: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        os.set_blocking(fd, False)
        self._fd, self._chunk_bytes = fd, chunk_bytes
        self._loop = asyncio.get_running_loop()
        self._kept: dict[int, ChunkRead] = {}
        self._asked: dict[int, asyncio.Future[ChunkRead]] = {}
        self._next, self._ended, self._is_turn = 0, False, False

    async def read(self, number: int, received: int, wait_s: float = POLL_S) -> ChunkRead:
        """
        Return the chunk of a number, once there is one.

        Raises
        ------
        ChunkRefused
            If it is none of those that may be under way.
        """
        for old in [kept for kept in self._kept if kept < received]:
            del self._kept[old]
        if number in self._kept:
            return self._kept[number]
        if number < self._next or number >= min(received, self._next) + WINDOW:  # what has come is the client's word
            raise ChunkRefused(f"chunk {number} is not to be had: the next one is {self._next}, {received} have come")
        if self._ended:
            return ChunkRead(last=True)
        asked = self._asked.setdefault(number, self._loop.create_future())
        self._turn()
        return await _within(asked, wait_s) or ChunkRead(again=True)

    def close(self) -> None:
        """Give the descriptor up; who waits hears that the stream has ended."""
        if self._fd >= 0:
            self._listen(False)
            os.close(self._fd)
            self._fd = -1
        self._end()

    def _turn(self) -> None:
        """Make the next chunk, if it was asked for."""
        self._is_turn = False
        if self._fd < 0 or self._ended or self._next not in self._asked:
            self._listen(False)
            return
        data = self._take()
        if data is None:
            self._listen(True)
        elif not data:
            self._end()
        else:
            chunk = self._kept[self._next] = ChunkRead(data=data)
            _settle(self._asked.pop(self._next), chunk)
            self._next += 1
            self._listen(False)
            if not self._is_turn:
                self._is_turn = True
                self._loop.call_soon(self._turn)

    def _take(self) -> bytes | None:
        """Return what there is, a chunk at most; nothing at the end, None where there is nothing now."""
        found = bytearray()
        while len(found) < self._chunk_bytes:
            try:
                part = os.read(self._fd, self._chunk_bytes - len(found))
            except BlockingIOError:
                return bytes(found) or None
            except OSError:  # a terminal that nobody has open any more, or a connection that was reset
                part = b""
            if not part:
                break  # it is found again at the next turn
            found += part
        return bytes(found)

    def _end(self) -> None:
        self._ended = True
        if self._fd >= 0:
            self._listen(False)
        for asked in self._asked.values():
            _settle(asked, ChunkRead(last=True))
        self._asked.clear()

    def _listen(self, is_wanted: bool) -> None:
        if is_wanted:
            self._loop.add_reader(self._fd, self._turn)
        elif self._fd >= 0:
            self._loop.remove_reader(self._fd)


class IncomingStream:
    """
    Chunks for a descriptor, taken in their order.

    Parameters
    ----------
    fd : int
        A pipe, a terminal or a connection; the stream closes it.
    kind : {"pipe", "terminal", "connection"}
        How the end of what comes is said: by closing, by a character, or by half-closing.
    """

    def __init__(self, fd: int, kind: str, on_closed: Callable[[], None] = lambda: None) -> None:
        os.set_blocking(fd, False)
        self._fd, self._kind, self._on_closed = fd, kind, on_closed
        self._loop = asyncio.get_running_loop()
        self._held: dict[int, tuple[bytes, bool]] = {}
        self._waiting: dict[int, asyncio.Future[ChunkTaken]] = {}
        self._next, self._offset, self._closed = 0, 0, False

    async def write(self, number: int, data: bytes, *, last: bool = False, wait_s: float = POLL_S) -> ChunkTaken:
        """
        Return once the chunk of a number was taken.

        Raises
        ------
        ChunkRefused
            If it is none of those that may be under way.
        """
        if number < self._next:
            return ChunkTaken(closed=self._closed)
        if self._closed:
            return ChunkTaken(closed=True)
        if number >= self._next + WINDOW:
            raise ChunkRefused(f"chunk {number} comes too early: the next one is {self._next}")
        if len(data) > CHUNK_BYTES:
            raise ChunkRefused(f"chunk {number} has {len(data):,} bytes, and {CHUNK_BYTES:,} may come at a time")
        self._held.setdefault(number, (data, last))
        waiting = self._waiting.setdefault(number, self._loop.create_future())
        self._turn()
        return await _within(waiting, wait_s) or ChunkTaken(again=True)

    def close(self) -> None:
        """Give the descriptor up; nothing more is taken."""
        self._closed = True
        self._held.clear()
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._on_closed()
        for waiting in self._waiting.values():
            _settle(waiting, ChunkTaken(closed=True))
        self._waiting.clear()

    def _turn(self) -> None:
        """Write what there is to write, as far as it is taken now."""
        while not self._closed and self._next in self._held:
            data, last = self._held[self._next]
            if not self._written(data):
                return
            del self._held[self._next]
            _settle(self._waiting.pop(self._next), ChunkTaken())
            self._next, self._offset = self._next + 1, 0
            if last:
                self._finish()

    def _written(self, data: bytes) -> bool:
        """Write the rest of a chunk; return whether all of it is."""
        view = memoryview(data)
        try:
            while self._offset < len(data):
                self._offset += os.write(self._fd, view[self._offset : self._offset + _WRITE_BYTES])
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._turn)
            return False
        except OSError:  # nobody reads it any more
            self.close()
            return False
        self._loop.remove_writer(self._fd)
        return True

    def _finish(self) -> None:
        """Say that nothing more comes."""
        if self._kind == "pipe":
            self.close()
        elif self._kind == "terminal":
            with contextlib.suppress(OSError):
                os.write(self._fd, _END_OF_INPUT)
        else:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as connection:
                connection.shutdown(socket.SHUT_WR)


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


async def _within(future: asyncio.Future[T], wait_s: float) -> T | None:
    """Return what comes within so many seconds; None otherwise: it may come later."""
    done, _ = await asyncio.wait({future}, timeout=wait_s)
    return future.result() if done else None
