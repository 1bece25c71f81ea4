"""Metrics of a job over the time in which it was seen, drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from penstock_cli import render
from penstock_cli.top.terminal_style import Glyphs

_MOST: Final = 2_000
"""Points kept of one metric: half an hour at one a second, and then every other one is dropped."""


class MetricHistory:
    """
    What was seen of a job's metrics: for each a bounded list of points, its step and its value.

    Examples
    --------
    >>> history = MetricHistory()
    >>> for step, loss in ((1, 4.0), (1, 4.0), (2, 2.0)):
    ...     history.add_report(step, {"loss": loss})
    >>> history.series
    {'loss': [(1, 4.0), (2, 2.0)]}
    """

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[int, float]]] = {}

    def add_report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note what a run reports now; a step that was seen before is not noted again."""
        for name, value in metrics.items():
            points = self.series.setdefault(name, [])
            if not points or points[-1][0] != step:
                points.append((step, value))
            if len(points) > _MOST:
                del points[1:-1:2]


def plot_lines(
    name: str, points: Sequence[tuple[int, float]], width: int, glyphs: Glyphs, *, rows: int = 6
) -> list[str]:
    """
    Return a chart of one metric: its name and last value, bars from the least to the most, and the steps below.

    Parameters
    ----------
    points : sequence of (int, float)
        Steps and values; what is no number is left out.
    width : int
        Columns of the terminal.
    rows : int
        Height of the bars.

    Examples
    --------
    >>> from penstock_cli.top.terminal_style import UNICODE
    >>> print(*plot_lines("loss", [(1, 4.0), (2, 2.0), (3, 1.0)], 24, UNICODE, rows=2), sep="\\n")
    loss: 1 at step 3
         4 █
         1 █▅▁
           step 1 to 3
    """
    drawn = [(step, value) for step, value in points if math.isfinite(value)]
    head = f"{name}: {render.number(points[-1][1])} at step {points[-1][0]}"
    if len(drawn) < 2:
        return [head]
    least, most = min(value for _, value in drawn), max(value for _, value in drawn)
    labels = [render.number(most), render.number(least)]
    margin = max(6, *map(len, labels))
    values = _thinned([value for _, value in drawn], max(width - margin - 1, 8))
    bars = bar_rows(values, least, most, rows, glyphs)
    texts = [labels[0], *[""] * (rows - 2), labels[1]]
    lines = [f"{text:>{margin}} {bar}".rstrip() for text, bar in zip(texts, bars, strict=True)]
    return [head, *lines, f"{'':>{margin}} step {drawn[0][0]} to {drawn[-1][0]}"]


def sparkline(points: Sequence[tuple[int, float]], width: int, glyphs: Glyphs) -> str:
    """
    Return the course of one metric in at most so many characters; what is no number is left out.

    Examples
    --------
    >>> from penstock_cli.top.terminal_style import ASCII, UNICODE
    >>> points = [(1, 0.0), (2, 0.5), (3, float("nan")), (4, 1.0)]
    >>> sparkline(points, 8, UNICODE), sparkline(points, 8, ASCII)
    ('▁▄█', '.:#')
    """
    values = _thinned([value for _, value in points if math.isfinite(value)], max(width, 1))
    return bar_rows(values, min(values), max(values), 1, glyphs)[0] if values else ""


def bar_rows(values: Sequence[float], least: float, most: float, rows: int, glyphs: Glyphs) -> list[str]:
    """Return the rows of bars, the topmost first; the least value has one level, so that it is seen."""
    levels, reach = glyphs.levels, (most - least) or 1.0
    found = []
    for row in reversed(range(rows)):
        parts = [min(1.0, max(0.0, (value - least) / reach * rows - row)) for value in values]
        found.append("".join(levels[max(round(part * (len(levels) - 1)), int(row == 0))] for part in parts))
    return found


def _thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many values: of each stretch its mean."""
    if len(values) <= most:
        return list(values)
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
