"""What the contract tests need beside the port: a server for each adapter that can be broken on purpose."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import nats

from penstock_bus import Append, Bus, Delivery
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerSettings
from penstock_log import Commit, JobHeld, subjects

_ids = itertools.count(1)


def append(job_id: str, expected: int | None = 0, *, commit_id: str = "", by: str = "") -> Append:
    """Return a small commit about a job, under a new id where none is given."""
    fact = JobHeld(job_id=job_id, at_s=1.0, by=by)
    commit = Commit(id=commit_id or f"c{next(_ids)}", actor="test", facts=(fact,))
    return Append(subject=subjects.job(job_id), commit=commit, expected=expected)


async def take(deliveries: AsyncIterator[Delivery], count: int, within_s: float = 60.0) -> list[Delivery]:
    """Return the next deliveries; the iterator stays usable."""
    async with asyncio.timeout(within_s):
        return [await anext(deliveries) for _ in range(count)]


def ids(deliveries: Iterable[Delivery]) -> list[str]:
    """Return the deliveries' commit ids."""
    return [one.commit.id for one in deliveries]


class Harness(Protocol):
    """One server with buses on it, and the switches that break it."""

    adapter: str

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Bus]:
        """Open another bus on the server."""

    async def inject(self, subject: str, body: bytes) -> None:
        """Put bytes into a stream as anybody could."""

    async def damage_snapshot(self, name: str) -> None:
        """Change the bytes of a stored snapshot."""

    async def crash(self) -> None:
        """Kill the server."""

    async def restart(self) -> None:
        """Start the server again on the same store."""

    def cut(self) -> None:
        """Break the connections of all buses while the server goes on."""

    def mend(self) -> None:
        """Let the buses connect again."""


MakeHarness = Callable[..., AbstractAsyncContextManager[Harness]]
"""Makes a server; takes ``max_store_bytes``."""


@dataclass
class MemoryHarness:
    """The server in memory."""

    server: MemoryServer
    adapter: str = "memory"
    buses: list[MemoryBus] = field(default_factory=list)

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Bus]:
        async with MemoryBus(self.server, **options) as bus:
            self.buses.append(bus)
            yield bus

    async def inject(self, subject: str, body: bytes) -> None:
        self.server.put(subjects.EVT, subject, body)

    async def damage_snapshot(self, name: str) -> None:
        *rest, last = self.server.snapshots[name]
        self.server.snapshots[name] = [*rest, last[:-1] + bytes([last[-1] ^ 1])]

    async def crash(self) -> None:
        self.server.stop()

    async def restart(self) -> None:
        self.server.start()

    def cut(self) -> None:
        for bus in self.buses:
            bus.disconnect()

    def mend(self) -> None:
        for bus in self.buses:
            bus.reconnect()


class Gate:
    """A door between the buses and the server that can be shut."""

    def __init__(self) -> None:
        self.port = 0
        self.swallows = False  # what the server sends is lost, as in the last moments of a connection
        self._target = ("", 0)
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.shut()
        if self._listener is not None:
            self._listener.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def shut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def unlock(self) -> None:
        self._open = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if self._open:
                await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(*self._target)
            self._writers.add(there_writer)
            both = [
                asyncio.ensure_future(_copy(reader, there_writer)),
                asyncio.ensure_future(_copy(there_reader, writer, lambda: self.swallows)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                self._writers.discard(there_writer)
                there_writer.transport.abort()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallows: Callable[[], bool] = lambda: False
) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            if not swallows():
                writer.write(data)
                await writer.drain()


@dataclass
class NatsHarness:
    """A real server of the test's own, behind a gate."""

    server: Server
    gate: Gate = field(default_factory=Gate)
    adapter: str = "nats"

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Bus]:
        return connect(f"nats://127.0.0.1:{self.gate.port}", **options)

    @asynccontextmanager
    async def bare(self) -> AsyncIterator[nats.NATS]:
        """A connection without any adapter, past the gate."""
        client = await nats.connect(self.server.url)
        try:
            yield client
        finally:
            await client.close()

    async def inject(self, subject: str, body: bytes) -> None:
        async with self.bare() as client:
            await client.jetstream().publish(subject, body)

    async def damage_snapshot(self, name: str) -> None:
        async with self.bare() as client:
            js = client.jetstream()
            last = await js.get_last_msg(subjects.STATE, subjects.state(name))
            body = last.data or b"?"
            await js.publish(subjects.state(name), body[:-1] + bytes([body[-1] ^ 1]))

    async def crash(self) -> None:
        await self.server.kill()

    async def restart(self) -> None:
        await self.server.start()

    def cut(self) -> None:
        self.gate.shut()

    def mend(self) -> None:
        self.gate.unlock()


@asynccontextmanager
async def memory_harness(*, max_store_bytes: int = 0) -> AsyncIterator[MemoryHarness]:
    """A server in memory."""
    yield MemoryHarness(MemoryServer(max_store_bytes=max_store_bytes or None))


@asynccontextmanager
async def nats_harness(data_dir: Path, *, max_store_bytes: int = 0) -> AsyncIterator[NatsHarness]:
    """A NATS server on a store of its own, without users."""
    settings = ServerSettings(data_dir=data_dir, max_store_bytes=max_store_bytes, sync_interval="2m")
    harness = NatsHarness(Server(settings, access={}))
    await harness.server.start()
    host, _, port = harness.server.url.removeprefix("nats://").partition(":")
    await harness.gate.start(host, int(port))
    try:
        yield harness
    finally:
        await harness.gate.stop()
        await harness.server.kill()
        shutil.rmtree(data_dir, ignore_errors=True)
