"""The page of one job: its state and why, its story, runs, metrics, output, environment, checkpoints and cost."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.submission import EXPORTED
from penstock_dashboard import charts
from penstock_dashboard.charts import BarPart, Chart, ChartLine, ChartPoint
from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.job_story import JobPast, checkpoints_of
from penstock_dashboard.kept_series import Points, joined
from penstock_dashboard.metric_series import SAMPLES_PER_S, STEPS_PER_S, JobSeries
from penstock_dashboard.page import STATES, TEMPLATES, PageContent, PageRequest, gpu_hours, pieces, size, utc
from penstock_dashboard.pages.queue_page import CAUSES
from penstock_log import JobSpec, request_bodies
from penstock_log.job_state import ACTIVE, TERMINAL, JobState
from penstock_log.text import count, duration, listed
from penstock_log.views import EventsView, JobDetail, JobsView, JobView, RunView, SizingView

Field = tuple[str, Any]
_FORBIDDEN: Final = 403
_MOST_STORY: Final = 500
_MOST_CHECKPOINTS: Final = 10
_BAR_PARTS: Final = 200
_OUTCOMES: Final = frozenset({"completed", "failed", "preempted", "cancelled", "lost", "timed_out"})
_OF_RATES: Final = {STEPS_PER_S: "Steps per second", SAMPLES_PER_S: "Samples per second"}
_DEVICES: Final = "devices"
_BATCH: Final = "batch"
_SIZED: Final = "samples/s of each run"
_GAP_S: Final = 0.1
"""After a run its line breaks off: what is written of times has tenths of seconds."""
_CAUSES: Final = {"running": "it runs", "stopping": "it is being stopped", "finished": "it is over"}


async def job_page(visit: PageRequest) -> PageContent:
    """Show one job; to whom the gateway refuses its details, what the list of jobs shows."""
    wanted = visit.params["id"]
    try:
        detail = await visit.gateway.query(
            visit.visitor, "job", request_bodies.OneRequest(id=wanted, at=visit.moment), JobDetail
        )
    except PageRefused as refusal:
        if refusal.status != _FORBIDDEN:
            raise
        return await _outlined(visit, wanted, refusal)
    past = await visit.jobs.stories.of(visit.visitor, detail, visit.at)
    series = visit.jobs.series.of_job(detail.job.id) if not visit.at else None
    now_s, job = detail.now_s, detail.job
    is_over = JobState(job.state) in TERMINAL
    kept = await visit.jobs.kept.of_job(visit.visitor, job.id, visit.at, is_over=is_over)
    lines = list(_lines(detail, joined(kept, series)))
    return PageContent(
        title=f"Job {job.id}{f' · {job.name}' if job.name else ''}",
        template="job.html",
        regions={
            "head": _fields(_head(detail)),
            "actions": _actions(visit, job),
            "why": _fields(_why(detail)),
            "bar": _bar(detail),
            "runs": _run_rows(detail),
            "values": _values(job, series),
            "charts": charts.chart_cards(_charts(lines), job.submitted_s),
            "points": charts.point_rows(lines, job.submitted_s),
            "story": _story(past, visit),
            "cost": _fields(_cost(detail)),
            "checkpoints": _checkpoints(past),
        },
        values={
            "job": job,
            "environment": list(_environment(detail)),
            "env": sorted((name, value) for name, value in detail.spec.env.items() if name not in EXPORTED),
            "exported": sorted((name, value) for name, value in detail.spec.env.items() if name in EXPORTED),
            "params": sorted(detail.spec.params.items()),
            "may_act": visit.visitor.signed_in and not visit.at,
            "own": detail,
        },
        now_s=now_s,
    )


async def _outlined(visit: PageRequest, wanted: str, refusal: PageRefused) -> PageContent:
    asked = request_bodies.JobsRequest(ids=(wanted,), at=visit.moment)
    view = await visit.gateway.query(visit.visitor, "jobs", asked, JobsView)
    if not view.jobs:
        raise refusal
    job = view.jobs[0]
    return PageContent(
        title=f"Job {job.id}",
        template="job_outline.html",
        regions={"head": _fields(_outline(job))},
        values={"sentence": str(refusal)},
    )


def _fields(fields: Iterator[Field]) -> dict[str, str]:
    return pieces("pieces/field.html", [(name, {"value": value}) for name, value in fields if value not in ("", None)])


def _outline(job: JobView) -> Iterator[Field]:
    yield "state", _state(job)
    yield "user", job.user or "nobody"
    yield "team", job.team
    yield "pool", job.pool
    yield "class", job.priority_class
    yield "asks for", _asks(job)
    yield "devices", listed(job.placed_on, nothing="")
    yield "had before", listed([name for name in job.devices if name not in job.placed_on], nothing="")
    yield "submitted", ("moment", job.submitted_s)
    yield "first started", ("moment", job.started_s) if job.started_s else ""
    yield "finished", ("moment", job.finished_s) if job.finished_s else ""
    yield "waited", duration(job.wait_s) if job.state != JobState.PENDING else ""
    yield "ran", duration(job.run_s) if job.state not in ACTIVE and job.run_s else ""


def _state(job: JobView) -> str:
    text = STATES.get(JobState(job.state), job.state) if job.state in {*STATES} else job.state
    return f"{text}, on hold" if job.held else text


def _asks(job: JobView) -> str:
    kinds = f" of {' or '.join(job.kinds)}" if job.kinds else ""
    devices = f"{job.min_gpus or 1} to {job.max_gpus} devices" if job.max_gpus else count(job.gpus, "device")
    host = [
        f"{job.cpus:g} processors" if job.cpus else "",
        size(job.host_memory_bytes) if job.host_memory_bytes else "",
    ]
    per_device = f", {' and '.join(filter(None, host))} of the host for each" if any(host) else ""
    return f"{devices}{kinds}{per_device}"


def _head(detail: JobDetail) -> Iterator[Field]:
    job, sizing = detail.job, detail.sizing
    state = _state(job)
    yield "state", ("since", state, detail.why.since_s) if job.state not in TERMINAL else state
    for name, value in _outline(job):
        if name != "state":
            yield name, value
        if name == "asks for" and sizing is not None:
            yield "size", _size(sizing)
        if name == "devices" and job.sharing != "exclusive":
            yield "sharing", f"by {'turns' if job.sharing == 'lane' else 'a part'}, {job.share:.0%} of the time"
    yield "steps", f"{job.steps:,}" if job.steps else ""
    yield "samples", f"{job.samples:,}" if job.samples else ""
    yield "runs", _tries(detail)
    yield "sweep", ("sweep", job.parent) if job.parent else ""
    if (parked := detail.parked) is not None:
        yield "parked", f"on {parked.node_id} ({size(parked.held_bytes)})"
    yield "queue", str(job.queue) if job.queue is not None and job.state == JobState.PENDING else ""
    yield "reason", job.reason
    yield "exit code", str(job.exit_code) if job.exit_code is not None else ""
    for number, warning in enumerate(job.warnings):
        yield f"warning {number + 1}", ("warning", warning)


def _size(sizing: SizingView) -> str:
    devices = f"{count(sizing.size.gpus, 'device')} (of {sizing.widths[0]} to {sizing.widths[1]})"
    batch = f", batch {sizing.size.batch_size}" if sizing.size.batch_size else ""
    bounds = f" (of {sizing.batches[0]} to {sizing.batches[1]})" if sizing.batches[0] != sizing.batches[1] else ""
    speed = f", {charts.figure(sizing.samples_per_s)} samples/s" if sizing.samples_per_s is not None else ""
    rate = f", learning rate times {sizing.lr_factor:.3g}" if sizing.lr_factor not in (None, 1.0) else ""
    return devices + batch + bounds + speed + rate


def _tries(detail: JobDetail) -> str:
    job = detail.job
    runs = sum(run.epoch > 0 for run in detail.runs) + detail.left_out
    preempted = f", preempted {count(job.preemptions, 'time')}" if job.preemptions else ""
    return f"{runs}{preempted}" if runs else ""


def _actions(visit: PageRequest, job: JobView) -> dict[str, str]:
    if not visit.visitor.signed_in or visit.at or job.state in TERMINAL or job.state == JobState.COMPLETING:
        return {}
    verbs = [("cancel", "Cancel", f"job {job.id}")]
    if job.held:
        verbs.append(("release", "Release", ""))
    elif job.state in (JobState.PENDING, JobState.RUNNING):
        verbs.append(("hold", "Hold", ""))
    return {
        verb: TEMPLATES.render("pieces/verb.html", key=verb, verb=verb, text=text, ask=ask) for verb, text, ask in verbs
    }


def _why(detail: JobDetail) -> Iterator[Field]:
    why = detail.why
    yield "cause", ("strong", _CAUSES.get(why.cause) or CAUSES.get(why.cause, why.cause.replace("_", " ")))
    yield "evidence", why.evidence
    if why.alternative is not None:
        yield "would start now", why.alternative.text
        yield "what was tried", ("pairs", sorted(why.alternative.change.items()))
    elif why.remedy:
        yield "what would change it", why.remedy
    yield (
        "freed for it",
        listed([f"{count(devices, 'device')} by {job_id}" for job_id, devices in why.freed.items()], nothing=""),
    )
    if why.rank is not None:
        ahead = count(why.rank.ahead, "waiting job") if why.rank.ahead else "nobody"
        yield "place", f"queue {why.rank.queue}, {ahead} ahead"
    if why.start_in_s is not None:
        yield "starts", f"in about {duration(why.start_in_s)}, an estimate: {why.basis}"
    elif why.state == JobState.PENDING and why.basis:
        yield "starts", f"not known: {why.basis}"
    yield "ruled out", ("list", why.not_causes) if why.not_causes else ""
    prices = [f"{kind}: {duration(price)}" for kind, price in sorted(why.prices.items())]
    yield "one more device would save", ("list", prices) if prices else ""
    if why.resized is not None:
        yield "last resized", ("resized", why.resized)


def _bar(detail: JobDetail) -> dict[str, str]:
    """Return when the job waited and ran, as a bar; it grows by whole parts, so that it does not change each second."""
    job, runs = detail.job, detail.runs
    if not runs:
        return {}
    begin_s, end_s = runs[0].pending_s, job.finished_s or detail.now_s
    lasted_s = max(1.0, end_s - begin_s)
    if not job.finished_s:
        part_s = max(1.0, lasted_s / _BAR_PARTS)
        lasted_s = math.ceil(lasted_s / part_s) * part_s

    def place(at_s: float | None) -> float:
        return 1.0 if at_s is None else min(1.0, max(0.0, (at_s - begin_s) / lasted_s))

    parts = []
    for run in runs:
        ended_s = run.ended_s
        waited = place(run.pending_s), place(run.granted_s if run.granted_s is not None else ended_s)
        parts.append(BarPart("waits", "waits", *waited, "waits"))
        if run.granted_s is not None:
            started_s = run.started_s if run.started_s is not None else ended_s
            parts.append(BarPart("starts", "starts", place(run.granted_s), place(started_s), "starts"))
            kind = run.outcome if run.outcome in _OUTCOMES else "runs"
            parts.append(BarPart(f"run {run.epoch}", kind, place(started_s), place(ended_s), _run_words(run)))
    left_out = f"; {count(detail.left_out, 'run')} before them are left out" if detail.left_out else ""
    label = f"{count(sum(run.epoch > 0 for run in runs), 'run')}, as in the table of runs{left_out}"
    return {"bar": charts.bar("bar", parts, label)}


def _run_words(run: RunView) -> str:
    ended = f", {run.outcome.replace('_', ' ')}" if run.outcome else ""
    lasted = f" for {duration(run.ended_s - run.granted_s)}" if run.ended_s is not None and run.granted_s else ""
    return f"run {run.epoch} on {count(len(run.devices), 'device')}{lasted}{ended}"


def _run_rows(detail: JobDetail) -> dict[str, str]:
    rows = [(f"run {run.epoch}", {"run": run}) for run in reversed(detail.runs) if run.epoch]
    none = {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=8, text="It has not run yet.")}
    return pieces("pieces/run_row.html", rows) or none


def _values(job: JobView, series: JobSeries | None) -> dict[str, str]:
    values = {name: charts.figure(value) for name, value in job.metrics.items()}
    for name in _OF_RATES:
        if series is not None and name in series.by_name and job.state in ACTIVE:
            *_, newest = series.by_name[name]
            values[name] = charts.figure(newest.value)
    return {name: TEMPLATES.render("pieces/count.html", key=name, number=value) for name, value in values.items()}


def _lines(detail: JobDetail, series: Points) -> Iterator[ChartLine]:
    for name, points in series.items():
        yield ChartLine(chart=name, name=name, points=[ChartPoint(*point) for point in points])
    if detail.sizing is not None:
        yield from _size_lines(detail.sizing, detail.now_s)


def _size_lines(sizing: SizingView, now_s: float) -> Iterator[ChartLine]:
    """Yield an elastic job's devices, batch and speed over the time of its runs."""
    devices, batches, speeds = list[ChartPoint](), list[ChartPoint](), list[ChartPoint]()
    for run, later in zip(sizing.runs, [*sizing.runs[1:], None], strict=True):
        end_s = now_s if run.end_s is None else run.end_s
        values = (float(run.gpus), float(run.batch_size), run.samples_per_s)
        for points, value in zip((devices, batches, speeds), values, strict=True):
            points += [ChartPoint(0, run.start_s, value), ChartPoint(0, end_s, value)]
            if later is not None and later.start_s > end_s + 2 * _GAP_S:
                points.append(ChartPoint(0, end_s + _GAP_S, None))
    if devices:
        yield ChartLine(chart=_DEVICES, name=_DEVICES, points=devices)
        if any(point.value for point in batches):
            yield ChartLine(chart=_BATCH, name=_BATCH, points=batches)
        if any(point.value for point in speeds):
            yield ChartLine(chart=_SIZED, name=_SIZED, points=speeds)


def _charts(lines: list[ChartLine]) -> Iterator[Chart]:
    for line in lines:
        if line.chart in (_DEVICES, _BATCH, _SIZED):
            yield Chart(name=line.chart, title=line.chart.capitalize(), x="time", stepped=True)
        else:
            yield Chart(name=line.chart, title=_OF_RATES.get(line.chart, line.chart))


def _story(past: JobPast, visit: PageRequest) -> dict[str, str]:
    found: dict[str, str] = {}
    if past.trouble:
        found["trouble"] = TEMPLATES.render(
            "pieces/story_note.html", key="trouble", text=f"A part is missing: {past.trouble}"
        )
    lines = past.story.lines if past.story is not None else ()
    shown = lines[-_MOST_STORY:]
    first = len(lines) - len(shown)
    for number, line in reversed(list(enumerate(shown, start=first))):
        key = f"{line.seq} {number}"
        found[key] = TEMPLATES.render(
            "pieces/story_line.html",
            key=key,
            line=line,
            address=visit.address(at=line.seq),
            here=str(line.seq) == visit.at,
        )
    if first:
        text = f"{count(first, 'earlier line')} left out; `penstock story` has them"
        found["left out"] = TEMPLATES.render("pieces/story_note.html", key="left out", text=text)
    return found


def _cost(detail: JobDetail) -> Iterator[Field]:
    used = detail.usage
    if used is None:
        yield "device time", "this gateway does not keep accounts; see its release"
        return
    yield "held", gpu_hours(used.held_gpu_s)
    amounts = [
        ("used in iterations", used.used_gpu_s),
        ("idle while held", used.idle_gpu_s),
        ("not measured", used.unmeasured_gpu_s),
        ("lost", used.lost_gpu_s),
        ("waited for", used.waited_gpu_s),
    ]
    for name, gpu_s in amounts:
        yield name, gpu_hours(gpu_s) if gpu_s else ""


def _checkpoints(past: JobPast) -> dict[str, str]:
    found = checkpoints_of(past.facts)
    rows = [
        (f"{fact.epoch} {fact.step} {fact.tier} {fact.node_id} {fact.generation}", {"fact": fact})
        for fact in found[:_MOST_CHECKPOINTS]
    ]
    none = {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=4, text="It has saved none yet.")}
    return pieces("pieces/checkpoint_row.html", rows) or none


def _environment(detail: JobDetail) -> Iterator[Field]:
    spec = detail.spec
    yield "command", shlex.join(spec.command)
    yield "code", f"{spec.code[:12]}, uploaded" if spec.code else ""
    yield "folder", spec.cwd
    yield "processes", "one for each device" if spec.processes == "device" else "one for each node"
    yield "model", spec.model
    yield "batch size", str(spec.batch_size) if spec.batch_size else ""
    yield "workload", detail.workload
    yield (
        "speeds",
        listed(
            [f"{one.kind} {one.speed:.2g}x{' (predicted)' if one.predicted else ''}" for one in detail.speeds],
            nothing="",
        ),
    )
    yield "secrets", listed([f"{variable} (by {name})" for variable, name in _secrets(spec)], nothing="")
    yield "image", spec.image
    yield "begins from", spec.begins_from
    yield "waits for", listed(spec.after, nothing="")
    yield "begins", f"not before {utc(spec.begin_s)}" if spec.begin_s else ""
    yield "limits", listed(_limits(detail), nothing="")


def _secrets(spec: JobSpec) -> list[tuple[str, str]]:
    return [*spec.secrets.items(), *spec.secret_files.items()]


def _limits(detail: JobDetail) -> Iterator[str]:
    spec = detail.spec
    if detail.time_limit_s:
        yield f"{duration(detail.time_limit_s)} of run time"
    sizes: Mapping[str, int] = {
        "of each device's memory at least": spec.memory_bytes,
        "of the host's memory for each device": spec.host_memory_bytes,
        "of borrowed memory for each device": spec.spill_bytes,
        "of that kept on the host": spec.local_memory_bytes,
    }
    yield from (f"{size(value)} {what}" for what, value in sizes.items() if value)
    if spec.cpus:
        yield f"{spec.cpus:g} processors for each device"
    if spec.retries:
        yield f"{count(spec.retries, 'retry') if spec.retries == 1 else f'{spec.retries} retries'}"
    yield (
        f"a checkpoint every {duration(spec.checkpoint_s)}"
        if spec.checkpoint_s
        else "no checkpoint but at a preemption"
    )
    yield f"{duration(spec.grace_s)} to stop"


async def job_events_page(visit: PageRequest) -> PageContent:
    """Show the facts about a job as the log holds them."""
    job_id = visit.params["id"]
    asked = visit.asked(request_bodies.EventsRequest, id=job_id, at=visit.moment)
    view = await visit.gateway.query(visit.visitor, "events", asked, EventsView)
    rows = [(f"{event.seq} {number}", {"event": event}) for number, event in enumerate(view.events)]
    none = {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=6, text="There is no fact.")}
    last = view.events[-1].seq if view.events else 0
    return PageContent(
        title=f"Facts about {job_id}",
        template="job_events.html",
        regions={"rows": pieces("pieces/event_row.html", rows) or none},
        values={
            "job_id": job_id,
            "first": visit.address(after=0),
            "newest": visit.address(after=""),
            "more": visit.address(after=last) if asked.after is not None and len(rows) >= asked.limit else "",
        },
        live=asked.after is None,
    )
