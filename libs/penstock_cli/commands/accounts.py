"""
Commands about device time: ``usage`` and ``report``.

``usage`` lists who asked for how much, held it, and what became of it; ``report`` writes a page of a week.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from penstock_cli import render
from penstock_cli.invocation import At, LogFile, bad_input, call, tell
from penstock_cli.value_formats import moment

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_cli.usage_report import UsageReport
    from penstock_gateway.answers import ReadModel
    from penstock_log import views
    from penstock_log.request_bodies import UsageBy, UsageOrder

By = Annotated[
    Literal["user", "team", "pool", "model", "kind", "job"],
    typer.Option("--by", help="What a row is: user, team, pool, model, kind (of device) or job."),
]
Since = Annotated[
    str,
    typer.Option("--since", help="From when on: a span ago (7d), a UTC day (2026-01-31), a time, or all."),
]
Until = Annotated[str, typer.Option("--until", help="Up to when, likewise; now unless told otherwise.")]
Sort = Annotated[
    Literal["held", "requested", "waited", "used", "idle", "unmeasured", "lost", "name"],
    typer.Option("--sort", help="The column that the largest rows come first by, or name."),
]
UsageOut = Annotated[
    Literal["table", "wide", "json", "csv"],
    typer.Option("-o", "--output", help="table, wide (all columns, nothing cut), json or csv."),
]
_SPAN: Final = re.compile(r"\d+(\.\d+)?[smhdw]")
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(usage)
    app.command()(report)


def usage(
    ctx: typer.Context,
    *,
    by: By = "user",
    since: Since = "7d",
    until: Until = "",
    sort: Sort = "held",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many rows.")] = 1000,
    output: UsageOut = "table",
    at: At = None,
    log: LogFile = None,
) -> None:
    """
    List device time in GPU-hours, and what became of it.

    Time asked for was waited for or held. Held time was used in iterations, idle while held, unmeasured, or lost: done
    again or thrown away.
    """
    window: dict[str, Any] = {"since": _bound(since, "--since"), "until": _bound(until, "--until")}
    if log is not None:
        found = _of_log(_model(log, at), by, order=sort, limit=limit, **window)
    else:
        found = call(ctx, lambda client: client.usage(by, **window, order=sort, limit=limit, at=moment(at)))
    if render.as_json(found, output):
        return
    from penstock_cli import usage_text
    from penstock_log.usage_csv import usage_csv

    if output == "csv":
        typer.echo(usage_csv(found), nl=False)
        return
    wide = output == "wide"
    headers, rows = usage_text.usage_table(found, wide=wide)
    width = None if wide else render.terminal_width()
    shown, cells = render.without_columns(headers, rows, usage_text.LESS_IMPORTANT, width)
    render.show_table(shown, cells, wide=wide)
    render.say_lines(usage_text.window_lines(found))
    if left_out := [name for name in headers if name not in shown]:
        render.say(f"left out for want of room: {', '.join(left_out)}; `-o wide` has all")


def report(
    ctx: typer.Context,
    *,
    since: Since = "7d",
    until: Until = "",
    out: Annotated[Path, typer.Option("--out", help="File for the page; - prints it.")] = Path("report.html"),
    log: LogFile = None,
) -> None:
    """
    Write a page about device time, by teams and users.

    It has totals, what was idle or lost, and how long jobs waited.
    """
    from penstock_cli import usage_report

    window = {"since": _bound(since, "--since"), "until": _bound(until, "--until")}
    if log is not None:
        model = _model(log, None)

        async def ask(by: UsageBy = "user", **more: Any) -> views.UsageView:
            return _of_log(model, by, **more)

        found = asyncio.run(usage_report.collect(ask, str(log), **window, devices=_devices(_nodes(model))))
    else:
        found = call(ctx, lambda client: _collected(client, ctx.obj["url"], window))
    text = usage_report.page(found)
    if out == Path("-"):
        typer.echo(text, nl=False)
        return
    out.write_text(text, encoding="utf-8")
    tell(f"wrote {out}: open it in a browser")


async def _collected(client: Client, url: str, window: dict[str, Any]) -> UsageReport:
    from penstock_cli import usage_report

    return await usage_report.collect(client.usage, url, **window, devices=_devices(await client.nodes()))


def _devices(nodes: views.NodesView) -> dict[str, int]:
    """Return how many devices there are of each kind on nodes that are there."""
    there = (node for node in nodes.nodes if node.state not in {"lost", "left"})
    return dict(Counter(device.device.kind for node in there for device in node.devices))


def _of_log(model: ReadModel, by: UsageBy, *, order: UsageOrder = "held", **asked: Any) -> views.UsageView:
    from penstock_gateway.endpoints import RequestRefused
    from penstock_gateway.usage_answers import usage as answer
    from penstock_log.request_bodies import UsageRequest

    try:
        return answer(model, UsageRequest(by=by, order=order, **asked))
    except RequestRefused as error:
        bad_input(str(error))


def _nodes(model: ReadModel) -> views.NodesView:
    from penstock_gateway.answers import nodes

    return nodes(model)


def _model(log: Path, at: str | None) -> ReadModel:
    """Return what a gateway would know at the end of a log in a file, or at a moment of it."""
    from penstock_simulator import log_query
    from penstock_simulator.traces.columns import TraceSource

    when = moment(at)
    until = datetime.fromisoformat(when).timestamp() if isinstance(when, str) else when
    with TraceSource(log).raw() as text:
        try:
            return log_query.model(text, until)
        except ValueError as error:
            bad_input(f"{log}: {error}")


def _bound(text: str, option: str) -> float | str | None:
    """
    Return a bound of a window as a gateway takes it.

    Examples
    --------
    >>> _bound("7d", "--since"), _bound("2026-01-31", "--since"), _bound("1.7e9", "--since"), _bound("all", "--since")
    ('7d', '2026-01-31', 1700000000.0, None)
    """
    text = text.strip()
    if not text or (text == "all" and option == "--since"):
        return None
    if _SPAN.fullmatch(text):
        return text
    try:
        return float(text)
    except ValueError:
        pass
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        bad_input(
            f"{option} {text!r} is no time; expected a span ago such as 7d, a UTC day such as 2026-01-31, a time such "
            "as 2026-01-31T09:30:00Z, or seconds since the epoch"
        )
    return text if _DAY.fullmatch(text) or parsed.tzinfo else parsed.astimezone().isoformat()
