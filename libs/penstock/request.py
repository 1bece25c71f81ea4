"""A request to the gateway on an event loop, asked again as :mod:`penstock.retries` says until it is answered."""

from __future__ import annotations

import asyncio
from typing import Optional

from penstock.retries import RetriedAnswer, Retries, RetryPolicy
from penstock_bus.errors import BusError
from penstock_bus.port import RequestPort


async def answered(bus: RequestPort, subject: str, body: bytes, retries: RetryPolicy) -> RetriedAnswer:
    """
    Ask until there is an answer.

    Raises
    ------
    ServiceError
        What the gateway refused; with code 503 only after the last try, also where that one was not answered.
    NoResponders
        If no gateway was there in all that time.
    Unavailable
        If no answer came, or the server could not be reached.
    """
    request = _Request(bus, subject, body, retries)
    try:
        return await request.run()
    finally:
        await request.close()


class _Request:
    def __init__(self, bus: RequestPort, subject: str, body: bytes, policy: RetryPolicy) -> None:
        self._bus, self._subject, self._body = bus, subject, body
        self._clock = asyncio.get_running_loop().time
        self._retries = Retries(policy, self._clock())
        self._under_way: set[asyncio.Task[bytes]] = set()

    async def run(self) -> RetriedAnswer:
        while True:
            if self._retries.is_due(self._clock()):
                self._ask()
            wait_s = self._retries.wait_s(self._clock(), under_way=bool(self._under_way))
            if not self._under_way:
                await asyncio.sleep(wait_s or 0.0)
                continue
            done, self._under_way = await asyncio.wait(
                self._under_way, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in sorted(done, key=lambda task: task.exception() is not None):  # an answer counts before refusals
                if (body := self._answer_of(task)) is not None:
                    return RetriedAnswer(body, self._retries.tries)

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _ask(self) -> None:
        left_s = self._retries.begin_try(self._clock())
        asked = asyncio.create_task(self._bus.request(self._subject, self._body, left_s))
        asked.add_done_callback(_note_error)
        self._under_way.add(asked)

    def _answer_of(self, task: asyncio.Task[bytes]) -> Optional[bytes]:
        """Return the answer of a try; None where it is to be asked again."""
        try:
            return task.result()
        except BusError as error:
            self._retries.refuse(error, self._clock(), under_way=bool(self._under_way))
            return None


def _note_error(task: asyncio.Task[bytes]) -> None:
    """Take the error of a try that nobody waits for any more, which asyncio would print otherwise."""
    if not task.cancelled():
        task.exception()
