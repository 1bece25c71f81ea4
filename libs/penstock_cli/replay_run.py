"""
A replay, from the arguments of ``penstock replay`` to what is shown.

:func:`plan` makes a :class:`ReplayPlan`, a replay that can start: the log is read, the arguments are checked, window
and nodes are known. :func:`run_replay` runs it under each policy, and shows and keeps the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import typer

from penstock_cli import invocation, render, simulation_run
from penstock_cli.invocation import Exit, bad_input, call, tell
from penstock_cli.simulation_arguments import ReplayArguments, ReportOptions
from penstock_cli.simulation_plan import explained_values
from penstock_cli.simulation_run import ComputationProgress
from penstock_cli.value_formats import clock, moment, span
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_simulator.engine.policies import SIMULATED_POLICIES, choose
from penstock_simulator.replay import replay as cluster_replay
from penstock_simulator.replay import report
from penstock_simulator.replay.history import ClusterHistory, HistoryFold, of_deliveries
from penstock_simulator.replay.past_outcome import without_ends
from penstock_simulator.replay.replay import Replay
from penstock_simulator.replay.replay import replay as run_again
from penstock_simulator.replay.report import ReplayDocument, unknown
from penstock_simulator.replay.score import ReplayCheck, ReplayScore, check, score, without_intervals
from penstock_simulator.report.picture import Picture, ReportAddition
from penstock_simulator.report.policy_comparison import Comparison
from penstock_simulator.traces import log_file
from penstock_simulator.traces.columns import TraceSource
from penstock_simulator.traces.log_file import facts
from penstock_simulator.virtual_cluster import SimulatedNodes

_INTERRUPTED: Final = (
    "no verdict: Ctrl-C came before the replay of what was recorded, so nobody knows how far this one is off"
)


def run_replay(ctx: typer.Context, asked: ReplayArguments, wanted: ReportOptions) -> None:
    """Run the log again under each policy, and show and keep what came out; Ctrl-C leaves the results so far."""
    wanted.check()
    planned = plan(ctx, asked)
    found: dict[str, Replay] = {}
    with ComputationProgress(for_programs=asked.progress) as progress:
        compares = not (planned.is_as_recorded and planned.asked.recorded in asked.policies)
        for left, policy in zip(reversed(range(len(asked.policies))), asked.policies, strict=True):
            progress.further = left + compares
            one = planned.run(policy, progress, wanted)
            if progress.over:
                break
            found[policy] = one
        as_recorded = _as_recorded(planned, found, progress)
    if found:
        _present(planned, found, as_recorded, wanted)
    if progress.over:
        tell("stopped by Ctrl-C" + ("; what is shown are the policies so far" if found else " before there was any"))
        raise typer.Exit(Exit.INTERRUPTED)


def _as_recorded(planned: ReplayPlan, found: Mapping[str, Replay], progress: ComputationProgress) -> Replay | None:
    """Return the replay of the policy that was recorded, with its settings and nodes; None where it is interrupted."""
    recorded = planned.asked.recorded
    if planned.is_as_recorded and recorded in found:
        return found[recorded]
    if progress.over:
        return None
    progress.further = 0
    one = planned.as_recorded().run(recorded, progress, ReportOptions())
    return None if progress.over else one


def _present(
    planned: ReplayPlan, found: Mapping[str, Replay], as_recorded: Replay | None, wanted: ReportOptions
) -> None:
    asked, first = planned.asked, next(iter(found.values()))
    name = TraceSource(asked.log).name if asked.log is not None else "cluster"
    replayed = {policy: without_ends(one.replayed, one.censored) for policy, one in found.items()}
    checked = check(_score(as_recorded, asked.seed), asked.recorded) if as_recorded is not None else None
    scores = {policy: _score(one, asked.seed) for policy, one in found.items()}
    if checked is None or not checked.holds:
        scores = {policy: without_intervals(one) for policy, one in scores.items()}
    comparison = Comparison(
        trace=replace(first.measured.trace, name=name),
        cluster=asked.nodes,
        outcomes=[first.measured, *replayed.values()],
        settings={"engine": "production deciders under virtual time", **asked.described},
        command=["penstock", "replay", *asked.words(), *wanted.words()],
        versions=simulation_run.versions(),
        notes=[
            *report.of_log(planned.history),
            *report.of_sharing(planned.history),
            *report.of_sizes(planned.history),
            *report.of_trials(planned.history),
            *report.of_replay(first),
            *report.of_scores(scores, asked.seed, checked),
            *([report.off(checked, span)] if checked is not None else [_INTERRUPTED]),
        ],
        tells_unfinished=False,
    )
    document = ReplayDocument(
        log=name,
        cluster=asked.nodes,
        from_s=planned.from_s if planned.from_s > -float("inf") else None,
        to_s=planned.to_s if planned.to_s < float("inf") else None,
        jobs=len(comparison.trace),
        completed=int(first.measured.finished.sum()),
        unknown=unknown(first),
        seed=asked.seed,
        policies=comparison.summaries,
        changes=scores,
        check=checked,
    )
    simulation_run.present(
        comparison,
        wanted,
        "Replay",
        ReportAddition(
            document,
            lines=list(_lines(scores, checked, wide=wanted.output == "wide")),
            sections=report.sections(scores, span, checked),
            pictures=lambda: _pictures(scores),
        ),
    )


def _score(one: Replay, seed: int) -> ReplayScore:
    return score(one.measured, one.replayed, left_s=one.left_s, names=one.names, seed=seed)


def _pictures(scores: Mapping[str, ReplayScore]) -> Iterator[Picture]:
    from penstock_simulator.replay import change_plot  # it needs matplotlib, which may not be there

    return change_plot.draw(scores)


def _lines(scores: Mapping[str, ReplayScore], checked: ReplayCheck | None, *, wide: bool) -> Iterator[str]:
    width = None if wide else render.terminal_width()
    for at, (policy, one) in enumerate(scores.items()):
        yield from [""] if at else []
        yield from render.wrapped([report.finding(policy, one, span, checked)])
        if one.all.jobs:
            verdict = checked is not None and checked.holds
            rows = report.changes(one, span, None if wide else 10, verdict=verdict)
            yield from render.table(report.CHANGES, rows, width=width)
        if one.everybody.censored:
            yield from render.wrapped([report.everybody(one.everybody, span)])
        for what, jobs in (("gain", one.gained), ("lose", one.lost)):
            if jobs:
                yield f"{what} most:"
                yield from render.table(report.JOBS, report.job_rows(jobs, span), width=width)


_DATED_S: Final = 1e8
"""A log whose clock has gone this far tells the time of day; a simulation's begins at 1."""


@dataclass(frozen=True)
class ReplayPlan:
    """A replay that can start."""

    asked: ReplayArguments
    history: ClusterHistory
    from_s: float
    to_s: float
    added: SimulatedNodes | None
    configured: Mapping[str, object]
    autoscaler: SizingSettings

    @property
    def is_as_recorded(self) -> bool:
        """Whether nothing is asked for that the cluster did not have."""
        return not self.asked.chosen and not self.asked.without and self.added is None

    def as_recorded(self) -> ReplayPlan:
        """Return the plan without what the cluster did not have."""
        return replace(self, asked=msgspec.structs.replace(self.asked, settings=None, left_out=None), added=None)

    def run(self, policy: str, progress: ComputationProgress, wanted: ReportOptions) -> Replay:
        """Run the log again under one policy."""
        watched = progress.watch(policy, len(self.history.replayable()))
        watched(0)
        with explained_values():
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
                progress=watched,
            )

    def settings(self, policy: str) -> Mapping[str, object]:
        """Return the settings of ranker and matcher: the file's, but for what makes the policy, and what was typed."""
        own = SIMULATED_POLICIES[policy].settings
        return {**{name: value for name, value in self.configured.items() if name not in own}, **self.asked.chosen}


def plan(ctx: typer.Context, asked: ReplayArguments) -> ReplayPlan:
    """Read and check everything; whatever makes no sense ends with a message."""
    configured, autoscaler = _configured(asked.config) if asked.config is not None else ({}, SizingSettings())
    with explained_values():
        for policy in (*asked.policies, asked.recorded):
            choose(policy, {**configured, **asked.chosen})
    history = _history(ctx, asked.log)
    where = str(asked.log) if asked.log is not None else "the log"
    if not history.replayable():
        begins = "; ".join(["", *report.of_log(history)])
        bad_input(f"no job of {where} ever ran; expected a log with at least one run that began{begins}")
    if not history.joined:
        begins = "; ".join(["", *report.of_log(history)])
        bad_input(f"no node joined in {where}; expected a log from its beginning{begins}")
    from_s, to_s = _window(asked, history)
    with explained_values():
        cluster_replay.check_nodes(asked.without, history)
        added = cluster_replay.parse(asked.cluster, history) if asked.cluster else None
    return ReplayPlan(asked, history, from_s, to_s, added, configured, autoscaler)


def _configured(path: Path) -> tuple[dict[str, object], SizingSettings]:
    """Return the settings of ranker and matcher in a settings file, and those of the autoscaler."""
    try:
        tables_ = msgspec.toml.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        bad_input(f"--config {path} cannot be read: {error.strerror}; name the services' settings file")
    except (ValueError, RecursionError) as error:  # msgspec's errors are among them
        bad_input(f"--config {path}: {error}; expected TOML with tables such as [ranker] and [matcher]")
    found: dict[str, dict[str, object]] = {}
    for name in ("ranker", "matcher", "autoscaler"):
        table = tables_.get(name, {})
        if not isinstance(table, dict):
            bad_input(f"--config {path}: {name} is no table; expected [{name}] with settings")
        found[name] = table
    try:
        autoscaler = msgspec.convert(found["autoscaler"], SizingSettings)
    except msgspec.MsgspecError as error:
        bad_input(f"--config {path}: autoscaler: {error}; see docs/autoscaling.md for its settings")
    return found["ranker"] | found["matcher"], autoscaler


def _history(ctx: typer.Context, path: Path | None) -> ClusterHistory:
    if path is None:
        reading = HistoryFold()
        call(ctx, lambda client: invocation.read(client, reading.add))
        return reading.history()
    with TraceSource(path).text() as text:
        try:
            return of_deliveries(log_file.decode(facts(text)))
        except (ValueError, msgspec.MsgspecError) as error:
            bad_input(f"{path}: {error}")


def _window(asked: ReplayArguments, history: ClusterHistory) -> tuple[float, float]:
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


def _time(text: str, option: str, history: ClusterHistory, asked: ReplayArguments) -> float:
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
