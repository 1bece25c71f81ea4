"""`penstock replay`: what the cluster's own past would have been under another policy, or with more devices."""

from __future__ import annotations

import typer

from penstock_cli.invocation import flattened
from penstock_cli.simulation_arguments import ReplayArguments, ReportOptions
from penstock_cli.typer_commands import PolicyCommand


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", cls=PolicyCommand)(replay)


@flattened
def replay(ctx: typer.Context, asked: ReplayArguments, wanted: ReportOptions) -> None:
    """
    Run the cluster's own past again, as it might have been.

    For example: penstock replay --from 7d --policy 2d-las --policy fifo --cluster +8xfast
    """
    from penstock_cli.replay_run import run_replay

    run_replay(ctx, asked, wanted)
