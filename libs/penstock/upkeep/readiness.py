"""Waiting until every process has said over the bus that it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock.upkeep.options import UpError
from penstock_bus import health
from penstock_bus.port import Bus
from penstock_bus.tasks import background
from penstock_events import subjects


class Readiness:
    """Which process ids have said that they are ready."""

    def __init__(self) -> None:
        self._ready: set[int] = set()
        self._heard = asyncio.Event()
        self.notes: dict[str, str] = {}
        """Service → what people should know of it, as it was heard last."""

    def hear(self, body: bytes) -> None:
        """Take a heartbeat; anything else is not heard."""
        vitals = health.heard(body)
        if vitals is not None and vitals.ready:
            self._ready.add(vitals.pid)
            self.notes |= {vitals.service: vitals.note} if vitals.note else {}
            self._heard.set()

    async def all_of(
        self, bus: Bus, services: Iterable[str], missing: Callable[[set[int]], list[str]], most_s: float
    ) -> None:
        """
        Wait until ``missing`` names nobody among those that are not ready.

        Raises
        ------
        UpError
            If somebody is still missing after ``most_s`` seconds.
        """
        async with background(*(self._listen(bus, service) for service in set(services))):
            try:
                async with asyncio.timeout(most_s):
                    while missing(self._ready):
                        self._heard.clear()
                        await self._heard.wait()
            except TimeoutError as error:
                names = ", ".join(missing(self._ready))
                raise UpError(f"not ready after {most_s:.0f} s: {names}; their logs say why") from error

    async def _listen(self, bus: Bus, service: str) -> None:
        async for _, body in bus.listen(subjects.replicas(service)):
            self.hear(body)
