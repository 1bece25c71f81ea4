"""All formats by name, how to tell them by their content, and the one door to read a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from penstock_sim.trace import Trace
from penstock_sim.traces import (
    alibaba,
    gavel,
    helios,
    history,
    lines,
    openb,
    philly,
    philly_sia,
    plain,
    sacct,
    tiresias,
)
from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.source import Source


class Reader(Protocol):
    """Reads one format."""

    def __call__(self, source: Source, /) -> Trace:
        """Return the trace that a file holds; TraceError where it makes no sense."""


READERS: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "penstock": lines.read,
        "log": history.read,
        "csv": plain.read,
        "tiresias": tiresias.read,
        "philly": philly.read,
        "helios": helios.read,
        "alibaba-2020": alibaba.read,
        "openb": openb.read,
        "gavel": gavel.read,
        "sacct": sacct.read,
    }
)
_COLUMNS: Final = (
    ("csv", plain.REQUIRED),
    ("tiresias", tiresias.REQUIRED),
    ("philly", philly_sia.REQUIRED),
    ("helios", helios.REQUIRED),
    ("helios", helios.SLICE),
    ("openb", openb.REQUIRED),
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
    source = Source(Path(path), lenient, Path(beside) if beside else None, kind)
    name = detect(source) if format == "auto" else format
    if name not in READERS:
        raise TraceError(f"{name!r} is no format of traces; expected auto, {', '.join(READERS)}")
    return READERS[name](source)


def detect(source: Source) -> str:
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
        ("penstock", lines.MARK in first),
        (
            "log",
            first.strip() == "{"
            or first.startswith('{"events"')
            or (first.startswith('{"seq":') and '"fact":' in first),
        ),
        ("philly", first.lstrip().startswith("[")),
        ("sacct", "JobID" in first.split("|")),
        ("gavel", first.count("\t") + 1 in gavel.FORMS),
        *((name, cells.issuperset(columns)) for name, columns in _COLUMNS),
        ("alibaba-2020", first.count(",") + 1 == alibaba.WIDTH),
    )
    for name, seen in signs:
        if seen:
            return name
    raise TraceError(f"{source.path} is in no format that is known here; name one of {', '.join(READERS)} (--from)")
