from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from executor_cases import World, world_on

from penstock_bus.memory import MemoryBus


@pytest_asyncio.fixture
async def world(memory_bus: MemoryBus, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(memory_bus, tmp_path) as world:
        yield world
