"""
Following a stream without a consumer, as clients do: direct gets, and what is published meanwhile as the sign to look.

Whoever may make consumers can have the server publish to any subject, so clients may not (docs/adr/0011). What they
hear on the stream's own subjects is not yet stored, or was refused: it is never read, only what is stored is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from penstock_bus.matching import matches_any
from penstock_bus.nats import get
from penstock_bus.nats.link import Link
from penstock_bus.port import Unavailable
from penstock_events import subjects as names

FIRST_S: Final = 0.005
LOOK_S: Final = 1.0
"""How long to wait at most before looking again: a sign may come before its message is stored, or be lost."""


async def tail_stream(
    link: Link, stream: str, patterns: Sequence[str] = (), after_seq: int = 0
) -> AsyncGenerator[get.Stored, None]:
    """
    Yield what a stream holds after a sequence, then what is stored from now on, in order, for ever.

    Parameters
    ----------
    patterns : sequence of str
        What to yield; empty means all.

    Raises
    ------
    Unavailable
        If the connection is closed for good.
    """
    everything = names.STREAM_SUBJECTS[stream]
    wanted = patterns[0] if len(patterns) == 1 else everything
    stirred, seen, pause_s = asyncio.Event(), after_seq, FIRST_S

    async def heard(_: Msg) -> None:
        stirred.set()

    await link.online(link.timeout_s)
    sub = await link.client.subscribe(wanted, cb=heard, pending_msgs_limit=0, pending_bytes_limit=0)
    try:
        while True:
            await link.online()
            stirred.clear()
            with suppress(Unavailable):  # what was not read is read when the server is back
                async with aclosing(get.stored(link, stream, wanted, seen)) as messages:
                    async for message in messages:
                        seen = message.seq
                        if matches_any(patterns, message.subject):
                            yield message
            pause_s = await _pause(stirred, pause_s)
    finally:
        if not link.client.is_closed:
            with suppress(nats.errors.Error, OSError):  # the connection is gone, and the subscription with it
                await sub.unsubscribe()


async def _pause(stirred: asyncio.Event, pause_s: float) -> float:
    """Wait until something stirs, or a pause is over; return the next: short ones follow a sign, then longer ones."""
    try:
        async with asyncio.timeout(pause_s):
            await stirred.wait()
    except TimeoutError:
        return min(2 * pause_s, LOOK_S)
    return FIRST_S
