"""Following a stream: a consumer at a time, and a new one whenever the old one breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import msgspec
from nats.aio.msg import Msg

from penstock_bus.logger import get_logger
from penstock_bus.nats.faults import Refused
from penstock_bus.nats.link import Link
from penstock_bus.nats.pull import Pull, Stalled
from penstock_bus.port import Unavailable

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
        raise Stalled(f"{last - delivered - len(batch)} messages were lost on the way")
    return last


class Reader:
    """
    One reader of a stream.

    Attributes
    ----------
    seen : int
        Sequence of the last message that was used; whoever uses the batches moves it.
    """

    def __init__(self, link: Link, stream: str, after_seq: int, patterns: Sequence[str]) -> None:
        """Start behind a sequence."""
        self.seen = after_seq
        self._link = link
        self._stream = stream
        self._patterns = list(patterns)

    async def batches(self) -> AsyncGenerator[list[Msg], None]:
        """
        Yield messages as they come, for ever; after a break some may come twice, so skip what is not after ``seen``.

        Raises
        ------
        Unavailable
            If the connection is closed for good.
        """
        pause_s = _PAUSE_S
        while True:
            pull: Pull | None = None
            try:
                pull, delivered = await self._consume(), 0
                while True:
                    batch = await pull.take()
                    delivered = _without_hole(batch, delivered)
                    yield batch
                    pause_s = _PAUSE_S
            except (Stalled, Refused, Unavailable) as reason:
                _log.info("consumer_made_again", stream=self._stream, seen=self.seen, reason=str(reason))
            finally:
                if pull is not None:
                    await pull.close()
            await self._link.online()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _consume(self) -> Pull:
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
        pull = Pull(self._link, self._stream, made.name, _AHEAD)
        await pull.open()
        return pull
