"""
TOML, YAML and JSON text as plain values, read so that no text of bounded size takes long or much memory.

Beyond what the parsers do, three things are refused: nesting deeper than anybody writes, aliases of YAML that stand for
more values than fit, and a name that stands twice in one table, of which JSON and YAML would take the last.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal

Format = Literal["toml", "yaml", "json"]

MOST_DEEP: Final = 100
MOST_VALUES: Final = 100_000
MOST_DIGITS: Final = 400
_LONG_DOTTED: Final = re.compile(r"""(?<![\w."'-])(?:["'\w-]++[ \t]*+\.[ \t]*+){101}""")
TOO_DEEP: Final = f"it is nested more than {MOST_DEEP} levels deep; expected a table of fields"
TWICE: Final = "stands twice in one table; leave one of them out"


class Malformed(Exception):
    """Text that cannot be used: the line, or None where it is unknown, and why."""

    def __init__(self, line: int | None, why: str) -> None:
        """Keep the line and the reason."""
        super().__init__(why)
        self.line, self.why = line, why


def parse_text(text: str, format_: Format) -> object:
    """
    Return the value that a text holds.

    Raises
    ------
    Malformed
        If it is not well formed, or holds more than is reasonable.

    Examples
    --------
    >>> parse_text('a = [1, 2]', "toml"), parse_text("a: [1, 2]", "yaml")
    ({'a': [1, 2]}, {'a': [1, 2]})
    >>> parse_text('{"a": 1, "a": 2}', "json")
    Traceback (most recent call last):
    penstock_cli.plain_values.Malformed: 'a' stands twice in one table; leave one of them out
    """
    try:
        value = _PARSERS[format_](text)
    except RecursionError as error:
        raise Malformed(None, TOO_DEEP) from error
    _check_depth(value)
    return value


def _toml(text: str) -> object:
    if (found := _LONG_DOTTED.search(text)) is not None:
        raise Malformed(text.count("\n", 0, found.start()) + 1, f"a name has more than {MOST_DEEP} parts; write tables")
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)", str(error))
        raise Malformed(int(place[1]) if place else None, re.sub(r" \(at .*\)$", "", str(error))) from error
    except (ValueError, OverflowError) as error:  # a number of too many digits, a day that is in no month
        raise Malformed(None, f"a value cannot be read: {plainer(error)}") from error


def _json(text: str) -> object:
    import json

    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise Malformed(error.lineno, f"{error.msg} at column {error.colno}") from error


def _yaml(text: str) -> object:
    from penstock_cli import yaml_values  # which few jobs are written in

    return yaml_values.parse(text)


_PARSERS: Final[dict[Format, Callable[[str], object]]] = {"toml": _toml, "yaml": _yaml, "json": _json}


def _no_constant(name: str) -> object:
    raise Malformed(None, f"{name} is not a JSON number")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise Malformed(None, f"a whole number has {len(text)} digits; whole numbers fit 64 bits")
    return int(text)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Malformed(None, f"{twice[:80]!r} {TWICE}")
    return found


def plainer(error: Exception) -> str:
    """Return what a parser says, without the name of Python's own limit."""
    text = str(error)
    return f"a whole number has more than {MOST_DIGITS} digits" if "int_max_str_digits" in text else text or repr(error)


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MOST_DEEP):
        level = [item for one in level for item in _items(one)]
        if not level:
            return
    raise Malformed(None, TOO_DEEP)


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, dict | list)]
    return [item for item in value if isinstance(item, dict | list)] if isinstance(value, list) else []
