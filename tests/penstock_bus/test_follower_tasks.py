import asyncio

import pytest

from penstock_bus import NoResponders, StorageFull, Timeout, Unavailable, follower
from penstock_bus.follower import background, until_available
from penstock_testing import eventually


async def test_background_tasks_end_with_the_block() -> None:
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with background(forever()):
        await asyncio.sleep(0)
    assert ended.is_set()


async def test_an_error_of_the_block_comes_through_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with background(asyncio.sleep(60)):
            raise KeyError


async def test_a_failing_task_ends_the_block() -> None:
    async def fail() -> None:
        raise KeyError

    with pytest.RaisesGroup(KeyError):
        async with background(fail()):
            await asyncio.Event().wait()


async def test_a_call_is_repeated_until_the_bus_is_there() -> None:
    failures = [Unavailable("away"), Unavailable("away")]

    async def call() -> str:
        if failures:
            raise failures.pop()
        return "stored"

    assert await until_available(call, "call") == "stored"


async def test_nobody_to_answer_is_not_waited_for() -> None:
    async def call() -> None:
        raise NoResponders("nobody")

    with pytest.raises(NoResponders):
        await until_available(call, "call")


async def test_who_is_to_end_does_not_wait_for_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "FIRST_S", 3_600.0)
    monkeypatch.setattr(follower, "MOST_S", 3_600.0)
    tries, giving_up = 0, asyncio.Event()

    async def call() -> None:
        nonlocal tries
        tries += 1
        raise StorageFull("no room")

    waiting = asyncio.create_task(until_available(call, "append", giving_up))
    await eventually(lambda: tries == 1)
    giving_up.set()
    async with asyncio.timeout(60):
        with pytest.raises(StorageFull):
            await waiting


async def test_a_call_without_an_answer_does_not_keep_who_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "LAST_S", 0.05)
    giving_up = asyncio.Event()
    waiting = asyncio.create_task(until_available(asyncio.Event().wait, "append", giving_up))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    giving_up.set()
    with pytest.raises(Timeout, match="the service is to end"):
        await waiting
