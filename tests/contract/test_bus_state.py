"""Snapshots and leases, on both adapters."""

from __future__ import annotations

import asyncio
import os

import pytest
from bus_harness import Harness

from penstock_bus import Bus, Lease, Snapshot
from penstock_testing import eventually

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


async def test_one_owner_at_a_time(bus: Bus) -> None:
    lease = await bus.acquire("ranker", "a", 5.0)
    assert lease is not None
    assert (lease.name, lease.owner, lease.ttl_s) == ("ranker", "a", 5.0)
    assert await bus.acquire("ranker", "b", 5.0) is None
    assert await bus.acquire("matcher", "b", 5.0) is not None


async def test_the_owner_gets_its_lease_again_with_the_same_token(bus: Bus) -> None:
    first = await bus.acquire("ranker", "a", 5.0)
    assert first is not None
    assert await bus.renew(first)
    assert await bus.acquire("ranker", "a", 5.0) == first


async def test_a_released_lease_is_free_at_once_and_its_token_rises(bus: Bus) -> None:
    tokens = []
    for owner in ("a", "b", "a"):
        lease = await bus.acquire("ranker", owner, 5.0)
        assert lease is not None
        tokens.append(lease.token)
        await bus.release(lease)
    assert tokens == sorted(set(tokens))


async def test_a_lease_expires_and_the_token_of_the_next_owner_is_higher(bus: Bus) -> None:
    old = await bus.acquire("ranker", "a", 1.0)
    assert old is not None
    new = await _acquired(bus, "b")
    assert new.token > old.token
    assert not await bus.renew(old)
    await bus.release(old)  # which is no longer its to release
    assert await bus.acquire("ranker", "c", 1.0) is None


async def test_a_renewed_lease_does_not_expire(bus: Bus) -> None:
    lease = await bus.acquire("ranker", "a", 2.0)
    assert lease is not None
    other = await bus.acquire("canary", "a", 2.0)
    assert other is not None

    async def canary_is_free() -> bool:
        assert await bus.renew(lease)
        return await bus.acquire("canary", "b", 1.0) is not None

    await eventually(canary_is_free)
    assert await bus.acquire("ranker", "b", 1.0) is None


async def test_of_twenty_who_want_a_lease_one_gets_it(harness: Harness) -> None:
    async with harness.connect() as one, harness.connect() as other:
        for _ in range(3):
            wanted = [(one, other)[i % 2].acquire("ranker", f"o{i}", 5.0) for i in range(20)]
            (winner,) = [lease for lease in await asyncio.gather(*wanted) if lease]
            await one.release(winner)


async def _acquired(bus: Bus, owner: str) -> Lease:
    got: list[Lease] = []

    async def acquired() -> bool:
        lease = await bus.acquire("ranker", owner, 60.0)
        got.extend([lease] if lease else [])
        return bool(got)

    await eventually(acquired)
    return got[0]
