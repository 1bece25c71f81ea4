"""`penstock sim` from what was asked to what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import typer

from penstock.cli import comparing
from penstock.cli.asking import Asked
from penstock.cli.comparing import Wanted
from penstock.cli.errors import Exit, tell
from penstock.cli.patience import Patience
from penstock.cli.planning import Plan, plan
from penstock_sim.outcome import Outcome
from penstock_sim.report.comparison import Comparison

__all__ = ["Asked", "Wanted", "simulate"]


def simulate(asked: Asked, wanted: Wanted) -> None:
    """Simulate every policy, and show and keep what came out; Ctrl-C leaves the results so far."""
    wanted.check()
    planned = plan(asked, timeline=wanted.out is not None, spells=wanted.gantt)
    with Patience() as patience:
        found = list(_one_by_one(planned, patience) if asked.processes == 1 else _at_once(planned, patience))
    if found:
        stopped = ["stopped by Ctrl-C: these are the results so far"] if patience.over else []
        comparing.present(
            Comparison(
                trace=planned.trace,
                cluster=asked.cluster,
                outcomes=found,
                settings=planned.described,
                command=["penstock", "sim", *asked.words(), *wanted.words()],
                versions=comparing.versions(),
                notes=[*planned.notes, *stopped],
            ),
            wanted,
            "Simulation",
        )
    if patience.over:
        tell(
            "stopped by Ctrl-C" + ("; what is shown are the results so far" if found else " before there was a result")
        )
        raise typer.Exit(Exit.INTERRUPTED)


def _one_by_one(planned: Plan, patience: Patience) -> Iterator[Outcome]:
    policies = planned.asked.policies
    for at, policy in enumerate(policies):
        if patience.over:
            return
        label = policy if len(policies) == 1 else f"{policy} ({at + 1} of {len(policies)})"
        told = patience.watch(label, len(planned.trace))
        told(0)
        yield planned.run(policy, told)


def _at_once(planned: Plan, patience: Patience) -> list[Outcome]:
    """Run policies in processes of their own, which hear Ctrl-C themselves; return what they found, as it was asked."""
    policies = planned.asked.policies
    with ProcessPoolExecutor(min(planned.asked.processes, len(policies)), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_run, planned, policy): policy for policy in policies}
        found = {}
        for done in as_completed(running):
            found[running[done]] = done.result()
            patience.step("policies", len(found), len(policies))
    return [found[policy] for policy in policies]


def _run(planned: Plan, policy: str) -> Outcome:
    with Patience() as patience:
        return planned.run(policy, lambda _ended: not patience.over)
