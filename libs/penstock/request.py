"""
A request to the gateway, asked again until it is answered.

Asking twice must be as good as asking once: submissions carry their id from the first try, and the other commands and
all queries say what is to be, not what is to change. So a try whose answer is late is not waited for in silence, since
the gateway that had it may be gone: the same request goes out again beside it, and the first answer counts.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from typing import Final

import msgspec

from penstock_bus.port import BusError, NoResponders, RequestPort, ServiceError, Unavailable

_BACKOFF_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0
_NOT_NOW: Final = 503
_TOO_MANY: Final = 429


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """
    How patiently something is asked; all in seconds but for ``tries``.

    Attributes
    ----------
    timeout_s : float
        How long an answer may take over all tries.
    again_s : float
        After so long without an answer the same is asked again; twice as long after each further try.
    nobody_s : float
        How long no gateway may be there, as while it restarts, if none ever was.
    tries : int
        So often it is asked at least, however late the first refusal comes: a gateway that was cut off says so once the
        time is over, and its next answer would be the good one.
    not_now : bool
        Whether to ask again where the gateway says that it could not do it just now.
    """

    timeout_s: float
    again_s: float = 1.0
    nobody_s: float = 5.0
    tries: int = 3
    not_now: bool = True


class RetriedAnswer(msgspec.Struct, frozen=True):
    """What was answered, and after how many tries."""

    body: bytes
    tries: int


def new_id() -> str:
    """Return 8 letters and digits that are easy to read out: the id of a job or a sweep, chosen before it is asked."""
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()


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


def is_open(error: BusError) -> bool:
    """Return whether it is unknown after an error whether the command was carried out."""
    if isinstance(error, ServiceError):
        return error.code == _NOT_NOW and not error.body  # a body says what has surely not happened
    return isinstance(error, Unavailable) and not isinstance(error, NoResponders)


class _Request:
    def __init__(self, bus: RequestPort, subject: str, body: bytes, retries: RetryPolicy) -> None:
        self._bus, self._subject, self._body, self._retries = bus, subject, body, retries
        self._clock = asyncio.get_running_loop().time
        self._began = self._next_at = self._clock()
        self._end = self._began + retries.timeout_s
        self._under_way: set[asyncio.Task[bytes]] = set()
        self._tries, self._pause_s, self._backoff_s = 0, retries.again_s, _BACKOFF_S
        self._last: BusError | None = None
        self._reached = False

    async def run(self) -> RetriedAnswer:
        while True:
            if self._clock() >= self._next_at and self._may_ask():
                self._ask()
            if self._last is not None and not self._under_way and not self._may_ask():
                raise self._last
            until = self._next_at if self._may_ask() else self._end
            wait_s = max(until - self._clock(), 0.0)
            if not self._under_way:
                await asyncio.sleep(wait_s)
                continue
            done, self._under_way = await asyncio.wait(
                self._under_way,
                timeout=wait_s if self._may_ask() else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in sorted(done, key=lambda task: task.exception() is not None):  # an answer counts before refusals
                if (body := self._answer_of(task)) is not None:
                    return RetriedAnswer(body, self._tries)

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _may_ask(self) -> bool:
        if isinstance(self._last, NoResponders) and not self._reached:
            return self._clock() < min(self._began + self._retries.nobody_s, self._end)
        late = isinstance(self._last, ServiceError) and self._tries < self._retries.tries
        return not self._tries or late or self._clock() < self._end

    def _ask(self) -> None:
        left_s = max(self._end - self._clock(), self._retries.again_s)
        self._tries += 1
        asked = asyncio.create_task(self._bus.request(self._subject, self._body, left_s))
        asked.add_done_callback(_note_error)
        self._under_way.add(asked)
        self._next_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _answer_of(self, task: asyncio.Task[bytes]) -> bytes | None:
        """Return the answer of a try; None where it is to be asked again."""
        soon = not self._under_way  # nobody is left who may answer
        try:
            return task.result()
        except NoResponders as error:
            self._reached |= bool(self._under_way)  # somebody had those, and is gone
            self._last, soon = self._last if self._reached else error, True
        except ServiceError as error:
            if error.code == _TOO_MANY and self._under_way:
                self._last = error  # one try too many is no answer to those before it
                self._next_at = max(self._next_at, self._clock() + _LONGEST_PAUSE_S)
                return None
            if not (self._retries.not_now and is_open(error)):
                raise
            self._last, self._reached = error, True
        except Unavailable as error:
            if not isinstance(self._last, ServiceError):  # what the gateway said tells more than its silence afterwards
                self._last = error
            self._reached = True
        if soon:
            self._next_at = min(self._next_at, self._clock() + self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, self._retries.again_s)
        return None


def _note_error(task: asyncio.Task[bytes]) -> None:
    """Take the error of a try that nobody waits for any more, which asyncio would print otherwise."""
    if not task.cancelled():
        task.exception()
