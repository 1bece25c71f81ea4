"""What a service finds around it while it runs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from penstock_bus import clock, health
from penstock_bus.clock import Clock, ticks
from penstock_bus.metrics import Metrics
from penstock_bus.port import Bus, BusError
from penstock_bus.tasks import background


@dataclass
class Shell:
    """
    What a service finds around it.

    Attributes
    ----------
    bus : Bus
    service, replica_id : str
    stopping : asyncio.Event
        Set when the service is to end: finish what is under way and return.
    vitals : Vitals
        What health and heartbeats say; a service without a :class:`~penstock_bus.replica.Replica` sets ``ready``.
    clock : callable
        Seconds since the epoch, which only ever go on: the cluster's time, see :mod:`penstock_bus.clock`.
    url : str
        Where the bus is; empty where it has no address.
    monotonic : callable
        Seconds that never jump: for leases and for who is alive.
    ready_file : Path or None
        Its age tells health checks whether the service is ready; see :func:`penstock_bus.health.mark`.
    examine : callable
        Called with the vitals before they are told: brings up to date what nobody else does.
    busy : callable
        Whether a stopping service still has to finish something that needs no bus, such as the executor's processes;
        otherwise it ends at once if the bus does not answer.
    """

    bus: Bus
    service: str
    replica_id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Callable[[], float] = field(default_factory=Clock)
    url: str = ""
    monotonic: Callable[[], float] = ticks
    ready_file: Path | None = None
    busy: Callable[[], bool] = lambda: False
    examine: Callable[[health.Vitals], None] = lambda vitals: None  # noqa: ARG005

    def __post_init__(self) -> None:
        self.log: structlog.stdlib.BoundLogger = structlog.get_logger(f"penstock.{self.service}")
        self.metrics = Metrics(service=self.service, replica=self.replica_id)
        self.vitals = health.Vitals(service=self.service, replica=self.replica_id)
        self.progress = health.Progress(self.vitals, self.monotonic)
        self._peers = health.Peers(self.monotonic)

    def now_s(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self.clock()

    async def take_time(self, services: Iterable[str]) -> None:
        """Take over the time that these services decide by, or the log's; this machine's, where nobody can be asked."""
        if not isinstance(self.clock, Clock):
            return
        try:
            self.clock.start(await clock.cluster_time(self.bus, services))
        except BusError as error:
            self.log.warning("cluster_time_unknown", error=str(error), advice="this machine's clock is used")

    def peers(self) -> list[str]:
        """Return the ids of this service's live replicas, sorted, this one included."""
        return sorted({self.replica_id, *(vitals.replica for vitals in self._peers.alive())})

    def report(self) -> health.Vitals:
        """Return what this replica says of itself by now."""
        self.vitals.now_s = self.now_s()
        self.examine(self.vitals)
        return self.vitals

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer health requests, say and hear heartbeats while the context is open."""
        metadata = {"replica": self.replica_id, "pid": str(self.vitals.pid), "host": self.vitals.host}
        served = health.endpoints(self.report, self.metrics)
        async with (
            self.bus.serve(f"penstock-{self.service}", health.VERSION, served, metadata),
            background(health.beat(self.bus, self.report), self._hear_replicas(), self._keep_time()),
        ):
            yield

    async def _hear_replicas(self) -> None:
        async for vitals in self._peers.listen(self.bus, self.service):
            if self.ready_file is not None and vitals.replica == self.replica_id:
                health.mark(self.ready_file, vitals)

    async def _keep_time(self) -> None:
        if isinstance(self.clock, Clock):
            await clock.keep(self.bus, self.clock)
