"""
Frames of the slab protocol: what a client and a donor's agent say to each other about one borrowed slab.

A connection is about one lease of one slab, over TCP, or over a Unix socket where both are on one host. It begins with
:data:`MAGIC` and the proof of :mod:`penstock.leased_connection`, which the agent answers by a frame:
:attr:`Status.OK` with the slab's size as ``length``, or what is wrong.

From then on the client sends requests, several at a time if it likes, and the agent answers them in order. A frame is a
header of 36 bytes, and a payload where it is a write, the answer to a read, or an answer that is an error (its reason,
UTF-8). Numbers are in network order:

=========  ======  ====================================================================
field      format  meaning
=========  ======  ====================================================================
mark       u16     0x5053
kind       u8      :class:`Kind`
status     u8      :class:`Status`; 0 in requests
request    u32     the client's number of a request; its answer has the same
slab       u32     the slab, by the agent's number
generation u64     which lending of the slab it is; an older one is refused
offset     u64     where in the slab, in bytes
length     u32     how many bytes are read, written, or follow as the payload
checksum   u32     CRC-32C of the header without this field, and of the payload
=========  ======  ====================================================================

The checksum covers the header too: a write whose offset was torn would else be a good write to the wrong place.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.leased_connection import Buffer

try:
    from crc32c import crc32c
except ImportError as missing:
    message = "memory of other nodes needs the package crc32c: pip install 'penstock-sdk[memory]'"
    raise ImportError(message) from missing

MAGIC: Final = b"PENSLAB1"
MOST_BYTES: Final = 4 << 20
"""The longest payload of one frame; who has more sends several."""
_MARK: Final = 0x5053
_FIELDS: Final = struct.Struct("!HBBIIQQI")
_CHECKSUM: Final = struct.Struct("!I")
HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM.size


class Kind(IntEnum):
    """What a frame asks, or answers."""

    HELLO = 0
    READ = 1
    WRITE = 2
    SHARE = 3
    """
    Over a Unix socket: the answer comes with the descriptor of the slab's memory (``SCM_RIGHTS``).

    That memory is the slab's data and then a page of 4096 bytes, which begins with the generation (u64, native order)
    while it counts, and with 0 once it does not. It is sealed against shrinking (``F_SEAL_SHRINK``): a client that
    copies from memory that was cut off dies of it (``SIGBUS``), so it takes no other.
    """


class Status(IntEnum):
    """What came of a request."""

    OK = 0
    BAD_PROOF = 1
    """There is no such lease, or the client has not its token."""
    STALE = 2
    """The lease is over, or the generation is an older one: the slab holds nothing of the client's any more."""
    BAD_CHECKSUM = 3
    """The payload or the header was altered on its way; what the slab holds there is unknown."""
    OUT_OF_RANGE = 4
    TOO_LONG = 5
    BAD_FRAME = 6
    """It is no frame of this protocol, or not one that is answered here."""


class Frame(NamedTuple):
    """The header of a frame; see the module for its fields."""

    kind: int
    request: int = 0
    slab: int = 0
    generation: int = 0
    offset: int = 0
    length: int = 0
    status: int = Status.OK


class FrameError(Exception):
    """What came is no frame, or a damaged one; ``status`` says which."""

    def __init__(self, status: Status, message: str) -> None:
        """Keep the status for the answer; the message names what was wrong."""
        super().__init__(message)
        self.status = status


def checksum_of(data: Buffer, before: int = 0) -> int:
    """
    Return the CRC-32C (Castagnoli) of some bytes, going on from that of the bytes ``before``.

    Examples
    --------
    >>> hex(checksum_of(b"123456789")), hex(checksum_of(b"6789", checksum_of(b"12345")))
    ('0xe3069283', '0xe3069283')
    """
    return crc32c(data, before)


def encoded(frame: Frame, payload: Buffer = b"") -> bytes:
    """Return the header of a frame; the payload goes after it, and counts for the checksum."""
    fields = _FIELDS.pack(
        _MARK, frame.kind, frame.status, frame.request, frame.slab, frame.generation, frame.offset, frame.length
    )
    checksum = checksum_of(fields)
    return fields + _CHECKSUM.pack(checksum_of(payload, checksum) if payload else checksum)


def decoded(header: Buffer) -> tuple[Frame, int, int]:
    """
    Return ``(frame, checksum, begun)`` of a header: what it says the checksum is, and that of its own fields.

    ``checksum_of(payload, begun)`` is to be ``checksum``; :func:`check` compares.

    Raises
    ------
    FrameError
        If it does not begin like a frame.
    """
    fields = memoryview(header)[: _FIELDS.size]
    mark, kind, status, request, slab, generation, offset, length = _FIELDS.unpack(fields)
    if mark != _MARK:
        raise FrameError(Status.BAD_FRAME, f"a frame begins with {_MARK:#x}, and this with {mark:#x}")
    (checksum,) = _CHECKSUM.unpack(memoryview(header)[_FIELDS.size : HEADER_BYTES])
    return Frame(kind, request, slab, generation, offset, length, status), checksum, checksum_of(fields)


def check(payload: Buffer, checksum: int, begun: int) -> None:
    """
    Check a payload, and the header it came with, against the header's checksum.

    Raises
    ------
    FrameError
        If they do not agree.
    """
    found = checksum_of(payload, begun) if payload else begun
    if found != checksum:
        raise FrameError(Status.BAD_CHECKSUM, f"the checksum is {checksum:#010x}, of what came it is {found:#010x}")
