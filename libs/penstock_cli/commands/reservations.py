"""
Commands about reservations: ``reserve``, ``reservations`` and ``unreserve``.

A reservation makes so many devices of a pool a team's own for a time.
"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli import render
from penstock_cli.invocation import AnswerOut, Out, bad_input, call
from penstock_cli.value_formats import begin_s, clock, now_s

Why = Annotated[str, typer.Option("--reason", help="Kept in the log.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(reserve)
    app.command()(reservations)
    app.command()(unreserve)


def reserve(
    ctx: typer.Context,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="For whom.")],
    *,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many devices, beside the team's quota.")],
    until: Annotated[str, typer.Option("--until", help="When it ends: 4h (from now), 22:00, or 2026-01-31T22:00.")],
    kind: Annotated[str, typer.Option("--kind", help="Of this kind; else of whatever kinds.")] = "",
    begins: Annotated[str, typer.Option("--from", help="When it begins, as --until.")] = "now",
    pool: Annotated[str, typer.Option("--pool", help="Which pool.")] = "default",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """
    Reserve devices of a pool for a team and a time.

    What the team does not claim meanwhile is lent. A time of day is the next one: an end is after its begin.
    """
    present_s = now_s()
    from_s = begin_s(begins, present_s, "--from")
    until_s = begin_s(until, present_s, "--until")
    if until_s <= from_s and ":" in until and "-" not in until:  # 22:00 to 06:00 goes beyond midnight
        until_s = begin_s(until, from_s, "--until")
    if until_s <= from_s:
        bad_input(f"--until {until!r} is not after --from {begins!r}; expected a reservation that ends after it begins")
    given_s = 0.0 if from_s <= present_s else from_s
    answer = call(
        ctx,
        lambda client: client.reserve(team, gpus, until_s=until_s, from_s=given_s, kind=kind, pool=pool, reason=reason),
    )
    render.show_answer(answer, answer.message, output)


def reservations(ctx: typer.Context, output: Out = "table") -> None:
    """List the reservations that are not over."""
    found = call(ctx, lambda client: client.policies())
    reserved = [one for pool in found.pools for one in pool.reservations]
    if render.as_json(reserved, output):
        return
    rows = [
        (
            one.id,
            one.pool,
            one.team,
            f"{one.gpus} {one.kind}" if one.kind else str(one.gpus),
            one.state,
            *map(clock, (one.from_s, one.until_s)),
            one.by,
            one.reason,
        )
        for one in reserved
    ]
    if rows:
        headers = ("ID", "POOL", "TEAM", "DEVICES", "STATE", "FROM", "UNTIL", "BY", "REASON")
        render.show_table(headers, rows, wide=output == "wide")
    else:
        render.say("nothing is reserved; `penstock reserve TEAM --gpus N --from 18:00 --until 22:00` makes one")


def unreserve(
    ctx: typer.Context,
    reservation: Annotated[str, typer.Argument(metavar="ID", help="As `penstock reservations` lists it.")],
    pool: Annotated[str, typer.Option("--pool", help="Which pool's, where several have this id.")] = "",
    reason: Why = "",
    output: AnswerOut = "text",
) -> None:
    """Cancel a reservation, whether or not it has begun."""
    answer = call(ctx, lambda client: client.unreserve(reservation, pool=pool, reason=reason))
    render.show_answer(answer, answer.message, output)
