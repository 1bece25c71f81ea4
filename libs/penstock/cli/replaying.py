"""`penstock replay` from what was asked to what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import typer

from penstock.cli import comparing, render
from penstock.cli.comparing import Wanted
from penstock.cli.errors import Exit, tell
from penstock.cli.patience import Patience
from penstock.cli.replay_plan import Asked, Plan, plan
from penstock.cli.times import span
from penstock_sim.replay import CONFIGURED, Replay
from penstock_sim.replaying import notes, section, tables
from penstock_sim.replaying.document import Document, unknown
from penstock_sim.replaying.rows import without_ends
from penstock_sim.replaying.score import Check, Score, check, score, without_intervals
from penstock_sim.report.addition import Addition
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import Picture
from penstock_sim.traces.source import Source

__all__ = ["CONFIGURED", "Asked", "Wanted", "replay"]

_INTERRUPTED: Final = (
    "no verdict: Ctrl-C came before the replay of what was recorded, so nobody knows how far this one is off"
)


def replay(ctx: typer.Context, asked: Asked, wanted: Wanted) -> None:
    """Run the log again under each policy, and show and keep what came out; Ctrl-C leaves the results so far."""
    wanted.check()
    planned = plan(ctx, asked)
    found: dict[str, Replay] = {}
    with Patience() as patience:
        for policy in asked.policies:
            one = planned.run(policy, patience, wanted)
            if patience.over:
                break
            found[policy] = one
        as_recorded = _as_recorded(planned, found, patience)
    if found:
        _present(planned, found, as_recorded, wanted)
    if patience.over:
        tell("stopped by Ctrl-C" + ("; what is shown are the policies so far" if found else " before there was any"))
        raise typer.Exit(Exit.INTERRUPTED)


def _as_recorded(planned: Plan, found: Mapping[str, Replay], patience: Patience) -> Replay | None:
    """Return the replay of the policy that was recorded, with its settings and nodes; None where it is interrupted."""
    recorded = planned.asked.recorded
    if planned.is_as_recorded and recorded in found:
        return found[recorded]
    if patience.over:
        return None
    one = planned.as_recorded().run(recorded, patience, Wanted())
    return None if patience.over else one


def _present(planned: Plan, found: Mapping[str, Replay], as_recorded: Replay | None, wanted: Wanted) -> None:
    asked, first = planned.asked, next(iter(found.values()))
    name = Source(asked.log).name if asked.log is not None else "cluster"
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
        versions=comparing.versions(),
        notes=[
            *notes.of_log(planned.history),
            *notes.of_sharing(planned.history),
            *notes.of_sizes(planned.history),
            *notes.of_trials(planned.history),
            *notes.of_replay(first),
            *notes.of_scores(scores, asked.seed, checked),
            *([section.off(checked, span)] if checked is not None else [_INTERRUPTED]),
        ],
        tells_unfinished=False,
    )
    document = Document(
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
    comparing.present(
        comparison,
        wanted,
        "Replay",
        Addition(
            document,
            lines=list(_lines(scores, checked, wide=wanted.output == "wide")),
            sections=section.sections(scores, span, checked),
            pictures=lambda: _pictures(scores),
        ),
    )


def _score(one: Replay, seed: int) -> Score:
    return score(one.measured, one.replayed, left_s=one.left_s, names=one.names, seed=seed)


def _pictures(scores: Mapping[str, Score]) -> Iterator[Picture]:
    from penstock_sim.replaying import plot  # it needs matplotlib, which may not be there

    return plot.draw(scores)


def _lines(scores: Mapping[str, Score], checked: Check | None, *, wide: bool) -> Iterator[str]:
    width = None if wide else render.terminal_width()
    for at, (policy, one) in enumerate(scores.items()):
        yield from [""] if at else []
        yield from render.wrapped([section.finding(policy, one, span, checked)])
        if one.all.jobs:
            verdict = checked is not None and checked.holds
            rows = tables.changes(one, span, None if wide else 10, verdict=verdict)
            yield from render.table(tables.CHANGES, rows, width=width)
        if one.everybody.censored:
            yield from render.wrapped([tables.everybody(one.everybody, span)])
        for what, jobs in (("gain", one.gained), ("lose", one.lost)):
            if jobs:
                yield f"{what} most:"
                yield from render.table(tables.JOBS, tables.jobs(jobs, span), width=width)
