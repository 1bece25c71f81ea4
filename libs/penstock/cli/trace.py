"""``penstock trace``: look at workloads, convert, thin, make up, and write one's own history as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli import render
from penstock.cli.errors import bad_input, tell
from penstock.cli.session import call

if TYPE_CHECKING:
    from penstock_sim.trace import Trace

trace_app = typer.Typer(help="Workloads: look at them, convert, sample, make up, export.", no_args_is_help=True)

In = Annotated[Path, typer.Argument(metavar="TRACE", help="A file, compressed (.gz, .xz, .bz2) or not.")]
To = Annotated[Path, typer.Argument(metavar="OUT", help="Where to; compressed if it ends in .gz, .xz or .bz2.")]
From = Annotated[
    str,
    typer.Option("--from", "--format", help="Format of TRACE; auto: told by its content. docs/traces.md lists them."),
]
Form = Annotated[
    str, typer.Option("--to", help="penstock, csv or tiresias; auto: csv for .csv, else penstock (JSON lines).")
]
Lenient = Annotated[bool, typer.Option("--lenient", help="Drop broken rows and count them.")]
Beside = Annotated[
    Path | None,
    typer.Option("--with", help="A second file: Gavel's throughputs, Alibaba's table of jobs or of instances."),
]
Kind = Annotated[str, typer.Option("--kind", help="Device kind whose speed turns Gavel's steps into seconds.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed draws the same jobs.")]
Output = Annotated[Literal["text", "json"], typer.Option("-o", "--output", help="text or json.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (info, convert, sample, generate, export):
        trace_app.command()(command)
    app.add_typer(trace_app, name="trace")


def info(
    trace: In,
    *,
    format_: From = "auto",
    gpus: Annotated[
        list[int] | None, typer.Option("--gpus", min=1, help="Tell the load on so many devices; repeatable.")
    ] = None,
    beside: Beside = None,
    kind: Kind = "v100",
    lenient: Lenient = False,
    output: Output = "text",
) -> None:
    """Tell what a trace is like: jobs, rows dropped and why, devices, lengths, load, users."""
    from penstock.cli import tracing
    from penstock_sim.traces.about import about

    found = about(_read(trace, format_, beside, kind, lenient=lenient), gpus or ())
    if output == "json":
        render.show_json(found)
    else:
        for line in tracing.about_lines(found):
            render.say(line)


def convert(
    trace: In,
    out: To,
    *,
    format_: From = "auto",
    to: Form = "auto",
    beside: Beside = None,
    kind: Kind = "v100",
    lenient: Lenient = False,
) -> None:
    """Write a trace in another format."""
    _write(_read(trace, format_, beside, kind, lenient=lenient), out, to)


def sample(
    trace: In,
    out: To,
    *,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Draw so many jobs.")] = None,
    window: Annotated[
        str, typer.Option("--window", help="First only jobs submitted within, such as 2d-9d after the first.")
    ] = "",
    load: Annotated[
        float | None, typer.Option("--scale-load", help="Then divide the gaps between submissions by this.")
    ] = None,
    seed: Seed = 0,
    format_: From = "auto",
    to: Form = "auto",
    beside: Beside = None,
    kind: Kind = "v100",
    lenient: Lenient = False,
) -> None:
    """Write a part of a trace: a window of time, jobs drawn evenly, another load."""
    import numpy as np

    from penstock.cli import tracing
    from penstock_sim.traces import selection

    found = _read(trace, format_, beside, kind, lenient=lenient)
    if window:
        found = selection.window(found, *tracing.window_s(window))
    if jobs is not None:
        found = selection.sample(found, jobs, np.random.default_rng(seed))
    if load is not None:
        found = selection.scale_load(found, load)
    _write(found, out, to)


def generate(
    recipe: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What to make up; see docs/traces.md.")],
    out: To,
    *,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the file's.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Instead of the file's.")] = None,
    speedups: Annotated[
        Path | None, typer.Option("--speedups", help="Write the models' speeds here, for `penstock sim --speedups`.")
    ] = None,
    to: Form = "auto",
) -> None:
    """Make up a workload: arrivals, devices, heavy-tailed device time, models and users, from a seed."""
    import msgspec

    from penstock_sim.traces import recipe as recipes
    from penstock_sim.traces.generate import generate as made_up
    from penstock_sim.traces.generate import speedups as speeds_of

    wanted = recipes.read(recipe)
    given = {name: value for name, value in (("seed", seed), ("jobs", jobs)) if value is not None}
    wanted = msgspec.structs.replace(wanted, **given)
    if speedups is not None:
        if not speeds_of(wanted):
            bad_input(f"{recipe} has no models with speeds; give [[models]] with speeds, or leave out --speedups")
        speedups.write_bytes(msgspec.json.format(msgspec.json.encode(speeds_of(wanted)), indent=2) + b"\n")
    _write(made_up(wanted), out, to)


def export(
    ctx: typer.Context,
    out: To,
    *,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Read saved events (`penstock events -f -o json`) instead of the live log."),
    ] = None,
    anonymize: Annotated[
        bool, typer.Option("--anonymize/--no-anonymize", help="Put keyed hashes for names, and begin time at 0.")
    ] = True,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help="Key of the hashes: the same file, the same hashes. Else a fresh one."),
    ] = None,
    to: Form = "auto",
) -> None:
    """Write the cluster's own history as a trace: each job with the time that it really ran."""
    from penstock.cli import whole_log
    from penstock_sim.traces.anonymize import anonymized
    from penstock_sim.traces.history import History

    key = _key(key_file)
    if log is not None:
        found = _read(log, "log")
    else:
        history = History("cluster")
        call(ctx, lambda client: whole_log.read(client, history.add))
        found = history.trace()
    _write(anonymized(found, key) if anonymize else found, out, to)


def _key(path: Path | None) -> bytes:
    import secrets

    key = secrets.token_bytes(32) if path is None else path.read_bytes().strip()
    if not 1 <= len(key) <= 64:
        bad_input(f"{path} holds {len(key)} bytes; expected a key of 1 to 64")
    return key


def _read(path: Path, format_: str, beside: Path | None = None, kind: str = "v100", *, lenient: bool = False) -> Trace:
    from penstock_sim import traces

    return traces.read(path, format_, lenient=lenient, beside=beside, kind=kind)


def _write(trace: Trace, out: Path, form: str) -> None:
    from penstock.cli import tracing
    from penstock_sim import traces

    traces.write(trace, out, form)
    tell(f"wrote {out}: {render.count(len(trace), 'job')}{tracing.dropped(trace.dropped)}")
