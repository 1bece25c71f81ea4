"""One job as lines: fields, why it is where it is, sizes, metrics since it is looked at, and its story."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from penstock_cli import job_text, render, size_chart
from penstock_cli.top.cluster_watch import JobWatch
from penstock_cli.top.metric_plot import plot_lines, sparkline
from penstock_cli.top.terminal_style import STATE_STYLES, Glyphs, Line, Span, text_of
from penstock_cli.value_formats import span
from penstock_log import TERMINAL

if TYPE_CHECKING:
    from penstock_log import views

_LEAST_LABELLED: Final = 40
_WIDE: Final = 140
"""From so many columns on, a job has two columns."""


def job_page(watch: JobWatch, width: int, now_s: float, glyphs: Glyphs) -> list[Line]:
    """Return all that is known of a job; on a wide terminal its fields stand to the left, and the rest beside them."""
    detail = watch.detail
    if detail is None:
        return [[(f"asking for {glyphs.plain(watch.job_id)}", "dim")]]
    head, waits = list(_head(detail.job, glyphs)), detail.job.state == "PD"
    if width < _WIDE:
        first = _why(detail, width, now_s, glyphs) if waits else _sparklines(watch, width, glyphs)
        more = _why(detail, width, now_s, glyphs) if not waits else []
        return [*head, *first, *_fields(detail, width, glyphs), *more, *_course(watch, detail, width, now_s, glyphs)]
    left, right = width // 2 - 2, width - width // 2
    course = [*_why(detail, right, now_s, glyphs), *_course(watch, detail, right, now_s, glyphs)]
    return [*head, *_beside(_fields(detail, left, glyphs), course, left + 2)]


def _fields(detail: views.JobDetail, width: int, glyphs: Glyphs) -> list[Line]:
    return _titled("Job", job_text.job_lines(detail), width, glyphs)


def _why(detail: views.JobDetail, width: int, now_s: float, glyphs: Glyphs) -> list[Line]:
    return [] if detail.job.state in TERMINAL else why_page(detail.why, width, now_s, glyphs)


def _course(watch: JobWatch, detail: views.JobDetail, width: int, now_s: float, glyphs: Glyphs) -> list[Line]:
    """Return metrics, sizes and the story."""
    story = story_page(watch.story, width, glyphs) if watch.story is not None else []
    return [*_metrics(watch, width, glyphs), *_sizes(detail, width, now_s, glyphs), *story]


def _beside(left: Sequence[Line], right: Sequence[Line], width: int) -> list[Line]:
    """Return lines of two columns, of which the left one takes so much."""
    found: list[Line] = []
    for one, other in zip_longest(left, right, fillvalue=()):
        taken = cell_len(text_of(one))
        found.append([*one, (" " * (width - taken), ""), *other])
    return found


def why_page(why: views.WhyView, width: int, now_s: float, glyphs: Glyphs) -> list[Line]:
    """Return why a job is where it is, with what would change it."""
    return _titled("Why", job_text.why_lines(why, now_s), width, glyphs)


def story_page(story: views.StoryView, width: int, glyphs: Glyphs) -> list[Line]:
    """Return a job's life, the newest first."""
    headers, rows = job_text.story_table(story)
    return _titled("Story", render.table(headers, list(reversed(rows)), width=width, wrap=True)[1:], width, glyphs)


def event_page(events: Iterable[views.EventView], width: int, glyphs: Glyphs) -> list[Line]:
    """Return the facts about a job, the newest first."""
    headers, rows = job_text.event_table(list(events))
    lines = render.table(headers, list(reversed(rows)), width=width, wrap=True)
    return [[(glyphs.plain(line), "bold" if not number else "")] for number, line in enumerate(lines)]


def _head(job: views.JobView, glyphs: Glyphs) -> Iterator[Line]:
    state = f"{job.state}{', held' if job.held else ''}"
    parts: list[Span] = [(glyphs.plain(job.id), "bold"), ("  ", ""), (glyphs.plain(job.name), "bold"), ("  ", "")]
    yield [*parts, (state, f"bold {STATE_STYLES.get(job.state, '')}".strip())]


def _titled(title: str, lines: Iterable[str], width: int, glyphs: Glyphs) -> list[Line]:
    found: list[Line] = [[("", "")], [(title, "bold cyan")]]
    for line in render.wrapped(lines, max(width, _LEAST_LABELLED)):
        label, colon, rest = line.partition(":")
        is_label = bool(colon) and rest.startswith(" ") and label.replace(" ", "").isalpha() and label.islower()
        shown = glyphs.plain(line)
        cut = len(glyphs.plain(label)) + 1 if is_label else 0
        found.append([(shown[:cut], "dim"), (shown[cut:], "")])
    return found


def _sizes(detail: views.JobDetail, width: int, now_s: float, glyphs: Glyphs) -> list[Line]:
    """Return an elastic job's devices and pace over time; nothing for others."""
    sizing, job = detail.sizing, detail.job
    if sizing is None or not sizing.runs:
        return []
    begin_s = sizing.runs[0].start_s if sizing.left_out else job.submitted_s
    end_s = job.finished_s if job.finished_s is not None else max(now_s, sizing.runs[-1].start_s)
    chart = size_chart.lines(sizing.runs, (begin_s, end_s), min(width, 100), zero_s=job.submitted_s)
    return [[("", "")], [("Sizes", "bold cyan")], *([(glyphs.drawn(line), "")] for line in chart)]


def _sparklines(watch: JobWatch, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the course of each metric in a line."""
    longest = max(map(len, watch.history.series), default=0)
    found: list[Line] = []
    for name, points in watch.history.series.items():
        head = f"{glyphs.plain(name):<{longest}}  {render.number(points[-1][1]):>10}  "
        found.append([(head, ""), (sparkline(points, width - len(head), glyphs), "green")])
    return found


def _metrics(watch: JobWatch, width: int, glyphs: Glyphs) -> list[Line]:
    found: list[Line] = []
    for name, points in watch.history.series.items():
        chart = plot_lines(glyphs.plain(name), points, min(width, 100), glyphs)
        found += [[("", "")], *([(line, "bold" if not number else "green")] for number, line in enumerate(chart))]
    if not found:
        return []
    return [[("", "")], [("Metrics since it is looked at", "bold cyan")], *found[1:]]


def as_of_s(detail: views.JobDetail, wall_s: float, *, is_past: bool) -> float:
    """Return of which time an answer is, by the machine's clock or, of the past, by the job's own times."""
    job = detail.job
    if not is_past:
        return wall_s
    began_s = job.eligible_s if job.eligible_s is not None else job.submitted_s
    return job.finished_s if job.finished_s is not None else began_s + job.wait_s + job.run_s


def name_of(job: views.JobView, glyphs: Glyphs) -> str:
    """Return a job's id, with its name where that may be seen."""
    return f"{glyphs.plain(job.id)} ({glyphs.plain(job.name)})" if job.name else glyphs.plain(job.id)


def summary_of(job: views.JobView) -> str:
    """Return a job's state and times in a few words, for a line of text."""
    return f"{job.state}, waited {span(job.wait_s)}, ran {span(job.run_s)}"
