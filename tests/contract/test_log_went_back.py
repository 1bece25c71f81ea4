"""A reader of a log that is restored to an earlier state says so, where it would else wait, and skip what comes."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
from bus_harness import append

from penstock_bus import Bus, LogWentBack, Unavailable
from penstock_bus.identity.access import ADMIN
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerSettings


async def connected(stack: AsyncExitStack, server: Server) -> Bus:
    """Return a bus of a server that has just begun anew, on which the reader may be making the streams as well."""
    async with asyncio.timeout(30.0):
        while True:
            try:
                return await stack.enter_async_context(connect(server.url, login=server.logins[ADMIN]))
            except Unavailable:
                await asyncio.sleep(0.05)


async def test_a_reader_ends_when_the_log_ends_before_what_it_has_read(tmp_path: Path) -> None:
    server = Server(ServerSettings(data_dir=tmp_path / "data", sync_interval="2m"))
    await server.start()
    login = {"login": server.logins[ADMIN]}
    try:
        async with connect(server.url, **login) as reader, aclosing(reader.follow()) as deliveries:
            await reader.append_many([append(f"j{i}") for i in range(3)])
            assert [(await anext(deliveries)).seq for _ in range(3)] == [1, 2, 3]
            following = asyncio.ensure_future(anext(deliveries))
            await server.stop()
            shutil.rmtree(tmp_path / "data" / "nats" / "jetstream")
            await server.start()
            async with AsyncExitStack() as stack:
                writer = await connected(stack, server)
                await writer.append(append("other"))
                with pytest.raises(
                    LogWentBack, match=r"ends at sequence [01] and was read up to 3.*restored from a backup"
                ):
                    await asyncio.wait_for(following, 30.0)
    finally:
        await server.stop()
