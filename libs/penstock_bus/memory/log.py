"""The log, what it refused, and the output of jobs, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final

from penstock_bus.memory.client import Client
from penstock_bus.memory.store import Message
from penstock_bus.port import Append, Delivery, LogLine, Rejection, Shadowed
from penstock_bus.reading import delivery, origin, placeholder, rejected_as
from penstock_events import CodecError, encode
from penstock_events import subjects as names
from penstock_events.output import End, Place

_BREATH: Final = 256  # messages between two turns of the event loop
_NEWEST: Final = 1000


class LogClient(Client):
    """The part of the port that reads and writes streams."""

    async def append(self, item: Append) -> int:
        """Append one commit; return its sequence."""
        body = encode(item.commit)
        await self.ready(len(body))
        return self.server.put(names.EVT, item.subject, body, item.commit.id, item.expected).seq

    async def append_many(self, items: Sequence[Append]) -> list[int]:
        """Append many commits; return their sequences."""
        return [await self.append(item) for item in items]

    async def follow(self, after_seq: int = 0, subjects: Sequence[str] = ()) -> AsyncIterator[Delivery]:
        """Yield every commit after a sequence, then every new one."""
        async for message, pending in self._messages(names.EVT, after_seq, subjects):
            yield self._deliver(message, pending)

    async def read(self, subject: str, after_seq: int = 0, until_seq: int | None = None) -> list[Delivery]:
        """Return the stored commits of a subject or pattern."""
        await self.ready()
        found = [
            message
            for message in self.server.streams[names.EVT].after(after_seq, [subject])
            if until_seq is None or message.seq <= until_seq
        ]
        deliveries = (self._deliver(message, len(found) - i) for i, message in enumerate(found, 1))
        return [one for one in deliveries if one.commit.id]

    async def last(self, subject: str) -> Delivery | None:
        """Return the last commit of one exact subject."""
        await self.ready()
        message = self.server.streams[names.EVT].last(subject)
        return self._deliver(message, 0) if message else None

    async def last_seq(self) -> int:
        """Return the sequence of the log's last message."""
        await self.ready()
        return len(self.server.streams[names.EVT].messages)

    async def now_s(self) -> float:
        """Return the time by the server's clock."""
        await self.ready()
        return self.server.now()

    async def reject(self, what: str, rejection: Rejection) -> None:
        """Put something that cannot be accepted where people find it."""
        await self.ready(len(rejection.body))
        self._put_rejection(what, rejection)

    async def rejections(self) -> list[Rejection]:
        """Return the newest thousand, oldest first."""
        await self.ready()
        messages = self.server.streams[names.REJECTED].messages[-_NEWEST:]
        return [self.server.rejections[message.seq] for message in messages]

    async def write_log(self, job_id: str, rank: int, data: bytes, place: Place | End | None = None) -> None:
        """Store a piece of a process's output, and from where in it the piece is."""
        await self.ready(len(data))
        message = self.server.put(names.LOG, names.log(job_id, rank), data)
        if place is not None:
            self.server.places[message.seq] = place

    async def read_logs(
        self, job_id: str, follow: bool = False, tail: int | None = None, after_seq: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        """Yield what the stream holds of a job's output."""
        await self.ready()
        stored = list(self.server.streams[names.LOG].after(after_seq, [names.logs(job_id)]))
        for message in stored if tail is None else stored[max(len(stored) - tail, 0) :]:
            yield self._line(job_id, message)
        if follow:
            seen = stored[-1].seq if stored else after_seq
            async for message, _ in self._messages(names.LOG, seen, [names.logs(job_id)]):
                yield self._line(job_id, message)

    def _line(self, job_id: str, message: Message) -> LogLine:
        return LogLine(
            seq=message.seq,
            job_id=job_id,
            rank=int(message.subject.rpartition(".")[2]),
            stored_s=message.stored_s,
            data=message.body,
            place=self.server.places.get(message.seq),
        )

    async def write_shadow(self, subject: str, body: bytes, msg_id: str = "") -> None:
        """Store what a shadow would have done."""
        await self.ready(len(body))
        self.server.put(names.SHADOW, subject, body, msg_id)

    async def read_shadow(self, subject: str) -> AsyncIterator[Shadowed]:
        """Yield what is stored of a subject or pattern."""
        await self.ready()
        for message in list(self.server.streams[names.SHADOW].after(0, [subject])):
            yield _shadowed(message)

    async def last_shadow(self, subject: str) -> Shadowed | None:
        """Return the newest of a subject or pattern."""
        found = [one async for one in self.read_shadow(subject)]
        return found[-1] if found else None

    async def _messages(
        self, stream: str, after_seq: int, patterns: Sequence[str] = ()
    ) -> AsyncIterator[tuple[Message, int]]:
        """Yield messages and how many stand behind each, for ever."""
        messages, seen = self.server.streams[stream], after_seq
        while True:
            if not self.online() or (pending := messages.count_after(seen, patterns)) == 0:
                await self.server.changed.wait()
                continue
            for message in messages.after(seen, patterns):
                if not self.online():
                    break
                seen, pending = message.seq, max(pending - 1, 0)
                yield message, pending
                if not seen % _BREATH:
                    await asyncio.sleep(0)

    def _deliver(self, message: Message, pending: int) -> Delivery:
        try:
            return delivery(message.seq, message.subject, message.stored_s, pending, message.body)
        except CodecError as error:
            where = origin(names.EVT, message.subject, message.seq)
            self.dropped.add(where, str(error))
            if self.server.streams[names.REJECTED].last(names.rejected(rejected_as(message.seq))) is None:
                rejection = Rejection(reason=str(error), origin=where, body=message.body)
                self._put_rejection(rejected_as(message.seq), rejection)
            return placeholder(message.seq, message.subject, message.stored_s, pending)

    def _put_rejection(self, what: str, rejection: Rejection) -> None:
        self.server.put_rejection(names.rejected(what), rejection)


def _shadowed(message: Message) -> Shadowed:
    return Shadowed(seq=message.seq, subject=message.subject, stored_s=message.stored_s, body=message.body)
