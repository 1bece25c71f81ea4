"""
The server in memory that several buses share, with the switches that tests of outages need.

:class:`MemoryServer` is to the buses what a NATS server is: it outlives them, and may be away for a while. It keeps
streams (:class:`MemoryStream`), the work queue (:class:`WorkQueue`) and leases. :class:`Hub` passes on what is not
stored: telemetry, and requests to services.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Final

import msgspec

from penstock_bus.port import (
    Append,
    BatchRefused,
    Conflict,
    Endpoint,
    Handler,
    Lease,
    NoResponders,
    Rejection,
    Reply,
    Request,
    StorageFull,
    StoredMessage,
)
from penstock_bus.stored_messages import matches, matches_any
from penstock_log import subjects
from penstock_log.request_bodies import OutputEnd, OutputOffset

_STREAMS: Final = (subjects.EVT, subjects.LOG, subjects.SERIES, subjects.REJECTED, subjects.SHADOW)


class Signal:
    """Wakes everybody who waits, each time something happens."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True after the next :meth:`notify`, False if it did not come in time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):  # wait_for() may lose a cancellation, in Python 3.11
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True


class MemoryServer:
    """
    The server of buses in memory: it outlives them, and may be away for a while.

    Parameters
    ----------
    max_body_bytes : int
        The largest body that it takes.
    max_store_bytes : int or None
        All bodies together; None is no limit.
    now : callable
        Seconds since the epoch.
    lease_now : callable, optional
        The clock of leases, where it is another: their owners count real seconds, whatever time a test sets.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = 1 << 20,
        max_store_bytes: int | None = None,
        now: Callable[[], float] = time.time,  # noqa: TID251 - a server has a clock
        lease_now: Callable[[], float] | None = None,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_store_bytes = max_store_bytes
        self.now = now
        self._lease_now = lease_now or now
        self.running = True
        self.changed = Signal()
        self.streams = {name: MemoryStream() for name in _STREAMS}
        self.work = WorkQueue()
        self.snapshots: dict[str, list[bytes]] = {}
        self.rejections: list[Rejection] = []
        self.code: dict[str, bytes] = {}
        self.hub = Hub()
        self._leases: dict[str, tuple[Lease, float]] = {}
        self._last_token = 0
        self._stored_bytes = 0

    def stop(self) -> None:
        """Be away: every bus on it waits or fails until :meth:`start`."""
        self.running = False
        self.changed.notify()

    def start(self) -> None:
        """Be back with all that was stored."""
        self.running = True
        self.changed.notify()

    def put(
        self,
        stream: str,
        subject: str,
        body: bytes,
        msg_id: str = "",
        expected: int | None = None,
        *,
        place: OutputOffset | OutputEnd | None = None,
    ) -> MemoryMessage:
        """
        Store a message in a stream; the same id again returns the one that is there.

        Raises
        ------
        Conflict
            If the subject's last sequence is not the expected one.
        StorageFull
        """
        messages = self.streams[stream]
        if (known := messages.by_id.get(msg_id)) is not None:
            return known
        self._check_capacity(len(body))
        last = messages.last(subject)
        if expected is not None and expected != (last.seq if last else 0):
            raise Conflict(subject, expected)
        seq = len(messages.messages) + 1
        message = MemoryMessage(seq=seq, subject=subject, body=body, stored_s=self.now(), place=place)
        messages.add(message, msg_id)
        self._stored_bytes += len(body)
        self.changed.notify()
        return message

    def put_last(self, stream: str, subject: str, body: bytes) -> MemoryMessage:
        """Store a message in a stream in place of those that are there of its subject; raises StorageFull."""
        message, messages = self.put(stream, subject, body), self.streams[stream]
        self._stored_bytes -= sum(len(one.body) for one in messages.after(0, [subject]) if one.seq < message.seq)
        messages.trim(subject, message.seq)
        return message

    def put_all(self, items: Sequence[Append], bodies: Sequence[bytes]) -> list[int]:
        """
        Store commits as one, and return their sequences; those that are stored already stay as they are.

        Raises
        ------
        BatchRefused
            If one of them has to be refused, or some are stored already and others are not.
        StorageFull
        """
        log = self.streams[subjects.EVT]
        known = [log.by_id[item.commit.id].seq for item in items if item.commit.id in log.by_id]
        if len(known) == len(items):
            return known
        heads = [(last.seq if (last := log.last(item.subject)) else 0) for item in items]
        if known or heads != [item.expected for item in items]:
            raise BatchRefused("one of the subjects is no longer at the sequence that was expected")
        self._check_capacity(sum(map(len, bodies)))
        return [
            self.put(subjects.EVT, item.subject, body, item.commit.id, item.expected).seq
            for item, body in zip(items, bodies, strict=True)
        ]

    def put_code(self, subject: str, body: bytes) -> None:
        """Store a part of code; the errors are those of :meth:`put`."""
        self._check_capacity(len(body))
        self._stored_bytes += len(body)
        self.code[subject] = body
        self.changed.notify()

    def reject(self, what: str, rejection: Rejection) -> None:
        """Keep what was refused, with the time."""
        message = self.put(subjects.REJECTED, subjects.rejected(what), rejection.body)
        self.rejections.append(msgspec.structs.replace(rejection, stored_s=message.stored_s))

    def submit(self, subject: str, body: bytes, user: str = "") -> None:
        """Put a message into the work queue; finished messages make room only in a new server."""
        self._check_capacity(len(body))
        self._stored_bytes += len(body)
        self.work.put(subject, body, self.now(), user)
        self.changed.notify()

    def _check_capacity(self, size: int) -> None:
        if self.max_store_bytes is not None and self._stored_bytes + size > self.max_store_bytes:
            raise StorageFull(
                f"the server's store is full ({self._stored_bytes} of {self.max_store_bytes} bytes); nothing was "
                "stored; give it more room, then try again"
            )

    def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        """Give the lease of a name to the owner if nobody else holds it."""
        held = self._held(name)
        if held is not None and held.owner != owner:
            return None
        if held is None:
            self._last_token += 1
        token = held.token if held else self._last_token
        lease = Lease(name=name, owner=owner, token=token, ttl_s=ttl_s)
        self._leases[name] = (lease, self._lease_now() + ttl_s)
        return lease

    def renew(self, lease: Lease) -> bool:
        """Extend a lease that is still held."""
        held = self._held(lease.name)
        if held is None or held.token != lease.token:
            return False
        self._leases[lease.name] = (lease, self._lease_now() + lease.ttl_s)
        return True

    def release(self, lease: Lease) -> None:
        """Free the name, if it is still this lease's."""
        held = self._held(lease.name)
        if held is not None and held.token == lease.token:
            del self._leases[lease.name]
            self.changed.notify()

    def _held(self, name: str) -> Lease | None:
        lease, until_s = self._leases.get(name, (None, 0.0))
        return lease if until_s > self._lease_now() else None


class MemoryMessage(StoredMessage, frozen=True, kw_only=True):
    """A message, and from where in a process's output it is, if it is from any."""

    place: OutputOffset | OutputEnd | None = None


class MemoryStream:
    """Messages, of which number n stands at index n - 1, also once it was removed."""

    def __init__(self) -> None:
        self.messages: list[MemoryMessage] = []
        self._by_subject: defaultdict[str, list[MemoryMessage]] = defaultdict(list)
        self.by_id: dict[str, MemoryMessage] = {}
        self._removed: set[int] = set()

    def trim(self, pattern: str, before_seq: int) -> int:
        """Remove the messages before a sequence whose subjects fit a pattern; return how many there were."""
        found = [message for message in self.after(0, [pattern]) if message.seq < before_seq]
        for message in found:
            self._removed.add(message.seq)
            self._by_subject[message.subject].remove(message)
        return len(found)

    def holds(self, pattern: str) -> bool:
        """Say whether there is a message whose subject fits a pattern."""
        return any(messages and matches(pattern, subject) for subject, messages in self._by_subject.items())

    def add(self, message: MemoryMessage, msg_id: str) -> None:
        """Add the next message, under an id if it has one."""
        self.messages.append(message)
        self._by_subject[message.subject].append(message)
        if msg_id:
            self.by_id[msg_id] = message

    def last(self, subject: str) -> MemoryMessage | None:
        """Return the last message of one exact subject."""
        messages = self._by_subject.get(subject)
        return messages[-1] if messages else None

    def after(self, seq: int, patterns: Sequence[str] = ()) -> Iterator[MemoryMessage]:
        """Yield what is stored after a sequence, also what is added while one reads."""
        while seq < len(self.messages):
            message = self.messages[seq]
            seq = message.seq
            if seq not in self._removed and matches_any(patterns, message.subject):
                yield message

    def count_after(self, seq: int, patterns: Sequence[str] = ()) -> int:
        """Return how many messages that fit the patterns stand after a sequence."""
        if not patterns and not self._removed:
            return len(self.messages) - seq
        return sum(1 for _ in self.after(seq, patterns))


class QueuedMessage(msgspec.Struct, kw_only=True):
    """One message of the work queue: not to be delivered before ``due_s``."""

    seq: int
    subject: str
    body: bytes
    due_s: float
    user: str = ""
    deliveries: int = 0


class WorkQueue:
    """Messages that go away when they are done."""

    def __init__(self) -> None:
        self._messages: dict[int, QueuedMessage] = {}
        self._last_seq = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, subject: str, body: bytes, now_s: float, user: str = "") -> None:
        """Add a message."""
        self._last_seq += 1
        self._messages[self._last_seq] = QueuedMessage(
            seq=self._last_seq, subject=subject, body=body, due_s=now_s, user=user
        )

    def take(self, subjects: Sequence[str], now_s: float, ack_wait_s: float, most: int) -> QueuedMessage | None:
        """Return the oldest message that is due, and hide it for ``ack_wait_s``; None where ``most`` are hidden."""
        hidden = 0
        for message in self._messages.values():
            if not matches_any(subjects, message.subject):
                continue
            hidden += message.due_s > now_s
            if hidden >= most:
                return None
            if message.due_s <= now_s:
                message.due_s = now_s + ack_wait_s
                message.deliveries += 1
                return message
        return None

    def next_due_s(self) -> float | None:
        """Return when the next message is due."""
        return min((message.due_s for message in self._messages.values()), default=None)

    def remove(self, seq: int) -> None:
        """Remove a message that is done, or never will be."""
        self._messages.pop(seq, None)


_KEPT: Final = 10_000


class TelemetryListener:
    """The messages that one reader has yet to read; when the buffer is full, the oldest goes."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.messages: deque[tuple[str, bytes]] = deque(maxlen=_KEPT)
        self.wake = asyncio.Event()


class ServiceInstance:
    """One service while it is being served; an endpoint serves one request at a time unless it is concurrent."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        self.name = name
        self.handlers: dict[str, Handler] = {endpoint.subject: endpoint.handler for endpoint in endpoints}
        self._running: set[asyncio.Task[Reply]] = set()
        self._turns = {endpoint.subject: asyncio.Lock() for endpoint in endpoints if not endpoint.concurrent}

    async def answer(self, subject: str, request: Request) -> Reply:
        """Return the handler's reply; the handler goes on if the caller gives up."""
        running = asyncio.create_task(self._handle(subject, request))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.shield(running)

    def stop(self) -> None:
        """End the handlers that still run."""
        for running in self._running:
            running.cancel()

    async def _handle(self, subject: str, request: Request) -> Reply:
        async with self._turns.get(subject, nullcontext()):
            try:
                return await self.handlers[subject](request)
            except asyncio.CancelledError:
                return Reply(code=503, error=f"{self.name} stopped before it answered; ask again")
            except Exception as error:  # whatever the handler raises is the caller's to know
                return Reply(code=500, error=repr(error))


class Hub:
    """The listeners and the services of a server."""

    def __init__(self) -> None:
        self.listeners: list[TelemetryListener] = []
        self.instances: list[ServiceInstance] = []

    def publish(self, subject: str, body: bytes) -> None:
        """Hand a message to all that listen."""
        for listener in self.listeners:
            if matches(listener.pattern, subject):
                listener.messages.append((subject, body))
                listener.wake.set()

    def route(self, subject: str) -> ServiceInstance:
        """
        Return the instance that answers the next request to a subject.

        Raises
        ------
        NoResponders
            If nobody serves the subject.
        """
        for i, instance in enumerate(self.instances):
            if subject in instance.handlers:
                self.instances.append(self.instances.pop(i))
                return instance
        raise NoResponders(f"nobody serves {subject}; is the service running?")
