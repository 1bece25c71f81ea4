"""Submit the demo's workload to a running Penstock, watch it, and collect what came of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

import penstock
from demo import outcome, workload
from demo.outcome import JobOutcome, Measured, Run, Summary
from demo.workload import Arrival
from penstock_bus import ServiceError
from penstock_events import AnyEvent, Jobs, JobSubmitted, RoundDecided, RunEnded, RunStarted, ScaleDecided, views

Show = Callable[[Iterable[views.JobView]], None]
REFRESH_S = 0.5
PAGE = 1000


async def play(client: penstock.Client, show: Show, limit_s: float) -> Summary:
    """Run the whole workload; jobs that have not ended after ``limit_s`` seconds are reported as they are."""
    ids: dict[str, str] = {}
    lines: list[JobOutcome] = []
    watching = asyncio.ensure_future(_watch(client, show))
    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            sweep = group.create_task(_sweep(client))
            for arrival in workload.arrivals():
                group.create_task(_one(client, arrival, ids, lines))
        sweep_state = sweep.result()
    except TimeoutError:
        sweep_state = f"unfinished after {limit_s:.0f} s"
    finally:
        watching.cancel()
    found = (await client.jobs(limit=PAGE)).jobs
    show(found)
    return await _summary(client, found, lines, sweep_state)


async def _one(client: penstock.Client, arrival: Arrival, ids: dict[str, str], refusals: list[JobOutcome]) -> None:
    """Submit one job at its time and wait for its end; the one to be cancelled is cancelled once it runs."""
    await asyncio.sleep(arrival.at_s)
    try:
        answer = await client.submit(arrival.spec, strict=arrival.end == "refused")
    except ServiceError as error:
        refusals.append(outcome.refused(arrival.spec.name, str(error)))
        return
    ids[arrival.spec.name] = answer.id
    if arrival.end == "CA":
        await _until(client, answer.id, "run.started.v1")
        await client.cancel(answer.id, reason="the demo cancels it once it runs")
    await client.wait(answer.id)


async def _sweep(client: penstock.Client) -> str:
    await asyncio.sleep(workload.SWEEP_AT_S)
    answer = await client.tune(workload.sweep())
    finished_seq = await _until(client, answer.id, "sweep.finished.v1")
    return (await client.sweep(answer.id, at=finished_seq)).state


async def _until(client: penstock.Client, entity_id: str, tag: str) -> int:
    async for event in client.follow_events(entity_id):
        if event.type == tag:
            return event.seq
    raise AssertionError("a followed log does not end")


async def _watch(client: penstock.Client, show: Show) -> None:
    while True:
        show((await client.jobs(limit=PAGE)).jobs)
        await asyncio.sleep(REFRESH_S)


async def _summary(
    client: penstock.Client, found: Iterable[views.JobView], refusals: list[JobOutcome], sweep_state: str
) -> Summary:
    arrivals = {arrival.spec.name: arrival for arrival in workload.arrivals()}
    views_ = list(found)
    runs = await _runs(client)
    named = (outcome.of_job(view, runs[view.id]) for view in views_ if not view.parent)
    lines = {line.name: line for line in [*named, *refusals]}
    trials = [outcome.of_job(view) for view in views_ if view.parent]
    wrong = [] if sweep_state == "completed" else [f"sweep: expected completed, got {sweep_state}"]
    ends_s = {name: arrival.at_s + (lines[name].jct_s or 0.0) for name, arrival in arrivals.items() if name in lines}
    last = max(ends_s, key=lambda name: ends_s[name], default="")
    for name, arrival in arrivals.items():
        if name != last:
            arrival = msgspec.structs.replace(arrival, grows=False)  # noqa: PLW2901 - nobody left it anything
        wrong += outcome.faults(arrival, lines[name]) if name in lines else [f"{name}: was never submitted"]
    wrong += outcome.trial_faults(trials)
    done = [view for view in views_ if view.state == "CD"]
    for view in done:
        wrong += outcome.step_faults(outcome.of_job(view), runs[view.id])
    return Summary(
        ok=not wrong,
        avg_jct_s=sum(view.jct_s or 0.0 for view in done) / max(1, len(done)),
        fifo_avg_jct_s=outcome.fifo_avg_jct_s([await _measured(client, view, runs[view.id]) for view in done]),
        wrong=tuple(wrong),
        jobs=(*lines.values(), *trials),
    )


async def _measured(client: penstock.Client, view: views.JobView, runs: list[Run]) -> Measured:
    detail = await client.job(view.id)
    gpus = min((run.gpus for run in runs if run.loop_steps), default=view.gpus) if view.max_gpus else view.gpus
    return Measured(submitted_s=view.submitted_s, gpus=gpus, kinds=view.kinds, speeds=detail.speeds, runs=tuple(runs))


async def _runs(client: penstock.Client) -> dict[str, list[Run]]:
    """Return each job's runs as the log has them."""
    jobs, runs = Jobs(), defaultdict[str, list[Run]](list)
    async for event in _facts(client):
        job = jobs.get(event.job_id) if isinstance(event, RunEnded) else None
        if isinstance(event, RunEnded) and job is not None and job.placement is not None and job.started_s:
            run = Run(
                kind=job.placement.kind,
                ended=event.outcome,
                run_s=event.at_s - job.started_s,
                loop_s=event.loop_s,
                loop_steps=event.loop_steps,
                gpus=job.spec.gpus,
                samples=max(0, event.samples - job.samples),
            )
            runs[job.id].append(run)
        if isinstance(event, JobSubmitted | RoundDecided | RunStarted | RunEnded | ScaleDecided):
            jobs.apply(event)
    return runs


async def _facts(client: penstock.Client) -> AsyncIterator[AnyEvent]:
    after = 0
    while page := (await client.events(after=after, limit=PAGE)).events:
        for view in page:
            yield msgspec.convert({**view.fact, "type": view.type, "at_s": view.at_s}, AnyEvent)
        after = page[-1].seq
