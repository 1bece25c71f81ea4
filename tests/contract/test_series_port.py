"""SeriesPort on both adapters: of the metrics of a run the newest message, in a stream of their own."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from bus_harness import Harness, NatsHarness

from penstock_bus import Bus, TooLarge
from penstock_bus.nats import streams
from penstock_log import subjects


async def bodies(bus: Bus, job_id: str) -> list[bytes]:
    return [message.body async for message in bus.read_series(job_id)]


async def test_of_each_run_the_newest_series_is_read_back(bus: Bus) -> None:
    for epoch, body in ((1, b"a"), (2, b"b"), (1, b"c"), (2, b"d")):
        await bus.write_series("j1", epoch, body)
    await bus.write_series("j2", 1, b"other")
    assert sorted(await bodies(bus, "j1")) == [b"c", b"d"]
    assert await bodies(bus, "j3") == []


async def test_series_are_no_output_and_output_is_no_series(bus: Bus) -> None:
    await bus.write_output("j1", 0, b"old")
    async with aclosing(bus.read_output("j1", follow=True)) as lines:
        assert (await anext(lines)).data == b"old"
        await bus.write_series("j1", 0, b"series")
        await bus.write_output("j1", 0, b"new")
        assert (await anext(lines)).data == b"new"
    assert [line.data async for line in bus.read_output("j1")] == [b"old", b"new"]
    assert await bodies(bus, "j1") == [b"series"]


async def test_writing_at_the_same_time_leaves_one_of_them(bus: Bus) -> None:
    await asyncio.gather(*(bus.write_series("j1", 1, b"%d" % i) for i in range(20)))
    assert len(await bodies(bus, "j1")) == 1


async def test_a_series_over_the_servers_limit_is_refused_and_the_one_before_stays(bus: Bus) -> None:
    await bus.write_series("j1", 1, b"before")
    with pytest.raises(TooLarge):
        await bus.write_series("j1", 1, b"x" * (bus.max_body_bytes + 1))
    assert await bodies(bus, "j1") == [b"before"]


async def test_series_outlive_a_crash_of_the_server(harness: Harness) -> None:
    async with harness.connect() as bus:
        await bus.write_series("j1", 1, b"kept")
        await harness.crash()
        await harness.restart()
        assert await bodies(bus, "j1") == [b"kept"]


async def test_output_and_series_of_a_job_are_purged_each_by_itself(nats_alone: NatsHarness) -> None:
    async with nats_alone.connect() as bus:
        for job_id in ("j1", "j2"):
            await bus.write_output(job_id, 0, b"printed")
            await bus.write_series(job_id, 1, b"series")
        assert await streams.purge(bus.link, subjects.LOG, subjects.all_output("j1")) == 1
        assert await bodies(bus, "j1") == [b"series"]
        assert await streams.purge(bus.link, subjects.SERIES, subjects.all_series("j1")) == 1
        assert (await bodies(bus, "j1"), await bodies(bus, "j2")) == ([], [b"series"])
