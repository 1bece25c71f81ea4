"""From what a log holds to what its readers are given, for every adapter."""

from __future__ import annotations

from typing import Final

from penstock_bus.logger import get_logger
from penstock_bus.port import Delivery
from penstock_events import Commit, decode_at

UNREADABLE: Final = Commit(id="", actor="", facts=())
"""Stands for a message that cannot be decoded, or stands where it may not: it keeps the place, and says nothing."""

_log = get_logger("penstock.bus")


class Dropped:
    """What one reader of the log has dropped; only the first is logged, and all are in REJECTED."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, origin: str, reason: str) -> None:
        """Count one."""
        self.count += 1
        if self.count == 1:
            _log.warning("commit_dropped", origin=origin, reason=reason, advice="`penstock rejected` lists all")


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


def placeholder(seq: int, subject: str, stored_s: float, pending: int) -> Delivery:
    """Return the delivery that stands for an unreadable message, so that folds and writers count it too."""
    return Delivery(seq=seq, subject=subject, stored_s=stored_s, pending=pending, commit=UNREADABLE)


def origin(stream: str, subject: str, seq: int) -> str:
    """Return where a message came from, as a :class:`~penstock_bus.port.Rejection` says it."""
    return f"{stream} {subject} seq {seq}"


def rejected_as(seq: int) -> str:
    """Return the name under which an unreadable message of the log is rejected: one name a message, so only once."""
    return f"evt-{seq}"


def undeliverable(times: int) -> str:
    """Return the reason for giving a message of the work queue up."""
    return f"delivered {times} times and never acknowledged: its workers failed or stopped each time"
