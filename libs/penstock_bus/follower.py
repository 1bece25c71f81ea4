"""
A fold that follows the bus, with its retries: the loop that every service calls, and extensions too.

:class:`FoldFollower` follows the log into a fold while its context is open, starting from a snapshot.
:func:`until_available` tries a call again while the bus is unavailable. :func:`background` runs tasks that live exactly
as long as a block of code.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from itertools import count
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from penstock_bus.decider import Decider, Fold
from penstock_bus.logger import get_logger
from penstock_bus.port import (
    Delivery,
    Gathering,
    LogReader,
    NoResponders,
    Snapshot,
    SnapshotPort,
    Timeout,
    TooLarge,
    Unavailable,
)
from penstock_log import subjects as names

S = TypeVar("S")
YIELD_EVERY: Final = 1000
STALL_S: Final = 1.0
_log = get_logger("penstock.live")


class FoldSource(LogReader, SnapshotPort, Protocol):
    """What a fold is made from: the log, and snapshots of the fold itself."""


class FoldFollower(Generic[S]):
    """
    Follow the log into a fold while the context is open.

    Starts from the snapshot ``name`` if there is a usable one. An exception in the fold ends the context with it.

    Parameters
    ----------
    bus, decider
    name : str, optional
        The snapshot's name; the decider's name where not given.
    subjects : sequence of str
        Patterns to follow; empty means all.
    on_delivery : callable, optional
        Called with each delivery right after it was folded in; must not block.
    """

    def __init__(
        self,
        bus: FoldSource,
        decider: Decider[S],
        *,
        name: str = "",
        subjects: Sequence[str] = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        self.fold = Fold(decider)
        self.name = name or decider.name
        self.changed = asyncio.Event()
        self.pending = 0
        self._bus = bus
        self._subjects = tuple(subjects)
        self._on_delivery = on_delivery
        self._gathering: Gathering | None = None
        """Nothing gathers while somebody waits for a certain sequence."""
        if (gather_s := decider.gather_s) is not None:
            self._gathering = Gathering(lambda: gather_s(self.fold.state))
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._saved_seq = 0
        self.encode_s = 0.0
        """How long it took to encode the last snapshot, seconds: so long nothing else was done."""
        self.is_too_large = False
        """Whether the last snapshot was too large to be stored, and a start would read the whole log."""
        self._restored = asyncio.Event()
        self._stack = AsyncExitStack()

    @property
    def state(self) -> S:
        """The state up to :attr:`last_seq`; changed in place, so take what you need before you await."""
        return self.fold.state

    @property
    def last_seq(self) -> int:
        """Sequence of the last commit folded in."""
        return self.fold.last_seq

    @property
    def heads(self) -> dict[str, int]:
        """Last sequence of each subject that this service writes."""
        return self.fold.heads

    async def __aenter__(self) -> Self:
        await self._restore()
        await self._stack.enter_async_context(background(self._follow()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def reached(self, seq: int, timeout_s: float | None = None) -> None:
        """
        Wait until the commit of this sequence is folded in.

        Raises
        ------
        Timeout
            If it is not after ``timeout_s``.
        """
        if self.last_seq >= seq:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (seq, next(self._order), waiter))
        if self._gathering is not None:
            self._gathering.hurry.set()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError as error:
            raise Timeout(f"the fold is at {self.last_seq}, not yet at {seq}, after {timeout_s} s") from error

    async def caught_up(self) -> None:
        """
        Wait until everything readable that the log holds now is folded in.

        It may be called before the context is open, and then waits for that too.
        """
        await self._restored.wait()  # or it would wait for commits that the snapshot covers
        target = await until_available(self._bus.last_seq, "last_seq")
        long = target - self.last_seq > YIELD_EVERY
        with collector_paused() if long else nullcontext():
            while (before := self.last_seq) < target:
                try:
                    await self.reached(target, timeout_s=STALL_S)
                except Timeout:
                    if self.last_seq == before and not await self._remaining(before, target):
                        return

    async def save_snapshot(self) -> bool:
        """
        Store a snapshot if the state has changed since the last one.

        One that cannot be encoded, or that is too large to be stored, is only logged: the log has it all, and the
        service goes on without. It is tried again after as many further events, not at every look.
        """
        if self.last_seq == self._saved_seq:
            return False
        began = asyncio.get_running_loop().time()
        try:
            snapshot = self.fold.snapshot()
        except Exception:  # whatever is in the state
            _log.exception("snapshot_not_encoded", name=self.name, last_seq=self.last_seq)
            self._saved_seq = self.last_seq
            return False
        self.encode_s = asyncio.get_running_loop().time() - began
        try:
            await self._bus.save_snapshot(self.name, snapshot)
        except TooLarge as error:
            advice = "every start reads the whole log; have old jobs archived: [gateway] archive_dir, keep_days"
            _log.error("snapshot_too_large", name=self.name, error=str(error), advice=advice)
            self._saved_seq, self.is_too_large = snapshot.last_seq, True
            return False
        self._saved_seq, self.is_too_large = snapshot.last_seq, False
        _log.info("snapshot_saved", name=self.name, last_seq=snapshot.last_seq, bytes=len(snapshot.state))
        return True

    @property
    def unsaved(self) -> int:
        """How many sequences the state is ahead of its last snapshot."""
        return self.last_seq - self._saved_seq

    async def _restore(self) -> None:
        snapshot = await until_available(lambda: self._bus.load_snapshot(self.name), "load_snapshot")
        last_seq = await until_available(self._bus.last_seq, "last_seq")
        if snapshot is not None and snapshot.last_seq > last_seq:
            _log.warning("snapshot_ahead_of_log_ignored", name=self.name, snapshot=snapshot.last_seq, log=last_seq)
        elif self._is_restored(snapshot):
            self._saved_seq = self.fold.last_seq
            _log.info("snapshot_restored", name=self.name, last_seq=self.fold.last_seq)
        self._restored.set()

    def _is_restored(self, snapshot: Snapshot | None) -> bool:
        with collector_paused():  # which would go through all of the new state several times
            return self.fold.restore(snapshot)

    async def _follow(self) -> None:
        deliveries = self._bus.follow(self.last_seq, self._subjects, self._gathering)
        since_yield = 0
        async for delivery in deliveries:
            self._take(delivery)
            since_yield += 1
            if since_yield >= YIELD_EVERY or not delivery.pending:
                since_yield = 0
                await asyncio.sleep(0)

    def _take(self, delivery: Delivery) -> None:
        self.pending = delivery.pending
        if not self.fold.apply(delivery):
            return
        if self._on_delivery is not None:
            self._on_delivery(delivery)
        while self._waiting and self._waiting[0][0] <= delivery.seq:
            _, _, waiter = heapq.heappop(self._waiting)
            if not waiter.done():
                waiter.set_result(None)
        if self._gathering is not None and not self._waiting:
            self._gathering.hurry.clear()
        self.changed.set()

    async def _remaining(self, after_seq: int, until_seq: int) -> bool:
        """Say whether there is a readable commit between two sequences; reads a little at a time."""
        for from_seq in range(after_seq, until_seq, YIELD_EVERY):
            for subject in self._subjects or (names.STREAM_SUBJECTS[names.EVT],):
                if await self._bus.read(subject, from_seq, min(from_seq + YIELD_EVERY, until_seq)):
                    return True
        return False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cycle collector from walking a growing state again and again, during a replay for one."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


T = TypeVar("T")
FIRST_S: Final = 0.05
MOST_S: Final = 2.0
LAST_S: Final = 2.0
_retry_log = get_logger("penstock.bus")


async def until_available(call: Callable[[], Awaitable[T]], what: str, giving_up: asyncio.Event | None = None) -> T:
    """
    Return what ``call`` returns, trying again with back-off while the bus is unavailable.

    An append must carry the same commit id in all tries, so that it is not stored twice.

    Raises
    ------
    Unavailable
        If ``giving_up`` is set and the bus is still unavailable. A service that is ending does not wait for room, and
        no longer than :data:`LAST_S` for an answer.
    """
    delay_s = FIRST_S
    while True:
        try:
            return await (call() if giving_up is None else _in_time(call, giving_up))
        except NoResponders:
            raise
        except Unavailable as error:
            if giving_up is not None and giving_up.is_set():
                raise
            _retry_log.warning("bus_unavailable", what=what, error=str(error), retry_s=delay_s)
        await pause(delay_s, giving_up or asyncio.Event())
        delay_s = min(delay_s * 2, MOST_S)


async def _in_time(call: Callable[[], Awaitable[T]], giving_up: asyncio.Event) -> T:
    try:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.ensure_future(_end_soon_after(giving_up, limit))
            try:
                return await call()
            finally:
                watching.cancel()
    except TimeoutError as error:
        raise Timeout(f"no answer within {LAST_S} s, and the service is to end") from error


async def _end_soon_after(giving_up: asyncio.Event, limit: asyncio.Timeout) -> None:
    await giving_up.wait()
    limit.reschedule(asyncio.get_running_loop().time() + LAST_S)


async def pause(delay_s: float | None, event: asyncio.Event) -> None:
    """Sleep, but not longer than until an event; None: for as long as it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await event.wait()


@asynccontextmanager
async def background(*jobs: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """
    Run coroutines while the body runs, and cancel them after it.

    An error of the body comes through as it is.

    Raises
    ------
    BaseExceptionGroup
        If one of the coroutines fails: the body and the others are cancelled first.
    """
    failed: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        try:
            yield
        except Exception as error:  # raised again below, outside the group
            failed = error
        finally:
            for task in tasks:
                task.cancel()
    if failed is not None:
        raise failed
