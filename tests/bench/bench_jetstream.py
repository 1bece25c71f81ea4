"""
Leases and work of the bus beside nats-py's KV and pull subscriptions: ``python tests/bench/bench_jetstream.py``.

Each pair is measured in turns on the same server. docs/adr/0013 has what follows from it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import nats
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext
from nats.js.errors import KeyWrongLastSequenceError

from penstock_bus import Bus, Work
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_log import subjects

ROUNDS = 3
RENEWALS = 300
MESSAGES = 1500
ACK_WAIT_S = 8.0
JOBS = subjects.INBOX_JOBS
Took = Callable[[Bus, Client, Server], Awaitable[float]]


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Bus, Client, Server]]:
    """Start a server, and connect to it in both ways."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(data_dir=Path(folder), sync_interval="2m")
        async with running(settings, access={}) as server, connect(server.url) as bus:
            client = await nats.connect(server.url, error_cb=_nothing)
            yield bus, client, server
            await client.close()


async def _nothing(_: Exception) -> None:
    """Say nothing of servers that are killed on purpose."""


async def submit(bus: Bus, count: int) -> None:
    """Put messages into the work queue."""
    await asyncio.gather(*(bus.submit(JOBS, b"x" * 300) for _ in range(count)))


async def renew_ours(bus: Bus, _: Client, __: Server) -> float:
    """Return the median time of a renewal, in µs."""
    lease = await bus.acquire("ours", "me", 60.0)
    assert lease is not None
    times = []
    for _ in range(RENEWALS):
        start_s = time.perf_counter()
        assert await bus.renew(lease)
        times.append(time.perf_counter() - start_s)
    return 1e6 * statistics.median(times)


async def renew_kv(_: Bus, client: Client, __: Server) -> float:
    """Return the same of a get and an update; the public update takes no time to live."""
    kv = await client.jetstream().key_value(subjects.LEASES)
    revision = await kv.create("theirs", b"me", msg_ttl=60.0)
    times = []
    for _ in range(RENEWALS):
        start_s = time.perf_counter()
        revision = (await kv.get("theirs")).revision or 0
        await kv._update("theirs", b"me", last=revision, msg_ttl=60.0)  # no public one
        times.append(time.perf_counter() - start_s)
    return 1e6 * statistics.median(times)


async def ends(bus: Bus, client: Client) -> None:
    """Print what becomes of a lease whose time is over."""
    kv = await client.jetstream().key_value(subjects.LEASES)
    await kv.create("gone", b"me", msg_ttl=1.0)
    await kv.update("kept", b"me", last=await kv.create("kept", b"me", msg_ttl=1.0))
    await bus.acquire("ended", "me", 1.0)
    await asyncio.sleep(2.2)
    try:
        again = f"revision {await kv.create('gone', b'you', msg_ttl=1.0)}"
    except KeyWrongLastSequenceError as error:
        again = type(error).__name__
    left = (await kv.get("kept")).value
    taken = await bus.acquire("ended", "you", 1.0)
    print(f"a lease of 1 s after 2.2 s: create gives {again}; after an update it holds {left!r}; ours is {taken}")


@asynccontextmanager
async def pulling(client: Client, name: str) -> AsyncIterator[JetStreamContext.PullSubscription]:
    """Bind to a durable consumer, which is made if it is not there."""
    js = client.jetstream()
    config = ConsumerConfig(
        durable_name=name, filter_subject=JOBS, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S, max_ack_pending=1000
    )
    with suppress(Error):
        await js.add_consumer(subjects.INBOX, config)
    yield await js.pull_subscribe_bind(name, stream=subjects.INBOX)


async def each_ours(bus: Bus, queue: str = "ours") -> AsyncIterator[Work]:
    """Yield work of ours, acknowledged."""
    async with aclosing(bus.work(queue, [JOBS])) as work:  # type: ignore[type-var] # an async generator
        async for one in work:
            await one.ack()
            yield one


async def each_fetched(client: Client, name: str = "theirs", heartbeat_s: float | None = None) -> AsyncIterator[Msg]:
    """Yield what is fetched, acknowledged; go on after errors."""
    async with pulling(client, name) as pull:
        while True:
            try:
                for msg in await pull.fetch(64, timeout=5, heartbeat=heartbeat_s):
                    await msg.ack_sync()
                    yield msg
            except (Error, TimeoutError):
                await asyncio.sleep(0.05)


async def rate(bus: Bus, each: AsyncIterator[object]) -> float:
    """Return how many messages a second are taken and acknowledged."""
    await submit(bus, MESSAGES)
    start_s, count = time.perf_counter(), 0
    async for _ in each:
        count += 1
        if count == MESSAGES:
            break
    return MESSAGES / (time.perf_counter() - start_s)


async def restart_s(bus: Bus, server: Server, each: AsyncIterator[object]) -> float:
    """Return how long after a kill and a start a waiting worker gets the next message."""
    await bus.submit(JOBS, b"first")
    await anext(each)
    waiting = asyncio.ensure_future(anext(each))
    await asyncio.sleep(0.3)
    await server.kill()
    await server.start()
    await bus.submit(JOBS, b"second")
    start_s = time.perf_counter()
    await waiting
    return time.perf_counter() - start_s


async def given_back_s(bus: Bus, make: Callable[[], AsyncIterator[object]]) -> float:
    """Return how long the next worker waits for what a cancelled one had already fetched."""
    await submit(bus, 64)
    first = make()
    await anext(first)
    await first.aclose()  # type: ignore[attr-defined] # an async generator
    start_s, count = time.perf_counter(), 0
    async for _ in make():
        count += 1
        if count == 63:
            break
    return time.perf_counter() - start_s


PAIRS: dict[str, tuple[Took, Took]] = {
    "renewal of a lease, us": (renew_ours, renew_kv),
    "work with acknowledgement, a second": (
        lambda bus, _client, _server: rate(bus, each_ours(bus)),
        lambda bus, client, _server: rate(bus, each_fetched(client)),
    ),
    "next message after kill -9 and start, s": (
        lambda bus, _client, server: restart_s(bus, server, each_ours(bus)),
        lambda bus, client, server: restart_s(bus, server, each_fetched(client, heartbeat_s=0.25)),
    ),
    f"63 messages that a cancelled worker held (ack_wait {ACK_WAIT_S:.0f} s), s": (
        lambda bus, _client, _server: given_back_s(bus, lambda: each_ours(bus)),
        lambda bus, client, _server: given_back_s(bus, lambda: each_fetched(client)),
    ),
}


async def measure() -> None:
    """Print each pair's medians."""
    async with cluster() as (bus, client, _):
        await ends(bus, client)
    for what, pair in PAIRS.items():
        found: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for took, times in zip(pair, found, strict=True):
                async with cluster() as (bus, client, server):
                    times.append(await took(bus, client, server))
        ours, theirs = map(statistics.median, found)
        print(f"{what}: ours {ours:,.3g}, nats-py {theirs:,.3g}", flush=True)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    asyncio.run(measure())
