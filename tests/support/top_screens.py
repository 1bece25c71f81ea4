"""`penstock top` against a real gateway on the bus in memory: what is on its screen, and what keys do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from gateway_cases import NOW_S, Gateway, gateway
from textual.events import Key
from textual.pilot import Pilot

from penstock.client import Client
from penstock_bus.memory import MemoryBus
from penstock_cli.top.screen_app import TopApp, TopOptions
from penstock_cli.top.terminal_style import UNICODE
from penstock_gateway.machine import GatewaySettings
from penstock_log import AnyEvent, JobSpec, JobSubmitted

PATIENCE_S = 60.0
REFRESH_S = 0.05


def job(job_id: str, at_s: float = NOW_S, **fields: Any) -> JobSubmitted:
    """Return the submission of a job of ann's."""
    default: dict[str, Any] = {"name": "train", "command": ("python", "train.py"), "user": "ann", "profile": "off"}
    return JobSubmitted(at_s=at_s, job_id=job_id, spec=JobSpec(**{**default, **fields, "id": job_id}))


class RecordingBus(MemoryBus):
    """A person's connection that keeps what was asked, by the name of the query or command."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.asked: list[tuple[str, Any]] = []

    async def request(self, subject: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        self.asked.append((subject.rpartition(".")[2], msgspec.json.decode(body) if body else {}))
        return await super().request(subject, body, timeout_s)


class TopScreen:
    """A person at a terminal with `penstock top`."""

    def __init__(self, pilot: Pilot[None], app: TopApp, gateway: Gateway, bus: RecordingBus) -> None:
        self.pilot, self.app, self.gateway, self.bus = pilot, app, gateway, bus

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    @property
    def lines(self) -> list[str]:
        """What is on the screen, by lines."""
        return self.text.split("\n")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        await self.pilot.press(*("space" if letter == " " else letter for letter in text))

    def type_at_once(self, *keys: str) -> None:
        """Press keys as a terminal gives on what came in one go: the next ones do not wait for what one does."""
        for key in keys:
            self.app.post_message(Key(key, key if len(key) == 1 else None))

    async def sees(self, *wanted: str) -> None:
        """Wait until all of some texts are on the screen."""
        await self._until(lambda: all(text in self.text for text in wanted), wanted)

    async def sees_no(self, *unwanted: str) -> None:
        """Wait until none of some texts is on the screen any more."""
        await self._until(lambda: not any(text in self.text for text in unwanted), unwanted)

    async def refreshed(self, times: int = 2) -> None:
        """Wait until everything was asked and drawn anew."""
        wanted = self.app.refreshes + times
        await self._until(lambda: self.app.refreshes >= wanted, "refreshes")

    async def chooses(self, job_id: str) -> None:
        """Go down in the queue to a job."""
        await self.sees(job_id)
        for _ in range(200):
            current = self.app.queue.current
            if current is not None and current.id == job_id:
                return
            await self.press("j")
        raise AssertionError(f"{job_id} cannot be chosen:\n{self.text}")

    async def _until(self, holds: Any, what: object) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(f"never so: {what}\n{self.text}") from None


@asynccontextmanager
async def top_screen(
    *facts: AnyEvent, user: str = "ann", size: tuple[int, int] = (80, 24), owner: str = "", **options: Any
) -> AsyncIterator[TopScreen]:
    """Run `penstock top` for a person, on a gateway whose log begins with these facts; ann owns it by default."""
    limits = GatewaySettings(append_timeout_s=PATIENCE_S, query_timeout_s=PATIENCE_S, owner=owner or "ann")
    async with MemoryBus() as bus, gateway(bus, *facts, settings=limits) as running:
        own = RecordingBus(bus.server, user=user, timeout_s=0.2)
        async with Client(bus=own, timeout_s=options.pop("timeout_s", PATIENCE_S), nobody_s=0.1) as client:
            app = TopApp(client, TopOptions(**{"glyphs": UNICODE, "refresh_s": REFRESH_S, **options}))
            async with app.run_test(size=size) as pilot:
                screen = TopScreen(pilot, app, running, own)
                await screen.refreshed(1)
                yield screen
