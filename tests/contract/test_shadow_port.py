"""ShadowPort on both adapters: what shadows publish is stored beside the log, and read back by name."""

from __future__ import annotations

import asyncio

from penstock_bus import Bus
from penstock_log import subjects

ROUND = subjects.shadowed("las", subjects.round_("default"))
RANK = subjects.shadowed("las", subjects.rank("default"))


async def test_what_a_shadow_writes_is_read_back_in_order_and_the_log_stays_as_it_was(bus: Bus) -> None:
    for subject, body in ((ROUND, b"1"), (RANK, b"2"), (ROUND, b"3")):
        await bus.write_shadow(subject, body)
    found = [one async for one in bus.read_shadow("penstock.shadow.las.>")]
    assert [(one.subject, one.body) for one in found] == [(ROUND, b"1"), (RANK, b"2"), (ROUND, b"3")]
    assert [one.seq for one in found] == sorted(one.seq for one in found)
    assert [one.body async for one in bus.read_shadow(RANK)] == [b"2"]
    assert await bus.last_seq() == 0


async def test_the_same_id_is_stored_once(bus: Bus) -> None:
    await asyncio.gather(*(bus.write_shadow(ROUND, b"1", "las/1") for _ in range(3)))
    await bus.write_shadow(ROUND, b"2", "las/2")
    assert [one.body async for one in bus.read_shadow(ROUND)] == [b"1", b"2"]


async def test_the_newest_of_a_pattern_is_found_and_nothing_where_there_is_none(bus: Bus) -> None:
    assert await bus.last_shadow("penstock.shadow.las.>") is None
    assert [one async for one in bus.read_shadow("penstock.shadow.>")] == []
    for subject, body in ((ROUND, b"1"), (RANK, b"2"), (subjects.shadow("las"), b"status")):
        await bus.write_shadow(subject, body)
    newest, status = await bus.last_shadow("penstock.shadow.las.>"), await bus.last_shadow(subjects.shadow("las"))
    assert newest is not None
    assert (newest.subject, newest.body) == (RANK, b"2")
    assert status is not None
    assert status.body == b"status"
    assert {one.subject async for one in bus.read_shadow(subjects.SHADOWS)} == {subjects.shadow("las")}
