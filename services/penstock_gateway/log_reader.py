"""
Past moments and raw facts, read from the log.

:func:`stretch` reads a part of the log, so that nobody waits long for a question about the distant past.
:func:`parse` says which :class:`LogMoment` a question is about, and :func:`model_at` folds the read model up to it
from the beginning, where :mod:`penstock_gateway.past_models` has no snapshot of it. :func:`moment_of` says where in the
log a moment is, and from when to when the log goes.
:func:`answer` returns raw facts, as the log holds them: of one entity or of all, the newest or those after a sequence.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from penstock_bus import Delivery, LogReader, Timeout
from penstock_bus.decider import Decider, Fold
from penstock_bus.follower import FoldFollower
from penstock_gateway.answers import ReadModel
from penstock_gateway.endpoints import BAD, RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_log import fields_of, request_bodies, services, subjects, tag_of
from penstock_log.views import EventsView, EventView, MomentView

EVERYTHING: Final = subjects.STREAM_SUBJECTS[subjects.EVT]
SLICE: Final = 100
"""Commits between two turns of the event loop: a millisecond or two of work."""
_FURTHER: Final = 8
_AHEAD_S: Final = 1.0
"""By how much the clock of who asks may be ahead of the server's."""


async def stretch(
    bus: LogReader, after_seq: int, until_seq: int, patterns: Sequence[str] = ()
) -> AsyncGenerator[Delivery, None]:
    """
    Yield the commits after one sequence up to another, in order; if patterns are given, only on these subjects.

    The log must hold a commit on them after ``after_seq``; otherwise the function waits for one.
    """
    if after_seq >= until_seq:
        return
    deliveries = bus.follow(after_seq, patterns)
    async with aclosing(deliveries):
        given = 0
        async for delivery in deliveries:
            if delivery.seq > until_seq:
                return
            yield delivery
            given += 1
            if delivery.seq == until_seq or not delivery.pending:
                return
            if given % SLICE == 0:
                await asyncio.sleep(0)


async def newest(bus: LogReader, facts: int, until_seq: int, patterns: Sequence[str] = ()) -> list[Delivery]:
    """Return the newest commits up to a sequence, with at least ``facts`` facts if there are; see :func:`stretch`."""
    span = facts
    while True:
        after_seq = max(0, until_seq - span)
        found = [delivery async for delivery in stretch(bus, after_seq, until_seq, patterns)]
        if not after_seq or sum(len(delivery.commit.facts) for delivery in found) >= facts:
            return found
        span *= _FURTHER


async def oldest(
    bus: LogReader, facts: int, after_seq: int, until_seq: int, patterns: Sequence[str] = ()
) -> list[Delivery]:
    """Return the first commits after a sequence, with at least ``facts`` facts if there are; see :func:`stretch`."""
    found, left = [], facts
    async with aclosing(stretch(bus, after_seq, until_seq, patterns)) as deliveries:
        async for delivery in deliveries:
            found.append(delivery)
            left -= len(delivery.commit.facts)
            if left <= 0:
                break
    return found


async def seq_at(bus: LogReader, time_s: float, known: int = 0, until_seq: int | None = None) -> int:
    """
    Return the sequence of the last commit that was stored by a time; 0 if none was.

    Parameters
    ----------
    known : int
        Sequence of a commit that was stored by then; 0 where none is known.
    until_seq : int or None
        Sequence of a later commit, where one is known.
    """
    last = until_seq if until_seq is not None else await bus.last_seq()
    while known < last:
        middle = (known + last + 1) // 2
        there = await _first(bus, middle, last)
        if there is not None and there.stored_s <= time_s:
            known = there.seq
        else:
            last = middle - 1
    return known


async def _first(bus: LogReader, seq: int, until_seq: int) -> Delivery | None:
    reach = 1
    while True:
        found = await bus.read(EVERYTHING, seq - 1, min(seq - 1 + reach, until_seq))
        if found or seq - 1 + reach >= until_seq:
            return found[0] if found else None
        reach *= _FURTHER


FRESH_S: Final = 1.0
_LEAST_TIME: Final = 1e9  # as a sequence it is out of reach; as a time it is the year 2001
_log = structlog.get_logger("penstock.gateway")


class LogMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The moment that a question is about: a stream sequence, or a time in seconds since the epoch."""

    seq: int | None = None
    time_s: float | None = None


def parse(at: request_bodies.At) -> LogMoment | None:
    """
    Return the moment that ``at`` names; None for now.

    Raises
    ------
    RequestRefused
        400 if it is none of: a sequence, seconds since the epoch, an RFC 3339 time.

    Examples
    --------
    >>> parse(120), parse(1.7e9), parse("120")
    (LogMoment(seq=120, time_s=None), LogMoment(seq=None, time_s=1700000000.0), LogMoment(seq=120, time_s=None))
    >>> parse("2023-11-14T22:13:20Z")
    LogMoment(seq=None, time_s=1700000000.0)
    """
    if at is None or at == "":
        return None
    number = float(at) if isinstance(at, int | float) or re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", at) else None
    if number is None:
        return LogMoment(time_s=_rfc3339(str(at)))
    if number < 0:
        raise RequestRefused(BAD, f"at={at} is negative; expected a sequence or a time in seconds since the epoch")
    if number < _LEAST_TIME and number.is_integer() and not isinstance(at, float):
        return LogMoment(seq=int(number))
    return LogMoment(time_s=number)


async def catch_up(bus: LogReader, live: FoldFollower[GatewayState]) -> None:
    """
    Wait until the read model has all that the log holds now, :data:`FRESH_S` at most.

    A user whose command one replica of the gateway has answered thus finds its effect at any other replica. While the
    log's servers elect a leader, nobody can say how far it is, and questions are answered by what is known.
    """
    try:
        async with asyncio.timeout(FRESH_S):
            await live.reached(await bus.last_seq())
    except (TimeoutError, Timeout) as error:
        reason = str(error) or f"the log did not say within {FRESH_S:g} s how far it is"
        _log.warning("answering_from_behind", at=live.last_seq, reason=reason)


async def last_seq(bus: LogReader, otherwise: int) -> int:
    """Return how far the log is; ``otherwise`` where it does not say, as while its servers elect a leader."""
    try:
        async with asyncio.timeout(FRESH_S):
            return await bus.last_seq()
    except (TimeoutError, Timeout):
        return otherwise


async def end_of(bus: LogReader, moment: LogMoment | None) -> int:
    """
    Return the sequence of the last commit of a moment; None is now.

    Raises
    ------
    RequestRefused
        400 if the log has not come that far.
    """
    if moment is not None and moment.time_s is not None:
        return await seq_at(bus, moment.time_s)
    last_seq = await bus.last_seq()
    if moment is None or moment.seq is None:
        return last_seq
    if moment.seq > last_seq:
        raise RequestRefused(BAD, f"at={moment.seq} is behind the end of the log, which is at {last_seq}")
    return moment.seq


async def model_at(
    bus: LogReader, decider: Decider[GatewayState], until_seq: int, time_s: float | None = None
) -> ReadModel:
    """
    Fold the log from its beginning up to a sequence; some 40,000 commits a second.

    Parameters
    ----------
    time_s : float or None
        The present time of the model; None for that of its last commit.
    """
    fold, now_s = Fold(decider), 0.0
    async for delivery in stretch(bus, 0, until_seq):
        fold.apply(delivery)
        now_s = delivery.stored_s
    return ReadModel(state=fold.state, now_s=time_s if time_s is not None else now_s, seq=fold.last_seq)


async def moment_of(bus: LogReader, at: request_bodies.At) -> MomentView:
    """
    Return from when to when the log goes, and which commit is the last of a moment.

    Raises
    ------
    RequestRefused
        400 if ``at`` names no moment, or one that has not come.
    """
    moment, now_s, last_seq = parse(at), await bus.now_s(), await bus.last_seq()
    if moment is not None and moment.time_s is not None and moment.time_s > now_s + _AHEAD_S:
        latest = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
        raise RequestRefused(BAD, f"at={at} is yet to come; it is {latest}, and the log is at {last_seq}")
    seq = await end_of(bus, moment)
    first, last = await _first(bus, 1, last_seq), await _last(bus, last_seq)
    there = last if seq == last_seq else await _last(bus, seq)
    at_s = now_s if moment is None else moment.time_s
    return MomentView(
        seq=there.seq if there is not None else 0,
        at_s=at_s if at_s is not None else there.stored_s if there is not None else first.stored_s if first else 0.0,
        first_seq=first.seq if first is not None else 0,
        first_s=first.stored_s if first is not None else 0.0,
        last_seq=last.seq if last is not None else 0,
        last_s=last.stored_s if last is not None else 0.0,
        now_s=now_s,
    )


async def _last(bus: LogReader, until_seq: int) -> Delivery | None:
    """Return the last commit up to a sequence; None where the log holds none."""
    reach = 1
    while until_seq:
        found = await bus.read(EVERYTHING, max(0, until_seq - reach), until_seq)
        if found or reach >= until_seq:
            return found[-1] if found else None
        reach *= _FURTHER
    return None


def _rfc3339(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise RequestRefused(
            BAD, f"at={text!r} is no moment; expected a sequence (120), seconds (1.7e9) or 2026-01-31T12:00:00Z"
        ) from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


async def answer(
    bus: LogReader,
    asked: request_bodies.EventsRequest,
    entity_id: str,
    kinds: Sequence[str] = tuple(services.WRITERS),
) -> EventsView:
    """
    Return the facts that were asked for.

    Parameters
    ----------
    entity_id : str
        The whole id; empty for all entities.
    kinds : sequence of str
        Kinds of entities of which facts are wanted; extensions' facts about the id are among them.
    """
    until_seq = await end_of(bus, parse(asked.at))
    found = await _found(bus, asked, entity_id, kinds, until_seq)
    facts = [view for delivery in found for view in _views(delivery)]
    chosen = _whole_commits(facts, asked.limit) if asked.after is not None else facts[-asked.limit :]
    return EventsView(events=tuple(chosen), seq=chosen[-1].seq if chosen else asked.after or until_seq)


async def _found(
    bus: LogReader, asked: request_bodies.EventsRequest, entity_id: str, kinds: Sequence[str], until_seq: int
) -> list[Delivery]:
    after_seq, patterns = asked.after or 0, list[str]()
    if entity_id:
        patterns, last_seq = await _own_subjects(bus, entity_id, kinds, after_seq)
        until_seq = min(until_seq, last_seq)
    if asked.after is not None:
        return await oldest(bus, asked.limit, after_seq, until_seq, patterns)
    return await newest(bus, asked.limit, until_seq, patterns)


async def _own_subjects(bus: LogReader, entity_id: str, kinds: Sequence[str], after_seq: int) -> tuple[list[str], int]:
    try:
        exact = [subjects.entity(kind, entity_id) for kind in kinds]
    except ValueError as error:
        raise RequestRefused(BAD, f"$.id: {error}") from error
    newest = await asyncio.gather(*(bus.last(subject) for subject in exact))
    extended = await bus.read(subjects.extensions(entity_id), after_seq)
    there = {one.subject: one.seq for one in (*newest, *extended) if one is not None and one.seq > after_seq}
    return list(there), max(there.values(), default=0)


def _views(delivery: Delivery) -> Iterator[EventView]:
    for fact in delivery.commit.facts:
        fields = {name: value for name, value in fields_of(fact).items() if name not in {"type", "at_s"}}
        yield EventView.of(delivery, delivery.commit, type=tag_of(fact), at_s=fact.at_s, fact=fields)


def _whole_commits(facts: list[EventView], limit: int) -> list[EventView]:
    """Return about ``limit`` facts, never a part of a commit: the next question goes on after its sequence."""
    if len(facts) <= limit:
        return facts
    last_seq = facts[limit - 1].seq
    return [fact for fact in facts if fact.seq <= last_seq]
