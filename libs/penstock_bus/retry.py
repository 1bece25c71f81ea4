"""Trying again while the bus is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from penstock_bus.logger import get_logger
from penstock_bus.port import NoResponders, Timeout, Unavailable

T = TypeVar("T")
FIRST_S: Final = 0.05
MOST_S: Final = 2.0
LAST_S: Final = 2.0
_log = get_logger("penstock.bus")


async def until_available(call: Callable[[], Awaitable[T]], what: str, giving_up: asyncio.Event | None = None) -> T:
    """
    Return what ``call`` returns, trying again with back-off while the bus is unavailable.

    Appends must carry one commit id over all tries: then a stored one is not stored twice.

    Raises
    ------
    Unavailable
        If ``giving_up`` is set and the bus is still unavailable: a service that is to end does not wait for room, nor
        longer than :data:`LAST_S` for an answer.
    """
    delay_s = FIRST_S
    while True:
        try:
            return await (call() if giving_up is None else _in_time(call, giving_up))
        except NoResponders:
            raise
        except Unavailable as error:
            if giving_up is not None and giving_up.is_set():
                raise
            _log.warning("bus_unavailable", what=what, error=str(error), retry_s=delay_s)
        await _pause(delay_s, giving_up)
        delay_s = min(delay_s * 2, MOST_S)


async def _in_time(call: Callable[[], Awaitable[T]], giving_up: asyncio.Event) -> T:
    try:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.ensure_future(_end_soon_after(giving_up, limit))
            try:
                return await call()
            finally:
                watching.cancel()
    except TimeoutError as error:
        raise Timeout(f"no answer within {LAST_S} s, and the service is to end") from error


async def _end_soon_after(giving_up: asyncio.Event, limit: asyncio.Timeout) -> None:
    await giving_up.wait()
    limit.reschedule(asyncio.get_running_loop().time() + LAST_S)


async def _pause(delay_s: float, giving_up: asyncio.Event | None) -> None:
    """Sleep, but not longer than until ``giving_up``."""
    if giving_up is None:
        await asyncio.sleep(delay_s)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await giving_up.wait()
