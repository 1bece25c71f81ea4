"""A replay that can start: log read, arguments checked, window and nodes known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import typer

from penstock.cli import whole_log
from penstock.cli.comparing import Wanted
from penstock.cli.errors import bad_input
from penstock.cli.patience import Patience
from penstock.cli.planning import told
from penstock.cli.session import call
from penstock.cli.times import clock, moment
from penstock_sim.cluster import Nodes
from penstock_sim.history import History, Reading, of_deliveries
from penstock_sim.replay import CONFIGURED, AutoscalerSettings, Replay
from penstock_sim.replay import replay as run_again
from penstock_sim.replaying import fleet, notes
from penstock_sim.traces.history import facts
from penstock_sim.traces.source import Source
from penstock_sim.virtual import lines
from penstock_sim.virtual.policies import POLICIES, choose

_DATED_S: Final = 1e8
"""A log whose clock has gone this far tells the time of day; a simulation's begins at 1."""


@dataclass(frozen=True)
class Asked:
    """What was typed; see the options of ``penstock replay``."""

    policies: tuple[str, ...]
    log: Path | None = None
    from_: str | None = None
    to: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None
    cluster: str = ""
    without: tuple[str, ...] = ()
    recorded: str = CONFIGURED
    seed: int = 0

    def words(self) -> Iterator[str]:
        """Yield the arguments that ask for this again."""
        given = {"--log": self.log, "--from": self.from_, "--to": self.to, "--config": self.config}
        for option, value in {**given, "--cluster": self.cluster, "--seed": self.seed}.items():
            if value:
                yield from (option, str(value))
        if self.recorded != CONFIGURED:
            yield from ("--recorded", self.recorded)
        for policy in self.policies:
            yield from ("--policy", policy)
        for name in self.without:
            yield from ("--without", name)
        for name, value in self.settings.items():
            yield from ("--set", f"{name}={value}")

    @property
    def described(self) -> dict[str, str]:
        """What was set otherwise than by default, in words."""
        file = self.config.name if self.config is not None else None
        given = {"from": self.from_, "to": self.to, "config": file, "seed": str(self.seed)}
        return {**{name: text for name, text in given.items() if text}, **self.settings}

    @property
    def nodes(self) -> str:
        """The nodes of the replay, in words."""
        less = f" without {', '.join(self.without)}" if self.without else ""
        return f"its own nodes{f' {self.cluster}' if self.cluster else ''}{less}"


@dataclass(frozen=True)
class Plan:
    """A replay that can start."""

    asked: Asked
    history: History
    from_s: float
    to_s: float
    added: Nodes | None
    configured: Mapping[str, object]
    autoscaler: AutoscalerSettings

    @property
    def is_as_recorded(self) -> bool:
        """Whether nothing is asked for that the cluster did not have."""
        return not self.asked.settings and not self.asked.without and self.added is None

    def as_recorded(self) -> Plan:
        """Return the plan without what the cluster did not have."""
        return replace(self, asked=replace(self.asked, settings={}, without=()), added=None)

    def run(self, policy: str, patience: Patience, wanted: Wanted) -> Replay:
        """Run the log again under one policy."""
        progress = patience.watch(policy, len(self.history.replayable()))
        progress(0)
        with told():
            return run_again(
                self.history,
                policy,
                added=self.added,
                without=self.asked.without,
                from_s=self.from_s,
                to_s=self.to_s,
                settings=self.settings(policy),
                autoscaler=self.autoscaler,
                timeline=wanted.out is not None,
                spells=wanted.gantt or wanted.out is not None,
                progress=progress,
            )

    def settings(self, policy: str) -> Mapping[str, object]:
        """Return what ranker and matcher are told: the file's, but for what makes the policy, and what was typed."""
        own = POLICIES[policy].settings
        return {**{name: value for name, value in self.configured.items() if name not in own}, **self.asked.settings}


def plan(ctx: typer.Context, asked: Asked) -> Plan:
    """Read and check everything; whatever makes no sense ends with a message."""
    configured, autoscaler = _configured(asked.config) if asked.config is not None else ({}, AutoscalerSettings())
    with told():
        for policy in (*asked.policies, asked.recorded):
            choose(policy, {**configured, **asked.settings})
    history = _history(ctx, asked.log)
    where = str(asked.log) if asked.log is not None else "the log"
    if not history.replayable():
        begins = "; ".join(["", *notes.of_log(history)])
        bad_input(f"no job of {where} ever ran; expected a log with at least one run that began{begins}")
    if not history.joined:
        begins = "; ".join(["", *notes.of_log(history)])
        bad_input(f"no node joined in {where}; expected a log from its beginning{begins}")
    from_s, to_s = _window(asked, history)
    with told():
        fleet.check_nodes(asked.without, history)
        added = fleet.parse(asked.cluster, history) if asked.cluster else None
    return Plan(asked, history, from_s, to_s, added, configured, autoscaler)


def _configured(path: Path) -> tuple[dict[str, object], AutoscalerSettings]:
    """Return the settings of ranker and matcher in a settings file, and those of the autoscaler."""
    try:
        tables_ = msgspec.toml.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        bad_input(f"--config {path} cannot be read: {error.strerror}; name the services' settings file")
    except msgspec.MsgspecError as error:
        bad_input(f"--config {path}: {error}; expected TOML with tables such as [ranker] and [matcher]")
    found: dict[str, dict[str, object]] = {}
    for name in ("ranker", "matcher", "autoscaler"):
        table = tables_.get(name, {})
        if not isinstance(table, dict):
            bad_input(f"--config {path}: {name} is no table; expected [{name}] with settings")
        found[name] = table
    try:
        autoscaler = msgspec.convert(found["autoscaler"], AutoscalerSettings)
    except msgspec.MsgspecError as error:
        bad_input(f"--config {path}: autoscaler: {error}; see docs/autoscaling.md for its settings")
    return found["ranker"] | found["matcher"], autoscaler


def _history(ctx: typer.Context, path: Path | None) -> History:
    if path is None:
        reading = Reading()
        call(ctx, lambda client: whole_log.read(client, reading.add))
        return reading.history()
    with Source(path).text() as text:
        try:
            return of_deliveries(lines.decode(facts(text)))
        except (ValueError, msgspec.MsgspecError) as error:
            bad_input(f"{path}: {error}")


def _window(asked: Asked, history: History) -> tuple[float, float]:
    """Return the window of submissions; an empty one ends with a message."""
    from_s = _time(asked.from_, "--from", history, asked) if asked.from_ else -float("inf")
    to_s = _time(asked.to, "--to", history, asked) if asked.to else float("inf")
    if from_s >= to_s and asked.to:
        bad_input(
            f"--from {asked.from_} ({_when(from_s)}) is not before --to {asked.to} ({_when(to_s)}); "
            "expected the earlier time first"
        )
    submitted_s = [job.submitted_s for job in history.replayable()]
    if not any(from_s <= at_s < to_s for at_s in submitted_s):
        bad_input(
            f"no job that ran was submitted in this window; the {len(submitted_s):,} of the log were, from "
            f"{_when(submitted_s[0])} to {_when(submitted_s[-1])}: give a window that overlaps"
        )
    return from_s, to_s


def _time(text: str, option: str, history: History, asked: Asked) -> float:
    """Return a time on the log's clock; of a log in a file, spans ago count from its end."""
    found = moment(text, history.last_s if asked.log is not None else None, option)
    match found:
        case int():
            return history.time_of(found)
        case str():
            return datetime.fromisoformat(found).timestamp()
        case _:
            return float(found or 0.0)


def _when(at_s: float) -> str:
    if at_s in {float("inf"), -float("inf")}:
        return "the log's end" if at_s > 0 else "the log's beginning"
    return clock(at_s) if at_s > _DATED_S else f"{at_s:.1f}"
