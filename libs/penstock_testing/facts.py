"""From facts to what the log makes of them: their subject, and a delivery."""

from __future__ import annotations

from penstock_bus import Delivery
from penstock_events import AnyEvent, Commit, subject_of

__all__ = ["delivery", "subject_of"]


def delivery(seq: int, *facts: AnyEvent, subject: str = "", pending: int = 0) -> Delivery:
    """Return the facts as one commit of the log, under the first one's subject where none is given."""
    return Delivery(
        seq=seq,
        subject=subject or subject_of(facts[0]),
        stored_s=facts[0].at_s if facts else 0.0,
        pending=pending,
        commit=Commit(id=f"c{seq}", actor="test", facts=facts),
    )
