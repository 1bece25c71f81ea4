"""SnapshotPort on both adapters: whole snapshots or none."""

from __future__ import annotations

import asyncio
import os

import pytest
from bus_harness import Harness

from penstock_bus import Bus, Snapshot

SMALL = Snapshot(schema="ranker-1", last_seq=7, state=b"state")
LARGE = Snapshot(schema="ranker-2", last_seq=9, state=os.urandom(3 << 20))  # does not shrink: several pieces


async def loads(bus: Bus, name: str, wanted: Snapshot) -> bool:
    """Compare without printing three million bytes on failure."""
    return await bus.load_snapshot(name) == wanted


@pytest.mark.parametrize("snapshot", [SMALL, LARGE], ids=["small", "large"])
async def test_a_snapshot_comes_back_as_it_was(bus: Bus, snapshot: Snapshot) -> None:
    await bus.save_snapshot("ranker", snapshot)
    assert await loads(bus, "ranker", snapshot)


@pytest.mark.parametrize("old", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("new", [SMALL, LARGE], ids=["small", "large"])
async def test_a_snapshot_replaces_the_one_before(bus: Bus, old: Snapshot, new: Snapshot) -> None:
    await bus.save_snapshot("ranker", old)
    await bus.save_snapshot("ranker", new)
    assert await loads(bus, "ranker", new)


async def test_a_snapshot_that_was_never_saved_is_none(bus: Bus) -> None:
    assert await bus.load_snapshot("ranker") is None


async def test_snapshots_of_different_names_do_not_touch(bus: Bus) -> None:
    await bus.save_snapshot("ranker", SMALL)
    await bus.save_snapshot("matcher", LARGE)
    await bus.save_snapshot("ranker", LARGE)
    assert await loads(bus, "matcher", LARGE)


async def test_deleting_the_snapshots_deletes_all(bus: Bus) -> None:
    await bus.save_snapshot("ranker", SMALL)
    await bus.save_snapshot("matcher", LARGE)
    await bus.delete_snapshots()
    assert await bus.load_snapshot("ranker") is None
    assert await bus.load_snapshot("matcher") is None


@pytest.mark.parametrize("snapshot", [SMALL, LARGE], ids=["small", "large"])
async def test_a_damaged_snapshot_is_none_and_can_be_replaced(harness: Harness, bus: Bus, snapshot: Snapshot) -> None:
    await bus.save_snapshot("ranker", snapshot)
    await harness.damage_snapshot("ranker")
    assert await bus.load_snapshot("ranker") is None
    await bus.save_snapshot("ranker", SMALL)
    assert await loads(bus, "ranker", SMALL)


async def test_a_reader_sees_the_old_or_the_new_snapshot_never_a_mix(harness: Harness) -> None:
    states = [Snapshot(schema="s", last_seq=i, state=os.urandom(1_200_000)) for i in range(4)]
    async with harness.connect() as writer, harness.connect() as reader:
        await writer.save_snapshot("x", states[0])
        saving = asyncio.gather(*(writer.save_snapshot("x", one) for one in states[1:]))
        while not saving.done():
            assert (await reader.load_snapshot("x") in states) is True
        assert (await reader.load_snapshot("x") in states[1:]) is True
