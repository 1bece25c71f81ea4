"""
The network between one process and the server: a proxy that can refuse, hold back, delay, or let go of what passes.

A network that is cut drops packets, and TCP sends them again when it is mended; so ``stall`` and ``half`` hold bytes
back and deliver them afterwards. ``blackhole`` is a cut that TCP does not survive: nothing of what was held arrives,
and the connections are reset at its end. ``refuse`` resets them at once and takes no new ones.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

_PIECE_BYTES: Final = 65536


class TcpProxy:
    """One listener on a port of its own before one server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._mode = ""
        self._delay_s = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._passing: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._listener is not None
        return f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def cut(self, mode: str, delay_s: float = 0.0) -> None:
        """Break the network in one of the modes of :class:`chaos.schedule.Fault`."""
        self._mode, self._delay_s = mode, delay_s
        if mode == "refuse":
            self._reset()
        if mode in {"stall", "blackhole", "half"}:
            self._flowing.clear()

    def mend(self) -> None:
        """Let everything pass again."""
        if self._mode == "blackhole":
            self._reset()
        self._mode, self._delay_s = "", 0.0
        self._flowing.set()

    async def stop(self) -> None:
        """Close everything."""
        if self._listener is not None:
            self._listener.close()
        self._reset()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        self._writers.add(writer)
        try:
            if self._mode != "refuse":
                await self._pass(reader, writer)
        finally:
            self._passing.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(*self._target)
            self._writers.add(there_writer)
            ways = [
                asyncio.ensure_future(self._copy(reader, there_writer, out=True)),
                asyncio.ensure_future(self._copy(there_reader, writer, out=False)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                self._writers.discard(there_writer)
                there_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, out: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                if not (out and self._mode == "half"):  # a half cut is deaf, and can still speak
                    await self._flowing.wait()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                writer.write(data)
                await writer.drain()
