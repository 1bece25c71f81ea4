"""
One connection to an aggregator: its proof, and then frames in both directions without ever blocking.

:func:`dial` connects and proves the lease. :class:`AggregatorConnection` keeps what could not be sent yet, and takes in
what comes: its owner says where each payload goes as soon as its header is there.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Sequence
from typing import Callable, Final

from penstock.aggregation.frames import (
    HEADER_BYTES,
    MAGIC,
    PartFlag,
    PartFrame,
    PartFrameError,
    PartRequest,
    PartStatus,
    decoded,
    encoded,
)
from penstock.leased_connection import (
    NONCE_BYTES,
    Buffer,
    ConnectionEnded,
    boot_id,
    descriptors_in,
    proof_of,
    receive,
    room_for_descriptors,
)
from penstock_log.aggregation_messages import AggregatorAddress

DIAL_S: Final = 5.0
"""So long an aggregator may take to accept a connection and its proof."""
KEPT_ALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000))
"""A peer whose machine is gone, or cut off, is noticed in twenty seconds."""
_MOST_REASON: Final = 4096
_MOST_DESCRIPTORS: Final = 16


def dial(address: AggregatorAddress, *, timeout_s: float = DIAL_S) -> socket.socket:
    """
    Connect to an aggregator and prove the lease.

    Parameters
    ----------
    address : AggregatorAddress
    timeout_s : float
        For how long the aggregator may take for each step of it.

    Returns
    -------
    socket
        Over a Unix socket where the aggregator is under the same boot of the same kernel and its socket can be found;
        else over TCP. It blocks.

    Raises
    ------
    OSError
        If it cannot be reached.
    PartFrameError
        If it does not accept the proof, or is no aggregator.
    """
    connection = _connect(address, timeout_s)
    try:
        connection.settimeout(timeout_s)
        lease = bytes.fromhex(address.lease)
        connection.sendall(MAGIC + lease)
        nonce = memoryview(bytearray(NONCE_BYTES))
        receive(connection, nonce)
        connection.sendall(proof_of(bytes.fromhex(address.token), lease, bytes(nonce)))
        read_answer(connection, PartRequest.HELLO)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def read_answer(connection: socket.socket, kind: PartRequest) -> PartFrame:
    """
    Receive an answer without a payload, blocking.

    Raises
    ------
    PartFrameError
        If it is none, or says that something was wrong.
    OSError
        If the connection breaks.
    """
    header = memoryview(bytearray(HEADER_BYTES))
    receive(connection, header)
    frame = decoded(header)
    if frame.status != PartStatus.OK:
        reason = memoryview(bytearray(min(frame.length, _MOST_REASON)))
        receive(connection, reason)
        raise PartFrameError(status_of(frame), bytes(reason).decode(errors="replace"))
    if frame.kind != kind or frame.length:
        raise PartFrameError(PartStatus.BAD_FRAME, f"an answer of kind {kind.name} is due, and {frame} came")
    return frame


def status_of(frame: PartFrame) -> PartStatus:
    """Return the status of an answer; one that is unknown counts as a bad frame."""
    return PartStatus(frame.status) if frame.status in PartStatus.__members__.values() else PartStatus.BAD_FRAME


def _connect(address: AggregatorAddress, timeout_s: float) -> socket.socket:
    if address.socket and address.boot_id and address.boot_id == boot_id() and os.path.exists(address.socket):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address.socket)
        except OSError:  # then it is tried over TCP, whose error counts
            connection.close()
        else:
            return connection
    connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEPT_ALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


class AggregatorConnection:
    """
    A connection that is proved, and whose socket does not block.

    Parameters
    ----------
    address : AggregatorAddress
    connection : socket
        As from :func:`dial`.
    place_for : callable
        Called with the header of each answer; returns where its payload goes, as views of that length together.
    answered : callable
        Called with the header once its payload is there, and with the descriptor that came with it, which is closed
        afterwards; -1 where none came.

    Attributes
    ----------
    shares : bool
        Whether the aggregator was given this rank's memory.
    sent_bytes, received_bytes : int
    """

    def __init__(
        self,
        address: AggregatorAddress,
        connection: socket.socket,
        place_for: Callable[[PartFrame], Sequence[memoryview]],
        answered: Callable[[PartFrame, int], None],
    ) -> None:
        self.address, self.socket = address, connection
        self.shares = False
        self.sent_bytes = self.received_bytes = 0
        self._place_for, self._answered = place_for, answered
        self._queue: deque[memoryview] = deque()
        self._over_unix = connection.family == socket.AF_UNIX
        self._descriptors: deque[int] = deque()
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._frame: PartFrame | None = None
        self._wanted: deque[memoryview] = deque([self._header])
        connection.setblocking(False)

    @property
    def wants_to_send(self) -> bool:
        """Whether there is anything that could not be sent yet."""
        return bool(self._queue)

    def share(self, frame: PartFrame, descriptor: int) -> None:
        """Give the aggregator this rank's memory; to be called before anything else is sent."""
        header = encoded(frame)
        if socket.send_fds(self.socket, [header], [descriptor]) < len(header):
            raise ConnectionEnded
        self.shares = True

    def send(self, frame: PartFrame, *payload: Buffer) -> None:
        """Queue a frame, whose payload nobody changes; :meth:`send_more` sends it."""
        self._queue.append(memoryview(encoded(frame)))
        self._queue.extend(memoryview(piece).cast("B") for piece in payload if len(piece))

    def send_more(self) -> None:
        """Send what waits, as far as there is room; raises OSError as the socket does."""
        while self._queue:
            try:
                sent = self.socket.sendmsg(list(self._queue)[:8])
            except BlockingIOError:
                return
            self.sent_bytes += sent
            while sent:
                first = self._queue[0]
                if sent < len(first):
                    self._queue[0] = first[sent:]
                    break
                sent -= len(first)
                self._queue.popleft()

    def receive_more(self) -> None:
        """
        Take in what has come.

        Raises
        ------
        ConnectionEnded, OSError
            If the connection has ended.
        PartFrameError
            If what comes is no frame.
        """
        while True:
            while self._wanted:
                view = self._wanted[0]
                try:
                    count = self._receive(view)
                except BlockingIOError:
                    return
                if not count:
                    raise ConnectionEnded
                self.received_bytes += count
                if count < len(view):
                    self._wanted[0] = view[count:]
                else:
                    self._wanted.popleft()
            self._whole()

    def _receive(self, view: memoryview) -> int:
        if not self._over_unix:
            return self.socket.recv_into(view)
        room = room_for_descriptors(_MOST_DESCRIPTORS)
        count, ancillary, _, _ = self.socket.recvmsg_into([view], room, socket.MSG_CMSG_CLOEXEC)
        self._descriptors.extend(descriptors_in(ancillary))
        return count

    def _whole(self) -> None:
        if self._frame is None:
            self._frame = decoded(self._header)
            if self._frame.length:
                self._wanted.extend(view for view in self._place_for(self._frame) if len(view))
                return
        frame, self._frame = self._frame, None
        self._wanted.append(self._header)
        if not frame.flags & PartFlag.DESCRIPTOR:
            self._answered(frame, -1)
            return
        if not self._descriptors:
            raise PartFrameError(PartStatus.BAD_FRAME, "a descriptor was to come with an answer, and none came")
        descriptor = self._descriptors.popleft()
        try:
            self._answered(frame, descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Hang up."""
        self._queue.clear()
        self.socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
