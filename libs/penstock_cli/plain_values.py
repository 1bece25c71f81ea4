"""
TOML, YAML and JSON text as plain values, read so that no text of bounded size takes long or much memory.

Beyond what the parsers do, three things are refused: nesting deeper than anybody writes, aliases of YAML that stand for
more values than fit, and a name that stands twice in one table, of which JSON and YAML would take the last.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Hashable
from typing import Any, Final, Literal

import yaml

Format = Literal["toml", "yaml", "json"]

MOST_DEEP: Final = 100
MOST_VALUES: Final = 100_000
MOST_DIGITS: Final = 400
_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there
_LONG_DOTTED: Final = re.compile(r"""(?<![\w."'-])(?:["'\w-]++[ \t]*+\.[ \t]*+){101}""")
_TOO_DEEP: Final = f"it is nested more than {MOST_DEEP} levels deep; expected a table of fields"
_TWICE: Final = "stands twice in one table; leave one of them out"


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
        raise Malformed(None, _TOO_DEEP) from error
    _check_depth(value)
    return value


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML or JSON text with their places; None where it has none."""
    try:
        _check_yaml(text)
        return yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, Malformed, RecursionError):
        return None


def _toml(text: str) -> object:
    if (found := _LONG_DOTTED.search(text)) is not None:
        raise Malformed(text.count("\n", 0, found.start()) + 1, f"a name has more than {MOST_DEEP} parts; write tables")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)", str(error))
        raise Malformed(int(place[1]) if place else None, re.sub(r" \(at .*\)$", "", str(error))) from error
    except (ValueError, OverflowError) as error:  # a number of too many digits, a day that is in no month
        raise Malformed(None, f"a value cannot be read: {_plainer(error)}") from error


def _yaml(text: str) -> object:
    try:
        _check_yaml(text)
        return yaml.load(text, Loader=_OnceLoader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        why = re.sub(r" (here|in this context)$", "", why)  # the parser in C says it otherwise
        raise Malformed(mark.line + 1 if mark else None, why) from error
    except (
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        OverflowError,
    ) as error:  # PyYAML on a tag that does not fit
        raise Malformed(None, f"a value is not what its tag says, or cannot be read: {_plainer(error)}") from error


def _json(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise Malformed(error.lineno, f"{error.msg} at column {error.colno}") from error


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
        raise Malformed(None, f"{twice[:80]!r} {_TWICE}")
    return found


def _plainer(error: Exception) -> str:
    text = str(error)
    return f"a whole number has more than {MOST_DIGITS} digits" if "int_max_str_digits" in text else text or repr(error)


class _OnceLoader(_Loader):  # type: ignore[misc] # one of two classes, by what is installed
    """The safe loader, for which a name that stands twice in one table is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Return a table."""
        seen: set[Hashable] = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise Malformed(key.start_mark.line + 1, f"{key.value[:80]!r} {_TWICE}")
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


_OnceLoader.add_constructor("tag:yaml.org,2002:map", _OnceLoader.construct_yaml_map)


def _check_yaml(text: str) -> None:
    """Refuse what is nested too deeply, or would have too many values with its aliases written out."""
    sizes, anchors, total = [0], [""], 0
    known: dict[str, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            anchors.append(event.anchor or "")
            total += 1
            if len(sizes) > MOST_DEEP:
                raise Malformed(_line(event), _TOO_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), anchors.pop()
            known[anchor] = size
            sizes[-1] += size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
            total += 1
            known[event.anchor or ""] = 1
        elif isinstance(event, yaml.AliasEvent):
            alias = event.anchor or ""
            if alias in anchors:
                raise Malformed(_line(event), f"the alias *{alias[:80]} stands within what it names")
            sizes[-1] += known.get(alias, 1)
            total += known.get(alias, 1)
        if total > MOST_VALUES:
            raise Malformed(
                _line(event), f"it holds more than {MOST_VALUES:,} values, with aliases written out; write fewer"
            )


def _line(event: yaml.Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark is not None else None


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MOST_DEEP):
        level = [item for one in level for item in _items(one)]
        if not level:
            return
    raise Malformed(None, _TOO_DEEP)


def _items(value: object) -> list[object]:
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, dict | list)]
    return [item for item in value if isinstance(item, dict | list)] if isinstance(value, list) else []
