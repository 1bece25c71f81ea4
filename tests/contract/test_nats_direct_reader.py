"""Reading as people do, by direct gets alone: what holds for those who may make no consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest
import pytest_asyncio
from bus_harness import NatsHarness, append, take

from penstock_bus import Bus
from penstock_log import subjects


@pytest_asyncio.fixture
async def server(nats_alone: NatsHarness) -> AsyncIterator[NatsHarness]:
    """A server with streams."""
    async with nats_alone.connect():
        yield nats_alone


@pytest_asyncio.fixture
async def writer(server: NatsHarness) -> AsyncIterator[Bus]:
    """A service."""
    async with server.connect() as bus:
        yield bus


@pytest_asyncio.fixture
async def client(server: NatsHarness) -> AsyncIterator[Bus]:
    """A person."""
    async with server.connect(as_client=True) as bus:
        yield bus


async def test_all_that_is_stored_and_all_that_comes_is_followed_in_order(writer: Bus, client: Bus) -> None:
    await writer.append_many([append(f"j{i}", None) for i in range(2500)])
    following = client.follow(after_seq=10)
    stored = await take(following, 2490)
    assert (stored[0].seq, stored[0].pending, stored[-1].pending) == (11, 2489, 0)
    writing = asyncio.create_task(writer.append_many([append(f"k{i}", None) for i in range(500)]))
    found = [*stored, *await take(following, 500)]
    await writing
    assert all(one.seq + 1 == next_one.seq for one, next_one in pairwise(found))
    assert await client.last_seq() == 3000


async def test_commits_that_are_appended_as_one_are_followed_too(writer: Bus, client: Bus) -> None:
    await writer.append(append("first"))
    following = client.follow()
    await take(following, 1)
    await writer.append_all([append(f"j{i}") for i in range(500)])
    assert [one.seq for one in await take(following, 500)] == list(range(2, 502))


@pytest.mark.parametrize("breaking", ["crash", "cut"])
async def test_following_goes_on_over_breaks(server: NatsHarness, client: Bus, breaking: str) -> None:
    following = client.follow()
    async with server.connect() as writer:
        await writer.append(append("j1"))
        await take(following, 1)
    waiting = asyncio.create_task(take(following, 1))
    if breaking == "crash":
        await server.crash()
        await server.restart()
    else:
        server.cut()
        server.mend()
    async with server.connect() as writer:
        await writer.append(append("j2"))
    (found,) = await waiting
    assert found.subject == subjects.job("j2")


async def test_only_what_is_asked_for_is_followed(writer: Bus, client: Bus) -> None:
    for job_id in ("j1", "j2", "j3", "j1"):
        await writer.append(append(job_id, None))
    one = await take(client.follow(subjects=[subjects.job("j1")]), 2)
    two = await take(client.follow(subjects=[subjects.job("j1"), subjects.job("j3")]), 3)
    assert [delivery.seq for delivery in one] == [1, 4]
    assert [delivery.seq for delivery in two] == [1, 3, 4]


async def test_output_is_followed_to_the_last_piece(writer: Bus, client: Bus) -> None:
    await writer.write_output("j1", 0, b"first")
    lines = client.read_output("j1", follow=True)
    assert (await anext(lines)).data == b"first"
    await writer.write_output("j2", 0, b"another's")
    await writer.write_output("j1", 1, b"second")
    second = await anext(lines)
    assert (second.rank, second.data) == (1, b"second")


async def test_nothing_is_made_on_the_server(server: NatsHarness, writer: Bus, client: Bus) -> None:
    await writer.append(append("j1"))
    await take(client.follow(), 1)
    async with server.bare() as bare:
        answer = await bare.request(f"$JS.API.CONSUMER.NAMES.{subjects.EVT}")
    assert msgspec.json.decode(answer.data)["consumers"] == []
