"""Reading a consumer: pull requests ahead of the reader, a callback that only collects, and a watchdog."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from penstock_bus.logger import get_logger
from penstock_bus.nats.faults import Refused
from penstock_bus.nats.link import Link
from penstock_bus.port import BusError

HEARTBEAT_S: Final = 0.25
SILENCE_S: Final = 0.8  # three heartbeats and a little
EXPIRES_S: Final = 30.0
_MOST_BYTES: Final = 64 << 20  # of one request: messages may be large
_S: Final = 10**9
_log = get_logger("penstock.bus")


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
    Say whether a message's reply subject is that of a delivery by this consumer, and not somebody else's word.

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


class Stalled(Exception):
    """This consumer gives nothing any more; make another."""


class Pull:
    """
    One consumer being read.

    Messages are asked for in advance, never more than ``batch`` beyond what the reader took: so nothing overflows
    and a slow reader holds the server back.

    Parameters
    ----------
    link : Link
    stream, consumer : str
    batch : int
        Messages on their way or waiting here.
    """

    def __init__(self, link: Link, stream: str, consumer: str, batch: int) -> None:
        """Prepare; :meth:`open` begins."""
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
        """What has come and nobody took yet."""
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
            raise Stalled(f"could not ask for messages: {error}") from error

    async def close(self) -> list[Msg]:
        """Stop listening, so that the server forgets what was asked for; return what nobody took."""
        self._link.on_lost.discard(self._lost)
        if self._sub is not None and not self._link.client.is_closed:
            with suppress(nats.errors.Error, OSError):  # the connection is gone, and the subscription with it
                await self._sub.unsubscribe()
        left, self._messages = self._messages, []
        return left

    async def take(self) -> list[Msg]:
        """
        Return what has come, at least one message.

        Raises
        ------
        Stalled
            If the consumer is gone, the connection was lost, no heartbeat comes, or messages wait on the server that
            do not come.
        """
        while not self._messages:
            if self._broken:
                raise Stalled(self._broken)
            self._wake.clear()
            try:
                async with asyncio.timeout(SILENCE_S):
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
        """Nothing came for a while: is that because there is nothing?"""
        if not self._heard:
            raise Stalled(f"no heartbeat for {SILENCE_S} s")
        self._heard = False
        try:
            info = await self._link.api(f"CONSUMER.INFO.{self._stream}.{self.consumer}", answer=_Info)
        except Refused as error:
            raise Stalled(str(error)) from error
        except BusError:
            return  # the heartbeats will tell
        if info.num_pending > 0 and not self._messages and self._may_have_more(info):
            raise Stalled(f"{info.num_pending} messages wait and do not come")

    def _may_have_more(self, info: _Info) -> bool:
        limit = info.config.get("max_ack_pending", -1)
        return self._asked > 0 and (limit <= 0 or info.num_ack_pending < limit)

    def _lost(self) -> None:
        self._fail("the connection was lost")

    def _fail(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._wake.set()
