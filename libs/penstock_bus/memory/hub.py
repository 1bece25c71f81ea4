"""What is not stored: telemetry, and requests to services."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock_bus.matching import matches
from penstock_bus.port import Endpoint, Handler, NoResponders, Reply

_KEPT: Final = 10_000


class Listener:
    """What one reader has yet to read; when it is full the oldest goes."""

    def __init__(self, pattern: str) -> None:
        """Listen to a pattern of subjects."""
        self.pattern = pattern
        self.heard: deque[tuple[str, bytes]] = deque(maxlen=_KEPT)
        self.wake = asyncio.Event()


class Instance:
    """One service while it is being served; its endpoints serve one request at a time, as on NATS."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        """Know the endpoints by subject."""
        self.name = name
        self.handlers: dict[str, Handler] = {endpoint.subject: endpoint.handler for endpoint in endpoints}
        self._running: set[asyncio.Task[Reply]] = set()
        self._turns = {endpoint.subject: asyncio.Lock() for endpoint in endpoints}

    async def answer(self, subject: str, body: bytes) -> Reply:
        """Return the handler's reply; the handler goes on if the caller gives up."""
        running = asyncio.create_task(self._handle(subject, body))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.shield(running)

    def stop(self) -> None:
        """End the handlers that still run."""
        for running in self._running:
            running.cancel()

    async def _handle(self, subject: str, body: bytes) -> Reply:
        async with self._turns[subject]:
            try:
                return await self.handlers[subject](body)
            except asyncio.CancelledError:
                return Reply(code=503, error=f"{self.name} stopped before it answered; ask again")
            except Exception as error:  # whatever the handler raises is the caller's to know
                return Reply(code=500, error=repr(error))


class Hub:
    """Who listens and who serves."""

    def __init__(self) -> None:
        """Start with nobody."""
        self.listeners: list[Listener] = []
        self.instances: list[Instance] = []

    def tell(self, subject: str, body: bytes) -> None:
        """Hand a message to all that listen."""
        for listener in self.listeners:
            if matches(listener.pattern, subject):
                listener.heard.append((subject, body))
                listener.wake.set()

    def route(self, subject: str) -> Instance:
        """
        Return whose turn it is to answer.

        Raises
        ------
        NoResponders
            If nobody serves the subject.
        """
        for i, instance in enumerate(self.instances):
            if subject in instance.handlers:
                self.instances.append(self.instances.pop(i))
                return instance
        raise NoResponders(f"nobody serves {subject}; is the service running?")
