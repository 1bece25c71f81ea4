"""What is wrong with a value of plain dicts, lists, strings and numbers, seen against a msgspec type."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from msgspec import inspect

_INT_LIMIT: Final = 2**63
_MOST_BITS: Final = 10_000  # of a number that is shown: Python refuses to write one of 4,300 digits
_PLAIN: Final[dict[type, str]] = {inspect.BoolType: "true or false", inspect.NoneType: "null"}


def problems(raw: Any, type_: Any) -> Iterator[str]:
    """
    Yield one sentence for each problem, with its path: unknown and missing fields, wrong types, values out of range.

    Patterns must match the whole text. Whole numbers must fit 64 bits, since that is what the log and snapshots hold.
    """
    yield from _problems(raw, _type_info(type_), "$", "")


def nearest(word: str, known: Iterable[str]) -> str:
    """
    Return a question with the known word that comes nearest, or nothing.

    Examples
    --------
    >>> nearest("gpu", ["name", "gpus"])
    '; did you mean `gpus`?'
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


@cache
def _type_info(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)


def _problems(raw: Any, info: inspect.Type, path: str, meant: str) -> Iterator[str]:
    match info:
        case inspect.Metadata():
            meant = (info.extra_json_schema or {}).get("description", meant)
            yield from _problems(raw, info.type, path, meant)
        case inspect.StructType():
            yield from _struct(raw, info, path)
        case inspect.UnionType():
            yield from _union(raw, info, path)
        case inspect.VarTupleType() | inspect.ListType():
            yield from _array(raw, info, path)
        case inspect.DictType():
            yield from _table(raw, info, path)
        case inspect.AnyType():
            return
        case _:
            yield from _atom(raw, info, path, meant)


def _struct(raw: Any, info: inspect.StructType, path: str) -> Iterator[str]:
    if not isinstance(raw, dict):
        yield _wrong(path, "an object", raw)
        return
    fields = {field.encode_name: field for field in info.fields}
    for key in raw:
        if key not in fields and key != info.tag_field:
            yield f"{_under(path, key)}: unknown field{nearest(str(key), fields)}"
    for name, field in fields.items():
        if name in raw:
            yield from _problems(raw[name], field.type, _under(path, name), "")
        elif field.required:
            yield f"{_under(path, name)}: missing; it is required"


def _union(raw: Any, info: inspect.UnionType, path: str) -> Iterator[str]:
    if (only := _optional(info)) is not None:
        if raw is not None:
            yield from _problems(raw, only, path, "")
        return
    tagged = {t.tag: t for t in info.types if isinstance(t, inspect.StructType)}
    if not tagged:
        if all(any(_problems(raw, t, path, "")) for t in info.types):
            yield _wrong(path, _any_of(info.types) + _fitting(raw), raw)
        return
    field = next(iter(tagged.values())).tag_field or "type"
    known = ", ".join(f'"{tag}"' for tag in tagged)
    if not isinstance(raw, dict):
        yield _wrong(path, f"an object with `{field}`: {known}", raw)
    elif field not in raw:
        yield f"{_under(path, field)}: missing; expected one of {known}"
    elif not isinstance(raw[field], str) or raw[field] not in tagged:
        tag = raw[field]
        close = nearest(tag, [str(other) for other in tagged]) if isinstance(tag, str) else ""
        yield _wrong(_under(path, field), f"one of {known}", tag) + close
    else:
        yield from _struct(raw, tagged[raw[field]], path)


def _optional(info: inspect.UnionType) -> inspect.StructType | None:
    """Return the struct of a union with nothing but null beside it."""
    others = [type_ for type_ in info.types if not isinstance(type_, inspect.NoneType)]
    only = others[0] if len(others) == 1 < len(info.types) else None
    return only if isinstance(only, inspect.StructType) else None


def _array(raw: Any, info: inspect.VarTupleType | inspect.ListType, path: str) -> Iterator[str]:
    if not isinstance(raw, list | tuple):
        yield _wrong(path, "an array", raw)
        return
    if len(raw) < (info.min_length or 0):
        yield f"{path}: expected at least {info.min_length} element{'s'[: info.min_length != 1]}, got {len(raw)}"
    for i, item in enumerate(raw):
        yield from _problems(item, info.item_type, f"{path}[{i}]", "")


def _table(raw: Any, info: inspect.DictType, path: str) -> Iterator[str]:
    if not isinstance(raw, dict):
        yield _wrong(path, "an object", raw)
        return
    for key, value in raw.items():
        if not isinstance(key, str) or "\0" in key:
            yield _wrong(path, "names that are text without NUL characters", key)
        yield from _problems(value, info.value_type, _under(path, key), "")


def _atom(raw: Any, info: inspect.Type, path: str, meant: str) -> Iterator[str]:
    match info:
        case inspect.StrType():
            good = isinstance(raw, str) and _fits(raw, info)
            if isinstance(raw, str) and "\0" in raw:
                yield f"{path}: contains a NUL character; leave it out"
                return
        case inspect.IntType():
            good = isinstance(raw, int) and not isinstance(raw, bool) and _within(raw, info)
        case inspect.FloatType():
            good = isinstance(raw, int | float) and not isinstance(raw, bool) and _within(raw, info)
        case inspect.BoolType():
            good = isinstance(raw, bool)
        case inspect.NoneType():
            good = raw is None
        case inspect.LiteralType():
            good = isinstance(raw, str | int) and raw in info.values
        case _:
            return  # left to msgspec
    if not good:
        bounded = getattr(info, "le", None) is not None
        fitting = "" if bounded else _fitting(raw)
        yield _wrong(path, _expected(info, meant) + fitting, raw) + _closest_literal(raw, info)


def _fits(raw: str, info: inspect.StrType) -> bool:
    short = info.max_length is None or len(raw) <= info.max_length
    return short and (info.pattern is None or re.fullmatch(info.pattern, raw) is not None)


def _fitting(raw: Any) -> str:
    return "; whole numbers fit 64 bits" if isinstance(raw, int) and abs(raw) >= _INT_LIMIT else ""


def _within(raw: float, info: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (abs(raw) < _INT_LIMIT if isinstance(raw, int) else math.isfinite(raw))  # a large int has no finite float
        and (info.ge is None or raw >= info.ge)
        and (info.gt is None or raw > info.gt)
        and (info.le is None or raw <= info.le)
        and (info.lt is None or raw < info.lt)
    )


def _expected(info: inspect.Type, meant: str) -> str:
    match info:
        case inspect.StrType():
            most = f" of at most {info.max_length} characters" if info.max_length is not None else ""
            text = f"1 to 63 {meant.partition(';')[0]}" if meant else f"text{most}"
        case inspect.IntType():
            text = "a whole number" + _range(info)
        case inspect.FloatType():
            text = "a finite number" + _range(info)
        case inspect.LiteralType():
            text = "one of " + ", ".join(f'"{value}"' for value in info.values)
        case _:
            text = _PLAIN.get(type(info), type(info).__name__.removesuffix("Type").lower())
    return text


def _any_of(types: Iterable[inspect.Type]) -> str:
    """Return what any of several types expects; a finite number may be a whole one."""
    expected = list(dict.fromkeys(_expected(type_, "") for type_ in types))
    if any(isinstance(type_, inspect.FloatType) for type_ in types) and "a whole number" in expected:
        expected.remove("a whole number")
    return ", ".join(expected)


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {_plain(info.ge)} to {_plain(info.le)}"
    bounds = {"of at least": info.ge, "above": info.gt, "of at most": info.le, "below": info.lt}
    said = [f"{word} {_plain(bound)}" for word, bound in bounds.items() if bound is not None]
    return f" {' and '.join(said)}" if said else ""


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _closest_literal(raw: Any, info: inspect.Type) -> str:
    if isinstance(info, inspect.LiteralType) and isinstance(raw, str):
        return nearest(raw, [str(value) for value in info.values])
    return ""


def _wrong(path: str, expected: str, raw: Any) -> str:
    return f"{path}: expected {expected}, got {_shown(raw)}"


def _shown(raw: Any) -> str:
    if isinstance(raw, Mapping):
        return "an object"
    if isinstance(raw, list | tuple):
        return "an array"
    if isinstance(raw, int) and raw.bit_length() > _MOST_BITS:
        return f"a whole number of {raw.bit_length()} bits"
    try:
        text = json.dumps(raw)
    except (TypeError, ValueError):
        text = f"{type(raw).__name__} {raw}"
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def _under(path: str, key: object) -> str:
    return f"{path}.{key}" if re.fullmatch(r"[\w-]+", str(key)) else f"{path}[{json.dumps(str(key))}]"
