"""How much faster than the first policy."""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.axes import Axes

from penstock_sim.report import palette
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import FAINT, Picture
from penstock_sim.report.plots import style

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
            f"{comparison.outcomes[0].gpus:,} GPUs. More is better; left of 1 the policy is slower.",
            style.svg(figure),
        )


def _bars(axes: Axes, comparison: Comparison, first: str, compared: list[str]) -> None:
    looks = palette.looks(list(comparison.summaries))
    base, most = comparison.summaries[first], 1.0
    for at, (figure_name, label, opacity) in enumerate(_BARS):
        gains = [
            getattr(base, figure_name) / max(getattr(comparison.summaries[policy], figure_name), 1e-9)
            for policy in compared
        ]
        most = max(most, *gains)
        places = np.arange(len(compared)) + (at - 0.5) * 0.38
        colours = [looks[policy].colour for policy in compared]
        drawn = axes.barh(places, gains, height=0.36, color=colours, alpha=opacity)
        axes.bar_label(drawn, [f"{gain:.2f}" if gain < 10 else f"{gain:.1f}" for gain in gains], padding=4)
        axes.barh([np.nan], [np.nan], color=FAINT, alpha=opacity, label=label)
    if most > _LOG_FROM:
        axes.set_xscale("log")
        axes.set_xlim(right=most * 1.6)
    else:
        axes.set_xlim(0, most * 1.12)
