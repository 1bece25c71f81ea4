"""Delimited files, read in columns: a block of rows at a time, so that a million rows need little room."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Final, NoReturn

import numpy as np
import numpy.typing as npt

from penstock_sim.trace import Floats, Ints
from penstock_sim.traces.errors import TraceError, broken_row
from penstock_sim.traces.source import Source

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

Mask = npt.NDArray[np.bool_]
BROKEN: Final = "broken row"
_ROWS: Final = 2_048


@dataclass(frozen=True)
class Table:
    """
    How a delimited file is written.

    Attributes
    ----------
    source : Source
    delimiter : str
    header : sequence of str, optional
        Names of the columns where the file has no first line for them.
    required : sequence of str
        Columns without which the file makes no sense.
    """

    source: Source
    required: Sequence[str] = ()
    delimiter: str = ","
    header: Sequence[str] = ()
    quoting: bool = True

    def blocks(self) -> Iterator[Block]:
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
                yield Block(self, columns, first, cells)
                first += len(cells)

    def line_of(self, row: int) -> int:
        """Return the line on which a row ends, by reading the file again: only those who complain need it."""
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
            return skipped, _chain(line, text)
        skipped += 1
    return skipped, ()


def _chain(line: str, rest: Iterable[str]) -> Iterator[str]:
    yield line
    yield from rest


@dataclass
class Block:
    """
    Some rows, in columns.

    Attributes
    ----------
    broken : (R,) bool array
        Rows that made no sense so far; a lenient reader drops them.
    """

    table: Table
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
        """Say whether the file has a column."""
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
