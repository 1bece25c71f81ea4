"""Pictures of outcomes, drawn with matplotlib (extra ``plot``): ask ``picture.require`` before this is imported."""

from __future__ import annotations

from collections.abc import Iterator

from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import Picture
from penstock_sim.report.plots import by_gpus, cdf, gantt, over_time, speedups


def pictures(comparison: Comparison) -> Iterator[Picture]:
    """Draw all that can be drawn of a comparison, one after another."""
    for draw in (cdf.draw, speedups.draw, over_time.draw, by_gpus.draw):
        if (picture := draw(comparison)) is not None:
            yield picture
    yield from gantt.draw(comparison)
