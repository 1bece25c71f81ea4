"""How views read: pure functions from what the gateway answered to lines of text."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.submission import EXPORTED
from penstock_cli import render, size_views
from penstock_cli.value_formats import clock, span

if TYPE_CHECKING:
    from penstock_log import Device, JobSpec, KindSpeed, views

Rows = list[tuple[str, ...]]

JOB_HEADERS: Final = ("ID", "NAME", "USER", "ST", "GPUS", "WAIT", "RUN", "STEPS", "NODES/REASON")
BATCH: Final = "BATCH"
HOST: Final = "HOST"
JOB_WIDE: Final = (
    *JOB_HEADERS[:-1],
    "QUEUE",
    "KINDS",
    "POOL",
    "PARENT",
    "PREEMPTED",
    "TRIES",
    "METRICS",
    "NODES/REASON",
)
NODE_HEADERS: Final = ("NODE", "POOL", "ST", "BUSY", "IDLE", "KINDS", "HEARD")
NODE_WIDE: Final = ("NODE", "POOL", "ST", "DEVICE", "KIND", "MEMORY", "BACKEND", "SPEED", "JOB", "HOST", "HEARD")
SWEEP_HEADERS: Final = ("ID", "NAME", "ST", "DONE", "METRIC", "BEST", "BEST-JOB")
TRIAL_HEADERS: Final = ("JOB", "ST", "GROUP", "GPUS", "VALUE", "PARAMS")
STAGED_HEADERS: Final = ("JOB", "ST", "RUNG", "BUDGET", "GPUS", "VALUE", "", "PARAMS")
RUNG_HEADERS: Final = ("BRACKET", "RUNG", "BUDGET", "TRIALS", "OVER", "PROMOTED", "BEST")
EVENT_HEADERS: Final = ("SEQ", "TIME", "TYPE", "ENTITY", "FACT")
EVENT_WIDE: Final = ("SEQ", "TIME", "TYPE", "ENTITY", "ACTOR", "CAUSE", "FACT")
_PASSING: Final = {
    *("capacity", "gang", "host_cpus", "host_memory", "later_place", "order", "fairness", "profiling", "backoff")
}
_ONLY_WAIT: Final = "nothing known starts it sooner; it only has to wait"
_CHECKPOINTED: Final = "checkpointed after step"
STORY_HEADERS: Final = ("AFTER", "WHAT")
STORY_WIDE: Final = ("AFTER", "TIME", "SEQ", "CAUSE", "ACTOR", "WHAT")


def place_or_reason(job: views.JobView) -> str:
    """Return where an active job runs, in brackets why a waiting one waits, or why an ended one ended."""
    if job.state == "PD":
        return f"({'held' if job.held else _words(job.cause or 'undecided')})"
    if job.placed_on:
        return render.devices(job.placed_on)
    return job.reason or render.devices(job.devices)


def job_headers(jobs: Iterable[views.JobView], *, wide: bool = False) -> tuple[str, ...]:
    """Return the headers of a list of jobs; of batch sizes only where a job has one."""
    headers: tuple[str, ...] = JOB_WIDE if wide else JOB_HEADERS
    if wide and any(job.cpus or job.host_memory_bytes for job in jobs):
        before = headers.index("POOL")
        headers = (*headers[:before], HOST, *headers[before:])
    if not any(job.batch_size for job in jobs):
        return headers
    after = headers.index("GPUS") + 1
    return (*headers[:after], BATCH, *headers[after:])


def job_row(job: views.JobView, headers: Sequence[str] = JOB_HEADERS) -> tuple[str, ...]:
    """Return a job's cells under :data:`JOB_HEADERS`, or with the batch size as :func:`job_headers` has it."""
    batch = (str(job.batch_size or "-"),) if BATCH in headers else ()
    cells = (job.id, job.name, job.user, job.state, size_views.width(job), *batch, span(job.wait_s), span(job.run_s))
    return (*cells, str(job.steps), place_or_reason(job))


def wide_job_row(job: views.JobView, headers: Sequence[str] = JOB_WIDE) -> tuple[str, ...]:
    """Return a job's cells under :data:`JOB_WIDE`, or with the batch size as :func:`job_headers` has it."""
    row = job_row(job, headers)
    queue = "-" if job.queue is None else str(job.queue)
    host = (of_host(job.cpus, job.host_memory_bytes) or "-",) if HOST in headers else ()
    more = (queue, ",".join(job.kinds) or "any", *host, job.pool, job.parent, str(job.preemptions), str(job.attempts))
    return (*row[:-1], *more, render.mapping(job.metrics), row[-1])


def job_lines(detail: views.JobDetail) -> list[str]:
    """Return all that is known of a job, a line each."""
    job, spec = detail.job, detail.spec
    pairs = [
        ("id", job.id),
        ("name", job.name),
        ("state", _state(job)),
        ("user", f"{job.user} ({job.team})" if job.team else job.user),
        ("sweep", job.parent),
        ("pool", job.pool),
        ("wants", _wants(detail)),
        *(size_views.pairs(job, detail.sizing) if detail.sizing is not None else ()),
        ("shares", _shares(job)),
        ("runs on", render.devices(job.placed_on)),
        ("ran on", render.devices(job.devices) if not job.placed_on else ""),
        ("submitted", clock(job.submitted_s)),
        ("started", clock(job.started_s) if job.started_s is not None else ""),
        ("finished", clock(job.finished_s) if job.finished_s is not None else ""),
        ("waited", span(job.wait_s)),
        ("ran", span(job.run_s)),
        ("took", span(job.jct_s) if job.jct_s is not None else ""),
        ("steps", str(job.steps)),
        ("metrics", render.mapping(job.metrics)),
        ("tries", f"{job.attempts}, preempted {render.count(job.preemptions, 'time')}, retries allowed {spec.retries}"),
        ("queue", "" if job.queue is None else str(job.queue)),
        ("reason", job.reason),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("command", shlex.join(spec.command)),
        ("folder", spec.cwd),
        ("params", render.mapping(spec.params)),
        ("environment", render.mapping({k: v for k, v in spec.env.items() if k not in EXPORTED})),
        ("workload", detail.workload),
        ("speeds", speeds(detail.speeds)),
        ("sampled", "" if job.sample else _sampled(spec)),
    ]
    warnings = [("warning", warning) for warning in job.warnings]
    return render.labelled(pairs + warnings)


def _state(job: views.JobView) -> str:
    words = {
        "PD": "waiting",
        "R": "running",
        "PR": "being preempted",
        "CG": "being stopped",
        "CD": "completed",
        "F": "failed",
        "CA": "cancelled",
    }
    held = ", held" if job.held else ""
    return f"{job.state} ({words.get(job.state, job.state)}{held})"


def _wants(detail: views.JobDetail) -> str:
    kinds = " or ".join(detail.spec.kinds) or "any kind but a bare CPU"
    memory = f", {render.size(detail.spec.memory_bytes)} each" if detail.spec.memory_bytes else ""
    spec = detail.spec
    devices = f"{spec.widths[0]} to {spec.max_gpus}" if spec.max_gpus else str(spec.gpus)
    host = of_host(spec.cpus, spec.host_memory_bytes)
    return f"{devices} x {kinds}{memory}{f', each with {host} of its host' if host else ''}"


def of_host(cpus: float, memory_bytes: int) -> str:
    """Return processors and memory of a host; empty where there is neither."""
    parts = (f"{cpus:g} cpus" if cpus else "", render.size(memory_bytes) if memory_bytes else "")
    return ", ".join(filter(None, parts))


def _sampled(spec: JobSpec) -> str:
    """Return whether the profiler may run a job's script for its speeds, and how to have it otherwise."""
    from penstock_policies.sample_plan import why_sampled

    if spec.profile == "off":
        return "no, its profile is off"
    if spec.opaque:
        return "no, no file of its command line mentions penstock; its runs are measured"
    if reason := why_sampled(spec):
        return f"where its workload is new: {reason} (--profile off: never)"
    return "no, its own runs are measured (--profile on: sampled first)"


def speeds(known: Iterable[KindSpeed]) -> str:
    """Return a workload's speed on each kind of device."""
    return ", ".join(
        f"{s.kind} {s.speed:.2g}x"
        + (f" ({s.iteration_s * 1e3:.4g} ms/step)" if s.iteration_s else "")
        + (f" ({span(s.run_s)} a run)" if s.run_s else "")
        + (" predicted" if s.predicted else "")
        for s in known
    )


def why_lines(why: views.WhyView, now_s: float) -> list[str]:
    """Return the one cause first, then its evidence, what it is not, and what would change it."""
    pairs = [
        ("because", why.evidence),
        *(("checked", text) for text in why.not_causes),
        *size_views.why_pairs(why, now_s),
        ("change", _change(why) or (_ONLY_WAIT if why.cause in _PASSING else "")),
        ("starts", _estimate(why.start_in_s, why.basis)),
        ("place", _place(why.rank) if why.rank else ""),
    ]
    since = f" for {span(now_s - why.since_s)}" if why.since_s and now_s > why.since_s else ""
    return [f"{why.id} ({why.name}) is {why.state}{since}: {_words(why.cause)}", *_indented(pairs)]


def _change(view: views.WhyView | views.DryRunView) -> str:
    """Return what would start the job now, else what would help otherwise."""
    return view.alternative.text if view.alternative is not None else view.remedy


def _place(rank: views.RankView) -> str:
    return f"queue {rank.queue}, {rank.ahead or 'nobody'} waiting ahead"


def _words(cause: str) -> str:
    return cause.replace("_", " ")


def dry_run_lines(view: views.DryRunView) -> list[str]:
    """Return where the job would start at once, or why it would wait, and for how long about."""
    if view.starts:
        beside = f", beside {', '.join(view.beside)}" if view.beside else ""
        where = f" on {render.devices(view.devices)} ({view.kind})" if view.devices else ""
        head = f"would start at once{where}{beside}"
    else:
        head = f"would wait: {_words(view.cause)}"
    pairs = [
        ("size", view.size),
        ("because", view.evidence),
        ("starts", _estimate(None if view.starts else view.start_in_s, view.basis)),
        ("change", _change(view)),
        *(("warning", text) for text in view.warnings),
    ]
    return [head, *_indented(pairs)]


def _shares(job: views.JobView) -> str:
    """Return how a job shares its devices; empty where it has them to itself."""
    if job.sharing == "exclusive":
        return ""
    way = "by turns" if job.sharing == "lane" else "by a part of its memory"
    return f"its device, {way}" + (f", with {job.share:.0%} of the time" if job.placed_on else "")


def _estimate(start_in_s: float | None, basis: str) -> str:
    return basis if start_in_s is None else f"in about {span(start_in_s)} (an estimate: {basis})"


def _indented(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  {line}" for line in render.labelled(pairs)]


def story_rows(story: views.StoryView) -> Rows:
    """Return a story's sentences, each with how long after the submission it was true; many checkpoints are one."""
    rows: Rows = []
    for checkpoints, some in groupby(story.lines, lambda line: line.text.startswith(_CHECKPOINTED)):
        lines = list(some)
        if checkpoints and len(lines) > 2:
            rows.append((f"+{span(lines[-1].after_s)}", f"{lines[-1].text}, the last of {len(lines)} checkpoints"))
        else:
            rows += [(f"+{span(line.after_s)}", line.text) for line in lines]
    return rows


def wide_story_rows(story: views.StoryView) -> Rows:
    """Return a story's sentences with time, stream sequence, cause and author."""
    return [
        (f"+{span(line.after_s)}", clock(line.at_s), str(line.seq), str(line.cause or "-"), line.actor, line.text)
        for line in story.lines
    ]


def event_row(event: views.EventView) -> tuple[str, ...]:
    """Return a fact's cells under :data:`EVENT_HEADERS`; the entity's id is not repeated in the fact."""
    entity = _entity(event)
    fact = {name: value for name, value in event.fact.items() if value != entity.partition("/")[2]}
    time = clock(event.at_s)[len("2026-") :]
    return (str(event.seq), time, event.type, entity, msgspec.json.encode(fact).decode())


def wide_event_row(event: views.EventView) -> tuple[str, ...]:
    """Return a fact's cells under :data:`EVENT_WIDE`."""
    fact = msgspec.json.encode(event.fact).decode()
    cause = str(event.cause) if event.cause else "-"
    return (str(event.seq), clock(event.at_s), event.type, _entity(event), event.actor, cause, fact)


def _entity(event: views.EventView) -> str:
    kind, _, entity_id = event.subject.partition(".evt.")[2].partition(".")
    return f"{kind}/{entity_id}"


def node_row(node: views.NodeView, now_s: float) -> tuple[str, ...]:
    """Return a node's cells under :data:`NODE_HEADERS`."""
    busy = sum(1 for device in node.devices if device.job_id)
    real = _kinds(view.device for view in node.devices if view.device.backend != "emulated")
    emulated = _kinds(view.device for view in node.devices if view.device.backend == "emulated")
    kinds = " ".join(filter(None, [real, emulated and f"{emulated} (emulated)"]))
    return (node.id, node.pool, node.state, str(busy), str(len(node.devices) - busy), kinds, _heard(node, now_s))


def _kinds(devices: Iterable[Device]) -> str:
    return ",".join(f"{kind}:{count}" for kind, count in Counter(device.kind for device in devices).items())


def wide_node_rows(node: views.NodeView, now_s: float) -> Rows:
    """Return a line for each of the node's devices, under :data:`NODE_WIDE`."""
    head, heard = (node.id, node.pool, node.state), _heard(node, now_s)
    held = f" by {node.held_by}" if node.held_by else ""
    host = f"{found}{held}" if (found := of_host(node.cpus, node.host_memory_bytes)) else "-"
    rows: Rows = []
    for view in node.devices:
        device = view.device
        speed = f"{device.speed:g}x" if device.backend == "emulated" else "-"
        about = (view.name, device.kind, render.size(device.memory_bytes), device.backend, speed, _holders(view))
        rows.append((*head, *about, host, heard))
    return rows or [(*head, "-", "-", "-", "-", "-", "-", host, heard)]


def _holders(view: views.DeviceView) -> str:
    """Return who has a device, and what those who share it hold of it."""
    if not view.shared_by:
        return view.job_id
    return ",".join(view.shared_by) + (f" ({view.taken})" if view.taken else "")


def _heard(node: views.NodeView, now_s: float) -> str:
    return "-" if node.heard_s is None else f"{span(now_s - node.heard_s)} ago"


def sweep_headers(sweeps: Iterable[views.SweepView]) -> tuple[str, ...]:
    """Return the headers of a list of sweeps; of failures only where there are any."""
    return (*SWEEP_HEADERS, "FAILED", "FIRST-ERROR") if any(sweep.failed for sweep in sweeps) else SWEEP_HEADERS


def sweep_row(sweep: views.SweepView, headers: tuple[str, ...] = SWEEP_HEADERS) -> tuple[str, ...]:
    """Return a sweep's cells under its list's headers."""
    metric, best = f"{sweep.metric} ({sweep.mode})", render.number(sweep.best_value)
    cells = (sweep.id, sweep.name, sweep.state, _progress(sweep), metric, best, sweep.best_job_id)
    return cells if headers == SWEEP_HEADERS else (*cells, str(sweep.failed or ""), sweep.first_error)


def sweep_failures(sweep: views.SweepView) -> str:
    """Return how many of a sweep's runs have failed, and the first error; empty where none has."""
    if not sweep.failed:
        return ""
    promotions = f", {sweep.failed_promotions} of them promoted" if sweep.failed_promotions else ""
    of = f"{sweep.failed} of {render.count(sweep.done, 'run')} failed{promotions}"
    return f"{of}; the first, {sweep.first_failed}: {sweep.first_error}"


def sweep_lines(sweep: views.SweepView) -> list[str]:
    """Return what is known of a sweep as a whole, a line each."""
    params = next((trial.params for trial in sweep.trials if trial.job_id == sweep.best_job_id), {})
    best = f"{render.number(sweep.best_value)} by {sweep.best_job_id} ({render.mapping(params)})"
    took = span(sweep.finished_s - sweep.submitted_s) if sweep.finished_s is not None else ""
    used = sweep.utilisation
    return render.labelled(
        [
            ("id", sweep.id),
            ("name", sweep.name),
            ("state", sweep.state),
            ("reason", sweep.reason),
            ("trials", _trials(sweep)),
            ("failed", sweep_failures(sweep)),
            ("metric", f"{sweep.metric} ({sweep.mode})"),
            ("best", best if sweep.best_job_id else ""),
            ("submitted", clock(sweep.submitted_s)),
            ("took", took),
            ("target", _target(sweep)),
            ("left", f"about {span(sweep.eta_s)}, at the pace so far" if sweep.eta_s is not None else ""),
            ("utilisation", f"{_percent(used)} of the devices that it could use" if used is not None else ""),
            ("goodput", _goodput(sweep.goodput)),
            ("spent", _spent(sweep.goodput)),
        ]
    )


def _trials(sweep: views.SweepView) -> str:
    if not sweep.rungs:
        return f"{_progress(sweep)} done"
    return f"{sweep.opened}, in {_progress(sweep)} runs that are over"


def _target(sweep: views.SweepView) -> str:
    if sweep.spec.target is None:
        return ""
    when = f"reached after {span(sweep.target_s)}" if sweep.target_s is not None else "not reached"
    return f"{sweep.metric} {render.number(sweep.spec.target)} {when}"


def _goodput(view: views.GoodputView | None) -> str:
    if view is None or not view.allocated_gpu_s + view.running_gpu_s:
        return ""
    if not view.allocated_gpu_s:
        return f"no run is over; {view.running_gpu_s:.1f} device-seconds of those on their way"
    running = f", and {view.running_gpu_s:.1f} of runs on their way" if view.running_gpu_s else ""
    return f"{_percent(view.share)} of {view.allocated_gpu_s:.1f} device-seconds{running}"


def _spent(view: views.GoodputView | None) -> str:
    """Return what the rest of the device-seconds went into, the most first."""
    if view is None or not view.allocated_gpu_s:
        return ""
    parts = (
        (view.useful_gpu_s, "promoted and best"),
        (view.stopped_gpu_s, "to tell the others apart"),
        (view.overhead_gpu_s, "starting and saving"),
        (view.rescale_gpu_s, "moving and resuming"),
        (view.failed_gpu_s, "killed, or without a value"),
        (view.profile_gpu_s, "profiling"),
    )
    shares = sorted(((part / view.allocated_gpu_s, name) for part, name in parts if part), reverse=True)
    return ", ".join(f"{_percent(share)} {name}" for share, name in shares)


def sweep_progress(sweep: views.SweepView) -> str:
    """
    Return how far a sweep is, in one line.

    With the best so far, the time left at the pace so far, and goodput and utilisation as far as there are any.
    """
    goodput, used = sweep.goodput, sweep.utilisation
    running = sum(trial.state == "R" for trial in sweep.trials)
    words = [
        f"{sweep.id}: {_progress(sweep)} runs, {running} running",
        f"{sweep.failed} failed" if sweep.failed else "",
        f"best {sweep.metric} {render.number(sweep.best_value)}" if sweep.best_job_id else "",
        f"goodput {_percent(goodput.share)}" if goodput is not None and goodput.allocated_gpu_s else "",
        f"used {_percent(used)}" if used is not None else "",
        f"about {span(sweep.eta_s)} left" if sweep.eta_s is not None else "",
    ]
    return ", ".join(filter(None, words))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def rung_row(rung: views.RungView) -> tuple[str, ...]:
    """Return a rung's cells under :data:`RUNG_HEADERS`."""
    counts = (rung.bracket, rung.rung, rung.budget, rung.opened, rung.over, rung.promoted)
    return (*map(str, counts), render.number(rung.best_value))


def staged_row(trial: views.TrialView) -> tuple[str, ...]:
    """Return the cells of a run in a search that stops early, under :data:`STAGED_HEADERS`."""
    rung = f"{trial.bracket}.{trial.rung}"
    said = "promoted" if trial.promoted else _words(trial.problem)
    value, params = render.number(trial.value), render.mapping(trial.params)
    return (trial.job_id, trial.state, rung, str(trial.budget), _width(trial), value, said, params)


def _width(trial: views.TrialView) -> str:
    return f"1/{trial.packed}" if trial.packed > 1 else str(trial.gpus)


def _progress(sweep: views.SweepView) -> str:
    return f"{sweep.done}/{sweep.wanted or '?'}"


def trial_row(trial: views.TrialView) -> tuple[str, ...]:
    """Return a trial's cells under :data:`TRIAL_HEADERS`."""
    value = _words(trial.problem) or render.number(trial.value)
    return (trial.job_id, trial.state, str(trial.group), _width(trial), value, render.mapping(trial.params))
