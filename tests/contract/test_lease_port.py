"""LeasePort on both adapters: one owner at a time."""

from __future__ import annotations

import asyncio

from bus_harness import Harness

from penstock_bus import Bus, Lease
from penstock_testing import eventually


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
