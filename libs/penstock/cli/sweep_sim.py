"""`penstock sweep sim`: a sweep over recorded learning curves, under several ways of filling devices."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock.cli import render
from penstock.cli.errors import bad_input
from penstock.cli.session import Out
from penstock.cli.times import span

if TYPE_CHECKING:
    from penstock_events import SweepSpec
    from penstock_sim.sweeps import Curves, Outcome

_COLUMNS: Final = ("TARGET", "BEST", "USED", "GOODPUT", "MOVING", "STARTING", "TRIALS", "RUNS", "MOVED")


def sim(
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
    from penstock import specfile
    from penstock.cli.typed import words
    from penstock_sim.sweeps import FILLINGS, Model, play

    typed = {"search": search or None, "trials": trials, "seed": seed, "target": target}
    overrides = {key: value for key, value in typed.items() if value is not None}
    spec = specfile.sweep(specfile.read(file, sys.stdin.read), overrides)
    recorded = _curves(curves, spec)
    recorded = msgspec.structs.replace(recorded, unit_s=recorded.unit_s * slower)
    model = Model(gpus=gpus, max_gpus_d=max_gpus, packing_c=packing, alpha=alpha, beta=beta, overhead_s=overhead_s)
    names = list(dict.fromkeys(words(filling or []))) or list(FILLINGS)
    if unknown := [name for name in names if name not in FILLINGS]:
        bad_input(f"--filling: {unknown[0]!r} is not known; expected some of {', '.join(FILLINGS)}")
    sweeps = [msgspec.structs.replace(spec, seed=spec.seed + i) for i in range(seeds)]
    _show({name: [play(one, recorded, model, FILLINGS[name]) for one in sweeps] for name in names}, output)


def _curves(path: Path, spec: SweepSpec) -> Curves:
    from penstock_sim.sweeps import BadCurves, read

    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return read(lines, str(path), spec)
    except (OSError, UnicodeDecodeError, BadCurves) as error:
        bad_input(f"--curves: {error}")


def _show(played: dict[str, list[Outcome]], output: str) -> None:
    """Show the means over the seeds, and each makespan over that of the same seed under the first way."""
    if output == "json":
        found = {name: [msgspec.to_builtins(outcome) for outcome in outcomes] for name, outcomes in played.items()}
        render.show_json({name: all_[0] if len(all_) == 1 else all_ for name, all_ in found.items()})
        return
    first = next(iter(played))
    headers = ("FILLING", "MAKESPAN", f"VS {first.upper()}", "FROM..TO", *_COLUMNS)
    rows = [(name, *_row(outcomes, played[first])) for name, outcomes in played.items()]
    render.show_table(headers, rows, wide=output == "wide")


def _row(outcomes: list[Outcome], against: list[Outcome]) -> tuple[str, ...]:
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
