"""The server in memory that several buses share, with the switches that tests of outages need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock_bus.memory.hub import Hub
from penstock_bus.memory.store import Message, Stream, WorkQueue
from penstock_bus.port import Lease, Rejection, StorageFull
from penstock_events import subjects
from penstock_events.output import End, Place

_STREAMS: Final = (subjects.EVT, subjects.LOG, subjects.REJECTED, subjects.SHADOW)


class Signal:
    """Wakes everybody who waits, each time something happens."""

    def __init__(self) -> None:
        """Start with nobody waiting."""
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
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True


class MemoryServer:
    """
    What a NATS server is to the buses: it outlives them, and may be away for a while.

    Parameters
    ----------
    max_body_bytes : int
        The largest body that it takes.
    max_store_bytes : int or None
        All bodies together; None is no limit.
    now : callable
        Seconds since the epoch.
    lease_now : callable, optional
        The clock of leases, where another is given: their owners count real seconds, whatever time a test pretends.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = 1 << 20,
        max_store_bytes: int | None = None,
        now: Callable[[], float] = time.time,  # noqa: TID251 - a server has a clock
        lease_now: Callable[[], float] | None = None,
    ) -> None:
        """Start running, with everything empty."""
        self.max_body_bytes = max_body_bytes
        self.max_store_bytes = max_store_bytes
        self.now = now
        self._lease_now = lease_now or now
        self.running = True
        self.changed = Signal()
        self.streams = {name: Stream() for name in _STREAMS}
        self.work = WorkQueue()
        self.snapshots: dict[str, list[bytes]] = {}
        self.rejections: dict[int, Rejection] = {}
        self.places: dict[int, Place | End] = {}
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

    def put(self, stream: str, subject: str, body: bytes, msg_id: str = "", expected: int | None = None) -> Message:
        """
        Store a message in a stream.

        Raises
        ------
        Conflict, StorageFull
        """
        known = self.streams[stream].find(msg_id)
        self._check_room(0 if known else len(body))
        message = self.streams[stream].put(subject, body, msg_id, expected, self.now())
        self._stored_bytes += 0 if known else len(body)
        self.changed.notify()
        return message

    def put_rejection(self, subject: str, rejection: Rejection) -> None:
        """Keep what was refused, with the time."""
        message = self.put(subjects.REJECTED, subject, rejection.body)
        self.rejections[message.seq] = msgspec.structs.replace(rejection, stored_s=message.stored_s)

    def submit(self, subject: str, body: bytes) -> None:
        """Put a message into the work queue; what was done makes room only in a new server."""
        self._check_room(len(body))
        self._stored_bytes += len(body)
        self.work.put(subject, body, self.now())
        self.changed.notify()

    def _check_room(self, size: int) -> None:
        if self.max_store_bytes is not None and self._stored_bytes + size > self.max_store_bytes:
            raise StorageFull(
                f"the server's store is full ({self._stored_bytes} of {self.max_store_bytes} bytes); nothing was "
                "stored; give it more room, then try again"
            )

    def acquire(self, name: str, owner: str, ttl_s: float) -> Lease | None:
        """Give the name to the owner if nobody has it; its own lease again if it has."""
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
