"""
Commands that simulate: ``sim`` and ``sweep sim``.

``penstock sim`` plays a trace on a cluster under one policy or several. ``penstock sweep sim`` plays a sweep over
recorded learning curves, under several ways of filling devices.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock_cli import render
from penstock_cli.invocation import Out, bad_input, flattened
from penstock_cli.simulation_arguments import ReportOptions, SimulationArguments
from penstock_cli.typer_commands import PolicyCommand, typed
from penstock_cli.value_formats import span, words

if TYPE_CHECKING:
    from penstock_log import SweepSpec
    from penstock_simulator.sweep_simulation import LearningCurves, SweepOutcome


SWEEP: Final = "--sweep"


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
        about_sweeps.command()(typed(simulate_sweep))
        command = typer.main.get_command(about_sweeps)
        return command.make_context(f"{info_name} {SWEEP}", words, parent, **extra)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sim", cls=SweepOrTrace)(sim)


@flattened
def sim(asked: SimulationArguments, wanted: ReportOptions) -> None:
    """
    Simulate a trace under one policy or several, or a sweep.

    For example: penstock sim jobs.csv --cluster 3x4 --policy fifo --policy 2d-las --out report

    Or: penstock sim --sweep sweep.toml --curves curves.csv --gpus 16 (as penstock sweep sim does; see its --help)
    """
    from penstock_cli.simulation_run import simulate

    simulate(asked, wanted)


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
