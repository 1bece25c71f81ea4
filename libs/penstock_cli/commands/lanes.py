"""
Commands about lanes: ``lanes bench`` and ``lanes estimate``.

``bench`` measures what turns cost on this machine. ``estimate`` says what a script's job will need of a device's
memory, before it runs anywhere.
"""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_cli import render, value_formats
from penstock_cli.invocation import AnswerOut, Exit, Failure, Out

if TYPE_CHECKING:
    from penstock_cli.local.lane_bench import LaneCosts
    from penstock_log import MemoryNeed


lanes_app = typer.Typer(help="Processes that take turns on a device.", no_args_is_help=True)


def register_estimate(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(estimate)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    lanes_app.command()(bench)
    register_estimate(lanes_app)
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
    from penstock_cli.local.lane_bench import measure

    costs = measure(iterations)
    if not render.as_json(costs, output):
        render.show_table(("WHAT", "MEASURED", "AIM", "RATIO TO A PIPE"), _bench_rows(costs))


def _bench_rows(costs: LaneCosts) -> list[tuple[str, str, str, str]]:
    pipe_us = costs.pipe_us.median
    spreads = (
        ("hand-over, turns of 0.3 ms", costs.handover_us, ("30 us", "300 us")),
        ("hand-over, turns of 1.5 ms", costs.turn_handover_us, ("30 us", "300 us")),
        ("bare futex after 0.3 ms", costs.futex_us, ("-", "-")),
        ("bare futex after 1.5 ms", costs.turn_futex_us, ("-", "-")),
    )
    found = [
        (f"{what}, {part}", f"{us:.2f} us", aim, f"{us / pipe_us:.2f}")
        for what, spread, aims in spreads
        for part, us, aim in zip(("median", "p99"), (spread.median, spread.p99), aims, strict=True)
    ]
    boundary_us = costs.uncontended_us.median
    found += [
        ("boundary, uncontended", f"{boundary_us:.2f} us", "1 us", f"{boundary_us / pipe_us:.2f}"),
        ("pipe, a byte one way", f"{pipe_us:.2f} us", "-", "1.00"),
        ("lane of one, of iterations of 10 ms", f"{costs.overhead_at_10ms:.3%}", "1 %", "-"),
    ]
    for what, killed in (("holder killed", costs.killed_ms), ("holder of 200 MiB killed", costs.killed_large_ms)):
        found += [(f"{what}, {part}", f"{getattr(killed, part):.2f} ms", "10 ms", "-") for part in ("median", "most")]
    return found


Target = Annotated[
    str, typer.Argument(metavar="SCRIPT.py:FUNCTION", help="The function builds the job, and returns one iteration.")
]
Framework = Annotated[
    str, typer.Option("--framework", help="F, which no model tells: such as 500MiB; default: of torch on this host.")
]


def estimate(target: Target, framework: Framework = "", output: Out = "table") -> None:
    """Tell a torch job's memory before it runs: its iterations are tried on tensors that have no content."""
    from penstock.estimate import EstimateError, insist_on_torch, need_of

    framework_bytes = value_formats.size(framework) if framework else None
    try:
        insist_on_torch()
        need = need_of(loaded(target), framework_bytes=framework_bytes)
    except EstimateError as error:
        raise Failure(str(error)) from error
    if render.as_json(need, output):
        return
    render.show_table(("", "MEMORY", "WHAT"), _estimate_rows(need))
    render.say()
    render.say("in a job file:  memory = " + _toml(need))


def _estimate_rows(need: MemoryNeed) -> list[tuple[str, str, str]]:
    return [
        (
            "P",
            render.size(need.persistent_bytes),
            "kept between iterations: model, optimizer, gradients unless dropped",
        ),
        ("F", render.size(need.framework_bytes), "of the framework itself; on a GPU it is the node's to measure"),
        ("E", render.size(need.ephemeral_bytes), "the most that an iteration takes beside, and gives back"),
        ("all", render.size(need.alone_bytes), "to run at all"),
    ]


def _toml(need: MemoryNeed) -> str:
    fields = ((name, getattr(need, name)) for name in need.__struct_fields__)
    return "{ " + ", ".join(f"{name} = {size}" for name, size in fields) + " }"


def loaded(target: str) -> Any:
    """
    Return a script's function; its neighbours can be imported, as when the script is run.

    Raises
    ------
    Failure
        If there is no such script, it cannot be loaded, or has no such function.
    """
    file, _, name = target.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier():
        raise Failure(f"{target!r} names no function; expected such as train.py:make", Exit.USAGE)
    if not path.is_file():
        raise Failure(f"there is no file {path}; check the path", Exit.USAGE)
    spec = util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Failure(f"{path} is no Python script; expected such as train.py:make", Exit.USAGE)
    module = util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Failure(f"{path} cannot be loaded: {type(error).__name__}: {error}; does it run by itself?") from error
    if not callable(found := getattr(module, name, None)):
        functions = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise Failure(f"{path} has no function {name}; it has {', '.join(functions) or 'none'}", Exit.USAGE)
    return found
