"""Memory agents as processes of their own, on a real server: what clients get from them, and what ends it."""

from __future__ import annotations

import asyncio
import getpass
import mmap
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from memory_agents import MIB, AgentProcess, LineClient, RawSlab, agents

from penstock.memory.frames import Status
from penstock_log import Event, MemoryOffered, SlabsLent, SlabsReturned, subjects
from penstock_log.memory_messages import ReturnSlab, SlabAddress, SlabOffer
from penstock_testing import eventually
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


async def test_a_client_borrows_from_the_other_node_and_shares_memory_where_that_is_its_host(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with agents(nats_account, tmp_path, "n1", "n2") as (n1, _):
        client = await LineClient.connect(n1.socket)
        address = await client.borrow(elsewhere=True)
        assert address.donor == "n2"
        remote, local = await asyncio.to_thread(RawSlab, address), await asyncio.to_thread(RawSlab, address, local=True)
        shared = await asyncio.to_thread(local.share)
        assert generation_of(shared) == address.generation
        await asyncio.to_thread(remote.write, 8192, b"over tcp")
        assert shared[8192:8200] == b"over tcp"
        shared[0:6] = b"shared"
        assert await asyncio.to_thread(remote.read, 0, 6) == b"shared"
        client.say(ReturnSlab(slab=0))
        assert await asyncio.to_thread(remote.is_over)
        assert await asyncio.to_thread(local.is_over)
        assert generation_of(shared) == 0
        await eventually(lambda: shared[0:6] == bytes(6), why="the memory is the kernel's again, whoever maps it")


@pytest.mark.thorough
async def test_slabs_are_spread_over_the_machines_that_have_none_of_the_client(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with agents(nats_account, tmp_path, "n1", "n2", "n3") as (n1, _, _):
        client = await LineClient.connect(n1.socket)
        found = [(await client.borrow(slab)).donor for slab in range(2)]
        assert len(set(found)) == 2
        assert (await client.borrow(2, avoid=("n1", "n3"))).donor == "n2"


async def test_a_client_that_is_killed_has_given_everything_back(nats_account: NatsAccount, tmp_path: Path) -> None:
    async with agents(nats_account, tmp_path, "n1", "n2") as (n1, n2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", BORROWING, str(n1.socket), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        address = msgspec.json.decode(await process.stdout.readline(), type=SlabAddress)
        slab = await asyncio.to_thread(RawSlab, address)
        assert (await offer_of(n2, lambda offer: offer.lent == 1)).lent_to == {"j1": 1}
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert await asyncio.to_thread(slab.is_over)
        await offer_of(n2, lambda offer: offer.lent == 0)


BORROWING = """
import json, socket, sys, time
agent = socket.socket(socket.AF_UNIX)
agent.connect(sys.argv[1])
lines = agent.makefile("rw")
hello = {"type": "hello", "version": 1, "pid": 1, "job_id": "j1"}
for message in (hello, {"type": "borrow", "slab": 7, "elsewhere": True}):
    print(json.dumps(message), file=lines, flush=True)
    answer = json.loads(lines.readline())
print(json.dumps(answer["address"]), flush=True)
time.sleep(600)
"""


@pytest.mark.thorough
async def test_a_donor_that_is_killed_and_comes_again_knows_no_lease_of_before(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with agents(nats_account, tmp_path, "n1", "n2") as (n1, n2):
        client = await LineClient.connect(n1.socket)
        address = await client.borrow(elsewhere=True)
        slab = await asyncio.to_thread(RawSlab, address)
        await n2.end(signal.SIGKILL)
        assert await asyncio.to_thread(slab.is_over)
        offer = await n2.start()
        assert (offer.lent, offer.offered) == (0, 64)
        evicted = await client.evicted()
        assert (evicted.slab, evicted.reason) == (0, "node n2 has it no more")
        again = await client.borrow(elsewhere=True)
        assert again.generation > address.generation


@pytest.mark.thorough
async def test_a_donor_that_is_killed_and_stays_away_is_given_up_when_the_lease_is_over(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with agents(nats_account, tmp_path, "n1", "n2") as (n1, n2):
        client = await LineClient.connect(n1.socket)
        await client.borrow(elsewhere=True)
        await n2.end(signal.SIGKILL)
        assert (await client.evicted()).reason == "node n2 does not answer"
        assert "no node has memory to lend" in await client.refused(elsewhere=True)


async def test_an_agent_that_ends_in_good_order_tells_the_clients_of_its_slabs_first(
    nats_account: NatsAccount, tmp_path: Path
) -> None:
    async with agents(nats_account, tmp_path, "n1", "n2") as (n1, n2):
        client = await LineClient.connect(n1.socket)
        await client.borrow(elsewhere=True)
        ending = asyncio.ensure_future(n2.end())
        assert (await client.evicted()).reason == "the donor's agent ends"
        assert await ending == 0


async def test_a_second_agent_of_a_nodes_name_is_refused(nats_account: NatsAccount, tmp_path: Path) -> None:
    async with agents(nats_account, tmp_path, "n1"):
        other = AgentProcess(nats_account, tmp_path / "elsewhere", "n1")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock_memory", env=other.environment, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 78
        assert b"another memory agent runs as node n1" in said


@pytest.mark.thorough
async def test_what_was_lent_and_returned_stands_in_the_log(nats_account: NatsAccount, tmp_path: Path) -> None:
    async with agents(nats_account, tmp_path, "n1", "n2") as (n1, _), nats_account.connect() as bus:
        client = await LineClient.connect(n1.socket, job_id="j1")
        for slab in range(2):
            await client.borrow(slab, elsewhere=True)
        client.say(ReturnSlab(slab=1))
        found: list[Event] = []
        async for delivery in bus.follow(subjects=[subjects.memory("n2")]):
            found += [msgspec.structs.replace(fact, at_s=0.0) for fact in delivery.commit.known]
            if any(isinstance(fact, SlabsReturned) for fact in found):
                break
        about = {"at_s": 0.0, "node_id": "n2", "borrower": "n1", "user": getpass.getuser(), "job_id": "j1"}
        assert isinstance(found[0], MemoryOffered)
        assert found[0].slabs == 64
        assert sum(fact.slabs for fact in found if isinstance(fact, SlabsLent)) == 2
        assert found[-1] == SlabsReturned(slabs=1, why="returned", **about)


async def offer_of(agent: AgentProcess, condition: Callable[[SlabOffer], bool]) -> SlabOffer:
    """Return the next offer of a node that is as wanted."""
    async with agent.account.connect() as bus, asyncio.timeout(30):
        async for _, body in bus.subscribe(subjects.memory_offer(agent.node_id)):
            if condition(offer := msgspec.json.decode(body, type=SlabOffer)):
                return offer
    raise AssertionError("telemetry does not end")


def generation_of(memory: mmap.mmap) -> int:
    return int.from_bytes(memory[MIB : MIB + 8], sys.byteorder)
