import asyncio

import pytest

from penstock_bus import health, probe
from penstock_bus.follower import background
from penstock_bus.memory import MemoryBus
from penstock_bus.settings import BusAddress, SettingsError, load


@pytest.mark.parametrize(
    ("host", "is_ready", "expected"), [("here", True, True), ("here", False, False), ("elsewhere", True, False)]
)
async def test_only_a_ready_replica_on_this_host_counts(host, is_ready, expected):
    async with MemoryBus() as bus:
        vitals = health.Vitals(service="gateway", replica="r1", host=host, ready=is_ready)
        async with background(health.beat(bus, lambda vitals=vitals: vitals)):
            assert await probe.ready(bus, "gateway", "here", wait_s=2.5 if expected else 0.2) is expected


async def test_a_silent_service_is_not_ready():
    async with MemoryBus() as bus:
        assert not await asyncio.wait_for(probe.ready(bus, "gateway", "here", wait_s=0.05), 60)


def test_a_password_may_stand_in_a_file(tmp_path):
    secret = tmp_path / "gateway"
    secret.write_text("s3cret\n")
    environment = {"PENSTOCK_PASSWORD_FILE": str(secret)}
    assert load(BusAddress, "", environ=environment).secret() == "s3cret"
    secret.unlink()
    with pytest.raises(SettingsError, match=r"PENSTOCK_PASSWORD_FILE names .*gateway, which cannot be read"):
        load(BusAddress, "", environ=environment).secret()
