"""Files of traces as text, compressed or not."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Final, cast

from penstock_sim.traces.errors import TraceError

_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SUFFIXES: Final = {".gz", ".xz", ".bz2", ".zst", ".csv", ".json", ".jsonl", ".txt", ".trace", ".orig"}
_DAMAGED: Final = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, UnicodeDecodeError)

csv.field_size_limit(1 << 24)  # commands of many thousand characters stand in accounting files


@dataclass(frozen=True)
class Source:
    """
    A file to read a trace from.

    Attributes
    ----------
    path : Path
    lenient : bool
        Drop broken rows and count them instead of refusing the file.
    beside : Path or None
        A second file that some formats need or can use: Gavel's throughputs, Alibaba's table of jobs or instances.
    kind : str
        The kind of device whose speed turns steps into seconds, for Gavel.
    """

    path: Path
    lenient: bool = False
    beside: Path | None = None
    kind: str = "v100"

    @property
    def name(self) -> str:
        """The file's name without the suffixes of format and compression."""
        path = Path(self.path.name)
        while path.suffix in _SUFFIXES and path.stem:
            path = Path(path.stem)
        return str(path)

    @contextmanager
    def raw(self) -> Iterator[IO[bytes]]:
        """
        Open the file; compression is seen by its first bytes.

        Raises
        ------
        TraceError
            If there is no such file, or it is damaged.
        """
        try:
            with _opened(self.path) as raw:
                yield raw
        except FileNotFoundError as error:
            raise TraceError(f"there is no file {self.path}; check the path") from error
        except IsADirectoryError as error:
            raise TraceError(f"{self.path} is a folder; name a file of it") from error
        except _DAMAGED as error:
            raise TraceError(f"{self.path} is damaged or no text: {error}; fetch it again") from error

    @contextmanager
    def text(self) -> Iterator[IO[str]]:
        """Open the file as text, as :meth:`raw` does."""
        with self.raw() as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            yield text

    def body(self) -> bytes:
        """Return the whole of it."""
        with self.raw() as raw:
            return raw.read().removeprefix(codecs.BOM_UTF8)

    def head(self, characters: int = 65_536) -> str:
        """Return how the text begins."""
        with self.text() as text:
            return text.read(characters)


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(path))
    if magic.startswith(b"\xfd7zXZ"):
        return cast("IO[bytes]", lzma.open(path))
    if magic.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.open(path))
    if magic.startswith(_ZSTD):
        return _zstd(path)
    return path.open("rb")


def _zstd(path: Path) -> IO[bytes]:
    """Open with what this Python has: ``compression.zstd`` (3.14) or the package zstandard."""
    for module in ("compression.zstd", "zstandard"):
        try:
            return cast("IO[bytes]", import_module(module).open(path, "rb"))
        except ModuleNotFoundError:
            continue
    raise TraceError(f"{path} is compressed by zstd, which this Python cannot read; run `zstd -d` on it first")
