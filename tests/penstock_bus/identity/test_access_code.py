"""Who may store, read and remove the code of jobs: the gateway all of it, executors read, and nobody else anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_access_attackers import bus_of, raw

from penstock_bus import BusError
from penstock_bus.identity.access import ADMIN, CLIENT, EXTENSION
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_log import subjects
from penstock_log.services import LOGINS

pytestmark = pytest.mark.slow

PART = subjects.code_part("alice", "0" * 64, 6)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server on which the gateway has stored a part of alice's."""
    async with running(ServerSettings(data_dir=tmp_path)) as started:
        async with bus_of(started, ADMIN), bus_of(started, "gateway") as gateway:
            await gateway.put_code([(PART, b"secret")])
        yield started


async def test_the_gateway_stores_reads_lists_and_removes(server: Server) -> None:
    async with bus_of(server, "gateway") as gateway:
        assert await gateway.get_code([PART]) == {PART: b"secret"}
        assert await gateway.newest_code([PART]) == {PART: b"secret"}
        assert await gateway.list_code(subjects.code_pattern("alice", "part")) == [PART]
        await gateway.remove_code([PART])
        assert await gateway.get_code([PART]) == {}
        lease = await gateway.acquire("gateway_code", "g1", 5.0)
        assert lease is not None


async def test_executors_read_and_change_nothing(server: Server) -> None:
    async with bus_of(server, "executor") as executor:
        assert await executor.get_code([PART]) == {PART: b"secret"}
        executor.link.timeout_s = 0.5
        for change in (executor.put_code([(PART, b"evil")]), executor.remove_code([PART])):
            with pytest.raises(BusError):
                await change
        assert await executor.get_code([PART]) == {PART: b"secret"}


async def test_no_other_service_and_no_person_reads_or_hears_it(server: Server) -> None:
    for user in sorted({*LOGINS, EXTENSION} - {ADMIN, "gateway", "executor"}):
        async with bus_of(server, user) as other:
            other.link.timeout_s = 0.5
            with pytest.raises(BusError):
                await other.get_code([PART])
            with pytest.raises(BusError):
                await other.newest_code([PART])
            with pytest.raises(BusError):
                await other.put_code([(PART, b"evil")])
    heard: list[bytes] = []

    async def hear(message: object) -> None:
        heard.append(message.data)  # type: ignore[attr-defined]

    async with raw(server, "executor") as executor, raw(server, "matcher") as matcher, raw(server, CLIENT) as person:
        for one in (executor, matcher, person):
            await one.subscribe("penstock.code.>", cb=hear)
            await one.flush()
        async with bus_of(server, "gateway") as gateway:
            await gateway.put_code([(PART, b"secret")])
            assert await gateway.get_code([PART]) == {PART: b"secret"}
        for one in (executor, matcher, person):
            await one.flush()
    await asyncio.sleep(0)
    assert heard == []
