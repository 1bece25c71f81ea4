"""
The series of jobs' metrics that the cluster keeps, asked of the gateway no more often than they are worth it.

They begin with the job, and outlive it and the dashboard; what is heard live (:mod:`penstock_dashboard.metric_series`)
is newer and finer. :func:`joined` puts both together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from penstock_dashboard.gateway_port import GatewayPort, PageRefused, Visitor
from penstock_dashboard.metric_series import MOST_POINTS, SAMPLES_PER_S, STEPS_PER_S, JobSeries, SeriesPoint
from penstock_log.request_bodies import SeriesRequest
from penstock_log.views import SeriesView

Points = dict[str, list[SeriesPoint]]
"""Metric → its points, by rising steps."""
_KEPT: Final = 500
_AGAIN_S: Final = 30.0
"""After so long the series of a job that goes on is asked for again: executors publish it once in 5 s to 60 s."""
_OVER_S: Final = 600.0
_SOON_S: Final = 5.0
"""The same of a job that is over, and of one that goes on and had reported nothing, or where the answer was refused."""
_RATE_EACH_S: Final = 1.0


class _Known(NamedTuple):
    until: float
    is_over: bool
    points: Points


class KeptSeries:
    """
    The kept series of the jobs that were looked at last.

    Parameters
    ----------
    ticks : callable
        Seconds that never jump.
    """

    def __init__(self, gateway: GatewayPort, ticks: Callable[[], float]) -> None:
        self._gateway, self._ticks = gateway, ticks
        self._known: OrderedDict[tuple[str | None, str, str], _Known] = OrderedDict()
        """Visitor, job and moment → its points; None: for all who may see the job. A refusal is one visitor's."""

    async def of_job(self, visitor: Visitor, job_id: str, at: str, *, is_over: bool) -> Points:
        """Return the points of a job that a visitor may see, up to a moment, or until now where ``at`` is empty."""
        for who in (None, visitor.name):
            known = self._known.get((who, job_id, at))
            if known is not None and known.is_over == is_over and self._ticks() < known.until:
                return known.points
        return await self._ask(visitor, job_id, at, is_over=is_over)

    async def _ask(self, visitor: Visitor, job_id: str, at: str, *, is_over: bool) -> Points:
        asked = SeriesRequest(id=job_id, most=MOST_POINTS, at=at or None)
        who, points = None, Points()
        try:
            points = points_of(await self._gateway.query(visitor, "series", asked, SeriesView))
            again_s = _OVER_S if is_over or at else _AGAIN_S if points else _SOON_S
        except PageRefused:  # such as by a gateway of an earlier version: charts begin with what is heard
            who, again_s = visitor.name, _SOON_S
        self._known[who, job_id, at] = _Known(self._ticks() + again_s, is_over, points)
        self._known.move_to_end((who, job_id, at))
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return points


def points_of(view: SeriesView) -> Points:
    """Return the points of each metric, and of the rates of steps and samples between the rows."""
    found: Points = {}
    for name, values in view.metrics.items():
        rows = zip(view.steps, view.times_s, values, strict=True)
        found[name] = [SeriesPoint(step, at_s, value) for step, at_s, value in rows if value is not None]
    found[STEPS_PER_S] = [*_rates(view, view.steps)]
    if any(view.samples):
        found[SAMPLES_PER_S] = [*_rates(view, view.samples)]
    return {name: points for name, points in found.items() if points}


def _rates(view: SeriesView, counts: tuple[int, ...]) -> Iterator[SeriesPoint]:
    """Yield how fast a count rose between rows of a run that are long enough apart."""
    since = 0
    for row in range(1, len(view.steps)):
        if view.runs[row] != view.runs[since]:
            since = row
        elif (took_s := view.times_s[row] - view.times_s[since]) >= _RATE_EACH_S:
            yield SeriesPoint(view.steps[row], view.times_s[row], (counts[row] - counts[since]) / took_s)
            since = row


def joined(kept: Points, live: JobSeries | None) -> Points:
    """Return the kept points of each metric up to the first that was heard live, and from then on those."""
    heard = {name: [*series] for name, series in live.by_name.items()} if live is not None else {}
    found: Points = {}
    for name in [*kept, *(name for name in heard if name not in kept)]:
        newer = heard.get(name, [])
        older = [point for point in kept.get(name, ()) if not newer or point.step < newer[0].step]
        if older or newer:
            found[name] = older + newer
    for name in (STEPS_PER_S, SAMPLES_PER_S):  # behind what the script reports
        if name in found:
            found[name] = found.pop(name)
    return found
