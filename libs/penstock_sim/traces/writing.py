"""Traces into files, compressed by the file's suffix."""

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
from typing import IO, Any, Final, Literal, cast

from penstock_sim.trace import Trace
from penstock_sim.traces import lines
from penstock_sim.traces.errors import TraceError


def _csv(trace: Trace, text: IO[str]) -> None:
    """Write the plain form: the columns that the trace has."""
    rows = lines.rows(trace)
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
    for row in lines.rows(trace):
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
    {"penstock": lines.write, "csv": _csv, "tiresias": _tiresias}
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
