"""
Queries, and what is heard outside of the log.

Each query of :class:`Queries` is a look at the read model, now or as it was at some moment. :class:`Presence` holds
what is heard outside of the log: heartbeats of nodes and services, and the progress of running jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Final, Protocol

import msgspec

from penstock_bus import BodyLimit, Delivery, Endpoint, LogReader, RejectionPort, TelemetryPort
from penstock_bus.follower import FoldFollower
from penstock_bus.health import GONE_AFTER_S, VERSION, Vitals, heard
from penstock_gateway import acceptance, dry_run, log_reader, story, views
from penstock_gateway.endpoints import Answering, ask, endpoint, job_asked
from penstock_gateway.job_history import RunReport
from penstock_gateway.machine import GatewayState
from penstock_gateway.views import ReadView
from penstock_log import TERMINAL, Job, JobState, RunEnded, request_bodies, spec, subjects
from penstock_log.services import CORE
from penstock_log.views import (
    DryRunView,
    EventsView,
    JobDetail,
    JobsView,
    NodesView,
    PoliciesView,
    ProfileView,
    RejectedListView,
    RejectedView,
    ReplicaView,
    SchemaView,
    StatusView,
    StoryView,
    SweepsView,
    SweepView,
    WhyView,
)
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings

_SHOWN_BYTES: Final = 2_000
_REJECTED: Final = 200


class QuerySource(LogReader, RejectionPort, BodyLimit, Protocol):
    """What is answered from beside the read model: the log itself, and what was rejected."""


class Queries:
    """
    The queries of users and operators.

    Parameters
    ----------
    bus, live, presence
        The log, the read model that follows it, and what is heard outside of it.
    may_match : callable
        Awaited before a query asks a round, and only then: a gateway without such queries never loads the compiler.
    now_s : callable
        Seconds since the epoch.
    most_bytes : int
        Size of the largest specification of a dry run.
    most_s : float
        Longest time for which one query keeps the next of its kind waiting, in seconds.
    settings : MatcherSettings
        Settings of the matcher.
    sizes : SizingSettings, optional
        Settings of the autoscaler.
    """

    def __init__(
        self,
        bus: QuerySource,
        live: FoldFollower[GatewayState],
        presence: Presence,
        *,
        may_match: Callable[[], Awaitable[None]],
        now_s: Callable[[], float],
        most_bytes: int,
        most_s: float,
        settings: MatcherSettings | None = None,
        sizes: SizingSettings | None = None,
    ) -> None:
        self._bus, self._live, self._presence = bus, live, presence
        self._now_s, self._most_bytes, self._most_s = now_s, most_bytes, most_s
        self._settings, self._may_match, self._sizes = settings or MatcherSettings(), may_match, sizes
        self._looking_back = asyncio.Lock()

    def endpoints(self) -> list[Endpoint]:
        """Return the queries as endpoints."""
        handlers: dict[str, Answering] = {
            "jobs": self._jobs,
            "job": self._job,
            "why": self._why,
            "story": self._story,
            "nodes": self._nodes,
            "events": self._events,
            "policies": self._policies,
            "sweeps": self._sweeps,
            "sweep": self._sweep,
            "profile": self._profile,
            "dryrun": self._dryrun,
            "rejected": self._rejected,
            "schema": self._schema,
            "status": self._status,
        }
        most_bytes = self._bus.max_body_bytes
        return [
            endpoint(name, subjects.query(name), handler, most_bytes, self._most_s)
            for name, handler in handlers.items()
        ]

    async def _jobs(self, body: bytes) -> JobsView:
        asked = ask(body, request_bodies.JobsRequest)
        return views.jobs(await self._scene(asked.at), asked)

    async def _job(self, body: bytes) -> JobDetail:
        scene, job = await self._one(body)
        if job.state is JobState.PENDING:
            await self._may_match()
        return views.detail(scene, job)

    async def _why(self, body: bytes) -> WhyView:
        scene, job = await self._one(body)
        if job.state is JobState.PENDING:
            await self._may_match()
        return scene.why.explain(job)

    async def _story(self, body: bytes) -> StoryView:
        scene, job = await self._one(body)
        teller = story.Timeline(job)
        lines = [line async for delivery in self._life(scene, job) for line in teller.lines(delivery)]
        return StoryView(id=job.id, name=job.spec.name, lines=tuple(lines))

    async def _nodes(self, body: bytes) -> NodesView:
        return views.nodes(await self._scene(ask(body, request_bodies.AllRequest).at))

    async def _policies(self, body: bytes) -> PoliciesView:
        return views.policies(await self._scene(ask(body, request_bodies.AllRequest).at))

    async def _sweeps(self, body: bytes) -> SweepsView:
        return views.sweeps(await self._scene(ask(body, request_bodies.AllRequest).at))

    async def _sweep(self, body: bytes) -> SweepView:
        asked = ask(body, request_bodies.OneRequest)
        scene = await self._scene(asked.at)
        return views.sweep(scene, acceptance.sweep_named(scene.state, asked.id))

    async def _profile(self, body: bytes) -> ProfileView:
        asked = ask(body, request_bodies.OneRequest)
        scene = await self._scene(asked.at)
        return views.profile(scene, acceptance.workload_named(scene.state, asked.id))

    async def _status(self, body: bytes) -> StatusView:
        asked = ask(body, request_bodies.AllRequest)
        scene = await self._scene(asked.at)
        if log_reader.parse(asked.at) is not None:
            return views.status(scene, scene.seq)
        view = views.status(scene, max(await self._bus.last_seq(), scene.seq))
        return msgspec.structs.replace(view, services=self._presence.services(), version=VERSION)

    async def _dryrun(self, body: bytes) -> DryRunView:
        asked = job_asked(body, self._most_bytes)
        acceptance.check(asked.spec)
        await self._may_match()
        await log_reader.catch_up(self._bus, self._live)
        return dry_run.dry_run(self._live.state, asked.spec, self._now_s(), self._settings, self._sizes)

    async def _rejected(self, body: bytes) -> RejectedListView:
        ask(body, request_bodies.EmptyRequest)
        newest = (await self._bus.rejections())[-_REJECTED:]
        shown = [
            RejectedView(
                reason=one.reason,
                origin=one.origin,
                body=one.body[:_SHOWN_BYTES].decode(errors="replace"),
                stored_s=one.stored_s,
            )
            for one in newest
        ]
        return RejectedListView(rejected=tuple(shown))

    async def _schema(self, body: bytes) -> SchemaView:
        ask(body, request_bodies.EmptyRequest)
        return SchemaView(job=spec.job_schema(), sweep=spec.sweep_schema())

    async def _events(self, body: bytes) -> EventsView:
        asked = ask(body, request_bodies.EventsRequest)
        return await log_reader.answer(self._bus, asked, self._whole_id(asked.id))

    async def _life(self, scene: ReadView, job: Job) -> AsyncIterator[Delivery]:
        """Yield the job's commits, and those of its pool while the job lasted: a pool may have very many."""
        past, own = scene.state.histories[job.id], story.own_subjects(job)
        ended_seq = past.last_seq if job.state in TERMINAL else scene.seq
        patterns = [*own, *story.shared_subjects(job)]
        async for delivery in log_reader.stretch(self._bus, past.seq - 1, ended_seq, patterns):
            yield delivery
        for subject in own:
            for delivery in await self._bus.read(subject, ended_seq, scene.seq):
                yield delivery

    async def _one(self, body: bytes) -> tuple[ReadView, Job]:
        asked = ask(body, request_bodies.OneRequest)
        scene = await self._scene(asked.at)
        return scene, acceptance.job_named(scene.state, asked.id)

    async def _scene(self, at: request_bodies.At) -> ReadView:
        moment = log_reader.parse(at)
        if moment is not None:
            async with self._looking_back:  # one at a time: each builds a whole read model of its own
                scene = await log_reader.scene_at(self._bus, self._live.fold.decider, moment)
                return replace(scene, settings=self._settings)
        await log_reader.catch_up(self._bus, self._live)
        return ReadView(
            state=self._live.state,
            now_s=self._now_s(),
            seq=self._live.last_seq,
            told=self._presence.told,
            heard=self._presence.nodes,
            settings=self._settings,
        )

    def _whole_id(self, wanted: str) -> str:
        """Return the id that a beginning names, if only one job, sweep or node has it; otherwise the word itself."""
        if not wanted:
            return ""
        state = self._live.state
        known = {*state.jobs.by_id, *state.sweeps, *state.cluster.nodes}
        begin = [key for key in known if key.startswith(wanted)]
        return begin[0] if wanted not in known and len(begin) == 1 else wanted


_SAID: Final = ("ready", "elected", "leading", "term_s", "lease_s", "last_seq", "decided_seq", "undecided_s")


class Presence:
    """The last heartbeats and progress that were heard; lost on a restart, and heard again within a second."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Start without having heard anybody."""
        self.nodes: dict[str, float] = {}
        self.told: dict[str, RunReport] = {}
        self._replicas: dict[tuple[str, str], tuple[float, Vitals | None]] = {}
        self._now_s = now_s

    def listening(self, bus: TelemetryPort) -> list[Coroutine[object, object, None]]:
        """Return the coroutines that listen for heartbeats and progress."""
        return [
            self._hear_nodes(bus),
            self._hear_progress(bus),
            *(self._hear_replicas(bus, service) for service in CORE),
        ]

    def services(self) -> tuple[ReplicaView, ...]:
        """Return the replicas that were heard lately."""
        now_s = self._now_s()
        self._replicas = {who: last for who, last in self._replicas.items() if now_s - last[0] < GONE_AFTER_S}
        return tuple(_shown(*who, *self._replicas[who]) for who in sorted(self._replicas))

    def forget(self, delivery: Delivery) -> None:
        """Drop the progress of runs that have ended: from then on the log's word counts."""
        for fact in delivery.commit.facts:
            if isinstance(fact, RunEnded):
                self.told.pop(fact.job_id, None)

    async def _hear_nodes(self, bus: TelemetryPort) -> None:
        async for subject, _ in bus.listen(subjects.HEARTBEATS):
            self.nodes[_last_token(subject)] = self._now_s()

    async def _hear_replicas(self, bus: TelemetryPort, service: str) -> None:
        async for subject, body in bus.listen(subjects.replicas(service)):
            self._replicas[service, _last_token(subject)] = self._now_s(), heard(body)

    async def _hear_progress(self, bus: TelemetryPort) -> None:
        async for subject, body in bus.listen(subjects.PROGRESS):
            try:
                told = msgspec.json.decode(body, type=RunReport)
            except (ValueError, RecursionError):
                continue  # not a job's progress; nobody depends on it
            job_id = _last_token(subject)
            self.told[job_id] = _later(self.told.get(job_id, RunReport()), told)


def _later(before: RunReport, told: RunReport) -> RunReport:
    """Return the later of two reports of a job; a late report of an earlier run changes nothing."""
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
