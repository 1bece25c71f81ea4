"""Facts on their way to the log: in the order in which they happened, each once, and kept while the log is away."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from functools import partial
from itertools import islice
from typing import Final

from penstock_bus.follower import until_available
from penstock_bus.logger import get_logger
from penstock_bus.port import Append, BusError, LogPort, TooLarge
from penstock_log import AnyEvent, Commit, subjects

MOST_IN_ONE: Final = 64
"""Facts of one commit."""
RETRY_S: Final = 1.0
_log = get_logger("penstock.aggregator")


class FactQueue:
    """
    Facts of one node that are not in the log yet.

    They go into one commit while another one is under way. A commit keeps its id until it is stored, so that the log
    holds it once whatever became of the answer.
    """

    def __init__(self, bus: LogPort, node_id: str) -> None:
        self._bus, self._node_id = bus, node_id
        self._waiting: deque[tuple[AnyEvent, asyncio.Future[int]]] = deque()
        self._has_some = asyncio.Event()
        self._writing = asyncio.Lock()
        self._item: Append | None = None
        self._most = MOST_IN_ONE

    def __len__(self) -> int:
        """Return how many facts wait."""
        return len(self._waiting)

    def put(self, fact: AnyEvent) -> asyncio.Future[int]:
        """Have a fact appended behind all earlier ones; the result is the sequence of its commit."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_noted)
        self._waiting.append((fact, done))
        self._has_some.set()
        return done

    async def write(self) -> None:
        """Append facts as they come, for ever."""
        while True:
            await self._has_some.wait()
            try:
                await self.flush()
            except BusError as error:  # such as a login that does not count any more
                _log.warning("aggregator_facts_not_written", count=len(self._waiting), error=str(error))
                await asyncio.sleep(RETRY_S)

    async def flush(self, giving_up: asyncio.Event | None = None) -> None:
        """Append all that waits; with ``giving_up`` set, do not wait for a bus that is away."""
        async with self._writing:
            while self._waiting:
                item = self._next()
                try:
                    seq = await until_available(partial(self._bus.append, item), f"append to {item.subject}", giving_up)
                except TooLarge as error:
                    self._part(item, error)
                    continue
                self._item, self._most = None, MOST_IN_ONE
                for _ in item.commit.facts:
                    done = self._waiting.popleft()[1]
                    if not done.done():
                        done.set_result(seq)
            self._has_some.clear()

    def _next(self) -> Append:
        """Return the commit to append: the one before, where its answer was not waited for, since it may be stored."""
        if self._item is None:
            facts = tuple(fact for fact, _ in islice(self._waiting, self._most))
            commit = Commit(id=uuid.uuid4().hex, actor=f"aggregator/{self._node_id}", facts=facts)
            self._item = Append(subject=subjects.aggregator(self._node_id), commit=commit, expected=None)
        return self._item

    def _part(self, item: Append, error: TooLarge) -> None:
        """Have fewer facts in one commit; one that is too large by itself is left out, which is said."""
        self._item, self._most = None, max(1, len(item.commit.facts) // 2)
        if len(item.commit.facts) == 1:
            fact, done = self._waiting.popleft()
            _log.error("aggregator_fact_too_large", fact=type(fact).__name__, error=str(error))
            if not done.done():
                done.set_exception(error)


def _noted(done: asyncio.Future[int]) -> None:
    """Take note of a result that nobody waits for."""
    if not done.cancelled():
        done.exception()
