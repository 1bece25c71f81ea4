"""One client's end of the line to the server in memory."""

from __future__ import annotations

import asyncio
from typing import Self

from penstock_bus.memory.server import MemoryServer
from penstock_bus.port import TooLarge, Unavailable
from penstock_bus.reading import Dropped


class Client:
    """
    One client of a :class:`MemoryServer`; without one it makes its own.

    Parameters
    ----------
    timeout_s : float
        How long a call waits for the server to come back.
    ack_wait_s : float
        How long a worker may keep a message before another gets it.
    max_deliver : int
        How often a message of the work queue is delivered before it goes to REJECTED.
    """

    def __init__(
        self,
        server: MemoryServer | None = None,
        *,
        timeout_s: float = 5.0,
        ack_wait_s: float = 30.0,
        max_deliver: int = 10,
    ) -> None:
        """Connect."""
        self.server = server or MemoryServer()
        self.timeout_s = timeout_s
        self.ack_wait_s = ack_wait_s
        self.max_deliver = max_deliver
        self.dropped = Dropped()
        self._connected = True
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect for good."""
        self._closed = True
        self.server.changed.notify()

    def disconnect(self) -> None:
        """Lose the server, until :meth:`reconnect`."""
        self._connected = False
        self.server.changed.notify()

    def reconnect(self) -> None:
        """Find the server again."""
        self._connected = True
        self.server.changed.notify()

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the server takes."""
        return self.server.max_body_bytes

    def online(self) -> bool:
        """
        Return whether the server can be reached right now.

        Raises
        ------
        Unavailable
            If the bus is closed.
        """
        if self._closed:
            raise Unavailable("this bus is closed; connect again")
        return self._connected and self.server.running

    async def ready(self, size: int = 0) -> None:
        """
        Wait until the server can be reached, and check that it takes a body of this size.

        Others get a turn meanwhile, as they do while a real server is asked.

        Raises
        ------
        Unavailable, TooLarge
        """
        if size > self.max_body_bytes:
            raise TooLarge(f"the body has {size} bytes and the server takes {self.max_body_bytes}; send less")
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.timeout_s
        while not self.online():
            if not await self.server.changed.wait(max(end_s - clock(), 0.0)):
                raise Unavailable(f"the server in memory was away for {self.timeout_s} s; the call may be tried again")
