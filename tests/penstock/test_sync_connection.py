"""The loop thread: results, errors, interruptions, and iterators that are closed."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.sync_connection import LoopThread

PATIENCE_S = 60.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("loop of a test")
    yield made
    made.close()
    assert "loop of a test" not in {one.name for one in threading.enumerate()}


class Counting:
    """Counts for ever, and notes when it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.waiting = threading.Event()

    async def items(self, until: int) -> AsyncIterator[int]:
        try:
            for i in range(until):
                yield i
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.closed.set()


async def three() -> AsyncIterator[int]:
    for i in range(3):
        yield i


async def failing() -> AsyncIterator[int]:
    yield 1
    raise ValueError("no more")


def test_an_iterator_gives_its_items_and_ends(thread: LoopThread) -> None:
    items = thread.iterate(three())
    assert [*items] == [0, 1, 2]
    assert [*items] == []


def test_an_error_of_an_iterator_is_the_callers(thread: LoopThread) -> None:
    items = thread.iterate(failing())
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)
    assert [*items] == []


def test_an_iterator_that_nobody_holds_is_closed(thread: LoopThread) -> None:
    counting = Counting()
    for item in thread.iterate(counting.items(5)):
        if item == 2:
            break
    assert counting.closed.wait(PATIENCE_S)


def test_an_iterator_that_waits_is_closed_at_the_end(thread: LoopThread) -> None:
    counting = Counting()
    failed: list[BaseException] = []

    def read() -> None:
        try:
            list(thread.iterate(counting.items(1)))
        except RuntimeError as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert counting.waiting.wait(PATIENCE_S)
    thread.close()
    reader.join(PATIENCE_S)
    assert counting.closed.is_set()
    assert "closed" in str(failed[0])


def test_who_waits_on_the_loop_itself_is_told(thread: LoopThread) -> None:
    async def waits_for_itself() -> None:
        thread.result(lambda: asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="on its own event loop"):
        thread.result(waits_for_itself)


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals come to the main thread only"
)
def test_who_is_interrupted_leaves_at_once_and_what_was_waited_for_is_cancelled(thread: LoopThread) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt() -> None:
        assert begun.wait(PATIENCE_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        thread.result(waits)
    interrupting.join()
    assert cancelled.wait(PATIENCE_S)


def test_the_last_coroutine_runs_before_the_rest_is_cancelled() -> None:
    order: list[str] = []
    thread = LoopThread("loop of a test")

    async def works() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            order.append("cancelled")
            raise

    async def says_goodbye() -> None:
        order.append("goodbye")

    async def begins() -> None:
        begun.append(asyncio.ensure_future(works()))
        await asyncio.sleep(0)

    begun: list[asyncio.Future[None]] = []
    thread.result(begins)
    thread.close(says_goodbye)
    assert order == ["goodbye", "cancelled"]
