"""
Delimited files in columns, from a file to a trace.

A :class:`TraceSource` is a file of text, compressed or not. A :class:`DelimitedTable` reads it as columns, one
:class:`TableBlock` of rows at a time, so that a million rows need little memory. A :class:`TraceBuilder` collects the
jobs of the blocks, counts rows that are no jobs, and makes one trace of the rest.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn, cast

import numpy as np
import numpy.typing as npt

from penstock_simulator.trace import Floats, Ints, Trace, TraceError, broken_row

if TYPE_CHECKING:
    from _csv import Reader as CsvReader


_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SUFFIXES: Final = {".gz", ".xz", ".bz2", ".zst", ".csv", ".json", ".jsonl", ".txt", ".trace", ".orig"}
_DAMAGED: Final = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, UnicodeDecodeError)

csv.field_size_limit(1 << 24)  # commands of many thousand characters stand in accounting files


@dataclass(frozen=True)
class TraceSource:
    """
    A file to read a trace from.

    Attributes
    ----------
    path : Path
    lenient : bool
        Whether to drop and count broken rows instead of refusing the file.
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
        """Open the file as UTF-8 text, uncompressed; TraceError if there is none or it is damaged."""
        with self.raw() as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            yield text

    def body(self) -> bytes:
        """Return the whole file as bytes, uncompressed and without a byte order mark."""
        with self.raw() as raw:
            return raw.read().removeprefix(codecs.BOM_UTF8)

    def head(self, characters: int = 65_536) -> str:
        """Return the first characters of the file."""
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


Mask = npt.NDArray[np.bool_]
BROKEN: Final = "broken row"
_ROWS: Final = 2_048


@dataclass(frozen=True)
class DelimitedTable:
    """
    A delimited file, and how it is written.

    Attributes
    ----------
    source : TraceSource
    delimiter : str
    header : sequence of str, optional
        Names of the columns where the file has no first line for them.
    required : sequence of str
        Columns without which the file makes no sense.
    """

    source: TraceSource
    required: Sequence[str] = ()
    delimiter: str = ","
    header: Sequence[str] = ()
    quoting: bool = True

    def blocks(self) -> Iterator[TableBlock]:
        """
        Yield the rows in blocks; blank lines, and lines of comment (``#``) on top, are passed over.

        Raises
        ------
        TraceError
            If a required column is missing.
        """
        with self.source.text() as text:
            rows = self._rows(text)
            columns = {name.strip(): i for i, name in enumerate(self.header or next(rows, []))}
            self._require(columns)
            first = 0
            while cells := list(islice(rows, _ROWS)):
                yield TableBlock(self, columns, first, cells)
                first += len(cells)

    def line_of(self, row: int) -> int:
        """Return the line on which a row ends, by reading the file again: only error messages need it."""
        with self.source.text() as text:
            skipped, lines = _behind_comments(text)
            reader = self._reader(lines)
            wanted = row if self.header else row + 1
            for _ in islice((cells for cells in reader if cells), wanted + 1):
                pass
            return skipped + reader.line_num

    def _rows(self, text: IO[str]) -> Iterator[list[str]]:
        return filter(None, self._reader(_behind_comments(text)[1]))

    def _reader(self, lines: Iterable[str]) -> CsvReader:
        return csv.reader(
            lines, delimiter=self.delimiter, quoting=csv.QUOTE_MINIMAL if self.quoting else csv.QUOTE_NONE
        )

    def _require(self, columns: Mapping[str, int]) -> None:
        if missing := [name for name in self.required if name not in columns]:
            found = ", ".join(columns) or "nothing"
            raise TraceError(
                f"{self.source.path}: no column {', '.join(missing)}; found {found}; is it another format (--from)?"
            )


def _behind_comments(text: IO[str]) -> tuple[int, Iterable[str]]:
    skipped = 0
    for line in text:
        if not line.startswith("#"):
            return skipped, chain([line], text)
        skipped += 1
    return skipped, ()


@dataclass
class TableBlock:
    """
    A block of rows of a delimited file, in columns.

    Attributes
    ----------
    broken : (R,) bool array
        Rows found to be broken so far; a lenient reader drops them.
    """

    table: DelimitedTable
    columns: Mapping[str, int]
    first: int
    cells: list[list[str]]
    broken: Mask = field(init=False)
    _by_column: list[tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.broken = np.zeros(len(self.cells), bool)
        if set(map(len, self.cells)) != {len(self.columns)}:
            self._level()
        self._by_column = list(zip(*self.cells, strict=True))
        self.cells = []

    def __len__(self) -> int:
        return self.broken.size

    def has(self, name: str) -> bool:
        """Return whether the file has a column."""
        return name in self.columns

    def texts(self, name: str) -> Sequence[str]:
        """Return a column as it is written; empty where the file has none."""
        return self._by_column[self.columns[name]] if name in self.columns else ()

    def numbers(self, name: str, *, empty: float | None = None) -> Floats:
        """
        Return a column of finite numbers.

        Parameters
        ----------
        empty : float or None
            What an empty cell means; None: it is broken.
        """
        cells = self.texts(name)
        try:
            found = np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            found = np.fromiter((_number(cell, empty) for cell in cells), np.float64, len(cells))
            wrong = np.isnan(found) & ~np.array([empty is not None and not cell.strip() for cell in cells], bool)
        else:
            wrong = ~np.isfinite(found)
        self.refuse(wrong, name, "a number")
        return found

    def whole(self, name: str, *, empty: float | None = None) -> Ints:
        """Return a column of whole numbers; 0 stands where a lenient reader will drop the row."""
        found = self.numbers(name, empty=empty)
        self.refuse(~self.broken & (found != np.floor(found)), name, "a whole number")
        return np.where(self.broken | (np.abs(found) > 2**53), 0, found).astype(np.int64)

    def refuse(self, wrong: Mask, name: str, expected: str) -> None:
        """Mark rows as broken, by what stands in a column; TraceError for the first one unless lenient."""
        if wrong.any() and not self.table.source.lenient:
            at = int(np.flatnonzero(wrong)[0])
            self._complain(at, f"{name} is {self.texts(name)[at]!r}", expected)
        self.broken |= wrong

    def _level(self) -> None:
        """Give all rows the header's width; those that had another are broken."""
        width = len(self.columns)
        for i, row in enumerate(self.cells):
            if len(row) != width:
                if not self.table.source.lenient:
                    self._complain(i, f"the row has {len(row)} fields", f"{width}: {', '.join(self.columns)}")
                self.broken[i] = True
                self.cells[i] = (row + [""] * width)[:width]

    def _complain(self, at: int, wrong: str, expected: str) -> NoReturn:
        raise broken_row(str(self.table.source.path), self.table.line_of(self.first + at), wrong, expected)


def _number(cell: str, empty: float | None) -> float:
    if empty is not None and not cell.strip():
        return empty
    try:
        number = float(cell)
    except ValueError:
        return np.nan
    return number if np.isfinite(number) else np.nan


NO_GPUS: Final = "zero GPUs"
NO_END: Final = "no end time"
NEGATIVE: Final = "negative length"
NO_LENGTH: Final = "zero length"
_NAMES: Final = ("vcs", "users", "models", "kinds", "states")


class TraceBuilder:
    """
    Builder of a trace: takes jobs in any order, and counts rows that are no jobs by reason.

    Examples
    --------
    >>> jobs = TraceBuilder("two")
    >>> jobs.add(["b", "a"], np.array([5.0, 1.0]), np.array([1, 0]), np.array([9.0, 9.0]))
    >>> len(jobs.trace()), jobs.trace().dropped
    (1, {'zero GPUs': 1})
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped: Counter[str] = Counter()
        self._ids: list[str] = []
        self._submit_s: list[Floats] = []
        self._gpus: list[Ints] = []
        self._duration_s: list[Floats] = []
        self._shares: list[Floats] = []
        self._batches: list[Ints] = []
        self._texts: dict[str, list[str]] = {name: [] for name in _NAMES}
        self._seen: dict[str, str] = {}

    def add(
        self,
        ids: Sequence[str],
        submit_s: Floats,
        num_gpus: Ints,
        duration_s: Floats,
        *,
        broken: Mask | None = None,
        unfit: Mapping[str, Mask] | None = None,
        shares: Floats | None = None,
        batches: Ints | None = None,
        vcs: Sequence[str] = (),
        users: Sequence[str] = (),
        models: Sequence[str] = (),
        kinds: Sequence[str] = (),
        states: Sequence[str] = (),
    ) -> None:
        """
        Add R jobs, a column an argument, each (R,).

        Parameters
        ----------
        duration_s : (R,) float array
            nan where the source has no end.
        broken : (R,) bool array, optional
            Rows that make no sense: dropped and counted here. :meth:`TableBlock.refuse` is what refuses the file.
        unfit : mapping of str to (R,) bool array, optional
            Rows that are no jobs for a reason of the format's own; a row counts under the first reason that holds.
        vcs, users, models, kinds, states : sequence of str, (R,) or empty
        """
        reasons = {
            **({BROKEN: broken} if broken is not None else {}),
            **(unfit or {}),
            NO_GPUS: num_gpus < 1,
            NO_END: np.isnan(duration_s),
            NEGATIVE: duration_s < 0,
            NO_LENGTH: duration_s == 0,
        }
        keep = self._without(reasons)
        self._ids += _kept(ids, keep)
        self._submit_s.append(submit_s[keep])
        self._gpus.append(num_gpus[keep].astype(np.int64))
        self._duration_s.append(duration_s[keep])
        if shares is not None:
            self._shares.append(shares[keep])
        if batches is not None:
            self._batches.append(batches[keep])
        again = self._seen.setdefault
        for name, cells in zip(_NAMES, (vcs, users, models, kinds, states), strict=True):
            self._texts[name] += [again(cell, cell) for cell in _kept(cells, keep)]

    def drop(self, reason: str, rows: int = 1) -> None:
        """Count rows that are no jobs."""
        if rows:
            self.dropped[reason] += rows

    def trace(self) -> Trace:
        """Return all jobs by submission; jobs of one time keep their order."""
        submit_s = _joined(self._submit_s, np.float64)
        order = np.argsort(submit_s, kind="stable")
        shares = _joined(self._shares, np.float64)[order] if self._shares else None
        batches = _joined(self._batches, np.int64)[order] if self._batches else None
        return Trace(
            name=self.name,
            job_ids=_ordered(self._ids, order),
            submit_s=submit_s[order],
            num_gpus=_joined(self._gpus, np.int64)[order],
            duration_s=_joined(self._duration_s, np.float64)[order],
            gpu_share=None if shares is None or (shares == 1).all() else shares,
            batch_sizes=None if batches is None or not batches.any() else batches,
            dropped=dict(self.dropped),
            **{name: _ordered(cells, order) if any(cells) else () for name, cells in self._texts.items()},
        )

    def _without(self, reasons: Mapping[str, Mask]) -> Mask:
        keep = np.ones(len(next(iter(reasons.values()))), bool)
        for reason, unfit in reasons.items():
            if rows := int((keep & unfit).sum()):
                self.dropped[reason] += rows
            keep &= ~unfit
        return keep


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _kept(cells: Sequence[str], keep: Mask) -> Sequence[str]:
    return cells if not cells or keep.all() else [cells[i] for i in np.flatnonzero(keep).tolist()]


def _ordered(cells: list[str], order: Ints) -> list[str]:
    rising = bool((np.diff(order) > 0).all())
    return cells if rising else [cells[i] for i in order.tolist()]
