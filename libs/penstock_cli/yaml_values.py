"""YAML text as plain values, within the bounds of :mod:`penstock_cli.plain_values`, which loads this only for YAML."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, Final

import yaml

from penstock_cli.plain_values import MOST_DEEP, MOST_VALUES, TOO_DEEP, TWICE, Malformed, plainer

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there


def compose(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML or JSON text with their places; None where it has none."""
    try:
        _check_yaml(text)
        return yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, Malformed, RecursionError):
        return None


def parse(text: str) -> object:
    """Return the value that a text holds; :class:`Malformed` as of :func:`penstock_cli.plain_values.parse_text`."""
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
        raise Malformed(None, f"a value is not what its tag says, or cannot be read: {plainer(error)}") from error


class _OnceLoader(_Loader):  # type: ignore[misc] # one of two classes, by what is installed
    """The safe loader, for which a name that stands twice in one table is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Return a table."""
        seen: set[Hashable] = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise Malformed(key.start_mark.line + 1, f"{key.value[:80]!r} {TWICE}")
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
                raise Malformed(_line(event), TOO_DEEP)
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
