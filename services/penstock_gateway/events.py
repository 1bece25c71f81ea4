"""Raw facts, as the log holds them: of one entity or of all, the newest or those behind a sequence."""

from __future__ import annotations

import asyncio

import msgspec

from penstock_bus import Bus, Delivery
from penstock_events import asks, subjects, tag_of
from penstock_events.views import EventsView, EventView
from penstock_gateway import moments, reading
from penstock_gateway.find import BAD, Refused


async def answer(bus: Bus, asked: asks.EventsAsk, entity_id: str) -> EventsView:
    """
    Return the facts that were asked for.

    Parameters
    ----------
    entity_id : str
        The whole id; empty for all entities.
    """
    until_seq = await moments.end_of(bus, moments.parse(asked.at))
    found = await _found(bus, asked, entity_id, until_seq)
    facts = [view for delivery in found for view in _views(delivery)]
    chosen = _whole_commits(facts, asked.limit) if asked.after is not None else facts[-asked.limit :]
    return EventsView(events=tuple(chosen), seq=chosen[-1].seq if chosen else asked.after or until_seq)


async def _found(bus: Bus, asked: asks.EventsAsk, entity_id: str, until_seq: int) -> list[Delivery]:
    after_seq, patterns = asked.after or 0, list[str]()
    if entity_id:
        patterns, last_seq = await _own_subjects(bus, entity_id, after_seq)
        until_seq = min(until_seq, last_seq)
    if asked.after is not None:
        return await reading.oldest(bus, asked.limit, after_seq, until_seq, patterns)
    return await reading.newest(bus, asked.limit, until_seq, patterns)


async def _own_subjects(bus: Bus, entity_id: str, after_seq: int) -> tuple[list[str], int]:
    """Return an entity's subjects that have a commit after a sequence, and the last commit's."""
    try:
        exact = [subjects.entity(kind, entity_id) for kind in subjects.WRITERS]
    except ValueError as error:
        raise Refused(BAD, f"$.id: {error}") from error
    newest = await asyncio.gather(*(bus.last(subject) for subject in exact))
    there = {one.subject: one.seq for one in newest if one is not None and one.seq > after_seq}
    return list(there), max(there.values(), default=0)


def _views(delivery: Delivery) -> list[EventView]:
    views = []
    for fact in delivery.commit.facts:
        plain = msgspec.to_builtins(fact)
        plain.pop("type", None)
        plain.pop("at_s", None)
        view = EventView(
            seq=delivery.seq,
            stored_s=delivery.stored_s,
            subject=delivery.subject,
            actor=delivery.commit.actor,
            cause=delivery.commit.cause,
            type=tag_of(fact),
            at_s=fact.at_s,
            fact=plain,
        )
        views.append(view)
    return views


def _whole_commits(facts: list[EventView], limit: int) -> list[EventView]:
    """Cut to about ``limit``, but never within a commit: the next question goes on behind its sequence."""
    if len(facts) <= limit:
        return facts
    last_seq = facts[limit - 1].seq
    return [fact for fact in facts if fact.seq <= last_seq]
