"""The socket for a node's clients: what it refuses, whom it reads more slowly, and that a client's end is noticed."""

from __future__ import annotations

import asyncio
import getpass
import os
import pwd
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from memory_agents import LineClient

from penstock_bus.local_clients import BURST, LONGEST_LINE, MESSAGES_PER_S, MOST_OF_ONE, MOST_UNSENT_BYTES
from penstock_log.memory_messages import (
    VERSION,
    AgentWelcome,
    BorrowSlab,
    ClientHello,
    ClientRefused,
    ReturnSlab,
    SlabRefused,
    SlabUse,
    ToClient,
)
from penstock_memory.client_listener import MOST_BORROWING, ClientListener, LocalClient
from penstock_testing import eventually

ME = getpass.getuser()
HELLO = ClientHello(version=VERSION, pid=os.getpid())


class NotingHandler:
    """A handler that lends nothing, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails = False

    def welcome(self) -> AgentWelcome:
        return AgentWelcome(node_id="n1", slab_bytes=1 << 20)

    async def borrow(self, client: LocalClient, asked: BorrowSlab) -> ToClient:
        self.told.append((client.user, asked))
        await self.may_answer.wait()
        if self.fails:
            raise RuntimeError("broken")
        return SlabRefused(slab=asked.slab, reason="none here")

    def give_back(self, client: LocalClient, slab: int) -> None:
        self.told.append(("returned", client.user, slab))

    def note_use(self, client: LocalClient, use: SlabUse) -> None:
        self.told.append((client.user, use))

    def give_back_all(self, client: LocalClient) -> None:
        self.told.append(("gone", client.user))


class Listening:
    """A listener at work."""

    def __init__(self, path: Path) -> None:
        self.path, self.handler = path, NotingHandler()
        self.listener = ClientListener(path, self.handler, asyncio.get_running_loop().time)

    async def says(self, *lines: Any) -> str:
        """Return why a new client that says these lines is refused."""
        client = await LineClient.dial(self.path)
        for line in lines:
            client.say(line)
        while not isinstance(message := await client.hear(), ClientRefused):
            pass
        assert await client.reader.read() == b""
        await client.close()
        return message.reason


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Listening]:
    listening = Listening(tmp_path / "memory.sock")
    task = asyncio.create_task(listening.listener.accept())
    yield listening
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_client_is_welcomed_asks_returns_and_says_how_it_uses_slabs(agent: Listening) -> None:
    client = await LineClient.connect(agent.path)
    assert await client.refused(3) == "none here"
    client.say(ReturnSlab(slab=3))
    client.say(SlabUse(activity={3: 1.5}))
    await client.close()
    await eventually(lambda: agent.handler.told[-1:] == [("gone", ME)])
    assert agent.handler.told[1:] == [("returned", ME, 3), (ME, SlabUse(activity={3: 1.5})), ("gone", ME)]
    assert agent.listener.clients == set()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param([ReturnSlab(slab=0)], "expected a hello first", id="without_a_hello"),
        pytest.param([ClientHello(version=99, pid=1)], "speaks version 1, and the client 99", id="another_version"),
        pytest.param([HELLO, HELLO], "a second hello", id="a_second_hello"),
        pytest.param([HELLO, b"{nonsense\n"], "a line that is no message", id="no_json"),
        pytest.param([HELLO, b'{"type":"lent"}\n'], "a line that is no message", id="no_message_of_a_client"),
        pytest.param([HELLO, b"x" * (LONGEST_LINE + 2)], f"more than {LONGEST_LINE} bytes", id="a_line_too_long"),
    ],
)
async def test_what_is_no_conversation_is_refused_with_the_reason(
    agent: Listening, lines: list[Any], reason: str
) -> None:
    assert reason in await agent.says(*lines)
    await eventually(lambda: not agent.listener.clients)


async def test_one_account_has_so_many_connections_and_no_more_until_one_ends(agent: Listening) -> None:
    clients = [await LineClient.connect(agent.path) for _ in range(MOST_OF_ONE)]
    assert f"more than {MOST_OF_ONE} connections of uid {os.getuid()}" in await agent.says()
    await clients.pop().close()
    await eventually(lambda: len(agent.listener.clients) == MOST_OF_ONE - 1)
    clients.append(await LineClient.connect(agent.path))
    for client in clients:
        await client.close()


async def test_accounts_whose_names_are_not_found_out_keep_no_work_on_memory_waiting(
    agent: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, asked = threading.Event(), threading.Event()

    def slow(uid: int) -> pwd.struct_passwd:
        asked.set()
        may_answer.wait(30)
        return found(uid)

    found = pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwuid", slow)
    clients = [await LineClient.dial(agent.path) for _ in range(64)]  # more than there are threads for work on memory
    try:
        for client in clients:
            client.say(HELLO)
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(asked.wait, 30)
            assert await asyncio.to_thread(lambda: "done") == "done"
        assert not may_answer.is_set()
    finally:
        may_answer.set()
    for client in clients:
        assert isinstance(await client.hear(), AgentWelcome)
        await client.close()


async def test_a_client_that_sends_faster_than_it_may_is_read_more_slowly_and_loses_nothing(agent: Listening) -> None:
    loop = asyncio.get_running_loop()
    client = await LineClient.connect(agent.path)
    more = 40
    count = int(BURST) + more
    begun_s = loop.time()
    client.say(b"".join(msgspec.json.encode(ReturnSlab(slab=slab)) + b"\n" for slab in range(count)))
    await eventually(lambda: len(agent.handler.told) >= count)
    assert loop.time() - begun_s >= more / MESSAGES_PER_S - 0.02
    assert agent.handler.told == [("returned", ME, slab) for slab in range(count)]
    await client.close()


async def test_a_slow_reading_of_one_client_keeps_no_other_waiting(agent: Listening) -> None:
    fast = await LineClient.connect(agent.path)
    fast.say(b"".join(msgspec.json.encode(ReturnSlab(slab=0)) + b"\n" for _ in range(int(BURST) + 400)))
    other = await LineClient.connect(agent.path)
    assert await other.refused(1) == "none here"
    assert len(agent.handler.told) < int(BURST) + 400
    await fast.close()
    await other.close()


async def test_a_client_waits_for_so_many_slabs_at_a_time(agent: Listening) -> None:
    agent.handler.may_answer.clear()
    asked = [BorrowSlab(slab=slab) for slab in range(MOST_BORROWING + 1)]
    assert f"more than {MOST_BORROWING} slabs asked for at a time" in await agent.says(HELLO, *asked)


async def test_a_failure_of_the_agent_is_answered(agent: Listening) -> None:
    agent.handler.fails = True
    client = await LineClient.connect(agent.path)
    assert await client.refused() == "the agent failed; its log says how"
    await client.close()


async def test_a_client_that_does_not_read_is_hung_up_on(agent: Listening) -> None:
    client = await LineClient.connect(agent.path)
    (local,) = agent.listener.clients
    for slab in range(4):
        local.send(SlabRefused(slab=slab, reason="x" * (MOST_UNSENT_BYTES // 3)))
    await eventually(lambda: not agent.listener.clients)
    assert agent.handler.told == [("gone", ME)]
    await client.close()
