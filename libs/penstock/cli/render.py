"""Tables, pairs and JSON on standard output. Plain columns: they line up, paste and grep, and cost no start-up time."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import typer

_COLOURS: Final = {"R": "green", "PR": "yellow", "CG": "yellow", "F": "red", "CA": "magenta", "CD": "blue"}
_GAP: Final = "  "


def say(line: str = "") -> None:
    """Write one line."""
    typer.echo(line)


def show_json(view: object) -> None:
    """Write a view as indented JSON: what the gateway answered, word for word."""
    say(msgspec.json.format(msgspec.json.encode(view), indent=2).decode())


def show_json_line(view: object) -> None:
    """Write a view as one line of JSON."""
    say(msgspec.json.encode(view).decode())


def show_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, wide: bool = False) -> None:
    """Write a table; on a terminal its lines are cut at the edge unless it is ``wide``."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and not wide else None
    for line in table(headers, rows, width=width, colour=colours()):
        say(line)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None, colour: bool = False
) -> list[str]:
    """
    Return the lines of a table: columns as wide as their longest cell, numbers and spans to the right.

    Parameters
    ----------
    width : int or None
        Cut lines at this many characters; None leaves them whole.
    colour : bool
        Paint the cells of the column ``ST``.

    Examples
    --------
    >>> print(*table(("ID", "GPUS"), [("a", "1"), ("bcd", "16")]), sep=chr(10))
    ID   GPUS
    a       1
    bcd    16
    """
    cells = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [_is_numeric([row[i] for row in cells]) for i in range(len(headers))]
    lines = []
    for row in [list(headers), *cells]:
        padded = [f"{c:>{w}}" if r else f"{c:<{w}}" for c, w, r in zip(row, widths, right, strict=True)]
        line = _cut(_GAP.join(padded).rstrip(), width)
        lines.append(_paint(line, headers, widths, row) if colour else line)
    return lines


def show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Write ``key: value`` lines with the values in one column; pairs without a value are left out."""
    for line in labelled(pairs):
        say(line)


def labelled(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """
    Return ``key: value`` lines with the values in one column.

    Examples
    --------
    >>> labelled([("id", "a"), ("name", "b"), ("user", "")])
    ['id:    a', 'name:  b']
    """
    kept = [(key, value) for key, value in pairs if value]
    width = max((len(key) for key, _ in kept), default=0) + 1
    return [f"{key + ':':<{width}}{_GAP}{value}" for key, value in kept]


def size(count: int) -> str:
    """
    Return bytes in binary units; a dash for none.

    Examples
    --------
    >>> size(0), size(16 << 30), size(1536)
    ('-', '16GiB', '1.5KiB')
    """
    if not count:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}TiB"


def number(value: float | None) -> str:
    """Return a number in at most six figures; a dash for none."""
    return "-" if value is None else f"{value:.6g}"


def mapping(values: dict[str, float] | dict[str, str] | dict[str, str | int | float | bool]) -> str:
    """Return ``name=value`` words."""
    return " ".join(f"{k}={number(v) if isinstance(v, float) else v}" for k, v in values.items())


def devices(names: Sequence[str]) -> str:
    """
    Return devices by node.

    Examples
    --------
    >>> devices(("n1/fast0", "n1/fast1", "n2/slow0"))
    'n1/fast0,fast1 n2/slow0'
    """
    by_node: dict[str, list[str]] = {}
    for name in names:
        node, _, device = name.rpartition("/")
        by_node.setdefault(node, []).append(device)
    return " ".join(f"{node}/{','.join(found)}" if node else ",".join(found) for node, found in by_node.items())


def colours() -> bool:
    """Say whether standard output is a terminal that wants colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _one_line(cell: str) -> str:
    return " ".join(cell.split()) or "-"


def _is_numeric(column: list[str]) -> bool:
    return any(c != "-" for c in column) and all(c == "-" or c[:1].isdigit() or c[:1] in "+." for c in column)


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + "…"


def _paint(line: str, headers: Sequence[str], widths: list[int], row: list[str]) -> str:
    at = headers.index("ST") if "ST" in headers else None
    if at is None or row[at] not in _COLOURS:
        return line
    start = sum(widths[:at]) + len(_GAP) * at
    end = start + len(row[at])
    return line[:start] + typer.style(line[start:end], fg=_COLOURS[row[at]]) + line[end:]
