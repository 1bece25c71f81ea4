"""How a snapshot becomes pieces that fit into messages, and how damage to them is noticed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock_bus.port import Snapshot

_MOST_BYTES: Final = 2 << 30
_LEVEL: Final = 1  # the fastest; states of many like entries shrink to a tenth even so


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """One piece. ``crc`` is that of the whole, so that pieces of two snapshots never mix."""

    index: int
    count: int
    crc: int
    data: bytes


class Damaged(ValueError):
    """The pieces do not make a snapshot."""


def split(snapshot: Snapshot, chunk_bytes: int) -> list[bytes]:
    """Return the snapshot, compressed, in pieces of about ``chunk_bytes``; at least one."""
    packed = zlib.compress(msgspec.msgpack.encode(snapshot), _LEVEL)
    crc = zlib.crc32(packed)
    parts = [packed[i : i + chunk_bytes] for i in range(0, len(packed), chunk_bytes)]
    return [msgspec.msgpack.encode(Chunk(i, len(parts), crc, part)) for i, part in enumerate(parts)]


def open_chunk(body: bytes) -> Chunk:
    """
    Return the piece that the bytes hold.

    Raises
    ------
    Damaged
        If they hold none.
    """
    try:
        return msgspec.msgpack.decode(body, type=Chunk)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(f"no piece of a snapshot: {error}") from error


def join(bodies: Sequence[bytes]) -> Snapshot:
    """
    Return the snapshot made of all its pieces, in order.

    Raises
    ------
    Damaged
        If a piece is missing, from another snapshot, or changed.
    """
    chunks = [open_chunk(body) for body in bodies]
    count, crc = (chunks[0].count, chunks[0].crc) if chunks else (1, 0)
    if len(chunks) != count or any(chunk.index != at for at, chunk in enumerate(chunks)):
        raise Damaged(f"{len(chunks)} pieces of {count}, or not in order")
    packed = b"".join(chunk.data for chunk in chunks)
    if zlib.crc32(packed) != crc:
        raise Damaged("its bytes are not the ones that were saved")
    try:
        return msgspec.msgpack.decode(_unpacked(packed), type=Snapshot)
    except (zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damaged(f"not a snapshot: {error}") from error


def _unpacked(packed: bytes) -> bytes:
    """Return what was compressed, unless that is more than any state: a few bytes may stand for a memory full."""
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(packed, _MOST_BYTES)
    if unpacking.unconsumed_tail:
        raise Damaged(f"it is larger than {_MOST_BYTES} bytes")
    if not unpacking.eof:
        raise Damaged("it ends too early")
    return found
