"""Series of metrics on a real cluster: over ends, preemptions, and the death of an executor."""

from __future__ import annotations

import os
import signal
from contextlib import aclosing

import msgspec
import pytest
from clusters import Cluster, command_of, until

import penstock
from penstock_log import subjects
from penstock_log.request_bodies import RunProgress
from penstock_log.views import SeriesView

TRAINING = """
import math, time
import penstock

def save(path): (path / "state").write_text("kept")
def load(path): assert (path / "state").read_text() == "kept"

with penstock.session() as session:
    session.on_checkpoint(save, load)
    steps, pause_s = int(session.params["steps"]), float(session.params["pause_s"])
    for step in session.iterations(range(steps)):
        session.report(loss=1 / (1 + step), **({"rare": step} if step > 5 else {}))
        if session.params.get("nan") and step == steps - 1:
            session.report(loss=math.nan)
        time.sleep(pause_s)
"""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The command of a training that reports and saves."""
    return command_of(TRAINING, tmp_path_factory.mktemp("job"))


async def submitted(client: penstock.Client, training: tuple[str, str], **params: float) -> str:
    fields = {"steps": 20, "pause_s": 0.0, **params}
    return (await client.submit(name="seen", command=training, profile="off", params=fields)).id


async def test_the_series_of_a_job_that_has_ended_goes_to_its_last_step(
    cluster: Cluster, training: tuple[str, str]
) -> None:
    async with cluster.client() as client:
        job_id = await submitted(client, training, pause_s=0.1)
        assert (await client.wait(job_id)).state == "CD"
        series = await client.metrics(job_id)
        assert series.steps[-1] == 20
        assert series.metrics["loss"][-1] == pytest.approx(1 / 20)
        assert [*series.metrics] == ["loss", "rare"]
        assert list(series.steps) == sorted(set(series.steps))
        assert {len(column) for column in series.columns().values()} == {len(series.steps)}
        assert len(series.steps) >= 3


async def test_a_job_that_reports_nothing_has_no_rows(cluster: Cluster) -> None:
    async with cluster.client() as client:
        job_id = (await client.submit(name="silent", command=("true",), profile="off")).id
        await client.wait(job_id)
        assert (await client.metrics(job_id)).steps == ()


async def test_a_metric_that_ends_as_no_number_is_named(cluster: Cluster, training: tuple[str, str]) -> None:
    async with cluster.client() as client:
        job_id = await submitted(client, training, nan=1)
        await client.wait(job_id)
        series = await client.metrics(job_id)
        assert series.diverged["loss"][-1] == len(series.steps) - 1


async def test_the_runs_of_a_preempted_job_are_one_series(cluster: Cluster, training: tuple[str, str]) -> None:
    async with cluster.client() as client:
        job_id = await submitted(client, training, steps=60, pause_s=0.05)
        node = (await client.nodes()).nodes[0].id
        await _reports(client, job_id, 10)
        await client.drain(node, preempt=True)
        await until(client, job_id, "run.ended.v1")
        await client.resume(node)
        assert (await client.wait(job_id)).state == "CD"
        series = await client.metrics(job_id)
        assert sorted(set(series.runs)) == [1, 2]
        assert list(series.steps) == sorted(set(series.steps))
        assert series.steps[-1] == 60


async def test_a_run_that_outlives_its_executor_goes_on_with_its_series(
    cluster: Cluster, training: tuple[str, str]
) -> None:
    async with cluster.client() as client:
        job_id = await submitted(client, training, steps=400, pause_s=0.05)
        first = await _published(client, job_id)
        [pid] = cluster.pids("executor")
        os.kill(pid, signal.SIGKILL)
        assert (await client.wait(job_id)).state == "CD"
        series = await client.metrics(job_id)
        assert set(series.runs) == {1}
        assert series.steps[: len(first.steps) // 2] == first.steps[: len(first.steps) // 2]
        assert series.steps[-1] == 400


async def _reports(client: penstock.Client, job_id: str, steps: int) -> None:
    """Wait until a job has reported that it is so far."""
    async with aclosing(client.bus.subscribe(subjects.progress(job_id))) as reports:  # type: ignore[type-var]
        async for _, body in reports:
            if msgspec.json.decode(body, type=RunProgress).step >= steps:
                return


async def _published(client: penstock.Client, job_id: str) -> SeriesView:
    """Return the series once its first part is in the stream."""
    async with aclosing(client.bus.subscribe(subjects.all_series(job_id))) as messages:  # type: ignore[type-var]
        await anext(messages)
    return await client.metrics(job_id)
