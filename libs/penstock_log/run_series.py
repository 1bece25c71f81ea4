"""
Series of a run's metrics: a bounded table with a row for each stretch of its reports.

The executor beside a run's first process keeps a :class:`RunSeries` and publishes it again and again; of each run the
newest is kept. :func:`joined` makes one :class:`SeriesTable` of the runs of a job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Optional, TypeVar

import msgspec

from penstock_log.agent_protocol import LoopReport

MOST_ROWS: Final = 512
"""Of one run."""
MOST_METRICS: Final = 32
"""Of one run; those that it reports first."""
MOST_STEP: Final = 2**53
"""What a browser's numbers hold exactly."""
Column = list[Optional[float]]
"""Values of one metric, a row each: None where it was not reported yet, NaN where it was no finite number."""
T = TypeVar("T")


class RunSeries(msgspec.Struct, kw_only=True):
    """
    The metrics of one run: in each row, what was last reported in a stretch of reports.

    The first report has a row of its own, and each further one is of ``stride`` reports. When there are too many rows,
    each two become one and the stride doubles: so they span the run, however long it is. A metric that is reported
    seldom stays in the table until it is reported again.

    Attributes
    ----------
    begun_step : int
        The step after which the run began: what earlier runs did beyond it counts no more.
    steps, times_s, samples : list
        Of each row: its last step, when it was heard, in seconds since the epoch, and samples as the report counts.
    columns : dict of str to Column
        The values of each metric, as many as there are rows.
    stride, in_last : int
        Reports that go into a row, and that are in the last one so far.
    left_out : int
        Metrics beyond :data:`MOST_METRICS`, as of the last report that had any.

    Examples
    --------
    >>> series = RunSeries(job_id="j1", epoch=1)
    >>> for step in range(1, 7):
    ...     report = LoopReport(step=step, loop_steps=step, loop_s=1.0, metrics={"loss": 1 / step})
    ...     _ = series.add(report, 10.0 + step, most=4)
    >>> series.steps, series.stride, series.columns["loss"][-1] == 1 / 6
    ([1, 3, 5, 6], 2, True)
    """

    job_id: str
    epoch: int
    begun_step: int = 0
    steps: list[int] = []
    times_s: list[float] = []
    samples: list[int] = []
    columns: dict[str, Column] = {}
    stride: int = 1
    in_last: int = 1
    left_out: int = 0

    def add(self, report: LoopReport, at_s: float, *, most: int = MOST_ROWS) -> bool:
        """Add a report; return whether it changed anything. One without metrics, or of an earlier step, does not."""
        if not (report.metrics or report.diverged) or not 0 <= report.step <= MOST_STEP:
            return False
        if not self.steps:
            self.begun_step = max(0, report.step - report.loop_steps)
            self._begin_row()
        elif report.step < self.steps[-1]:
            return False
        elif report.step > self.steps[-1]:
            if self.in_last >= self.stride or len(self.steps) == 1:
                self._begin_row()
            else:
                self.in_last += 1
        self.steps[-1], self.times_s[-1], self.samples[-1] = report.step, at_s, report.samples
        self._note_values({**dict.fromkeys(report.diverged, math.nan), **report.metrics})
        if len(self.steps) > most:
            self.halve()
        return True

    def _begin_row(self) -> None:
        self.steps.append(0)
        self.times_s.append(0.0)
        self.samples.append(0)
        for column in self.columns.values():
            column.append(None)
        self.in_last = 1

    def _note_values(self, values: dict[str, float]) -> None:
        left_out = 0
        for name, value in values.items():
            if name not in self.columns:
                if len(self.columns) >= MOST_METRICS:
                    left_out += 1
                    continue
                self.columns[name] = [None] * len(self.steps)
            self.columns[name][-1] = value
        self.left_out = max(self.left_out, left_out)

    def halve(self) -> None:
        """Make one row of each two behind the first; without rows there is nothing to do."""
        if not self.steps:
            return
        if len(self.steps) % 2:
            self.in_last += self.stride
        self.stride *= 2
        self.steps, self.times_s, self.samples = (
            _last_of_pairs(rows) for rows in (self.steps, self.times_s, self.samples)
        )
        self.columns = {name: _last_of_pairs(column) for name, column in self.columns.items()}

    def cut(self, until_s: float) -> None:
        """Leave out the rows that were heard later than a time."""
        count = sum(1 for at_s in self.times_s if at_s <= until_s)
        del self.steps[count:], self.times_s[count:], self.samples[count:]
        for column in self.columns.values():
            del column[count:]

    def encode(self, most_bytes: int) -> bytes:
        """Return it as MessagePack, which has NaN: with fewer rows where it is larger than so many bytes."""
        body = msgspec.msgpack.encode(self)
        while len(body) > most_bytes and len(self.steps) > 2:
            self.halve()
            body = msgspec.msgpack.encode(self)
        return body


def decode(body: bytes) -> RunSeries:
    """
    Return the series in a message or a file.

    Raises
    ------
    ValueError
        If it is none, or its columns differ in length.
    """
    found = msgspec.msgpack.decode(body, type=RunSeries)
    columns: list[Sequence[object]] = [found.times_s, found.samples, *found.columns.values()]
    if any(len(column) != len(found.steps) for column in columns):
        raise ValueError(f"the series of {found.job_id} has columns of different lengths; expected one value a row")
    return found


def _last_of_pairs(rows: list[T]) -> list[T]:
    """Return the first row, and of each two behind it the last that has a value."""
    paired = [last if last is not None else first for first, last in zip(rows[1::2], rows[2::2])]
    return [rows[0], *paired, *(rows[-1:] if len(rows) % 2 == 0 else ())]


class SeriesTable(msgspec.Struct, kw_only=True):
    """
    The metrics of a job over its runs, by rising steps.

    Attributes
    ----------
    runs : list of int
        The epoch of each row's run.
    superseded : int
        Rows that were left out, because a later run began at an earlier step and did those steps anew.
    """

    steps: list[int] = []
    times_s: list[float] = []
    samples: list[int] = []
    runs: list[int] = []
    columns: dict[str, Column] = {}
    superseded: int = 0
    left_out: int = 0

    def add_run(self, series: RunSeries, most_step: float) -> None:
        """Add the rows of the next run, up to a step that is the last one that counts of it."""
        count = sum(1 for step in series.steps if step <= most_step)
        rows = len(self.steps)
        self.superseded += len(series.steps) - count
        self.left_out = max(self.left_out, series.left_out)
        self.steps += series.steps[:count]
        self.times_s += series.times_s[:count]
        self.samples += series.samples[:count]
        self.runs += [series.epoch] * count
        for name, column in series.columns.items():
            if count:
                self.columns.setdefault(name, [None] * rows).extend(column[:count])
        for column in self.columns.values():
            column.extend([None] * (len(self.steps) - len(column)))

    def thin(self, most: int) -> None:
        """Make it at most so many rows: the first, and of stretches of equal length behind it what came last."""
        behind = len(self.steps) - 1
        if len(self.steps) <= most or behind < 1:
            return
        size = -(-behind // max(most - 1, 1))
        self.steps, self.times_s, self.samples, self.runs = (
            _last_of_stretches(rows, size) for rows in (self.steps, self.times_s, self.samples, self.runs)
        )
        self.columns = {name: _last_of_stretches(column, size) for name, column in self.columns.items()}


def _last_of_stretches(rows: list[T], size: int) -> list[T]:
    stretches = (rows[first : first + size] for first in range(1, len(rows), size))
    return [rows[0], *(next((one for one in reversed(some) if one is not None), some[-1]) for some in stretches)]


def joined(runs: Iterable[RunSeries], most: int) -> SeriesTable:
    """
    Return the metrics of a job in one table.

    Where a run went on from an earlier step than the one before had reached, the rows beyond it are left out: those
    steps were done anew, and a table of a job has each step once.

    Parameters
    ----------
    runs : iterable of RunSeries
        In any order.
    most : int
        The most rows of the table.

    Examples
    --------
    >>> first, second = RunSeries(job_id="j1", epoch=1), RunSeries(job_id="j1", epoch=2)
    >>> for step in (1, 2, 3):
    ...     _ = first.add(LoopReport(step=step, loop_steps=step, loop_s=1.0, metrics={"loss": 9.0}), float(step))
    >>> _ = second.add(LoopReport(step=3, loop_steps=1, loop_s=1.0, metrics={"loss": 1.0}), 7.0)
    >>> table = joined([second, first], most=10)
    >>> table.steps, table.columns["loss"], table.superseded
    ([1, 2, 3], [9.0, 9.0, 1.0], 1)
    """
    in_order = sorted((series for series in runs if series.steps), key=lambda series: series.epoch)
    most_step, bounds = math.inf, []
    for series in reversed(in_order):
        bounds.append(most_step)
        most_step = min(most_step, series.begun_step)
    table = SeriesTable()
    for series, bound in zip(in_order, reversed(bounds)):
        table.add_run(series, bound)
    table.thin(most)
    return table
