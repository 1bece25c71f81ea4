"""Memory agents as processes, and clients that speak their protocols by hand."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock.leased_connection import NONCE_BYTES, proof_of, receive, send
from penstock.memory.frames import HEADER_BYTES, MAGIC, Frame, Kind, Status, check, decoded, encoded
from penstock_log import subjects
from penstock_log.memory_messages import (
    VERSION,
    AgentWelcome,
    BorrowSlab,
    ClientHello,
    EvictSlab,
    ReturnSlab,
    SlabAddress,
    SlabLent,
    SlabOffer,
    SlabRefused,
    SlabUse,
    ToClient,
)
from penstock_testing.fixtures import NatsAccount

MIB = 1 << 20
LOCAL = "127.0.0.1"


class AgentProcess:
    """``python -m penstock_memory`` on a folder of its own, with slabs of 1 MiB."""

    def __init__(self, account: NatsAccount, folder: Path, node_id: str, **settings: Any) -> None:
        self.account, self.node_id, self.data = account, node_id, folder / node_id
        chosen = {
            "node_id": node_id,
            "data_dir": self.data,
            "address": LOCAL,
            "slab_bytes": MIB,
            "headroom_bytes": 64 * MIB,
            "most_lent_bytes": 64 * MIB,
            **settings,
        }
        self.environment = {
            **os.environ,
            **account.environment,
            **{f"PENSTOCK_MEMORY_{name.upper()}": _text(value) for name, value in chosen.items()},
        }
        self.process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        """Where clients come."""
        return self.data / "memory.sock"

    async def start(self) -> SlabOffer:
        """Start it, and return its first offer."""
        async with self.account.connect() as bus:
            offers = bus.subscribe(subjects.memory_offer(self.node_id))
            first = asyncio.ensure_future(anext(offers))  # type: ignore[call-overload]
            await asyncio.sleep(0)
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock_memory", env=self.environment
            )
            ended = asyncio.ensure_future(self.process.wait())
            await asyncio.wait({first, ended}, return_when=asyncio.FIRST_COMPLETED)
            assert first.done(), f"the agent ended with {self.process.returncode}"
            ended.cancel()
            _, body = first.result()
            return msgspec.json.decode(body, type=SlabOffer)

    async def end(self, signum: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal and return its exit code."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(signum)
        return await self.process.wait()


@asynccontextmanager
async def agents(
    account: NatsAccount, folder: Path, *node_ids: str, **settings: Any
) -> AsyncIterator[list[AgentProcess]]:
    """Run agents; those that still run at the end are killed."""
    started = [AgentProcess(account, folder, node_id, **settings) for node_id in node_ids]
    try:
        for agent in started:
            await agent.start()
        yield started
    finally:
        for agent in started:
            if agent.process is not None and agent.process.returncode is None:
                await agent.end(signal.SIGKILL)


class LineClient:
    """A client of an agent that sends and takes lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, path: Path, **hello: Any) -> LineClient:
        """Connect and be welcomed."""
        client = await cls.dial(path)
        client.say(ClientHello(version=VERSION, pid=os.getpid(), **hello))
        client.welcome = await client.hear(AgentWelcome)
        return client

    welcome: AgentWelcome

    @classmethod
    async def dial(cls, path: Path) -> LineClient:
        """Connect, and say nothing."""
        return cls(*await asyncio.open_unix_connection(str(path)))

    def say(self, message: ClientHello | BorrowSlab | ReturnSlab | SlabUse | bytes) -> None:
        """Send a line."""
        self.writer.write(message if isinstance(message, bytes) else msgspec.json.encode(message) + b"\n")

    async def hear(self, kind: type[Any] = object) -> Any:
        """Return the next message, which is to be of a kind."""
        line = await asyncio.wait_for(self.reader.readline(), 30.0)
        assert line, "the agent has hung up"
        message = msgspec.json.decode(line, type=ToClient)
        assert isinstance(message, kind), message
        return message

    async def borrow(self, slab: int = 0, **more: Any) -> SlabAddress:
        """Borrow a slab."""
        self.say(BorrowSlab(slab=slab, **more))
        lent: SlabLent = await self.hear(SlabLent)
        return lent.address

    async def refused(self, slab: int = 0, **more: Any) -> str:
        """Ask for a slab that is refused; return the reason."""
        self.say(BorrowSlab(slab=slab, **more))
        found: SlabRefused = await self.hear(SlabRefused)
        return found.reason

    async def evicted(self) -> EvictSlab:
        """Wait for an eviction and return the slab."""
        found: EvictSlab = await self.hear(EvictSlab)
        self.say(ReturnSlab(slab=found.slab))
        return found

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class RawSlab:
    """A connection to a data port that has proved its lease, and whose frames may be of any kind."""

    def __init__(self, address: SlabAddress, *, local: bool = False, token: str = "") -> None:
        self.address = address
        self.connection = dial(address, local=local)
        self.greeting, self.reason = self._prove(bytes.fromhex(token or address.token))

    def _prove(self, token: bytes) -> tuple[Frame, str]:
        lease = bytes.fromhex(self.address.lease)
        self.connection.sendall(MAGIC + lease)
        nonce = bytearray(NONCE_BYTES)
        receive(self.connection, memoryview(nonce))
        self.connection.sendall(proof_of(token, lease, bytes(nonce)))
        frame, body = self.answer()
        return frame, body.decode()

    def answer(self) -> tuple[Frame, bytes]:
        """Return the next frame and its payload, checked."""
        header = bytearray(HEADER_BYTES)
        receive(self.connection, memoryview(header))
        frame, *sums = decoded(header)
        has_payload = frame.status != Status.OK or frame.kind == Kind.READ
        body = bytearray(frame.length if has_payload else 0)
        receive(self.connection, memoryview(body))
        check(body, *sums)
        return frame, bytes(body)

    def frame(self, kind: int, offset: int = 0, length: int = 0, **more: int) -> Frame:
        """Return a frame about this slab."""
        about = {"slab": self.address.slab, "generation": self.address.generation, **more}
        return Frame(kind, offset=offset, length=length, **about)

    def write(self, offset: int, data: bytes, **more: int) -> Frame:
        """Write, and return the answer's header."""
        send(self.connection, encoded(self.frame(Kind.WRITE, offset, len(data), **more), data), data)
        return self.answer()[0]

    def read(self, offset: int, length: int, **more: int) -> bytes:
        """Read."""
        self.connection.sendall(encoded(self.frame(Kind.READ, offset, length, **more)))
        frame, body = self.answer()
        assert frame.status == Status.OK, (Status(frame.status), body)
        return body

    def ask(self, frame: Frame) -> tuple[Status, str]:
        """Send a frame without a payload; return what is said of it."""
        self.connection.sendall(encoded(frame))
        answer, body = self.answer()
        return Status(answer.status), body.decode(errors="replace")

    def share(self) -> mmap.mmap:
        """Return the slab's own memory."""
        self.connection.sendall(encoded(self.frame(Kind.SHARE)))
        data, fds, _, _ = socket.recv_fds(self.connection, HEADER_BYTES, 1)
        frame, *sums = decoded(data)
        check(b"", *sums)
        assert frame.status == Status.OK
        memory = mmap.mmap(fds[0], self.address.slab_bytes + 4096)
        os.close(fds[0])
        return memory

    def is_over(self) -> bool:
        """Say whether the agent has hung up, once everything it sent is read."""
        with suppress(OSError):
            while self.connection.recv(65_536):
                pass
        return True

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


def dial(address: SlabAddress, *, local: bool = False) -> socket.socket:
    """Connect to a data port and say nothing."""
    if local:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.socket)
    else:
        connection = socket.create_connection((address.host, address.port))
    connection.settimeout(30.0)
    return connection


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
