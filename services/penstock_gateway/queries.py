"""The gateway's queries: each is a look at the read model, now or as it was at some moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Final

import msgspec

from penstock_bus import Bus, Delivery, Endpoint
from penstock_bus.health import VERSION
from penstock_bus.live import LiveFold
from penstock_events import TERMINAL, Job, State, asks, schema, subjects
from penstock_events.views import (
    DryRunView,
    EventsView,
    JobDetail,
    JobsView,
    NodesView,
    PoliciesView,
    ProfileView,
    RejectedListView,
    RejectedView,
    SchemaView,
    StatusView,
    StoryView,
    SweepsView,
    SweepView,
    WhyView,
)
from penstock_gateway import accept, acts, dryrun, events, moments, reading, show, story, sweep_views
from penstock_gateway.bodies import Answering, ask, endpoint, job_asked
from penstock_gateway.machine import State as ReadModel
from penstock_gateway.presence import Presence
from penstock_gateway.show import Scene
from penstock_policies.autoscale.settings import Settings as Sizes
from penstock_policies.rounds.settings import Settings

_SHOWN_BYTES: Final = 2_000
_REJECTED: Final = 200


class Queries:
    """
    What people ask.

    Parameters
    ----------
    bus, live, presence
        The log, the read model that follows it, and what is heard beside it.
    may_match : callable
        Awaited before a round is asked. Only then: a gateway that nobody asks such things never loads the compiler.
    now_s : callable
        Seconds since the epoch.
    most_bytes : int
        Bounds the specification of a dry run.
    most_s : float
        Bounds how long one question keeps the next of its kind waiting, in seconds.
    settings : Settings
        By which the matcher decides.
    sizes : Sizes, optional
        By which the autoscaler does.
    """

    def __init__(
        self,
        bus: Bus,
        live: LiveFold[ReadModel],
        presence: Presence,
        *,
        may_match: Callable[[], Awaitable[None]],
        now_s: Callable[[], float],
        most_bytes: int,
        most_s: float,
        settings: Settings | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self._bus, self._live, self._presence = bus, live, presence
        self._now_s, self._most_bytes, self._most_s = now_s, most_bytes, most_s
        self._settings, self._may_match, self._sizes = settings or Settings(), may_match, sizes
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
        asked = ask(body, asks.JobsAsk)
        return show.jobs(await self._scene(asked.at), asked)

    async def _job(self, body: bytes) -> JobDetail:
        scene, job = await self._one(body)
        if job.state is State.PENDING:
            await self._may_match()
        return show.detail(scene, job)

    async def _why(self, body: bytes) -> WhyView:
        scene, job = await self._one(body)
        if job.state is State.PENDING:
            await self._may_match()
        return scene.why.explain(job)

    async def _story(self, body: bytes) -> StoryView:
        scene, job = await self._one(body)
        teller = story.Teller(job)
        lines = [line async for delivery in self._life(scene, job) for line in teller.lines(delivery)]
        return StoryView(id=job.id, name=job.spec.name, lines=tuple(lines))

    async def _nodes(self, body: bytes) -> NodesView:
        return show.nodes(await self._scene(ask(body, asks.AllAsk).at))

    async def _policies(self, body: bytes) -> PoliciesView:
        return show.policies(await self._scene(ask(body, asks.AllAsk).at))

    async def _sweeps(self, body: bytes) -> SweepsView:
        return sweep_views.sweeps(await self._scene(ask(body, asks.AllAsk).at))

    async def _sweep(self, body: bytes) -> SweepView:
        asked = ask(body, asks.OneAsk)
        scene = await self._scene(asked.at)
        return sweep_views.sweep(scene, acts.sweep_named(scene.state, asked.id))

    async def _profile(self, body: bytes) -> ProfileView:
        asked = ask(body, asks.OneAsk)
        scene = await self._scene(asked.at)
        return show.profile(scene, acts.workload_named(scene.state, asked.id))

    async def _status(self, body: bytes) -> StatusView:
        asked = ask(body, asks.AllAsk)
        scene = await self._scene(asked.at)
        if moments.parse(asked.at) is not None:
            return show.status(scene, scene.seq)
        view = show.status(scene, max(await self._bus.last_seq(), scene.seq))
        return msgspec.structs.replace(view, services=self._presence.services(), version=VERSION)

    async def _dryrun(self, body: bytes) -> DryRunView:
        asked = job_asked(body, self._most_bytes)
        accept.check(asked.spec)
        await self._may_match()
        await moments.catch_up(self._bus, self._live)
        return dryrun.dry_run(self._live.state, asked.spec, self._now_s(), self._settings, self._sizes)

    async def _rejected(self, body: bytes) -> RejectedListView:
        ask(body, asks.NothingAsk)
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
        ask(body, asks.NothingAsk)
        return SchemaView(job=schema.job_schema(), sweep=schema.sweep_schema())

    async def _events(self, body: bytes) -> EventsView:
        asked = ask(body, asks.EventsAsk)
        return await events.answer(self._bus, asked, self._whole_id(asked.id))

    async def _life(self, scene: Scene, job: Job) -> AsyncIterator[Delivery]:
        """Yield what the log has about a job; of its pool only while the job lasted, for that may be much."""
        past, own = scene.state.histories[job.id], story.own_subjects(job)
        ended_seq = past.last_seq if job.state in TERMINAL else scene.seq
        patterns = [*own, *story.shared_subjects(job)]
        async for delivery in reading.stretch(self._bus, past.seq - 1, ended_seq, patterns):
            yield delivery
        for subject in own:
            for delivery in await self._bus.read(subject, ended_seq, scene.seq):
                yield delivery

    async def _one(self, body: bytes) -> tuple[Scene, Job]:
        asked = ask(body, asks.OneAsk)
        scene = await self._scene(asked.at)
        return scene, acts.job_named(scene.state, asked.id)

    async def _scene(self, at: asks.At) -> Scene:
        moment = moments.parse(at)
        if moment is not None:
            async with self._looking_back:  # one at a time: each builds a whole read model of its own
                scene = await moments.scene_at(self._bus, self._live.fold.decider, moment)
                return replace(scene, settings=self._settings)
        await moments.catch_up(self._bus, self._live)
        return Scene(
            state=self._live.state,
            now_s=self._now_s(),
            seq=self._live.last_seq,
            told=self._presence.told,
            heard=self._presence.nodes,
            settings=self._settings,
        )

    def _whole_id(self, wanted: str) -> str:
        """Return the id that a beginning names, if only one job, sweep or node has it; else what was given."""
        if not wanted:
            return ""
        state = self._live.state
        known = {*state.jobs.by_id, *state.sweeps, *state.cluster.nodes}
        begin = [key for key in known if key.startswith(wanted)]
        return begin[0] if wanted not in known and len(begin) == 1 else wanted
