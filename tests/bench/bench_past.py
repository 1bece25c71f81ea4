"""
How long questions about the past take, on a log of a million facts, and what their index costs.

``python tests/bench/bench_past.py --facts 1000000`` makes a log as a cluster of months has it (see ``aged_log.py``),
with jobs that are open all of the time, and starts a gateway on it. It prints how long the index is made at full speed
and how large it is, how long the gateway's loop is kept from other work meanwhile, and how long each query takes at
random moments, by sequence and by time. One moment is also folded from the beginning of the log. The log is in memory;
``--nats`` takes a real server, at 10,000 facts a second or so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aged_log
import msgspec
import numpy as np

from penstock_bus import Bus, LogReader
from penstock_bus.follower import background
from penstock_bus.identity.access import ADMIN
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.memory.server import MemoryMessage
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerSettings
from penstock_bus.shell import Shell
from penstock_gateway import log_reader, machine
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.runner import run
from penstock_log import subjects

DAYS = 30.0
STEP_S = 0.002


def chunks(facts: int, begin_s: float) -> Iterator[tuple[int, bytes]]:
    """Yield a log of about so many facts, which begins with jobs that stay open."""
    ((_, found),) = aged_log.stretches(facts, DAYS, begin_s, 1)
    once = aged_log.Template(aged_log.nodes()), aged_log.Template(aged_log.open_jobs())
    for number, template in enumerate(once):
        yield template.count, template.render(90_000_000 + number, begin_s, 1.0)
    yield from found


def frames(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield subject and body of each commit."""
    at = 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        _, subject, size = body[at:end].split()
        yield subject.decode(), body[end + 2 : end + 2 + int(size)]
        at = end + 4 + int(size)


@asynccontextmanager
async def in_memory(facts: int, folder: Path) -> AsyncIterator[Bus]:
    """Yield a bus in memory with the log."""
    server = MemoryServer()
    stream, begin_s = server.streams[subjects.EVT], time.time() - DAYS * 86_400.0  # noqa: TID251 - of which day it is
    each_s = DAYS * 86_400.0 / facts
    for _, body in chunks(facts, begin_s):
        for subject, commit in frames(body):
            seq = len(stream.messages) + 1
            stream.add(MemoryMessage(seq=seq, subject=subject, stored_s=begin_s + seq * each_s, body=commit), "")
    yield MemoryBus(server)


@asynccontextmanager
async def on_server(facts: int, folder: Path) -> AsyncIterator[Bus]:
    """Yield a bus on a real server with the log; all of it is stored within the time that this takes."""
    server = Server(ServerSettings(data_dir=folder / "server", sync_interval="2m"))
    await server.start()
    try:
        async with connect(server.url, login=server.logins[ADMIN], timeout_s=120.0) as bus:
            await aged_log.store(bus, chunks(facts, time.time()))  # noqa: TID251 - as above
            yield bus
    finally:
        await server.stop()


class Lag:
    """How late the loop comes to a task that only sleeps, in seconds."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(STEP_S)
            self.worst_s = max(self.worst_s, time.perf_counter() - began - STEP_S)


async def asked(bus: Bus, name: str, **body: Any) -> None:
    """Ask the gateway."""
    await bus.request(subjects.query(name), msgspec.json.encode(body), timeout_s=7200.0)


async def table(title: str, count: int, ask: Callable[[], Awaitable[None]]) -> None:
    """Ask so often, and print how long it took, and how much of it this process had a processor."""
    took, used = [], []
    for _ in range(count):
        began, used_s = time.perf_counter(), time.process_time()
        await ask()
        took.append(1e3 * (time.perf_counter() - began))
        used.append(1e3 * (time.process_time() - used_s))
    columns = (value for found in (took, used) for value in (statistics.median(found), max(found)))
    print(f"{title:<34}{''.join(f'{value:>9.0f} ms' for value in columns)}", flush=True)


async def measure(bus: Bus, folder: Path, moments: int) -> None:
    """Index the log, and ask."""
    settings = GatewaySettings(history_dir=str(folder / "history"), query_timeout_s=7200.0)
    shell, lag = Shell(bus, "gateway", replica_id="bench"), Lag()
    last_seq = await bus.last_seq()
    began = time.perf_counter()
    task = asyncio.create_task(run(shell, settings))
    while not shell.vitals.ready:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.05)
    gc.freeze()
    print(f"a log of {last_seq} commits; the gateway starts in {time.perf_counter() - began:.1f} s", flush=True)
    began, used_s = time.perf_counter(), time.process_time()
    async with background(lag.run()):
        await asked(bus, "status", at=last_seq - 1)
    took_s, used_s = time.perf_counter() - began, time.process_time() - used_s
    size = sum(path.stat().st_size for path in (folder / "history").iterdir())
    each = size / last_seq
    print(
        f"indexed in {took_s:.1f} s ({used_s / last_seq * 1e6:.0f} us of processor a commit), {size / 1e6:.0f} MB ",
        end="",
    )
    print(f"({each:.0f} bytes a commit); the loop was late by {1e3 * lag.worst_s:.0f} ms at worst", flush=True)
    rng = np.random.default_rng(18)
    jobs = [f"j{number:08}-{rng.integers(100):03}" for number in range(last_seq // 2_000)]
    times = [(await bus.read(log_reader.EVERYTHING, seq - 1, seq))[0].stored_s for seq in (1, last_seq)]

    def at() -> int:
        return int(rng.integers(1, last_seq))

    print(f"{'query':<34}{'median':>12}{'worst':>12}{'CPU median':>12}{'worst':>12}", flush=True)
    for name, more in (("status", {}), ("nodes", {}), ("jobs", {}), ("jobs", {"limit": 50}), ("sweeps", {})):
        title = " ".join([name, *(f"{key}={value}" for key, value in more.items())])
        await table(f"{title}, at a sequence", moments, lambda n=name, m=more: asked(bus, n, at=at(), **m))
    mine = {"user": "user3", "state": ["CD"], "limit": 50}
    await table("jobs of a user that are completed", moments, lambda: asked(bus, "jobs", at=at(), **mine))
    await table(
        "jobs limit=50, at a time", moments, lambda: asked(bus, "jobs", at=float(rng.uniform(*times)), limit=50)
    )
    one = lambda name: asked(bus, name, at=last_seq - int(rng.integers(10_000)), id=str(rng.choice(jobs)))  # noqa: E731
    await table("job", moments, lambda: one("job"))
    open_id = f"j{90_000_001:08}-{aged_log.OPEN - 1:03}"
    await table("why, of a waiting job", moments, lambda: asked(bus, "why", at=at() // 2 + last_seq // 2, id=open_id))
    await table("why, of a waiting job, now", moments, lambda: asked(bus, "why", id=open_id))
    await table("jobs, now", moments, lambda: asked(bus, "jobs"))
    await table("a slider: status, nodes, jobs", moments, lambda: page(bus, at()))
    shell.stopping.set()
    await task
    began = time.perf_counter()
    await log_reader.model_at(reader(bus), machine.decider(settings), last_seq // 2)
    print(f"a fold from the beginning to {last_seq // 2} takes {time.perf_counter() - began:.1f} s", flush=True)


def reader(bus: Bus) -> LogReader:
    return bus


async def page(bus: Bus, seq: int) -> None:
    """Ask what a page asks, at once."""
    await asyncio.gather(
        asked(bus, "status", at=seq), asked(bus, "nodes", at=seq), asked(bus, "jobs", at=seq, limit=50)
    )


async def main(given: argparse.Namespace) -> None:
    """Make the log, and measure on it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        making = on_server if given.nats else in_memory
        async with making(given.facts, folder) as bus:
            await measure(bus, folder, given.moments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=int, default=1_000_000)
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--nats", action="store_true", help="keep the log on a real server")
    asyncio.run(main(parser.parse_args()))
