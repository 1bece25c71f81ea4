"""
Stored messages, as both adapters read them: deliveries, patterns of subjects, and pieces of snapshots.

:func:`delivery` turns a stored message into what the log's readers get; :class:`DroppedMessages` puts something in the
place of one that cannot be read. :func:`matches` says whether a subject fits a pattern by the rules of NATS: ``*`` is
one token, ``>`` is all the rest. :func:`split` makes a snapshot into pieces that fit into messages, and :func:`join`
notices damage to them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock_bus.logger import get_logger
from penstock_bus.port import Delivery, Rejection, Snapshot, StoredMessage, TooLarge
from penstock_log import CodecError, Commit, decode_at, subjects

UNREADABLE: Final = Commit(id="", actor="", facts=())
"""Stands for a message that cannot be decoded, or stands where it may not: it keeps the place, and says nothing."""

_log = get_logger("penstock.bus")


class DroppedMessages:
    """What one reader of the log has dropped; only the first is logged, and all are in REJECTED."""

    def __init__(self) -> None:
        self.count = 0

    def drop(self, message: StoredMessage, pending: int, reason: CodecError) -> tuple[Delivery, Rejection]:
        """Return the delivery that keeps an unreadable message's place, for folds and writers, and its rejection."""
        self.count += 1
        origin = f"{subjects.EVT} {message.subject} seq {message.seq}"
        if self.count == 1:
            _log.warning("commit_dropped", origin=origin, reason=str(reason), advice="`penstock rejected` lists all")
        rejection = Rejection(reason=str(reason), origin=origin, body=message.body)
        placeholder = Delivery(
            seq=message.seq, subject=message.subject, stored_s=message.stored_s, pending=pending, commit=UNREADABLE
        )
        return placeholder, rejection


def delivery(seq: int, subject: str, stored_s: float, pending: int, body: bytes) -> Delivery:
    """
    Return the message as a delivery.

    Raises
    ------
    CodecError
        If the body is no commit of known facts, or holds a fact that does not belong on the subject: permissions alone
        do not keep writers apart.
    """
    return Delivery(seq=seq, subject=subject, stored_s=stored_s, pending=pending, commit=decode_at(subject, body))


def rejected_as(seq: int) -> str:
    """Return the name under which an unreadable message of the log is rejected: one name a message, so only once."""
    return f"evt-{seq}"


def undeliverable(times: int) -> str:
    """Return the reason for giving a message of the work queue up."""
    return f"delivered {times} times and never acknowledged: its workers failed or stopped each time"


def matches(pattern: str, subject: str) -> bool:
    """
    Return whether the subject fits the pattern.

    Examples
    --------
    >>> matches("penstock.evt.*.j1", "penstock.evt.job.j1"), matches("penstock.evt.>", "penstock.evt")
    (True, False)
    """
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":  # noqa: S105 - a token of a subject
            return len(given) > i
        if i >= len(given) or token not in ("*", given[i]):
            return False
    return len(wanted) == len(given)


def matches_any(patterns: Sequence[str], subject: str) -> bool:
    """Return whether the subject fits one of the patterns; no patterns fit everything."""
    return not patterns or any(matches(pattern, subject) for pattern in patterns)


_MOST_BYTES: Final = 2 << 30
_HEADROOM: Final = 1 << 10  # for what stands beside the state
_LEVEL: Final = 1  # the fastest; states of many like entries shrink to a tenth even so


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True):
    """One piece. ``crc`` is that of the whole, so that pieces of two snapshots never mix."""

    index: int
    count: int
    crc: int
    data: bytes


class SnapshotDamaged(ValueError):
    """The pieces do not make a snapshot."""


def split(snapshot: Snapshot, chunk_bytes: int) -> list[bytes]:
    """
    Return the snapshot, compressed, in pieces of about ``chunk_bytes``; at least one.

    Raises
    ------
    TooLarge
        If it has more bytes than :func:`join` takes.
    """
    if len(snapshot.state) > _MOST_BYTES - _HEADROOM:
        raise TooLarge(f"the snapshot has {len(snapshot.state)} bytes and may have {_MOST_BYTES - _HEADROOM}")
    packed = zlib.compress(msgspec.msgpack.encode(snapshot), _LEVEL)
    crc = zlib.crc32(packed)
    parts = [packed[i : i + chunk_bytes] for i in range(0, len(packed), chunk_bytes)]
    return [msgspec.msgpack.encode(SnapshotChunk(i, len(parts), crc, part)) for i, part in enumerate(parts)]


def open_chunk(body: bytes) -> SnapshotChunk:
    """
    Return the piece that the bytes hold.

    Raises
    ------
    SnapshotDamaged
        If they hold none.
    """
    try:
        return msgspec.msgpack.decode(body, type=SnapshotChunk)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SnapshotDamaged(f"no piece of a snapshot: {error}") from error


def join(bodies: Sequence[bytes]) -> Snapshot:
    """
    Return the snapshot made of all its pieces, in order.

    Raises
    ------
    SnapshotDamaged
        If a piece is missing, from another snapshot, or changed.
    """
    chunks = [open_chunk(body) for body in bodies]
    count, crc = (chunks[0].count, chunks[0].crc) if chunks else (1, 0)
    if len(chunks) != count or any(chunk.index != at for at, chunk in enumerate(chunks)):
        raise SnapshotDamaged(f"{len(chunks)} pieces of {count}, or not in order")
    packed = b"".join(chunk.data for chunk in chunks)
    if zlib.crc32(packed) != crc:
        raise SnapshotDamaged("its bytes are not the ones that were saved")
    try:
        return msgspec.msgpack.decode(_unpacked(packed), type=Snapshot)
    except (zlib.error, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SnapshotDamaged(f"not a snapshot: {error}") from error


def _unpacked(packed: bytes) -> bytes:
    """Return what was compressed, unless that is more than any state: a few bytes may stand for a memory full."""
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(packed, _MOST_BYTES)
    if unpacking.unconsumed_tail:
        raise SnapshotDamaged(f"it is larger than {_MOST_BYTES} bytes")
    if not unpacking.eof:
        raise SnapshotDamaged("it ends too early")
    return found
