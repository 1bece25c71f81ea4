"""From what a log holds to what its readers are given, for every adapter."""

from __future__ import annotations

from typing import Final

from penstock_bus.port import Delivery
from penstock_events import Commit, decode

UNREADABLE: Final = Commit(id="", actor="", facts=())
"""Stands for a message that cannot be decoded: it keeps the place, and says nothing."""


def delivery(seq: int, subject: str, stored_s: float, pending: int, body: bytes) -> Delivery:
    """
    Return the message as a delivery.

    Raises
    ------
    CodecError
        If the body is no commit of known facts.
    """
    return Delivery(seq=seq, subject=subject, stored_s=stored_s, pending=pending, commit=decode(body))


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
