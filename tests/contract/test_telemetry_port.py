"""TelemetryPort on both adapters: what is told reaches those who listen, and may be lost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from bus_harness import Harness

from penstock_bus import Bus
from penstock_log import subjects

ECHO = subjects.query("echo", "test")


async def test_what_is_told_reaches_those_who_listen(harness: Harness) -> None:
    async with (
        harness.connect() as one,
        harness.connect() as other,
        aclosing(other.subscribe(subjects.HEARTBEATS)) as heard,
    ):
        told = asyncio.create_task(_tell_until_heard(one))
        async with asyncio.timeout(60):
            assert await anext(heard) == (subjects.heartbeat("n1"), b"alive")
        told.cancel()


async def _tell_until_heard(bus: Bus) -> None:
    while True:
        await bus.publish(subjects.progress("j1"), b"not for them")
        await bus.publish(subjects.heartbeat("n1"), b"alive")
        await asyncio.sleep(0.01)


async def test_telling_nobody_is_fine_even_without_a_server(harness: Harness, bus: Bus) -> None:
    await bus.publish(subjects.heartbeat("n1"), b"alive")
    await harness.crash()
    await bus.publish(subjects.heartbeat("n1"), b"alive")
    await harness.restart()
