"""``aclosing``, ``assert_never`` and ``timeout``, which Python has from 3.10 and 3.11 on: the SDK runs on 3.9 too."""

from __future__ import annotations

import sys

__all__ = ["aclosing", "assert_never", "timeout"]

if sys.version_info >= (3, 11):
    from asyncio import timeout
    from contextlib import aclosing
    from typing import assert_never
else:
    import asyncio
    from collections.abc import AsyncGenerator, AsyncIterator
    from contextlib import asynccontextmanager
    from typing import NoReturn

    def assert_never(value: NoReturn) -> NoReturn:
        """Fail, since the types say that nobody comes here."""
        raise AssertionError(f"expected nothing, got {value!r}")

    @asynccontextmanager
    async def aclosing(generator: AsyncGenerator) -> AsyncIterator[AsyncGenerator]:
        """Close a generator when the context ends."""
        try:
            yield generator
        finally:
            await generator.aclose()

    @asynccontextmanager
    async def timeout(delay_s: float | None) -> AsyncIterator[None]:
        """Raise ``TimeoutError`` in place of the context's cancellation if it takes longer; None for no limit."""
        task, late = asyncio.current_task(), []

        def end() -> None:
            late.append(True)
            task.cancel()

        handle = None if delay_s is None else asyncio.get_running_loop().call_later(delay_s, end)
        try:
            yield
        except asyncio.CancelledError:
            if late:
                raise TimeoutError from None
            raise
        finally:
            if handle is not None:
                handle.cancel()
