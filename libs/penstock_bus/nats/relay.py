"""
The relay: people read what they may see, and nothing else, through a service that knows what that is.

Somebody who may not read everything sends direct gets (:mod:`penstock_bus.nats.direct_get`) to
``penstock.p.USER.get.STREAM``, and asks nodes for output at ``penstock.p.USER.output.NODE``. :func:`relaying` asks
whether that may be, makes the get in its own name, and hands on what comes. A get has to name one entity; what it holds
is seen as a whole or not at all. How long a stream is, everybody may know.

Of each person a few reads are made at a time and so many wait, so that whoever reads slowly, or everything at once,
delays nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from penstock_bus.fair_semaphore import FairSemaphore
from penstock_bus.logger import get_logger
from penstock_bus.nats.link import TRY_S, Link, ReplyRow, unsubscribe
from penstock_bus.port import BusError
from penstock_log import subjects
from penstock_log.request_bodies import OutputRequest
from penstock_log.text import escaped

MayRead = Callable[[str, str], Awaitable[str]]
"""From a person's name and the subject of what they want to read: why not; empty where they may."""
Answer = Callable[[Msg], Awaitable[None]]
Refuse = Callable[[Msg, str, str], Awaitable[None]]
"""Refuses a read, with a code and a reason."""
QUEUE: Final = "relay"
FORBIDDEN: Final = "403"
_BAD: Final = "400"
_TOO_MANY: Final = "429"
_NODE_S: Final = 10.0
_AT_ONCE: Final = 32
AT_ONCE_OF_ONE: Final = 4
MOST_WAITING: Final = 1000
"""Reads of one person that wait for their turn; what comes beyond is refused."""
_MOST_ASKED_BYTES: Final = 4096
"""A longer question is none: it names one subject, or one job."""
_MOST_MESSAGES: Final = 1000
_MOST_BYTES: Final = 16 << 20
_BARE: Final = frozenset({"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Status", "Description"})
"""Headers that say how long a stream is, and nothing of what is in it."""


class _Get(msgspec.Struct, frozen=True, omit_defaults=True):
    """A direct get, as far as people may make one."""

    seq: int = 0
    batch: int = 0
    max_bytes: int = 0
    next_by_subj: str = ""
    last_by_subj: str = ""


_log = get_logger("penstock.bus")
_get: Final = msgspec.json.Decoder(_Get)


@asynccontextmanager
async def relaying(link: Link, may_read: MayRead) -> AsyncIterator[None]:
    """Answer people's gets while the context is open; replicas share them."""
    relay = _Relay(link, may_read)
    gets = subjects.by_anybody(f"{subjects.get('>')}")
    subs = [
        await link.client.subscribe(gets, queue=QUEUE, cb=relay.take_get),
        await link.client.subscribe(subjects.by_anybody(subjects.OUTPUTS), queue=QUEUE, cb=relay.take_output),
    ]
    await link.flush()
    try:
        yield
    finally:
        for sub in subs:
            await unsubscribe(sub)
        await relay.end()


class _Relay:
    """The reads that are being answered, and those that wait."""

    def __init__(self, link: Link, may_read: MayRead) -> None:
        self._link, self._may_read = link, may_read
        self._running: set[asyncio.Task[None]] = set()
        self._slots = FairSemaphore(_AT_ONCE, AT_ONCE_OF_ONE)
        self._waiting: Counter[str] = Counter()

    async def take_get(self, msg: Msg) -> None:
        """Take a get, to be answered beside others."""
        await self._take(msg, self._answer_get, self._refuse)

    async def take_output(self, msg: Msg) -> None:
        """Take a question to a node."""
        await self._take(msg, self._answer_output, self._refuse_request)

    async def end(self) -> None:
        """Give up what is not answered."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _take(self, msg: Msg, answer: Answer, refuse: Refuse) -> None:
        user, _ = subjects.asked_by(msg.subject)
        try:
            if len(msg.data) > _MOST_ASKED_BYTES:
                await refuse(msg, _BAD, f"expected {_MOST_ASKED_BYTES} bytes at most, got {len(msg.data)}")
            elif self._waiting[user] >= MOST_WAITING:
                most = f"{MOST_WAITING:,} are the most for one user, and {AT_ONCE_OF_ONE} are made at a time"
                there = f"{escaped(user)} has {self._waiting[user]:,} reads waiting already"
                await refuse(msg, _TOO_MANY, f"{there}; {most}; try again once some are answered")
            else:
                self._begin(user, msg, answer)
        except BusError as error:
            _log.warning("read_not_answered", error=str(error))

    def _begin(self, user: str, msg: Msg, answer: Answer) -> None:
        self._waiting[user] += 1
        task = asyncio.ensure_future(self._answered(user, msg, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answered(self, user: str, msg: Msg, answer: Answer) -> None:
        try:
            await self._slots.acquire(user)
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user]
        try:
            await answer(msg)
        except BusError as error:  # the log is away: the asker asks again
            _log.warning("read_not_answered", error=str(error))
        finally:
            self._slots.release(user)

    async def _answer_get(self, msg: Msg) -> None:
        user, asked = subjects.asked_by(msg.subject)
        stream, _, subject = asked.removeprefix(subjects.get("")).partition(".")
        try:
            request = _get.decode(msg.data) if msg.data else _Get()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            await self._refuse(msg, _BAD, f"not a direct get: {error}")
            return
        if subject:
            request = _Get(last_by_subj=subject)
        if request.last_by_subj and request.next_by_subj:
            await self._refuse(msg, _BAD, "expected last_by_subj or next_by_subj, and not both")
            return
        wanted = request.last_by_subj or request.next_by_subj
        request = msgspec.structs.replace(
            request,
            batch=min(request.batch, _MOST_MESSAGES),
            max_bytes=min(request.max_bytes or _MOST_BYTES, _MOST_BYTES),
        )
        if request.last_by_subj == subjects.STREAM_SUBJECTS.get(stream):
            await self._hand_on(msg.reply, stream, request, bare=True)
            return
        reason = await self._may_read(user, wanted)
        if reason:
            await self._refuse(msg, FORBIDDEN, reason)
            return
        await self._hand_on(msg.reply, stream, request)

    async def _hand_on(self, reply: str, stream: str, request: _Get, *, bare: bool = False) -> None:
        """Make a get, and send each message of the answer on, up to its end; only the headers of it if ``bare``."""
        call = self._link.replies.open(ReplyRow, f"$JS.API.DIRECT.GET.{stream}")
        try:
            await self._link.send(call, msgspec.json.encode(request))
            more = True
            while more:
                found = await call.next(TRY_S)
                headers = {key: text for key, text in (found.headers or {}).items() if not bare or key in _BARE}
                await self._link.publish(reply, b"" if bare else found.data, headers)
                more = not request.last_by_subj and "Status" not in (found.headers or {})
        except (BusError, TimeoutError):  # the asker asks again
            return
        finally:
            self._link.replies.close(call)

    async def _answer_output(self, msg: Msg) -> None:
        user, subject = subjects.asked_by(msg.subject)
        try:
            job_id = msgspec.json.decode(msg.data, type=OutputRequest).job_id
            reason = await self._may_read(user, subjects.logs(job_id))
        except (ValueError, RecursionError) as error:
            reason = f"not a question for output: {error}"
        if reason:
            await self._refuse_request(msg, FORBIDDEN, reason)
            return
        try:
            answer = await self._link.ask(subject, msg.data, timeout_s=_NODE_S)
        except BusError as error:
            await self._refuse_request(msg, "503", str(error))
        else:
            await self._link.publish(msg.reply, answer.data, answer.headers)

    async def _refuse(self, msg: Msg, status: str, reason: str) -> None:
        await self._link.publish(msg.reply, b"", {"Status": status, "Description": reason})

    async def _refuse_request(self, msg: Msg, code: str, reason: str) -> None:
        await self._link.publish(msg.reply, b"", {ERROR_CODE_HEADER: code, ERROR_HEADER: reason})
