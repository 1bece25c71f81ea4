"""`penstock sim`: what a cluster would make of a trace under one policy or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from typer.core import TyperCommand

from penstock.cli import sweep_sim
from penstock.cli.session import Out

SWEEP: Final = "--sweep"

Trace = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", help="A file, compressed (.gz, .xz, .bz2) or not; or a recipe (.toml), made up for each seed."
    ),
]
Format = Annotated[
    str, typer.Option("--format", help="Of TRACE: tiresias, philly, csv, … or auto: told by its content.")
]
Cluster = Annotated[
    str, typer.Option("--cluster", help="NODESxGPUS, such as 3x4 or 2x8@fast+4x4@slow, or a TOML file.")
]
Policies = Annotated[
    list[str],
    typer.Option("--policy", "-p", help="Repeatable, or with commas; the first is what others are compared with."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE of the policy, such as thresholds_gpu_s=3250,7200; repeatable."),
]
Placement = Annotated[
    str,
    typer.Option(
        "--placement",
        help="count; best-fit, consolidate, first-fit: the matcher's; yarn, with --compat.",
        show_default="count",
    ),
]
Speedups = Annotated[
    Path | None, typer.Option("--speedups", help="TOML or JSON: how fast each model is on each device kind.")
]
Overhead = Annotated[float, typer.Option("--overhead-s", min=0, help="Seconds that a run needs before it advances.")]
Seed = Annotated[
    list[int] | None,
    typer.Option("--seed", min=0, help="Of failures, errors and recipes; repeatable: mean and spread over all."),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="So many seeds, from --seed on.")]
Quota = Annotated[Path | None, typer.Option("--quota", help="TOML: table [gpus] with each virtual cluster's GPUs.")]
Borrow = Annotated[
    bool | None,
    typer.Option("--borrow/--no-borrow", help="Whether idle GPUs of other virtual clusters are lent; else as --quota."),
]
Scaling = Annotated[Path | None, typer.Option("--scaling", help="TOML or JSON for elastic: model → GPUs → throughput.")]
Profiles = Annotated[
    Path | None,
    typer.Option(
        "--profiles", help="TOML or JSON for elastic: model → times by batch and by GPUs; then batches count."
    ),
]
Window = Annotated[
    float, typer.Option("--window-s", min=0, help="Count the jobs that end within so long of the first submission.")
]
Compat = Annotated[str, typer.Option("--compat", help="Follow a published simulator to the second: tiresias-2019.")]
Samples = Annotated[
    Path | None, typer.Option("--gpu-time-samples", help="GPU-seconds, one a line: what 2d-gittins knows of lengths.")
]
Engine = Annotated[
    Literal["auto", "counted", "deciders"],
    typer.Option(
        "--engine", help="counted: devices only, fast; deciders: the production code; auto: counted where it will do."
    ),
]
Log = Annotated[
    Path | None, typer.Option("--log", help="Write the events that a cluster would have written; one policy only.")
]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Folder for report.html, plots, and a CSV of the jobs under each policy.")
]
Gantt = Annotated[bool, typer.Option("--gantt", help="Show who held which GPU when, in letters.")]
Processes = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Run so many policies at a time.")]
Mtbf = Annotated[float, typer.Option("--mtbf-s", min=0, help="Mean time between failures of a node; 0: none fail.")]
Repair = Annotated[float, typer.Option("--repair-s", min=0, help="Until a failed node is back.")]
LengthError = Annotated[
    float, typer.Option("--length-error", min=0, help="Spread of declared lengths: sigma of a lognormal factor.")
]


class SweepOrTrace(TyperCommand):
    """With ``--sweep FILE`` it is ``penstock sweep sim FILE``: other questions, other options."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Hand the arguments to whom they are meant for."""
        words = [part for word in args for part in ((SWEEP, word[8:]) if word.startswith(f"{SWEEP}=") else (word,))]
        if SWEEP not in words:
            return super().make_context(info_name, args, parent, **extra)
        words.remove(SWEEP)
        about_sweeps = typer.Typer(add_completion=False, rich_markup_mode=None)
        about_sweeps.command()(sweep_sim.sim)
        command = typer.main.get_command(about_sweeps)
        return command.make_context(f"{info_name} {SWEEP}", words, parent, **extra)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sim", cls=SweepOrTrace)(sim)


def sim(
    trace: Trace,
    *,
    cluster: Cluster,
    policy: Policies,
    format_: Format = "auto",
    settings: Sets = None,
    placement: Placement = "",
    speedups: Speedups = None,
    overhead_s: Overhead = 0.0,
    seed: Seed = None,
    seeds: Seeds = 1,
    compat: Compat = "",
    gpu_time_samples: Samples = None,
    engine: Engine = "auto",
    mtbf_s: Mtbf = 0.0,
    repair_s: Repair = 600.0,
    length_error: LengthError = 0.0,
    quota: Quota = None,
    borrow: Borrow = None,
    scaling: Scaling = None,
    profiles: Profiles = None,
    window_s: Window = 0.0,
    log: Log = None,
    out: Folder = None,
    gantt: Gantt = False,
    processes: Processes = 1,
    output: Out = "table",
) -> None:
    """
    Simulate a trace under one policy or several, or a sweep.

    For example: penstock sim jobs.csv --cluster 3x4 --policy fifo --policy 2d-las --out report

    Or: penstock sim --sweep sweep.toml --curves curves.csv --gpus 16 (as penstock sweep sim does; see its --help)
    """
    from penstock.cli import simulating
    from penstock.cli.seeding import several
    from penstock.cli.typed import pairs, words

    simulating.simulate(
        simulating.Asked(
            trace=trace,
            format=format_,
            cluster=cluster,
            policies=tuple(dict.fromkeys(words(policy))),
            settings=pairs(settings or (), "--set"),
            placement=placement,
            speedups=speedups,
            overhead_s=overhead_s,
            seeds=several(seed or [], seeds),
            compat=compat,
            gpu_time_samples=gpu_time_samples,
            engine=engine,
            mtbf_s=mtbf_s,
            repair_s=repair_s,
            length_error=length_error,
            quota=quota,
            borrow=borrow,
            scaling=scaling,
            profiles=profiles,
            window_s=window_s,
            log=log,
            processes=processes,
        ),
        simulating.Wanted(output=output, out=out, gantt=gantt),
    )
