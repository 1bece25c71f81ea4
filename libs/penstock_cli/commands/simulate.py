"""
Commands that simulate: ``sim`` and ``sweep sim``.

``penstock sim`` plays a trace on a cluster under one policy or several. ``penstock sweep sim`` plays a sweep over
recorded learning curves, under several ways of filling devices.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import typer

from penstock_cli import render
from penstock_cli.invocation import Out, PolicyCommand, bad_input
from penstock_cli.simulation_arguments import SimulationArguments
from penstock_cli.value_formats import span

if TYPE_CHECKING:
    from penstock_log import SweepSpec
    from penstock_simulator.sweep_simulation import LearningCurves, SweepOutcome


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


def simulate_sweep(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Sweep in TOML, YAML or JSON; - for standard input.")],
    *,
    curves: Annotated[Path, typer.Option("--curves", help="CSV: the dimensions, unit_s, and a column a budget.")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Devices, all alike.")] = 16,
    filling: Annotated[
        list[str] | None,
        typer.Option("--filling", "--policy", "-f", help="Repeatable, or with commas; all, if left out."),
    ] = None,
    search: Annotated[str, typer.Option("--search", help="Instead of the file's.")] = "",
    trials: Annotated[int | None, typer.Option("--trials", min=0, help="How many points are tried.")] = None,
    max_gpus: Annotated[int, typer.Option("--max-gpus", min=1, max=256, help="Most devices for one trial (d).")] = 4,
    packing: Annotated[int, typer.Option("--packing", min=1, max=256, help="Most trials on one device (c).")] = 2,
    alpha: Annotated[float, typer.Option("--alpha", min=1, max=10, help="Penalty of packing.")] = 1.3,
    beta: Annotated[float, typer.Option("--beta", min=1, max=10, help="Penalty of scaling out.")] = 1.05,
    overhead_s: Annotated[float, typer.Option("--overhead-s", min=0, help="Of each start and each move.")] = 0.0,
    slower: Annotated[float, typer.Option("--slower", min=1e-9, help="Times by which each step takes longer.")] = 1.0,
    target: Annotated[float | None, typer.Option("--target", help="Value of the metric to be reached.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Instead of the file's.")] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=1000, help="So many sweeps: this seed, and those after.")
    ] = 1,
    output: Out = "table",
) -> None:
    """Simulate a sweep over recorded learning curves, under water-filling and what it is compared with."""
    from penstock_cli import spec_file
    from penstock_cli.value_formats import words
    from penstock_simulator.sweep_simulation import FILLINGS, TrialModel, play

    typed = {"search": search or None, "trials": trials, "seed": seed, "target": target}
    overrides = {key: value for key, value in typed.items() if value is not None}
    spec = spec_file.sweep(spec_file.read(file, sys.stdin.read), overrides)
    recorded = _curves(curves, spec)
    recorded = msgspec.structs.replace(recorded, unit_s=recorded.unit_s * slower)
    model = TrialModel(gpus=gpus, max_gpus_d=max_gpus, packing_c=packing, alpha=alpha, beta=beta, overhead_s=overhead_s)
    names = list(dict.fromkeys(words(filling or []))) or list(FILLINGS)
    if unknown := [name for name in names if name not in FILLINGS]:
        bad_input(f"--filling: {unknown[0]!r} is not known; expected some of {', '.join(FILLINGS)}")
    sweeps = [msgspec.structs.replace(spec, seed=spec.seed + i) for i in range(seeds)]
    _show({name: [play(one, recorded, model, FILLINGS[name]) for one in sweeps] for name in names}, output)


class SweepOrTrace(PolicyCommand):
    """With ``--sweep FILE`` it is ``penstock sweep sim FILE``: other questions, other options."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Hand the arguments to whom they are meant for."""
        words = [part for word in args for part in ((SWEEP, word[8:]) if word.startswith(f"{SWEEP}=") else (word,))]
        if SWEEP not in words:
            return super().make_context(info_name, args, parent, **extra)
        words.remove(SWEEP)
        about_sweeps = typer.Typer(add_completion=False, rich_markup_mode=None)
        about_sweeps.command()(simulate_sweep)
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
    from penstock_cli import simulation_run
    from penstock_cli.simulation_plan import several
    from penstock_cli.value_formats import pairs, words

    simulation_run.simulate(
        SimulationArguments(
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
        simulation_run.ReportOptions(output=output, out=out, gantt=gantt),
    )


_COLUMNS: Final = ("TARGET", "BEST", "USED", "GOODPUT", "MOVING", "STARTING", "TRIALS", "RUNS", "MOVED")


def _curves(path: Path, spec: SweepSpec) -> LearningCurves:
    from penstock_simulator.sweep_simulation import BadCurves, read

    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return read(lines, str(path), spec)
    except (OSError, UnicodeDecodeError, BadCurves) as error:
        bad_input(f"--curves: {error}")


def _show(played: dict[str, list[SweepOutcome]], output: str) -> None:
    """Show the means over the seeds, and each makespan over that of the same seed under the first way."""
    if output == "json":
        found = {name: [msgspec.to_builtins(outcome) for outcome in outcomes] for name, outcomes in played.items()}
        render.show_json({name: all_[0] if len(all_) == 1 else all_ for name, all_ in found.items()})
        return
    first = next(iter(played))
    headers = ("FILLING", "MAKESPAN", f"VS {first.upper()}", "FROM..TO", *_COLUMNS)
    rows = [(name, *_row(outcomes, played[first])) for name, outcomes in played.items()]
    render.show_table(headers, rows, wide=output == "wide")


def _row(outcomes: list[SweepOutcome], against: list[SweepOutcome]) -> tuple[str, ...]:
    ratios = [
        outcome.makespan_s / other.makespan_s - 1 if other.makespan_s else 0.0
        for outcome, other in zip(outcomes, against, strict=True)
    ]
    reached = [outcome.target_s for outcome in outcomes if outcome.target_s is not None]
    found = [outcome.best for outcome in outcomes if outcome.best is not None]
    return (
        span(fmean(outcome.makespan_s for outcome in outcomes)),
        f"{100 * fmean(ratios):.0f} %",
        f"{100 * min(ratios):.0f}..{100 * max(ratios):.0f}" if len(ratios) > 1 else "-",
        span(fmean(reached))
        if len(reached) == len(outcomes)
        else f"{len(reached)}/{len(outcomes)}"
        if reached
        else "-",
        render.number(fmean(found)) if found else "-",
        *(
            f"{100 * fmean(getattr(outcome, part) for outcome in outcomes):.0f} %"
            for part in ("utilisation", "goodput", "rescale", "overhead")
        ),
        *(f"{fmean(getattr(outcome, count) for outcome in outcomes):g}" for count in ("trials", "runs", "resizes")),
    )
