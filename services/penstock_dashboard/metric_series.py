"""
Series of metrics: what running jobs report, kept in this process for charts, bounded and thinned out.

:class:`MetricTable` hears the progress of all jobs and has a :class:`JobSeries` for each of the last of them. A
:class:`MetricSeries` is one metric of one job. Nothing is stored: after a restart the series begin anew, and what was
before is in the series that the cluster keeps (:mod:`penstock_dashboard.kept_series`).
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from penstock_bus import TelemetryPort
from penstock_log import subjects
from penstock_log.request_bodies import RunProgress

MOST_POINTS: Final = 512
"""Of one series."""
MOST_METRICS: Final = 32
"""Of one job; those that it reports first."""
MOST_NAME: Final = 100
"""Characters of a metric's name that are kept."""
MOST_SERIES: Final = 50_000
"""Of all jobs together; with few points each of them takes about a kilobyte."""
SILENT_S: Final = 60.0
"""A job of which nothing was heard for so long has ended: runs report twice a second."""
_LOOKED_AT: Final = 100
STEPS_PER_S: Final = "steps/s"
SAMPLES_PER_S: Final = "samples/s"
_MOST_STEP: Final = 2**53
"""What a browser's numbers hold exactly."""
_RATE_S: Final = 5.0
"""Seconds over which a rate is taken, where so many were heard: reports come every half second or so."""
_RATE_EACH_S: Final = 1.0


class SeriesPoint(NamedTuple):
    """A value at a step and a time, in seconds since the epoch."""

    step: int
    at_s: float
    value: float


class MetricSeries:
    """
    One metric of one job: every ``stride``-th point, and the newest.

    When it is full, every second point is dropped and the stride doubles: so it spans all that was heard.

    Examples
    --------
    >>> series = MetricSeries(most=4)
    >>> for step in range(6):
    ...     series.add(SeriesPoint(step, float(step), step / 2))
    >>> [point.step for point in series]
    [0, 2, 4, 5]
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._stride, self._heard = most, 1, 0
        self._steps, self._times, self._values = array("q"), array("d"), array("d")
        self._extra = False
        """Whether the last point is only there because it is the newest."""

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[SeriesPoint]:
        return map(SeriesPoint, self._steps, self._times, self._values)

    def add(self, point: SeriesPoint) -> None:
        """Add a point that is later than all before."""
        if self._extra:
            for column in (self._steps, self._times, self._values):
                column.pop()
        self._extra = self._heard % self._stride != 0
        self._heard += 1
        self._append(point)
        if len(self._steps) > self._most:
            self._thin(point)

    def _append(self, point: SeriesPoint) -> None:
        self._steps.append(point.step)
        self._times.append(point.at_s)
        self._values.append(point.value)

    def _thin(self, newest: SeriesPoint) -> None:
        self._stride *= 2
        kept = len(self._steps) % 2 == 1
        for column in (self._steps, self._times, self._values):
            del column[1::2]
        if not kept:
            self._append(newest)
        self._extra = self._extra or not kept


class JobSeries:
    """The metrics of one job, in the order in which it first reported them, and the rates of its steps and samples."""

    def __init__(self) -> None:
        self.by_name: dict[str, MetricSeries] = {}
        self.left_out = 0
        """Metrics beyond the most that are kept, as of the last report."""
        self.heard_s = 0.0
        """When something was heard of it last."""
        self._epoch = -1
        self._last: deque[tuple[float, int, int]] = deque()
        """Times, steps and samples of the last reports, over which rates are taken."""

    def __len__(self) -> int:
        return sum(map(len, self.by_name.values()))

    def add(self, report: RunProgress, at_s: float) -> None:
        """Add what a run reported at a time; what an earlier run reports late is left out."""
        self.heard_s = at_s
        if report.epoch < self._epoch or not 0 <= report.step <= _MOST_STEP:
            return
        if report.epoch > self._epoch:
            self._epoch = report.epoch
            self._last.clear()
        self.left_out = 0
        for name, value in report.metrics.items():
            self._note(name, SeriesPoint(report.step, at_s, value))
        self._note_rates(report, at_s)

    def _note_rates(self, report: RunProgress, at_s: float) -> None:
        last = self._last
        if last and (at_s - last[-1][0] < _RATE_EACH_S or report.step < last[-1][1]):
            if report.step < last[-1][1]:  # it goes on from further back
                last.clear()
            return
        last.append((at_s, report.step, report.samples))
        while at_s - last[0][0] > _RATE_S and at_s - last[1][0] >= _RATE_EACH_S:
            last.popleft()
        since_s, step, samples = last[0]
        if at_s <= since_s:
            return
        self._note(STEPS_PER_S, SeriesPoint(report.step, at_s, (report.step - step) / (at_s - since_s)))
        if report.samples > samples:
            rate = (report.samples - samples) / (at_s - since_s)
            self._note(SAMPLES_PER_S, SeriesPoint(report.step, at_s, rate))

    def _note(self, name: str, point: SeriesPoint) -> None:
        name = name[:MOST_NAME]
        series = self.by_name.get(name)
        if series is None:
            if len(self.by_name) >= MOST_METRICS and name not in {STEPS_PER_S, SAMPLES_PER_S}:
                self.left_out += 1
                return
            series = self.by_name[name] = MetricSeries()
        if math.isfinite(point.value):
            series.add(point)


class MetricTable:
    """
    The series of the jobs that were heard or looked at last.

    Parameters
    ----------
    now_s : callable
        Seconds since the epoch.
    most_points : int
        Of all jobs together, 24 bytes each.
    most_series : int
        Of all jobs together: with a few points each, they take far more memory than their points.

    Notes
    -----
    Beyond either, the jobs go that have ended, and then the others: first those that were neither heard nor looked at
    for longest. A job counts as ended once nothing was heard of it for :data:`SILENT_S`.
    """

    def __init__(
        self, now_s: Callable[[], float], most_points: int = 1_000_000, most_series: int = MOST_SERIES
    ) -> None:
        self._now_s, self._most_points, self._most_series = now_s, most_points, most_series
        self._jobs: OrderedDict[str, JobSeries] = OrderedDict()
        self._points = self._series = 0
        self.since_s = now_s()
        """When it began to listen."""

    def of_job(self, job_id: str) -> JobSeries | None:
        """Return a job's series; None where nothing was heard of it, or not for long."""
        series = self._jobs.get(job_id)
        if series is not None:
            self._jobs.move_to_end(job_id)
        return series

    def add(self, job_id: str, report: RunProgress) -> None:
        """Add what a job has reported."""
        series = self._jobs.get(job_id)
        if series is None:
            series = self._jobs[job_id] = JobSeries()
            self._count(series, 1)
        self._jobs.move_to_end(job_id)
        self._count(series, -1)
        series.add(report, self._now_s())
        self._count(series, 1)
        while (self._points > self._most_points or self._series > self._most_series) and len(self._jobs) > 1:
            self._drop_one()

    def __len__(self) -> int:
        return len(self._jobs)

    def _drop_one(self) -> None:
        """Drop the first of the jobs that were left alone for longest that has ended, or else the very first."""
        silent_s = self._now_s() - SILENT_S
        among = islice(self._jobs.items(), min(_LOOKED_AT, len(self._jobs) - 1))
        first = next(iter(self._jobs))
        ended = next((job_id for job_id, series in among if series.heard_s < silent_s), first)
        self._count(self._jobs.pop(ended), -1)

    def _count(self, series: JobSeries, times: int) -> None:
        self._points += times * len(series)
        self._series += times * (len(series.by_name) + 1)

    async def listen(self, bus: TelemetryPort) -> None:
        """Add what running jobs report, for ever."""
        async for subject, body in bus.subscribe(subjects.PROGRESS):
            try:
                report = msgspec.json.decode(body, type=RunProgress)
            except (ValueError, RecursionError):
                continue  # not a job's progress, or of another version; nobody depends on it
            self.add(subject.rpartition(".")[2], report)
