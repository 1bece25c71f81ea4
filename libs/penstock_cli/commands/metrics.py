"""The command ``metrics``: the metrics of a job, or of a sweep's trials, as series."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from penstock_cli import render
from penstock_cli.invocation import At, ask, call, tell
from penstock_cli.parameters import Argument, Context, Option, PlainCommand
from penstock_cli.value_formats import moment
from penstock_log.request_bodies import MOST_ROWS

if TYPE_CHECKING:
    import typer

    from penstock.client import Client
    from penstock.gateway_client import GatewayClient
    from penstock_log import views

    Series = views.SeriesView | views.SweepSeriesView

_NOT_FOUND: Final = 404
_AGAIN_S: Final = 2.0
_CLEARED: Final = "\x1b[H\x1b[J"
"""Has a terminal begin at its top, with nothing on it."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet take a cell for a formula."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    for command in PLAIN.values():
        app.command()(command.function)


def metrics(
    ctx: Context,
    what: Annotated[str, Argument(metavar="JOB|SWEEP", help="Id of a job or a sweep, or a unique beginning of it.")],
    *,
    name: Annotated[
        list[str] | None, Option("--name", "-n", help="Of this metric; repeatable. By default all.")
    ] = None,
    most: Annotated[
        int,
        Option("--most", min=2, max=MOST_ROWS, help="At most so many rows of a job: of more, the last of a stretch."),
    ] = 1000,
    output: Annotated[
        Literal["table", "wide", "json", "csv"],
        Option("-o", "--output", help="table, wide (nothing cut), json or csv."),
    ] = "table",
    at: At = None,
) -> None:
    """
    Show what a job, or a sweep's trials, reported over steps.

    A row is the last of a stretch of reports. Steps that were done anew after a preemption or a crash are shown once.
    For pandas: `penstock metrics JOB -o csv` into a file for `pandas.read_csv`.
    """
    found = ask(ctx, lambda client: _found(client, what, tuple(name or ()), most, moment(at)))
    if render.as_json(found, output):
        return
    columns = found.columns()
    if output == "csv":
        text = columns_csv(columns)
        if render.terminal_width() is None:
            render.echo(text.encode())
        else:
            render.say_lines(text.splitlines())
    elif not found.has_rows:
        render.say(no_series(found))
    else:
        render.show_table(*_table(columns), wide=output == "wide")
    if found.left_out:
        tell(f"a series is kept of the first 32 metrics of a run; {found.left_out} more are left out")


async def _found(client: GatewayClient, what: str, names: tuple[str, ...], most: int, at: float | str | None) -> Series:
    """Return the series of the job of an id, or of the sweep where no job has it."""
    from penstock_bus.errors import ServiceError

    try:
        return await client.metrics(what, names, most=most, at=at)
    except ServiceError as error:
        if error.code != _NOT_FOUND or "no series of" in str(error):
            raise
        try:
            return await client.sweep_metrics(what, names, most=most, at=at)
        except ServiceError as other:
            is_about_job = other.code == _NOT_FOUND and "no series of" not in str(other)
            raise (error if is_about_job else other) from None


def draw(ctx: Context, job: str, names: list[str], output: str, at: str | None, *, follow: bool) -> None:
    """Draw the metrics of a job as charts: once, or with ``follow`` again and again until the job has ended."""
    if follow:
        found = call(ctx, lambda client: _followed(client, job, names))
    else:
        found = ask(ctx, lambda client: client.metrics(job, names, at=moment(at)))
    if not render.as_json(found, output):
        render.say_lines(_charts(found, names))


async def _followed(client: Client, job: str, names: list[str]) -> views.SeriesView:
    """Draw what there is every other second, and return it as it is in the end; draw nothing where is no terminal."""
    import asyncio

    ending = asyncio.ensure_future(client.wait(job))
    try:
        while not ending.done():
            if render.terminal_width() is not None:
                found = await client.metrics(job)  # all: one that is named may not have been reported yet
                render.echo(_CLEARED + "\n".join(map(render.seen, _charts(found, names))))
            await asyncio.wait([ending], timeout=_AGAIN_S)
        await ending
    finally:
        ending.cancel()
    if render.terminal_width() is not None:
        render.echo(_CLEARED.encode())
    return await client.metrics(job, names)


def _charts(found: views.SeriesView, names: list[str]) -> list[str]:
    from penstock_cli import metric_chart

    if not found.steps:
        return [no_series(found)]
    width, is_ascii = render.terminal_width() or metric_chart.WIDTH, not render.shows("⣿")
    lines: list[str] = []
    for name in names or found.metrics:
        values = found.values(name) if name in found.metrics else [None] * len(found.steps)
        chart = metric_chart.chart_lines(name, found.steps, values, width, is_ascii=is_ascii)
        lines += ["", *chart] if lines else chart
    return lines


def no_series(found: Series) -> str:
    """Return a sentence about a job, or a sweep, without series."""
    if getattr(found, "state", "") == "PD":
        return f"{found.id} ({found.name}) has not reported any metrics: it waits"
    why = "its script reports none (`session.report(loss=…)`), or they are older than what is kept"
    return f"{found.id} ({found.name}) has no metrics that are kept: {why}"


def columns_csv(columns: Mapping[str, Sequence[object]]) -> str:
    """
    Return columns as CSV with a header: no value is an empty cell, and what is no number is ``nan``.

    Names that a spreadsheet would take for formulas begin with an apostrophe.

    Examples
    --------
    >>> print(columns_csv({"step": [1, 2], "loss": [0.5, None], "=a": [float("nan"), 1e-9]}), end="")
    step,loss,'=a
    1,0.5,nan
    2,,1e-09
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f"'{name}" if name.startswith(_FORMULA) else name for name in columns])
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _table(columns: Mapping[str, Sequence[object]]) -> tuple[list[str], Iterable[Sequence[str]]]:
    shown = [[_cell(name, value) for value in column] for name, column in columns.items()]
    return [name.upper() for name in columns], zip(*shown, strict=True)


def _cell(name: str, value: object) -> str:
    if name == "time_s" and isinstance(value, float):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return render.number(value) if isinstance(value, float) else "-" if value is None else str(value)


PLAIN: Final = {"metrics": PlainCommand(metrics)}
