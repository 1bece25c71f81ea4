"""From facts to what the log makes of them: their subject, and a delivery."""

from __future__ import annotations

from typing import Final

from penstock_bus import Delivery
from penstock_events import AnyEvent, Commit, subjects, tag_of

_ID_FIELDS: Final = {
    "job": ("job_id",),
    "run": ("job_id",),
    "node": ("node_id",),
    "profile": ("key",),
    "rank": ("pool",),
    "round": ("pool",),
    "scale": ("pool",),
    "sweep": ("sweep_id",),
    "policy": ("pool",),
    "request": ("sweep_id", "node_id"),
}


def subject_of(fact: AnyEvent) -> str:
    """
    Return the log subject on which a fact belongs.

    Examples
    --------
    >>> from penstock_events import JobHeld
    >>> subject_of(JobHeld(job_id="j1", at_s=0.0))
    'penstock.evt.job.j1'
    """
    kind = tag_of(fact).split(".", 1)[0]
    entity_id = next(getattr(fact, name) for name in _ID_FIELDS[kind] if hasattr(fact, name))
    return subjects.entity(kind, entity_id)


def delivery(seq: int, *facts: AnyEvent, subject: str = "", pending: int = 0) -> Delivery:
    """Return the facts as one commit of the log, under the first one's subject where none is given."""
    return Delivery(
        seq=seq,
        subject=subject or subject_of(facts[0]),
        stored_s=facts[0].at_s if facts else 0.0,
        pending=pending,
        commit=Commit(id=f"c{seq}", actor="test", facts=facts),
    )
