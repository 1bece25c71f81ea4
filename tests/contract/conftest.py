"""
Contract of the bus, a file for each port of ``penstock_bus.port``; ``test_outages`` is about all of them.

Every test that takes ``harness`` or ``bus`` runs on both adapters; ``test_nats_…`` is about what only NATS can show.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio
from bus_harness import Harness, MakeHarness, NatsHarness, memory_harness, nats_harness

from penstock_bus import Bus


@pytest.fixture(params=["memory", "nats"])
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> MakeHarness:
    """Servers of one's own making: ``max_store_bytes``."""

    def make(max_store_bytes: int = 0) -> AbstractAsyncContextManager[Harness]:
        if request.param == "memory":
            return memory_harness(max_store_bytes=max_store_bytes)
        return nats_harness(tmp_path / "server", max_store_bytes=max_store_bytes)

    return make


@pytest_asyncio.fixture
async def harness(make_harness: MakeHarness) -> AsyncIterator[Harness]:
    """An empty server."""
    async with make_harness() as made:
        yield made


@pytest_asyncio.fixture
async def bus(harness: Harness) -> AsyncIterator[Bus]:
    """A bus on it."""
    async with harness.connect() as made:
        yield made


@pytest_asyncio.fixture
async def nats_alone(tmp_path: Path) -> AsyncIterator[NatsHarness]:
    """For what only NATS can show."""
    async with nats_harness(tmp_path / "server") as made:
        yield made
