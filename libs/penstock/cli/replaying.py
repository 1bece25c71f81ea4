"""`penstock replay` from what was asked to what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

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
from penstock_sim.replaying.score import Score, score
from penstock_sim.report.addition import Addition
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import Picture
from penstock_sim.traces.source import Source

__all__ = ["CONFIGURED", "Asked", "Wanted", "replay"]


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
    if found:
        _present(planned, found, wanted)
    if patience.over:
        tell("stopped by Ctrl-C" + ("; what is shown are the policies so far" if found else " before there was any"))
        raise typer.Exit(Exit.INTERRUPTED)


def _present(planned: Plan, found: Mapping[str, Replay], wanted: Wanted) -> None:
    asked, first = planned.asked, next(iter(found.values()))
    name = Source(asked.log).name if asked.log is not None else "cluster"
    replayed = {policy: without_ends(one.replayed, one.censored) for policy, one in found.items()}
    scores = {
        policy: score(one.measured, one.replayed, left_s=one.left_s, names=one.names, seed=asked.seed)
        for policy, one in found.items()
    }
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
            *notes.of_replay(first),
            *notes.of_scores(scores, asked.seed),
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
    )
    comparing.present(
        comparison,
        wanted,
        "Replay",
        Addition(
            document,
            lines=list(_lines(scores, wide=wanted.output == "wide")),
            sections=section.sections(scores, span),
            pictures=lambda: _pictures(scores),
        ),
    )


def _pictures(scores: Mapping[str, Score]) -> Iterator[Picture]:
    from penstock_sim.replaying import plot  # it needs matplotlib, which may not be there

    return plot.draw(scores)


def _lines(scores: Mapping[str, Score], *, wide: bool) -> Iterator[str]:
    width = None if wide else render.terminal_width()
    for at, (policy, one) in enumerate(scores.items()):
        yield from [""] if at else []
        yield from render.wrapped([section.finding(policy, one, span)])
        if one.all.jobs:
            yield from render.table(tables.CHANGES, tables.changes(one, span, None if wide else 10), width=width)
        if one.everybody.censored:
            yield from render.wrapped([tables.everybody(one.everybody, span)])
        for what, jobs in (("gain", one.gained), ("lose", one.lost)):
            if jobs:
                yield f"{what} most:"
                yield from render.table(tables.JOBS, tables.jobs(jobs, span), width=width)
