"""Nodes on the bus in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from aggregation_agents import Nodes, nodes_on

from penstock_bus.memory import MemoryBus


@pytest_asyncio.fixture
async def nodes(memory_bus: MemoryBus, tmp_path: Path) -> AsyncIterator[Nodes]:
    async with nodes_on(memory_bus, tmp_path) as found:
        yield found
