"""`penstock replay`: what the cluster's own past would have been under another policy, or with more devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.commands.simulate import Folder, Gantt, Sets
from penstock_cli.invocation import Out, PolicyCommand

From = Annotated[
    str | None,
    typer.Option(
        "--from", help="Jobs submitted from then on: a sequence, a span ago (2d), or a time (2026-01-31T09:30:00Z)."
    ),
]
To = Annotated[str | None, typer.Option("--to", help="And before then.")]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        help="Repeatable, or with commas; by default `configured`: the services' own settings, once more.",
    ),
]
Added = Annotated[
    str, typer.Option("--cluster", help="With more: +8xfast, devices of a kind, or +2x4@fast, nodes of so many.")
]
Without = Annotated[list[str] | None, typer.Option("--without", help="Leave out a node; repeatable, or with commas.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The services' settings file: the log holds only what was set live."),
]
Log = Annotated[
    Path | None,
    typer.Option("--log", help="A log in a file, as `events --after 0 -f -o json` or `sim --log` write it."),
]
Recorded = Annotated[
    str,
    typer.Option(
        "--recorded",
        metavar="POLICY",
        help="The policy under which the log was recorded, where that was another one: of a simulation's log.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the intervals; the same seed, the same result.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", cls=PolicyCommand)(replay)


def replay(
    ctx: typer.Context,
    *,
    from_: From = None,
    to: To = None,
    policy: Policies = None,
    settings: Sets = None,
    cluster: Added = "",
    without: Without = None,
    config: Config = None,
    log: Log = None,
    recorded: Recorded = "configured",
    seed: Seed = 0,
    out: Folder = None,
    gantt: Gantt = False,
    output: Out = "table",
) -> None:
    """
    Run the cluster's own past again, as it might have been.

    For example: penstock replay --from 7d --policy 2d-las --policy fifo --cluster +8xfast
    """
    from penstock_cli import replay_run
    from penstock_cli.simulation_run import ReportOptions
    from penstock_cli.value_formats import pairs, words
    from penstock_simulator.replay.replay import CONFIGURED

    replay_run.run_replay(
        ctx,
        replay_run.ReplayArguments(
            log=log,
            from_=from_,
            to=to,
            policies=tuple(dict.fromkeys(words(policy or ()))) or (CONFIGURED,),
            settings=pairs(settings or (), "--set"),
            config=config,
            cluster=cluster,
            recorded=recorded,
            without=tuple(dict.fromkeys(words(without or ()))),
            seed=seed,
        ),
        ReportOptions(output=output, out=out, gantt=gantt),
    )
