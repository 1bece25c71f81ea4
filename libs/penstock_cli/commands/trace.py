"""
Commands about traces: ``penstock trace`` shows, converts, thins and generates workloads, and exports the cluster's own.

The functions below the commands are pure: they turn a trace's figures into lines of text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from penstock_cli import render
from penstock_cli.invocation import bad_input, call, tell
from penstock_cli.value_formats import TIME_UNITS, span

if TYPE_CHECKING:
    from penstock_simulator.trace import LargestGroups, Trace, TraceStatistics


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
    from penstock_simulator.trace import about

    found = about(_read(trace, format_, beside, kind, lenient=lenient), gpus or ())
    if not render.as_json(found, output):
        for line in about_lines(found):
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

    from penstock_simulator import trace as trace_parts

    found = _read(trace, format_, beside, kind, lenient=lenient)
    if window:
        found = trace_parts.window(found, *window_s(window))
    if jobs is not None:
        found = trace_parts.sample(found, jobs, np.random.default_rng(seed))
    if load is not None:
        found = trace_parts.scale_load(found, load)
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

    from penstock_simulator.traces import generator
    from penstock_simulator.traces.generator import generate as made_up
    from penstock_simulator.traces.generator import speedups as speeds_of

    wanted = generator.read(recipe)
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
    from penstock_cli import invocation
    from penstock_simulator.trace import anonymized
    from penstock_simulator.traces.log_file import LogTrace

    key = _key(key_file)
    if log is not None:
        found = _read(log, "log")
    else:
        history = LogTrace("cluster")
        call(ctx, lambda client: invocation.read(client, history.add))
        found = history.trace()
    _write(anonymized(found, key) if anonymize else found, out, to)


def _key(path: Path | None) -> bytes:
    import secrets

    key = secrets.token_bytes(32) if path is None else path.read_bytes().strip()
    if not 1 <= len(key) <= 64:
        bad_input(f"{path} holds {len(key)} bytes; expected a key of 1 to 64")
    return key


def _read(path: Path, format_: str, beside: Path | None = None, kind: str = "v100", *, lenient: bool = False) -> Trace:
    from penstock_simulator import traces

    return traces.read(path, format_, lenient=lenient, beside=beside, kind=kind)


def _write(trace: Trace, out: Path, form: str) -> None:
    from penstock_simulator import traces

    traces.write(trace, out, form)
    tell(f"wrote {out}: {render.count(len(trace), 'job')}{dropped(trace.dropped)}")


_WINDOW: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)-(?:(\d+(?:\.\d+)?)([smhd]?))?")


def window_s(text: str) -> tuple[float, float]:
    """
    Return the two ends of a window, in seconds.

    Examples
    --------
    >>> window_s("1d-36h"), window_s("0-90"), window_s("2h-")
    ((86400.0, 129600.0), (0.0, 90.0), (7200.0, inf))
    """
    found = _WINDOW.fullmatch(text.strip())
    if found is None:
        bad_input(f"--window {text!r} is no window; expected two spans after the first submission, such as 2d-9d")
    from_s = float(found[1]) * TIME_UNITS[found[2] or "s"]
    to_s = float(found[3]) * TIME_UNITS[found[4] or "s"] if found[3] else math.inf
    if to_s <= from_s:
        bad_input(f"--window {text!r} is empty; expected the second span to be longer than the first")
    return from_s, to_s


def dropped(reasons: Mapping[str, int]) -> str:
    """
    Return what to say about rows that are no jobs, behind the count of jobs; nothing if there are none.

    Examples
    --------
    >>> dropped({"zero GPUs": 3, "no end time": 1}), dropped({})
    (' (dropped: 3 zero GPUs, 1 no end time)', '')
    """
    return f" (dropped: {_reasons(reasons)})" if reasons else ""


def about_lines(about: TraceStatistics) -> list[str]:
    """Return a trace's figures, a line each, and a table of its jobs by number of devices."""
    pairs = [
        ("name", about.name),
        ("rows", str(about.rows)),
        ("jobs", str(about.jobs)),
        ("dropped", _reasons(about.dropped) or "none"),
        ("span", f"{span(about.span_s)}, {_figure(about.jobs_per_h)} jobs an hour"),
        ("device time", f"{_figure(about.gpu_h)} GPU-h: {_figure(about.busy_gpus)} GPUs busy on average"),
        *((f"load on {gpus}", f"{load:.3f}") for gpus, load in about.load.items()),
        ("length", _quantiles(about.duration_s)),
        ("GPU-time", _quantiles(about.gpu_time_s)),
        ("fractions", f"{render.count(about.fractional, 'job')} of less than one GPU" if about.fractional else ""),
        ("states", _groups(about.states)),
        ("vcs", _groups(about.vcs)),
        ("users", _groups(about.users)),
        ("models", _groups(about.models)),
        ("kinds", _groups(about.kinds)),
    ]
    return [*render.labelled(pairs), "", *_sizes(about)]


def _figure(value: float) -> str:
    """Return three figures or more, never in powers of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _sizes(about: TraceStatistics) -> list[str]:
    jobs, gpu_h = max(about.jobs, 1), about.gpu_h or 1.0
    rows = [
        (str(s.gpus), str(s.jobs), f"{s.jobs / jobs:.1%}", f"{s.gpu_h:.1f}", f"{s.gpu_h / gpu_h:.1%}")
        for s in about.gpus
    ]
    return render.table(("GPUS", "JOBS", "OF-JOBS", "GPU-H", "OF-GPU-H"), rows)


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _quantiles(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {span(value)}" for name, value in values.items())


def _groups(groups: LargestGroups) -> str:
    if not groups.count:
        return ""
    named = ", ".join(f"{group.name or '(none)'} {group.jobs}" for group in groups.largest)
    more = ", …" if groups.count > len(groups.largest) else ""
    return f"{groups.count}, by device time, with jobs: {named}{more}"
