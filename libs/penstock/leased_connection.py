"""
A connection about a lease: its proof, and bytes that are received and sent whole.

Slabs (:mod:`penstock.memory.frames`) and aggregators (:mod:`penstock.aggregation.frames`) are used over such
connections. Each begins with a proof that the client has the lease's token, which never crosses the wire:

1. client: the protocol's mark, 8 bytes, and the lease, 16 bytes;
2. server: a nonce, 16 bytes;
3. client: HMAC-SHA256 of the nonce and the lease by the token, 32 bytes;
4. server: a frame of the protocol, which accepts it or says what is wrong.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import hmac
import os
import socket
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, Union

Buffer = Union[bytes, bytearray, memoryview]

LEASE_BYTES: Final = 16
NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
_SEALS: Final = getattr(fcntl, "F_GET_SEALS", 1034)  # Linux has them; Python only from 3.9 on some platforms
_SEAL_SHRINK: Final = getattr(fcntl, "F_SEAL_SHRINK", 2)


class ConnectionEnded(ConnectionError):
    """The other side hung up, between two frames or inside one."""


def proof_of(token: bytes, lease: bytes, nonce: bytes) -> bytes:
    """Return what proves that one has the token of a lease, 32 bytes."""
    return hmac.new(token, nonce + lease, hashlib.sha256).digest()


def receive(connection: socket.socket, view: memoryview) -> None:
    """
    Fill a buffer from a connection.

    Raises
    ------
    ConnectionEnded
        If the other side hangs up before it is full.
    OSError
        If the connection breaks, or its time-out is over (``TimeoutError``).
    """
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionEnded
        view = view[count:]


def send(connection: socket.socket, header: bytes, payload: Buffer = b"") -> None:
    """Send a header and its payload, without copying them together; raises OSError as the socket does."""
    if not payload:
        connection.sendall(header)
        return
    sent = connection.sendmsg([header, payload])
    if sent < len(header):
        connection.sendall(header[sent:])
        sent = len(header)
    if sent < len(header) + len(payload):
        connection.sendall(memoryview(payload)[sent - len(header) :])


def descriptors_in(ancillary: Iterable[tuple[int, int, bytes]]) -> Iterator[int]:
    """Yield the descriptors that came with a message (``SCM_RIGHTS``), which are the caller's to close."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            yield from numbers


def room_for_descriptors(count: int) -> int:
    """Return the bytes that so many descriptors take beside a message."""
    return socket.CMSG_SPACE(count * array.array("i").itemsize)


def sealed_bytes(descriptor: int) -> int:
    """
    Return the size of memory that is sealed against shrinking (``F_SEAL_SHRINK``); 0 where it is not.

    Who reads memory that was cut off dies of it (``SIGBUS``), so nobody maps any other.
    """
    try:
        seals = fcntl.fcntl(descriptor, _SEALS)
    except OSError:  # no memory of a kind that has seals
        return 0
    return os.fstat(descriptor).st_size if seals & _SEAL_SHRINK else 0


@cache
def boot_id() -> str:
    """Return what names this boot of this machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
