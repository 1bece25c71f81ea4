"""Looking back in the log: a stretch of it at a time, so that nobody waits long for whoever looks back far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, cast

from penstock_bus import Bus, Delivery
from penstock_events import subjects

EVERYTHING: Final = subjects.STREAM_SUBJECTS[subjects.EVT]
SLICE: Final = 100
"""Commits between two turns of the event loop: a millisecond or two of work."""
_FURTHER: Final = 8


async def stretch(
    bus: Bus, after_seq: int, until_seq: int, patterns: Sequence[str] = ()
) -> AsyncGenerator[Delivery, None]:
    """
    Yield the commits after one sequence up to another, in order; on these subjects only, where some are given.

    There must be a commit on them after ``after_seq``, or it would wait for one.
    """
    if after_seq >= until_seq:
        return
    deliveries = cast("AsyncGenerator[Delivery, None]", bus.follow(after_seq, patterns))
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


async def newest(bus: Bus, facts: int, until_seq: int, patterns: Sequence[str] = ()) -> list[Delivery]:
    """Return the newest commits up to a sequence, with at least so many facts if there are; as :func:`stretch`."""
    span = facts
    while True:
        after_seq = max(0, until_seq - span)
        found = [delivery async for delivery in stretch(bus, after_seq, until_seq, patterns)]
        if not after_seq or sum(len(delivery.commit.facts) for delivery in found) >= facts:
            return found
        span *= _FURTHER


async def oldest(bus: Bus, facts: int, after_seq: int, until_seq: int, patterns: Sequence[str] = ()) -> list[Delivery]:
    """Return the first commits after a sequence, with at least so many facts if there are; as :func:`stretch`."""
    found, left = [], facts
    async with aclosing(stretch(bus, after_seq, until_seq, patterns)) as deliveries:
        async for delivery in deliveries:
            found.append(delivery)
            left -= len(delivery.commit.facts)
            if left <= 0:
                break
    return found


async def seq_at(bus: Bus, time_s: float) -> int:
    """Return the sequence of the last commit that was stored by then; 0 if none was."""
    known, last = 0, await bus.last_seq()
    while known < last:
        middle = (known + last + 1) // 2
        there = await _first(bus, middle, last)
        if there is not None and there.stored_s <= time_s:
            known = there.seq
        else:
            last = middle - 1
    return known


async def _first(bus: Bus, seq: int, until_seq: int) -> Delivery | None:
    """Return the first commit from a sequence on that can be read."""
    reach = 1
    while True:
        found = await bus.read(EVERYTHING, seq - 1, min(seq - 1 + reach, until_seq))
        if found or seq - 1 + reach >= until_seq:
            return found[0] if found else None
        reach *= _FURTHER
