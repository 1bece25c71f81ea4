"""
Readers of a stream: consumers, one after the other, each read ahead of its reader.

:class:`StreamReader` follows a stream; it makes a new consumer whenever the old one breaks. :class:`ConsumerPull` reads
one consumer: pull requests ahead of the reader, a callback that only collects, and a watchdog.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from penstock_bus.compat import timeout
from penstock_bus.logger import get_logger
from penstock_bus.nats.link import Link, ServerRefusal, unsubscribe
from penstock_bus.port import BusError, Gathering, LogWentBack, Unavailable

_AHEAD: Final = 4000  # messages asked for beyond what the reader took
_FORGOTTEN_S: Final = 10  # the server drops a reader's consumer this long after the reader is gone
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_APPLY_LOOKS: Final = 50
_APPLY_LOOK_S: Final = 0.1
_S: Final = 10**9
_PLAIN_REPLY: Final = 9  # tokens; with a domain there are more

_log = get_logger("penstock.bus")


class StreamState(msgspec.Struct, frozen=True):
    """How far a stream is."""

    last_seq: int


class _Config(msgspec.Struct, frozen=True):
    """A stream's configuration, as far as it is looked at."""

    num_replicas: int = 1


class StreamInfo(msgspec.Struct, frozen=True):
    """The server's answer about a stream, as far as it is looked at."""

    state: StreamState
    ts: str = ""
    config: _Config = _Config()


class _Made(msgspec.Struct, frozen=True):
    """The server's answer about a consumer that was made."""

    name: str


def position(reply: str) -> tuple[int, float, int]:
    """
    Return sequence, time of storing and messages behind, which JetStream writes into the reply subject.

    Examples
    --------
    >>> position("$JS.ACK.EVT.c1.1.7.3.1700000000250000000.2")
    (7, 1700000000.25, 2)
    """
    tokens = reply.split(".")
    at = 0 if len(tokens) == _PLAIN_REPLY else 2
    return int(tokens[at + 5]), int(tokens[at + 7]) // 1000 / 1e6, int(tokens[at + 8])


def deliveries(reply: str) -> tuple[int, int]:
    """
    Return how often this message was delivered, and how many deliveries the consumer has made up to this one.

    Examples
    --------
    >>> deliveries("$JS.ACK.hub.account.EVT.c1.1.7.3.1700000000250000000.2.token")
    (1, 3)
    """
    tokens = reply.split(".")
    at = 0 if len(tokens) == _PLAIN_REPLY else 2
    return int(tokens[at + 4]), int(tokens[at + 6])


def _without_hole(batch: Sequence[Msg], delivered: int) -> int:
    """Return the last message's count of deliveries; raise Stalled if one before it never came."""
    _, last = deliveries(batch[-1].reply)
    if deliveries(batch[0].reply)[1] != delivered + 1 or last != delivered + len(batch):
        raise ConsumerStalled(f"{last - delivered - len(batch)} messages were lost on the way")
    return last


class StreamReader:
    """
    One reader of a stream.

    Attributes
    ----------
    seen : int
        Sequence of the last message that was used; the user of the batches moves it.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        after_seq: int,
        patterns: Sequence[str],
        gathering: Gathering | None = None,
    ) -> None:
        self.seen = after_seq
        self._gathering = gathering
        self._link = link
        self._stream = stream
        self._patterns = list(patterns)

    async def batches(self) -> AsyncGenerator[list[Msg], None]:
        """
        Yield messages as they come, for ever; after a break, skip those that are not after ``seen``.

        Raises
        ------
        LogWentBack
            If the stream ends before ``seen``; nothing would come until others have written as much again.
        Unavailable
            If the connection is closed for good.
        """
        pause_s = _PAUSE_S
        while True:
            try:
                async with consume(
                    self._link, self._stream, await self._create(), _AHEAD, gathering=self._gathering
                ) as pull:
                    delivered = 0
                    while True:
                        batch = await pull.take()
                        delivered = _without_hole(batch, delivered)
                        yield batch
                        pause_s = _PAUSE_S
            except (ConsumerStalled, ServerRefusal, Unavailable) as reason:
                _log.info("consumer_made_again", stream=self._stream, seen=self.seen, reason=str(reason))
            await self._link.online()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _create(self) -> str:
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.seen + 1,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _FORGOTTEN_S * _S,
        }
        if self._patterns:
            config["filter_subjects"] = self._patterns
        await self._link.online()
        if self.seen:
            await check_end(self._link, self._stream, self.seen)
        request = {"stream_name": self._stream, "config": config}
        return (await self._link.api(f"CONSUMER.CREATE.{self._stream}", request, answer=_Made)).name


async def check_end(link: Link, stream: str, seen: int) -> None:
    """
    Check that a stream has not lost what was read of it.

    A server that has just been elected holds all that was confirmed, but shows it only once it has applied it: where
    there are several, the stream is given a moment.

    Raises
    ------
    LogWentBack
        If the stream ends before ``seen``.
    """
    for _ in range(_APPLY_LOOKS):
        info = await link.api(f"STREAM.INFO.{stream}", answer=StreamInfo)
        if info.state.last_seq >= seen:
            return
        if info.config.num_replicas == 1:
            break
        await asyncio.sleep(_APPLY_LOOK_S)
    raise LogWentBack(seen, info.state.last_seq)


HEARTBEAT_S: Final = 0.25
SILENCE_S: Final = 0.8  # three heartbeats and a little
EXPIRES_S: Final = 30.0
_MOST_BYTES: Final = 64 << 20  # of one request: messages may be large

# In a domain, its name and the account's come before the stream's, and a token may be the end.
_ACK: Final = re.compile(
    r"\$JS\.ACK\.(?:(?P<stream>[^.]+)|[^.]+\.[^.]+\.(?P<stream_in_domain>[^.]+))\.(?P<consumer>[^.]+)"
    r"(?:\.[0-9]+){5}(?(stream)|(?:\.[^.]+)?)"
)


class _Info(msgspec.Struct, frozen=True):
    """The server's answer about a consumer, as far as it is looked at."""

    num_pending: int
    num_ack_pending: int = 0
    config: dict[str, Any] = {}


def is_of(reply: str, stream: str, consumer: str) -> bool:
    """
    Say whether a message's reply subject is that of a delivery by this consumer.

    Examples
    --------
    >>> is_of("$JS.ACK.EVT.c1.1.7.3.1700000000250000000.2", "EVT", "c1"), is_of("x", "EVT", "c1")
    (True, False)
    >>> is_of("$JS.ACK.hub.account.EVT.c1.1.7.3.1700000000250000000.2.token", "EVT", "c1")
    True
    >>> is_of("$JS.ACK.EVT.c1.1.7..1700000000250000000.2", "EVT", "c1")
    False
    """
    found = _ACK.fullmatch(reply)
    return found is not None and (found[1] or found[2]) == stream and found[3] == consumer


class ConsumerStalled(Exception):
    """The consumer delivers nothing any more; the reader has to make another."""


@asynccontextmanager
async def consume(
    link: Link,
    stream: str,
    consumer: str,
    ahead: int,
    leave: Callable[[Msg], None] | None = None,
    *,
    gathering: Gathering | None = None,
) -> AsyncIterator[ConsumerPull]:
    """
    Read one consumer while the context is open; at its end the server drops the requests that are under way.

    Parameters
    ----------
    ahead : int
        Messages on their way or waiting here, at most.
    leave : callable, optional
        Called at the end with each message that came and was not taken.
    gathering : Gathering, optional
        How long messages may gather on the server; without it they come one by one.

    Raises
    ------
    ConsumerStalled
        If the first messages cannot be asked for.
    """
    inbox = link.client.new_inbox()
    pull = ConsumerPull(link, stream, consumer, ahead, inbox, gathering=gathering)
    sub: Subscription | None = None
    link.on_lost.add(pull.lost)
    try:
        try:
            sub = await link.client.subscribe(inbox, cb=pull.received, pending_msgs_limit=0, pending_bytes_limit=0)
            await pull.ask()
        except (nats.errors.Error, OSError) as error:
            raise ConsumerStalled(f"could not ask for messages: {error}") from error
        yield pull
    finally:
        link.on_lost.discard(pull.lost)
        if sub is not None:
            await unsubscribe(sub)
        if leave is not None:
            for msg in pull.come:
                leave(msg)


class ConsumerPull:
    """
    One consumer that is read; made by :func:`consume`.

    It asks for messages in advance, never for more than ``ahead`` beyond what the reader took. So nothing overflows,
    and a slow reader holds the server back. Where messages may gather, it asks for the next one alone, and then for
    all that have gathered behind it.
    """

    def __init__(
        self, link: Link, stream: str, consumer: str, ahead: int, inbox: str, *, gathering: Gathering | None = None
    ) -> None:
        self._link, self._stream, self._consumer, self._ahead, self._inbox = link, stream, consumer, ahead, inbox
        self._gathering = gathering
        self._full = True  # there may be more on the server already, as at the beginning
        self._messages: list[Msg] = []
        self._asked = 0  # messages that open requests may still bring
        self._heartbeat = False
        self._broken = ""
        self._wake = asyncio.Event()

    @property
    def come(self) -> tuple[Msg, ...]:
        """The messages that have come and were not taken yet."""
        return tuple(self._messages)

    async def take(self) -> list[Msg]:
        """
        Return the messages that have come, at least one.

        Raises
        ------
        ConsumerStalled
            If the consumer is gone, the connection was lost, no heartbeat comes, or messages wait on the server that
            do not come.
        """
        if self._gathering is not None:
            await self._gather(self._gathering)
        else:
            await self._until(lambda: bool(self._messages))
        taken, self._messages = self._messages, []
        if self._gathering is None and self._asked <= self._ahead // 2 and not self._broken:
            await self.ask()
        return taken

    async def _gather(self, gathering: Gathering) -> None:
        """Have those messages that gather now; if there is none, the next one and those that gather behind it."""
        if not self._full:
            await gathering.wait()
        await self._fetch()
        while not self._messages:
            await self._ask(1)
            await self._until(lambda: bool(self._messages) or not self._asked)
            if self._messages and gathering.most_s() > 0:
                await gathering.wait()
                await self._fetch()
        self._full = len(self._messages) >= self._ahead

    async def _fetch(self) -> None:
        """Have what is on the server by now."""
        await self._ask(self._ahead, wait=False)
        await self._until(lambda: not self._asked)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._broken:
                raise ConsumerStalled(self._broken)
            self._wake.clear()
            try:
                async with timeout(SILENCE_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._check()

    async def ask(self) -> None:
        """Ask for as many messages as may be on their way; not where they gather, which :meth:`take` sees to."""
        if self._gathering is None:
            await self._ask(self._ahead - self._asked)

    async def _ask(self, wanted: int, *, wait: bool = True) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        self._asked += wanted
        request: dict[str, int] = {"batch": wanted, "max_bytes": _MOST_BYTES}
        if wait:
            request |= {"expires": int(EXPIRES_S * _S), "idle_heartbeat": int(HEARTBEAT_S * _S)}
        else:
            request |= {"no_wait": True}
            self._heartbeat = True  # the answer comes at once, and has none
        try:
            await self._link.client.publish(subject, msgspec.json.encode(request), reply=self._inbox)
        except (nats.errors.Error, OSError) as error:
            self._broken = f"could not ask for messages: {error}"

    async def received(self, msg: Msg) -> None:
        """Take a message, or what the server says of a request."""
        if msg.reply:  # only stored messages have one; whoever learns the inbox may send others
            if not is_of(msg.reply, self._stream, self._consumer):
                _log.warning("foreign_message_ignored", stream=self._stream, reply=msg.reply[:80])
                return
            self._messages.append(msg)
            self._asked -= 1
            self._wake.set()
        else:
            self._heartbeat |= "Status" in (msg.headers or {})
            await self._status(msg.headers or {})

    async def _status(self, headers: dict[str, str]) -> None:
        status, pending = headers.get("Status", ""), headers.get("Nats-Pending-Messages", "")
        if status in ("", "100"):
            return
        if status in ("404", "408") or pending:  # one request ended
            left = int(pending) if pending.isascii() and pending.isdigit() else self._asked
            self._asked -= min(left, self._asked)
            self._wake.set()
            if self._asked <= self._ahead // 2 and not self._messages:
                await self.ask()
            return
        self._fail(f"the server ended it: {headers.get('Description') or status}")

    async def _check(self) -> None:
        """Find out whether nothing came for a while because there is nothing."""
        if not self._heartbeat:
            raise ConsumerStalled(f"no heartbeat for {SILENCE_S} s")
        self._heartbeat = False
        try:
            info = await self._link.api(f"CONSUMER.INFO.{self._stream}.{self._consumer}", answer=_Info)
        except ServerRefusal as error:
            raise ConsumerStalled(str(error)) from error
        except BusError:
            return  # the heartbeats will tell
        if info.num_pending > 0 and not self._messages and self._may_have_more(info):
            raise ConsumerStalled(f"{info.num_pending} messages wait and do not come")

    def _may_have_more(self, info: _Info) -> bool:
        limit = info.config.get("max_ack_pending", -1)
        return self._asked > 0 and (limit <= 0 or info.num_ack_pending < limit)

    def lost(self) -> None:
        """Note that the connection was lost."""
        self._fail("the connection was lost")

    def _fail(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._wake.set()
