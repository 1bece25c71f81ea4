"""`penstock sweep sim`: a sweep over recorded learning curves, under several ways of filling devices."""

from __future__ import annotations

import sys
from pathlib import Path
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

HEADERS: Final = ("FILLING", "MAKESPAN", "LONGER", "TARGET", "BEST", "USED", "GOODPUT", "TRIALS", "RUNS", "MOVED")


def sim(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Sweep in TOML, YAML or JSON; - for standard input.")],
    *,
    curves: Annotated[Path, typer.Option("--curves", help="CSV: the dimensions, unit_s, and a column a budget.")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Devices, all alike.")] = 16,
    filling: Annotated[
        list[str] | None, typer.Option("--filling", "-f", help="Repeatable, or with commas; all, if left out.")
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
    output: Out = "table",
) -> None:
    """Simulate a sweep over recorded learning curves, under water-filling and what it is compared with."""
    from penstock import specfile
    from penstock.cli.typed import words
    from penstock_sim.sweeps import FILLINGS, Model, play

    typed = {"search": search or None, "trials": trials, "seed": seed}
    overrides = {key: value for key, value in typed.items() if value is not None}
    spec = specfile.sweep(specfile.read(file, sys.stdin.read), overrides)
    recorded = _curves(curves, spec)
    recorded = msgspec.structs.replace(recorded, unit_s=recorded.unit_s * slower)
    model = Model(gpus=gpus, max_gpus_d=max_gpus, packing_c=packing, alpha=alpha, beta=beta, overhead_s=overhead_s)
    names = list(dict.fromkeys(words(filling or []))) or list(FILLINGS)
    if unknown := [name for name in names if name not in FILLINGS]:
        bad_input(f"--filling: {unknown[0]!r} is not known; expected some of {', '.join(FILLINGS)}")
    _show({name: play(spec, recorded, model, FILLINGS[name], target) for name in names}, output)


def _curves(path: Path, spec: SweepSpec) -> Curves:
    from penstock_sim.sweeps import BadCurves, read

    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return read(lines, str(path), spec)
    except (OSError, UnicodeDecodeError, BadCurves) as error:
        bad_input(f"--curves: {error}")


def _show(outcomes: dict[str, Outcome], output: str) -> None:
    if output == "json":
        render.show_json({name: msgspec.to_builtins(outcome) for name, outcome in outcomes.items()})
        return
    first = min(outcome.makespan_s for outcome in outcomes.values())
    rows = [
        (
            name,
            span(outcome.makespan_s),
            f"{100 * (outcome.makespan_s / first - 1):.0f} %" if first else "-",
            span(outcome.target_s) if outcome.target_s is not None else "-",
            render.number(outcome.best),
            f"{100 * outcome.utilisation:.0f} %",
            f"{100 * outcome.goodput:.0f} %",
            str(outcome.trials),
            str(outcome.runs),
            str(outcome.resizes),
        )
        for name, outcome in outcomes.items()
    ]
    render.show_table(HEADERS, rows, wide=output == "wide")
