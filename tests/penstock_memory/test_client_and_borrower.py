"""What clients of a node borrow: a listener and a borrower, and donors that are asked in their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from memory_agents import LineClient

from penstock_bus.local_clients import BURST, MESSAGE_BYTES, MESSAGES_PER_S
from penstock_log.memory_messages import (
    BorrowSlab,
    EvictSlabs,
    LeasesGone,
    MapSlab,
    QuerySlabs,
    RenewSlabs,
    ReturnSlab,
    SlabAddress,
    SlabLent,
    SlabOffer,
    SlabRefused,
    SlabsFree,
    SlabUse,
    UnmapSlabs,
)
from penstock_memory.borrower import Borrower
from penstock_memory.client_listener import ClientListener
from penstock_memory.machine import MemorySettings

MIB = 1 << 20


class Donors:
    """Donors that lend whatever they are asked for, and keep what they were asked."""

    def __init__(self) -> None:
        self.lent: dict[str, SlabAddress] = {}
        self.gone: set[str] = set()
        self.renewed: list[tuple[str, ...]] = []
        self.unmapped = asyncio.Event()

    async def __call__(self, node_id: str, request: Any, answer: type[Any], timeout_s: float) -> Any:
        del answer, timeout_s
        await asyncio.sleep(0)
        match request:
            case QuerySlabs():
                return SlabsFree(slabs=8, free_bytes=8 * MIB)
            case MapSlab():
                lease = f"{len(self.lent):032x}"
                self.lent[lease] = SlabAddress(
                    donor=node_id,
                    lease=lease,
                    token="0" * 64,
                    slab=len(self.lent),
                    generation=1,
                    slab_bytes=MIB,
                    host="10.0.0.1",
                    port=7,
                )
                return self.lent[lease]
            case RenewSlabs():
                self.renewed.append(request.leases)
                return LeasesGone(leases=tuple(lease for lease in request.leases if lease in self.gone))
            case UnmapSlabs():
                for lease in request.leases:
                    del self.lent[lease]
                self.unmapped.set()
                return LeasesGone(leases=())
        raise AssertionError(request)


class Agent:
    """The part of an agent that clients see, with a clock of the test's own."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path, self.now_s, self.donors = path, 0.0, Donors()
        self.tasks: set[asyncio.Task[None]] = set()
        self.borrower = Borrower(
            "n1",
            MemorySettings(slab_bytes=MIB, **settings),
            ask=self.donors,
            spawn=self._spawn,
            ticking=lambda: self.now_s,
            rng=np.random.default_rng(2),
        )
        self.listener = ClientListener(path, self.borrower, lambda: self.now_s)
        self.borrower.hear("n2", SlabOffer(slab_bytes=MIB, offered=8, lent=0, free_bytes=8 * MIB, headroom_bytes=0))

    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        running = asyncio.ensure_future(task)
        self.tasks.add(running)
        running.add_done_callback(self.tasks.discard)


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    agent = Agent(tmp_path / "memory.sock")
    accepting = asyncio.ensure_future(agent.listener.accept())
    yield agent
    accepting.cancel()
    with suppress(asyncio.CancelledError):
        await accepting


async def test_a_slab_that_is_returned_right_after_it_was_asked_for_is_not_kept(agent: Agent) -> None:
    client = await LineClient.connect(agent.path)
    asked, returned = msgspec.json.encode(BorrowSlab(slab=3)), msgspec.json.encode(ReturnSlab(slab=3))
    client.say(asked + b"\n" + returned + b"\n")
    refused = await client.hear(SlabRefused)
    assert refused.reason == "it was returned before it was lent"
    await agent.donors.unmapped.wait()
    assert not agent.donors.lent
    await client.borrow(3)
    await client.close()


async def test_a_client_that_asks_again_before_it_was_answered_has_one_slab_of_a_number(agent: Agent) -> None:
    client = await LineClient.connect(agent.path)
    for message in (BorrowSlab(slab=3), ReturnSlab(slab=3), BorrowSlab(slab=3)):
        client.say(message)
    assert {type(await client.hear()), type(await client.hear())} == {SlabLent, SlabRefused}
    await client.close()
    while agent.donors.lent:
        agent.donors.unmapped.clear()
        await agent.donors.unmapped.wait()
    await agent.borrower.renew()
    assert not agent.donors.renewed


async def test_long_messages_are_read_more_slowly_than_short_ones(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: asyncio.Queue[float] = asyncio.Queue()
    really = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        if delay_s:
            waits.put_nowait(delay_s)
        await really(0)

    client = await LineClient.connect(agent.path)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    long = SlabUse(activity=dict.fromkeys(range(100_000, 160_000), 0.5))
    size = len(msgspec.json.encode(long))
    for _ in range(int(BURST / (size / MESSAGE_BYTES)) + 1):
        client.say(long)
    waited_s = await asyncio.wait_for(waits.get(), 30)
    assert 0 < waited_s <= size / MESSAGE_BYTES / MESSAGES_PER_S + 0.1
    await client.close()


async def test_a_client_is_told_once_that_a_slab_goes(agent: Agent) -> None:
    client = await LineClient.connect(agent.path)
    address = await client.borrow(3)
    evicting = asyncio.ensure_future(
        agent.borrower.answer(EvictSlabs(leases=(address.lease,), reason="a job", within_s=30.0))
    )
    agent.donors.gone.add(address.lease)
    await agent.borrower.renew()
    assert (await client.evicted()).reason == "a job"
    assert await evicting == LeasesGone(leases=(address.lease,))
    await client.borrow(3)  # the next thing that it hears is the slab that it asked for
    await client.close()
