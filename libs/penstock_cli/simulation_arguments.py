"""Options of the commands that simulate: what was typed of the simulation, and what is to become of the results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from penstock_cli.invocation import CommandOptions, Out, bad_input
from penstock_cli.value_formats import pairs, words
from penstock_simulator import CONFIGURED

Engine = Literal["auto", "counted", "deciders"]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE of the policy, such as thresholds_gpu_s=3250,7200; repeatable."),
]


class SimulationArguments(CommandOptions, frozen=True, dict=True):
    """
    What was typed of ``penstock sim``.

    Examples
    --------
    >>> asked = SimulationArguments(Path("jobs.csv"), cluster="3x4", policies=["fifo,srtf"], settings=["levels=9"])
    >>> " ".join(asked.words())
    'jobs.csv --cluster 3x4 --policy fifo --policy srtf --set levels=9'
    """

    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="A file, compressed (.gz, .xz, .bz2) or not; or a recipe (.toml), made up for each seed.",
        ),
    ]
    cluster: Annotated[
        str, typer.Option("--cluster", help="NODESxGPUS, such as 3x4 or 2x8@fast+4x4@slow, or a TOML file.")
    ]
    policies: Annotated[
        list[str],
        typer.Option("--policy", "-p", help="Repeatable, or with commas; the first is what others are compared with."),
    ]
    format: Annotated[
        str, typer.Option("--format", help="Of TRACE: tiresias, philly, csv, … or auto: told by its content.")
    ] = "auto"
    settings: Settings = None
    placement: Annotated[
        str,
        typer.Option(
            "--placement",
            help="count; best-fit, consolidate, first-fit: the matcher's; yarn, with --compat.",
            show_default="count",
        ),
    ] = ""
    speedups: Annotated[
        Path | None, typer.Option("--speedups", help="TOML or JSON: how fast each model is on each device kind.")
    ] = None
    overhead_s: Annotated[float, typer.Option(min=0, help="Seconds that a run needs before it advances.")] = 0.0
    parked_s: Annotated[
        float | None,
        typer.Option(min=0, help="The same for a run that goes on where it is parked; without: none is parked."),
    ] = None
    seed: Annotated[
        list[int] | None,
        typer.Option("--seed", min=0, help="Of failures, errors and recipes; repeatable: mean and spread over all."),
    ] = None
    seed_count: Annotated[int, typer.Option("--seeds", min=1, help="So many seeds, from --seed on.")] = 1
    compat: Annotated[str, typer.Option(help="Follow a published simulator to the second: tiresias-2019.")] = ""
    gpu_time_samples: Annotated[
        Path | None, typer.Option(help="GPU-seconds, one a line: what 2d-gittins knows of lengths.")
    ] = None
    engine: Annotated[
        Engine,
        typer.Option(
            help="counted: devices only, fast; deciders: the production code; auto: counted where it will do."
        ),
    ] = "auto"
    mtbf_s: Annotated[float, typer.Option(min=0, help="Mean time between failures of a node; 0: none fail.")] = 0.0
    repair_s: Annotated[float, typer.Option(min=0, help="Until a failed node is back.")] = 600.0
    length_error: Annotated[
        float, typer.Option(min=0, help="Spread of declared lengths: sigma of a lognormal factor.")
    ] = 0.0
    quota: Annotated[Path | None, typer.Option(help="TOML: table [gpus] with each virtual cluster's GPUs.")] = None
    borrow: Annotated[
        bool | None,
        typer.Option(
            "--borrow/--no-borrow", help="Whether idle GPUs of other virtual clusters are lent; else as --quota."
        ),
    ] = None
    scaling: Annotated[Path | None, typer.Option(help="TOML or JSON for elastic: model → GPUs → throughput.")] = None
    profiles: Annotated[
        Path | None,
        typer.Option(help="TOML or JSON for elastic: model → times by batch and by GPUs; then batches count."),
    ] = None
    window_s: Annotated[
        float, typer.Option(min=0, help="Count the jobs that end within so long of the first submission.")
    ] = 0.0
    log: Annotated[
        Path | None, typer.Option(help="Write the events that a cluster would have written; one policy only.")
    ] = None
    processes: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Run so many policies at a time.")] = 1

    def __post_init__(self) -> None:
        """Take policies with commas as several, and a number of seeds as these seeds; each counts once."""
        msgspec.structs.force_setattr(self, "policies", list(dict.fromkeys(words(self.policies))))
        msgspec.structs.force_setattr(self, "seed", list(_several(self.seed or (), self.seed_count)))
        msgspec.structs.force_setattr(self, "seed_count", 1)

    @cached_property
    def chosen(self) -> dict[str, str]:
        """The settings of the policies by name."""
        return pairs(self.settings or (), "--set")

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are asked for; none where none is."""
        return tuple(self.seed or ())

    def described(self) -> dict[str, str]:
        """Return what was set otherwise than by default, in words."""
        shown = ("placement", "compat", "overhead_s", "parked_s", "mtbf_s", "length_error", "borrow", "window_s")
        default = self.defaults()
        found = {name: str(getattr(self, name)) for name in shown if getattr(self, name) != default[name]}
        if self.seeds:
            found["seeds" if len(self.seeds) > 1 else "seed"] = ", ".join(map(str, self.seeds))
        files = {name: getattr(self, name) for name in ("speedups", "gpu_time_samples", "quota", "scaling", "profiles")}
        return {**self.chosen, **found, **{name: path.name for name, path in files.items() if path is not None}}


def _several(named: Sequence[int], count: int) -> Sequence[int]:
    """
    Return the seeds that ``--seed`` and ``--seeds`` ask for.

    Examples
    --------
    >>> _several([], 1), _several([7], 1), _several([], 3), _several([7], 3), _several([1, 5, 1], 1)
    ([], [7], range(0, 3), range(7, 10), [1, 5])
    """
    seeds = list(dict.fromkeys(named))
    if count == 1:
        return seeds
    if len(seeds) > 1:
        bad_input(f"--seeds {count} counts from one --seed, and {len(seeds)} are named; leave one of them out")
    first = seeds[0] if seeds else 0
    return range(first, first + count)


class ReplayArguments(CommandOptions, frozen=True, dict=True):
    """What was typed of ``penstock replay``; as recorded is what the services' own settings say."""

    from_: Annotated[
        str | None,
        typer.Option(
            "--from", help="Jobs submitted from then on: a sequence, a span ago (2d), or a time (2026-01-31T09:30:00Z)."
        ),
    ] = None
    to: Annotated[str | None, typer.Option("--to", help="And before then.")] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            help="Repeatable, or with commas; by default `configured`: the services' own settings, once more.",
        ),
    ] = None
    settings: Settings = None
    cluster: Annotated[
        str, typer.Option("--cluster", help="With more: +8xfast, devices of a kind, or +2x4@fast, nodes of so many.")
    ] = ""
    left_out: Annotated[
        list[str] | None, typer.Option("--without", help="Leave out a node; repeatable, or with commas.")
    ] = None
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The services' settings file: the log holds only what was set live."),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option("--log", help="A log in a file, as `events --after 0 -f -o json` or `sim --log` write it."),
    ] = None
    recorded: Annotated[
        str,
        typer.Option(
            "--recorded",
            metavar="POLICY",
            help="The policy under which the log was recorded, where that was another one: of a simulation's log.",
        ),
    ] = CONFIGURED
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the intervals; the same seed, the same result.")] = 0
    progress: Annotated[
        bool, typer.Option("--progress", help="Say on standard error how far it is, for programs: one JSON a line.")
    ] = False

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """The policies, those between commas too, and each but once."""
        return tuple(dict.fromkeys(words(self.policy or ()))) or (CONFIGURED,)

    @cached_property
    def without(self) -> tuple[str, ...]:
        """The nodes that are left out."""
        return tuple(dict.fromkeys(words(self.left_out or ())))

    @cached_property
    def chosen(self) -> dict[str, str]:
        """The settings by name."""
        return pairs(self.settings or (), "--set")

    @property
    def described(self) -> dict[str, str]:
        """What was set otherwise than by default, in words."""
        file = self.config.name if self.config is not None else None
        given = {"from": self.from_, "to": self.to, "config": file, "seed": str(self.seed)}
        return {**{name: text for name, text in given.items() if text}, **self.chosen}

    @property
    def nodes(self) -> str:
        """The nodes of the replay, in words."""
        less = f" without {', '.join(self.without)}" if self.without else ""
        return f"its own nodes{f' {self.cluster}' if self.cluster else ''}{less}"


class ReportOptions(CommandOptions, frozen=True):
    """What becomes of the results: on which output, in which folder, with which chart."""

    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for report.html, plots, and a CSV of the jobs under each policy."),
    ] = None
    gantt: Annotated[bool, typer.Option("--gantt", help="Show who held which GPU when, in letters.")] = False
    output: Out = "table"

    def check(self) -> None:
        """End with a message if the options contradict each other, or the folder is a file."""
        if self.gantt and self.output == "json":
            bad_input("--gantt is for people and -o json for programs; leave one of them out")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            bad_input(f"--out {self.out} is a file; expected a folder, which is made if there is none")
