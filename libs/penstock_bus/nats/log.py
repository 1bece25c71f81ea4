"""
The log over NATS: appends, followers, rejections, and the output and the metrics of jobs.

:class:`AppendWindow` appends many commits with a window of open acknowledgements, and :func:`append_batch` appends them
as one. :class:`NatsLogClient` is the part of the port that reads and writes streams. :func:`settled` turns an
acknowledgement into a sequence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final

import msgspec

from penstock_bus.compat import aclosing, timeout
from penstock_bus.logger import get_logger
from penstock_bus.nats import direct_get
from penstock_bus.nats.atomic_batch import send_batch
from penstock_bus.nats.consumer import StreamInfo, StreamReader, position
from penstock_bus.nats.direct_get import tail_stream
from penstock_bus.nats.link import (
    NOT_YET,
    PAUSE_S,
    TRY_S,
    WRONG_LAST_SEQUENCE,
    Ack,
    ApiError,
    ConnectionLost,
    Link,
    NatsClient,
    SingleReply,
    decode_ack,
    fault,
)
from penstock_bus.port import (
    Append,
    BatchRefused,
    BusError,
    Conflict,
    Delivery,
    Gathering,
    LogLine,
    LogPort,
    LogTrimPort,
    OutputPort,
    Rejection,
    RejectionPort,
    SeriesPort,
    Shadowed,
    ShadowPort,
    StoredMessage,
    Timeout,
    TooLarge,
    TrimDenied,
    Unavailable,
)
from penstock_bus.stored_messages import delivery, rejected_as
from penstock_log import CodecError, MisplacedFact, encode, tracing
from penstock_log import subjects as names
from penstock_log.request_bodies import OutputEnd, OutputOffset, header_of, of_header

_NEWEST: Final = 1000
_REASON: Final = "Penstock-Reason"
_ORIGIN: Final = "Penstock-Origin"
_REASON_CHARS: Final = 400
_COPIED: Final = "Nats-Stream"
"""
A header of what the server answers to a get. Who may ask can have the answer sent to any subject; no commit has it.
"""
_PLACE: Final = "Penstock-Place"

_log = get_logger("penstock.bus")


class _Purged(msgspec.Struct, frozen=True):
    """The server's answer about what it has removed."""

    purged: int = 0


MSG_ID: Final = "Nats-Msg-Id"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


class AppendWindow:
    """
    A window of commits that are sent before earlier ones are acknowledged.

    Commits of one subject never overtake each other, even over a disconnect: the next is sent when the one before is
    acknowledged.
    """

    def __init__(self, link: Link, items: Sequence[Append]) -> None:
        self._link = link
        self._items = items
        self._bodies = [encode(item.commit) for item in items]
        self._seqs = [0] * len(items)
        self._open: deque[tuple[int, SingleReply]] = deque()
        self._subjects: dict[str, SingleReply] = {}
        self._again: list[int] = []

    async def run(self) -> list[int]:
        """Append all; after a loss, send the unacknowledged ones again in the same order under the same ids."""
        for item, body in zip(self._items, self._bodies):
            self._link.check_size(item.subject, body)
        clock = asyncio.get_running_loop().time
        todo, end_s = list(range(len(self._items))), clock() + self._link.timeout_s
        while todo:
            await self._link.online(max(end_s - clock(), 0.0))
            await self._round(todo)
            if len(self._again) < len(todo):
                end_s = clock() + self._link.timeout_s
            elif clock() >= end_s:
                raise Unavailable(f"{len(todo)} commits were not acknowledged; try again with the same ids")
            todo, self._again = self._again, []
            if todo:
                await asyncio.sleep(PAUSE_S)
        return self._seqs

    async def _round(self, todo: list[int]) -> None:
        try:
            for position, i in enumerate(todo):
                await self._make_way(self._items[i].subject)
                if self._again or not await self._send(i):
                    await self._settle_all()
                    self._again = sorted({*self._again, *todo[position:]})
                    return
            await self._settle_all()
        finally:
            for _, call in self._open:
                self._link.replies.close(call)
            self._open.clear()
            self._subjects.clear()

    async def _make_way(self, subject: str) -> None:
        before = self._subjects.get(subject)
        while self._open and (len(self._open) >= WINDOW or (before is not None and not before.future.done())):
            await self._settle()

    async def _send(self, i: int) -> bool:
        item = self._items[i]
        call = self._link.replies.open(SingleReply, item.subject)
        self._open.append((i, call))
        self._subjects[item.subject] = call
        try:
            await self._link.send(call, self._bodies[i], headers_of(item))
        except ConnectionLost:
            return False
        return self._link.is_online

    async def _settle_all(self) -> None:
        while self._open:
            await self._settle()

    async def _settle(self) -> None:
        """Take the oldest acknowledgement; once one is overdue, do not wait for the others."""
        i, call = self._open.popleft()
        try:
            if not call.future.done():
                async with timeout(0 if self._again else TRY_S):
                    await asyncio.shield(call.future)
            ack = decode_ack(call.future.result())
        except (TimeoutError, ConnectionLost):
            self._again.append(i)
            return
        finally:
            self._link.replies.close(call)
        if ack.error is not None and ack.error.err_code in _AGAIN:
            self._again.append(i)
            return
        self._seqs[i] = ack.seq if ack.error is None else await settled(self._link, self._items[i], ack)


class NatsLogClient(NatsClient, LogPort, LogTrimPort, RejectionPort, OutputPort, SeriesPort, ShadowPort):
    """Appends, followers, rejections, and the output and the metrics of jobs."""

    async def append(self, item: Append) -> int:
        ack = await self.link.store(item.subject, encode(item.commit), headers_of(item))
        return await settled(self.link, item, ack)

    async def append_many(self, items: Sequence[Append]) -> list[int]:
        return await AppendWindow(self.link, items).run()

    async def append_all(self, items: Sequence[Append]) -> list[int]:
        return await append_batch(self.link, items)

    async def follow(
        self, after_seq: int = 0, subjects: Sequence[str] = (), gathering: Gathering | None = None
    ) -> AsyncGenerator[Delivery, None]:
        if self.options.as_client:
            async with aclosing(tail_stream(self.link, names.EVT, subjects, after_seq)) as messages:
                async for message in messages:
                    yield self._deliver(message.seq, message.subject, message.stored_s, message.pending, message.body)
        reader = StreamReader(self.link, names.EVT, after_seq, subjects, gathering)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                for msg in batch:
                    seq, stored_s, pending = position(msg.reply)
                    if seq <= reader.seen:
                        continue
                    reader.seen = seq
                    copied = msg.headers is not None and _COPIED in msg.headers
                    yield self._deliver(seq, msg.subject, stored_s, pending, msg.data, copied=copied)

    async def read(self, subject: str, after_seq: int = 0, until_seq: int | None = None) -> list[Delivery]:
        found = []
        async with aclosing(direct_get.stored(self.link, names.EVT, subject, after_seq)) as messages:
            async for message in messages:
                if until_seq is not None and message.seq > until_seq:
                    break
                found.append(message)
        counted = ((m, len(found) - i) for i, m in enumerate(found, 1))
        deliveries = (self._deliver(m.seq, m.subject, m.stored_s, behind, m.body) for m, behind in counted)
        return [one for one in deliveries if one.commit.id]

    async def last(self, subject: str) -> Delivery | None:
        message = await direct_get.newest(self.link, names.EVT, subject)
        if message is None:
            return None
        return self._deliver(message.seq, message.subject, message.stored_s, 0, message.body)

    async def last_seq(self) -> int:
        return await self._last_seq(names.EVT)

    async def trim(self, subject: str, before_seq: int) -> int:
        request = {"filter": subject, "seq": before_seq}
        try:
            answer = await self.link.api(f"STREAM.PURGE.{names.EVT}", request, answer=_Purged)
        except Unavailable as error:
            if "not permitted" in str(error):  # which has the code of every purge that fails
                raise TrimDenied from error
            raise
        return answer.purged

    async def holds(self, pattern: str) -> bool:
        return await direct_get.newest_of(self.link, names.EVT, pattern) is not None

    async def reject(self, what: str, rejection: Rejection) -> None:
        await self._store_rejection(what, rejection, {MSG_ID: self.new_id()})

    async def rejections(self) -> list[Rejection]:
        after_seq = max(await self._last_seq(names.REJECTED) - _NEWEST, 0)
        stored = direct_get.stored(self.link, names.REJECTED, names.STREAM_SUBJECTS[names.REJECTED], after_seq)
        return [_rejection(message) async for message in stored]

    async def write_output(
        self, job_id: str, rank: int, data: bytes, place: OutputOffset | OutputEnd | None = None
    ) -> None:
        headers = {MSG_ID: self.new_id()} | ({_PLACE: header_of(place)} if place else {})
        ack = await self.link.store(names.log(job_id, rank), data, headers)
        if ack.error is not None:
            raise fault(f"output of {job_id}", ack.error)

    async def read_output(
        self, job_id: str, follow: bool = False, tail: int | None = None, after_seq: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        pattern, seen = names.logs(job_id), after_seq
        newest: deque[LogLine] = deque(maxlen=tail)
        async with aclosing(direct_get.stored(self.link, names.LOG, pattern, after_seq)) as messages:
            async for message in messages:
                seen = message.seq
                if tail is None:
                    yield _line(job_id, message)
                else:
                    newest.append(_line(job_id, message))
        for line in newest:
            yield line
        if not follow:
            return
        async with aclosing(tail_stream(self.link, names.LOG, [pattern], seen)) as messages:
            async for message in messages:
                yield _line(job_id, message)

    async def write_series(self, job_id: str, epoch: int, body: bytes) -> None:
        ack = await self.link.store(names.series(job_id, epoch), body, {MSG_ID: self.new_id()})
        if ack.error is not None:
            raise fault(f"series of {job_id}", ack.error)

    async def read_series(self, job_id: str) -> AsyncGenerator[StoredMessage, None]:
        for stream in (names.LOG, names.SERIES):  # earlier versions kept them beside the output
            async with aclosing(direct_get.stored(self.link, stream, names.all_series(job_id))) as messages:
                async for message in messages:
                    yield message

    async def write_shadow(self, subject: str, body: bytes, msg_id: str = "") -> None:
        ack = await self.link.store(subject, body, {MSG_ID: msg_id or self.new_id()})
        if ack.error is not None:
            raise fault(f"shadow's {subject}", ack.error)

    async def read_shadow(self, subject: str) -> AsyncIterator[Shadowed]:
        async with aclosing(direct_get.stored(self.link, names.SHADOW, subject)) as messages:
            async for message in messages:
                yield message

    async def last_shadow(self, subject: str) -> Shadowed | None:
        if self.options.as_client:
            return await direct_get.newest_of(self.link, names.SHADOW, subject)
        return await direct_get.from_leader(self.link, names.SHADOW, {"last_by_subj": subject})

    async def now_s(self) -> float:
        info = await self.link.api(f"STREAM.INFO.{names.EVT}", answer=StreamInfo)
        try:
            return direct_get.seconds(info.ts)
        except ValueError as error:
            raise BusError(f"the server does not say what time it is: {error}; expected NATS 2.10 or later") from error

    async def _last_seq(self, stream: str) -> int:
        if self.options.as_client:
            newest = await direct_get.newest_of(self.link, stream, names.STREAM_SUBJECTS[stream])
            return newest.seq if newest is not None else 0
        return (await self.link.api(f"STREAM.INFO.{stream}", answer=StreamInfo)).state.last_seq

    def _deliver(
        self, seq: int, subject: str, stored_s: float, pending: int, body: bytes, *, copied: bool = False
    ) -> Delivery:
        try:
            if copied:
                raise MisplacedFact(f"the server wrote it on {subject} as an answer that somebody had sent there")
            return delivery(seq, subject, stored_s, pending, body)
        except CodecError as error:
            message = StoredMessage(seq=seq, subject=subject, stored_s=stored_s, body=body)
            placeholder, rejection = self.dropped.drop(message, pending, error)
            if not self.options.as_client:  # services read it too
                self.in_background(self._reject_once(seq, rejection))
            return placeholder

    async def _reject_once(self, seq: int, rejection: Rejection) -> None:
        """Store a rejection once: every reader meets the same message, and the first one's rejection stays."""
        try:
            await self._store_rejection(rejected_as(seq), rejection, {EXPECTED: "0"})
        except BusError as error:
            _log.warning("rejection_not_stored", origin=rejection.origin, reason=rejection.reason, error=str(error))

    async def _store_rejection(self, what: str, rejection: Rejection, headers: dict[str, str]) -> None:
        reason = rejection.reason[:_REASON_CHARS]
        body_bytes = self.max_body_bytes - len(reason.encode()) - len(rejection.origin.encode())
        body = rejection.body[:body_bytes]
        headers = headers | {_REASON: reason, _ORIGIN: rejection.origin}
        ack = await self.link.store(names.rejected(what), body, headers)
        if ack.error is not None and ack.error.err_code not in WRONG_LAST_SEQUENCE:
            raise fault(f"rejection of {rejection.origin}", ack.error)


def _rejection(message: direct_get.StreamMessage) -> Rejection:
    headers = message.headers
    return Rejection(
        reason=headers.get(_REASON, ""),
        origin=headers.get(_ORIGIN, message.subject),
        body=message.body,
        stored_s=message.stored_s,
    )


def _line(job_id: str, message: direct_get.StreamMessage) -> LogLine:
    place = of_header(message.headers.get(_PLACE, ""))
    rank = _rank(message.subject)
    return LogLine(seq=message.seq, job_id=job_id, rank=rank, stored_s=message.stored_s, data=message.body, place=place)


def _rank(subject: str) -> int:
    return int(subject.rpartition(".")[2])


async def append_batch(link: Link, items: Sequence[Append]) -> list[int]:
    """Append commits as :meth:`penstock_bus.port.LogPort.append_all` says."""
    messages = [(item.subject, encode(item.commit), headers_of(item)) for item in items]
    for subject, body, _ in messages:
        link.check_size(subject, body)
    clock = asyncio.get_running_loop().time
    end_s = clock() + link.timeout_s
    while True:
        await link.online(max(end_s - clock(), 0.0))
        try:
            ack = await send_batch(link, link.new_token(), messages)
        except Unavailable:
            if clock() >= end_s:
                raise
        else:
            if ack.error is None:
                return _row(ack.seq, len(items))
            if ack.error.err_code not in NOT_YET:
                return await _looked_up(link, items, ack.error)
            if clock() >= end_s:
                raise Timeout(f"{len(items)} commits could not be appended yet; try again with the same ids")
        await asyncio.sleep(PAUSE_S)


def _row(last_seq: int, count: int) -> list[int]:
    return list(range(last_seq - count + 1, last_seq + 1))


async def _looked_up(link: Link, items: Sequence[Append], error: ApiError) -> list[int]:
    """
    Return the sequences of commits that were refused because an earlier try had stored them all.

    Raises
    ------
    BatchRefused, TooLarge, StorageFull, Unavailable
        As the server has refused them, where it had not.
    """
    if error.err_code in WRONG_LAST_SEQUENCE | _REPEATED:
        first, last = await _seq_of(link, items[0]), await _seq_of(link, items[-1])
        if first and last == first + len(items) - 1:
            return _row(last, len(items))
    refusal = fault(f"append of {len(items)} commits", error)
    if isinstance(refusal, (Unavailable, TooLarge)):
        raise refusal
    raise BatchRefused(f"{refusal}; nothing was stored. Append them one by one") from refusal


async def _seq_of(link: Link, item: Append) -> int:
    """Return the sequence of a commit if it is the first one after the sequence that it expects; otherwise 0."""
    request = {"seq": (item.expected or 0) + 1, "next_by_subj": item.subject}
    found = await direct_get.from_leader(link, names.EVT, request)
    return found.seq if found is not None and found.headers.get(MSG_ID) == item.commit.id else 0


_REPEATED: Final = frozenset({10201})  # one of a batch's message ids is stored already
WINDOW: Final = 1024

_NOBODY: Final = 0  # the code of the refusal that stands for "no stream answered"
_AGAIN: Final = NOT_YET | {_NOBODY}


def headers_of(item: Append) -> dict[str, str]:
    """Return what NATS itself reads of a commit, and the trace to which it belongs."""
    headers = {MSG_ID: item.commit.id}
    if item.expected is not None:
        headers[EXPECTED] = str(item.expected)
    if item.commit.trace and (trace := tracing.parsed(item.commit.trace)) is not None:
        headers[tracing.HEADER] = trace.header(tracing.span_of(item.commit.id))
    return headers


async def settled(link: Link, item: Append, ack: Ack) -> int:
    """
    Return the sequence that an acknowledgement gives, looking closer where it is a refusal.

    After a retry the server may say "wrong last sequence" of one's own message: the first message behind the
    expected sequence tells.
    """
    if ack.error is None:
        return ack.seq
    if ack.error.err_code not in WRONG_LAST_SEQUENCE or item.expected is None:
        raise fault(f"append to {item.subject}", ack.error)
    request = {"seq": item.expected + 1, "next_by_subj": item.subject}
    rival = await direct_get.from_leader(link, names.EVT, request)
    if rival is not None and rival.headers.get(MSG_ID) == item.commit.id:
        return rival.seq
    raise Conflict(item.subject, item.expected)
