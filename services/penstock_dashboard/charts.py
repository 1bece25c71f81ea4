"""
Charts: rows of points, which the page's script draws, and bars, which are drawn here as SVG.

A chart's points are rows of a table, some dozens of points to a row, which a reader without JavaScript reads as a
summary. Only rows that have changed are sent to the browser. :func:`point_rows` makes them, and :func:`chart_cards` the
places where the script draws. A bar is SVG without any style of its own, so that it needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from penstock_dashboard.page import TEMPLATES
from penstock_log.text import count

ROW_POINTS: Final = 64
BAR_WIDTH: Final = 1000
"""Of a bar, in its own units; the page scales it."""


Mark = Literal["", "best", "running"]


class ChartPoint(NamedTuple):
    """A value at a step and a time in seconds since the epoch; None where there is none, so that a line breaks off."""

    step: int
    at_s: float
    value: float | None


class ChartLine(msgspec.Struct, frozen=True, kw_only=True):
    """
    A line of a chart.

    Attributes
    ----------
    chart, name : str
        Of the chart, and of the line in it.
    points : sequence of ChartPoint
    mark : {"", "best", "running"}
        What makes it stand out among many.
    """

    chart: str
    name: str
    points: Sequence[ChartPoint]
    mark: Mark = ""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """
    A place for a chart.

    Attributes
    ----------
    x : {"both", "step", "time"}
        What goes to the right; ``both``: as the reader chooses.
    stepped : bool
        Whether a value holds until the next one.
    """

    name: str
    title: str
    x: Literal["both", "step", "time"] = "both"
    stepped: bool = False


class BarPart(NamedTuple):
    """A part of a bar: what it stands for, its class, where it begins and ends from 0 to 1, and its words."""

    name: str
    kind: str
    begin: float
    end: float
    words: str


def chart_cards(charts: Iterable[Chart], begin_s: float) -> dict[str, str]:
    """Return the places of charts, whose times count from ``begin_s``, in seconds since the epoch."""
    return {
        chart.name: TEMPLATES.render("pieces/chart.html", key=chart.name, chart=chart, begin_s=begin_s)
        for chart in charts
    }


def point_rows(lines: Iterable[ChartLine], begin_s: float) -> dict[str, str]:
    """
    Return the points of lines as rows of a table.

    Parameters
    ----------
    begin_s : float
        What times are written relative to, in seconds since the epoch.
    """
    rows: dict[str, str] = {}
    for line in lines:
        for number in range(0, len(line.points), ROW_POINTS):
            part = line.points[number : number + ROW_POINTS]
            key = f"{line.chart}\n{line.name}\n{number // ROW_POINTS}"
            values = [point.value for point in part if point.value is not None]
            rows[key] = TEMPLATES.render(
                "pieces/points.html",
                key=key,
                line=line,
                first=part[0],
                last=part[-1],
                number=len(part),
                least=figure(min(values, default=None)),
                most=figure(max(values, default=None)),
                newest=figure(part[-1].value),
                points=_packed(part, begin_s),
            )
    return rows


def _packed(points: Iterable[ChartPoint], begin_s: float) -> str:
    packed = (
        f"[{point.step},{_short(point.at_s - begin_s, 1)},{'null' if point.value is None else _number(point.value)}]"
        for point in points
    )
    return f"[{','.join(packed)}]"


def _short(value: float, digits: int) -> str:
    return f"{value:.{digits}f}"


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "null"


def figure(value: float | None) -> str:
    """
    Return a value for people.

    Examples
    --------
    >>> figure(0.123456), figure(1234567.0), figure(None)
    ('0.1235', '1.235e+06', '-')
    """
    return "-" if value is None else f"{value:.4g}"


def thinned(points: Sequence[ChartPoint], most: int) -> list[ChartPoint]:
    """
    Return evenly chosen points, the first and the last among them.

    Examples
    --------
    >>> [point.step for point in thinned([ChartPoint(step, 0.0, 0.0) for step in range(10)], 4)]
    [0, 3, 6, 9]
    """
    if len(points) <= most:
        return list(points)
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def bar(key: str, parts: Sequence[BarPart], label: str, *, marks: Sequence[tuple[float, str]] = ()) -> str:
    """
    Return a bar as an element with a key: its parts side by side, each with its words.

    Parameters
    ----------
    label : str
        What the whole bar says, for who does not see it.
    marks : sequence of (float, str)
        Places from 0 to 1, and what is written below each.
    """
    shown = [
        {"part": part, "x": round(part.begin * BAR_WIDTH, 1), "width": round((part.end - part.begin) * BAR_WIDTH, 1)}
        for part in parts
        if part.end > part.begin
    ]
    return TEMPLATES.render("pieces/bar.html", key=key, parts=shown, label=label, width=BAR_WIDTH, marks=marks)


def shares(parts: Iterable[tuple[str, str, float]], words_of: Callable[[float], str]) -> list[BarPart]:
    """
    Return the parts of a stacked bar from names, classes and amounts; those of nothing are left out.

    Examples
    --------
    >>> [(part.name, part.begin, part.end, part.words) for part in shares([("a", "", 1.0), ("b", "", 3.0)], str)]
    [('a', 0.0, 0.25, 'a: 1.0, 25 %'), ('b', 0.25, 1.0, 'b: 3.0, 75 %')]
    """
    given = [(name, kind, amount) for name, kind, amount in parts if amount > 0]
    total = sum(amount for _, _, amount in given)
    found, begin = [], 0.0
    for name, kind, amount in given:
        end = begin + amount / total
        share = 100 * amount / total
        words = f"{name}: {words_of(amount)}, {f'{share:.0f}' if share >= 1 else 'less than 1'} %"
        found.append(BarPart(name, kind, begin, end, words))
        begin = end
    return found


def columns(key: str, heights: Sequence[tuple[str, float, str]], label: str, most: float) -> str:
    """
    Return columns side by side as an element with a key.

    Parameters
    ----------
    heights : sequence of (str, float, str)
        Of each its class, its height, and its words.
    most : float
        The height of the whole.
    """
    width = BAR_WIDTH / max(len(heights), 8)
    shown = [
        {
            "kind": kind,
            "words": words,
            "x": round(number * width, 2),
            "width": round(width * (0.9 if len(heights) < 200 else 1.0), 2),
            "y": round(100 * (1 - height / most), 2),
            "height": round(100 * height / most, 2),
        }
        for number, (kind, height, words) in enumerate(heights)
    ]
    lines = [
        {"y": round(100 * (1 - level / most), 2), "text": count(level, "device")}
        for level in range(1, math.ceil(most))
        if most <= 12 or level % math.ceil(most / 6) == 0
    ]
    return TEMPLATES.render("pieces/columns.html", key=key, columns=shown, lines=lines, label=label, width=BAR_WIDTH)
