"""Commands about nodes, and the whole at one glance."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import render
from penstock.cli.session import AnswerOut, At, Out, act, call
from penstock.cli.times import clock, moment, now_s

node_app = typer.Typer(help="Take a node out of service and back, or off the list.", no_args_is_help=True)
NodeIds = Annotated[list[str], typer.Argument(metavar="NODE...", help="Node ids, or unique beginnings of them.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(nodes)
    node_app.command()(drain)
    node_app.command()(resume)
    node_app.command()(remove)
    app.add_typer(node_app, name="node")
    app.command()(status)
    app.command()(rejected)


def nodes(ctx: typer.Context, output: Out = "table", at: At = None) -> None:
    """List nodes; with -o wide their devices and what runs on them."""
    from penstock.cli import show

    found = call(ctx, lambda client: client.nodes(moment(at)))
    now = now_s()
    if output == "json":
        render.show_json(found)
    elif output == "wide":
        rows = [row for node in found.nodes for row in show.wide_node_rows(node, now)]
        render.show_table(show.NODE_WIDE, rows, wide=True)
    else:
        render.show_table(show.NODE_HEADERS, [show.node_row(node, now) for node in found.nodes])


def drain(
    ctx: typer.Context,
    nodes: NodeIds,
    preempt: Annotated[bool, typer.Option("--preempt", help="Checkpoint its running jobs and move them.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """Give nodes no new jobs."""
    act(ctx, nodes, lambda client, node: client.drain(node, reason, preempt=preempt), output)


def resume(ctx: typer.Context, nodes: NodeIds, output: AnswerOut = "text") -> None:
    """Give drained nodes jobs again."""
    act(ctx, nodes, lambda client, node: client.resume(node), output)


def remove(
    ctx: typer.Context,
    nodes: NodeIds,
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.")] = "",
    output: AnswerOut = "text",
) -> None:
    """List nodes no more that are gone for good."""
    act(ctx, nodes, lambda client, node: client.remove(node, reason), output)


def status(ctx: typer.Context, output: Out = "table", at: At = None) -> None:
    """Count jobs, devices, nodes and services."""
    found = call(ctx, lambda client: client.status(moment(at)))
    if output == "json":
        render.show_json(found)
        return
    replicas: dict[str, int] = {}
    for replica in found.services:
        replicas[replica.service] = replicas.get(replica.service, 0) + 1
    render.show_pairs(
        [
            ("jobs", _counts(_in_order(found.jobs)) or "none"),
            ("sweeps", _counts(found.sweeps)),
            ("nodes", _counts(found.nodes) or "none"),
            *((f"{kind} devices", _counts(counts)) for kind, counts in found.devices.items()),
            ("services", _counts(replicas) or "none heard"),
            ("log", f"sequence {found.last_seq}" + (f", {found.backlog} not read yet" if found.backlog else "")),
            ("version", found.version),
        ]
    )


def rejected(ctx: typer.Context, output: Out = "table") -> None:
    """List what came in and could not be accepted, and why."""
    found = call(ctx, lambda client: client.rejected())
    if output == "json":
        render.show_json(found)
    else:
        rows = [(clock(one.stored_s), one.origin, one.reason, one.body) for one in found.rejected]
        render.show_table(("TIME", "FROM", "REASON", "BODY"), rows, wide=output == "wide")


def _in_order(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts of jobs in the order of a job's life."""
    from penstock_events import State

    return {state: counts[state] for state in State if state in counts}


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
