"""
Frames between ranks and aggregators, and from an aggregator to another one.

A connection is about one lease: one rank of one run on one aggregator, or the aggregator that sends it copies. It is
over TCP, or over a Unix socket where both are on one host, and begins with :data:`MAGIC` and the proof of
:mod:`penstock.leased_connection`, which the aggregator answers by a frame of kind :attr:`PartRequest.HELLO`.

From then on the client sends requests, several at a time if it likes. Each is answered once, but for a push that is
counted and a farewell, and not always in their order, since a pull waits for its step. A frame is a header of 48 bytes
and a payload.
Numbers of headers are in network order:

==========  ======  ===================================================================================
field       format  meaning
==========  ======  ===================================================================================
mark        u16     0x5041
kind        u8      :class:`PartRequest`
status      u8      :class:`PartStatus`; 0 in requests
flags       u8      :class:`PartFlag`
dtype       u8      bytes of one element, 4 or 8; 0 where the payload is no vector
(nothing)   u16
request     u32     the client's number of a request; its answer has the same
part        u32     the part
generation  u64     since which generation the part is on this aggregator; any other is refused
step        u64     the step that is meant, counted from 1
safe_step   u64     in answers: pushes of this step and those before are needed no more;
                    in pushes: of which step this rank holds the state, if it is the part's holder
length      u32     bytes of the payload
checksum    u32     CRC-32 of the header without this field
==========  ======  ===================================================================================

Payloads have no checksum; vectors are in the byte order of the machine, as both ends have the same. An answer that is
an error has its reason as the payload (UTF-8).
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple
from zlib import crc32

from penstock.leased_connection import Buffer

MAGIC: Final = b"PENAGGR1"
MOST_VECTORS: Final = 3
"""Vectors of a part at most in one frame: its parameters, and two of the optimizer."""
_MARK: Final = 0x5041
_FIELDS: Final = struct.Struct("!HBBBBHIIQQQI")
_CHECKSUM: Final = struct.Struct("!I")
HEADER_BYTES: Final = _FIELDS.size + _CHECKSUM.size
SHARED_AT: Final = struct.Struct("!Q")
"""Payload of a push with :attr:`PartFlag.SHARED`: where in the rank's memory its vector is, in bytes."""
JOINED: Final = struct.Struct("!QQ")
"""Payload of a JOIN: the oldest push that the rank still has, and the step of the state that follows, if any."""
PAUSED: Final = struct.Struct("!Q")
"""First of the payload of a COPY: for how many microseconds pushes have been refused already."""


class PartRequest(IntEnum):
    """What a frame asks, or answers."""

    HELLO = 0
    JOIN = 1
    """
    A rank says which step's result it has (``step``), and by :data:`JOINED` what it could push again.

    The part's holder, rank ``part % world``, sends the parameters and the optimizer's state that it holds along.
    Answered once all ranks have joined: ``step`` is the one after which they push again.
    """
    PUSH = 2
    """The part's values of a step; answered only if it is refused: the answer to the pull says the rest."""
    PULL = 3
    """Answered with the result of a step, once it is complete."""
    COPY = 4
    """From the aggregator that had the part: its result or parameters, and the optimizer's state, after a step."""
    SHARE = 5
    """
    Over a Unix socket: memory of the rank, by its descriptor (``SCM_RIGHTS``), that is sealed against shrinking.

    Pushes with :attr:`PartFlag.SHARED` have their vectors there from then on.
    """
    LEAVE = 6
    """The rank has ended well and pushes nothing any more; never answered."""


class PartFlag(IntFlag):
    """What more is said about a frame."""

    NONE = 0
    SHARED = 1
    """
    Of a push: the vector is in the rank's memory, and the payload says where (:data:`SHARED_AT`). Of a pull: the result
    may be in the aggregator's memory; its answer says whether it is.
    """
    STATE = 2
    """A pull asks for the optimizer's state beside the parameters, never by shared memory."""
    NO_VALUES = 4
    """A pull asks to be told of the step, and has the values already."""
    DESCRIPTOR = 8
    """
    The answer comes with the descriptor of the part's result (``SCM_RIGHTS``): the first over this connection.

    The memory is sealed against shrinking and against being written by others. What is in it is the result of a step
    until the rank pushes the next one.
    """


class PartStatus(IntEnum):
    """What came of a request."""

    OK = 0
    BAD_PROOF = 1
    """There is no such lease, or the client has not its token."""
    BAD_FRAME = 2
    """It is no frame of this protocol, or not one that is answered here."""
    TOO_LONG = 3
    """The payload is longer than any of its kind."""
    WRONG_SHAPE = 4
    """The vector has not the length of the part."""
    WRONG_TYPE = 5
    """The vector's elements are not those of the run."""
    UNKNOWN_PART = 6
    """The part is not of the run of this lease, or is not on this aggregator."""
    STALE = 7
    """The part is here since another generation."""
    COUNTED = 8
    """The step was counted already, or this rank's push of it."""
    TOO_EARLY = 9
    """The step is beyond the next one, or the part's ranks have not all joined."""
    MOVED = 10
    """The part is on another aggregator now."""
    RUN_OVER = 11
    """The run is closed on this aggregator."""
    NOT_KEPT = 12
    """The ranks together have not what they would have to push again."""
    RANK_LEFT = 13
    """The step waits for a rank that has ended."""


ENDING: Final = frozenset({PartStatus.BAD_PROOF, PartStatus.BAD_FRAME, PartStatus.TOO_LONG})
"""What ends the connection: where the next frame would begin is unknown, or the client does not speak the protocol."""


class PartFrame(NamedTuple):
    """The header of a frame; see the module for its fields."""

    kind: int
    request: int = 0
    part: int = 0
    generation: int = 0
    step: int = 0
    safe_step: int = 0
    length: int = 0
    flags: int = 0
    dtype: int = 0
    status: int = PartStatus.OK


class PartFrameError(Exception):
    """What came is no frame, or is refused; ``status`` says why."""

    def __init__(self, status: PartStatus, message: str) -> None:
        """Keep the status for the answer; the message names what was wrong."""
        super().__init__(message)
        self.status = status


def encoded(frame: PartFrame) -> bytes:
    """Return the header of a frame; the payload goes after it."""
    fields = _FIELDS.pack(
        _MARK,
        frame.kind,
        frame.status,
        frame.flags,
        frame.dtype,
        0,
        frame.request,
        frame.part,
        frame.generation,
        frame.step,
        frame.safe_step,
        frame.length,
    )
    return fields + _CHECKSUM.pack(crc32(fields))


def decoded(header: Buffer) -> PartFrame:
    """
    Return what a header says.

    Raises
    ------
    PartFrameError
        If it does not begin like a frame, or its checksum is not of its fields.

    Examples
    --------
    >>> frame = PartFrame(PartRequest.PUSH, request=1, part=2, generation=3, step=4, length=8, dtype=4)
    >>> decoded(encoded(frame)) == frame
    True
    """
    view = memoryview(header)
    mark, kind, status, flags, dtype, _, request, part, generation, step, safe_step, length = _FIELDS.unpack_from(view)
    if mark != _MARK:
        raise PartFrameError(PartStatus.BAD_FRAME, f"a frame begins with {_MARK:#x}, and this with {mark:#x}")
    (checksum,) = _CHECKSUM.unpack_from(view, _FIELDS.size)
    if checksum != crc32(view[: _FIELDS.size]):
        raise PartFrameError(PartStatus.BAD_FRAME, "the header's checksum is not of its fields")
    return PartFrame(kind, request, part, generation, step, safe_step, length, flags, dtype, status)
