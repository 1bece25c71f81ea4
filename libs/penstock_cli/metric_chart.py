"""
A metric over the steps of a job as a chart of a terminal's characters.

A line is drawn with braille dots, two by four in each character, or with ``*`` where the terminal has no such
characters. Values that span two decades or more are drawn on a logarithmic scale, if all of them are above 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from penstock_cli import render

ROWS: Final = 8
WIDTH: Final = 80
"""Columns, where there is no terminal."""
_LEAST_WIDTH: Final = 8
_DECADES: Final = 2.0
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character, by its row and column."""
_BRAILLE: Final = 0x2800


class _Dots(NamedTuple):
    """How many dots a character has, across and down."""

    across: int
    down: int


def chart_lines(
    name: str,
    steps: Sequence[int],
    values: Sequence[float | None],
    width: int = WIDTH,
    *,
    rows: int = ROWS,
    is_ascii: bool = False,
) -> list[str]:
    """
    Return a chart of one metric: its name and last value, the line, and the steps below.

    Parameters
    ----------
    steps, values : sequence
        Of equal length; a value of None was not reported yet, and one that is no finite number leaves a gap.
    width : int
        Columns of the terminal.
    rows : int
        Height of the line.

    Examples
    --------
    >>> print(*chart_lines("loss", [1, 2, 3], [4.0, 2.0, 1.0], 20, rows=2, is_ascii=True), sep="\\n")
    loss: 1 at step 3; from 1 to 4
    4 |*****
    1 |     ************
       1               3
    """
    said = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    finite = [(step, value) for step, value in said if math.isfinite(value)]
    if not said:
        return [f"{name}: no value was reported"]
    head = f"{name}: {render.number(said[-1][1])} at step {said[-1][0]}"
    if not finite:
        return [f"{head}; no value was a finite number"]
    least, most = min(value for _, value in finite), max(value for _, value in finite)
    head += _about(said, least, most)
    if len(finite) < 2 or finite[0][0] == finite[-1][0]:
        return [head]
    is_log = least > 0 and math.log10(most) - math.log10(least) >= _DECADES
    head += " (logarithmic scale)" if is_log else ""
    return [head, *_drawn(said, least, most, width, rows, is_log=is_log, is_ascii=is_ascii)]


def _about(said: Sequence[tuple[int, float]], least: float, most: float) -> str:
    odd = [step for step, value in said if not math.isfinite(value)]
    text = f"; from {render.number(least)} to {render.number(most)}" if least < most else ""
    return text + (f"; no finite number at {render.count(len(odd), 'row')}, first at step {odd[0]}" if odd else "")


def _drawn(
    said: Sequence[tuple[int, float]],
    least: float,
    most: float,
    width: int,
    rows: int,
    *,
    is_log: bool,
    is_ascii: bool,
) -> list[str]:
    scale = math.log10 if is_log else float
    low, high = scale(least), scale(most)
    labels = _labels(least, most, rows, is_log=is_log)
    margin = max(map(len, labels))
    dots = _Dots(1, 1) if is_ascii else _Dots(2, 4)
    columns = max(width - margin - 2, _LEAST_WIDTH)
    first, last = said[0][0], said[-1][0]
    across, down = columns * dots.across - 1, rows * dots.down - 1
    points = [
        (round((step - first) / (last - first) * across), round(_share(scale(value), low, high) * down))
        if math.isfinite(value)
        else None
        for step, value in said
    ]
    lines = _characters(_line_dots(points), columns, rows, dots)
    axis = f"{first}{last:>{max(columns - len(str(first)), 1)}}"
    edge = "|" if is_ascii else "┤"
    drawn = [f"{label:>{margin}} {edge}{line}".rstrip() for label, line in zip(labels, lines, strict=True)]
    return [*drawn, f"{'':>{margin}}  {axis}"]


def _share(value: float, low: float, high: float) -> float:
    """Return where a value lies between two others; in the middle, where there is no between."""
    return (value - low) / (high - low) if high > low and math.isfinite(high - low) else 0.5


def _labels(least: float, most: float, rows: int, *, is_log: bool) -> list[str]:
    """Return the labels of the rows: at the top, in the middle, and at the bottom."""
    labels = [""] * rows
    if least == most:
        labels[(rows - 1) // 2] = render.number(least)
        return labels
    labels[0], labels[-1] = render.number(most), render.number(least)
    if rows >= 5:
        middle = math.sqrt(least) * math.sqrt(most) if is_log else least / 2 + most / 2
        labels[rows // 2] = f"{middle:.3g}"
    return labels


def _line_dots(points: Sequence[tuple[int, int] | None]) -> set[tuple[int, int]]:
    """Return the dots of a line through points, each with its column and its height; None is a gap."""
    found = {point for point in points if point is not None}
    for one, next_ in pairwise(points):
        if one is None or next_ is None:
            continue
        (x1, y1), (x2, y2) = one, next_
        count = max(x2 - x1, abs(y2 - y1))
        found |= {(x1 + round((x2 - x1) * i / count), y1 + round((y2 - y1) * i / count)) for i in range(1, count)}
    return found


def _characters(found: set[tuple[int, int]], columns: int, rows: int, dots: _Dots) -> list[str]:
    """Return the rows of characters that have these dots, the topmost first."""
    cells = [[0] * columns for _ in range(rows)]
    for x, y in found:
        down = rows * dots.down - 1 - y
        bit = _DOTS[down % dots.down][x % dots.across] if dots.across > 1 else 1
        cells[down // dots.down][x // dots.across] |= bit
    if dots.across == 1:
        return ["".join("*" if cell else " " for cell in row) for row in cells]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in cells]
