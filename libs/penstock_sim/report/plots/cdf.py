"""How job completion times are distributed."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock_sim.report import palette, thin
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import Picture
from penstock_sim.report.plots import style

_POINTS: Final = 800


def draw(comparison: Comparison) -> Picture | None:
    """Draw the share of all jobs that were done within a time; None if no job of any policy was."""
    done = [outcome for outcome in comparison.outcomes if outcome.finished.any()]
    if not done:
        return None
    looks = palette.looks([outcome.policy for outcome in comparison.outcomes])
    with style.figure(8.0, 4.2) as figure:
        axes = figure.subplots()
        for outcome in done:
            jct_s = np.sort(outcome.jct_s)
            kept = thin.points(jct_s.size, _POINTS)
            look = looks[outcome.policy]
            axes.step(
                np.maximum(jct_s[kept], 1e-3),
                100 * (kept + 1) / len(comparison.trace),
                where="post",
                color=look.colour,
                linestyle=look.dashes,
                label=outcome.policy,
            )
        ends = [end for outcome in done for end in (outcome.jct_s.min(), outcome.jct_s.max())]
        style.log_time_axis(axes, "x", min(ends), max(ends))
        axes.set_ylim(0, 101)
        axes.set_xlabel("job completion time (JCT), logarithmic")
        axes.set_ylabel("jobs done, % of all")
        if len(looks) > 1:
            figure.legend(loc="outside right upper")
        return Picture(
            "jct-cdf",
            "Job completion times",
            "Share of all jobs that were done within a time of their submission. Further left and up is better; "
            "a line that ends below 100 % belongs to a policy under which some jobs never ended.",
            style.svg(figure),
        )
