"""Device time as people read it: the table of ``penstock usage``, and the figures of a report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from penstock_cli.render import Table
from penstock_cli.value_formats import span
from penstock_log.usage_csv import COLUMNS, gpu_h
from penstock_log.views import UsageRowView, UsageView

LESS_IMPORTANT: Final = ("UNMEASURED", "WAITED", "REQUESTED", "IDLE", "JOBS", "LOST", "USER")
"""Columns that a narrow terminal goes without, the first ones first: held and used are what one looks for."""


def hours(value: float) -> str:
    """
    Return GPU-hours: three figures, or all before the point.

    Examples
    --------
    >>> hours(0.0), hours(0.01234), hours(12.345), hours(1234.5)
    ('0', '0.0123', '12.3', '1234')
    """
    return f"{value:.0f}" if value >= 100 or not value else f"{value:.3g}"


def part(value: float, of: float) -> str:
    """
    Return a part of a whole in percent; a dash where there is no whole.

    Examples
    --------
    >>> part(1.0, 3.0), part(0.0, 0.0)
    ('33%', '-')
    """
    return f"{value / of:.0%}" if of > 0 else "-"


def name(row: UsageRowView) -> str:
    """Return what a row is called."""
    return "(others)" if row.others else row.name or "(none)"


def usage_table(view: UsageView, *, wide: bool = False) -> Table:
    """Return the table of device time in GPU-hours, with the total as the last row."""
    headers = [view.by.upper(), *(column.upper() for column in COLUMNS), "USED%", "JOBS"]
    if view.by == "job":
        headers[1:1] = ["NAME", "USER"]
    if wide:
        headers += ["LOST TO PREEMPTION", "RUNS", "PREEMPTED", "MEDIAN WAIT", "P90 WAIT"]
    rows = [*view.rows, view.total]
    names = [*map(name, view.rows), "total"]
    return headers, [_cells(view, row, called, wide=wide) for row, called in zip(rows, names, strict=True)]


def _cells(view: UsageView, row: UsageRowView, called: str, *, wide: bool) -> tuple[str, ...]:
    usage, waits = row.usage, row.waits
    cells = [called, *([row.title, row.user] if view.by == "job" else [])]
    cells += [hours(gpu_h(usage, column)) for column in COLUMNS]
    cells += [part(usage.used_gpu_s, usage.held_gpu_s), str(usage.jobs)]
    if wide:
        cells += [
            hours(gpu_h(usage, "lost_to_preemption")),
            str(usage.runs),
            str(usage.preemptions),
            span(waits.median_s),
            span(waits.p90_s),
        ]
    return tuple(cells)


def window_lines(view: UsageView) -> list[str]:
    """Return what the table's figures are, and of when."""
    lines = [f"GPU-hours from {utc(view.since_s)} to {utc(view.until_s)} UTC"]
    if view.whole_days:
        days = ", ".join(view.whole_days)
        lines.append(
            f"archived jobs are counted by whole days: {days} {'is' if len(view.whole_days) == 1 else 'are'} whole"
        )
    return lines


def utc(at_s: float) -> str:
    """
    Return a moment in UTC, to the minute: accounts are kept by UTC days.

    Examples
    --------
    >>> utc(1_769_860_859.0)
    '2026-01-31 12:00'
    """
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
