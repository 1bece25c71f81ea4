"""The gateway's queries: each is a look at the read model, now or as it was at some moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from penstock_bus import Bus, Delivery, Endpoint
from penstock_bus.health import VERSION
from penstock_bus.live import LiveFold
from penstock_events import TERMINAL, Job, asks, schema, subjects, tag_of, workload
from penstock_events.views import (
    DryRunView,
    EventsView,
    EventView,
    JobDetail,
    JobsView,
    NodesView,
    RejectedListView,
    RejectedView,
    SchemaView,
    StatusView,
    StoryView,
    SweepsView,
    SweepView,
    WhyView,
)
from penstock_gateway import accept, acts, dryrun, moments, show, story
from penstock_gateway.bodies import Answering, ask, endpoint, job_asked
from penstock_gateway.machine import State
from penstock_gateway.presence import Presence
from penstock_gateway.show import Scene

_SHOWN_BYTES: Final = 2_000
_REJECTED: Final = 200


class Queries:
    """What people ask."""

    def __init__(
        self, bus: Bus, live: LiveFold[State], presence: Presence, *, now_s: Callable[[], float], most_bytes: int
    ) -> None:
        """Look at the read model ``live``; ``most_bytes`` bounds the specification of a dry run."""
        self._bus, self._live, self._presence = bus, live, presence
        self._now_s, self._most_bytes = now_s, most_bytes

    def endpoints(self) -> list[Endpoint]:
        """Return the queries as endpoints."""
        handlers: dict[str, Answering] = {
            "jobs": self._jobs,
            "job": self._job,
            "why": self._why,
            "story": self._story,
            "nodes": self._nodes,
            "events": self._events,
            "sweeps": self._sweeps,
            "sweep": self._sweep,
            "dryrun": self._dryrun,
            "rejected": self._rejected,
            "schema": self._schema,
            "status": self._status,
        }
        most_bytes = self._bus.max_body_bytes
        return [endpoint(name, subjects.query(name), handler, most_bytes) for name, handler in handlers.items()]

    async def _jobs(self, body: bytes) -> JobsView:
        asked = ask(body, asks.JobsAsk)
        return show.jobs(await self._scene(asked.at), asked)

    async def _job(self, body: bytes) -> JobDetail:
        scene, job = await self._one(body)
        return show.detail(scene, job)

    async def _why(self, body: bytes) -> WhyView:
        scene, job = await self._one(body)
        return scene.why.explain(job)

    async def _story(self, body: bytes) -> StoryView:
        scene, job = await self._one(body)
        lines = story.tell(job, await self._life(scene, job))
        return StoryView(id=job.id, name=job.spec.name, lines=tuple(lines))

    async def _nodes(self, body: bytes) -> NodesView:
        return show.nodes(await self._scene(ask(body, asks.AllAsk).at))

    async def _sweeps(self, body: bytes) -> SweepsView:
        return show.sweeps(await self._scene(ask(body, asks.AllAsk).at))

    async def _sweep(self, body: bytes) -> SweepView:
        asked = ask(body, asks.OneAsk)
        scene = await self._scene(asked.at)
        return show.sweep(scene, acts.sweep_named(scene.state, asked.id))

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
        await moments.catch_up(self._bus, self._live)
        return dryrun.dry_run(self._live.state, asked.spec, self._now_s())

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
        moment = moments.parse(asked.at)
        last_seq = await self._bus.last_seq()
        until = last_seq if moment is None or moment.seq is None else min(moment.seq, last_seq)
        found = await (self._about(asked, until) if asked.id else self._stretch(asked, until))
        facts = [view for one in found if moment is None or not moment.excludes(one) for view in _events_of(one)]
        chosen = _whole_commits(facts, asked.limit) if asked.after is not None else facts[-asked.limit :]
        return EventsView(events=tuple(chosen), seq=chosen[-1].seq if chosen else asked.after or until)

    async def _about(self, asked: asks.EventsAsk, until_seq: int) -> list[Delivery]:
        """Return the commits on an entity's own subjects, by exact reads: a pattern costs the server far more."""
        exact = [subjects.entity(kind, self._whole_id(asked.id)) for kind in subjects.WRITERS]
        return await self._read(exact, asked.after or 0, until_seq)

    async def _stretch(self, asked: asks.EventsAsk, until_seq: int) -> list[Delivery]:
        """Return commits of all entities: the next ones behind ``after``, or the newest."""
        if asked.after is None:
            return await self._bus.read(moments.EVERYTHING, max(0, until_seq - asked.limit), until_seq)
        for after_seq in range(asked.after, until_seq, asked.limit):
            stretch = (after_seq, min(after_seq + asked.limit, until_seq))
            if found := await self._bus.read(moments.EVERYTHING, *stretch):
                return found
        return []

    async def _life(self, scene: Scene, job: Job) -> list[Delivery]:
        past = scene.state.histories[job.id]
        ended = past.last_seq if job.state in TERMINAL else scene.seq
        own = [subjects.job(job.id), subjects.run(job.id)]
        key = job.profile_key or workload.key(job.spec)
        shared = [subjects.rank(job.spec.pool), subjects.round_(job.spec.pool), subjects.profile(key)]
        parts = await asyncio.gather(self._read(own, past.seq - 1, scene.seq), self._read(shared, past.seq - 1, ended))
        return sorted(parts[0] + parts[1], key=lambda delivery: delivery.seq)

    async def _read(self, exact: list[str], after_seq: int, until_seq: int) -> list[Delivery]:
        found = await asyncio.gather(*(self._bus.read(subject, after_seq, until_seq) for subject in exact))
        return sorted((delivery for some in found for delivery in some), key=lambda delivery: delivery.seq)

    async def _one(self, body: bytes) -> tuple[Scene, Job]:
        asked = ask(body, asks.OneAsk)
        scene = await self._scene(asked.at)
        return scene, acts.job_named(scene.state, asked.id)

    async def _scene(self, at: asks.At) -> Scene:
        moment = moments.parse(at)
        if moment is not None:
            return await moments.scene_at(self._bus, self._live.fold.decider, moment)
        await moments.catch_up(self._bus, self._live)
        return Scene(
            state=self._live.state,
            now_s=self._now_s(),
            seq=self._live.last_seq,
            told=self._presence.told,
            heard=self._presence.nodes,
        )

    def _whole_id(self, wanted: str) -> str:
        """Return the id that a beginning names, if only one job, sweep or node has it; else what was given."""
        state = self._live.state
        known = {*state.jobs.by_id, *state.sweeps, *state.cluster.nodes}
        begin = [key for key in known if key.startswith(wanted)]
        return begin[0] if wanted not in known and len(begin) == 1 else wanted


def _events_of(delivery: Delivery) -> list[EventView]:
    views = []
    for fact in delivery.commit.facts:
        plain = msgspec.to_builtins(fact)
        plain.pop("type", None)
        plain.pop("at_s", None)
        view = EventView(
            seq=delivery.seq,
            stored_s=delivery.stored_s,
            subject=delivery.subject,
            actor=delivery.commit.actor,
            cause=delivery.commit.cause,
            type=tag_of(fact),
            at_s=fact.at_s,
            fact=plain,
        )
        views.append(view)
    return views


def _whole_commits(facts: list[EventView], limit: int) -> list[EventView]:
    """Cut to about ``limit``, but never within a commit: the next question goes on behind its sequence."""
    if len(facts) <= limit:
        return facts
    last_seq = facts[limit - 1].seq
    return [fact for fact in facts if fact.seq <= last_seq]
