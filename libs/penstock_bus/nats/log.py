"""The part of the port that reads and writes streams."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from penstock_bus.logger import get_logger
from penstock_bus.nats import append as appending
from penstock_bus.nats import get
from penstock_bus.nats.client import NatsClient
from penstock_bus.nats.faults import WRONG_LAST_SEQUENCE, fault
from penstock_bus.nats.follow import Reader, position
from penstock_bus.nats.tail import tail_stream
from penstock_bus.port import Append, BusError, Delivery, LogLine, Rejection, Shadowed
from penstock_bus.reading import delivery, origin, placeholder, rejected_as
from penstock_events import CodecError, Misplaced
from penstock_events import subjects as names
from penstock_events.output import End, Place, header_of, of_header

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


class _State(msgspec.Struct, frozen=True):
    """How far a stream is."""

    last_seq: int


class _Info(msgspec.Struct, frozen=True):
    """The server's answer about a stream, as far as it is looked at."""

    state: _State
    ts: str = ""


class LogClient(NatsClient):
    """Appends, followers, rejections and the output of jobs."""

    async def append(self, item: Append) -> int:
        """Append one commit; return its sequence."""
        return await appending.append(self.link, item)

    async def append_many(self, items: Sequence[Append]) -> list[int]:
        """Append many commits with a window of outstanding acknowledgements."""
        return await appending.Window(self.link, items).run()

    async def follow(self, after_seq: int = 0, subjects: Sequence[str] = ()) -> AsyncIterator[Delivery]:
        """Yield every commit after a sequence, then every new one."""
        if self.as_client:
            async with aclosing(tail_stream(self.link, names.EVT, subjects, after_seq)) as messages:
                async for message in messages:
                    yield self._deliver(message.seq, message.subject, message.stored_s, message.pending, message.body)
        reader = Reader(self.link, names.EVT, after_seq, subjects)
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
        """Return the stored commits of a subject or pattern."""
        found = []
        async with aclosing(get.stored(self.link, names.EVT, subject, after_seq)) as messages:
            async for message in messages:
                if until_seq is not None and message.seq > until_seq:
                    break
                found.append(message)
        counted = ((m, len(found) - i) for i, m in enumerate(found, 1))
        deliveries = (self._deliver(m.seq, m.subject, m.stored_s, behind, m.body) for m, behind in counted)
        return [one for one in deliveries if one.commit.id]

    async def last(self, subject: str) -> Delivery | None:
        """Return the last commit of one exact subject."""
        message = await get.newest(self.link, names.EVT, subject)
        if message is None:
            return None
        return self._deliver(message.seq, message.subject, message.stored_s, 0, message.body)

    async def last_seq(self) -> int:
        """Return the sequence of the log's last message."""
        return await self._last_seq(names.EVT)

    async def reject(self, what: str, rejection: Rejection) -> None:
        """Put something that cannot be accepted where people find it."""
        await self._store_rejection(what, rejection, {appending.MSG_ID: self.new_id()})

    async def rejections(self) -> list[Rejection]:
        """Return the newest thousand, oldest first."""
        after_seq = max(await self._last_seq(names.REJECTED) - _NEWEST, 0)
        stored = get.stored(self.link, names.REJECTED, names.STREAM_SUBJECTS[names.REJECTED], after_seq)
        return [_rejection(message) async for message in stored]

    async def write_log(self, job_id: str, rank: int, data: bytes, place: Place | End | None = None) -> None:
        """Store a piece of a process's output, and from where in it the piece is."""
        headers = {appending.MSG_ID: self.new_id()} | ({_PLACE: header_of(place)} if place else {})
        ack = await self.link.store(names.log(job_id, rank), data, headers)
        if ack.error is not None:
            raise fault(f"output of {job_id}", ack.error)

    async def read_logs(
        self, job_id: str, follow: bool = False, tail: int | None = None, after_seq: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        """Yield what the stream holds of a job's output."""
        pattern, seen = names.logs(job_id), after_seq
        newest: deque[LogLine] = deque(maxlen=tail)
        async with aclosing(get.stored(self.link, names.LOG, pattern, after_seq)) as messages:
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

    async def write_shadow(self, subject: str, body: bytes, msg_id: str = "") -> None:
        """Store what a shadow would have done."""
        ack = await self.link.store(subject, body, {appending.MSG_ID: msg_id or self.new_id()})
        if ack.error is not None:
            raise fault(f"shadow's {subject}", ack.error)

    async def read_shadow(self, subject: str) -> AsyncIterator[Shadowed]:
        """Yield what is stored of a subject or pattern."""
        async with aclosing(get.stored(self.link, names.SHADOW, subject)) as messages:
            async for message in messages:
                yield _shadowed(message)

    async def last_shadow(self, subject: str) -> Shadowed | None:
        """Return the newest of a subject or pattern."""
        if self.as_client:
            message = await get.newest_of(self.link, names.SHADOW, subject)
        else:
            message = await get.from_leader(self.link, names.SHADOW, {"last_by_subj": subject})
        return _shadowed(message) if message is not None else None

    async def now_s(self) -> float:
        """Return the time by the server's clock."""
        info = await self.link.api(f"STREAM.INFO.{names.EVT}", answer=_Info)
        try:
            return get.seconds(info.ts)
        except ValueError as error:
            raise BusError(f"the server does not say what time it is: {error}; expected NATS 2.10 or later") from error

    async def _last_seq(self, stream: str) -> int:
        if self.as_client:
            newest = await get.newest_of(self.link, stream, names.STREAM_SUBJECTS[stream])
            return newest.seq if newest is not None else 0
        return (await self.link.api(f"STREAM.INFO.{stream}", answer=_Info)).state.last_seq

    def _deliver(
        self, seq: int, subject: str, stored_s: float, pending: int, body: bytes, *, copied: bool = False
    ) -> Delivery:
        try:
            if copied:
                raise Misplaced(f"the server wrote it on {subject} as an answer that somebody had sent there")
            return delivery(seq, subject, stored_s, pending, body)
        except CodecError as error:
            where = origin(names.EVT, subject, seq)
            self.dropped.add(where, str(error))
            rejection = Rejection(reason=str(error), origin=where, body=body)
            if not self.as_client:  # services read it too
                self.in_background(self._reject_once(seq, rejection))
            return placeholder(seq, subject, stored_s, pending)

    async def _reject_once(self, seq: int, rejection: Rejection) -> None:
        """Every reader of the log meets the same message; the first one's rejection stays."""
        try:
            await self._store_rejection(rejected_as(seq), rejection, {appending.EXPECTED: "0"})
        except BusError as error:
            _log.warning("rejection_not_stored", origin=rejection.origin, reason=rejection.reason, error=str(error))

    async def _store_rejection(self, what: str, rejection: Rejection, headers: dict[str, str]) -> None:
        reason = rejection.reason[:_REASON_CHARS]
        room = self.max_body_bytes - len(reason.encode()) - len(rejection.origin.encode())
        body = rejection.body[:room]
        headers = headers | {_REASON: reason, _ORIGIN: rejection.origin}
        ack = await self.link.store(names.rejected(what), body, headers)
        if ack.error is not None and ack.error.err_code not in WRONG_LAST_SEQUENCE:
            raise fault(f"rejection of {rejection.origin}", ack.error)


def _shadowed(message: get.Stored) -> Shadowed:
    return Shadowed(seq=message.seq, subject=message.subject, stored_s=message.stored_s, body=message.body)


def _rejection(message: get.Stored) -> Rejection:
    headers = message.headers
    return Rejection(
        reason=headers.get(_REASON, ""),
        origin=headers.get(_ORIGIN, message.subject),
        body=message.body,
        stored_s=message.stored_s,
    )


def _line(job_id: str, message: get.Stored) -> LogLine:
    place = of_header(message.headers.get(_PLACE, ""))
    rank = _rank(message.subject)
    return LogLine(seq=message.seq, job_id=job_id, rank=rank, stored_s=message.stored_s, data=message.body, place=place)


def _rank(subject: str) -> int:
    return int(subject.rpartition(".")[2])
