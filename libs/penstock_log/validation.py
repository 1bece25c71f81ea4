"""
Validation of what people write: unknown fields are errors, and every problem is named with its path.

msgspec alone ignores unknown fields and stops at the first problem. That suits a fold, but not a user. :func:`decode`
and :func:`convert` read strictly; :func:`problems` says what is wrong with plain dicts, lists, strings and numbers,
seen against a msgspec type; :func:`widened` reads the short forms in which people write a job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar, get_args

import msgspec
from msgspec import inspect

from penstock_log.spec import (
    AMOUNT,
    MOST_GPUS,
    MOST_SERVERS,
    AggregationMode,
    CheckpointTier,
    JobSpec,
    MemoryNeed,
    SweepSpec,
)

T = TypeVar("T")

MOST_PROBLEMS: Final = 5
_MOST_SOUGHT: Final = 100
"""Looking for the nearest field takes a while; so many problems are looked for, and no more."""
_LONGEST_SHOWN: Final = 80
_POSITION: Final = re.compile(r"(?:JSON is malformed: )?(.*) \(byte (\d+)\)$")
_PLACE_LAST: Final = re.compile(r"^(.*) - at `(\$.*)`$", re.DOTALL)
"""How msgspec says where a value stands that its type's own check refuses."""

_PLAINER: Final = {
    "Input data was truncated": "it ends too early",
    "Number out of range": "a number is too large; numbers are finite",
}


class BadInput(ValueError):
    """An input that cannot be accepted; ``problems`` has one sentence for each thing to correct."""

    def __init__(self, *problems: str) -> None:
        """Join the problems into one message."""
        super().__init__("; ".join(problems))
        self.problems = problems


def decode(body: bytes, type_: type[T]) -> T:
    """
    Return the value that a JSON body holds.

    Raises
    ------
    BadInput
        If it is not JSON, or not of the type; the message names the place and what was expected.

    Examples
    --------
    >>> from penstock_log.spec import JobSpec
    >>> decode(b'{"name": "a", "command": ["true"], "gpu": 2}', JobSpec)
    Traceback (most recent call last):
    penstock_log.validation.BadInput: $.gpu: unknown field; did you mean `gpus`?
    """
    return convert(parse(body), type_)


def parse(body: bytes) -> Any:
    """Return a JSON body as plain dicts, lists, strings and numbers; raise :class:`BadInput` where it is not JSON."""
    if not body.strip():
        raise BadInput("the body is empty; expected a JSON object")
    import json  # noqa: PLC0415 - a client that submits a job parses no text

    try:
        raw = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_told_once, parse_int=str, parse_float=str)
        return raw
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not UTF-8 text ({error.reason} in a string)") from error
    except RecursionError as error:
        raise BadInput("the JSON is nested too deeply") from error
    except msgspec.MsgspecError as error:
        raise BadInput(_malformed(body, str(error))) from error


def _told_once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a field that an object has twice: two readers might each take another one for it."""
    if len(dict.fromkeys(name for name, _ in pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise BadInput(f"`{_shortened(name)}` stands twice in one object; leave one of them out")
        seen.add(name)


def convert(raw: Any, type_: type[T]) -> T:
    """
    Return plain dicts, lists, strings and numbers (of JSON, TOML or YAML) as a value of ``type_``.

    Raises
    ------
    BadInput
        With all problems, :data:`MOST_PROBLEMS` at most.
    """
    found = list(islice(problems(raw, type_), _MOST_SOUGHT))
    if len(found) > MOST_PROBLEMS:
        left = len(found) - MOST_PROBLEMS + 1
        found[MOST_PROBLEMS - 1 :] = [f"and {left} more" if len(found) < _MOST_SOUGHT else f"and more than {left} more"]
    if found:
        raise BadInput(*found)
    try:
        return msgspec.convert(raw, type_)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInput(_PLACE_LAST.sub(r"\2: \1", str(error))) from error


def _malformed(body: bytes, message: str) -> str:
    found = _POSITION.match(message)
    if found is None:
        return f"malformed JSON: {_PLAINER.get(message.partition(' - at')[0], message)}"
    before = body[: int(found[2])]
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    return f"malformed JSON at line {line}, column {column}: {found[1]}{_not_json_hint(body, int(found[2]))}"


def _not_json_hint(body: bytes, at: int) -> str:
    found = re.match(rb"-?(nan|inf(inity)?)", body[max(0, at - 2) :].lstrip(b" -:,["), re.IGNORECASE)
    return f" (JSON has no word for {found[0].decode()}; numbers are finite)" if found else ""


_INT_LIMIT: Final = 2**63
_MOST_BITS: Final = 10_000  # of a number that is shown: Python refuses to write one of 4,300 digits
_PLAIN: Final[dict[type, str]] = {inspect.BoolType: "true or false", inspect.NoneType: "null"}


def problems(raw: Any, type_: Any) -> Iterator[str]:
    """
    Yield one sentence for each problem, with its path: unknown and missing fields, wrong types, values out of range.

    Patterns must match the whole text. Whole numbers must fit 64 bits, since that is what the log and snapshots hold.
    """
    yield from _problems(raw, _type_info(type_), "$", "")


def nearest(name: str, known: Iterable[str]) -> str:
    """
    Return a question with the known word that comes nearest, or nothing.

    Examples
    --------
    >>> nearest("gpu", ["name", "gpus"])
    '; did you mean `gpus`?'
    """
    import difflib  # noqa: PLC0415 - what is right needs none

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


_BY_OTHER_NAMES: Final = {
    "time": ("time_limit_s", "a number of seconds, such as 43200 (`--time` takes 12h, 90m and 1-00:00:00 too)"),
    "time_limit": ("time_limit_s", "a number of seconds, such as 43200 (`--time` takes 12h, 90m and 1-00:00:00 too)"),
    "begin": ("begin_s", "seconds since 1970 (`--begin` takes 2h, 18:00 and tomorrow too)"),
    "warn": ("warn_s", "a number of seconds, such as 300"),
    "partition": ("pool", "a name, such as default"),
    "dependency": ("after", 'a list, such as ["afterok:prepare"]'),
    "memory_gb": ("memory_bytes", "a number of bytes"),
    "job_name": ("name", "a text"),
}
"""What people call a field, by its flag or in Slurm → its name in a file, and what it holds."""


def _meant(key: str, fields: Iterable[str]) -> str:
    """Return which field was probably meant, and what it holds where that is another than the name lets expect."""
    name, holds = _BY_OTHER_NAMES.get(key.lower().replace("-", "_"), ("", ""))
    return f"; it is called `{name}` here, {holds}" if name in fields else nearest(key, fields)


@cache
def _type_info(type_: Any) -> inspect.Type:
    return inspect.type_info(type_)


def _problems(raw: Any, info: inspect.Type, path: str, meant: str) -> Iterator[str]:
    if isinstance(info, inspect.Metadata):
        meant = (info.extra_json_schema or {}).get("description", meant)
        yield from _problems(raw, info.type, path, meant)
    elif isinstance(info, inspect.StructType):
        yield from _struct(raw, info, path)
    elif isinstance(info, inspect.UnionType):
        yield from _union(raw, info, path)
    elif isinstance(info, (inspect.VarTupleType, inspect.ListType)):
        yield from _array(raw, info, path)
    elif isinstance(info, inspect.DictType):
        yield from _table(raw, info, path)
    else:
        yield from _atom(raw, info, path, meant)


def _struct(raw: Any, info: inspect.StructType, path: str) -> Iterator[str]:
    if not isinstance(raw, dict):
        yield _wrong(path, "an object", raw)
        return
    fields = {field.encode_name: field for field in info.fields}
    for key in raw:
        if key not in fields and key != info.tag_field:
            yield f"{_under(path, key)}: unknown field{_meant(str(key), fields)}"
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
        arrays = [t for t in info.types if isinstance(t, (inspect.VarTupleType, inspect.ListType))]
        if isinstance(raw, (list, tuple)) and len(arrays) == 1:
            yield from _array(raw, arrays[0], path)
        elif all(any(_problems(raw, t, path, "")) for t in info.types):
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
    if not isinstance(raw, (list, tuple)):
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
    if isinstance(info, inspect.StrType):
        good = isinstance(raw, str) and _fits(raw, info)
        if isinstance(raw, str) and "\0" in raw:
            yield f"{path}: contains a NUL character; leave it out"
            return
    elif isinstance(info, inspect.IntType):
        good = isinstance(raw, int) and not isinstance(raw, bool) and _within(raw, info)
    elif isinstance(info, inspect.FloatType):
        good = isinstance(raw, (int, float)) and not isinstance(raw, bool) and _within(raw, info)
    elif isinstance(info, inspect.BoolType):
        good = isinstance(raw, bool)
    elif isinstance(info, inspect.NoneType):
        good = raw is None
    elif isinstance(info, inspect.LiteralType):
        good = isinstance(raw, (str, int)) and raw in info.values
    else:
        return  # left to msgspec
    if not good:
        bounded = getattr(info, "le", None) is not None
        fitting = "" if bounded else _fitting(raw)
        unit = " (seconds)" if path.endswith("_s") and isinstance(raw, str) else ""
        yield _wrong(path, _expected(info, meant) + unit + fitting, raw) + _closest_literal(raw, info)


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
    if isinstance(info, inspect.StrType):
        most = f" of at most {info.max_length} characters" if info.max_length is not None else ""
        characters = "1 to 63 " if info.pattern is not None and "{0,62}" in info.pattern else ""
        return f"{characters}{meant.partition(';')[0]}" if meant else f"text{most}"
    if isinstance(info, inspect.IntType):
        return "a whole number" + _range(info)
    if isinstance(info, inspect.FloatType):
        return "a finite number" + _range(info)
    if isinstance(info, (inspect.VarTupleType, inspect.ListType)):
        return "an array"
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(f'"{value}"' for value in info.values)
    return _PLAIN.get(type(info), type(info).__name__.removesuffix("Type").lower())


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
    limits = [f"{relation} {_plain(bound)}" for relation, bound in bounds.items() if bound is not None]
    return f" {' and '.join(limits)}" if limits else ""


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
    if isinstance(raw, (list, tuple)):
        return "an array"
    if isinstance(raw, int) and raw.bit_length() > _MOST_BITS:
        return f"a whole number of {raw.bit_length()} bits"
    try:
        text = _as_json(raw)
    except (TypeError, ValueError):
        text = f"{type(raw).__name__} {raw}"
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def _as_json(raw: object) -> str:
    import json  # noqa: PLC0415

    return json.dumps(raw)


def _under(path: str, key: object) -> str:
    text = _shortened(str(key))
    return f"{path}.{text}" if re.fullmatch(r"[\w-]+", text) else f"{path}[{_as_json(text)}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


_RANGE: Final = re.compile(r"\s*(\d{1,5})\s*\.\.\s*(\d{1,5})\s*")
_WANTED: Final = f'expected a whole number from 1 to {MOST_GPUS}, or a range such as "1..8"'
_SIZED_BY_SWEEP: Final = (
    "trials are sized by their sweep; give the job one number of devices and one batch_size, and the sweep max_gpus"
)


def widened(raw: Any, path: str = "$") -> Any:
    """
    Return the fields of a job with its short forms written out; everything else as it is.

    They are ``gpus = "1..8"``, ``local`` and ``spill`` of ``memory``, in bytes or as text such as ``"2GiB"``,
    ``checkpoint = { tier = "memory" }``, and ``aggregation = { mode = "own", servers = 2 }``.

    Raises
    ------
    BadInput
        If ``gpus`` is a text and no such range, an amount of memory is none, or ``checkpoint`` or ``aggregation`` has
        other fields; ``path`` says where the job stands.

    Examples
    --------
    >>> widened({"name": "a", "gpus": "2..8"})
    {'name': 'a', 'gpus': 2, 'min_gpus': 2, 'max_gpus': 8}
    >>> widened({"gpus": 4})
    {'gpus': 4}
    >>> widened({"memory": {"local": "2GiB", "spill": "16GiB"}})
    {'local_memory_bytes': 2147483648, 'spill_bytes': 17179869184}
    >>> widened({"checkpoint": {"tier": "memory"}})
    {'checkpoint_tier': 'memory'}
    >>> widened({"aggregation": {"mode": "own", "servers": 2}})
    {'aggregation': 'own', 'servers': 2}
    >>> widened({"gpus": "8..1"})
    Traceback (most recent call last):
    penstock_log.validation.BadInput: $.gpus: got "8..1"; the fewest devices come first: "1..8"
    """
    return without_tables(_with_range(raw, path), path) if isinstance(raw, dict) else raw


def without_tables(raw: dict[str, Any], path: str = "$") -> dict[str, Any]:
    """
    Return the fields of a job with what its tables are short for written out: memory, checkpoint, aggregation,
    secrets.

    Fields that win over a file's are laid over these, and then do not stand beside the table that means the same.

    Raises
    ------
    BadInput
        As :func:`widened` does.
    """
    return _with_secrets(_with_aggregation(_with_tier(_with_amounts(raw, path), path), path), path)


def _with_secrets(raw: dict[str, Any], path: str) -> dict[str, Any]:
    given = raw.get("secrets")
    if not isinstance(given, (list, tuple)):
        return raw
    for place, name in enumerate(given):
        if not isinstance(name, str):
            raise BadInput(_wrong(f"{path}.secrets[{place}]", "the name of a secret", name))
    return {**raw, "secrets": {variable_of(name): name for name in given}}


def variable_of(secret: str) -> str:
    """
    Return the variable that has a secret whose job names no other.

    Examples
    --------
    >>> variable_of("wandb"), variable_of("hf-token")
    ('WANDB', 'HF_TOKEN')
    """
    return secret.upper().replace("-", "_")


_OF_AGGREGATION: Final = ("mode", "servers")


def _with_aggregation(raw: dict[str, Any], path: str) -> dict[str, Any]:
    given = raw.get("aggregation")
    if not isinstance(given, dict):
        return raw
    fields = {name: value for name, value in raw.items() if name != "aggregation"}
    for name in given:
        if name not in _OF_AGGREGATION:
            near = nearest(str(name), _OF_AGGREGATION)
            raise BadInput(f"{_under(f'{path}.aggregation', name)}: unknown field{near}")
    if "mode" in given:
        if given["mode"] not in get_args(AggregationMode):
            raise BadInput(_wrong(f"{path}.aggregation.mode", '"shared", "own" or "none"', given["mode"]))
        fields["aggregation"] = given["mode"]
    if "servers" in given:
        servers = given["servers"]
        if not isinstance(servers, int) or isinstance(servers, bool) or not 1 <= servers <= MOST_SERVERS:
            wanted = f"a whole number from 1 to {MOST_SERVERS}"
            raise BadInput(_wrong(f"{path}.aggregation.servers", wanted, servers))
        if fields.setdefault("servers", servers) != servers:
            raise BadInput(f"{path}.servers: {raw['servers']} stands beside aggregation.servers; leave one out")
    return fields


def _with_tier(raw: dict[str, Any], path: str) -> dict[str, Any]:
    if "checkpoint" not in raw:
        return raw
    given = raw["checkpoint"]
    if not isinstance(given, dict):
        raise BadInput(_wrong(f"{path}.checkpoint", '{ tier = "memory" } or { tier = "disk" }', given))
    for name in given:
        if name != "tier":
            raise BadInput(f"{_under(f'{path}.checkpoint', name)}: unknown field{nearest(str(name), ('tier',))}")
    tier, fields = given.get("tier", "disk"), {name: value for name, value in raw.items() if name != "checkpoint"}
    if tier not in get_args(CheckpointTier):
        raise BadInput(_wrong(f"{path}.checkpoint.tier", '"memory" or "disk"', tier))
    if fields.setdefault("checkpoint_tier", tier) != tier:
        raise BadInput(f"{path}.checkpoint_tier: {raw['checkpoint_tier']} stands beside checkpoint.tier; leave one out")
    return fields


def _with_range(raw: dict[str, Any], path: str) -> dict[str, Any]:
    text = raw.get("gpus")
    if not isinstance(text, str):
        return raw
    least, most = bounds(text, f"{path}.gpus")
    for field, meant in (("min_gpus", least), ("max_gpus", most)):
        if raw.get(field, meant) != meant:
            raise BadInput(f'{path}.{field}: {raw[field]} stands beside gpus = "{text}"; leave one of them out')
    return {**raw, "gpus": least, "min_gpus": least, "max_gpus": most}


_AMOUNTS: Final = {"local": "local_memory_bytes", "spill": "spill_bytes"}
_OF_DEVICE: Final = MemoryNeed.__struct_fields__


def _with_amounts(raw: dict[str, Any], path: str) -> dict[str, Any]:
    memory = raw.get("memory")
    if not isinstance(memory, dict):
        return raw
    fields = {name: value for name, value in raw.items() if name != "memory"}
    rest = {}
    for name, value in memory.items():
        if name in _AMOUNTS:
            field, size = _AMOUNTS[name], _amount_of(value, f"{path}.memory.{name}")
            if fields.setdefault(field, size) != size:
                raise BadInput(f"{path}.{field}: {raw[field]} stands beside memory.{name}; leave one of them out")
        elif name not in _OF_DEVICE and (meant := nearest(str(name), _AMOUNTS)):
            raise BadInput(f"{_under(f'{path}.memory', name)}: unknown field{meant}")
        else:
            rest[name] = value
    return {**fields, "memory": rest} if rest or not memory else fields


def _amount_of(value: Any, path: str) -> int:
    if isinstance(value, str):
        try:
            return amount(value)
        except ValueError as error:
            raise BadInput(f"{path}: {error}") from error
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES:
        return value
    raise BadInput(_wrong(path, 'an amount of memory such as "2GiB", or a number of bytes, 0 or more', value))


_MOST_BYTES: Final = 2**53
_SHIFTS: Final = {"k": 10, "m": 20, "g": 30, "t": 40}


def amount(text: str) -> int:
    """
    Return an amount of memory in bytes; K, M, G and T are binary, as everywhere where memory is spoken of, KB to TB
    decimal.

    Raises
    ------
    ValueError
        If it is none, or more than 8 PiB.

    Examples
    --------
    >>> amount("8GiB") == amount("8g") == 8 * 2**30, amount("1.5KB"), amount("100")
    (True, 1500, 100)
    """
    found = re.match(AMOUNT, text)
    if found is None:
        raise ValueError(
            f"{_shortened(text)!r} is no amount of memory; expected a number and a unit, such as 8GiB or 512M"
        )
    number, unit, ending = float(found[1]), found[2].lower(), (found[3] or "").lower()
    if unit:
        number *= 1000 ** (_SHIFTS[unit] // 10) if ending == "b" else 2 ** _SHIFTS[unit]
    if number > _MOST_BYTES:
        raise ValueError(f"{_shortened(text)!r} is more memory than can be meant; expected 8 PiB at most")
    return int(number)


def written_out(raw: Any, type_: type[JobSpec | SweepSpec]) -> Any:
    """
    Return the fields of a job, or of a sweep with its job, as :func:`widened` does.

    The job of a sweep has the sweep's name where it has none of its own.
    """
    if type_ is JobSpec:
        return widened(raw)
    job = raw.get("job") if isinstance(raw, dict) else None
    if isinstance(job, dict) and "name" in raw:
        job = {"name": raw["name"], **job}
    return raw if job is None else {**raw, "job": widened(job, "$.job")}


def bounds(text: str, what: str) -> tuple[int, int]:
    """
    Return the fewest and the most devices of a range as people write it; ``what`` begins the message if it is none.

    Raises
    ------
    BadInput
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        raise BadInput(f"{what}: {_WANTED}, got {_as_json(text)}")
    least, most = map(int, found.groups())
    if least > most > 0:
        raise BadInput(f'{what}: got {_as_json(text)}; the fewest devices come first: "{most}..{least}"')
    if least < 1 or most > MOST_GPUS:
        raise BadInput(f"{what}: got {_as_json(text)}; expected from 1 to {MOST_GPUS} devices")
    return least, most


def settled(spec: JobSpec) -> JobSpec:
    """
    Return a job as it begins: at its smallest width, with a batch size, and that as its base.

    Examples
    --------
    >>> from penstock_log.spec import Batch
    >>> job = settled(JobSpec(name="a", command=("x",), max_gpus=8, batch=Batch(min=32, max=256)))
    >>> job.gpus, job.min_gpus, job.batch_size, job.batch.base
    (1, 1, 32, 32)
    """
    if spec.max_gpus:
        least = max(1, spec.min_gpus)
        gpus = spec.gpus if least <= spec.gpus <= spec.max_gpus else least
        spec = msgspec.structs.replace(spec, min_gpus=least, gpus=gpus)
    if (batch := spec.batch) is not None:
        base = batch.base or spec.batch_size or batch.min
        if not batch.base and batch.min <= base <= batch.max:
            batch = msgspec.structs.replace(batch, base=base)
        spec = msgspec.structs.replace(spec, batch=batch, batch_size=spec.batch_size or base)
    return spec


def check(spec: JobSpec | SweepSpec) -> None:
    """
    Refuse what cannot be meant so.

    Raises
    ------
    BadInput
        With all that cannot be meant so of a job's widths and its nodes; of a sweep's job, if it were to be elastic, or
        of its nodes.
    """
    if isinstance(spec, JobSpec):
        found = [f"$.{problem}" for problem in (*elastic_problems(spec), *_shape_problems(spec))]
    else:
        sized = list(_elastic_fields(spec.job))
        found = [f"$.job.{field}: {_SIZED_BY_SWEEP}" for field in sized]
        found += [f"$.job.{problem}" for problem in _shape_problems(spec.job)] if not sized else []
    if found:
        raise BadInput(*found)


def _shape_problems(spec: JobSpec) -> Iterator[str]:
    """Yield what cannot be meant so about the nodes that a job asks for."""
    each = spec.gpus_per_node
    if each and (spec.max_gpus or spec.batch is not None):
        yield "gpus_per_node: an elastic job is given whatever number of devices helps it; leave one of them out"
    elif each and spec.gpus % each:
        yield f"gpus_per_node: {spec.gpus} devices are no whole multiple of {each}; expected such as gpus = {2 * each}"
    if each and spec.sharing != "exclusive":
        yield "gpus_per_node: a job that shares its devices has one, or takes them as they come; leave it out"
    if both := sorted({*spec.nodes} & {*spec.exclude}):
        yield f"exclude: {both[0]} is one of its nodes; leave it out of one of the two"


def _elastic_fields(spec: JobSpec) -> Iterator[str]:
    if spec.max_gpus:
        yield "gpus"
    if spec.batch is not None:
        yield "batch"


def elastic_problems(spec: JobSpec) -> Iterator[str]:
    """Yield what cannot be meant so about an elastic job, each with its field first."""
    if spec.min_gpus > spec.max_gpus:
        yield f"min_gpus: {spec.min_gpus} is more than max_gpus, {spec.max_gpus}; expected the fewest first"
        return  # there is no width for the rest to be held against
    if spec.max_gpus and spec.gpus != 1 and spec.gpus not in spec.widths:
        yield f"gpus: {spec.gpus} is outside of min_gpus, {spec.min_gpus}, to max_gpus, {spec.max_gpus}; leave it out"
    if spec.max_gpus and not spec.batch_size and spec.batch is None:
        yield (
            f"gpus: {spec.min_gpus or 1} to {spec.max_gpus} devices need a batch size to divide among them; set "
            "`batch_size`, over all devices, or `batch = { min, max }` where it may change (--batch 256, or 64..512)"
        )
    most = spec.batch.max if spec.batch is not None else spec.batch_size
    if spec.elastic and 0 < most < spec.widths[0]:
        field = "batch.max" if spec.batch is not None else "batch_size"
        yield f"{field}: {most} is less than the fewest devices, {spec.widths[0]}; expected a sample for each at least"
    if spec.batch is not None and spec.batch_size and not spec.batch.min <= spec.batch_size <= spec.batch.max:
        yield (
            f"batch_size: {spec.batch_size} is outside of batch, {spec.batch.min} to {spec.batch.max}; it is what the "
            "job begins with and its learning rate is for: choose one of those, or leave it out"
        )
    if spec.batch is not None and spec.batch.per_gpu_max and spec.batch.per_gpu_max * spec.widths[-1] < spec.batch.min:
        yield (
            f"batch: the smallest, {spec.batch.min}, does not fit on {spec.widths[-1]} devices of at most "
            f"{spec.batch.per_gpu_max} samples each; lower min, or raise max_gpus or per_gpu_max"
        )
    if spec.elastic and spec.sharing != "exclusive":
        yield (
            f"sharing: an elastic job has its devices to itself, got `{spec.sharing}`; leave `sharing` out, or give "
            "it a fixed number of devices and a fixed batch"
        )
    if spec.elastic and spec.processes == "node":
        yield "processes: an elastic job has a process for each device, got `node`; leave `processes` out"
