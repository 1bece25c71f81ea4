"""Answers about the metrics of a job as series: those of its runs, read from the stream, and joined."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec
import structlog

from penstock_bus import SeriesPort
from penstock_bus.port import StoredMessage
from penstock_gateway.answers import ReadModel
from penstock_gateway.endpoints import NOT_FOUND, RequestRefused
from penstock_log import Job, run_series
from penstock_log.agent_protocol import LoopReport
from penstock_log.records import compose
from penstock_log.request_bodies import SeriesRequest
from penstock_log.run_series import RunSeries, SeriesTable
from penstock_log.text import listed
from penstock_log.views import SeriesView

_MOST_AT_ONCE: Final = 50_000
"""Rows of a job's runs that are in memory together: where there are more, each run gives up every other one."""
_SHOWN: Final = 20
_log = structlog.get_logger("penstock.gateway")


async def series(bus: SeriesPort, model: ReadModel, job: Job, asked: SeriesRequest, until_s: float) -> SeriesView:
    """
    Return the series of a job's metrics, with what its present run has reported last.

    Parameters
    ----------
    until_s : float
        Rows of later reports are left out, as if they had not come yet.
    """
    runs = await _runs(bus.read_series(job.id), until_s)
    _add_last(runs, model, job)
    table = run_series.joined(runs.values(), asked.most)
    table.columns = _chosen(table, asked.names, job)
    return _that_fits(table, model, job, bus.max_body_bytes)


async def _runs(messages: AsyncIterator[StoredMessage], until_s: float) -> dict[int, RunSeries]:
    """Return the series of each run by its epoch."""
    found: dict[int, RunSeries] = {}
    rows = 0
    async for message in messages:
        try:
            one = run_series.decode(message.body)
        except (ValueError, RecursionError) as error:
            _log.warning("series_not_understood", error=str(error))
            continue
        one.cut(until_s)
        found[one.epoch] = one
        rows += len(one.steps)
        while rows > _MOST_AT_ONCE and any(len(each.steps) > 2 for each in found.values()):
            for each in found.values():
                each.halve()
            rows = sum(len(each.steps) for each in found.values())
    return found


def _add_last(runs: dict[int, RunSeries], model: ReadModel, job: Job) -> None:
    """Add what the present run has reported since its series was published."""
    report = model.report_of(job)
    epoch = report.epoch or job.epoch
    one = runs.get(epoch) or RunSeries(job_id=job.id, epoch=epoch)
    if report.metrics and (not one.steps or report.step > one.steps[-1]):
        one.add(compose(LoopReport, report), model.now_s)
        runs[epoch] = one


def _chosen(table: SeriesTable, names: Iterable[str], job: Job) -> dict[str, run_series.Column]:
    wanted = list(names)
    unknown = [name for name in wanted if name not in table.columns]
    if unknown and table.columns:
        known = [*table.columns]
        more = ", …" if len(known) > _SHOWN else ""
        raise RequestRefused(
            NOT_FOUND, f"job {job.id} has no series of {listed(unknown)}; it has {listed(known[:_SHOWN])}{more}"
        )
    return {name: column for name, column in table.columns.items() if not wanted or name in wanted}


def _that_fits(table: SeriesTable, model: ReadModel, job: Job, most_bytes: int) -> SeriesView:
    """Return the view, with fewer rows where it is too large for a message."""
    view = _view(table, model, job)
    while len(table.steps) > 2 and len(msgspec.json.encode(view)) > most_bytes:
        table.thin(len(table.steps) // 2 + 1)
        view = _view(table, model, job)
    return view


def _view(table: SeriesTable, model: ReadModel, job: Job) -> SeriesView:
    diverged = {
        name: tuple(row for row, value in enumerate(column) if value is not None and not math.isfinite(value))
        for name, column in table.columns.items()
    }
    return SeriesView(
        id=job.id,
        name=job.spec.name,
        state=job.state.value,
        steps=tuple(table.steps),
        times_s=tuple(table.times_s),
        runs=tuple(table.runs),
        samples=tuple(table.samples),
        metrics={
            name: tuple(value if value is not None and math.isfinite(value) else None for value in column)
            for name, column in table.columns.items()
        },
        diverged={name: rows for name, rows in diverged.items() if rows},
        superseded=table.superseded,
        left_out=table.left_out,
        seq=model.seq,
    )
