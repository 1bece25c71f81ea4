"""What a client follows: facts as the query ``events`` shows them."""

from __future__ import annotations

import msgspec

from penstock_bus.port import Delivery
from penstock_events import Event, subjects, tag_of, views


def facts(delivery: Delivery) -> list[views.EventView]:
    """Return a commit's facts, as the query ``events`` shows them."""
    return [_fact(delivery, event) for event in delivery.commit.facts]


def _fact(delivery: Delivery, event: Event) -> views.EventView:
    fact = msgspec.to_builtins(event)
    return views.EventView(
        seq=delivery.seq,
        stored_s=delivery.stored_s,
        subject=delivery.subject,
        actor=delivery.commit.actor,
        cause=delivery.commit.cause,
        type=tag_of(event),
        at_s=event.at_s,
        fact={key: value for key, value in fact.items() if key not in {"type", "at_s"}},
    )


def about(view: views.EventView, entity_id: str) -> bool:
    """Say whether a fact is of an entity, or names it: a round names the jobs it placed."""
    return subjects.entity_of(view.subject)[1] == entity_id or _names(view.fact, entity_id)


def _names(value: object, entity_id: str) -> bool:
    if isinstance(value, dict):
        return any(key == entity_id or _names(item, entity_id) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(_names(item, entity_id) for item in value)
    return value == entity_id
