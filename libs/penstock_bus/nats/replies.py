"""Answers on the way: one inbox for all calls of a connection."""

from __future__ import annotations

import asyncio
from collections import deque

from nats.aio.client import Client
from nats.aio.msg import Msg


class One:
    """A call that expects one answer."""

    __slots__ = ("future", "subject", "token")

    def __init__(self, subject: str, token: str) -> None:
        """Wait for the first message under the token."""
        self.subject = subject
        self.token = token
        self.future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    def put(self, msg: Msg) -> None:
        """Take the answer."""
        if not self.future.done():
            self.future.set_result(msg)

    def fail(self, error: Exception) -> None:
        """There will be none."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # mark as seen: the caller may have left


class Many:
    """A call that expects a row of answers."""

    __slots__ = ("_error", "_messages", "_wake", "subject", "token")

    def __init__(self, subject: str, token: str) -> None:
        """Collect the messages under the token."""
        self.subject = subject
        self.token = token
        self._messages: deque[Msg] = deque()
        self._wake = asyncio.Event()
        self._error: Exception | None = None

    def put(self, msg: Msg) -> None:
        """Take one answer."""
        self._messages.append(msg)
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """There will be no more."""
        self._error = error
        self._wake.set()

    async def next(self, timeout_s: float) -> Msg:
        """Return the next answer; raise what :meth:`fail` was told, or TimeoutError."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        return self._messages.popleft()


class Replies:
    """All calls that wait on one connection."""

    def __init__(self, client: Client) -> None:
        """Choose the inbox."""
        self._client = client
        self._prefix = client.new_inbox() + "."
        self._waiting: dict[str, One | Many] = {}
        self._last_token = 0

    async def start(self) -> None:
        """Listen on the inbox; without limits, since each message was asked for."""
        await self._client.subscribe(self._prefix + "*", cb=self._received, pending_msgs_limit=0, pending_bytes_limit=0)

    def one(self, subject: str) -> One:
        """Open a call with one answer."""
        self._last_token += 1
        call = One(subject, str(self._last_token))
        self._waiting[call.token] = call
        return call

    def many(self, subject: str) -> Many:
        """Open a call with a row of answers."""
        self._last_token += 1
        call = Many(subject, str(self._last_token))
        self._waiting[call.token] = call
        return call

    def inbox(self, call: One | Many) -> str:
        """Return the reply subject of a call."""
        return self._prefix + call.token

    def close(self, call: One | Many) -> None:
        """Forget a call."""
        self._waiting.pop(call.token, None)

    def fail(self, error: Exception, subject: str = "") -> None:
        """End all calls, or those to one subject (in lower case), with an error."""
        for call in list(self._waiting.values()):
            if not subject or call.subject.lower() == subject:
                call.fail(error)

    async def _received(self, msg: Msg) -> None:
        call = self._waiting.get(msg.subject[len(self._prefix) :])
        if call is not None:
            call.put(msg)
