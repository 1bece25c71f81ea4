"""WorkPort on both adapters: each message to one worker, until it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import pytest
from bus_harness import Harness

from penstock_bus import Bus, TooLarge, Unavailable, Work
from penstock_log import subjects
from penstock_testing import eventually

JOBS = [subjects.INBOX_JOBS]


async def take(work: AsyncIterator[Work], count: int, within_s: float = 60.0) -> list[Work]:
    async with asyncio.timeout(within_s):
        return [await anext(work) for _ in range(count)]


async def submit(bus: Bus, count: int) -> None:
    for i in range(count):
        await bus.submit(subjects.INBOX_JOBS, b"%d" % i)


async def test_work_comes_in_order_and_is_gone_when_acknowledged(bus: Bus) -> None:
    await submit(bus, 3)
    async with aclosing(bus.work("gateway", JOBS)) as work:
        for i, one in enumerate(await take(work, 3)):
            assert (one.subject, one.body) == (subjects.INBOX_JOBS, b"%d" % i)
            await one.ack()
    await bus.submit(subjects.INBOX_JOBS, b"next")
    async with aclosing(bus.work("gateway", JOBS)) as work:
        assert [one.body for one in await take(work, 1)] == [b"next"]


async def test_work_submitted_later_reaches_a_waiting_worker(bus: Bus) -> None:
    async with aclosing(bus.work("gateway", JOBS)) as work:
        waiting = asyncio.create_task(take(work, 1))
        await asyncio.sleep(0)
        await bus.submit(subjects.INBOX_JOBS, b"late")
        assert [one.body for one in await waiting] == [b"late"]


async def test_each_queue_gets_its_own_subjects(bus: Bus) -> None:
    await bus.submit(subjects.INBOX_JOBS, b"job")
    await bus.submit(subjects.INBOX_SWEEPS, b"sweep")
    async with (
        aclosing(bus.work("sweeps", [subjects.INBOX_SWEEPS])) as sweeps,
        aclosing(bus.work("jobs", JOBS)) as jobs,
    ):
        assert [one.body for one in await take(sweeps, 1)] == [b"sweep"]
        assert [one.body for one in await take(jobs, 1)] == [b"job"]


async def test_two_workers_share_the_work(harness: Harness) -> None:
    done: list[bytes] = []

    async def work_on(bus: Bus) -> None:
        async with aclosing(bus.work("gateway", JOBS)) as work:
            async for one in work:
                await one.ack()
                done.append(one.body)

    async with harness.connect() as one, harness.connect() as other:
        workers = [asyncio.create_task(work_on(bus)) for bus in (one, other)]
        await submit(one, 200)
        await eventually(lambda: len(done) == 200)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(done) == sorted(b"%d" % i for i in range(200))


async def test_work_to_be_tried_again_comes_again_as_the_same(bus: Bus) -> None:
    await submit(bus, 1)
    async with aclosing(bus.work("gateway", JOBS)) as work:
        (first,) = await take(work, 1)
        await first.retry()
        (second,) = await take(work, 1)
        assert (second.seq, second.body) == (first.seq, first.body)
        await second.retry(delay_s=0.3)
        start_s = asyncio.get_running_loop().time()
        (third,) = await take(work, 1)
        assert asyncio.get_running_loop().time() - start_s >= 0.2
        await third.ack()


async def test_rejected_work_is_found_with_the_reason_and_does_not_come_again(bus: Bus) -> None:
    await submit(bus, 2)
    async with aclosing(bus.work("gateway", JOBS)) as work:
        (bad,) = await take(work, 1)
        await bad.reject("not a job: 0")
        (good,) = await take(work, 1)
        assert good.body == b"1"
        await good.ack()
    (rejection,) = await bus.rejections()
    assert (rejection.reason, rejection.body) == ("not a job: 0", b"0")
    assert subjects.INBOX_JOBS in rejection.origin


async def test_work_of_a_worker_that_stopped_goes_to_another(harness: Harness) -> None:
    async with harness.connect(ack_wait_s=0.5) as bus:
        await submit(bus, 3)
        async with harness.connect(ack_wait_s=0.5) as stopping, aclosing(stopping.work("gateway", JOBS)) as work:
            (held,) = await take(work, 1)
            assert held.body == b"0"
        async with aclosing(bus.work("gateway", JOBS)) as work:
            found = await take(work, 3)
            assert sorted(one.body for one in found) == [b"0", b"1", b"2"]
            for one in found:
                await one.ack()


async def test_work_that_a_stopping_worker_had_not_begun_goes_to_another_at_once(harness: Harness) -> None:
    async with harness.connect() as bus:
        await submit(bus, 50)
        async with harness.connect() as stopping, aclosing(stopping.work("gateway", JOBS)) as work:
            (first,) = await take(work, 1)
            await first.ack()
        async with aclosing(bus.work("gateway", JOBS)) as work:
            assert len({one.body for one in await take(work, 49)}) == 49  # long before the ack wait of 15 s


async def test_work_that_nobody_finishes_goes_to_the_rejected(harness: Harness) -> None:
    async with harness.connect(max_deliver=3) as bus:
        await submit(bus, 1)
        async with aclosing(bus.work("gateway", JOBS)) as work:
            for _ in range(3):
                (one,) = await take(work, 1)
                await one.retry()
            await bus.submit(subjects.INBOX_JOBS, b"next")
            (one,) = await take(work, 1)
            assert one.body == b"next"
            await one.ack()
        (rejection,) = await bus.rejections()
        assert (rejection.body, "delivered 3 times" in rejection.reason) == (b"0", True)


async def test_work_that_is_held_is_not_delivered_again_however_long_it_takes(harness: Harness) -> None:
    async with harness.connect(ack_wait_s=1.4, max_deliver=1) as bus, aclosing(bus.work("gateway", JOBS)) as work:
        await submit(bus, 1)
        (one,) = await take(work, 1)
        for _ in range(8):
            await asyncio.sleep(0.2)
            await one.hold()
        await bus.submit(subjects.INBOX_JOBS, b"next")
        (other,) = await take(work, 1)
        assert other.body == b"next"
        await one.ack()
        await other.ack()
        assert await bus.rejections() == []


async def test_holding_work_while_the_server_is_away_does_not_fail_and_it_comes_again(harness: Harness) -> None:
    async with harness.connect(ack_wait_s=1.0) as bus, aclosing(bus.work("gateway", JOBS)) as work:
        await submit(bus, 1)
        (one,) = await take(work, 1)
        await harness.crash()  # the server may forget that it delivered this, and then answers no acknowledgement of it
        await one.hold()
        await harness.restart()
        (again,) = await take(work, 1)
        assert again.body == one.body
        await again.ack()


async def test_a_worker_goes_on_over_a_crash_of_the_server(harness: Harness) -> None:
    async with harness.connect(ack_wait_s=1.0) as bus, aclosing(bus.work("gateway", JOBS)) as work:
        await submit(bus, 2)
        (first,) = await take(work, 1)
        await first.ack()
        await harness.crash()
        await harness.restart()
        await bus.submit(subjects.INBOX_JOBS, b"later")
        bodies: set[bytes] = set()
        while not bodies >= {b"1", b"later"}:  # the server may forget that the first was acknowledged, too
            (one,) = await take(work, 1)
            bodies.add(one.body)
            with suppress(Unavailable):  # it may have forgotten, too, that it delivered this: then it does so again
                await one.ack()


@pytest.mark.parametrize("ahead", [5, 1500])
async def test_workers_have_as_many_messages_at_once_as_they_may_look_ahead(bus: Bus, ahead: int) -> None:
    await submit(bus, ahead + 1)
    async with aclosing(bus.work("gateway", JOBS, ahead=ahead)) as work:
        found = await take(work, ahead)  # none of them is acknowledged
        assert [one.body for one in found] == [b"%d" % i for i in range(ahead)]
        further = asyncio.create_task(take(work, 1))
        await bus.last_seq()
        assert not further.done()
        await found[0].ack()
        (last,) = await further
        assert last.body == b"%d" % ahead
        await asyncio.gather(*(one.ack() for one in [*found[1:], last]))


async def test_submitting_too_much_says_the_limit(bus: Bus) -> None:
    with pytest.raises(TooLarge, match=str(bus.max_body_bytes)):
        await bus.submit(subjects.INBOX_JOBS, b"x" * (bus.max_body_bytes + 1))
