import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from executor_cases import World, world_on

from penstock_bus.memory import MemoryBus


@pytest_asyncio.fixture
async def world(memory_bus: MemoryBus, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(memory_bus, tmp_path) as world:
        yield world


@pytest.fixture
def passing(tmp_path: Path) -> Iterator[Path]:
    """A folder that goes with its test: pytest removes older ones by recursion, which ends at some depth."""
    made = tmp_path / "passing"
    made.mkdir()
    yield made
    subprocess.run(["rm", "-rf", str(made)], check=True)
