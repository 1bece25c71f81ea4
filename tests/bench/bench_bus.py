"""
The bus against the same calls bare in nats-py, side by side in one run: ``python tests/bench/bench_bus.py [EVENTS]``.

Each pair is measured in turns, several times; the medians count. Where more is better the ratio is ours over bare.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import nats
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from rich.console import Console
from rich.table import Table

from penstock_bus import Append
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import Commit, RunEnded, decode, encode, subjects

ROUNDS = 5
APPENDS = 2000
WINDOW = 20_000
JOBS = 5000
EVT = subjects.EVT
EXPECTED = "Nats-Expected-Last-Subject-Sequence"

_numbers = itertools.count()
Seconds = float


def commit(job_id: str) -> Commit:
    """Return a commit of about the size that Penstock's have."""
    fact = RunEnded(
        job_id=job_id,
        at_s=1.7e9,
        epoch=3,
        node_id="node-07",
        outcome="completed",
        exit_code=0,
        steps=1200,
        loop_steps=400,
        loop_s=93.5,
    )
    return Commit(id=f"c{next(_numbers):020}", actor="executor/node-07", facts=(fact,), cause=123_456)


def items(count: int) -> list[Append]:
    """Return commits of new subjects."""
    ids = (f"b{next(_numbers)}" for _ in range(count))
    return [Append(subject=subjects.run(one), commit=commit(one), expected=0) for one in ids]


async def appends_bare(client: Client) -> list[Seconds]:
    """Time each publish with an expected sequence and a message id."""
    js, times = client.jetstream(), []
    for item in items(APPENDS):
        body = encode(item.commit)
        start_s = time.perf_counter()
        await js.publish(item.subject, body, headers={EXPECTED: "0", "Nats-Msg-Id": item.commit.id})
        times.append(time.perf_counter() - start_s)
    return times


async def appends_bus(bus: NatsBus) -> list[Seconds]:
    """Time each append, encoding included."""
    times = []
    for item in items(APPENDS):
        start_s = time.perf_counter()
        await bus.append(item)
        times.append(time.perf_counter() - start_s)
    return times


async def window_bare(client: Client) -> Seconds:
    """Time ``publish_async`` with 1,024 outstanding."""
    js = client.jetstream(publish_async_max_pending=1024)
    todo = items(WINDOW)
    start_s = time.perf_counter()
    futures = [
        await js.publish_async(one.subject, encode(one.commit), headers={EXPECTED: "0", "Nats-Msg-Id": one.commit.id})
        for one in todo
    ]
    await asyncio.gather(*futures)
    return time.perf_counter() - start_s


async def window_bus(bus: NatsBus) -> Seconds:
    """Time ``append_many``."""
    todo = items(WINDOW)
    start_s = time.perf_counter()
    await bus.append_many(todo)
    return time.perf_counter() - start_s


def fold(state: dict[str, int], one: Commit) -> None:
    """Stand for a service's fold: a little work for each fact."""
    for fact in one.facts:
        if isinstance(fact, RunEnded):
            state[fact.job_id] = state.get(fact.job_id, 0) + fact.steps


@asynccontextmanager
async def consumer(client: Client) -> AsyncIterator[str]:
    """Make a consumer of the whole log."""
    info = await client.jetstream().add_consumer(
        EVT, ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, inactive_threshold=300)
    )
    yield info.name
    await client.jetstream().delete_consumer(EVT, info.name)


async def replay_pull(client: Client, count: int) -> Seconds:
    """Time one pull request for everything, with a callback that decodes and folds."""
    state: dict[str, int] = {}
    left, done = count, asyncio.Event()

    async def received(msg: Msg) -> None:
        nonlocal left
        if msg.reply:
            fold(state, decode(msg.data))
            left -= 1
            if not left:
                done.set()

    async with consumer(client) as name:
        inbox = client.new_inbox()
        sub = await client.subscribe(inbox, cb=received, pending_msgs_limit=0, pending_bytes_limit=0)
        request = msgspec.json.encode({"batch": count, "expires": 60 * 10**9})
        start_s = time.perf_counter()
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{EVT}.{name}", request, reply=inbox)
        await done.wait()
        took_s = time.perf_counter() - start_s
        await sub.unsubscribe()
    return took_s


async def replay_fetch(client: Client, count: int) -> Seconds:
    """Time ``fetch(1000)`` until everything is there."""
    state: dict[str, int] = {}
    async with consumer(client) as name:
        sub = await client.jetstream().pull_subscribe_bind(name, stream=EVT)
        start_s, got = time.perf_counter(), 0
        while got < count:
            for msg in await sub.fetch(1000):
                fold(state, decode(msg.data))
                got += 1
        took_s = time.perf_counter() - start_s
        await sub.unsubscribe()
    return took_s


async def replay_bus(bus: NatsBus, count: int) -> Seconds:
    """Time ``follow``, making its consumer included."""
    state: dict[str, int] = {}
    start_s = time.perf_counter()
    async with aclosing(bus.follow()) as deliveries:
        async for delivery in deliveries:
            fold(state, delivery.commit)
            count -= 1
            if not count:
                break
    return time.perf_counter() - start_s


async def median(*calls: Callable[[], Awaitable[Seconds]]) -> list[Seconds]:
    """Call each in turns and return the median of each."""
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        rounds.append([await call() for call in calls])
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


async def p50s(client: Client, bus: NatsBus) -> tuple[list[float], list[float]]:
    """Return p50 and p99 of single appends, bare and ours, in seconds."""
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(ROUNDS):
        bare += await appends_bare(client)
        ours += await appends_bus(bus)
    return _quantiles(bare), _quantiles(ours)


def _quantiles(times: list[float]) -> list[float]:
    cuts = statistics.quantiles(times, n=100)
    return [cuts[49], cuts[98]]


async def measure(events: int) -> Table:
    """Return the table."""
    table = Table("what", "bare nats-py", "penstock_bus", "ratio", "aim")
    for what in ("appends", "replays"):  # the log cannot be emptied in between
        async with _server() as (client, bus):
            if what == "appends":
                await _appends(table, client, bus)
                continue
            await bus.append_many(
                [
                    Append(subject=subjects.run(f"r{i % JOBS}"), commit=commit(f"r{i % JOBS}"), expected=None)
                    for i in range(events)
                ]
            )
            await _replays(table, client, bus, events)
    return table


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[Client, NatsBus]]:
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(data_dir=Path(folder), sync_interval="2m")
        async with running(settings, access={}) as server, connect(server.url) as bus:
            client = await nats.connect(server.url)
            yield client, bus
            await client.close()


async def _appends(table: Table, client: Client, bus: NatsBus) -> None:
    await appends_bare(client)  # warm up
    (bare50, bare99), (ours50, ours99) = await p50s(client, bus)
    table.add_row(
        "append with expected sequence, p50",
        f"{bare50 * 1e6:.0f} us",
        f"{ours50 * 1e6:.0f} us",
        f"{ours50 / bare50:.2f}",
        "<= 1.5",
    )
    table.add_row("the same, p99", f"{bare99 * 1e6:.0f} us", f"{ours99 * 1e6:.0f} us", f"{ours99 / bare99:.2f}", "")
    bare, ours = await median(lambda: window_bare(client), lambda: window_bus(bus))
    table.add_row(
        f"{WINDOW:,} appends in a window of 1,024",
        f"{WINDOW / bare:,.0f}/s",
        f"{WINDOW / ours:,.0f}/s",
        f"{bare / ours:.2f}",
        ">= 1",
    )


async def _replays(table: Table, client: Client, bus: NatsBus, events: int) -> None:
    pull, fetch, ours = await median(
        lambda: replay_pull(client, events), lambda: replay_fetch(client, events), lambda: replay_bus(bus, events)
    )
    for name, bare, aim in (("a manual pull", pull, ">= 0.7"), ("fetch(1000)", fetch, ">= 3")):
        table.add_row(
            f"replay and fold of {events:,} events, against {name}",
            f"{events / bare:,.0f}/s",
            f"{events / ours:,.0f}/s",
            f"{bare / ours:.2f}",
            aim,
        )


def main() -> None:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    Console(width=120).print(asyncio.run(measure(events)))


if __name__ == "__main__":
    main()
