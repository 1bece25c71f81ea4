"""What is heard outside the log: heartbeats of nodes and services, and the progress of running jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Final

import msgspec

from penstock_bus import Bus, Delivery
from penstock_bus.health import GONE_AFTER_S, Vitals, heard
from penstock_events import RunEnded, subjects
from penstock_events.views import ReplicaView
from penstock_gateway.sizing import Told

SERVICES: Final = tuple(sorted(set(subjects.WRITERS.values())))

_SAID: Final = ("ready", "elected", "leading", "term_s", "lease_s", "last_seq", "decided_seq", "undecided_s")


class Presence:
    """The last words of everybody; lost on a restart, and heard again within a second."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Start without having heard anybody."""
        self.nodes: dict[str, float] = {}
        self.told: dict[str, Told] = {}
        self._replicas: dict[tuple[str, str], tuple[float, Vitals | None]] = {}
        self._now_s = now_s

    def listening(self, bus: Bus) -> list[Coroutine[object, object, None]]:
        """Return what is to run while there is somebody to hear."""
        return [
            self._hear_nodes(bus),
            self._hear_progress(bus),
            *(self._hear_replicas(bus, service) for service in SERVICES),
        ]

    def services(self) -> tuple[ReplicaView, ...]:
        """Return the replicas that were heard lately."""
        now_s = self._now_s()
        self._replicas = {who: last for who, last in self._replicas.items() if now_s - last[0] < GONE_AFTER_S}
        return tuple(_shown(*who, *self._replicas[who]) for who in sorted(self._replicas))

    def forget(self, delivery: Delivery) -> None:
        """Drop the progress of runs that have ended: what the log says of them now counts."""
        for fact in delivery.commit.facts:
            if isinstance(fact, RunEnded):
                self.told.pop(fact.job_id, None)

    async def _hear_nodes(self, bus: Bus) -> None:
        async for subject, _ in bus.listen(subjects.HEARTBEATS):
            self.nodes[_last_token(subject)] = self._now_s()

    async def _hear_replicas(self, bus: Bus, service: str) -> None:
        async for subject, body in bus.listen(subjects.replicas(service)):
            self._replicas[service, _last_token(subject)] = self._now_s(), heard(body)

    async def _hear_progress(self, bus: Bus) -> None:
        async for subject, body in bus.listen(subjects.PROGRESS):
            try:
                told = msgspec.json.decode(body, type=Told)
            except (ValueError, RecursionError):
                continue  # not a job's progress; nobody depends on it
            job_id = _last_token(subject)
            self.told[job_id] = _later(self.told.get(job_id, Told()), told)


def _later(before: Told, told: Told) -> Told:
    """Return what is known of a run after another word of it; those of an earlier run that come late say nothing."""
    if told.epoch < before.epoch:
        return before
    if told.epoch > before.epoch:
        return told
    return msgspec.structs.replace(
        told,
        step=max(told.step, before.step),
        samples=max(told.samples, before.samples),
        metrics={**before.metrics, **told.metrics},
    )


def _shown(service: str, replica_id: str, heard_s: float, vitals: Vitals | None) -> ReplicaView:
    view = ReplicaView(service=service, id=replica_id, heard_s=heard_s)
    if vitals is None:  # some other program's words; nobody depends on them
        return view
    return msgspec.structs.replace(view, **{name: getattr(vitals, name) for name in _SAID})


def _last_token(subject: str) -> str:
    return subject.rpartition(".")[2]
