"""
One borrowed slab as its client uses it: over TCP, or as shared memory where the donor is on the same host.

:func:`bind_slab` connects and proves that the client has the lease; what it returns reads and writes the slab until
anything at all goes wrong. Then it raises :class:`SlabLost`, once and for all: nothing is tried again on the same
binding, since the disk has what the slab had.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from typing import Final, Protocol

from penstock.leased_connection import (
    NONCE_BYTES,
    Buffer,
    ConnectionEnded,
    boot_id,
    descriptors_in,
    proof_of,
    room_for_descriptors,
    sealed_bytes,
    send,
)
from penstock.memory.frames import HEADER_BYTES, MAGIC, Frame, FrameError, Kind, Status, check, decoded, encoded
from penstock_log.memory_messages import SlabAddress

TIMEOUT_S: Final = 1.0
"""For how long a donor may take to accept a connection, and to give each answer."""
FRAME_BYTES: Final = 1 << 20
"""Longer reads and writes are split into frames of this size."""
PIPELINED: Final = 8
"""So many frames are under way at most."""
STATE_BYTES: Final = 4096
"""The page behind a shared slab's data, whose first word is the generation while it counts."""
_MOST_REASON: Final = 4096


class SlabLost(Exception):
    """The slab cannot be used any more; the message says why. Its binding is closed."""


class SlabBinding(Protocol):
    """A slab that is bound. All methods may be called from any thread."""

    slab_bytes: int
    kind: str
    """``tcp`` or ``shared``."""

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill ``view`` with the slab's bytes from ``offset`` on; raises :class:`SlabLost`."""
        ...

    def write(self, offset: int, data: Buffer) -> None:
        """Write bytes, and return once the slab has them; raises :class:`SlabLost`."""
        ...

    def close(self) -> None:
        """Let go of the slab. A read or write that is under way in another thread ends with :class:`SlabLost`."""
        ...

    def detach(self) -> None:
        """In a forked child: close what it inherited, without waiting for threads that it does not have."""
        ...


def bind_slab(address: SlabAddress, *, timeout_s: float = TIMEOUT_S) -> SlabBinding:
    """
    Connect to a slab's donor, by the shortest way that there is.

    Parameters
    ----------
    address : SlabAddress
        The slab, as the agent lent it.
    timeout_s : float
        For how long the donor may take to accept, and for each answer.

    Returns
    -------
    SlabBinding
        Shared memory where the donor runs under the same boot of the same kernel and its Unix socket can be reached;
        else a connection over TCP.

    Raises
    ------
    SlabLost
        If the donor does not answer, or does not accept the proof.
    """
    if address.socket and address.boot_id and address.boot_id == boot_id():
        with suppress(SlabLost, OSError):  # then it is tried over TCP, whose error counts
            return SharedSlab(address, timeout_s=timeout_s)
    return RemoteSlab(address, timeout_s=timeout_s)


class SlabConnection:
    """
    A connection about one lease: its proof, and frames with a time-out for each.

    The socket blocks and has its time-outs from the kernel: so a frame of 1 MiB is one system call, and a donor that
    sends it byte by byte does not get a new second for each.
    """

    def __init__(self, address: SlabAddress, *, timeout_s: float, over_unix: bool = False) -> None:
        self.address = address
        self.socket = self._connect(over_unix, timeout_s)
        self._timeout_s = timeout_s
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._request = 0
        try:
            self._prove()
        except BaseException:
            self.socket.close()
            raise

    def _connect(self, over_unix: bool, timeout_s: float) -> socket.socket:
        if over_unix:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(timeout_s)
                connection.connect(self.address.socket)
            except OSError:
                connection.close()
                raise
        else:
            connection = socket.create_connection((self.address.host, self.address.port), timeout=timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return connection

    def _prove(self) -> None:
        lease = bytes.fromhex(self.address.lease)
        self.socket.sendall(MAGIC + lease)
        nonce = memoryview(bytearray(NONCE_BYTES))
        self.receive(nonce)
        self.socket.sendall(proof_of(bytes.fromhex(self.address.token), lease, bytes(nonce)))
        answer = self.answer(Kind.HELLO, 0)
        if answer.length != self.address.slab_bytes:
            message = f"the slab has {answer.length} bytes, and was lent with {self.address.slab_bytes}"
            raise FrameError(Status.BAD_FRAME, message)

    def request(self, kind: Kind, offset: int, payload: Buffer = b"", length: int | None = None) -> tuple[int, bytes]:
        """Return the number and the header of a new request."""
        self._request = (self._request + 1) & 0xFFFFFFFF
        address = self.address
        size = len(payload) if length is None else length
        frame = Frame(kind, self._request, address.slab, address.generation, offset, size)
        return self._request, encoded(frame, payload)

    def answer(self, kind: Kind, request: int, into: memoryview | None = None) -> Frame:
        """
        Receive the answer of a request.

        Parameters
        ----------
        into : memoryview or None
            Filled with the payload; None where the answer has none.

        Raises
        ------
        FrameError
            If it is no good answer of this request, with the donor's reason where it gave one.
        ConnectionEnded, OSError
            As from :meth:`receive`.
        """
        self.receive(self._header)
        return self.checked(self._header, kind, request, into)

    def checked(self, header: memoryview, kind: Kind, request: int, into: memoryview | None) -> Frame:
        """Take in the answer whose header has come; see :meth:`answer`."""
        frame, checksum, begun = decoded(header)
        if frame.status != Status.OK:
            raise self._refusal(frame, checksum, begun)
        if frame.kind != kind or frame.request != request:
            message = f"an answer of request {request} ({kind.name}) is due, and {frame} came"
            raise FrameError(Status.BAD_FRAME, message)
        if kind != Kind.HELLO and frame.generation != self.address.generation:
            message = f"generation {frame.generation} answered, and {self.address.generation} was lent"
            raise FrameError(Status.STALE, message)
        if into is None:
            check(b"", checksum, begun)
            return frame
        if frame.length != len(into):
            message = f"{len(into)} bytes were asked for, and the answer has {frame.length}"
            raise FrameError(Status.BAD_FRAME, message)
        self.receive(into)
        check(into, checksum, begun)
        return frame

    def receive(self, view: memoryview) -> None:
        """
        Fill a buffer within the time-out.

        Raises
        ------
        ConnectionEnded
            If the donor hangs up before it is full.
        OSError
            If the connection breaks, or the time-out is over (``TimeoutError``).
        """
        begun_s = perf_counter()
        while True:
            try:
                count = self.socket.recv_into(view, len(view), socket.MSG_WAITALL)
            except BlockingIOError as error:
                message = f"no answer within {self._timeout_s:g} s"
                raise TimeoutError(message) from error
            if count == len(view):
                return
            if not count:
                raise ConnectionEnded
            if perf_counter() - begun_s >= self._timeout_s:
                message = f"no whole answer within {self._timeout_s:g} s"
                raise TimeoutError(message)
            view = view[count:]

    def hang_up(self) -> None:
        """Have every call that waits for the donor end now, in whatever thread it is."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _refusal(self, frame: Frame, checksum: int, begun: int) -> FrameError:
        reason = memoryview(bytearray(min(frame.length, _MOST_REASON)))
        self.receive(reason)
        if len(reason) == frame.length:
            check(reason, checksum, begun)
        status = Status(frame.status) if frame.status in Status.__members__.values() else Status.BAD_FRAME
        return FrameError(status, f"{status.name}: {bytes(reason).decode(errors='replace')}")


class _Slab(ABC):
    """What both kinds of binding share: one user at a time, and one way to be lost."""

    kind = ""

    def __init__(self, address: SlabAddress) -> None:
        self.slab_bytes = address.slab_bytes
        self._address = address
        self._lock = threading.Lock()
        self._closed = False

    def _lost(self, error: Exception) -> SlabLost:
        """Close with the lock held, and return what to raise."""
        reason = "the donor hung up" if isinstance(error, ConnectionEnded) else str(error) or type(error).__name__
        if self._closed:
            reason = "it was closed"
        self._closed = True
        self._release()
        return SlabLost(f"slab {self._address.slab} of {self._address.donor}: {reason}")

    def _check_range(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self.slab_bytes:
            message = f"bytes {offset} to {offset + length} are not within the slab's {self.slab_bytes}"
            raise ValueError(message)
        if self._closed:
            raise SlabLost(f"slab {self._address.slab} of {self._address.donor}: it was closed")

    def close(self) -> None:
        self._closed = True
        self._interrupt()
        with self._lock:
            self._release()

    def detach(self) -> None:
        self._closed = True
        self._lock = threading.Lock()
        self._release()

    @abstractmethod
    def _interrupt(self) -> None:
        """Have an operation of another thread end soon."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of the connection, and of memory that is shared; twice does nothing."""


class RemoteSlab(_Slab):
    """A slab over TCP."""

    kind = "tcp"

    def __init__(self, address: SlabAddress, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(address)
        try:
            self._connection = SlabConnection(address, timeout_s=timeout_s)
        except (OSError, FrameError, ConnectionEnded) as error:
            reason = "the donor hung up" if isinstance(error, ConnectionEnded) else str(error)
            message = f"slab {address.slab} of {address.donor} at {address.host}:{address.port}: {reason}"
            raise SlabLost(message) from error

    def read_into(self, offset: int, view: memoryview) -> None:
        """See :class:`SlabBinding`."""
        connection = self._connection
        with self._lock:
            self._check_range(offset, len(view))
            try:
                if 0 < len(view) <= FRAME_BYTES:  # as most are: nothing is sliced, listed or joined for it
                    request, header = connection.request(Kind.READ, offset, length=len(view))
                    connection.socket.sendall(header)
                    connection.answer(Kind.READ, request, view)
                    return
                for window in _windows(offset, len(view)):
                    asked = [(connection.request(Kind.READ, at, length=size), at, size) for at, size in window]
                    connection.socket.sendall(b"".join([header for (_, header), _, _ in asked]))
                    for (request, _), at, size in asked:
                        connection.answer(Kind.READ, request, view[at - offset : at - offset + size])
            except (OSError, FrameError, ConnectionEnded) as error:
                raise self._lost(error) from error

    def write(self, offset: int, data: Buffer) -> None:
        """See :class:`SlabBinding`."""
        connection, view = self._connection, memoryview(data)
        with self._lock:
            self._check_range(offset, len(view))
            try:
                if 0 < len(view) <= FRAME_BYTES:  # as for a read
                    request, header = connection.request(Kind.WRITE, offset, view)
                    send(connection.socket, header, view)
                    connection.answer(Kind.WRITE, request)
                    return
                for window in _windows(offset, len(view)):
                    asked = []
                    for at, size in window:
                        payload = view[at - offset : at - offset + size]
                        request, header = connection.request(Kind.WRITE, at, payload)
                        send(connection.socket, header, payload)
                        asked.append(request)
                    for request in asked:
                        connection.answer(Kind.WRITE, request)
            except (OSError, FrameError, ConnectionEnded) as error:
                raise self._lost(error) from error

    def _interrupt(self) -> None:
        self._connection.hang_up()

    def _release(self) -> None:
        self._connection.socket.close()


class SharedSlab(_Slab):
    """
    A slab as memory that donor and client share.

    What is copied counts only if the slab's last page says so afterwards: the donor clears that word first, and only
    then does anything else to the memory.
    """

    kind = "shared"

    def __init__(self, address: SlabAddress, *, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(address)
        try:
            self._connection = SlabConnection(address, timeout_s=timeout_s, over_unix=True)
            try:
                self._map = self._shared_map()
            except BaseException:
                self._connection.socket.close()
                raise
        except (OSError, FrameError, ConnectionEnded) as error:
            reason = "the donor hung up" if isinstance(error, ConnectionEnded) else str(error)
            message = f"slab {address.slab} of {address.donor} at {address.socket}: {reason}"
            raise SlabLost(message) from error
        self._data = memoryview(self._map)
        self._state = self._data[self.slab_bytes : self.slab_bytes + 8].cast("Q")

    def _shared_map(self) -> mmap.mmap:
        connection = self._connection
        request, header = connection.request(Kind.SHARE, 0, length=0)
        connection.socket.sendall(header)
        answer = bytearray(HEADER_BYTES)
        found, descriptors = _receive_with_descriptors(connection.socket)
        try:
            if not found:
                raise ConnectionEnded
            answer[: len(found)] = found
            rest = memoryview(answer)[len(found) :]
            if rest:
                connection.receive(rest)
            connection.checked(memoryview(answer), Kind.SHARE, request, None)
            if len(descriptors) != 1:
                message = f"one descriptor was to come, and {len(descriptors)} came"
                raise FrameError(Status.BAD_FRAME, message)
            if sealed_bytes(descriptors[0]) < self.slab_bytes + STATE_BYTES:
                size = os.fstat(descriptors[0]).st_size
                message = f"its memory has {size} bytes, or is not sealed against shrinking"
                raise FrameError(Status.BAD_FRAME, message)
            return mmap.mmap(descriptors[0], self.slab_bytes + STATE_BYTES)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def read_into(self, offset: int, view: memoryview) -> None:
        """See :class:`SlabBinding`."""
        with self._lock:
            self._check_range(offset, len(view))
            view[:] = self._data[offset : offset + len(view)]
            self._check_state()

    def write(self, offset: int, data: Buffer) -> None:
        """See :class:`SlabBinding`."""
        with self._lock:
            self._check_range(offset, len(data))
            self._data[offset : offset + len(data)] = data
            self._check_state()

    def _check_state(self) -> None:
        state = self._state[0]
        if state != self._address.generation:
            what = "the donor took it back" if not state else f"generation {state} is there now"
            raise self._lost(FrameError(Status.STALE, what))

    def _interrupt(self) -> None:
        """Do nothing: a copy waits for nobody."""

    def _release(self) -> None:
        self._connection.socket.close()
        self._state.release()
        self._data.release()
        self._map.close()


def _windows(offset: int, length: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the frames of a range, as ``(offset, length)``, in groups of those that are under way together."""
    frames = [(at, min(FRAME_BYTES, offset + length - at)) for at in range(offset, offset + length, FRAME_BYTES)]
    for first in range(0, len(frames), PIPELINED):
        yield frames[first : first + PIPELINED]


def _receive_with_descriptors(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next bytes of a connection, one header's at most, and the descriptors that came with them."""
    try:
        found, ancillary, _, _ = connection.recvmsg(HEADER_BYTES, room_for_descriptors(4), socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError as error:
        message = "no answer in time"
        raise TimeoutError(message) from error
    return found, list(descriptors_in(ancillary))
