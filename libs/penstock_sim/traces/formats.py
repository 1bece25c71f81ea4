"""All formats by name, how to tell them by their content, and the one door to read a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from penstock_sim.trace import Trace
from penstock_sim.traces import philly, philly_sia, plain, tiresias
from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.source import Source


class Reader(Protocol):
    """Reads one format."""

    def __call__(self, source: Source, /) -> Trace:
        """Return the trace that a file holds; TraceError where it makes no sense."""


READERS: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "csv": plain.read,
        "philly": philly.read,
        "tiresias": tiresias.read,
    }
)
_HEADERS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "csv": frozenset(plain.REQUIRED),
        "philly": frozenset(philly_sia.REQUIRED),
        "tiresias": frozenset(tiresias.REQUIRED),
    }
)


def read(path: str | Path, format: str = "auto", *, lenient: bool = False) -> Trace:  # noqa: A002
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

    Raises
    ------
    TraceError
        If the file cannot be read, or a row makes no sense.
    """
    source = Source(Path(path), lenient)
    name = detect(source) if format == "auto" else format
    if name not in READERS:
        raise TraceError(f"{name!r} is no format of traces; expected auto, {', '.join(READERS)}")
    return READERS[name](source)


def detect(source: Source) -> str:
    """Return the name of the format that a file is in."""
    lines = [line for line in source.head().splitlines() if not line.startswith("#")]
    columns = frozenset(name.strip() for name in (lines[0] if lines else "").split(","))
    for name, required in _HEADERS.items():
        if required <= columns:
            return name
    raise TraceError(f"{source.path} is in no format that is known here; name one with --from: {', '.join(READERS)}")
