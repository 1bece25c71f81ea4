"""
Direct gets: a stream is read, and followed, without a consumer.

:func:`stored` reads batches of what a stream holds, :func:`newest` one message, and :func:`from_leader` one message
that is never stale. :func:`tail_stream` follows a stream as clients do: it reads by direct gets, and takes what is
published meanwhile as the sign to look again.

Clients may not make consumers, because a consumer's owner can have the server publish to any subject (docs/adr/0011). A
message that a client hears on the stream's own subjects is not stored yet, or was refused. So it is never used; only
stored messages are.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from nats.aio.msg import Msg

from penstock_bus.compat import aclosing, timeout
from penstock_bus.nats.link import NOT_FOUND, PAUSE_S, TRY_S, ConnectionLost, Link, ReplyRow, ServerRefusal, unsubscribe
from penstock_bus.port import StoredMessage, Unauthorized, Unavailable
from penstock_bus.stored_messages import matches_any
from penstock_log import subjects as names

_BATCH: Final = 1000
_BATCH_BYTES: Final = 16 << 20
REFUSED: Final = "403"
ENDS: Final = ("204", "404")  # end of the batch, nothing found


class StreamMessage(StoredMessage, frozen=True, kw_only=True):
    """A message with its headers; ``pending`` of those that were asked for stood behind it."""

    headers: dict[str, str]
    pending: int = 0


class _Message(msgspec.Struct, frozen=True):
    """One message as the API gives it."""

    seq: int
    subject: str
    time: str
    data: str = ""
    hdrs: str = ""


class _Got(msgspec.Struct, frozen=True):
    """The server's answer to a request for one message."""

    message: _Message


async def stored(link: Link, stream: str, subject: str, after_seq: int = 0) -> AsyncGenerator[StreamMessage, None]:
    """
    Yield what a stream holds of a subject or pattern after a sequence, in order.

    It goes on where it stopped after the connection broke, and holds at most one batch in memory.

    Raises
    ------
    Unavailable
        If nothing comes for ``link.timeout_s``.
    """
    clock = asyncio.get_running_loop().time
    seq, end_s, more = after_seq, clock() + link.timeout_s, True
    while more:
        await link.online(max(end_s - clock(), 0.0))
        try:
            async with aclosing(_batch(link, stream, subject, seq)) as messages:
                async for message in messages:
                    seq = message.seq
                    yield message
                    end_s = clock() + link.timeout_s
            more = False
        except _More:
            pass
        except (TimeoutError, Unavailable) as error:
            if clock() >= end_s:
                raise Unavailable(f"cannot read {subject} from {stream}: {str(error) or 'no answer'}") from error
            await asyncio.sleep(PAUSE_S)


class _More(Exception):
    """A batch ended, and there is more behind it."""


async def _batch(link: Link, stream: str, subject: str, after_seq: int) -> AsyncGenerator[StreamMessage, None]:
    call = link.replies.open(ReplyRow, f"$JS.API.DIRECT.GET.{stream}")
    request = {"seq": after_seq + 1, "batch": _BATCH, "max_bytes": _BATCH_BYTES, "next_by_subj": subject}
    try:
        await link.send(call, msgspec.json.encode(request))
        while (msg := await call.next(TRY_S)).headers and "Status" not in msg.headers:
            yield of_message(msg)
    finally:
        link.replies.close(call)
    end = msg.headers or {}
    status = end.get("Status", "")
    if status == REFUSED:
        raise Unauthorized(end.get("Description", "this may not be read"))
    if status not in ENDS:
        raise Unavailable(end.get("Description") or status or "no answer")
    if status == ENDS[0] and end.get("Nats-Num-Pending", "0") != "0":
        raise _More


async def newest(link: Link, stream: str, subject: str) -> StreamMessage | None:
    """Return the last message of an exact subject."""
    return _newest(subject, await link.patiently(f"$JS.API.DIRECT.GET.{stream}.{subject}", b""))


async def newest_of(link: Link, stream: str, pattern: str) -> StreamMessage | None:
    """Return the last message of a pattern of subjects."""
    request = msgspec.json.encode({"last_by_subj": pattern})
    return _newest(pattern, await link.patiently(f"$JS.API.DIRECT.GET.{stream}", request))


def _newest(subject: str, msg: Msg) -> StreamMessage | None:
    status = (msg.headers or {}).get("Status", "")
    if status == "404":
        return None
    if status == REFUSED:
        raise Unauthorized((msg.headers or {}).get("Description", "this may not be read"))
    if status:
        raise Unavailable(f"cannot read {subject}: {(msg.headers or {}).get('Description', status)}")
    return of_message(msg)


async def from_leader(link: Link, stream: str, request: dict[str, Any]) -> StreamMessage | None:
    """Return the message that a request names (``last_by_subj``, or ``seq`` and ``next_by_subj``), never stale."""
    try:
        found = (await link.api(f"STREAM.MSG.GET.{stream}", request, answer=_Got)).message
    except ServerRefusal as error:
        if error.err_code in NOT_FOUND:
            return None
        raise
    try:
        return StreamMessage(
            seq=found.seq,
            subject=found.subject,
            stored_s=seconds(found.time),
            body=base64.b64decode(found.data),
            headers=_headers(base64.b64decode(found.hdrs).decode(errors="replace")),
        )
    except ValueError as error:
        raise _foreign(error) from error


def of_message(msg: Msg) -> StreamMessage:
    """Return the stored message of an answer to a direct get."""
    headers = msg.headers or {}
    try:
        return StreamMessage(
            seq=int(headers["Nats-Sequence"]),
            subject=headers["Nats-Subject"],
            stored_s=seconds(headers["Nats-Time-Stamp"]),
            body=msg.data,
            headers=headers,
            pending=int(headers.get("Nats-Num-Pending", "0")),
        )
    except (KeyError, ValueError) as error:
        raise _foreign(error) from error


def _foreign(error: Exception) -> ConnectionLost:
    return ConnectionLost(f"what answered is no stored message: {error!r}")


def _headers(text: str) -> dict[str, str]:
    lines = (line.partition(": ") for line in text.split("\r\n")[1:] if line)
    return {key: value for key, _, value in lines}


def seconds(rfc3339: str) -> float:
    """Return a time as the server writes it, in seconds since the epoch."""
    if sys.version_info >= (3, 11):
        return datetime.fromisoformat(rfc3339).timestamp()
    else:  # noqa: RET505 - the type checker takes it for another Python's
        whole, _, fraction = rfc3339.rstrip("Z").partition(".")
        return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00").timestamp()


FIRST_S: Final = 0.005
LOOK_S: Final = 1.0
"""How long to wait at most before looking again: a sign may come before its message is stored, or be lost."""


async def tail_stream(
    link: Link, stream: str, patterns: Sequence[str] = (), after_seq: int = 0
) -> AsyncGenerator[StreamMessage, None]:
    """
    Yield what a stream holds after a sequence, then what is stored from now on, in order, for ever.

    Parameters
    ----------
    patterns : sequence of str
        What to yield; empty means all.

    Raises
    ------
    Unavailable
        If the connection is closed for good.
    """
    everything = names.STREAM_SUBJECTS[stream]
    wanted = patterns[0] if len(patterns) == 1 else everything
    stirred, seen, pause_s = asyncio.Event(), after_seq, FIRST_S

    async def stir(_: Msg) -> None:
        stirred.set()

    await link.online(link.timeout_s)
    sub = await link.client.subscribe(wanted, cb=stir, pending_msgs_limit=0, pending_bytes_limit=0)
    try:
        while True:
            await link.online()
            stirred.clear()
            with suppress(Unavailable):  # what was not read is read when the server is back
                async with aclosing(stored(link, stream, wanted, seen)) as messages:
                    async for message in messages:
                        seen = message.seq
                        if matches_any(patterns, message.subject):
                            yield message
            pause_s = await _pause(stirred, pause_s)
    finally:
        await unsubscribe(sub)


async def _pause(stirred: asyncio.Event, pause_s: float) -> float:
    """Wait for a sign or the end of a pause; return the next pause: short after a sign, then longer."""
    try:
        async with timeout(pause_s):
            await stirred.wait()
    except TimeoutError:
        return min(2 * pause_s, LOOK_S)
    return FIRST_S
