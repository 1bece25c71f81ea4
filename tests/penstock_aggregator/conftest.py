"""Nodes on the bus in memory, whose agents do not wait long for ranks that have their last results anyway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aggregation_agents import Nodes, nodes_on

from penstock_aggregator import local_runs
from penstock_bus.memory import MemoryBus


@pytest.fixture(autouse=True)
def _runs_leave_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_runs, "LEFT_S", 0.1)
    monkeypatch.setattr(local_runs, "LEFT_ELSEWHERE_S", 0.1)


@pytest_asyncio.fixture
async def nodes(memory_bus: MemoryBus) -> AsyncIterator[Nodes]:
    async with nodes_on(memory_bus) as found:
        yield found
