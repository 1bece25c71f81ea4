"""Chart of an elastic job's sizes: by bars how many devices it had over time, and how fast it went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock_cli import render
from penstock_cli.value_formats import span

if TYPE_CHECKING:
    from penstock_log import views
    from penstock_log.views import SizedRunView


RUN_HEADERS: Final = ("FROM", "FOR", "GPUS", "KIND", "BATCH", "STEPS", "EXAMPLES/S", "ENDED")
_SHOWN_RUNS: Final = 12
_WIDEST: Final = 100
_ELSEWHERE: Final = 80
"""Columns of a chart where standard output is no terminal."""
_SHADES: Final = " ▁▂▃▄▅▆▇█"
_MOST_ROWS: Final = 8
_PACE_ROWS: Final = 5
_LEAST: Final = 20
_UNKNOWN: Final = "?"


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
    omitted = [f"the last {len(rows)} of {len(rows) + earlier} runs"] if earlier else []
    picture = lines(runs, (from_s, to_s), columns, zero_s=job.submitted_s)
    return [*picture, "", *omitted, *render.table(RUN_HEADERS, rows, width=columns)]


def lines(runs: Sequence[SizedRunView], span_s: tuple[float, float], width: int, zero_s: float) -> list[str]:
    """
    Return the chart, at most ``width`` columns wide: devices above, samples a second below, over the same time.

    A column shows the run in its middle, and nothing where none went on. Under the bars stand batch sizes and samples a
    second, each where a run begins with another, as far as there is room; a question mark where nobody knows.

    Parameters
    ----------
    span_s : pair of float
        From when to when.
    zero_s : float
        From which times are counted.
    """
    from_s, to_s = span_s
    most = max(run.gpus for run in runs)
    rates = [run.samples_per_s for run in runs if run.samples_per_s is not None]
    fastest = max(rates, default=0.0)
    margin = max(len(str(most)), len(render.rate(fastest)), len("batch"))
    inner = max(width - margin - 2, _LEAST)
    shown = [_run_at(runs, from_s + (to_s - from_s) * (column + 0.5) / inner) for column in range(inner)]
    upper = _bars([float(run.gpus) if run else 0.0 for run in shown], float(most), min(most, _MOST_ROWS))
    found = ["devices", *_labelled(upper, _device_labels(most), margin)]
    found.append(f"{'batch':>{margin}}  {_figures(shown, lambda run: str(run.batch_size or _UNKNOWN))}")
    if fastest > 0:
        lower = _bars([(run.samples_per_s or 0.0) if run else 0.0 for run in shown], fastest, _PACE_ROWS)
        found += [
            "examples/s",
            *_labelled(lower, lambda row: render.rate(fastest) if row == _PACE_ROWS else "", margin),
        ]
        found.append(f"{'':>{margin}}  {_figures(shown, _pace)}")
    axis = _axis((from_s - zero_s, to_s - zero_s), inner)
    return [*(line.rstrip() for line in found), f"{'':>{margin}}  {axis}"]


def _row(run: views.SizedRunView, submitted_s: float, to_s: float) -> tuple[str, ...]:
    rate = "-" if run.samples_per_s is None else render.rate(run.samples_per_s)
    lasted_s = (to_s if run.end_s is None else run.end_s) - run.start_s
    head = (f"+{span(run.start_s - submitted_s)}", span(lasted_s), str(run.gpus), run.kind, str(run.batch_size or "-"))
    return (*head, str(run.steps), rate, run.outcome or "goes on")


def _run_at(runs: Sequence[SizedRunView], at_s: float) -> SizedRunView | None:
    return next((run for run in runs if run.start_s <= at_s and (run.end_s is None or at_s < run.end_s)), None)


def _bars(values: Sequence[float], most: float, rows: int) -> list[str]:
    """Return the cells of bars, the topmost row first; a value above 0 shows, however small."""
    found = []
    for row in reversed(range(rows)):
        parts = [min(1.0, max(0.0, value / most * rows - row)) for value in values]
        levels = [round(part * (len(_SHADES) - 1)) or int(row == 0 and part > 0) for part in parts]
        found.append("".join(_SHADES[level] for level in levels))
    return found


def _labelled(rows: Sequence[str], label: Callable[[int], str], margin: int) -> list[str]:
    """Return rows with a margin; the bottommost is number 1."""
    return [f"{label(number):>{margin}}  {row}" for number, row in zip(range(len(rows), 0, -1), rows, strict=True)]


def _device_labels(most: int) -> Callable[[int], str]:
    if most <= _MOST_ROWS:
        return str
    return lambda row: f"{most * row / _MOST_ROWS:.4g}" if row % 2 == 0 else ""


def _figures(shown: Sequence[SizedRunView | None], figure: Callable[[SizedRunView], str]) -> str:
    """Return a figure of each run where it begins with another than before, if that one leaves room for it."""
    line, before = "", ""
    for column, run in enumerate(shown):
        text = figure(run) if run is not None else before
        if text != before and len(line) <= column and column + len(text) <= len(shown):
            before, line = text, f"{line:<{column}}{text} "
    return line


def _pace(run: SizedRunView) -> str:
    return _UNKNOWN if run.samples_per_s is None else render.rate(run.samples_per_s)


def _axis(ends_s: tuple[float, float], width: int) -> str:
    """Return a line of times under the cells: begin, middle and end."""
    begin, middle, end = (f"+{span(at_s)}" for at_s in (ends_s[0], sum(ends_s) / 2, ends_s[1]))
    line = f"{begin:<{width // 2}}{middle}"
    return f"{line:<{width - len(end)}}{end}" if len(line) + len(end) < width else line
