"""
Numbers and formats of the Network Block Device's protocol, under its own names.

The protocol is described in https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md; what is here is what
:mod:`penstock.memory.nbd_server` speaks of it: the fixed newstyle handshake, simple and structured replies.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final, Optional


class OptionKind(IntEnum):
    """What a client asks during the handshake."""

    EXPORT_NAME = 1
    ABORT = 2
    LIST = 3
    INFO = 6
    GO = 7
    STRUCTURED_REPLY = 8


class OptionReply(IntEnum):
    """How an option is answered."""

    ACK = 1
    SERVER = 2
    INFO = 3
    ERR_UNSUP = 1 << 31 | 1
    ERR_INVALID = 1 << 31 | 3
    ERR_UNKNOWN = 1 << 31 | 6
    ERR_TOO_BIG = 1 << 31 | 9


class ExportInfo(IntEnum):
    """What is told of an export."""

    EXPORT = 0
    NAME = 1
    BLOCK_SIZE = 3


class Feature(IntFlag):
    """Transmission flags: what a client may use."""

    HAS_FLAGS = 1 << 0
    SEND_FLUSH = 1 << 2
    SEND_FUA = 1 << 3
    SEND_TRIM = 1 << 5
    SEND_WRITE_ZEROES = 1 << 6
    SEND_DF = 1 << 7
    CAN_MULTI_CONN = 1 << 8


class Command(IntEnum):
    """What a request asks."""

    READ = 0
    WRITE = 1
    DISC = 2
    FLUSH = 3
    TRIM = 4
    WRITE_ZEROES = 6


class CommandFlag(IntFlag):
    """How it is to be done."""

    FUA = 1 << 0
    NO_HOLE = 1 << 1
    DF = 1 << 2


class NbdError(IntEnum):
    """What is wrong with a request; the numbers are Linux' own."""

    EIO = 5
    EINVAL = 22
    ENOSPC = 28


FIXED_NEWSTYLE: Final = 1
NO_ZEROES: Final = 2
OPTION_MAGIC: Final = 0x49484156454F5054
OPTION_REPLY_MAGIC: Final = 0x3E889045565A9
REQUEST_MAGIC: Final = 0x25609513
SIMPLE_MAGIC: Final = 0x67446698
STRUCTURED_MAGIC: Final = 0x668E33EF
DONE: Final = 1
CHUNK_NONE: Final = 0
CHUNK_OFFSET_DATA: Final = 1
CHUNK_ERROR: Final = 1 << 15 | 1
OPTION: Final = struct.Struct(">QII")
OPTION_REPLY: Final = struct.Struct(">QIII")
REQUEST: Final = struct.Struct(">IHHQQI")
SIMPLE: Final = struct.Struct(">IIQ")
CHUNK: Final = struct.Struct(">IHHQI")
DATA_CHUNK: Final = struct.Struct(">IHHQIQ")
PADDING: Final = bytes(124)


def asked_of(data: bytes) -> Optional[tuple[bytes, frozenset[int]]]:
    """Return the name and the kinds of information that INFO or GO asks for; None if it is malformed."""
    if len(data) < 6:
        return None
    (length,) = struct.unpack_from(">I", data)
    if length > len(data) - 6:
        return None
    (count,) = struct.unpack_from(">H", data, 4 + length)
    if len(data) != 6 + length + 2 * count:
        return None
    return data[4 : 4 + length], frozenset(struct.unpack_from(f">{count}H", data, 6 + length))
