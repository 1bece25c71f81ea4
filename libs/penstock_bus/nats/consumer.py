"""
Readers of a stream: consumers, one after the other, each read ahead of its reader.

:class:`StreamReader` follows a stream; it makes a new consumer whenever the old one breaks. :class:`ConsumerPull` reads
one consumer: pull requests ahead of the reader, a callback that only collects, and a watchdog.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from penstock_bus.compat import timeout
from penstock_bus.logger import get_logger
from penstock_bus.nats.link import Link, ServerRefusal
from penstock_bus.port import BusError, Unavailable

_AHEAD: Final = 4000  # messages asked for beyond what the reader took
_FORGOTTEN_S: Final = 10  # the server drops a reader's consumer this long after the reader is gone
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_S: Final = 10**9
_PLAIN_REPLY: Final = 9  # tokens; with a domain there are more

_log = get_logger("penstock.bus")


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
    if len(tokens) == _PLAIN_REPLY:
        return int(tokens[5]), int(tokens[7]) // 1000 / 1e6, int(tokens[8])
    return int(tokens[7]), int(tokens[9]) // 1000 / 1e6, int(tokens[10])


def delivered_as(reply: str) -> int:
    """
    Return the count of a consumer's deliveries up to this one, which JetStream writes into the reply subject too.

    Examples
    --------
    >>> delivered_as("$JS.ACK.EVT.c1.1.7.3.1700000000250000000.2")
    3
    """
    tokens = reply.split(".")
    return int(tokens[6 if len(tokens) == _PLAIN_REPLY else 8])


def _without_hole(batch: Sequence[Msg], delivered: int) -> int:
    """Return the last message's count of deliveries; raise Stalled if one before it never came."""
    last = delivered_as(batch[-1].reply)
    if delivered_as(batch[0].reply) != delivered + 1 or last != delivered + len(batch):
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

    def __init__(self, link: Link, stream: str, after_seq: int, patterns: Sequence[str]) -> None:
        self.seen = after_seq
        self._link = link
        self._stream = stream
        self._patterns = list(patterns)

    async def batches(self) -> AsyncGenerator[list[Msg], None]:
        """
        Yield messages as they come, for ever; after a break, skip those that are not after ``seen``.

        Raises
        ------
        Unavailable
            If the connection is closed for good.
        """
        pause_s = _PAUSE_S
        while True:
            pull: ConsumerPull | None = None
            try:
                pull, delivered = await self._consume(), 0
                while True:
                    batch = await pull.take()
                    delivered = _without_hole(batch, delivered)
                    yield batch
                    pause_s = _PAUSE_S
            except (ConsumerStalled, ServerRefusal, Unavailable) as reason:
                _log.info("consumer_made_again", stream=self._stream, seen=self.seen, reason=str(reason))
            finally:
                if pull is not None:
                    await pull.close()
            await self._link.online()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _consume(self) -> ConsumerPull:
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
        request = {"stream_name": self._stream, "config": config}
        made = await self._link.api(f"CONSUMER.CREATE.{self._stream}", request, answer=_Made)
        pull = ConsumerPull(self._link, self._stream, made.name, _AHEAD)
        await pull.open()
        return pull


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


class ConsumerPull:
    """
    One consumer being read.

    It asks for messages in advance, never for more than ``batch`` beyond what the reader took. So nothing overflows,
    and a slow reader holds the server back.

    Parameters
    ----------
    link : Link
    stream, consumer : str
    batch : int
        Messages on their way or waiting here.
    """

    def __init__(self, link: Link, stream: str, consumer: str, batch: int) -> None:
        self.consumer = consumer
        self._link = link
        self._stream = stream
        self._batch = batch
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = link.client.new_inbox()
        self._sub: Subscription | None = None
        self._messages: list[Msg] = []
        self._asked = 0  # messages that open requests may still bring
        self._heard = False
        self._broken = ""
        self._wake = asyncio.Event()

    @property
    def come(self) -> tuple[Msg, ...]:
        """The messages that have come and were not taken yet."""
        return tuple(self._messages)

    async def open(self) -> None:
        """Subscribe and ask for the first messages."""
        self._link.on_lost.add(self._lost)
        try:
            self._sub = await self._link.client.subscribe(
                self._inbox, cb=self._received, pending_msgs_limit=0, pending_bytes_limit=0
            )
            await self._ask()
        except (nats.errors.Error, OSError) as error:
            raise ConsumerStalled(f"could not ask for messages: {error}") from error

    async def close(self) -> list[Msg]:
        """Stop listening, so that the server drops the pull requests; return the messages that were not taken."""
        self._link.on_lost.discard(self._lost)
        if self._sub is not None and not self._link.client.is_closed:
            with suppress(nats.errors.Error, OSError):  # the connection is gone, and the subscription with it
                await self._sub.unsubscribe()
        left, self._messages = self._messages, []
        return left

    async def take(self) -> list[Msg]:
        """
        Return the messages that have come, at least one.

        Raises
        ------
        ConsumerStalled
            If the consumer is gone, the connection was lost, no heartbeat comes, or messages wait on the server that
            do not come.
        """
        while not self._messages:
            if self._broken:
                raise ConsumerStalled(self._broken)
            self._wake.clear()
            try:
                async with timeout(SILENCE_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._check()
        taken, self._messages = self._messages, []
        if self._asked <= self._batch // 2 and not self._broken:
            await self._ask()
        return taken

    async def _ask(self) -> None:
        wanted = self._batch - self._asked
        self._asked += wanted
        request = {
            "batch": wanted,
            "max_bytes": _MOST_BYTES,
            "expires": int(EXPIRES_S * _S),
            "idle_heartbeat": int(HEARTBEAT_S * _S),
        }
        try:
            await self._link.client.publish(self._next, msgspec.json.encode(request), reply=self._inbox)
        except (nats.errors.Error, OSError) as error:
            self._broken = f"could not ask for messages: {error}"

    async def _received(self, msg: Msg) -> None:
        if msg.reply:  # only stored messages have one; whoever learns the inbox may send others
            if not is_of(msg.reply, self._stream, self.consumer):
                _log.warning("foreign_message_ignored", stream=self._stream, reply=msg.reply[:80])
                return
            self._messages.append(msg)
            self._asked -= 1
            self._wake.set()
        else:
            self._heard |= "Status" in (msg.headers or {})
            await self._status(msg.headers or {})

    async def _status(self, headers: dict[str, str]) -> None:
        status, pending = headers.get("Status", ""), headers.get("Nats-Pending-Messages", "")
        if status in ("", "100"):
            return
        if status in ("404", "408") or pending:  # one request ended
            left = int(pending) if pending.isascii() and pending.isdigit() else self._asked
            self._asked -= min(left, self._asked)
            if self._asked <= self._batch // 2 and not self._messages:
                await self._ask()
            return
        self._fail(f"the server ended it: {headers.get('Description') or status}")

    async def _check(self) -> None:
        """Find out whether nothing came for a while because there is nothing."""
        if not self._heard:
            raise ConsumerStalled(f"no heartbeat for {SILENCE_S} s")
        self._heard = False
        try:
            info = await self._link.api(f"CONSUMER.INFO.{self._stream}.{self.consumer}", answer=_Info)
        except ServerRefusal as error:
            raise ConsumerStalled(str(error)) from error
        except BusError:
            return  # the heartbeats will tell
        if info.num_pending > 0 and not self._messages and self._may_have_more(info):
            raise ConsumerStalled(f"{info.num_pending} messages wait and do not come")

    def _may_have_more(self, info: _Info) -> bool:
        limit = info.config.get("max_ack_pending", -1)
        return self._asked > 0 and (limit <= 0 or info.num_ack_pending < limit)

    def _lost(self) -> None:
        self._fail("the connection was lost")

    def _fail(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._wake.set()
