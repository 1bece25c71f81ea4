"""Trying again while the bus is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock_bus.logger import get_logger
from penstock_bus.port import NoResponders, Unavailable

T = TypeVar("T")
FIRST_S: Final = 0.05
MOST_S: Final = 2.0
_log = get_logger("penstock.bus")


async def until_available(call: Callable[[], Awaitable[T]], what: str) -> T:
    """
    Return what ``call`` returns, trying again with back-off while the bus is unavailable.

    Appends must carry one commit id over all tries: then a stored one is not stored twice.
    """
    delay_s = FIRST_S
    while True:
        try:
            return await call()
        except NoResponders:
            raise
        except Unavailable as error:
            _log.warning("bus_unavailable", what=what, error=str(error), retry_s=delay_s)
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, MOST_S)
