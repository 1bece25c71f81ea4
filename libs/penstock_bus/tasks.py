"""Tasks that live exactly as long as a block of code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def background(*jobs: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """
    Run coroutines while the body runs, and cancel them after it.

    An error of the body comes through as it is.

    Raises
    ------
    BaseExceptionGroup
        If one of the coroutines fails: the body and the others are cancelled first.
    """
    failed: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        try:
            yield
        except Exception as error:  # raised again below, outside the group
            failed = error
        finally:
            for task in tasks:
                task.cancel()
    if failed is not None:
        raise failed
