"""Who held which GPU when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.ticker import MaxNLocator

from penstock_sim.outcome import Outcome, Spells
from penstock_sim.report import devices
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import PAPER, Picture
from penstock_sim.report.plots import style

_MOST_BARS: Final = 4000
_MOST_ROWS: Final = 64
_COLUMNS: Final = 400
_TINTS: Final = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#a89600", "#d55e00", "#7a9ad0", "#9c9ea3")


def draw(comparison: Comparison) -> Iterator[Picture]:
    """Draw one picture for each policy of which it is known who held what."""
    known = [(one, one.spells) for one in comparison.outcomes if one.spells is not None and one.spells.job.size]
    until_s = max((float(spells.to_s.max()) for _, spells in known), default=0.0)
    for outcome, spells in known:
        yield _picture(comparison, outcome, spells, until_s)


def _picture(comparison: Comparison, outcome: Outcome, spells: Spells, until_s: float) -> Picture:
    span_s = (comparison.from_s, until_s)
    unit_s, unit = style.time_unit(until_s - comparison.from_s)
    few = spells.job.size <= _MOST_BARS and outcome.gpus <= _MOST_ROWS
    with style.figure(8.0, 1.2 + 0.16 * max(min(outcome.gpus, _MOST_ROWS), 4)) as figure:
        axes = figure.subplots()
        if few:
            _bars(axes, comparison, spells, unit_s)
        else:
            _shares(axes, outcome.gpus, spells, span_s, unit_s)
        axes.set_xlim(0, (until_s - comparison.from_s) / unit_s)
        axes.set_ylim(outcome.gpus - 0.5, -0.5)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"{unit} since the first submission")
        axes.set_ylabel("GPU")
        how = (
            "Each bar is a run of a job on a GPU; neighbours in time have different colours, a gang has one."
            if few
            else "Darker: a larger share of the time (and of the row's GPUs) in use; white: idle."
        )
        return Picture(f"gantt-{outcome.policy}", f"GPUs over time: {outcome.policy}", how, style.svg(figure))


def _bars(axes: Axes, comparison: Comparison, spells: Spells, unit_s: float) -> None:
    """Draw every run, with the job's name where there is room for it."""
    x0, x1 = ((at_s - comparison.from_s) / unit_s for at_s in (spells.from_s, spells.to_s))
    y0, y1 = spells.device - 0.44, spells.device + 0.44
    corners = np.stack([np.column_stack([x0, x1, x1, x0]), np.column_stack([y0, y0, y1, y1])], axis=2)
    tints = [_TINTS[job % len(_TINTS)] for job in spells.job.tolist()]
    axes.add_collection(PolyCollection(list(corners), facecolors=tints, edgecolors=PAPER, linewidths=0.4))
    axes.grid(visible=False, axis="y")
    room = float(x1.max()) / 90
    for job, device, left, right in zip(spells.job.tolist(), spells.device.tolist(), x0, x1, strict=True):
        name = comparison.trace.job_ids[job]
        if right - left > room * (len(name) + 1):
            axes.text(
                (left + right) / 2, device, name, ha="center", va="center", fontsize=7, color="#101010", clip_on=True
            )


def _shares(axes: Axes, gpus: int, spells: Spells, span_s: tuple[float, float], unit_s: float) -> None:
    """Draw how much of each row's devices was in use, as a picture of its own."""
    shares = devices.shares(spells, gpus, span_s, (_MOST_ROWS, _COLUMNS))
    pixels = np.zeros((*shares.shape, 4))
    pixels[..., :3] = np.array([0x00, 0x72, 0xB2]) / 255
    pixels[..., 3] = shares
    extent = (0.0, (span_s[1] - span_s[0]) / unit_s, gpus - 0.5, -0.5)
    axes.imshow(pixels, aspect="auto", interpolation="nearest", extent=extent)
    axes.grid(visible=False)
