"""Appending, reading and what the log refuses, on both adapters."""

from __future__ import annotations

import asyncio

import pytest
from bus_harness import Harness, append, ids, take

from penstock_bus import Bus, Conflict, Rejection, TooLarge
from penstock_log import encode, subjects


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


async def test_a_commit_over_the_servers_limit_says_the_limit_and_is_not_stored(bus: Bus) -> None:
    item = append("j1", by="x" * bus.max_body_bytes)
    with pytest.raises(TooLarge, match=rf"{bus.max_body_bytes}; send less"):
        await bus.append(item)
    with pytest.raises(TooLarge):
        await bus.append_many([append("j2"), item])
    assert await bus.append(append("j1", by="x" * (bus.max_body_bytes - 200)))


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


async def test_what_is_rejected_is_found_with_its_reason_oldest_first(bus: Bus) -> None:
    await bus.reject("jobs", Rejection(reason="unknown field 'gpu'", origin="penstock.inbox.jobs", body=b'{"gpu": 1}'))
    await bus.reject("sweeps", Rejection(reason="größer als\nerlaubt", origin="here", body=b""))
    first, second = await bus.rejections()
    assert (first.reason, first.origin, first.body) == ("unknown field 'gpu'", "penstock.inbox.jobs", b'{"gpu": 1}')
    assert second.reason.replace("\n", " ") == "größer als erlaubt"
    assert 0 < first.stored_s <= second.stored_s


async def test_a_rejection_of_the_largest_body_with_a_long_reason_is_kept_cut_to_what_fits(bus: Bus) -> None:
    body = b"x" * bus.max_body_bytes
    await bus.reject("jobs", Rejection(reason="大きすぎる" * 200, origin="penstock.inbox.jobs", body=body))
    (kept,) = await bus.rejections()
    assert kept.reason.startswith("大きすぎる大きすぎる")
    assert body.startswith(kept.body)
    assert len(kept.body) > len(body) - 4096


async def test_a_fact_on_a_subject_that_is_not_its_own_is_heard_by_nobody_and_found_among_the_rejected(
    harness: Harness, bus: Bus
) -> None:
    await bus.append(append("j1"))
    forged = encode(append("j1").commit)
    for subject in (subjects.rank("evil"), subjects.job("j2"), subjects.run("j1")):
        await harness.inject(subject, forged)
    deliveries = await take(bus.follow(), 4)
    assert [len(one.commit.facts) for one in deliveries] == [1, 0, 0, 0]
    assert [one.subject for one in await bus.read("penstock.evt.>")] == [subjects.job("j1")]
    assert (last := await bus.last(subjects.rank("evil"))) is not None
    assert last.commit.facts == ()
    while len(found := await bus.rejections()) < 3:  # noqa: ASYNC110 - they are stored behind the readers' back
        await asyncio.sleep(0.01)
    assert [one.origin for one in found] == [
        "EVT penstock.evt.rank.evil seq 2",
        "EVT penstock.evt.job.j2 seq 3",
        "EVT penstock.evt.run.j1 seq 4",
    ]
    assert found[0].reason.startswith("ranker wrote job.held.v1 on penstock.evt.rank.evil, and that fact belongs on")
    assert found[0].body == forged


async def test_the_servers_time_is_that_of_what_it_stores(bus: Bus) -> None:
    before_s = await bus.now_s()
    await bus.append(append("j1"))
    stored = await bus.last(subjects.job("j1"))
    assert stored is not None
    assert before_s - 0.001 <= stored.stored_s <= await bus.now_s() + 0.001
