"""How all pictures look: one colour for each policy, few inks, and files that are the same for the same input."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from penstock_sim.report.picture import FAINT, GRID, INK, PAPER

_MARKS: Final[tuple[dict[float, str], ...]] = (
    {1.0: "1 s", 60.0: "1 min", 3600.0: "1 h", 86400.0: "1 d", 8640000.0: "100 d", 0.001: "1 ms"},
    {
        10.0: "10 s",
        600.0: "10 min",
        21600.0: "6 h",
        864000.0: "10 d",
        86400000.0: "1000 d",
        0.1: "0.1 s",
        0.01: "10 ms",
    },
    {2.0: "2 s", 5.0: "5 s", 30.0: "30 s", 120.0: "2 min", 300.0: "5 min", 1800.0: "30 min", 7200.0: "2 h"},
    {
        20.0: "20 s",
        1200.0: "20 min",
        10800.0: "3 h",
        43200.0: "12 h",
        172800.0: "2 d",
        432000.0: "5 d",
        2592000.0: "30 d",
    },
)
"""Readable times, the more welcome first."""
_PRECISE: Final = re.compile(r"(\d\.\d\d)\d+(?=[ \n\"])")
"""Coordinates in more than hundredths of a point: half of a file, and seen by nobody."""
_RC: Final[Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "penstock",
    "svg.fonttype": "path",
}


@contextmanager
def figure(width_in: float, height_in: float) -> Iterator[Figure]:
    """Make a figure in the common style; without a window and without a global list of figures."""
    with mpl.rc_context(_RC):
        yield Figure(figsize=(width_in, height_in), layout="constrained")


def svg(drawn: Figure) -> str:
    """Return a figure as SVG: equal figures are equal to the byte."""
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": "penstock"})
    return _PRECISE.sub(r"\1", file.getvalue())


def time_unit(extent_s: float) -> tuple[float, str]:
    """
    Return the unit in which an axis of this length is best read, in seconds, and its name.

    Examples
    --------
    >>> time_unit(90), time_unit(86_400 * 130)
    ((1.0, 'seconds'), (86400.0, 'days'))
    """
    for unit_s, name, least in ((86400.0, "days", 4.0), (3600.0, "hours", 4.0), (60.0, "minutes", 4.0)):
        if extent_s >= least * unit_s:
            return unit_s, name
    return 1.0, "seconds"


def log_time_axis(axes: Axes, which: str, least_s: float, most_s: float) -> None:
    """Label a logarithmic axis of times with 1 s, 1 min, 1 h, 1 d and as much of what lies between as is readable."""
    low = max(least_s, 1e-3) / 1.15
    high = max(most_s, low * 2) * 1.15
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    named = marks(low, high)
    axis.set_major_locator(FixedLocator(list(named)))
    axis.set_ticklabels(list(named.values()))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def marks(low_s: float, high_s: float) -> dict[float, str]:
    """
    Return where a logarithmic axis of times is labelled, and how: no two labels closer than a twelfth of the axis.

    Examples
    --------
    >>> print(*marks(50.0, 4000.0).values(), sep=", ")
    1 min, 2 min, 5 min, 10 min, 20 min, 30 min, 1 h
    >>> print(*marks(0.5, 1e7).values(), sep=", ")
    1 s, 10 s, 1 min, 10 min, 1 h, 1 d, 10 d, 100 d
    """
    apart = math.log(high_s / low_s) / 12
    found: dict[float, str] = {}
    for level in _MARKS:
        for at_s, name in level.items():
            if low_s <= at_s <= high_s and all(abs(math.log(at_s / other)) >= apart for other in found):
                found[at_s] = name
    return dict(sorted(found.items()))
