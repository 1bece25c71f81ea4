"""
All pictures of outcomes; the one part of the report that loads matplotlib.

Matplotlib is an extra (``plot``): call :func:`penstock_simulator.report.picture.require` before this module is
imported. :func:`pictures` draws everything. The pictures have one colour for each policy and few inks, and equal input
gives files that are equal to the byte. They show:

* completion times by the number of GPUs that jobs ask for: who pays for whom;
* how job completion times are distributed;
* who held which GPU when;
* utilisation and queue length over time, one row of panels for each policy;
* how much faster each policy is than the first one.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from penstock_log.text import escaped_lines
from penstock_simulator.outcome import ClusterTimeline, DeviceSpells, Outcome
from penstock_simulator.report import device_timeline, picture, policy_comparison
from penstock_simulator.report.picture import FAINT, GRID, INK, PAPER, Picture
from penstock_simulator.report.policy_comparison import Comparison
from penstock_simulator.trace import Floats, Ints


@contextmanager
def new_figure(width_in: float, height_in: float) -> Iterator[Figure]:
    """Make a figure in the common style; without a window and without a global list of figures."""
    with mpl.rc_context(_RC):
        yield Figure(figsize=(width_in, height_in), layout="constrained")


def svg(drawn: Figure) -> str:
    """Return a figure as SVG: equal figures are equal to the byte, and invisible characters of labels are shown."""
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": "penstock"})
    return escaped_lines(_PRECISE.sub(r"\1", file.getvalue()))


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


def draw_by_gpus(comparison: Comparison) -> Picture | None:
    """Draw the median JCT, and its middle half, by the GPUs that jobs ask for; None if no job finished."""
    if not any(outcome.finished.any() for outcome in comparison.outcomes):
        return None
    named = groups(comparison.trace.num_gpus)
    looks = picture.looks([outcome.policy for outcome in comparison.outcomes])
    step = min(0.8 / len(comparison.outcomes), 0.25)
    ends: list[float] = []
    with new_figure(8.0, 4.2) as figure:
        axes = figure.subplots()
        for at, outcome in enumerate(comparison.outcomes):
            places, quartiles = _quartiles(outcome.end_s - comparison.trace.submit_s, named)
            ends += quartiles.ravel().tolist()
            places = places + (at - (len(comparison.outcomes) - 1) / 2) * step
            colour = looks[outcome.policy].colour
            axes.vlines(places, quartiles[:, 0], quartiles[:, 2], color=colour, linewidth=3.5, alpha=0.5)
            axes.plot(places, quartiles[:, 1], "o", color=colour, markersize=5, label=outcome.policy)
        log_time_axis(axes, "y", min(ends), max(ends))
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(named)), [_tick(name, int(member.sum())) for name, member in named.items()])
        axes.tick_params(axis="x", labelsize=9)
        axes.set_xlabel("GPUs that a job asks for")
        axes.set_ylabel("job completion time (JCT)")
        if len(looks) > 1:
            figure.legend(loc="outside right upper")
        return Picture(
            "jct-by-gpus",
            "JCT by GPU count",
            "Median JCT of the finished jobs (dot) and the middle half of them (bar), by the GPUs that they ask for.",
            svg(figure),
        )


def draw_cdf(comparison: Comparison) -> Picture | None:
    """Draw the share of all jobs that were done within a time; None if no job of any policy was."""
    done = [outcome for outcome in comparison.outcomes if outcome.finished.any()]
    if not done:
        return None
    looks = picture.looks([outcome.policy for outcome in comparison.outcomes])
    with new_figure(8.0, 4.2) as figure:
        axes = figure.subplots()
        for outcome in done:
            jct_s = np.sort(outcome.jct_s)
            kept = device_timeline.points(jct_s.size, _POINTS)
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
        log_time_axis(axes, "x", min(ends), max(ends))
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
            svg(figure),
        )


def draw_gantt(comparison: Comparison) -> Iterator[Picture]:
    """Draw, for each policy whose outcome has device spells, who held which GPU when."""
    known = [(one, one.spells) for one in comparison.outcomes if one.spells is not None and one.spells.job.size]
    until_s = max((float(spells.to_s.max()) for _, spells in known), default=0.0)
    for outcome, spells in known:
        yield _picture(comparison, outcome, spells, until_s)


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


def draw_over_time(comparison: Comparison) -> Picture | None:
    """Draw utilisation and queue length over time, a row of panels a policy; None where no outcome has a timeline."""
    shown = [(one, one.timeline) for one in comparison.outcomes if one.timeline is not None and one.timeline.at_s.size]
    if not shown:
        return None
    until_s = max(float(timeline.at_s[-1]) for _, timeline in shown)
    unit_s, unit = time_unit(until_s - comparison.from_s)
    edge_s = device_timeline.edges(comparison.from_s, until_s, _TIME_COLUMNS)
    x = (edge_s - comparison.from_s) / unit_s
    looks = picture.looks([outcome.policy for outcome in comparison.outcomes])
    first = _series(shown[0][1], edge_s, comparison.outcomes[0].gpus)
    with new_figure(8.0, 1.1 + 1.25 * len(shown)) as figure:
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
            f"Line: mean over time in each of {_TIME_COLUMNS} columns; shade: least and most within the column."
            f"{compared}",
            svg(figure),
        )


def draw_speedups(comparison: Comparison) -> Picture | None:
    """Draw the first policy's JCT over each policy's; None if there is nothing to compare."""
    first, *others = comparison.summaries
    compared = [policy for policy in others if comparison.ratio(policy)]
    if not compared:
        return None
    with new_figure(8.0, 1.3 + 0.5 * len(compared)) as figure:
        axes = figure.subplots()
        _speedup_bars(axes, comparison, first, compared)
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
            f"{policy_comparison.gpu_count(comparison)} GPUs. More is better; left of 1 the policy is slower.",
            svg(figure),
        )


def pictures(comparison: Comparison) -> Iterator[Picture]:
    """Draw all that can be drawn of a comparison, one after another."""
    for draw in (draw_cdf, draw_speedups, draw_over_time, draw_by_gpus):
        if (picture := draw(comparison)) is not None:
            yield picture
    yield from draw_gantt(comparison)


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


_MOST_GROUPS: Final = 8


def groups(num_gpus: Ints) -> dict[str, npt.NDArray[np.bool_]]:
    """
    Return which jobs are in which group: one for each number of GPUs, or for each power of two where there are many.

    Examples
    --------
    >>> {name: member.sum().item() for name, member in groups(np.array([1, 1, 4])).items()}
    {'1': 2, '4': 1}
    >>> {name: member.sum().item() for name, member in groups(np.arange(1, 101)).items()}
    {'1': 1, '2': 1, '3-4': 2, '5-8': 4, '9-16': 8, '17-32': 16, '33-64': 32, '65-100': 36}
    """
    found = np.unique(num_gpus)
    if found.size <= _MOST_GROUPS:
        return {str(gpus): num_gpus == gpus for gpus in found.tolist()}
    power = np.ceil(np.log2(num_gpus)).astype(np.int64)
    power = np.minimum(power, power.min() + _MOST_GROUPS - 1)
    named = {}
    for exponent in np.unique(power).tolist():
        member = power == exponent
        low, high = 2 ** (exponent - 1) + 1 if exponent else 1, int(num_gpus[member].max())
        high = min(high, 2**exponent) if exponent < power.max() else high
        named[f"{low}-{high}" if high > low else str(high)] = member
    return named


def _tick(name: str, jobs: int) -> str:
    return f"{name}\n{jobs:,} {'job' if jobs == 1 else 'jobs'}"


def _quartiles(
    jct_s: npt.NDArray[np.float64], named: dict[str, npt.NDArray[np.bool_]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the groups' places on the axis, those with a finished job, and their quartiles, (groups, 3)."""
    done = np.isfinite(jct_s)
    kept = [(at, member & done) for at, member in enumerate(named.values()) if (member & done).any()]
    places = np.array([at for at, _ in kept], dtype=np.float64)
    return places, np.array([np.percentile(np.maximum(jct_s[member], 1e-3), [25, 50, 75]) for _, member in kept])


_POINTS: Final = 800

_MOST_BARS: Final = 4000
_MOST_ROWS: Final = 64
_GANTT_COLUMNS: Final = 400
_TINTS: Final = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#a89600", "#d55e00", "#7a9ad0", "#9c9ea3")


def _picture(comparison: Comparison, outcome: Outcome, spells: DeviceSpells, until_s: float) -> Picture:
    span_s = (comparison.from_s, until_s)
    unit_s, unit = time_unit(until_s - comparison.from_s)
    few = spells.job.size <= _MOST_BARS and outcome.gpus <= _MOST_ROWS
    with new_figure(8.0, 1.2 + 0.16 * max(min(outcome.gpus, _MOST_ROWS), 4)) as figure:
        axes = figure.subplots()
        if few:
            _gantt_bars(axes, comparison, spells, unit_s)
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
        return Picture(f"gantt-{outcome.policy}", f"GPUs over time: {outcome.policy}", how, svg(figure))


def _gantt_bars(axes: Axes, comparison: Comparison, spells: DeviceSpells, unit_s: float) -> None:
    """Draw every run, with the job's name where there is space for it."""
    x0, x1 = ((at_s - comparison.from_s) / unit_s for at_s in (spells.from_s, spells.to_s))
    y0, y1 = spells.device - 0.44, spells.device + 0.44
    corners = np.stack([np.column_stack([x0, x1, x1, x0]), np.column_stack([y0, y0, y1, y1])], axis=2)
    tints = [_TINTS[job % len(_TINTS)] for job in spells.job.tolist()]
    axes.add_collection(PolyCollection(list(corners), facecolors=tints, edgecolors=PAPER, linewidths=0.4))
    axes.grid(visible=False, axis="y")
    character_s = float(x1.max()) / 90
    for job, device, left, right in zip(spells.job.tolist(), spells.device.tolist(), x0, x1, strict=True):
        name = comparison.trace.job_ids[job]
        if right - left > character_s * (len(name) + 1):
            axes.text(
                (left + right) / 2, device, name, ha="center", va="center", fontsize=7, color="#101010", clip_on=True
            )


def _shares(axes: Axes, gpus: int, spells: DeviceSpells, span_s: tuple[float, float], unit_s: float) -> None:
    """Draw how much of each row's devices was in use, as a picture of its own."""
    shares = device_timeline.device_shares(spells, gpus, span_s, (_MOST_ROWS, _GANTT_COLUMNS))
    pixels = np.zeros((*shares.shape, 4))
    pixels[..., :3] = np.array([0x00, 0x72, 0xB2]) / 255
    pixels[..., 3] = shares
    extent = (0.0, (span_s[1] - span_s[0]) / unit_s, gpus - 0.5, -0.5)
    axes.imshow(pixels, aspect="auto", interpolation="nearest", extent=extent)
    axes.grid(visible=False)


_TIME_COLUMNS: Final = 240
_SKEWED: Final = 30.0
"""From this ratio of the longest queue to the shortest one's longest on, the axis is logarithmic above 10."""


def _series(
    timeline: ClusterTimeline, edge_s: np.ndarray, gpus: int
) -> tuple[device_timeline.TimeColumns, device_timeline.TimeColumns]:
    busy = device_timeline.columns(timeline.at_s, timeline.busy_gpus * (100.0 / gpus), edge_s)
    return busy, device_timeline.columns(timeline.at_s, timeline.waiting_jobs, edge_s)


def _panel(
    axes: Axes,
    x: np.ndarray,
    series: device_timeline.TimeColumns,
    colour: str,
    base: device_timeline.TimeColumns | None,
) -> None:
    """Draw a series, and under it the mean of the one it is compared with."""
    axes.fill_between(x[:-1], series.least, series.most, step="post", color=colour, alpha=0.25, linewidth=0)
    axes.stairs(series.mean, x, color=colour, linewidth=1.3, baseline=None)
    if base is not None:
        axes.stairs(base.mean, x, color=FAINT, linewidth=1.0, linestyle=(0, (1, 1.5)), baseline=None)
    axes.set_xlim(x[0], x[-1])


def _label(busy: np.ndarray, waiting: np.ndarray, timelines: list[ClusterTimeline]) -> None:
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


_LOG_FROM: Final = 20.0
_BARS: Final = (("avg_jct_s", "average", 1.0), ("p95_jct_s", "95th percentile", 0.45))


def _speedup_bars(axes: Axes, comparison: Comparison, first: str, compared: list[str]) -> None:
    """Draw the bars: from 0, or from 1 to both sides where they are so different that the axis is logarithmic."""
    looks = picture.looks(list(comparison.summaries))
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
