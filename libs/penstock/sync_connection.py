"""
A client's connection for callers that have no event loop, or must not wait on theirs.

:class:`SyncConnection` is the part of :class:`penstock.SyncClient` that is not one method of the client after another.
:class:`LoopThread` is its event loop, in a thread of its own, and runs coroutines and asynchronous iterators for any
thread. Who waits is woken at once by Ctrl-C, and what was waited for is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Optional, TypeVar, Union, cast

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from penstock.client import Client
    from penstock_log.views import SubmitAnswer, TrialView

T = TypeVar("T")
CLOSED: Final = "the client is closed; make a new one"
_END: Final = object()
_LAST_S: Final = 5.0
"""How long what is cancelled at the end may take to tidy up."""


class LoopThread:
    """
    A running event loop; :meth:`close` ends it and its thread.

    The thread is a daemon, so that a program which forgets to close it can end.

    Raises
    ------
    RuntimeError
        From every method in another process than the one that made it, since threads do not outlive a fork; on the
        loop itself, which would wait for itself; and once it is closed.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def result(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """
        Run a coroutine and return what it returns; it is cancelled where the caller is interrupted.

        ``begin`` makes it, on the loop: one that was made here would be left behind by an interruption.
        """
        self._check()
        call = _Call(self._loop, begin)
        try:
            with self._lock:  # what begins before the end is cancelled by it
                self._check()
                self._loop.call_soon_threadsafe(call.begin)
            return call.outcome.result()
        except futures.CancelledError:
            self._check()
            raise
        except BaseException:  # such as KeyboardInterrupt, at which nobody waits for it any more
            call.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what an asynchronous iterator yields; it is closed when the caller stops, however that comes."""
        self._check()
        return _Iteration(self, items)

    def leave(self, items: AsyncIterator[Any]) -> None:
        """Close an iterator that is read no further; nobody waits for that. After the loop's end nothing is left."""
        close = getattr(items, "aclose", None)
        if close is not None and self.is_here:
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(lambda: self._loop.create_task(_closed(close())))

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this client belongs to process {self._pid}, of which this one ({os.getpid()}) is a fork, without its "
                "thread and its connection; make a new SyncClient here"
            )
        if self._closed:
            raise RuntimeError(CLOSED)
        if threading.current_thread() is self._thread:
            raise RuntimeError("a SyncClient cannot be used on its own event loop; use `await` and penstock.Client")

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process."""
        return self._pid == os.getpid() and not self._closed

    def close(self, last: Optional[Callable[[], Coroutine[Any, Any, object]]] = None) -> None:
        """
        End the loop and wait for its thread; in a fork, where there is none, do nothing.

        Parameters
        ----------
        last : callable, optional
            Returns a coroutine that is run before; then what still runs is cancelled.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end(last)))
        if threading.current_thread() is not self._thread:  # where garbage collection calls this, that may be
            self._thread.join()

    async def _end(self, last: Optional[Callable[[], Coroutine[Any, Any, object]]]) -> None:
        try:
            if last is not None:
                await last()
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_LAST_S)
            await self._loop.shutdown_asyncgens()
            self._loop.stop()


class _Call(Generic[T]):
    """What is to run on a loop; made before it begins there, so that no interruption comes in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.outcome: futures.Future[T] = futures.Future()
        self._loop, self._begin = loop, begin
        self._task: Optional[asyncio.Task[None]] = None
        self._is_cancelled = False

    def begin(self) -> None:
        """Begin, on the loop."""
        if not self._is_cancelled:
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            found = await self._begin()
        except asyncio.CancelledError:
            self.outcome.cancel()
            raise
        except Exception as error:  # whatever it is, it is the caller's
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(found)

    def cancel(self) -> None:
        """Cancel it, from any thread; what has ended, or never began, stays so."""
        if not self.outcome.done():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


class _Iteration(Generic[T]):
    """An iterator over what an asynchronous one yields; one thread at a time may go on with it."""

    def __init__(self, thread: LoopThread, items: AsyncIterator[T]) -> None:
        self._thread, self._items = thread, items
        self._over = False

    def __iter__(self) -> _Iteration[T]:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        try:
            item = self._thread.result(lambda: _next(self._items))
        except BaseException:
            self.close()
            raise
        if item is _END:
            self._over = True
            raise StopIteration
        return cast("T", item)

    def close(self) -> None:
        """Read no further."""
        if not self._over:
            self._over = True
            self._thread.leave(self._items)

    def __del__(self) -> None:
        self.close()


async def _next(items: AsyncIterator[T]) -> Union[T, object]:
    async for item in items:
        return item
    return _END


async def _closed(closing: Coroutine[Any, Any, None]) -> None:
    with suppress(RuntimeError):  # it ends already: its last step was cancelled
        await closing


class SyncConnection:
    """
    A client on an event loop of its own, which is connected when it is first used.

    Parameters
    ----------
    client : Client
        Not connected yet, and used by nobody else.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.RLock()
        self._opened: Optional[LoopThread] = None
        self._end: Optional[weakref.finalize[..., SyncConnection]] = None
        self._is_closed = False

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address of the NATS server."""
        return self._client.url

    @property
    def user(self) -> str:
        """Under which name the server knows who asks; empty before it was asked, and where it knows nobody."""
        return self._client.user

    def connect(self) -> None:
        """Connect now, and not when it is first used; errors as of :class:`penstock.Client`."""
        self._thread()

    def close(self) -> None:
        """Disconnect, and end the thread; what other threads wait for ends with an error."""
        opened, self._is_closed = self._opened, True
        if opened is not None and self._end is not None and opened.is_here:
            self._end()

    def _thread(self) -> LoopThread:
        """Return the loop of the connection, which is made if there is none yet."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock:
            if self._opened is None:
                if self._is_closed:
                    raise RuntimeError(CLOSED)
                self._opened = self._open()
            return self._opened

    def _open(self) -> LoopThread:
        thread = LoopThread("penstock client")
        try:
            thread.result(self._client.__aenter__)
        except BaseException:
            thread.close()
            raise
        self._end = weakref.finalize(self, _disconnect, thread, self._client)
        return thread

    def _result(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._thread().result(begin)

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        return self._thread().iterate(items)


def _disconnect(thread: LoopThread, client: Client) -> None:
    thread.close(partial(client.__aexit__, None, None, None))


async def awaited(answer: Awaitable[T]) -> T:
    """Return what an awaitable gives, as a coroutine."""
    return await answer


class SyncSweep:
    """
    A sweep that was submitted: the gateway's answer, and its results as they come.

    Attributes
    ----------
    answer : SubmitAnswer
    """

    def __init__(self, answer: SubmitAnswer, results: Callable[[str], Iterator[TrialView]]) -> None:
        self.answer, self._results = answer, results

    @property
    def id(self) -> str:
        """The id of the sweep."""
        return self.answer.id

    def __iter__(self) -> Iterator[TrialView]:
        return self._results(self.answer.id)
