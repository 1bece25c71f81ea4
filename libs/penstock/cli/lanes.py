"""Commands about lanes: what turns cost on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import lanes_estimate, render
from penstock.cli.session import AnswerOut

if TYPE_CHECKING:
    from penstock.measuring import Costs

lanes_app = typer.Typer(help="Processes that take turns on a device.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    lanes_app.command()(bench)
    lanes_estimate.register(lanes_app)
    app.add_typer(lanes_app, name="lanes")


@lanes_app.callback()
def lanes() -> None:
    """Processes that take turns on a device."""


def bench(
    iterations: Annotated[int, typer.Option(min=100, help="Of each of two processes that hand over.")] = 2_000,
    output: AnswerOut = "text",
) -> None:
    """Measure on this machine, with processes of its own, what turns cost; needs no server. About 10 s."""
    if not sys.platform.startswith("linux"):
        render.say(f"lanes need Linux; this is {sys.platform}")
        raise typer.Exit(1)
    from penstock.measuring import measure

    costs = measure(iterations)
    if output == "json":
        render.show_json(costs)
    else:
        render.show_table(("WHAT", "MEASURED", "AIM", "RATIO TO A PIPE"), _rows(costs))


def _rows(costs: Costs) -> list[tuple[str, str, str, str]]:
    pipe_us = costs.pipe_us.median
    return [
        _row("hand-over, turns of 0.3 ms, median", costs.handover_us.median, "30 us", pipe_us),
        _row("hand-over, turns of 0.3 ms, p99", costs.handover_us.p99, "300 us", pipe_us),
        _row("hand-over, turns of 1.5 ms, median", costs.turn_handover_us.median, "30 us", pipe_us),
        _row("hand-over, turns of 1.5 ms, p99", costs.turn_handover_us.p99, "300 us", pipe_us),
        _row("bare futex after 0.3 ms, median", costs.futex_us.median, "-", pipe_us),
        _row("bare futex after 0.3 ms, p99", costs.futex_us.p99, "-", pipe_us),
        _row("bare futex after 1.5 ms, median", costs.turn_futex_us.median, "-", pipe_us),
        _row("bare futex after 1.5 ms, p99", costs.turn_futex_us.p99, "-", pipe_us),
        _row("boundary, uncontended", costs.uncontended_us.median, "1 us", pipe_us),
        _row("pipe, a byte one way", pipe_us, "-", pipe_us),
        ("lane of one, of iterations of 10 ms", f"{costs.overhead_at_10ms:.3%}", "1 %", "-"),
        _killed("holder killed, median", costs.killed_ms.median),
        _killed("holder killed, most", costs.killed_ms.most),
        _killed("holder of 200 MiB killed, median", costs.killed_large_ms.median),
        _killed("holder of 200 MiB killed, most", costs.killed_large_ms.most),
    ]


def _killed(what: str, ms: float) -> tuple[str, str, str, str]:
    return what, f"{ms:.2f} ms", "10 ms", "-"


def _row(what: str, us: float, aim: str, pipe_us: float) -> tuple[str, str, str, str]:
    return what, f"{us:.2f} us", aim, f"{us / pipe_us:.2f}"
