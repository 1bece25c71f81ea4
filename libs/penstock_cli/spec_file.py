"""
Job and sweep files: TOML, YAML or JSON, read strictly, with messages that name the file, the line and the field.

A job file holds the fields of :class:`penstock_log.JobSpec` at its top level or under ``job``; a sweep file those of
:class:`penstock_log.SweepSpec`, likewise under ``sweep`` if anything. Both are described by one JSON Schema
(``penstock schema job``).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from penstock_cli.plain_values import Format, Malformed, parse_text
from penstock_log import JobSpec, SweepSpec, validation, workload

Raw = dict[str, Any]
T = TypeVar("T", JobSpec, SweepSpec)

MOST_BYTES: Final = 1 << 20
"""Of a file; the gateway takes a quarter of it, without comments and blanks."""
STDIN: Final = "-"
SUFFIXES: Final[dict[str, Format]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


class SpecError(ValueError):
    """A job or sweep file that cannot be used; the message says where, what was expected and what to do."""


class SpecSource(msgspec.Struct, frozen=True, kw_only=True):
    """
    The text of a file and where it came from.

    Attributes
    ----------
    name : str
        What messages call it: the path as typed, or ``<stdin>``.
    folder : Path
        What a relative ``cwd`` in the file is relative to.
    """

    name: str
    text: str
    format: Format
    folder: Path


EMPTY: Final = SpecSource(name="<command line>", text="{}", format="json", folder=Path())
"""For a job that is given by flags alone."""


def read(path: str, stdin: Callable[[int], str]) -> SpecSource:
    """
    Return the file's text and format; ``-`` reads standard input and guesses the format from the text.

    Raises
    ------
    SpecError
        If there is no such readable text file, it is too large, or its suffix is none of .toml, .yaml, .yml and .json.
    """
    if path == STDIN:
        text = stdin(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise SpecError(_too_large("<stdin>"))
        return SpecSource(name="<stdin>", text=text, format=sniff(text), folder=Path.cwd())
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        if not Path(path).exists():
            raise SpecError(f"there is no file {path}; check the path; expected one in {', '.join(SUFFIXES)}")
        import shlex

        command = shlex.join(workload.run_by((path,), is_executable=os.access(path, os.X_OK)) or (path,))
        raise SpecError(
            f"{path} has the suffix {suffix or 'nothing'!r}; expected {', '.join(SUFFIXES)}; "
            f"for a plain command put -- before it: penstock submit -- {command}"
        )
    try:
        with Path(path).open("rb") as file:
            text = _bounded(path, file).decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise SpecError(f"{path} cannot be read ({error.strerror}); check the path") from error
    return SpecSource(name=path, text=text, format=SUFFIXES[suffix], folder=Path(path).resolve().parent)


def _bounded(path: str, file: IO[bytes]) -> bytes:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise SpecError(f"{path} is no regular file; give a job in it by `-`, on standard input")
    body = file.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise SpecError(_too_large(path))
    return body


def _too_large(name: str) -> str:
    return f"{name} is larger than {MOST_BYTES:,} bytes; a job is a few lines, so pass the rest by a file's path"


def is_format(path: str) -> bool:
    """Say whether a path is that of a job or sweep file by its name, or ``-``."""
    return path == STDIN or Path(path).suffix.lower() in SUFFIXES


def sniff(text: str) -> Format:
    """
    Return the format that a text without a file name is most likely in.

    Examples
    --------
    >>> sniff('{"name": "a"}'), sniff('name = "a"'), sniff("name: a")
    ('json', 'toml', 'yaml')
    """
    if text.lstrip().startswith("{"):
        return "json"
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return "toml" if re.match(r"""\s*(\[|[\w."'-]+\s*=)""", first) else "yaml"


def parse(source: SpecSource) -> Raw:
    """
    Return the text's top-level table as plain values.

    Raises
    ------
    SpecError
        If the text is not well formed, with the line, or is not a table of fields.
    """
    if source is EMPTY:  # which takes no parser
        return {}
    try:
        raw = parse_text(source.text, source.format)
    except Malformed as error:
        raise SpecError(f"{_at(source.name, error.line)} is not valid {source.format.upper()}: {error.why}") from error
    if not isinstance(raw, dict):
        raise SpecError(f"{source.name} holds {_what(raw)}; expected a table of fields such as name and command")
    return raw


def job(source: SpecSource, overrides: Mapping[str, object] | None = None) -> JobSpec:
    """
    Return the job that the file describes, with ``overrides`` (fields of the spec) laid over it.

    ``env`` and ``params`` are overlaid entry by entry, other fields as a whole.

    Raises
    ------
    SpecError
        If the file cannot be used; the message names file, line, field, what was expected and the nearest field.
    """
    return _anchored(_decode(source, JobSpec, "job", overrides or {}), source.folder)


def sweep(source: SpecSource, overrides: Mapping[str, object] | None = None) -> SweepSpec:
    """Return the sweep that the file describes, as :func:`job` does."""
    spec = _decode(source, SweepSpec, "sweep", overrides or {})
    _check_search(source, spec, overrides or {})
    return msgspec.structs.replace(spec, job=_anchored(spec.job, source.folder))


def _check_search(source: SpecSource, spec: SweepSpec, overrides: Mapping[str, object]) -> None:
    """Say here already, with the line, what the gateway would refuse for want of sense."""
    from penstock_policies import search

    try:
        search.check(spec)
    except search.NotInstalled:
        return  # here; the gateway may have it
    except search.BadSpace as error:
        given = error.field[:1] and error.field[0] in overrides
        line = locate(source, error.field) or locate(source, ("sweep", *error.field))
        place = "the command line" if given else _at(source.name, line)
        raise SpecError(f"{place}: {error}") from error


def _anchored(spec: JobSpec, folder: Path) -> JobSpec:
    if spec.workdir:  # and ``cwd`` is relative to it
        return msgspec.structs.replace(spec, workdir=str((folder / spec.workdir).resolve()))
    return msgspec.structs.replace(spec, cwd=str((folder / spec.cwd).resolve())) if spec.cwd else spec


def _decode(source: SpecSource, wanted: type[T], table: str, overrides: Mapping[str, object]) -> T:
    raw = parse(source)
    above: tuple[str, ...] = ()
    if isinstance(raw.get(table), dict) and not (wanted is SweepSpec and "space" in raw):
        _only_table(source, raw, table)
        raw, above = raw[table], (table,)
    try:
        given = overlay(validation.without_tables(raw) if wanted is JobSpec else raw, overrides)
        spec = validation.convert(validation.written_out(given, wanted), wanted)
        validation.check(spec)
        return spec
    except validation.BadInput as error:
        raise SpecError("; ".join(_placed(source, above, text, overrides) for text in error.problems)) from error


def _placed(source: SpecSource, above: tuple[str, ...], problem: str, overrides: Mapping[str, object]) -> str:
    """Say where a problem stands: in which line of the file, or on the command line."""
    path, colon, text = problem.partition(": ")
    keys = _keys(path)
    if not colon or not path.startswith("$"):
        return f"{source.name}: {problem}"
    field = ".".join(keys) or table_name(above)
    if keys and keys[0] in overrides:
        return f"{field} (given on the command line): {text}"
    return f"{_at(source.name, locate(source, (*above, *keys)))}: {field}: {text}"


def table_name(above: tuple[str, ...]) -> str:
    """Return the name that messages use for the whole table."""
    return above[0] if above else "the file"


def _keys(path: str) -> tuple[str, ...]:
    """Return the names on a path such as ``$.space["a b"].values[0]``; places in arrays are left out."""
    found = re.finditer(r"""\.([\w-]+)|\["((?:[^"\\]|\\.)*)"\]""", path)
    return tuple(match[1] or match[2] for match in found)


def _only_table(source: SpecSource, raw: Raw, table: str) -> None:
    others = [key for key in raw if key != table]
    if others:
        where = _at(source.name, locate(source, (others[0],)))
        raise SpecError(f"{where}: {others[0]!r} stands beside [{table}]; put all fields under [{table}] or none")


def overlay(raw: Raw, overrides: Mapping[str, object]) -> Raw:
    """
    Return the fields with the overrides laid over them; tables are merged one level deep.

    Examples
    --------
    >>> overlay({"gpus": 1, "params": {"a": 1}}, {"params": {"b": 2}})
    {'gpus': 1, 'params': {'a': 1, 'b': 2}}
    """
    merged = dict(raw)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def locate(source: SpecSource, keys: Sequence[str]) -> int | None:
    """Return the line (from 1) on which a field stands, or the table that it is missing from; None if not found."""
    find = _line_in_toml if source.format == "toml" else _line_in_yaml
    return find(source.text, list(keys))


def _line_in_yaml(text: str, keys: list[str]) -> int | None:
    import yaml

    from penstock_cli import yaml_values

    node, line = yaml_values.compose(text), None
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next(((k, v) for k, v in pairs if k.value == key), None)
        if found is None:
            return line
        line, node = found[0].start_mark.line + 1, found[1]
    return line


def _line_in_toml(text: str, keys: list[str]) -> int | None:
    table: list[str] = []
    best, depth = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = _toml_keys(header[1])
            found = table
        elif assignment := re.match(r"""\s*([\w."'-]+)\s*=""", line):
            found = table + _toml_keys(assignment[1])
        else:
            continue
        if found == keys[: len(found)] and len(found) > depth:
            best, depth = number, len(found)
    return best


def _toml_keys(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _at(name: str, line: int | None) -> str:
    return f"{name}:{line}" if line else name


def _what(raw: object) -> str:
    return "nothing" if raw is None else f"a {type(raw).__name__}"
