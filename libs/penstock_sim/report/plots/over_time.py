"""Utilisation and queue length over time, one row of panels for each policy."""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from penstock_sim.outcome import Timeline
from penstock_sim.report import palette, thin
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import FAINT, Picture
from penstock_sim.report.plots import style

_COLUMNS: Final = 240
_SKEWED: Final = 30.0
"""From this ratio of the longest queue to the shortest one's longest on, the axis is logarithmic above 10."""


def draw(comparison: Comparison) -> Picture | None:
    """Draw mean and range in each column of time; None where nobody kept a timeline."""
    shown = [(one, one.timeline) for one in comparison.outcomes if one.timeline is not None and one.timeline.at_s.size]
    if not shown:
        return None
    until_s = max(float(timeline.at_s[-1]) for _, timeline in shown)
    unit_s, unit = style.time_unit(until_s - comparison.from_s)
    edge_s = thin.edges(comparison.from_s, until_s, _COLUMNS)
    x = (edge_s - comparison.from_s) / unit_s
    looks = palette.looks([outcome.policy for outcome in comparison.outcomes])
    first = _series(shown[0][1], edge_s, comparison.outcomes[0].gpus)
    with style.figure(8.0, 1.1 + 1.25 * len(shown)) as figure:
        panels = figure.subplots(len(shown), 2, sharex=True, sharey="col", squeeze=False)
        for row, (outcome, timeline) in zip(panels, shown, strict=True):
            for axes, series, base in zip(row, _series(timeline, edge_s, outcome.gpus), first, strict=True):
                _panel(axes, x, series, looks[outcome.policy].colour, base if outcome is not shown[0][0] else None)
            row[0].set_title(outcome.policy, fontsize=10, color=looks[outcome.policy].colour)
        _label(panels[:, 0], panels[:, 1], [timeline for _, timeline in shown])
        figure.supxlabel(f"{unit} since the first submission", fontsize=10)
        compared = f" Dotted: the mean under {shown[0][0].policy}." if len(shown) > 1 else ""
        return Picture(
            "over-time",
            "Utilisation and queue over time",
            f"Line: mean over time in each of {_COLUMNS} columns; shade: least and most within the column.{compared}",
            style.svg(figure),
        )


def _series(timeline: Timeline, edge_s: np.ndarray, gpus: int) -> tuple[thin.Columns, thin.Columns]:
    busy = thin.columns(timeline.at_s, timeline.busy_gpus * (100.0 / gpus), edge_s)
    return busy, thin.columns(timeline.at_s, timeline.waiting_jobs, edge_s)


def _panel(axes: Axes, x: np.ndarray, series: thin.Columns, colour: str, base: thin.Columns | None) -> None:
    """Draw a series, and under it the mean of the one it is compared with."""
    axes.fill_between(x[:-1], series.least, series.most, step="post", color=colour, alpha=0.25, linewidth=0)
    axes.stairs(series.mean, x, color=colour, linewidth=1.3, baseline=None)
    if base is not None:
        axes.stairs(base.mean, x, color=FAINT, linewidth=1.0, linestyle=(0, (1, 1.5)), baseline=None)
    axes.set_xlim(x[0], x[-1])


def _label(busy: np.ndarray, waiting: np.ndarray, timelines: list[Timeline]) -> None:
    busy[0].set_ylim(0, 103)
    busy[0].set_yticks([0, 50, 100])
    longest = [int(timeline.waiting_jobs.max()) for timeline in timelines]
    skewed = max(longest) > _SKEWED * max(min(longest), 10)
    if skewed:
        waiting[0].set_yscale("symlog", linthresh=10, linscale=0.5)
        waiting[0].yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    waiting[0].set_ylim(0, max(*longest, 1) * (2 if skewed else 1.06))
    middle = len(busy) // 2
    busy[middle].set_ylabel("busy GPUs, %")
    waiting[middle].set_ylabel("waiting jobs" + (", logarithmic" if skewed else ""))
