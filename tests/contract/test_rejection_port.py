"""RejectionPort on both adapters: what was refused is found with its reason."""

from __future__ import annotations

import asyncio

from bus_harness import Harness, append, take

from penstock_bus import Bus, Rejection
from penstock_log import encode, subjects


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
