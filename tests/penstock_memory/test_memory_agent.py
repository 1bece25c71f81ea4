"""Memory agents as processes of their own, on a real server: what clients get from them, and what ends it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from memory_agents import MIB, LineClient, RawSlab, agents

from penstock.memory.frames import Status
from penstock_testing.fixtures import NatsAccount

pytestmark = pytest.mark.slow


async def test_a_client_borrows_a_slab_of_its_own_node_writes_and_reads_it(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with agents(nats_account, tmp_path, "n1") as (n1,):
        client = await LineClient.connect(n1.socket, name="thin")
        assert client.welcome.slab_bytes == MIB
        address = await client.borrow()
        data = os.urandom(200_000)
        slab = await asyncio.to_thread(RawSlab, address)
        assert slab.greeting.length == MIB
        assert await asyncio.to_thread(slab.read, 0, 4096) == bytes(4096)
        assert (await asyncio.to_thread(slab.write, 4096, data)).status == Status.OK
        assert await asyncio.to_thread(slab.read, 4096, len(data)) == data
        slab.close()
        assert await n1.end() == 0
