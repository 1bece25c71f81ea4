"""
Tables, pairs and JSON on standard output. Plain columns: they line up, paste and grep, and cost no start-up time.

Whatever is shown may hold words of others, so everything goes through :func:`seen`: nothing that a job, a name or a
message says reaches the terminal as more than text, or looks like a line of ours. Only a job's own output is as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

Pairs = list[tuple[str, str]]
Table = tuple[Sequence[str], list[tuple[str, ...]]]
"""Headers and rows."""
_COLOURS: Final = {"R": "green", "PR": "yellow", "CG": "yellow", "F": "red", "CA": "magenta", "CD": "blue"}
_CODES: Final = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35}
_GAP: Final = "  "
_LEAST_NAME: Final = 8
_WELCOME_LAST: Final = 24
"""How narrow a NAME may become so that this much of the last column can be seen."""
_LEAST_WRAPPED: Final = 20
_NUMBER: Final = re.compile(r"[+-]?\d[\d.]*(e[+-]?\d+)?(x|%|[KMGT]?i?B|[smhd]|[mhd]\d\d[smh])?( ago)?|\d+/[\d?]+")
_LABEL: Final = re.compile(r" *[a-z]+: +")


def echo(text: str | bytes, *, err: bool = False) -> None:
    """Write text and a line end, or bytes as they are, at once; a shell may have closed the stream."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    if isinstance(text, bytes):
        stream.flush()
        stream.buffer.write(text)
        stream.buffer.flush()
    else:
        stream.write(f"{text}\n")
        stream.flush()


def shows(text: str) -> bool:
    """Say whether standard output has characters for a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def painted(text: str, colour: str) -> str:
    """Return text in a colour of a terminal."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def say(line: str = "") -> None:
    """Write one line to standard output, harmless to terminals."""
    echo(seen(line))


def say_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output, harmless to terminals."""
    text = "\n".join(map(seen, lines))
    if text:
        echo(text)


def say_painted(line: str) -> None:
    """Write a line with colours of ours, in which the words of others went through :func:`seen` before."""
    echo(line)


def seen(text: str) -> str:
    r"""
    Return text as one line that no terminal obeys.

    Examples
    --------
    >>> seen("killed\x1b[2J")
    'killed\\x1b[2J'
    """
    if text.isprintable():
        return text
    from penstock_log.text import escaped

    return escaped(text)


def show_json(view: object) -> None:
    """Write a view as indented JSON: what the gateway answered, word for word."""
    _show_json(msgspec.json.format(msgspec.json.encode(view), indent=2).decode())


def as_json(view: object, output: str) -> bool:
    """Write a view as indented JSON if that is the output asked for; say whether it was."""
    if output == "json":
        show_json(view)
    return output == "json"


def show_answer(answer: object, text: str, output: str) -> None:
    """Write an answer as one line: of JSON if that is the output asked for, else of text."""
    if output == "json":
        show_json_line(answer)
    else:
        say(text)


def show_json_line(view: object) -> None:
    """Write a view as one line of JSON."""
    _show_json(msgspec.json.encode(view).decode())


def _show_json(text: str) -> None:
    if not text.replace("\n", "").isprintable():
        from penstock_log.text import escaped_json

        text = escaped_json(text)
    echo(text)


def show_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, wide: bool = False, wrap: bool = False
) -> None:
    """Write a table; on a terminal its lines are cut at the edge, or broken there, unless it is ``wide``."""
    width = None if wide else terminal_width()
    say_painted("\n".join(table(headers, rows, width=width, wrap=wrap, colour=colours())))


def without_columns(
    headers: Sequence[str], rows: Sequence[Sequence[str]], less: Sequence[str], width: int | None
) -> Table:
    """
    Return a table without as many of its less important columns as do not fit, the first of ``less`` first.

    The first column of a table always stays.

    Examples
    --------
    >>> without_columns(("TEAM", "IDLE", "HELD"), [("a", "1", "2")], ["IDLE"], width=12)
    (['TEAM', 'HELD'], [('a', '2')])
    """
    kept, dropped = list(headers), list(less)
    columns = dict(zip(headers, zip(*rows, strict=True) if rows else [()] * len(headers), strict=True))
    widths = {name: max(len(name), *map(len, _one_line_each(column)), 0) for name, column in columns.items()}
    if "NAME" in widths:
        widths["NAME"] = min(widths["NAME"], _LEAST_NAME)
    while width is not None and dropped and sum(widths[name] + len(_GAP) for name in kept) - len(_GAP) > width:
        if (name := dropped.pop(0)) in kept[1:]:
            kept.remove(name)
    return kept, list(zip(*(columns[name] for name in kept), strict=True))


def terminal_width() -> int | None:
    """Return the columns of the terminal that standard output is; None if it is none."""
    if not _is_terminal():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def wrapped(lines: Iterable[str], width: int | None = None) -> list[str]:
    """
    Return lines broken between words, by default at the terminal's edge, so that values stay in their column.

    Examples
    --------
    >>> print(*wrapped(["  because:  2 fast busy with 2 jobs"], width=32), sep=chr(10))
      because:  2 fast busy with 2
                jobs
    """
    width = width or terminal_width()
    return [part for line in lines for part in (_broken(line, width) if width else [line])]


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int | None = None,
    wrap: bool = False,
    colour: bool = False,
) -> list[str]:
    """
    Return the lines of a table: columns as wide as their longest cell, numbers and spans to the right.

    Parameters
    ----------
    width : int or None
        Cut lines at this many characters, long names first; None leaves them whole.
    wrap : bool
        Break the last column into several lines instead.
    colour : bool
        Paint the cells of the column ``ST``.

    Examples
    --------
    >>> print(*table(("ID", "GPUS"), [("a", "1"), ("bcd", "16")]), sep=chr(10))
    ID   GPUS
    a       1
    bcd    16
    """
    headers = [seen(header) for header in headers]
    columns = [_one_line_each(column) for column in zip(*rows, strict=True)] or [[] for _ in headers]
    widths = [
        max(len(header), max(map(len, column), default=0)) for header, column in zip(headers, columns, strict=True)
    ]
    right = [_is_numeric(column) for column in columns]
    if width is not None and "NAME" in headers:
        _narrow(headers.index("NAME"), columns, widths, width)
    line = _line_format(widths, right)
    lines = [line % cells for cells in (tuple(headers), *zip(*columns, strict=True))]
    if width is None and not colour:
        return lines
    last, states = [headers[-1], *columns[-1]], _states(headers, columns)
    shown: list[str] = []
    for number, line in enumerate(lines):
        first, *more = _hung(line, len(line) - len(last[number]), width) if wrap and width else [_cut(line, width)]
        shown += [_paint(first, headers, widths, states[number]) if colour and states else first, *more]
    return shown


def _states(headers: Sequence[str], columns: Sequence[list[str]]) -> list[str]:
    """Return the cells of the column that is painted, its header first; none where there is no such column."""
    return ["ST", *columns[headers.index("ST")]] if "ST" in headers else []


def labelled(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """
    Return ``key: value`` lines with the values in one column.

    Examples
    --------
    >>> labelled([("id", "a"), ("name", "b"), ("user", "")])
    ['id:    a', 'name:  b']
    """
    kept = [(seen(key), seen(value)) for key, value in pairs if value]
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


def count(of: int, noun: str) -> str:
    """
    Return a number with its noun, in the right number.

    Examples
    --------
    >>> count(0, "job"), count(1, "device"), count(12_345, "message")
    ('0 jobs', '1 device', '12,345 messages')
    """
    return f"{of:,} {noun}" if of == 1 else f"{of:,} {noun}s"


def number(value: float | None) -> str:
    """Return a number in at most six figures; a dash for none."""
    return "-" if value is None else f"{value:.6g}"


def rate(per_s: float) -> str:
    """
    Return how many a second: four figures, or all of those before the point.

    Examples
    --------
    >>> rate(0.123456), rate(4914.2), rate(34880.4)
    ('0.1235', '4914', '34880')
    """
    return f"{per_s:.4g}" if per_s < 9999.5 else f"{per_s:.0f}"


def mapping(values: dict[str, float] | dict[str, str] | dict[str, str | int | float | bool]) -> str:
    """Return a mapping as ``name=value`` words."""
    return " ".join(f"{k}={number(v) if isinstance(v, float) else v}" for k, v in values.items())


def devices(names: Sequence[str]) -> str:
    """
    Return names of devices, NODE/DEVICE, grouped by node.

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
    return _is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None where a shell closed it: >&-


def _one_line_each(column: Sequence[str]) -> list[str]:
    """Return cells as one line each; a look at all of them together tells quickly where nothing is to be done."""
    together = "".join(column)
    if together.isprintable() and " " not in together and "" not in column:
        return list(column)
    found = {cell: _one_line(cell) for cell in set(column)}
    return [found[cell] for cell in column]


def _one_line(cell: str) -> str:
    if cell.isprintable() and " " not in cell:  # as most are
        return cell or "-"
    return seen(" ".join(cell.split())) or "-"


def _line_format(widths: Sequence[int], right: Sequence[bool]) -> str:
    """Return what fills a row's cells in; the last column is not filled up with spaces at its right."""
    *first, last = [f"%{'' if is_right else '-'}{width}s" for width, is_right in zip(widths, right, strict=True)]
    return _GAP.join([*first, last if right[-1] else "%s"])


def _is_numeric(column: list[str]) -> bool:
    first = next((cell for cell in column if cell != "-"), None)
    if first is None or _NUMBER.fullmatch(first) is None:  # as in most columns, without a look at the rest
        return False
    return all(map(_NUMBER.fullmatch, set(column) - {"-"}))


def _narrow(at: int, columns: list[list[str]], widths: list[int], width: int) -> None:
    """Shorten the cells of one column, as far as that lets the last column be seen."""
    needed = sum(widths[:-1]) + min(widths[-1], _WELCOME_LAST) + len(_GAP) * (len(widths) - 1)
    if needed > width:
        widths[at] = max(min(_LEAST_NAME, widths[at]), widths[at] - (needed - width))
        columns[at] = [_cut(cell, widths[at]) for cell in columns[at]]


def _broken(line: str, width: int) -> list[str]:
    label = _LABEL.match(line)
    return _hung(line, len(label[0]) if label else 2, width)


def _hung(line: str, indent: int, width: int) -> list[str]:
    """Break a line between words; what follows begins at ``indent``, as far as there is room for it."""
    if len(line) <= width or width - indent < _LEAST_WRAPPED:
        return [line]
    import textwrap

    head, hanging = line[:indent], " " * indent
    parts = textwrap.wrap(line[indent:], width - indent, break_on_hyphens=False)
    return [(hanging if i else head) + part for i, part in enumerate(parts)]


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + "…"


def _paint(line: str, headers: Sequence[str], widths: list[int], state: str) -> str:
    if state not in _COLOURS:
        return line
    at = headers.index("ST")
    start = sum(widths[:at]) + len(_GAP) * at
    end = start + len(state)
    return line[:start] + painted(line[start:end], _COLOURS[state]) + line[end:]
