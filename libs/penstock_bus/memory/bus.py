"""
The bus in memory: one client of a :class:`~penstock_bus.memory.server.MemoryServer`.

:class:`MemoryClient` is the client's connection, which tests can take away and give back. Classes for ports that
are alike build on it: streams (:class:`MemoryLogClient`), snapshots and leases (:class:`MemoryStateClient`), requests
and telemetry (:class:`MemoryRequestClient`), the work queue (:class:`MemoryWorkClient`), replication
(:class:`MemoryReplicationClient`), code (:class:`MemoryCodeClient`). :class:`MemoryBus` is all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final, Self

from penstock_bus.logger import get_logger
from penstock_bus.memory.server import MemoryMessage, MemoryServer, QueuedMessage, ServiceInstance, TelemetryListener
from penstock_bus.port import (
    AHEAD,
    Append,
    CodePort,
    Delivery,
    Endpoint,
    Gathering,
    Lease,
    LeasePort,
    LogLine,
    LogPort,
    LogTrimPort,
    OutputPort,
    Rejection,
    RejectionPort,
    RelayPort,
    ReplicationPort,
    Request,
    RequestPort,
    SeriesPort,
    ServiceError,
    Shadowed,
    ShadowPort,
    Snapshot,
    SnapshotPort,
    StoredMessage,
    TelemetryPort,
    Timeout,
    TooLarge,
    Unavailable,
    Work,
    WorkPort,
)
from penstock_bus.stored_messages import (
    DroppedMessages,
    SnapshotDamaged,
    delivery,
    join,
    matches_any,
    rejected_as,
    split,
    undeliverable,
)
from penstock_log import CodecError, encode
from penstock_log import subjects as names
from penstock_log.request_bodies import OutputEnd, OutputOffset
from penstock_log.views import StreamView


class MemoryClient:
    """
    One client of a :class:`MemoryServer`; without one it makes its own.

    Parameters
    ----------
    timeout_s : float
        How long a call waits for the server to come back.
    ack_wait_s : float
        How long a worker may keep a message before another gets it.
    max_deliver : int
        How often a message of the work queue is delivered before it goes to REJECTED.
    user : str
        The person who asks over it; empty for a service.
    """

    def __init__(
        self,
        server: MemoryServer | None = None,
        *,
        timeout_s: float = 5.0,
        ack_wait_s: float = 15.0,
        max_deliver: int = 10,
        user: str = "",
    ) -> None:
        self.server = server or MemoryServer()
        self.user = user
        self.timeout_s = timeout_s
        self.ack_wait_s = ack_wait_s
        self.max_deliver = max_deliver
        self.dropped = DroppedMessages()
        self._connected = True
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._closed = True
        self.server.changed.notify()

    def disconnect(self) -> None:
        """Lose the server, until :meth:`reconnect`."""
        self._connected = False
        self.server.changed.notify()

    def reconnect(self) -> None:
        """Find the server again."""
        self._connected = True
        self.server.changed.notify()

    @property
    def max_body_bytes(self) -> int:
        return self.server.max_body_bytes

    def online(self) -> bool:
        """
        Return whether the server can be reached right now.

        Raises
        ------
        Unavailable
            If the bus is closed.
        """
        if self._closed:
            raise Unavailable("this bus is closed; connect again")
        return self._connected and self.server.running

    async def ready(self, size: int = 0) -> None:
        """
        Wait until the server can be reached, and check that it takes a body of this size.

        Other tasks run meanwhile, as they do while a real server is asked.

        Raises
        ------
        Unavailable, TooLarge
        """
        if size > self.max_body_bytes:
            raise TooLarge(f"the body has {size} bytes and the server takes {self.max_body_bytes}; send less")
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.timeout_s
        while not self.online():
            if not await self.server.changed.wait(max(end_s - clock(), 0.0)):
                raise Unavailable(f"the server in memory was away for {self.timeout_s} s; the call may be tried again")


class MemoryLogClient(MemoryClient, LogPort, LogTrimPort, RejectionPort, OutputPort, SeriesPort, ShadowPort):
    """The ports that read and write streams."""

    async def append(self, item: Append) -> int:
        body = encode(item.commit)
        await self.ready(len(body))
        return self.server.put(names.EVT, item.subject, body, item.commit.id, item.expected).seq

    async def append_many(self, items: Sequence[Append]) -> list[int]:
        return [await self.append(item) for item in items]

    async def append_all(self, items: Sequence[Append]) -> list[int]:
        bodies = [encode(item.commit) for item in items]
        await self.ready(max(map(len, bodies)))
        return self.server.put_all(items, bodies)

    async def follow(
        self,
        after_seq: int = 0,
        subjects: Sequence[str] = (),
        gathering: Gathering | None = None,  # noqa: ARG002 - a delivery costs nothing here
    ) -> AsyncGenerator[Delivery, None]:
        async for message, pending in self._messages(names.EVT, after_seq, subjects):
            yield self._deliver(message, pending)

    async def read(self, subject: str, after_seq: int = 0, until_seq: int | None = None) -> list[Delivery]:
        await self.ready()
        found = [
            message
            for message in self.server.streams[names.EVT].after(after_seq, [subject])
            if until_seq is None or message.seq <= until_seq
        ]
        deliveries = (self._deliver(message, len(found) - i) for i, message in enumerate(found, 1))
        return [one for one in deliveries if one.commit.id]

    async def last(self, subject: str) -> Delivery | None:
        await self.ready()
        message = self.server.streams[names.EVT].last(subject)
        return self._deliver(message, 0) if message else None

    async def last_seq(self) -> int:
        await self.ready()
        return len(self.server.streams[names.EVT].messages)

    async def now_s(self) -> float:
        await self.ready()
        return self.server.now()

    async def trim(self, subject: str, before_seq: int) -> int:
        await self.ready()
        return self.server.streams[names.EVT].trim(subject, before_seq)

    async def holds(self, pattern: str) -> bool:
        await self.ready()
        return self.server.streams[names.EVT].holds(pattern)

    async def reject(self, what: str, rejection: Rejection) -> None:
        await self.ready(len(rejection.body))
        self.server.reject(what, rejection)

    async def rejections(self) -> list[Rejection]:
        await self.ready()
        return self.server.rejections[-_NEWEST:]

    async def write_output(
        self, job_id: str, rank: int, data: bytes, place: OutputOffset | OutputEnd | None = None
    ) -> None:
        await self.ready(len(data))
        self.server.put(names.LOG, names.log(job_id, rank), data, place=place)

    async def read_output(
        self, job_id: str, follow: bool = False, tail: int | None = None, after_seq: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        await self.ready()
        stored = list(self.server.streams[names.LOG].after(after_seq, [names.logs(job_id)]))
        for message in stored if tail is None else stored[max(len(stored) - tail, 0) :]:
            yield _line(job_id, message)
        if follow:
            seen = stored[-1].seq if stored else after_seq
            async for message, _ in self._messages(names.LOG, seen, [names.logs(job_id)]):
                yield _line(job_id, message)

    async def write_series(self, job_id: str, epoch: int, body: bytes) -> None:
        await self.ready(len(body))
        self.server.put_last(names.SERIES, names.series(job_id, epoch), body)

    async def read_series(self, job_id: str) -> AsyncGenerator[StoredMessage, None]:
        await self.ready()
        for message in list(self.server.streams[names.SERIES].after(0, [names.all_series(job_id)])):
            yield message

    async def write_shadow(self, subject: str, body: bytes, msg_id: str = "") -> None:
        await self.ready(len(body))
        self.server.put(names.SHADOW, subject, body, msg_id)

    async def read_shadow(self, subject: str) -> AsyncIterator[Shadowed]:
        await self.ready()
        for message in list(self.server.streams[names.SHADOW].after(0, [subject])):
            yield message

    async def last_shadow(self, subject: str) -> Shadowed | None:
        found = [one async for one in self.read_shadow(subject)]
        return found[-1] if found else None

    async def _messages(
        self, stream: str, after_seq: int, patterns: Sequence[str] = ()
    ) -> AsyncIterator[tuple[MemoryMessage, int]]:
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

    def _deliver(self, message: MemoryMessage, pending: int) -> Delivery:
        try:
            return delivery(message.seq, message.subject, message.stored_s, pending, message.body)
        except CodecError as error:
            placeholder, rejection = self.dropped.drop(message, pending, error)
            if self.server.streams[names.REJECTED].last(names.rejected(rejected_as(message.seq))) is None:
                self.server.reject(rejected_as(message.seq), rejection)
            return placeholder


class MemoryStateClient(MemoryClient, SnapshotPort, LeasePort):
    """Snapshots, which make starting fast, and leases, which say who leads."""

    async def save_snapshot(self, name: str, snapshot: Snapshot) -> None:
        await self.ready()
        self.server.snapshots[name] = split(snapshot, self.max_body_bytes // 2)

    async def load_snapshot(self, name: str) -> Snapshot | None:
        await self.ready()
        try:
            return join(self.server.snapshots[name]) if name in self.server.snapshots else None
        except SnapshotDamaged as error:
            _log.warning("snapshot_damaged", name=name, error=str(error))
            return None

    async def delete_snapshots(self) -> None:
        await self.ready()
        self.server.snapshots.clear()

    async def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        await self.ready()
        return self.server.acquire(name, owner, ttl_s)

    async def renew(self, lease: Lease) -> bool:
        await self.ready()
        return self.server.renew(lease)

    async def release(self, lease: Lease) -> None:
        await self.ready()
        self.server.release(lease)


class MemoryRequestClient(MemoryClient, RequestPort, TelemetryPort, RelayPort):
    """The ports that store nothing."""

    def relaying(
        self,
        may_read: Callable[[str, str], Awaitable[str]],  # noqa: ARG002 - whoever has this bus reads everything
    ) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def request(self, subject: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        await self.ready(len(body))
        user = self.user
        if not user:  # a service, which may ask in the name of a person
            user, subject = names.asked_by(subject)
        instance = self.server.hub.route(subject)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await instance.answer(subject, Request(body=body, user=user, subject=subject))
        except TimeoutError as error:
            raise Timeout(f"no answer on {subject} within {timeout_s} s; ask again or wait longer") from error
        if reply.code:
            raise ServiceError(reply.code, reply.error, reply.body)
        return reply.body

    @asynccontextmanager
    async def serve(
        self,
        name: str,
        version: str,  # noqa: ARG002 - nobody asks a service in memory what it is
        endpoints: Sequence[Endpoint],
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> AsyncIterator[None]:
        await self.ready()
        instance = ServiceInstance(name, endpoints)
        self.server.hub.instances.append(instance)
        try:
            yield
        finally:
            self.server.hub.instances.remove(instance)
            instance.stop()

    async def publish(self, subject: str, body: bytes) -> None:
        if self.online():
            self.server.hub.publish(subject, body)

    async def subscribe(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        listener = TelemetryListener(subject)
        self.server.hub.listeners.append(listener)
        try:
            while True:
                while listener.messages:
                    yield listener.messages.popleft()
                listener.wake.clear()
                await listener.wake.wait()
        finally:
            self.server.hub.listeners.remove(listener)


class MemoryWorkClient(MemoryClient, WorkPort):
    """The work queue."""

    async def submit(self, subject: str, body: bytes) -> None:
        await self.ready(len(body))
        self.server.submit(subject, body, self.user)

    async def work(
        self,
        queue: str,  # noqa: ARG002 - one queue serves all
        subjects: Sequence[str],
        ahead: int = AHEAD,
    ) -> AsyncIterator[Work]:
        while True:
            while not self.online():
                await self.server.changed.wait()
            message = self.server.work.take(subjects, self.server.now(), self.ack_wait_s, ahead)
            if message is None:
                due_s = self.server.work.next_due_s()
                await self.server.changed.wait(None if due_s is None else max(due_s - self.server.now(), 0.001))
                continue
            work = MemoryWork(self, message)
            if message.deliveries > self.max_deliver:
                await work.reject(undeliverable(self.max_deliver))
            else:
                yield work


class MemoryReplicationClient(MemoryClient, ReplicationPort):
    """On which servers the streams are kept: there is one."""

    async def replication(self) -> list[StreamView]:
        await self.ready()
        return [StreamView(name=name, replicas=1) for name in (*names.STREAM_SUBJECTS, names.LEASES)]


class MemoryCodeClient(MemoryClient, CodePort):
    """The files of folders in which jobs run."""

    async def put_code(self, items: Sequence[tuple[str, bytes]]) -> None:
        for subject, body in items:
            await self.ready(len(body))
            self.server.put_code(subject, body)

    async def get_code(self, subjects: Sequence[str]) -> dict[str, bytes]:
        await self.ready()
        return {subject: self.server.code[subject] for subject in subjects if subject in self.server.code}

    async def newest_code(self, subjects: Sequence[str]) -> dict[str, bytes]:
        await self.ready()
        return {subject: self.server.code[subject] for subject in subjects if subject in self.server.code}

    async def list_code(self, pattern: str) -> list[str]:
        await self.ready()
        return [subject for subject in self.server.code if matches_any([pattern], subject)]

    async def remove_code(self, subjects: Sequence[str]) -> None:
        await self.ready()
        for subject in subjects:
            self.server.code.pop(subject, None)


class MemoryBus(
    MemoryLogClient,
    MemoryStateClient,
    MemoryWorkClient,
    MemoryRequestClient,
    MemoryReplicationClient,
    MemoryCodeClient,
):
    """All ports of one client; see :class:`penstock_bus.memory.bus.MemoryClient` for the parameters."""


_BREATH: Final = 256  # messages between two turns of the event loop
_NEWEST: Final = 1000


_log = get_logger("penstock.bus")


def _line(job_id: str, message: MemoryMessage) -> LogLine:
    return LogLine(
        seq=message.seq,
        job_id=job_id,
        rank=int(message.subject.rpartition(".")[2]),
        stored_s=message.stored_s,
        data=message.body,
        place=message.place,
    )


class MemoryWork(Work):
    """One delivery of a message of the work queue."""

    def __init__(self, client: MemoryClient, message: QueuedMessage) -> None:
        self.seq, self.subject, self.body, self.user = message.seq, message.subject, message.body, message.user
        self._client, self._message = client, message

    async def ack(self) -> None:
        await self._client.ready()
        self._client.server.work.remove(self.seq)

    async def retry(self, delay_s: float = 0.0) -> None:
        await self._client.ready()
        self._message.due_s = self._client.server.now() + delay_s
        self._client.server.changed.notify()

    async def hold(self) -> None:
        self._message.due_s = self._client.server.now() + self._client.ack_wait_s

    async def reject(self, reason: str) -> None:
        await self._client.ready()
        what = self.subject.rpartition(".")[2]
        rejection = Rejection(reason=reason, origin=f"{names.INBOX} {self.subject}", body=self.body)
        self._client.server.reject(what, rejection)
        self._client.server.work.remove(self.seq)
