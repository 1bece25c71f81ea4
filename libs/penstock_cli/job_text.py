"""
Jobs in words: the list of all, one in full, why it waits, its story, its facts, and its sizes if it is elastic.

Pure functions from what the gateway answered to lines of text and to headers and rows of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock_cli import render
from penstock_cli.render import Pairs, Table
from penstock_cli.value_formats import clock, span

if TYPE_CHECKING:
    from penstock_log import JobSpec, KindSpeed, Size, views

_PASSING: Final = {
    *(
        "capacity",
        "gang",
        "host_cpus",
        "host_memory",
        "image",
        "later_place",
        "order",
        "fairness",
        "profiling",
        "backoff",
    ),
    *("dependency", "array", "begin", "reservation", "class_quota", "pilot"),
}
_MOST_ALLOCATIONS: Final = 5
_ONLY_WAIT: Final = "nothing known starts it sooner; it only has to wait"
_CHECKPOINTED: Final = "checkpointed after step"
STATES: Final = {
    "PD": "waiting",
    "R": "running",
    "PR": "being preempted",
    "CG": "being stopped",
    "CD": "completed",
    "F": "failed",
    "CA": "cancelled",
}
"""Of each state, in the order of a job's life: what it says."""
_BECAUSE: Final = {
    "arrival": "a job has come",
    "completion": "a job is over",
    "nodes": "nodes have changed",
    "order": "the order has changed",
    "profile": "more is known of its workload",
    "interval": "looked at again",
    "unfit": "it did not run so",
}


def job_table(jobs: Sequence[views.JobView] | Sequence[views.JobRow], *, wide: bool = False) -> Table:
    """
    Return the list of jobs; it has batch sizes, classes, and parts of hosts, only where a job has one.

    ``wide`` is for jobs in full, and not for rows.
    """
    with_batch = any(j.batch_size for j in jobs)
    columns: dict[str, Callable[[Any], str]] = {
        "ID": attrgetter("id"),
        "NAME": attrgetter("name"),
        "USER": attrgetter("user"),
        "ST": attrgetter("state"),
        "GPUS": width,
        **({"BATCH": lambda job: str(job.batch_size or "-")} if with_batch else {}),
        "WAIT": lambda job: span(job.wait_s),
        "RUN": lambda job: span(job.run_s),
        "STEPS": lambda job: str(job.steps),
        **({"CLASS": lambda job: job.priority_class or "-"} if any(j.priority_class for j in jobs) else {}),
        **(_wide_columns(with_host=any(j.cpus or j.host_memory_bytes for j in jobs)) if wide else {}),
        "NODES/REASON": place_or_reason,
    }
    return tuple(columns), list(zip(*([*map(cell, jobs)] for cell in columns.values()), strict=True))


def folded(rows: Sequence[views.JobRow]) -> list[views.JobRow]:
    """
    Return rows with a line for each array in place of its jobs, where several are listed, at the place of the first.

    The line has the state of the job that is furthest on its way, the devices of all, and how many are in each state.
    """
    sizes = Counter(row.array for row in rows if row.array)
    members: dict[str, list[views.JobRow]] = {}
    found: list[views.JobRow] = []
    for row in rows:
        if sizes[row.array] < 2:
            found.append(row)
        elif row.array in members:
            members[row.array].append(row)
        else:
            members[row.array] = [row]
            found.append(row)
    return [_array_row(members[row.array]) if row.array in members else row for row in found]


_FURTHEST: Final = ("R", "PR", "CG", "PD", "F", "CA", "CD")


def _array_row(rows: Sequence[views.JobRow]) -> views.JobRow:
    counts = Counter(row.state for row in rows)
    state = min(counts, key=_FURTHEST.index)
    said = ", ".join(f"{counts[one]:,} {one}" for one in STATES if counts[one])
    held = [row for row in rows if row.state in {"R", "PR", "CG"}]
    return msgspec.structs.replace(
        rows[0],
        id=rows[0].array,
        state=state,
        gpus=sum(row.gpus for row in held) or rows[0].gpus,
        wait_s=max(row.wait_s for row in rows),
        run_s=sum(row.run_s for row in rows),
        steps=sum(row.steps for row in rows),
        held=all(row.held for row in rows),
        cause=f"{said} of {rows[0].array_count:,}",
        reason=f"array: {said} of {rows[0].array_count:,}",
        placed_on=(),
        devices=(),
    )


def _wide_columns(*, with_host: bool) -> dict[str, Callable[[views.JobView], str]]:
    return {
        "QUEUE": lambda job: "-" if job.queue is None else str(job.queue),
        "KINDS": lambda job: ",".join(job.kinds) or "any",
        **({"HOST": lambda job: of_host(job.cpus, job.host_memory_bytes) or "-"} if with_host else {}),
        "POOL": lambda job: job.pool,
        "PARENT": lambda job: job.parent,
        "PREEMPTED": lambda job: str(job.preemptions),
        "TRIES": lambda job: str(job.attempts),
        "METRICS": lambda job: render.mapping(job.metrics),
    }


def place_or_reason(job: views.JobView | views.JobRow) -> str:
    """Return where an active job runs, in brackets why a waiting one waits, or why an ended one ended."""
    if job.state == "PD":
        return _waits_for(job.cause, held=job.held)
    if job.placed_on:
        return render.devices(job.placed_on)
    return job.reason or render.devices(job.devices)


@lru_cache(maxsize=100)  # many wait for the same
def _waits_for(cause: str, *, held: bool) -> str:
    return f"({'held' if held else _words(cause or 'undecided')})"


def job_lines(detail: views.JobDetail) -> list[str]:
    """Return all that is known of a job, a line each."""
    import shlex

    from penstock.submission import EXPORTED

    job, spec = detail.job, detail.spec
    pairs = [
        ("id", job.id),
        ("name", job.name),
        ("state", f"{job.state} ({STATES.get(job.state, job.state)}{', held' if job.held else ''})"),
        ("user", f"{job.user} ({job.team})" if job.team else job.user),
        ("sweep", job.parent),
        ("group", spec.group),
        ("array", _array(spec)),
        ("in place of", spec.retry_of),
        ("pool", job.pool),
        ("class", spec.priority_class),
        ("wants", _wants(detail)),
        *(_size_pairs(job, detail.sizing) if detail.sizing is not None else ()),
        ("shares", _shares(job)),
        ("aggregation", _aggregation(spec)),
        ("idle", "allowed, whatever its pool's rule" if spec.idle == "allow" else ""),
        ("waits for", ", ".join(spec.after)),
        ("begins", f"not before {clock(spec.begin_s)}" if spec.begin_s else ""),
        ("runs on", render.devices(job.placed_on)),
        ("ran on", render.devices(job.devices) if not job.placed_on else ""),
        ("submitted", clock(job.submitted_s)),
        ("started", clock(job.started_s) if job.started_s is not None else ""),
        ("finished", clock(job.finished_s) if job.finished_s is not None else ""),
        ("waited", span(job.wait_s)),
        ("ran", f"{span(job.run_s)}{f' of {span(detail.time_limit_s)} at most' if detail.time_limit_s else ''}"),
        ("took", span(job.jct_s) if job.jct_s is not None else ""),
        ("warm", _warm(detail)),
        ("parked", _parked(detail)),
        ("steps", str(job.steps)),
        ("metrics", render.mapping(job.metrics)),
        ("tries", f"{job.attempts}, preempted {render.count(job.preemptions, 'time')}, retries allowed {spec.retries}"),
        ("queue", "" if job.queue is None else str(job.queue)),
        ("reason", job.reason),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("command", shlex.join(spec.command)),
        ("code", f"{spec.code[:12]}, uploaded" if spec.code else ""),
        ("image", spec.image),
        ("folder", spec.cwd),
        ("params", render.mapping(spec.params)),
        ("environment", render.mapping({k: v for k, v in spec.env.items() if k not in EXPORTED})),
        ("secrets", secrets(spec)),
        ("tells of", ", ".join(spec.notify)),
        ("workload", detail.workload),
        ("speeds", speeds(detail.speeds)),
        ("sampled", "" if job.sample else _sampled(spec)),
    ]
    warnings = [("warning", warning) for warning in job.warnings]
    return render.labelled(pairs + warnings)


def _array(spec: JobSpec) -> str:
    """Return which job of its array one is."""
    if (array := spec.array) is None:
        return ""
    most = f", {array.most} at a time" if array.most else ""
    return f"{array.id}, index {array.index} of {render.count(array.count, 'job')}{most}"


def secrets(spec: JobSpec) -> str:
    """Return which variables hold which secrets; their values are with the nodes."""
    held = [f"{variable} (by secret {name})" for variable, name in spec.secrets.items()]
    held += [f"{variable} (a file, by secret {name})" for variable, name in spec.secret_files.items()]
    return ", ".join(held)


def _warm(detail: views.JobDetail) -> str:
    """Return whether the last run that has begun was warm, and why not where its job asked for that."""
    start = next((run.start for run in reversed(detail.runs) if run.started_s), "")
    return (
        "yes"
        if start == "warm"
        else ""
        if start == "parked"
        else f"no ({start.removeprefix('cold: ')})"
        if start
        else ""
    )


def _parked(detail: views.JobDetail) -> str:
    """Return where its process waits in memory, or whether its last run has gone on with one."""
    if (parked := detail.parked) is not None:
        return f"on {parked.node_id} ({render.size(parked.held_bytes)}), to go on there without a load"
    start = next((run.start for run in reversed(detail.runs) if run.started_s), "")
    return "went on without a load" if start == "parked" else ""


def _wants(detail: views.JobDetail) -> str:
    kinds = " or ".join(detail.spec.kinds) or "any kind but a bare CPU"
    memory = f", {render.size(detail.spec.memory_bytes)} each" if detail.spec.memory_bytes else ""
    spec = detail.spec
    devices = f"{spec.widths[0]} to {spec.max_gpus}" if spec.max_gpus else str(spec.gpus)
    host = of_host(spec.cpus, spec.host_memory_bytes)
    spilled = _spilled(spec)
    return f"{devices} x {kinds}{memory}{f', each with {host} of its host' if host else ''}{spilled}"


def _spilled(spec: JobSpec) -> str:
    """Return what a job says of borrowed memory; empty where it says nothing."""
    parts = ((spec.spill_bytes, "of borrowed memory"), (spec.local_memory_bytes, "of it kept on the host"))
    found = [f"{render.size(size)} {what}" for size, what in parts if size]
    return f"; each with {', '.join(found)}" if found else ""


def _aggregation(spec: JobSpec) -> str:
    """Return what a job says of aggregation; empty where it says nothing."""
    if (spec.aggregation, spec.servers) == ("shared", 1):
        return ""
    servers = "" if spec.aggregation == "none" else f", {render.count(spec.servers, 'aggregator')}"
    return f"{spec.aggregation}{servers}"


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
    """Return why a job waits, as lines: the one cause, its evidence, what was ruled out, and what would change it."""
    pairs = [
        ("because", why.evidence),
        *_allocation_pairs(why),
        *(("checked", text) for text in why.not_causes),
        *_why_size_pairs(why, now_s),
        ("change", _change(why) or (_ONLY_WAIT if why.cause in _PASSING else "")),
        ("starts", _estimate(why.start_in_s, why.basis)),
        ("place", f"queue {rank.queue}, {rank.ahead or 'nobody'} waiting ahead" if (rank := why.rank) else ""),
    ]
    since = f" for {span(now_s - why.since_s)}" if why.since_s and now_s > why.since_s else ""
    return [f"{why.id} ({why.name}) is {why.state}{since}: {_words(why.cause)}", *_indented(pairs)]


def _allocation_pairs(view: views.WhyView | views.DryRunView) -> Iterator[tuple[str, str]]:
    """Yield what allocations could do that the evidence does not say already."""
    left = [one for one in view.allocations if one.text not in view.evidence]
    for one in left[:_MOST_ALLOCATIONS]:
        yield "pilots", one.text
    if len(left) > _MOST_ALLOCATIONS:
        yield "pilots", f"{len(left) - _MOST_ALLOCATIONS} more allocations; `-o json` has all"


def _change(view: views.WhyView | views.DryRunView) -> str:
    """Return what would start the job now, else what would help otherwise."""
    return view.alternative.text if view.alternative is not None else view.remedy


def _words(cause: str) -> str:
    return cause.replace("_", " ")


def dry_run_lines(view: views.DryRunView) -> list[str]:
    """Return a dry run as lines: where the job would start at once, or why and about how long it would wait."""
    if view.starts:
        beside = f", beside {', '.join(view.beside)}" if view.beside else ""
        where = f" on {render.devices(view.devices)} ({view.kind})" if view.devices else ""
        head = f"would start at once{where}{beside}"
    else:
        head = f"would wait: {_words(view.cause)}"
    pairs = [
        ("size", view.size),
        ("because", view.evidence),
        *_allocation_pairs(view),
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


def story_table(story: views.StoryView, *, wide: bool = False) -> Table:
    """
    Return a story's sentences, each with how long after the submission it was true; many checkpoints are one.

    Wide are all sentences, with time, stream sequence, cause and author.
    """
    if wide:
        return ("AFTER", "TIME", "SEQ", "CAUSE", "ACTOR", "WHAT"), [
            (f"+{span(line.after_s)}", clock(line.at_s), str(line.seq), str(line.cause or "-"), line.actor, line.text)
            for line in story.lines
        ]
    rows: list[tuple[str, ...]] = []
    for checkpoints, some in groupby(story.lines, lambda line: line.text.startswith(_CHECKPOINTED)):
        lines = list(some)
        if checkpoints and len(lines) > 2:
            rows.append((f"+{span(lines[-1].after_s)}", f"{lines[-1].text}, the last of {len(lines)} checkpoints"))
        else:
            rows += [(f"+{span(line.after_s)}", line.text) for line in lines]
    return ("AFTER", "WHAT"), rows


def event_table(events: Sequence[views.EventView], *, wide: bool = False) -> Table:
    """Return facts; an entity's id is not repeated in its fact, unless it is ``wide``."""
    more = ("ACTOR", "CAUSE") if wide else ()
    return ("SEQ", "TIME", "TYPE", "ENTITY", *more, "FACT"), [event_row(event, wide=wide) for event in events]


def event_row(event: views.EventView, *, wide: bool = False) -> tuple[str, ...]:
    """Return the cells of one fact, as :func:`event_table` has them."""
    kind, _, entity_id = event.subject.partition(".evt.")[2].partition(".")
    entity = f"{kind}/{entity_id}"
    if wide:
        more = (event.actor, str(event.cause or "-"))
        return str(event.seq), clock(event.at_s), event.type, entity, *more, msgspec.json.encode(event.fact).decode()
    fact = {name: value for name, value in event.fact.items() if value != entity_id}
    time = clock(event.at_s)[len("2026-") :]
    return str(event.seq), time, event.type, entity, msgspec.json.encode(fact).decode()


def width(job: views.JobView | views.JobRow) -> str:
    """Return a job's number of devices, with the range that it may have if it is elastic: ``4 (1..8)``."""
    return f"{job.gpus} ({job.min_gpus}..{job.max_gpus})" if job.max_gpus else str(job.gpus)


def _size_pairs(job: views.JobView, sizing: views.SizingView) -> Pairs:
    """Return what `penstock show` says of a job's size."""
    return [
        ("size", _size_text(sizing.size)),
        ("of", _range(sizing)),
        ("rate", _lr(sizing)),
        ("examples", str(job.samples or "")),
        ("pace", f"{render.rate(sizing.samples_per_s)} examples/s" if sizing.samples_per_s is not None else ""),
        ("resized", _how_often(sizing)),
        (
            "unfit",
            "; ".join(_size_text(size) + ("" if size.batch_size else ", whatever the batch") for size in sizing.unfit),
        ),
    ]


def _size_text(size: Size) -> str:
    """Return a size in words; most jobs have one only, and need not load what knows sizes."""
    from penstock_log.job_state import size_text

    return size_text(size)


def _why_size_pairs(why: views.WhyView, now_s: float) -> Pairs:
    """Return what `penstock why` says of a job's size: what it is, why it is that, and who gave what to whom."""
    if why.cause == "finished":
        return []
    found = [("size", why.size)]
    if why.resized is not None:
        found += [
            ("sized", _resized(why.resized, now_s, waits=why.state == "PD")),
            ("gave", _listed(why.resized.gives, "to")),
            ("took", _listed(why.resized.takes, "from")),
        ]
    if why.freed:
        found.append(
            ("coming", f"{_listed(why.freed, 'from')}, which {'is' if len(why.freed) == 1 else 'are'} stopping")
        )
    return found


def _range(sizing: views.SizingView) -> str:
    least, most = sizing.widths
    smallest, largest = sizing.batches
    devices = f"{least} to {most} devices" if most > least else ""
    batch = f"a batch of {smallest} to {largest}" if largest > smallest else ""
    return ", ".join(filter(None, (devices, batch)))


def _lr(sizing: views.SizingView) -> str:
    if sizing.lr_factor is None:
        return "as the script's own function says"
    return f"{sizing.lr_factor:.4g} times the script's learning rate ({sizing.lr_rule})"


def _how_often(sizing: views.SizingView) -> str:
    times = sum(run.outcome == "resized" for run in sizing.runs)
    return f"{times} times" if times > 1 else "once" if times else ""


def _resized(resize: views.ResizeView, now_s: float, *, waits: bool) -> str:
    open_ = "" if resize.done_s is not None or waits else "; it does not run so yet"
    change = resize.reason or f"from {_size_text(resize.before)} to {_size_text(resize.after)}"
    return f"{span(now_s - resize.at_s)} ago, {_BECAUSE.get(resize.because, resize.because)}: {change}{open_}"


def _listed(devices: Mapping[str, int], preposition: str) -> str:
    return ", ".join(f"{render.count(count, 'device')} {preposition} {job}" for job, count in devices.items())


def lent_memory(one: views.NodeMemoryView) -> str:
    """
    Return how much of its memory a node has lent, and would lend at most.

    Examples
    --------
    >>> from penstock_log import views
    >>> lent_memory(views.NodeMemoryView(id="n1", slab_bytes=64 << 20, offered=64, lent=3))
    '192MiB of 4GiB'
    """
    lent = render.size(one.lent * one.slab_bytes) if one.lent else "none"
    return f"{lent} of {render.size(one.offered * one.slab_bytes)}" if one.offered or one.lent else "none"
