"""LogPort on both adapters: appends, and what they expect."""

from __future__ import annotations

import asyncio

import pytest
from bus_harness import Harness, append, ids

from penstock_bus import BatchRefused, Bus, Conflict, TooLarge
from penstock_log import subjects


async def test_sequences_rise_from_one(bus: Bus) -> None:
    assert [await bus.append(append(f"j{i}")) for i in range(3)] == [1, 2, 3]
    assert await bus.last_seq() == 3


async def test_an_append_that_expects_the_last_sequence_of_its_subject_succeeds(bus: Bus) -> None:
    first = await bus.append(append("j1", 0))
    await bus.append(append("j2", 0))
    assert await bus.append(append("j1", first)) == 3


async def test_an_append_that_expects_another_sequence_is_a_conflict(bus: Bus) -> None:
    await bus.append(append("j1", 0))
    with pytest.raises(Conflict, match=r"job\.j1 is no longer at sequence 0") as caught:
        await bus.append(append("j1", 0))
    assert (caught.value.subject, caught.value.expected) == (subjects.job("j1"), 0)
    assert await bus.last_seq() == 1


async def test_a_sequence_that_does_not_exist_yet_is_a_conflict(bus: Bus) -> None:
    with pytest.raises(Conflict):
        await bus.append(append("j1", 7))


async def test_an_append_without_expectation_always_succeeds(bus: Bus) -> None:
    assert [await bus.append(append("j1", None)) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("expected", [None, 0])
async def test_a_retry_under_the_same_id_is_stored_once(bus: Bus, expected: int | None) -> None:
    item = append("j1", expected)
    assert await bus.append(item) == await bus.append(item) == 1
    assert await bus.last_seq() == 1


async def test_a_retry_finds_its_own_commit_even_if_another_came_behind_it(bus: Bus) -> None:
    item = append("j1", 0)
    first = await bus.append(item)
    await bus.append(append("j1", first))
    assert await bus.append(item) == first
    assert await bus.last_seq() == 2


async def test_of_ten_writers_who_expect_the_same_sequence_one_wins(harness: Harness) -> None:
    async with harness.connect() as one, harness.connect() as other:
        for expected in (0, 1, 2):
            tries = [(one, other)[i % 2].append(append("j1", expected)) for i in range(10)]
            results = await asyncio.gather(*tries, return_exceptions=True)
            assert [r for r in results if not isinstance(r, Conflict)] == [expected + 1]


async def test_many_appends_keep_the_order_of_their_subjects(bus: Bus) -> None:
    items = [append(f"j{i % 50}", None) for i in range(1000)]
    seqs = await bus.append_many(items)
    assert sorted(seqs) == list(range(1, 1001))
    by_seq = dict(zip(seqs, items, strict=True))
    for delivery in await bus.read(subjects.STREAM_SUBJECTS[subjects.EVT]):
        assert by_seq[delivery.seq].commit == delivery.commit
    for i in range(50):
        assert ids(await bus.read(subjects.job(f"j{i}"))) == [item.commit.id for item in items[i::50]]


async def test_many_appends_may_be_tried_again_with_the_same_ids(bus: Bus) -> None:
    items = [append(f"j{i}") for i in range(300)]
    assert await bus.append_many(items) == await bus.append_many(items)
    assert await bus.last_seq() == 300


async def test_a_conflict_among_many_is_told(bus: Bus) -> None:
    await bus.append(append("j7", 0))
    with pytest.raises(Conflict, match=r"job\.j7"):
        await bus.append_many([append(f"j{i}") for i in range(10)])


async def test_commits_that_are_appended_as_one_follow_each_other(bus: Bus) -> None:
    await bus.append(append("j1"))
    items = [append("j1", 1), *(append(f"k{i}") for i in range(998)), append("j2")]
    assert await bus.append_all(items) == list(range(2, 1002))
    stored = await bus.read(subjects.STREAM_SUBJECTS[subjects.EVT], after_seq=1)
    assert [(one.subject, one.commit) for one in stored] == [(item.subject, item.commit) for item in items]
    assert await bus.append_all([append("j1", 2)]) == [1002]


@pytest.mark.parametrize("expected", [0, 7])
async def test_of_commits_that_are_appended_as_one_none_is_stored_if_one_is_too_late(bus: Bus, expected: int) -> None:
    await bus.append(append("j7"))
    with pytest.raises(BatchRefused, match=r"no longer at|wrong last sequence"):
        await bus.append_all([append("j6"), append("j7", expected), append("j8")])
    with pytest.raises(BatchRefused):
        await bus.append_all([append("j7", expected)])
    assert await bus.last_seq() == 1


@pytest.mark.parametrize("count", [1, 2, 300])
async def test_commits_may_be_appended_as_one_again_with_the_same_ids(bus: Bus, count: int) -> None:
    await bus.append(append("first"))
    items = [append(f"j{i}") for i in range(count)]
    seqs = await bus.append_all(items)
    await bus.append(append("j0", seqs[0]))
    assert await bus.append_all(items) == seqs == list(range(2, count + 2))
    assert [await bus.append(item) for item in items] == seqs
    assert await bus.last_seq() == count + 2


async def test_commits_of_which_some_are_stored_already_are_not_appended_as_one(bus: Bus) -> None:
    items = [append(f"j{i}") for i in range(4)]
    await bus.append_many(items[:2])
    with pytest.raises(BatchRefused):
        await bus.append_all(items)
    assert await bus.append_many(items) == [1, 2, 3, 4]


async def test_of_two_writers_who_append_the_same_as_one_the_first_one_wins(harness: Harness) -> None:
    async with harness.connect() as one, harness.connect() as other:
        tries = [writer.append_all([append(f"j{i}") for i in range(50)]) for writer in (one, other)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sorted(isinstance(result, BatchRefused) for result in results) == [False, True]
        assert await one.last_seq() == 50


async def test_a_commit_over_the_servers_limit_says_the_limit_and_is_not_stored(bus: Bus) -> None:
    item = append("j1", by="x" * bus.max_body_bytes)
    with pytest.raises(TooLarge, match=rf"{bus.max_body_bytes}; send less"):
        await bus.append(item)
    with pytest.raises(TooLarge):
        await bus.append_many([append("j2"), item])
    with pytest.raises(TooLarge):
        await bus.append_all([append("j3"), item])
    assert await bus.append(append("j1", by="x" * (bus.max_body_bytes - 200)))
