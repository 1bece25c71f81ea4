"""Submit the demo's workload to a running Penstock, show what happens, and collect what came of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import penstock
from demo import outcome, workload
from demo.events import facts_after
from demo.outcome import JobOutcome, Run, Summary
from demo.workload import Arrival
from penstock_bus import ServiceError
from penstock_log import JobSubmitted, JobTable, RoundDecided, RunEnded, RunStarted, ScaleDecided, views

PAGE = 1000
AverageJct = Callable[[str], float]
"""Returns the average completion time of the workload under a policy by name, in seconds."""
Sleep = Callable[[float], Awaitable[object]]


class Display(Protocol):
    """Shows what happens while it does."""

    async def watch(self, client: penstock.Client) -> None:
        """Show what happens until cancelled."""

    async def finish(self, client: penstock.Client) -> None:
        """Show what has happened since; called once everything is over."""

    def refuse(self, name: str, reason: str) -> None:
        """Show that a job was not accepted."""


async def play(client: penstock.Client, display: Display, limit_s: float, average_jct_s: AverageJct) -> Summary:
    """Run the whole workload; jobs that have not ended after ``limit_s`` seconds are reported as they are."""
    watching = asyncio.ensure_future(display.watch(client))
    playing = Playing(client, display)
    try:
        async with asyncio.timeout(limit_s):
            sweep_state = await playing.run()
    except TimeoutError:
        sweep_state = f"unfinished after {limit_s:.0f} s"
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)  # what it did not show, the display does in the end
    await display.finish(client)
    found = (await client.jobs(limit=PAGE)).jobs
    return await _summary(client, found, playing.refusals, sweep_state, average_jct_s)


class Playing:
    """
    The workload in its order: what a claim of the demo rests on is waited for until it has happened.

    Parameters
    ----------
    sleep : callable
        Waits for a number of seconds.
    """

    def __init__(self, client: penstock.Client, display: Display, sleep: Sleep = asyncio.sleep) -> None:
        self._client, self._display, self._sleep = client, display, sleep
        self.refusals: list[JobOutcome] = []

    async def run(self) -> str:
        """Submit everything and wait for its end; return the sweep's state."""
        long_id = await self._submit(workload.first())
        await self._until(long_id, "run.started.v1")
        async with asyncio.TaskGroup() as group:
            sweep = group.create_task(self._sweep())
            group.create_task(self._wait(long_id))
            for arrival in workload.crowd():
                group.create_task(self._one(arrival))
        await self._grow()
        return sweep.result()

    async def _one(self, arrival: Arrival) -> None:
        await self._sleep(arrival.at_s)
        await self._wait(await self._submit(arrival))

    async def _sweep(self) -> str:
        await self._sleep(workload.SWEEP_AT_S)
        answer = await self._client.tune(workload.sweep())
        finished_seq = await self._until(answer.id, "sweep.finished.v1")
        return (await self._client.sweep(answer.id, at=finished_seq)).state

    async def _grow(self) -> None:
        """Have the elastic job train on one device, and take the other one away from its holder then."""
        holder_id = await self._submit(workload.holder())
        await self._until(holder_id, "run.started.v1")
        elastic_id = await self._submit(workload.elastic())
        await self._until(elastic_id, "run.checkpointed.v1")
        await self._client.cancel(holder_id, reason=f"the demo cancels it so that {workload.ELASTIC} can grow")
        await self._wait(holder_id)
        await self._wait(elastic_id)

    async def _submit(self, arrival: Arrival) -> str:
        """Return the id of a submitted job, or nothing if it was refused."""
        try:
            answer = await self._client.submit(arrival.spec, strict=arrival.end == "refused")
        except ServiceError as error:
            self.refusals.append(outcome.refused(arrival.spec.name, str(error)))
            self._display.refuse(arrival.spec.name, str(error))
            return ""
        return answer.id

    async def _wait(self, job_id: str) -> None:
        if job_id:
            await self._client.wait(job_id)

    async def _until(self, entity_id: str, tag: str) -> int:
        async for event in self._client.follow_events(entity_id):
            if event.type == tag:
                return event.seq
        raise AssertionError("a followed log does not end")


async def _summary(
    client: penstock.Client,
    found: Iterable[views.JobView],
    refusals: list[JobOutcome],
    sweep_state: str,
    average_jct_s: AverageJct,
) -> Summary:
    views_ = list(found)
    runs = await _runs(client)
    named = (outcome.of_job(view, runs[view.id]) for view in views_ if not view.parent)
    lines = {line.name: line for line in [*named, *refusals]}
    trials = [outcome.of_job(view) for view in views_ if view.parent]
    wrong = [] if sweep_state == "completed" else [f"sweep: expected completed, got {sweep_state}"]
    for arrival in workload.arrivals():
        name = arrival.spec.name
        wrong += outcome.faults(arrival, lines[name]) if name in lines else [f"{name}: was never submitted"]
    wrong += outcome.trial_faults(trials)
    done = [view for view in views_ if view.state == "CD"]
    for view in done:
        wrong += outcome.step_faults(outcome.of_job(view), runs[view.id])
    return Summary(
        ok=not wrong,
        avg_jct_s=sum(view.jct_s or 0.0 for view in done) / max(1, len(done)),
        virtual_avg_jct_s=average_jct_s("configured"),
        fifo_avg_jct_s=average_jct_s("fifo"),
        wrong=tuple(wrong),
        jobs=(*lines.values(), *trials),
    )


async def _runs(client: penstock.Client) -> dict[str, list[Run]]:
    """Return each job's runs as the log has them."""
    jobs, runs = JobTable(), defaultdict[str, list[Run]](list)
    async for _, event in facts_after(client, 0):
        job = jobs.get(event.job_id) if isinstance(event, RunEnded) else None
        if isinstance(event, RunEnded) and job is not None and job.placement is not None and job.started_s:
            runs[job.id].append(Run(ended=event.outcome, loop_steps=event.loop_steps, gpus=job.spec.gpus))
        if isinstance(event, JobSubmitted | RoundDecided | RunStarted | RunEnded | ScaleDecided):
            jobs.apply(event)
    return runs
