"""Requests and telemetry in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from penstock_bus.memory.client import Client
from penstock_bus.memory.hub import Instance, Listener
from penstock_bus.port import Endpoint, ServiceError, Timeout


class TalkClient(Client):
    """The part of the port that stores nothing."""

    async def request(self, subject: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        """Ask and return the answer's body."""
        await self.ready(len(body))
        instance = self.server.hub.route(subject)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await instance.answer(subject, body)
        except TimeoutError as error:
            raise Timeout(f"no answer on {subject} within {timeout_s} s; ask again or wait longer") from error
        if reply.code:
            raise ServiceError(reply.code, reply.error, reply.body)
        return reply.body

    @asynccontextmanager
    async def serve(
        self,
        name: str,
        version: str,  # noqa: ARG002 - nobody asks a service in memory what it is
        endpoints: Sequence[Endpoint],
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> AsyncIterator[None]:
        """Serve requests while the context is open."""
        await self.ready()
        instance = Instance(name, endpoints)
        self.server.hub.instances.append(instance)
        try:
            yield
        finally:
            self.server.hub.instances.remove(instance)
            instance.stop()

    async def tell(self, subject: str, body: bytes) -> None:
        """Publish without storing; what is told while the server is away is lost."""
        if self.online():
            self.server.hub.tell(subject, body)

    async def listen(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield what is told from now on."""
        listener = Listener(subject)
        self.server.hub.listeners.append(listener)
        try:
            while True:
                while listener.heard:
                    yield listener.heard.popleft()
                listener.wake.clear()
                await listener.wake.wait()
        finally:
            self.server.hub.listeners.remove(listener)
