"""
The registry of trace formats; reading and writing by name.

A new format is a module of its own, a row of :data:`READERS`, and a sign in :func:`detect`.
:func:`read` is the one way to read a trace: it takes the format by its name, or :func:`detect` tells it by the content.
:func:`write` writes a trace, compressed by the file's suffix.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Literal, Protocol, cast

from penstock_simulator.trace import Trace, TraceError
from penstock_simulator.traces import alibaba, log_file, philly, plain_formats, slurm
from penstock_simulator.traces.columns import TraceSource


class TraceFormatReader(Protocol):
    """Reader of one trace format: from a source to a trace."""

    def __call__(self, source: TraceSource, /) -> Trace:
        """Return the trace that a file holds; TraceError where it makes no sense."""


READERS: Final[Mapping[str, TraceFormatReader]] = MappingProxyType(
    {
        "penstock": plain_formats.read_json_lines,
        "log": log_file.read,
        "csv": plain_formats.read_plain,
        "tiresias": plain_formats.read_tiresias,
        "philly": philly.read_philly,
        "helios": slurm.read_helios,
        "alibaba-2020": alibaba.read_pai,
        "openb": alibaba.read_openb,
        "gavel": plain_formats.read_gavel,
        "sacct": slurm.read_sacct,
    }
)
_COLUMNS: Final = (
    ("csv", plain_formats.PLAIN_REQUIRED),
    ("tiresias", plain_formats.TIRESIAS_REQUIRED),
    ("philly", philly.REQUIRED),
    ("helios", slurm.HELIOS_REQUIRED),
    ("helios", slurm.HELIOS_SLICE),
    ("openb", alibaba.REQUIRED),
    ("alibaba-2020", ("job_name", "task_name", "inst_num", "plan_gpu")),
)


def read(
    path: str | Path,
    format: str = "auto",  # noqa: A002
    *,
    lenient: bool = False,
    beside: str | Path | None = None,
    kind: str = "v100",
) -> Trace:
    """
    Read a trace.

    Parameters
    ----------
    path : str or Path
        Compressed by gzip, xz or bzip2, or not.
    format : str
        A name of :data:`READERS`, or ``auto``: told by the content.
    lenient : bool
        Drop broken rows and count them, instead of refusing the file.
    beside : str, Path or None
        A second file: Gavel's throughputs, Alibaba's table of jobs or instances.
    kind : str
        Device kind whose speed turns Gavel's steps into seconds.

    Raises
    ------
    TraceError
        If the file cannot be read, or a row makes no sense.
    """
    source = TraceSource(Path(path), lenient, Path(beside) if beside else None, kind)
    name = detect(source) if format == "auto" else format
    if name not in READERS:
        raise TraceError(f"{name!r} is no format of traces; expected auto, {', '.join(READERS)}")
    return READERS[name](source)


def detect(source: TraceSource) -> str:
    """
    Return the name of the format that a file is in.

    Raises
    ------
    TraceError
        If it is in none that is known.
    """
    if not source.head(1):
        raise TraceError(f"{source.path} is empty; expected rows of jobs")
    first = next((line for line in source.head().splitlines() if line.strip() and not line.startswith("#")), "")
    cells = {cell.strip() for cell in first.split(",")}
    signs = (
        ("penstock", plain_formats.MARK in first),
        (
            "log",
            first.strip() == "{"
            or first.startswith('{"events"')
            or (first.startswith('{"seq":') and '"fact":' in first),
        ),
        ("philly", first.lstrip().startswith("[")),
        ("sacct", "JobID" in first.split("|")),
        ("gavel", first.count("\t") + 1 in plain_formats.FORMS),
        *((name, cells.issuperset(columns)) for name, columns in _COLUMNS),
        ("alibaba-2020", first.count(",") + 1 == alibaba.WIDTH),
    )
    for name, seen in signs:
        if seen:
            return name
    raise TraceError(f"{source.path} is in no format that is known here; name one of {', '.join(READERS)} (--from)")


def _csv(trace: Trace, text: IO[str]) -> None:
    """Write the plain form: the columns that the trace has."""
    rows = plain_formats.rows(trace)
    first: Mapping[str, Any] = next(rows, {"id": "", "submit_s": "", "num_gpus": "", "duration_s": ""})
    writer = csv.writer(text, lineterminator="\n", quoting=_quoting(trace))
    writer.writerow("job_id" if name == "id" else name for name in first)
    if len(trace):
        writer.writerow(map(_short, first.values()))
        writer.writerows(map(_short, row.values()) for row in rows)


def _tiresias(trace: Trace, text: IO[str]) -> None:
    """Write the form of the public Tiresias simulator; columns that it does not use are 0."""
    writer = csv.writer(text, lineterminator="\n", quoting=_quoting(trace))
    writer.writerow(("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval"))
    for row in plain_formats.rows(trace):
        writer.writerow(
            (
                row["id"],
                row["num_gpus"],
                _short(row["submit_s"]),
                0,
                row.get("model", ""),
                _short(row["duration_s"]),
                0,
            )
        )


def _quoting(trace: Trace) -> Literal[0, 2]:
    """Quote every name where one holds a carriage return: left to itself the module csv quotes line feeds only."""
    names = (trace.job_ids, trace.vcs, trace.users, trace.models, trace.kinds, trace.states)
    returns = any("\r" in name for column in names for name in column)
    return csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL


def _short(value: object) -> object:
    """Return whole numbers without their fraction of nothing."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


WRITERS: Final[Mapping[str, Callable[[Trace, IO[str]], None]]] = MappingProxyType(
    {"penstock": plain_formats.write, "csv": _csv, "tiresias": _tiresias}
)


def write(trace: Trace, path: str | Path, format: str = "auto") -> None:  # noqa: A002
    """
    Write a trace; the same trace gives the same bytes.

    Parameters
    ----------
    path : str or Path
        Compressed where it ends in ``.gz``, ``.xz`` or ``.bz2``.
    format : str
        A name of :data:`WRITERS`; ``auto``: the plain form for ``.csv``, else our own.

    Raises
    ------
    TraceError
        If there is no such form to write.
    """
    path = Path(path)
    name = format if format != "auto" else ("csv" if ".csv" in path.suffixes else "penstock")
    if name not in WRITERS:
        raise TraceError(f"{name!r} is no form to write traces in; expected auto, {', '.join(WRITERS)}")
    with opened(path) as text:
        WRITERS[name](trace, text)


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """Open a file to write text to, compressed by its suffix; time and name stay out of the bytes."""
    with path.open("wb") as file:
        packed: IO[bytes]
        match path.suffix:
            case ".gz":
                packed = cast("IO[bytes]", gzip.GzipFile("", "wb", fileobj=file, mtime=0))
            case ".xz":
                packed = cast("IO[bytes]", lzma.LZMAFile(file, "wb"))  # noqa: SIM115 - closed below
            case ".bz2":
                packed = cast("IO[bytes]", bz2.BZ2File(file, "wb"))
            case _:
                packed = file
        with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="") as text:
            yield text
