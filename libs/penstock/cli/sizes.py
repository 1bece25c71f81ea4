"""What an elastic job has, what it may have, and how it came to that, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.cli import render, size_plot
from penstock.cli.times import span

if TYPE_CHECKING:
    from penstock_events import views
    from penstock_events.states import Size

RUN_HEADERS: Final = ("FROM", "FOR", "GPUS", "KIND", "BATCH", "STEPS", "EXAMPLES/S", "ENDED")
_SHOWN_RUNS: Final = 12
_WIDEST: Final = 100
_ELSEWHERE: Final = 80
"""Columns of a chart where standard output is no terminal."""
_BECAUSE: Final = {
    "arrival": "a job has come",
    "completion": "a job is over",
    "nodes": "nodes have changed",
    "order": "the order has changed",
    "profile": "more is known of its workload",
    "interval": "looked at again",
    "unfit": "it did not run so",
}

Pairs = list[tuple[str, str]]


def width(job: views.JobView) -> str:
    """Return a job's devices, with those that it may have where others than it has: ``4 (1..8)``."""
    return f"{job.gpus} ({job.min_gpus}..{job.max_gpus})" if job.max_gpus else str(job.gpus)


def pairs(job: views.JobView, sizing: views.SizingView) -> Pairs:
    """Return what `penstock show` says of a job's size."""
    return [
        ("size", words(sizing.size)),
        ("of", _range(sizing)),
        ("rate", _lr(sizing)),
        ("examples", str(job.samples or "")),
        ("pace", f"{render.rate(sizing.samples_per_s)} examples/s" if sizing.samples_per_s is not None else ""),
        ("resized", _how_often(sizing)),
        (
            "unfit",
            "; ".join(words(size) + ("" if size.batch_size else ", whatever the batch") for size in sizing.unfit),
        ),
    ]


def why_pairs(why: views.WhyView, now_s: float) -> Pairs:
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


def chart(job: views.JobView, sizing: views.SizingView, now_s: float) -> list[str]:
    """Return width and throughput over time, and under it the last runs with their figures."""
    runs = sizing.runs
    if not runs:
        return []
    to_s = job.finished_s if job.finished_s is not None else max(now_s, runs[-1].start_s)
    from_s = runs[0].start_s if sizing.left_out else job.submitted_s
    columns = min(render.terminal_width() or _ELSEWHERE, _WIDEST)
    rows = [_row(run, job.submitted_s, to_s) for run in runs[-_SHOWN_RUNS:]]
    earlier = sizing.left_out + len(runs) - len(rows)
    told = [f"the last {len(rows)} of {len(rows) + earlier} runs"] if earlier else []
    picture = size_plot.lines(runs, (from_s, to_s), columns, zero_s=job.submitted_s)
    return [*picture, "", *told, *render.table(RUN_HEADERS, rows, width=columns)]


def words(size: Size) -> str:
    """Return a size in words."""
    batch = f" with a batch of {size.batch_size}" if size.batch_size else ""
    return f"{size.gpus} device{'s' if size.gpus > 1 else ''}{batch}"


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
    change = resize.reason or f"from {words(resize.before)} to {words(resize.after)}"
    return f"{span(now_s - resize.at_s)} ago, {_BECAUSE.get(resize.because, resize.because)}: {change}{open_}"


def _listed(devices: Mapping[str, int], preposition: str) -> str:
    parts = [f"{count} device{'s' if count > 1 else ''} {preposition} {job}" for job, count in devices.items()]
    return ", ".join(parts)


def _row(run: views.RunView, submitted_s: float, to_s: float) -> tuple[str, ...]:
    rate = "-" if run.samples_per_s is None else render.rate(run.samples_per_s)
    lasted_s = (to_s if run.end_s is None else run.end_s) - run.start_s
    head = (f"+{span(run.start_s - submitted_s)}", span(lasted_s), str(run.gpus), run.kind, str(run.batch_size or "-"))
    return (*head, str(run.steps), rate, run.outcome or "goes on")
