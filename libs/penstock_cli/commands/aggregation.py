"""
Commands about aggregators: ``aggregation ls``, ``show`` and ``bench``.

They say which aggregators there are and how much of each cycle is used, and which jobs are on them: since when, why,
and what sharing costs them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli import render, value_formats
from penstock_cli.invocation import AnswerOut, Failure, Out, call

if TYPE_CHECKING:
    from penstock_cli.local.aggregation_bench import AggregationCosts
    from penstock_log import views

aggregation_app = typer.Typer(help="Aggregators that jobs share.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    aggregation_app.command("ls")(ls)
    aggregation_app.command("show")(show)
    aggregation_app.command()(bench)
    app.add_typer(aggregation_app, name="aggregation")


@aggregation_app.callback()
def aggregation() -> None:
    """Aggregators that jobs share."""


# --- ls


def ls(ctx: typer.Context, output: Out = "table") -> None:
    """List the aggregators and how busy they are, and the jobs on them with what sharing costs these."""
    found = call(ctx, lambda client: client.aggregation())
    if render.as_json(found, output):
        return
    wide, now_s = output == "wide", value_formats.now_s()
    render.show_table(*aggregator_table(found.aggregators, now_s, wide=wide), wide=wide)
    render.say()
    render.show_table(*aggregated_table(found.jobs, now_s, wide=wide), wide=wide)
    render.say()
    rooms = [f"{free} of {found.most.get(pool, 0)} free in {pool}" for pool, free in sorted(found.free.items())]
    render.say(f"aggregators: {', '.join(rooms) or 'no node runs any'}")


def aggregator_table(
    aggregators: Iterable[views.AggregatorUseView], now_s: float, *, wide: bool = False
) -> render.Table:
    """Return the list of aggregators."""
    headers = ("AGGREGATOR", "STATE", "PARTS", "JOBS", "CYCLE", "BUSY", "USED", "SINCE")
    rows = [
        (
            one.id,
            one.state,
            str(one.parts),
            _jobs(one),
            _seconds(one.cycle_s),
            _seconds(one.busy_s),
            f"{one.utilisation:.0%}" if one.cycle_s else "-",
            f"{value_formats.span(now_s - one.since_s)} ago",
            *((one.node_id, one.pool, *_live(one, now_s)) if wide else ()),
        )
        for one in aggregators
    ]
    beside = ("NODE", "POOL", "PROCESSOR", "RECEIVED", "SENT", "REFUSED", "HEARD") if wide else ()
    return (*headers, *beside), rows


def _live(one: views.AggregatorUseView, now_s: float) -> tuple[str, ...]:
    """Return what an aggregator's agent said of it last."""
    if one.heard_s is None:
        return ("-",) * 5
    refused, heard = str(sum(one.refused.values())), f"{value_formats.span(now_s - one.heard_s)} ago"
    return _seconds(one.spent_s), render.size(one.received_bytes), render.size(one.sent_bytes), refused, heard


def aggregated_table(jobs: Iterable[views.AggregatedJobView], now_s: float, *, wide: bool = False) -> render.Table:
    """Return the list of jobs with aggregation."""
    headers = ("JOB", "NAME", "MODE", "PHASE", "ON", "ALONE", "NOW", "LOSS", "MOVES", "SINCE")
    beside = ("USER", "POOL", "PARTS", "SIZE", "RANKS", "SERVERS", "RULE", "GENERATION", "WHY") if wide else ()
    rows = [
        (
            one.id,
            one.name,
            one.mode,
            one.phase,
            ",".join(one.aggregators) or "-",
            _seconds(one.alone_s),
            _seconds(one.now_s),
            _loss(one),
            f"{one.moves}{f' ({one.moving} on the way)' if one.moving else ''}",
            f"{value_formats.span(now_s - one.assigned_s)} ago" if one.assigned_s is not None else "-",
            *(
                (
                    one.user,
                    one.pool,
                    str(one.parts),
                    render.size(one.size_bytes),
                    str(one.world_size),
                    str(one.servers),
                    one.rule,
                    str(one.generation),
                    one.evidence,
                )
                if wide
                else ()
            ),
        )
        for one in jobs
    ]
    return (*headers, *beside), rows


def _loss(one: views.AggregatedJobView) -> str:
    """Return what a job loses: as measured since it has been where it is, before that as computed."""
    if not one.alone_s:
        return "-"
    return f"{max(0.0, one.measured_loss) if one.now_s else one.loss:.0%}"


def _jobs(one: views.AggregatorUseView) -> str:
    others = (f"{one.others} of others",) if one.others else ()
    return ",".join((*one.jobs, *others)) or "-"


def _seconds(seconds: float) -> str:
    """Return a short time; a hyphen where it is not known."""
    if not seconds:
        return "-"
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.3g}s"


# --- show


def show(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id, or a unique beginning of it.")],
    output: AnswerOut = "text",
) -> None:
    """Show which aggregators a job is on, why, and what sharing costs it."""
    found = call(ctx, lambda client: client.aggregation(job))
    if not found.jobs:
        raise Failure(
            f"job {job!r} does not aggregate at present: no run of it goes on, or its script has not used "
            "session.aggregate() in this run so far, or it needs no aggregators, being of one process"
        )
    (one,) = found.jobs
    if render.as_json(found, output):
        return
    now_s = value_formats.now_s()
    size = f"{render.size(one.size_bytes)} in {render.count(one.parts, 'part')}, {one.rule}"
    render.say_lines(
        render.labelled(
            (
                ("job", f"{one.id} ({one.name}), run {one.epoch}"),
                ("vector", f"{size}, of {render.count(one.world_size, 'rank')}"),
                ("mode", f"{one.mode}, {render.count(one.servers, 'aggregator')} of its own"),
                ("phase", f"{one.phase}, generation {one.generation}"),
                ("because", one.evidence),
                ("alone", f"{_seconds(one.alone_s)} an iteration" if one.alone_s else "not measured yet"),
                ("now", _now(one)),
                ("loss", f"{one.loss:.1%} computed" if one.alone_s else ""),
                ("moved", f"{render.count(one.moves, 'part')}, {one.moving} on the way"),
                ("not finite", f"{render.count(one.not_finite, 'result')}" if one.not_finite else ""),
                *((f"on {each.id}", _on(one, each)) for each in found.aggregators),
            )
        )
    )
    if one.assigned_s is not None:
        render.say(f"assigned {value_formats.span(now_s - one.assigned_s)} ago")


def _now(one: views.AggregatedJobView) -> str:
    if not one.now_s:
        return ""
    what = "slower" if one.measured_loss >= 0 else "faster"
    said = f"{_seconds(one.now_s)} an iteration, {abs(one.measured_loss):.1%} {what}"
    held = f"{_seconds(one.held_s)} of it at its aggregators, {_seconds(one.alone_held_s)} when it was alone"
    return f"{said}; {held}" if one.held_s else said


def _on(one: views.AggregatedJobView, aggregator: views.AggregatorUseView) -> str:
    parts = [str(each.part) for each in one.placed if each.aggregator == aggregator.id]
    shown = ", ".join(parts[:16]) + (f" and {len(parts) - 16} more" if len(parts) > 16 else "")
    used = f", {aggregator.utilisation:.0%} of a cycle of {_seconds(aggregator.cycle_s)}" if aggregator.cycle_s else ""
    others = [job for job in aggregator.jobs if job != one.id]
    beside = [*others, *((f"{aggregator.others} of others",) if aggregator.others else ())]
    along = f", with {', '.join(beside)}" if beside else ""
    return f"{'part' if len(parts) == 1 else 'parts'} {shown}{used}{along}"


# --- bench


def bench(output: AnswerOut = "text") -> None:
    """Measure on this machine, with a server and services of its own, what shared aggregation gives. Half a minute."""
    if not sys.platform.startswith("linux"):
        raise Failure(f"aggregators run on Linux only; this is {sys.platform}")
    try:
        from penstock_cli.local.aggregation_bench import measure
        from penstock_cli.local.bench_services import BenchError
    except ImportError as error:
        raise Failure(str(error)) from error
    try:
        costs = measure()
    except BenchError as error:
        raise Failure(str(error)) from error
    if not render.as_json(costs, output):
        render.show_table(("WHAT", "MEASURED", "AIM"), _bench_rows(costs))


def _bench_rows(costs: AggregationCosts) -> list[tuple[str, str, str]]:
    pause = costs.migration_pause_ms
    return [
        ("means of two processes are a plain sum's, bit for bit", "yes" if costs.bitwise_equal else "no", "yes"),
        ("AdamW on an aggregator is a local one, bit for bit", "yes" if costs.update_equal else "no", "yes"),
        ("aggregators of four jobs, their own", str(costs.servers_own), "-"),
        ("aggregators of four jobs, shared", str(costs.servers_shared), "-"),
        ("time of an iteration, shared to own", f"{costs.iteration_ratio:.2f}", "1.09"),
        (f"pause of a migration, median of {pause.moves}", f"{pause.median:.1f} ms", "-"),
        ("pause of a migration, 99th percentile", f"{pause.p99:.1f} ms", "-"),
        (f"steps lost after {costs.kills} kills", str(costs.kill_lost_updates), "0"),
        ("steps counted twice after them", str(costs.kill_doubled_updates), "0"),
    ]
