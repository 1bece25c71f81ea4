"""Tasks that live exactly as long as a block of code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def background(*jobs: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """
    Run coroutines while the body runs, and cancel them after it.

    Raises
    ------
    BaseExceptionGroup
        If one of them or the body fails: the others are cancelled first.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
