"""Pytest fixtures; a ``conftest.py`` takes them with ``pytest_plugins = ["penstock_testing.fixtures"]``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from penstock_bus.memory import MemoryBus


@pytest_asyncio.fixture
async def memory_bus() -> AsyncIterator[MemoryBus]:
    """A bus in memory, empty."""
    async with MemoryBus() as bus:
        yield bus
