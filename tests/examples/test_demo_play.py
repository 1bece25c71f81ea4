"""The order in which the demo submits its jobs: what each of them waits for."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from demo import workload
from demo.play import Playing
from penstock_bus import ServiceError
from penstock_log import JobSpec, SweepSpec, views

OTHERS = {arrival.spec.name for arrival in [workload.first(), *workload.crowd()] if arrival.end == "CD"}


class Cluster:
    """A client whose jobs do what a test says; their ids are their names."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self._told: defaultdict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)

    def tell(self, name: str, tag: str) -> None:
        self._told[name, tag].set()

    async def submit(self, spec: JobSpec, *, strict: bool) -> views.SubmitAnswer:
        if strict:
            raise ServiceError(400, "it can never fit")
        self.submitted.append(spec.name)
        return views.SubmitAnswer(id=spec.name, seq=1, created=True)

    async def tune(self, spec: SweepSpec) -> views.SubmitAnswer:
        return views.SubmitAnswer(id=spec.name, seq=1, created=True)

    async def cancel(self, job_id: str, **_: str) -> None:
        self.cancelled.append(job_id)

    async def wait(self, job_id: str) -> None:
        await self._told[job_id, "over"].wait()

    async def sweep(self, _sweep_id: str, **_: int) -> Any:
        return type("Sweep", (), {"state": "completed"})

    async def follow_events(self, entity_id: str) -> AsyncIterator[views.EventView]:
        for tag in ("run.started.v1", "run.checkpointed.v1", "sweep.finished.v1"):
            if tag.startswith("sweep") == (entity_id == "digits"):
                await self._told[entity_id, tag].wait()
                nothing = {"stored_s": 0.0, "subject": "", "actor": "", "cause": 0, "at_s": 0.0, "fact": {}}
                yield views.EventView(seq=1, type=tag, **nothing)


class Display:
    def __init__(self) -> None:
        self.refused: list[str] = []

    def refuse(self, name: str, _reason: str) -> None:
        self.refused.append(name)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def no_time(_seconds: float) -> None:
    await asyncio.sleep(0)


@pytest.fixture
async def cluster():
    cluster = Cluster()
    cluster.display = Display()
    cluster.playing = Playing(cluster, cluster.display, no_time)
    cluster.run = asyncio.ensure_future(cluster.playing.run())
    await settle()
    yield cluster
    cluster.run.cancel()
    await asyncio.gather(cluster.run, return_exceptions=True)


async def test_the_others_come_once_the_first_job_runs(cluster):
    assert cluster.submitted == ["long"]
    cluster.tell("long", "run.started.v1")
    await settle()
    assert set(cluster.submitted) == OTHERS
    assert cluster.display.refused == [line.name for line in cluster.playing.refusals] == ["never-fits"]


async def test_the_elastic_job_comes_when_all_others_are_over_and_one_device_is_taken(cluster):
    cluster.tell("long", "run.started.v1")
    cluster.tell("digits", "sweep.finished.v1")
    for name in OTHERS - {"mlp-e"}:
        cluster.tell(name, "over")
    await settle()
    assert set(cluster.submitted) == OTHERS
    cluster.tell("mlp-e", "over")
    await settle()
    assert cluster.submitted[-1] == "to-be-cancelled"
    cluster.tell("to-be-cancelled", "run.started.v1")
    await settle()
    assert cluster.submitted[-1] == "elastic"


async def test_the_device_is_given_up_once_the_elastic_job_has_trained_on_the_other_one(cluster):
    for name in (*OTHERS, "to-be-cancelled"):
        cluster.tell(name, "run.started.v1")
        cluster.tell(name, "over")
    cluster.tell("digits", "sweep.finished.v1")
    cluster.tell("elastic", "run.started.v1")
    await settle()
    assert (cluster.submitted[-1], cluster.cancelled) == ("elastic", [])
    cluster.tell("elastic", "run.checkpointed.v1")
    await settle()
    assert cluster.cancelled == ["to-be-cancelled"]
    cluster.tell("elastic", "over")
    assert await cluster.run == "completed"
