"""How much faster than the first policy."""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from penstock_sim.report import palette, table
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import FAINT, Picture
from penstock_sim.report.plots import style
from penstock_sim.trace import Floats

_LOG_FROM: Final = 20.0
_BARS: Final = (("avg_jct_s", "average", 1.0), ("p95_jct_s", "95th percentile", 0.45))


def draw(comparison: Comparison) -> Picture | None:
    """Draw the first policy's JCT over each policy's; None if there is nothing to compare."""
    first, *others = comparison.summaries
    compared = [policy for policy in others if comparison.ratio(policy)]
    if not compared:
        return None
    with style.figure(8.0, 1.3 + 0.5 * len(compared)) as figure:
        axes = figure.subplots()
        _bars(axes, comparison, first, compared)
        axes.axvline(1.0, color=FAINT, linewidth=1)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(compared)), compared)
        axes.invert_yaxis()
        axes.set_xlabel(f"speed-up over {first}: its JCT ÷ the policy's")
        figure.legend(loc="outside upper right", ncols=2)
        return Picture(
            "speedups",
            f"Speed-up over {first}",
            f"JCT under {first} over JCT under each policy, average and 95th percentile, on "
            f"{table.gpus(comparison)} GPUs. More is better; left of 1 the policy is slower.",
            style.svg(figure),
        )


def _bars(axes: Axes, comparison: Comparison, first: str, compared: list[str]) -> None:
    """Draw the bars: from 0, or from 1 to both sides where they are so different that the axis is logarithmic."""
    looks = palette.looks(list(comparison.summaries))
    gains = np.array([_gains(comparison, first, figure_name, compared) for figure_name, _, _ in _BARS])
    logarithmic = float(gains.max()) > _LOG_FROM
    from_gain = 1.0 if logarithmic else 0.0
    for at, (_, label, opacity) in enumerate(_BARS):
        places = np.arange(len(compared)) + (at - 0.5) * 0.38
        colours = [looks[policy].colour for policy in compared]
        axes.barh(places, gains[at] - from_gain, left=from_gain, height=0.36, color=colours, alpha=opacity)
        for place, gain in zip(places, gains[at], strict=True):
            axes.annotate(
                f"{gain:.2f}" if gain < 10 else f"{gain:.1f}",
                (max(gain, 1.0) if logarithmic else gain, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.barh([np.nan], [np.nan], color=FAINT, alpha=opacity, label=label)
    if logarithmic:
        _logarithmic(axes, gains)
    else:
        axes.set_xlim(0, max(1.0, float(gains.max())) * 1.12)


def _gains(comparison: Comparison, first: str, figure_name: str, compared: list[str]) -> list[float]:
    base_s: float = getattr(comparison.summaries[first], figure_name)
    return [base_s / max(getattr(comparison.summaries[policy], figure_name), 1e-9) for policy in compared]


def _logarithmic(axes: Axes, gains: Floats) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(1.0, float(gains.min())) / 1.15, float(gains.max()) * 1.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
