"""Is a replica up, is it caught up, and who else is there: endpoints and heartbeats of every service."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Final

import msgspec

from penstock_bus.metrics import Metrics
from penstock_bus.port import Bus, BusError, Endpoint, Reply
from penstock_events import subjects

HEARTBEAT_S: Final = 1.0
GONE_AFTER_S: Final = 3.5
_LOOK_S: Final = 0.1
VERSION: Final = version("penstock")


class Vitals(msgspec.Struct, kw_only=True):
    """
    What a replica says of itself: the body of its heartbeats and of ``ready`` and ``live``.

    Attributes
    ----------
    ready : bool
        It has caught up with the log and does its work.
    leading : bool
        It is the one replica that decides; always True where all decide.
    last_seq : int
        How far its fold is.
    """

    service: str
    replica: str
    version: str = VERSION
    host: str = msgspec.field(default_factory=socket.gethostname)
    pid: int = msgspec.field(default_factory=os.getpid)
    ready: bool = False
    leading: bool = False
    last_seq: int = 0


def endpoints(vitals: Vitals, metrics: Metrics) -> list[Endpoint]:
    """Return ``ready`` (503 until caught up), ``live`` and ``metrics`` of a service."""

    async def ready(_: bytes) -> Reply:
        body = msgspec.json.encode(vitals)
        if vitals.ready:
            return Reply(body=body)
        return Reply(body=body, code=503, error=f"{vitals.service}/{vitals.replica} is still catching up; ask again")

    async def live(_: bytes) -> Reply:
        return Reply(body=msgspec.json.encode(vitals))

    async def metrics_(_: bytes) -> Reply:
        return Reply(body=metrics.render().encode())

    handlers = {"ready": ready, "live": live, "metrics": metrics_}
    return [
        Endpoint(name=name, subject=subjects.query(name, vitals.service), handler=handler)
        for name, handler in handlers.items()
    ]


class Peers:
    """The replicas of one service whose heartbeats are fresh."""

    def __init__(self, clock: Callable[[], float], gone_after_s: float = GONE_AFTER_S) -> None:
        self._clock = clock
        self._gone_after_s = gone_after_s
        self._seen: dict[str, tuple[float, Vitals]] = {}

    def see(self, vitals: Vitals) -> None:
        """Note a heartbeat."""
        self._seen[vitals.replica] = (self._clock(), vitals)

    def alive(self) -> list[Vitals]:
        """Return the last words of each live replica, by its id."""
        now_s = self._clock()
        self._seen = {name: seen for name, seen in self._seen.items() if now_s - seen[0] < self._gone_after_s}
        return [vitals for _, (_, vitals) in sorted(self._seen.items())]

    async def listen(self, bus: Bus, service: str) -> None:
        """Note the heartbeats of a service's replicas, for ever."""
        async for _, body in bus.listen(subjects.replicas(service)):
            if (vitals := heard(body)) is not None:
                self.see(vitals)


def heard(body: bytes) -> Vitals | None:
    """Return the heartbeat that a body holds; None where it is some other program's words."""
    try:
        return msgspec.json.decode(body, type=Vitals)
    except (ValueError, RecursionError):  # malformed, of another shape, not UTF-8, or nested without end
        return None


async def beat(bus: Bus, vitals: Vitals) -> None:
    """
    Say that this replica is there, every second and whenever it becomes ready or wins or loses the lead, for ever.

    What cannot be sent is not sent later.
    """
    subject = subjects.replica(vitals.service, vitals.replica)
    said, said_ago_s = (False, False), HEARTBEAT_S
    while True:
        now = (vitals.ready, vitals.leading)
        if now != said or said_ago_s >= HEARTBEAT_S:
            said, said_ago_s = now, 0.0
            with suppress(BusError):  # the bus is away; the peers see that by themselves
                await bus.tell(subject, msgspec.json.encode(vitals))
        await asyncio.sleep(_LOOK_S)
        said_ago_s += _LOOK_S
