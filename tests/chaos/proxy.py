"""
The network between one process and a server: a proxy that can refuse, hold back, delay, or let go of what passes.

:class:`RouteProxies` are that between the servers of a cluster, from which one of them can be cut off.

A network that is cut drops packets, and TCP sends them again when it is mended; so ``stall``, ``half`` and ``mute``
hold bytes back and deliver them afterwards: all, those towards who has connected, those from there. ``blackhole`` is a
cut that TCP does not survive: nothing of what was held arrives, and the connections are reset at its end. ``refuse``
resets them at once and takes no new ones.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from typing import Final

import msgspec

from penstock_bus.servers.cluster_member import ClusterMember, members_on_loopback

_PIECE_BYTES: Final = 65536
_FROM_THE_OTHER_END: Final = {"half": "mute", "mute": "half"}
_HELD: Final = {"stall": (True, False), "blackhole": (True, False), "half": (False,), "mute": (True,)}
"""Mode → which ways hold what they are to pass: out, towards the listener, or not."""


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
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Take connections."""
        self._listener = await asyncio.start_server(self._accept, sock=self._socket)

    def lead_to(self, place: str) -> None:
        """Pass connections on to another place, ``HOST:PORT``."""
        host, _, port = place.partition(":")
        self._target = (host, int(port))

    @property
    def place(self) -> str:
        """Where it listens, as ``HOST:PORT``."""
        return "{}:{}".format(*self._socket.getsockname())

    @property
    def url(self) -> str:
        """Where it listens, for clients."""
        return f"nats://{self.place}"

    def cut(self, mode: str, delay_s: float = 0.0) -> None:
        """Break the network in one of the modes of :class:`chaos.schedule.Fault`."""
        self._mode, self._delay_s = mode, delay_s
        if mode == "refuse":
            self._reset()
        if mode in _HELD:
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
        self._socket.close()
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
        except asyncio.CancelledError:
            return  # by stop(); asyncio would show it as an error
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
                while out in _HELD.get(self._mode, ()):  # a half cut is deaf, and can still speak
                    await self._flowing.wait()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                writer.write(data)
                await writer.drain()


class RouteProxies:
    """
    The network between the servers of a cluster: one proxy between each two.

    Of two servers the later one connects, and the other has an address for it where nobody listens, which is what the
    later one tells of itself too: so they have no routes but through these. (Where both connect at once, each of them
    closes one of the two routes as a duplicate; on a busy machine that went on for twenty seconds.)

    Attributes
    ----------
    members : list of ClusterMember
        The servers, each with the proxies for the addresses of the others.
    """

    def __init__(self, count: int) -> None:
        pairs = [(one, other) for one, other in permutations(range(1, count + 1), 2) if one > other]
        self._ways = {pair: TcpProxy("", 0) for pair in pairs}  # first, or one has the port that is free for a server
        apart = members_on_loopback(count)
        for (_, other), way in self._ways.items():
            way.lead_to(apart[other - 1].listen)
        self.members: Sequence[ClusterMember] = [
            msgspec.structs.replace(
                one,
                others=tuple(self._place(one.number, other.number) for other in apart if other is not one),
                advertise=_nowhere(one.number),
            )
            for one in apart
        ]

    def _place(self, one: int, other: int) -> str:
        return self._ways[one, other].place if one > other else _nowhere(other)

    async def start(self) -> None:
        """Take connections."""
        await asyncio.gather(*(way.start() for way in self._ways.values()))

    async def stop(self) -> None:
        """Close everything."""
        await asyncio.gather(*(way.stop() for way in self._ways.values()))

    def isolate(self, number: int, mode: str) -> None:
        """Cut one server from all others; with ``half`` it hears none of them, with ``mute`` none hears it."""
        for (one, other), way in self._ways.items():
            if number == one:
                way.cut(mode)
            elif number == other:
                way.cut(_FROM_THE_OTHER_END.get(mode, mode))

    def mend(self, number: int) -> None:
        """Let a server and the others hear each other again."""
        for pair, way in self._ways.items():
            if number in pair:
                way.mend()


def _nowhere(number: int) -> str:
    """Return an address for a server where nobody listens: its port is of those for services that nobody runs."""
    return f"127.0.0.1:{number}"
