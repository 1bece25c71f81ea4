"""A plot of how much sooner jobs complete, for all and for each team and user, with intervals; needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from penstock_simulator.replay import report
from penstock_simulator.replay.past_outcome import AS_IT_WAS
from penstock_simulator.replay.score import ReplayScore
from penstock_simulator.report import picture, plots
from penstock_simulator.report.intervals import CompletionTimeChange
from penstock_simulator.report.picture import FAINT, Picture

_LOG_FROM: Final = 4.0
"""An axis from a ratio to so many times it is logarithmic."""


def draw(scores: Mapping[str, ReplayScore]) -> Iterator[Picture]:
    """Draw a row for each team and user, with a dot for each policy; return nothing if no row has an interval."""
    rows = _rows(scores)
    if not rows:
        return
    with plots.new_figure(8.0, 1.1 + len(rows) * (0.2 + 0.12 * len(scores))) as figure:
        axes = figure.subplots()
        looks = picture.looks([AS_IT_WAS, *scores])
        for at, policy in enumerate(scores):
            offset = (at - (len(scores) - 1) / 2) * 0.7 / len(scores)
            _dots(axes, rows, policy, looks[policy].colour, offset)
        axes.axvline(1.0, color=FAINT, linewidth=1)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlabel("average JCT ÷ what it was")
        _scale(axes)
        figure.legend(loc="outside upper right", ncols=4)
        yield Picture(
            "changes",
            "Change of the average JCT",
            f"Average JCT over what it really was, of jobs that completed in both; lines are {_level(scores)} "
            "intervals. Left of 1 jobs complete sooner; a line across 1 shows no difference.",
            plots.svg(figure),
        )


def _rows(scores: Mapping[str, ReplayScore]) -> dict[str, dict[str, CompletionTimeChange]]:
    """Return row → what each policy changes, of the rows that have an interval."""
    found: dict[str, dict[str, CompletionTimeChange]] = {}
    for policy, score in scores.items():
        for who, one in report.groups(score):
            if one.ratio is not None and one.ratio_interval is not None:
                found.setdefault(who, {})[policy] = one
    return found


def _dots(
    axes: Axes, rows: Mapping[str, Mapping[str, CompletionTimeChange]], policy: str, colour: str, offset: float
) -> None:
    points = [(at + offset, one[policy]) for at, one in enumerate(rows.values()) if policy in one]
    places, ratios = [place for place, _ in points], [one.ratio for _, one in points]
    bounds = [one.ratio_interval for _, one in points if one.ratio_interval is not None]
    axes.hlines(places, [bound.low for bound in bounds], [bound.high for bound in bounds], color=colour, linewidth=2)
    axes.plot(ratios, places, "o", color=colour, markersize=5, label=policy)  # type: ignore[arg-type] # none is None


def _scale(axes: Axes) -> None:
    low, high = axes.get_xlim()
    if low > 0 and high / low > _LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _level(scores: Mapping[str, ReplayScore]) -> str:
    return f"{next(iter(scores.values())).level:.0%}"
