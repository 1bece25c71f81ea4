"""What is known of a workload: ``penstock profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import curves, render
from penstock.cli.session import At, Out, call
from penstock.cli.times import moment

if TYPE_CHECKING:
    from penstock_events import MemoryNeed, TrialsMeasured, views

Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD", help="Its key or a unique beginning of it, or the id or name of a job or sweep."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(profile)


def profile(ctx: typer.Context, workload: Workload, output: Out = "table", at: At = None) -> None:
    """
    Show what is known of a workload: speeds, scaling, memory.

    How an elastic one goes with batch size and devices, with errors; and what trials have shown of sharing devices and
    of scaling out.
    """
    found = call(ctx, lambda client: client.profile(workload, moment(at)))
    if output == "json":
        render.show_json(found)
        return
    curve = curves.lines(found.scaling, render.terminal_width())
    render.say_lines(render.wrapped([*lines(found), *(["", *curve] if curve else [])]))


def lines(found: views.ProfileView) -> list[str]:
    """Return a workload in lines."""
    from penstock.cli import show as text

    names = ", ".join(found.names)
    pairs = [
        ("workload", found.workload),
        ("jobs", f"{found.jobs}{f': {names}' if names else ''}"),
        ("speeds", text.speeds(found.speeds) or "not measured"),
        ("note", found.note),
        ("memory", memory(found.need)),
        *(trials(found.trials) if found.trials is not None else ()),
    ]
    return render.labelled((label, value) for label, value in pairs if value)


def memory(need: MemoryNeed | None) -> str:
    """Return what a run needs of a device's memory, in words."""
    if need is None:
        return "not measured"
    more = f", {render.size(need.ephemeral_bytes)} more within an iteration" if need.ephemeral_bytes else ""
    return f"{render.size(need.resident_bytes)} kept{more}"


def trials(seen: TrialsMeasured) -> list[tuple[str, str]]:
    """Return what trials have shown, in words."""
    unseen = "not measured"
    packing = (
        f"alpha {seen.alpha:.3g}, at most {render.count(seen.packing, 'trial')} on a device" if seen.alpha else unseen
    )
    most = f", at most {render.count(seen.widest, 'device')} for a trial" if seen.widest else ""
    guessed = "" if seen.moves else " (nobody has been moved yet: starting, and a guess for stopping)"
    never = "" if seen.saves else "; its script saves no checkpoints, so that trials are never moved"
    return [
        ("side by side", packing),
        ("scaling out", f"beta {seen.beta:.3g}{most}" if seen.beta else unseen),
        ("moving", f"{seen.overhead_s:.2g} s{guessed}{never}" if seen.overhead_s else unseen),
    ]
