import asyncio

import pytest

from penstock_bus import health, probe
from penstock_bus.memory import MemoryBus
from penstock_bus.tasks import background


@pytest.mark.parametrize(
    ("host", "is_ready", "expected"), [("here", True, True), ("here", False, False), ("elsewhere", True, False)]
)
async def test_only_a_ready_replica_on_this_host_counts(host, is_ready, expected):
    async with MemoryBus() as bus:
        vitals = health.Vitals(service="gateway", replica="r1", host=host, ready=is_ready)
        async with background(health.beat(bus, vitals)):
            assert await probe.ready(bus, "gateway", "here", wait_s=2.5 if expected else 0.2) is expected


async def test_a_silent_service_is_not_ready():
    async with MemoryBus() as bus:
        assert not await asyncio.wait_for(probe.ready(bus, "gateway", "here", wait_s=0.05), 5)
