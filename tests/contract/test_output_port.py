"""OutputPort on both adapters: the output of jobs in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from bus_harness import Harness

from penstock_bus import Bus, LogLine
from penstock_log import subjects
from penstock_log.request_bodies import OutputChannel, OutputEnd, OutputOffset

ECHO = subjects.query("echo", "test")


async def test_output_is_read_in_order_with_rank_and_time(bus: Bus) -> None:
    for i in range(3):
        await bus.write_output("j1", i % 2, b"line %d\n" % i)
    await bus.write_output("other", 0, b"not this\n")
    lines = await _lines(bus.read_output("j1"))
    assert [(line.seq, line.rank, line.data) for line in lines] == [
        (1, 0, b"line 0\n"),
        (2, 1, b"line 1\n"),
        (3, 0, b"line 2\n"),
    ]
    assert all(line.job_id == "j1" and line.stored_s > 0 for line in lines)


async def test_pieces_of_output_say_from_where_they_are_and_are_read_behind_a_sequence(bus: Bus) -> None:
    place, end = OutputOffset(OutputChannel(1, "n1", 0, "stderr"), 7), OutputEnd(1, "n1", 0, 0, 12, 2)
    await bus.write_output("j1", 0, b"piece", place)
    await bus.write_output("j1", 0, b"", end)
    await bus.write_output("j1", 0, b"without")
    stored = await _lines(bus.read_output("j1"))
    assert [(line.place, line.data) for line in stored] == [(place, b"piece"), (end, b""), (None, b"without")]
    assert await _lines(bus.read_output("j1", after_seq=2)) == stored[2:]
    async with aclosing(bus.read_output("j1", follow=True, after_seq=1)) as lines:
        assert await anext(lines) == stored[1]
        assert await anext(lines) == stored[2]
        await bus.write_output("j1", 0, b"more", place)
        assert (await anext(lines)).place == place


async def test_the_tail_of_the_output_is_its_last_pieces(bus: Bus) -> None:
    for i in range(5):
        await bus.write_output("j1", 0, b"%d" % i)
    assert [line.data for line in await _lines(bus.read_output("j1", tail=2))] == [b"3", b"4"]
    assert len(await _lines(bus.read_output("j1", tail=9))) == 5
    assert await _lines(bus.read_output("j1", tail=0)) == []


async def test_following_the_output_gives_old_and_new_pieces_over_a_crash(harness: Harness, bus: Bus) -> None:
    for i in range(3):
        await bus.write_output("j1", 0, b"old %d" % i)
    async with aclosing(bus.read_output("j1", follow=True, tail=1)) as lines:
        async with asyncio.timeout(60):
            assert (await anext(lines)).data == b"old 2"
            await bus.write_output("j1", 1, b"new 0")
            assert (await anext(lines)).data == b"new 0"
            await harness.crash()
            await harness.restart()
            await bus.write_output("j1", 1, b"new 1")
            assert (await anext(lines)).data == b"new 1"


async def test_a_job_without_output_has_none(bus: Bus) -> None:
    assert await _lines(bus.read_output("j1")) == []


async def _lines(lines: AsyncIterator[LogLine]) -> list[LogLine]:
    return [line async for line in lines]
