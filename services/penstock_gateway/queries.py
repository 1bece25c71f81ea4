"""
Queries, and what runs and services report outside of the log.

Each query of :class:`Queries` is a look at the read model, now or as it was at some moment. :class:`Presence` holds
what is reported outside of the log: heartbeats of nodes and services, and the progress of running jobs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import msgspec

from penstock_bus import (
    BodyLimit,
    Delivery,
    Endpoint,
    LogReader,
    RejectionPort,
    ReplicationPort,
    RequestPort,
    SeriesPort,
    TelemetryPort,
)
from penstock_bus.follower import FoldFollower
from penstock_bus.health import GONE_AFTER_S, VERSION, Vitals, parse_vitals
from penstock_bus.port import NoResponders, ServiceError
from penstock_gateway import (
    acceptance,
    aggregation_answers,
    allocation_requests,
    answers,
    device_answers,
    dry_run,
    job_classes,
    job_dependencies,
    log_reader,
    series_answers,
    sight,
    stats_answer,
    story,
    timeline_answers,
    usage_answers,
)
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import Admit, Caller
from penstock_gateway.endpoints import BAD, UNAVAILABLE, RequestRefused, ask, endpoint, job_asked
from penstock_gateway.machine import GatewayState
from penstock_gateway.past_models import PastModels
from penstock_gateway.snapshot_file import IndexDamaged
from penstock_gateway.user_queues import UserQueues
from penstock_log import TERMINAL, Job, JobState, RunEnded, request_bodies, spec, subjects
from penstock_log.aggregation_messages import AggregatorLoads, AggregatorReport
from penstock_log.memory_messages import SlabOffer
from penstock_log.request_bodies import RunProgress
from penstock_log.services import CORE
from penstock_log.views import (
    AggregationView,
    AllocationsView,
    DevicesView,
    DryRunView,
    EventsView,
    JobsView,
    MomentView,
    NodesView,
    NotificationsView,
    PilotTrialView,
    ProfileView,
    QueueView,
    RejectedListView,
    RejectedView,
    ReplicaView,
    SchemaView,
    SeriesView,
    StatsView,
    StatusView,
    StoryView,
    StreamsView,
    SweepsView,
    TimelineView,
    UsageView,
    UsersView,
    UserView,
    View,
)
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings

T = TypeVar("T")
V = TypeVar("V", bound=View)
Answering = Callable[[bytes, Caller], Awaitable[View]]
_SHOWN_BYTES: Final = 2_000
_REJECTED: Final = 200
_PROVIDER_S: Final = 90.0
"""How long the allocator may take to ask a provider."""


class QuerySource(LogReader, RejectionPort, ReplicationPort, RequestPort, SeriesPort, BodyLimit, Protocol):
    """What is answered from beside the read model: the log, what was rejected, metrics, and where streams are kept."""


class Queries:
    """
    The queries of users and operators.

    Parameters
    ----------
    bus, live, presence
        The log, the read model that follows it, and what is reported outside of it.
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
    admit : Admit
        Says who asks, or refuses them.
    owner : str
        The person who is an admin whatever the log says.
    new_queues : callable
        Returns the queues of all users before one kind of query, of which one is answered at a time.
    past : PastModels
        The read models of past moments.
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
        admit: Admit,
        owner: str = "",
        new_queues: Callable[[], UserQueues],
        past: PastModels,
    ) -> None:
        self._bus, self._live, self._presence = bus, live, presence
        self._now_s, self._most_bytes, self._most_s = now_s, most_bytes, most_s
        self._settings, self._may_match, self._sizes = settings or MatcherSettings(), may_match, sizes
        self._past, self._admit, self._owner = past, admit, owner
        self._new_queues = new_queues
        self._queues: list[UserQueues] = []
        self._counting = ThreadPoolExecutor(1, "past")

    def close(self) -> None:
        """Refuse the queries that wait for their turn."""
        for queues in self._queues:
            queues.close()
        self._counting.shutdown(wait=False, cancel_futures=True)

    def endpoints(self) -> list[Endpoint]:
        """Return the queries as endpoints."""
        handlers: dict[str, Answering] = {
            "jobs": self._jobs,
            "job": self._of_one(sight.job, answers.detail),
            "why": self._of_one(sight.job, lambda model, job: model.why.explain(job)),
            "story": self._story,
            "series": self._series,
            "nodes": self._nodes,
            "devices": self._devices,
            "queue": self._queue,
            "aggregation": self._aggregation,
            "events": self._events,
            "policies": self._whole(answers.policies),
            "allocations": self._allocations,
            "try_pilot": self._try_pilot,
            "moment": self._moment,
            "sweeps": self._sweeps,
            "sweep": self._of_one(sight.sweep, answers.sweep),
            "profile": self._profile,
            "dryrun": self._dryrun,
            "rejected": self._rejected,
            "schema": self._schema,
            "status": self._status,
            "stats": self._stats,
            "streams": self._streams,
            "timeline": self._timeline,
            "usage": self._usage,
            "users": self._users,
            "notifications": self._notifications,
            "whoami": self._whoami,
        }
        most_bytes = self._bus.max_body_bytes
        self._queues = [self._new_queues() for _ in handlers]
        return [
            endpoint(
                name,
                subjects.query(name),
                self._admit,
                self._again_if_damaged(handler),
                most_bytes,
                most_s=self._most_s,
                in_turn=queues.slot,
            )
            for (name, handler), queues in zip(handlers.items(), self._queues, strict=True)
        ]

    def _again_if_damaged(self, answering: Answering) -> Answering:
        """Return the same answering, which drops snapshots that cannot be read, and begins again without them."""

        async def handle(body: bytes, caller: Caller) -> View:
            try:
                return await answering(body, caller)
            except IndexDamaged as error:
                await self._past.drop(error)
            return await answering(body, caller)

        return handle

    async def _jobs(self, body: bytes, caller: Caller) -> JobsView:
        asked = ask(body, request_bodies.JobsRequest)
        return answers.jobs(await self._model(asked.at), asked, caller)

    async def _nodes(self, body: bytes, caller: Caller) -> NodesView:
        model = await self._model(ask(body, request_bodies.AllRequest).at)
        return answers.nodes(model, sees_all=caller.sees_all)

    async def _devices(self, body: bytes, caller: Caller) -> DevicesView:
        return device_answers.devices(await self._model(ask(body, request_bodies.AllRequest).at), caller)

    async def _queue(self, body: bytes, caller: Caller) -> QueueView:
        asked = ask(body, request_bodies.QueueRequest)
        return device_answers.queue(await self._model(asked.at), asked, caller)

    async def _aggregation(self, body: bytes, caller: Caller) -> AggregationView:
        asked = ask(body, request_bodies.AggregationRequest)
        model = await self._model(asked.at)
        one = sight.job(model.state, asked.id, caller) if asked.id else None
        return aggregation_answers.aggregation(model, caller, one)

    async def _sweeps(self, body: bytes, caller: Caller) -> SweepsView:
        asked = ask(body, request_bodies.SweepsRequest)
        return answers.sweeps(await self._model(asked.at), asked, caller)

    async def _timeline(self, body: bytes, caller: Caller) -> TimelineView:
        asked = ask(body, request_bodies.TimelineRequest)
        model = await self._model(asked.at, own=True)
        return await self._counted(asked.at, lambda: timeline_answers.timeline(model, asked, caller))

    async def _usage(self, body: bytes, caller: Caller) -> UsageView:
        asked = ask(body, request_bodies.UsageRequest)
        model = await self._model(asked.at, own=True)
        return await self._counted(asked.at, lambda: usage_answers.usage(model, asked, caller))

    async def _counted(self, at: request_bodies.At, answer: Callable[[], V]) -> V:
        """Return an answer that may read very many runs: of the past in a thread, one at a time."""
        if log_reader.parse(at) is None:
            return answer()
        return await asyncio.get_running_loop().run_in_executor(self._counting, answer)

    async def _users(self, body: bytes, caller: Caller) -> UsersView:  # noqa: ARG002 - who may ask was asked before
        model = await self._model(ask(body, request_bodies.AllRequest).at)
        return answers.users(model, self._owner)

    async def _notifications(self, body: bytes, caller: Caller) -> NotificationsView:
        model = await self._model(ask(body, request_bodies.AllRequest).at)
        return answers.notifications(model, caller)

    async def _whoami(self, body: bytes, caller: Caller) -> UserView:
        ask(body, request_bodies.EmptyRequest)
        record = self._live.state.users.by_name.get(caller.name)
        known = UserView.of(record) if record is not None else UserView(name=caller.name, role=caller.role)
        return msgspec.structs.replace(known, role=caller.role, teams=caller.teams)

    async def _story(self, body: bytes, caller: Caller) -> StoryView:
        model, job = await self._found(body, caller, sight.job)
        timeline = story.Timeline(job)
        lines = [line async for delivery in self._life(model, job) for line in timeline.lines(delivery)]
        return StoryView(id=job.id, name=job.spec.name, lines=tuple(lines))

    async def _series(self, body: bytes, caller: Caller) -> SeriesView:
        asked = ask(body, request_bodies.SeriesRequest)
        model = await self._model(asked.at)
        job = sight.job(model.state, asked.id, caller)
        until_s = math.inf if log_reader.parse(asked.at) is None else model.now_s
        return await series_answers.series(self._bus, model, job, asked, until_s)

    async def _profile(self, body: bytes, caller: Caller) -> ProfileView:
        model, key = await self._found(body, caller, sight.workload)
        return answers.profile(model, key, caller)

    def _whole(self, answer: Callable[[ReadModel], View]) -> Answering:
        async def handle(body: bytes, caller: Caller) -> View:  # noqa: ARG001 - everybody may see it
            return answer(await self._model(ask(body, request_bodies.AllRequest).at))

        return handle

    def _of_one(self, find: Find[T], answer: Callable[[ReadModel, T], View]) -> Answering:
        async def handle(body: bytes, caller: Caller) -> View:
            model, one = await self._found(body, caller, find)
            if isinstance(one, Job) and one.state is JobState.PENDING:
                await self._may_match()
            return answer(model, one)

        return handle

    async def _status(self, body: bytes, caller: Caller) -> StatusView:  # noqa: ARG002 - everybody may see it
        asked = ask(body, request_bodies.AllRequest)
        model = await self._model(asked.at)
        if log_reader.parse(asked.at) is not None:
            return answers.status(model, model.seq)
        view = answers.status(model, max(await log_reader.last_seq(self._bus, model.seq), model.seq))
        return msgspec.structs.replace(view, services=self._presence.services(), version=VERSION)

    async def _moment(self, body: bytes, caller: Caller) -> MomentView:  # noqa: ARG002 - everybody may see it
        return await log_reader.moment_of(self._bus, ask(body, request_bodies.AllRequest).at)

    async def _stats(self, body: bytes, caller: Caller) -> StatsView:  # noqa: ARG002 - everybody may see it
        asked = ask(body, request_bodies.AllRequest)
        model = await self._model(asked.at)
        if log_reader.parse(asked.at) is not None:
            return stats_answer.stats(model, model.seq)
        return stats_answer.stats(model, max(await log_reader.last_seq(self._bus, model.seq), model.seq))

    async def _dryrun(self, body: bytes, caller: Caller) -> DryRunView:
        asked = job_asked(body, self._most_bytes)
        asked = msgspec.structs.replace(asked, spec=caller.stamp(asked.spec))
        acceptance.check(asked.spec)
        acceptance.check_parent(asked.spec, caller)
        await self._may_match()
        await log_reader.catch_up(self._bus, self._live)
        state = self._live.state
        spec = job_dependencies.with_whole_ids(state, asked.spec, caller)
        acceptance.check_array(state, spec)
        acceptance.check_beginning(state, spec)
        job_dependencies.check(state, spec, caller)
        job_classes.check(state, spec, self._settings, caller)
        return dry_run.dry_run(state, spec, self._now_s(), self._settings, self._sizes)

    async def _rejected(self, body: bytes, caller: Caller) -> RejectedListView:  # noqa: ARG002 - asked before
        ask(body, request_bodies.EmptyRequest)
        newest = (await self._bus.rejections())[-_REJECTED:]
        shown = [RejectedView.of(one, body=one.body[:_SHOWN_BYTES].decode(errors="replace")) for one in newest]
        return RejectedListView(rejected=tuple(shown))

    async def _allocations(self, body: bytes, caller: Caller) -> AllocationsView:
        model = await self._model(ask(body, request_bodies.AllRequest).at)
        return allocation_requests.answer(model, caller)

    async def _try_pilot(self, body: bytes, caller: Caller) -> PilotTrialView:  # noqa: ARG002 - admins have asked
        """Ask the allocator, which knows where its pilots run: people do not ask it themselves."""
        asked = ask(body, request_bodies.AllocationRequest)
        allocation_requests.check(asked)
        subject = subjects.query("try_pilot", "allocator")
        try:
            found = await self._bus.request(subject, msgspec.json.encode(asked), timeout_s=_PROVIDER_S)
        except ServiceError as error:
            raise RequestRefused(BAD, str(error)) from error
        except NoResponders as error:
            raise RequestRefused(UNAVAILABLE, "no allocator runs; start one: `penstock service allocator`") from error
        return msgspec.json.decode(found, type=PilotTrialView)

    async def _streams(self, body: bytes, caller: Caller) -> StreamsView:  # noqa: ARG002 - everybody may see it
        ask(body, request_bodies.EmptyRequest)
        return StreamsView(streams=tuple(await self._bus.replication()))

    async def _schema(self, body: bytes, caller: Caller) -> SchemaView:  # noqa: ARG002 - everybody may see it
        ask(body, request_bodies.EmptyRequest)
        return SchemaView(job=spec.job_schema(), sweep=spec.sweep_schema())

    async def _events(self, body: bytes, caller: Caller) -> EventsView:
        asked = ask(body, request_bodies.EventsRequest)
        entity_id = self._whole_id(asked.id)
        kinds = sight.kinds_seen(self._live.state, caller, entity_id)
        return await log_reader.answer(self._bus, asked, entity_id, kinds)

    async def _life(self, model: ReadModel, job: Job) -> AsyncIterator[Delivery]:
        """Yield the job's commits, and those of its pool while the job lasted: a pool may have very many."""
        past, own = model.state.histories[job.id], story.own_subjects(job)
        ended_seq = past.last_seq if job.state in TERMINAL else model.seq
        patterns = [*own, *story.shared_subjects(job)]
        async for delivery in log_reader.stretch(self._bus, past.seq - 1, ended_seq, patterns):
            yield delivery
        for subject in own:
            for delivery in await self._bus.read(subject, ended_seq, model.seq):
                yield delivery

    async def _found(self, body: bytes, caller: Caller, find: Find[T]) -> tuple[ReadModel, T]:
        asked = ask(body, request_bodies.OneRequest)
        model = await self._model(asked.at)
        return model, find(model.state, asked.id, caller)

    async def _model(self, at: request_bodies.At, *, own: bool = False) -> ReadModel:
        moment = log_reader.parse(at)
        if moment is not None:
            return replace(await self._past.model_at(moment, own=own), settings=self._settings)
        await log_reader.catch_up(self._bus, self._live)
        return ReadModel(
            state=self._live.state,
            now_s=self._now_s(),
            seq=self._live.last_seq,
            reports=self._presence.reports,
            heartbeats=self._presence.nodes,
            memory=self._presence.memory(),
            aggregators=self._presence.aggregators(),
            settings=self._settings,
        )

    def _whole_id(self, wanted: str) -> str:
        """Return the id that a beginning names, if only one job, sweep or node has it; otherwise the text itself."""
        if not wanted:
            return ""
        state = self._live.state
        known = {*state.jobs.by_id, *state.sweeps, *state.cluster.nodes}
        begin = [key for key in known if key.startswith(wanted)]
        return begin[0] if wanted not in known and len(begin) == 1 else wanted


Find = Callable[[GatewayState, str, Caller], T]


class Presence:
    """The last heartbeats and reports of progress; lost on a restart, and there again within a second."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.nodes: dict[str, float] = {}
        self.reports: dict[str, RunProgress] = {}
        self._memory: dict[str, tuple[float, SlabOffer]] = {}
        self._aggregators: dict[str, tuple[float, AggregatorLoads]] = {}
        self._replicas: dict[tuple[str, str], tuple[float, Vitals | None]] = {}
        self._now_s = now_s

    def listening(self, bus: TelemetryPort) -> list[Coroutine[object, object, None]]:
        """Return the coroutines that listen for heartbeats and progress."""
        return [
            self._hear_nodes(bus),
            self._hear_memory(bus),
            self._hear_aggregators(bus),
            self._hear_progress(bus),
            *(self._hear_replicas(bus, service) for service in CORE),
        ]

    def services(self) -> tuple[ReplicaView, ...]:
        """Return the replicas whose heartbeat is not too old."""
        now_s = self._now_s()
        self._replicas = {who: last for who, last in self._replicas.items() if now_s - last[0] < GONE_AFTER_S}
        return tuple(
            ReplicaView.of(*filter(None, [vitals]), service=service, id=replica_id, heard_s=heard_s)
            for (service, replica_id), (heard_s, vitals) in sorted(self._replicas.items())
        )

    def memory(self) -> dict[str, tuple[float, SlabOffer]]:
        """Return what memory agents offer that were heard of late, and when."""
        now_s = self._now_s()
        self._memory = {who: last for who, last in self._memory.items() if now_s - last[0] < GONE_AFTER_S}
        return dict(self._memory)

    def aggregators(self) -> dict[str, tuple[float, AggregatorReport]]:
        """Return what was said of aggregators by agents that were heard of late, and when."""
        now_s = self._now_s()
        self._aggregators = {who: last for who, last in self._aggregators.items() if now_s - last[0] < GONE_AFTER_S}
        return {one.aggregator: (heard_s, one) for heard_s, said in self._aggregators.values() for one in said.loads}

    def forget(self, delivery: Delivery) -> None:
        """Drop the progress of runs that have ended: from then on the log counts."""
        for fact in delivery.commit.facts:
            if isinstance(fact, RunEnded):
                self.reports.pop(fact.job_id, None)

    async def _hear_nodes(self, bus: TelemetryPort) -> None:
        async for subject, _ in bus.subscribe(subjects.HEARTBEATS):
            self.nodes[_last_token(subject)] = self._now_s()

    async def _hear_memory(self, bus: TelemetryPort) -> None:
        async for subject, body in bus.subscribe(subjects.MEMORY_OFFERS):
            try:
                offer = msgspec.json.decode(body, type=SlabOffer)
            except (ValueError, RecursionError):
                continue  # of an agent of another version; nobody depends on it
            self._memory[_last_token(subject)] = self._now_s(), offer

    async def _hear_aggregators(self, bus: TelemetryPort) -> None:
        async for subject, body in bus.subscribe(subjects.AGGREGATOR_LOADS):
            try:
                said = msgspec.json.decode(body, type=AggregatorLoads)
            except (ValueError, RecursionError):
                continue  # of an agent of another version; nobody depends on it
            self._aggregators[_last_token(subject)] = self._now_s(), said

    async def _hear_replicas(self, bus: TelemetryPort, service: str) -> None:
        async for subject, body in bus.subscribe(subjects.replicas(service)):
            self._replicas[service, _last_token(subject)] = self._now_s(), parse_vitals(body)

    async def _hear_progress(self, bus: TelemetryPort) -> None:
        async for subject, body in bus.subscribe(subjects.PROGRESS):
            try:
                report = msgspec.json.decode(body, type=RunProgress)
            except (ValueError, RecursionError):
                continue  # not a job's progress; nobody depends on it
            job_id = _last_token(subject)
            self.reports[job_id] = _later(self.reports.get(job_id, RunProgress()), report)


def _later(before: RunProgress, now: RunProgress) -> RunProgress:
    """Return the later of two reports of a job; a late report of an earlier run changes nothing."""
    if now.epoch != before.epoch:
        return max(before, now, key=lambda report: report.epoch)
    return msgspec.structs.replace(
        now,
        step=max(now.step, before.step),
        samples=max(now.samples, before.samples),
        metrics={**before.metrics, **now.metrics},
    )


def _last_token(subject: str) -> str:
    return subject.rpartition(".")[2]
