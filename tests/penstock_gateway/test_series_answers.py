"""The query ``series``: a job's metrics over its runs, bounded, with what was reported last."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from gateway_cases import (
    NOW_S,
    PATIENCE_S,
    Gateway,
    ended,
    gateway,
    joined,
    placed,
    preempted,
    refusal,
    started,
    submitted,
)

from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_gateway import series_answers
from penstock_log import subjects
from penstock_log.agent_protocol import LoopReport
from penstock_log.request_bodies import RunProgress
from penstock_log.run_series import RunSeries


def series_of(steps: range, *, job_id: str = "j1", epoch: int = 1, begun_step: int = 0, metrics: int = 1) -> RunSeries:
    made = RunSeries(job_id=job_id, epoch=epoch)
    for step in steps:
        values = {f"m{i}": float(step) for i in range(1, metrics)} | {"loss": 1.0 / step}
        report = LoopReport(step=step, loop_steps=step - begun_step, loop_s=1.0, metrics=values)
        made.add(report, NOW_S + step)
    return made


async def written(running: Gateway, *runs: RunSeries) -> None:
    for one in runs:
        await running.bus.write_series(one.job_id, one.epoch, one.encode(running.bus.max_body_bytes))


@pytest_asyncio.fixture
async def running() -> AsyncIterator[Gateway]:
    server = MemoryServer(now=lambda: NOW_S + 10)
    async with MemoryBus(server) as bus, gateway(bus, joined(), submitted(), placed(), started()) as made:
        yield made


async def test_the_runs_of_a_job_are_one_table_without_the_steps_that_were_done_anew(running: Gateway) -> None:
    await running.told(preempted(), ended(outcome="preempted"), placed(epoch=2), started(epoch=2))
    await written(running, series_of(range(1, 11)), series_of(range(6, 9), epoch=2, begun_step=5))
    found = await running.query("series", {"id": "j1"})
    assert found["steps"] == [*range(1, 9)]
    assert found["runs"] == [1] * 5 + [2] * 3
    assert found["metrics"] == {"loss": [1.0 / step for step in range(1, 9)]}
    assert (found["superseded"], found["name"], found["state"]) == (5, "job", "R")


async def test_what_was_reported_since_the_last_publication_is_in_it(running: Gateway) -> None:
    await written(running, series_of(range(1, 3)))
    progress = RunProgress(job_id="j1", epoch=1, step=7, loop_steps=7, metrics={"loss": 0.25})
    await running.bus.publish(subjects.progress("j1"), msgspec.json.encode(progress))
    async with asyncio.timeout(PATIENCE_S):
        found = await running.query("series", {"id": "j1"})
        while len(found["steps"]) < 3:
            found = await running.query("series", {"id": "j1"})
    assert found["steps"] == [1, 2, 7]
    assert found["metrics"]["loss"][-1] == 0.25


async def test_a_job_without_metrics_has_no_rows(running: Gateway) -> None:
    found = await running.query("series", {"id": "j1"})
    assert (found["steps"], found["metrics"]) == ([], {})


async def test_metrics_are_chosen_by_name_and_an_unknown_one_is_refused_with_those_there_are(running: Gateway) -> None:
    await written(running, series_of(range(1, 4), metrics=3))
    found = await running.query("series", {"id": "j1", "names": ["m2"]})
    assert [*found["metrics"]] == ["m2"]
    code, problem = await refusal(running.query("series", {"id": "j1", "names": ["los"]}))
    assert code == 404
    assert "no series of los; it has m1, m2" in problem


async def test_values_that_are_no_finite_number_are_named(running: Gateway) -> None:
    one = series_of(range(1, 4))
    one.columns["loss"][1] = math.nan
    await written(running, one)
    found = await running.query("series", {"id": "j1"})
    assert found["metrics"]["loss"] == [1.0, None, 1 / 3]
    assert found["diverged"] == {"loss": [1]}


@pytest.mark.parametrize("most", [2, 10, 100])
async def test_there_are_no_more_rows_than_were_asked_for(running: Gateway, most: int) -> None:
    await written(running, series_of(range(1, 500)))
    steps = (await running.query("series", {"id": "j1", "most": most}))["steps"]
    assert len(steps) <= most
    assert (steps[0], steps[-1]) == (1, 499)


@pytest.mark.parametrize("most", [0, 1, -5, 10_001, "many"])
async def test_a_number_of_rows_that_makes_no_table_is_refused(running: Gateway, most: object) -> None:
    code, problem = await refusal(running.query("series", {"id": "j1", "most": most}))
    assert code == 400
    assert "$.most" in problem


async def test_a_past_moment_has_the_rows_up_to_it(running: Gateway) -> None:
    await written(running, series_of(range(1, 500)))
    found = await running.query("series", {"id": "j1", "at": NOW_S + 10})
    assert found["steps"] == [*range(1, 11)]


async def test_a_table_too_large_for_a_message_has_fewer_rows() -> None:
    server = MemoryServer(max_body_bytes=40_000)
    async with MemoryBus(server) as bus, gateway(bus, joined(), submitted(), placed(), started()) as running:
        runs = [series_of(range(100 * i + 1, 100 * i + 101), epoch=i, begun_step=100 * i, metrics=4) for i in range(9)]
        await written(running, *runs)
        found = await running.query("series", {"id": "j1", "most": 10_000})
        assert len(msgspec.json.encode(found)) <= 40_000
        assert (found["steps"][0], found["steps"][-1]) == (1, 900)
        assert len(found["steps"]) > 100


async def test_a_message_that_is_no_series_is_left_out(running: Gateway) -> None:
    await running.bus.write_series("j1", 3, b"\xc1 what is this")
    await written(running, series_of(range(1, 4)))
    assert (await running.query("series", {"id": "j1"}))["steps"] == [1, 2, 3]


async def test_a_run_that_is_later_than_a_past_moment_has_no_rows_to_give_up(
    running: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_answers, "_MOST_AT_ONCE", 5)
    later = series_of(range(50, 60), epoch=1)
    await written(running, later, series_of(range(1, 11), epoch=2))
    found = await running.query("series", {"id": "j1", "at": NOW_S + 10})
    assert (found["steps"][0], found["steps"][-1]) == (1, 10)
    assert len(found["steps"]) <= 5
