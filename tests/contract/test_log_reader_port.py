"""LogReader on both adapters: reading, and following in order, each commit once, whatever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import pytest
from bus_harness import Harness, append, ids, take

from penstock_bus import Bus, Delivery, Gathering, Unavailable
from penstock_log import fields_of, subjects
from penstock_testing import eventually

GATHERING = pytest.mark.parametrize("gather_s", [None, 0.0, 0.01])
"""A follower is the same, whether messages come at once, one after the other, or many together."""
GARBAGE = b'{"id": "x", "actor": "y", "facts": [{"type": "job.submitted.v9", "at_s": 1.0}]}'


async def test_reading_gives_the_commits_of_a_subject_or_pattern_in_order(bus: Bus) -> None:
    items = [append("j1", None), append("j2", None), append("j1", None), append("j1", None)]
    await bus.append_many(items)
    read = await bus.read(subjects.job("j1"))
    assert [(one.seq, one.commit, one.pending) for one in read] == [
        (1, items[0].commit, 2),
        (3, items[2].commit, 1),
        (4, items[3].commit, 0),
    ]
    assert [one.seq for one in await bus.read(subjects.job("j1"), after_seq=1, until_seq=3)] == [3]
    assert [one.seq for one in await bus.read("penstock.evt.job.*", after_seq=2)] == [3, 4]
    assert await bus.read(subjects.job("nobody")) == []


async def test_reading_goes_on_behind_the_first_thousands(bus: Bus) -> None:
    await bus.append_many([append(f"j{i}") for i in range(2500)])
    assert [one.seq for one in await bus.read("penstock.evt.>")] == list(range(1, 2501))


async def test_the_last_commit_of_a_subject_is_known(bus: Bus) -> None:
    assert await bus.last(subjects.job("j1")) is None
    await bus.append(append("j1", None))
    item = append("j1", None)
    await bus.append(item)
    last = await bus.last(subjects.job("j1"))
    assert last is not None
    assert (last.seq, last.commit, last.subject) == (2, item.commit, item.subject)


async def test_an_empty_log_ends_at_zero(bus: Bus) -> None:
    assert await bus.last_seq() == 0


async def test_the_servers_time_is_that_of_what_it_stores(bus: Bus) -> None:
    before_s = await bus.now_s()
    await bus.append(append("j1"))
    stored = await bus.last(subjects.job("j1"))
    assert stored is not None
    assert before_s - 0.001 <= stored.stored_s <= await bus.now_s() + 0.001


def follow(bus: Bus, gather_s: float | None, after_seq: int = 0) -> AsyncGenerator[Delivery, None]:
    return bus.follow(after_seq, (), None if gather_s is None else Gathering(lambda: gather_s))


@GATHERING
async def test_a_follower_gets_what_is_stored_and_then_what_comes(bus: Bus, gather_s: float | None) -> None:
    stored = [append(f"j{i}") for i in range(5)]
    await bus.append_many(stored)
    async with aclosing(follow(bus, gather_s)) as deliveries:
        old = await take(deliveries, 5)
        assert ids(old) == [item.commit.id for item in stored]
        assert [one.seq for one in old] == [1, 2, 3, 4, 5]
        assert [one.pending for one in old] == [4, 3, 2, 1, 0]
        for i in range(3):
            item = append(f"new{i}")
            await bus.append(item)
            (new,) = await take(deliveries, 1)
            assert (new.seq, new.commit, new.subject, new.pending) == (6 + i, item.commit, item.subject, 0)


async def test_a_follower_may_start_behind_a_sequence(bus: Bus) -> None:
    await bus.append_many([append(f"j{i}") for i in range(10)])
    async with aclosing(bus.follow(after_seq=7)) as deliveries:
        assert [one.seq for one in await take(deliveries, 3)] == [8, 9, 10]


@GATHERING
async def test_a_follower_behind_the_end_waits_for_the_next(bus: Bus, gather_s: float | None) -> None:
    last = await bus.append(append("j0"))
    async with aclosing(follow(bus, gather_s, last)) as deliveries:
        waiting = asyncio.create_task(take(deliveries, 1))
        await bus.append(append("j1"))
        assert [one.seq for one in await waiting] == [last + 1]


async def test_a_follower_of_some_subjects_gets_no_others(bus: Bus) -> None:
    for i in range(4):
        await bus.append(append(f"j{i}"))
    async with aclosing(bus.follow(subjects=[subjects.job("j1"), subjects.job("j3")])) as deliveries:
        found = await take(deliveries, 2)
        assert [(one.seq, one.pending) for one in found] == [(2, 1), (4, 0)]


async def test_times_of_storing_are_the_same_in_a_follower_and_in_a_reader(bus: Bus) -> None:
    await bus.append(append("j1"))
    async with aclosing(bus.follow()) as deliveries:
        assert await take(deliveries, 1) == await bus.read(subjects.job("j1"))


async def test_an_unreadable_message_is_rejected_once_and_the_reader_goes_on(harness: Harness, bus: Bus) -> None:
    await bus.append(append("j1"))
    await harness.inject(subjects.job("j2"), GARBAGE)
    await harness.inject(subjects.job("j3"), b"no JSON")
    await bus.append(append("j4"))
    async with harness.connect() as other, aclosing(bus.follow()) as here, aclosing(other.follow()) as there:
        for deliveries in (here, there):
            found = await take(deliveries, 4)
            assert [one.seq for one in found] == [1, 2, 3, 4]
            assert [len(one.commit.facts) for one in found] == [1, 0, 0, 1]
            assert [one.pending for one in found] == [3, 2, 1, 0]

        async def both_rejected() -> bool:
            return len(await bus.rejections()) >= 2

        await eventually(both_rejected)
        unknown, malformed = sorted(await bus.rejections(), key=lambda one: one.origin)
        assert "job.submitted.v9" in unknown.reason
        assert unknown.origin == "EVT penstock.evt.job.j2 seq 2"
        assert unknown.body == GARBAGE
        assert malformed.body == b"no JSON"


async def test_an_unknown_fact_is_delivered_as_it_is_and_rejected_by_nobody(harness: Harness, bus: Bus) -> None:
    raw = {"type": "ext.billing.priced.v1", "cents": 5, "why": None}
    body = msgspec.json.encode({"id": "x", "actor": "billing/1", "facts": [raw]})
    await harness.inject(subjects.extension("billing", "j1"), body)
    await bus.append(append("j1"))
    async with aclosing(bus.follow()) as deliveries:
        priced, known = await take(deliveries, 2)
    assert [fields_of(fact) for fact in priced.commit.facts] == [raw]
    assert (priced.seq, priced.pending, known.seq) == (1, 1, 2)
    assert await bus.read(subjects.extensions("j1")) == [msgspec.structs.replace(priced, pending=0)]
    assert await bus.last(priced.subject) == msgspec.structs.replace(priced, pending=0)
    assert await bus.rejections() == []


async def test_an_unreadable_message_keeps_its_place_for_writers(harness: Harness, bus: Bus) -> None:
    await harness.inject(subjects.job("j1"), GARBAGE)
    last = await bus.last(subjects.job("j1"))
    assert last is not None
    assert not last.commit.facts
    assert await bus.append(append("j1", last.seq)) == 2
    assert [one.seq for one in await bus.read(subjects.job("j1"))] == [2]


@GATHERING
async def test_a_slow_follower_loses_nothing(bus: Bus, gather_s: float | None) -> None:
    async with aclosing(follow(bus, gather_s)) as deliveries:
        await bus.append(append("first"))
        await take(deliveries, 1)
        await bus.append_many([append(f"j{i}") for i in range(10_000)])  # more than is read ahead
        assert [one.seq for one in await take(deliveries, 10_000)] == list(range(2, 10_002))


@GATHERING
async def test_a_follower_goes_on_over_a_disconnect(harness: Harness, bus: Bus, gather_s: float | None) -> None:
    async with aclosing(follow(bus, gather_s)) as deliveries:
        await bus.append_many([append(f"a{i}") for i in range(50)])
        before = await take(deliveries, 20)
        harness.cut()
        waiting = asyncio.create_task(take(deliveries, 60))
        harness.mend()
        await bus.append_many([append(f"b{i}") for i in range(30)])
        assert [one.seq for one in before + await waiting] == list(range(1, 81))


@GATHERING
async def test_a_follower_goes_on_over_a_crash_of_the_server(
    harness: Harness, bus: Bus, gather_s: float | None
) -> None:
    async with aclosing(follow(bus, gather_s)) as deliveries:
        seen = []
        for round_ in range(3):
            await bus.append_many([append(f"before{round_}-{i}") for i in range(40)])
            seen += await take(deliveries, 30)
            await harness.crash()
            waiting = asyncio.create_task(take(deliveries, 20))
            await harness.restart()
            await bus.append_many([append(f"after{round_}-{i}") for i in range(10)])
            seen += await waiting
        assert [one.seq for one in seen] == list(range(1, 151))


@GATHERING
async def test_a_follower_on_a_closed_bus_ends_with_an_error(harness: Harness, gather_s: float | None) -> None:
    async with harness.connect() as bus:
        await bus.append(append("j1"))
        async with aclosing(follow(bus, gather_s)) as deliveries:
            await take(deliveries, 1)
            waiting = asyncio.create_task(take(deliveries, 1))
            await asyncio.sleep(0)
            await bus.close()
            with pytest.raises(Unavailable, match="closed"):
                await waiting
