"""Waiting in tests for something to become true, bounded by a timeout that is a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.01


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, within_s: float = PATIENCE_S, why: str = ""
) -> None:
    """
    Wait until a condition holds, for what offers no event to wait for.

    Raises
    ------
    AssertionError
        If it does not within ``within_s`` seconds.
    """
    try:
        async with asyncio.timeout(within_s):
            while not await _holds(condition):  # noqa: ASYNC110 - there is no event, that is what this is for
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise AssertionError(f"not true within {within_s} s: {why or condition}") from error


async def _holds(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    held = condition()
    return held if isinstance(held, bool) else await held
