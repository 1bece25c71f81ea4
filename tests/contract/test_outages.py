"""What writers see when the server is away or full, on both adapters."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from bus_harness import Harness, MakeHarness, append, ids

from penstock_bus import Append, Bus, StorageFull, Unavailable
from penstock_log import subjects
from penstock_testing import eventually

ALL = subjects.STREAM_SUBJECTS[subjects.EVT]


async def test_an_append_waits_for_a_server_that_comes_back(harness: Harness, bus: Bus) -> None:
    await bus.append(append("j1"))
    await harness.crash()
    items = [append(f"while-away-{i}") for i in range(5)]
    waiting = [asyncio.create_task(bus.append(item)) for item in items]
    await harness.restart()
    assert sorted([await one for one in waiting]) == [2, 3, 4, 5, 6]
    assert {one.commit.id for one in await bus.read(ALL, after_seq=1)} == {item.commit.id for item in items}


async def test_an_append_without_a_server_says_so_and_may_be_tried_again(harness: Harness) -> None:
    async with harness.connect() as patient, harness.connect(timeout_s=0.5) as bus:
        await patient.append(append("j1"))
        await harness.crash()
        item = append("j2")
        with pytest.raises(Unavailable, match="tried again"):
            await bus.append(item)
        with pytest.raises(Unavailable):
            await bus.append_many([item])
        with pytest.raises(Unavailable):
            await bus.append_all([item, append("j3")])
        with pytest.raises(Unavailable):
            await bus.last_seq()
        await harness.restart()

        async def stored() -> bool:
            try:
                return await bus.append(item) == 2
            except Unavailable:
                return False

        await eventually(stored)
        assert await patient.last_seq() == 2


@pytest.mark.parametrize("breaking", ["crash", "cut"])
async def test_commits_that_are_appended_as_one_are_stored_once_over_breaks(harness: Harness, breaking: str) -> None:
    batches = [[append(f"j{number}-{i}") for i in range(100)] for number in range(40)]
    async with harness.connect() as writer, harness.connect() as watcher:
        writing = asyncio.create_task(_append_batches(writer, batches))
        for at_least in (300, 1000, 2000):

            async def written(wanted: int = at_least) -> bool:
                return writing.done() or await watcher.last_seq() >= wanted

            await eventually(written)
            await _break(harness, breaking)
        assert sorted(seq for seqs in await writing for seq in seqs) == list(range(1, 4001))
        stored = ids(await watcher.read(ALL))
        assert sorted(stored) == sorted(item.commit.id for batch in batches for item in batch)
        for batch in batches:
            first = stored.index(batch[0].commit.id)
            assert stored[first : first + 100] == [item.commit.id for item in batch]


@pytest.mark.parametrize("breaking", ["crash", "cut"])
async def test_many_appends_go_on_over_breaks_each_stored_once_and_in_order(harness: Harness, breaking: str) -> None:
    items = [append(f"j{i % 200}", None) for i in range(3000)]
    async with harness.connect() as writer:
        writing = asyncio.create_task(writer.append_many(items))
        async with harness.connect() as watcher:
            for at_least in (300, 900, 1500):

                async def written(wanted: int = at_least) -> bool:
                    return writing.done() or await watcher.last_seq() >= wanted

                await eventually(written)
                await _break(harness, breaking)
            seqs = await writing
            assert sorted(seqs) == list(range(1, 3001))
            assert _by_subject(items) == {
                subject: ids(await watcher.read(subject)) for subject in {item.subject for item in items}
            }


async def test_a_full_server_says_so_and_loses_nothing_that_it_acknowledged(make_harness: MakeHarness) -> None:
    async with make_harness(max_store_bytes=4 << 20) as harness, harness.connect(timeout_s=2.0) as bus:
        acknowledged = await _fill(bus)
        assert acknowledged
        with pytest.raises(StorageFull, match=r"room|full"):
            await bus.append_many([append("k", by="x" * 500_000)])
        with pytest.raises(StorageFull, match=r"room|full"):
            await bus.append_all([append(f"k{i}", by="x" * 500_000) for i in range(3)])
        assert ids(await bus.read(ALL)) == acknowledged
        await harness.crash()
        await harness.restart()
        assert ids(await bus.read(ALL)) == acknowledged


async def test_a_closed_bus_says_so(harness: Harness) -> None:
    async with harness.connect() as bus:
        await bus.close()
        with pytest.raises(Unavailable, match="closed"):
            await bus.append(append("j1"))
        with pytest.raises(Unavailable, match="closed"):
            await bus.request("penstock.qry.gateway.jobs", b"")


async def _append_batches(bus: Bus, batches: list[list[Append]]) -> list[list[int]]:
    """Append batches, four at a time."""
    found = []
    for first in range(0, len(batches), 4):
        found += await asyncio.gather(*(bus.append_all(batch) for batch in batches[first : first + 4]))
    return found


async def _break(harness: Harness, breaking: str) -> None:
    if breaking == "crash":
        await harness.crash()
        await harness.restart()
    else:
        harness.cut()
        harness.mend()


async def _fill(bus: Bus) -> list[str]:
    acknowledged = []
    for i in range(100):
        item = append(f"j{i}", by="x" * 500_000)
        try:
            await bus.append(item)
        except StorageFull:
            return acknowledged
        acknowledged.append(item.commit.id)
    raise AssertionError("the server never was full")


def _by_subject(items: list[Append]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for item in items:
        found[item.subject].append(item.commit.id)
    return dict(found)
