"""
The export of jobs' spans by OpenTelemetry's protocol.

:func:`export_spans` follows the log, and one replica at a time sends the spans of jobs to ``[dashboard]
otlp_endpoint``. It keeps how far it has come beside the other services' states: a restart goes on there. A span may be
sent twice, under the same id. What a collector does not take is tried again; the log keeps it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from penstock_bus import Bus, Delivery, Snapshot
from penstock_bus.follower import until_available
from penstock_bus.health import VERSION
from penstock_bus.replica import LeaderElection
from penstock_bus.settings import SettingsError
from penstock_bus.shell import Shell
from penstock_dashboard import job_spans
from penstock_dashboard.job_spans import SCHEMA, JobSpan, SpanState

NAME: Final = "dashboard"
"""Of lease and state: what the dashboard's login may write."""
BATCH: Final = 512
WAIT_S: Final = 2.0
"""Spans wait so long for others, so that one request has many."""
AGAIN_S: Final = 5.0
_LEASE_S: Final = 5.0
MOST_REFUSED: Final = 60
"""So often spans are offered again, fewer each time; then the first of them are dropped, which is said."""


class SpanExporter(Protocol):
    """Where spans go."""

    def export(self, spans: Sequence[JobSpan]) -> bool:
        """Send spans and say whether they were taken; may block."""
        ...


def otlp_exporter(endpoint: str) -> SpanExporter:
    """
    Return an exporter to a collector, by OTLP over HTTP.

    Raises
    ------
    SettingsError
        If the extra ``otel`` is not installed.
    """
    try:
        from penstock_dashboard.otlp import OtlpExporter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"[dashboard] otlp_endpoint needs OpenTelemetry ({error.name} is not here): pip install 'penstock[otel]'"
        ) from error
    return OtlpExporter(endpoint, VERSION)


async def export_spans(shell: Shell, exporter: SpanExporter, *, batch: int = BATCH, wait_s: float = WAIT_S) -> None:
    """Send the spans of all jobs, for ever, while this replica leads."""
    changed = asyncio.Event()
    election = LeaderElection(
        shell.bus, NAME, shell.replica_id, changed.set, ttl_s=_LEASE_S, renew_s=_LEASE_S / 3, clock=shell.monotonic
    )
    async with election.kept():
        while True:
            while not election.held:
                await changed.wait()
                changed.clear()
            await _SpanFollower(shell, exporter, lambda: election.held, batch, wait_s).run()


class _SpanFollower:
    """One term of the replica that leads."""

    def __init__(
        self, shell: Shell, exporter: SpanExporter, leads: Callable[[], bool], batch: int, wait_s: float
    ) -> None:
        self._bus: Bus = shell.bus
        self._log, self._exporter, self._leads, self._stopping = shell.log, exporter, leads, shell.stopping
        self._batch, self._wait_s = batch, wait_s
        self._state, self._seq = SpanState(), 0
        self._spans: list[JobSpan] = []

    async def run(self) -> None:
        """Follow the log from where the last leader was, until the lead is lost."""
        await self._load()
        deliveries = self._bus.follow(self._seq)
        pending: asyncio.Task[Delivery] | None = None
        try:
            while self._leads():
                if pending is None:
                    pending = asyncio.ensure_future(anext(deliveries))
                done, _ = await asyncio.wait({pending}, timeout=self._wait_s)
                if done:
                    delivery = await pending
                    pending = None
                    for fact in delivery.commit.facts:
                        self._spans += job_spans.apply(self._state, fact, delivery.commit, delivery.seq)
                    self._seq = delivery.seq
                if self._spans and (not done or len(self._spans) >= self._batch):
                    await self._send()
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)
            await deliveries.aclose()

    async def _load(self) -> None:
        snapshot = await until_available(lambda: self._bus.load_snapshot(NAME), "load spans' state", self._stopping)
        if snapshot is not None and snapshot.schema == SCHEMA:
            self._state = msgspec.json.decode(snapshot.state, type=SpanState)
            last_seq = await until_available(self._bus.last_seq, "read the log's end", self._stopping)
            self._seq = min(snapshot.last_seq, last_seq)

    async def _send(self) -> None:
        """Send what is there until it is taken, and note how far the log was sent."""
        refused = 0
        while self._leads() and self._spans:
            part = tuple(self._spans[: max(1, len(self._spans) >> refused)])
            if await asyncio.to_thread(self._exporter.export, part):
                del self._spans[: len(part)]
                refused = 0
                continue
            refused += 1
            if refused > MOST_REFUSED:  # it takes others, or nothing for minutes: one span must not keep all others
                self._log.error("spans_dropped", spans=len(part), span=part[0].name, trace=part[0].trace_id)
                del self._spans[: len(part)]
                continue
            self._log.warning("spans_not_taken", spans=len(part), again_s=AGAIN_S)
            await asyncio.sleep(AGAIN_S)
        snapshot = Snapshot(schema=SCHEMA, last_seq=self._seq, state=msgspec.json.encode(self._state))
        if not self._spans:
            await until_available(lambda: self._bus.save_snapshot(NAME, snapshot), "save spans' state", self._stopping)
