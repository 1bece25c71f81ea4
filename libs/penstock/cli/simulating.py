"""`penstock sim` from what was asked to what is shown."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from typing import Final, NamedTuple

import typer

from penstock.cli import comparing, render
from penstock.cli.asking import Asked
from penstock.cli.choosing import sized
from penstock.cli.comparing import Wanted
from penstock.cli.errors import Exit, tell
from penstock.cli.patience import Patience
from penstock.cli.planning import Plan, plan
from penstock.cli.times import span
from penstock_policies.kernels import Kernels
from penstock_sim.outcome import Outcome
from penstock_sim.report import seeds
from penstock_sim.report.addition import Addition
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.seeds import SeedComparison

__all__ = ["Asked", "Wanted", "simulate"]

_LOOK_EVERY_S: Final = 0.2


class Ran(NamedTuple):
    """What became of one policy under one seed."""

    policy: str
    seed: int
    outcome: Outcome


def simulate(asked: Asked, wanted: Wanted) -> None:
    """Simulate every policy, and show and keep what came out; Ctrl-C leaves the results so far."""
    wanted.check()
    planned = plan(asked, timeline=wanted.out is not None, spells=wanted.gantt)
    compile_kernels(planned, says=sys.stderr is not None and sys.stderr.isatty())
    with Patience() as patience:
        found = list(_one_by_one(planned, patience) if asked.processes == 1 else _at_once(planned, patience))
    if found:
        _present(planned, found, wanted, over=patience.over)
    if patience.over:
        tell(
            "stopped by Ctrl-C" + ("; what is shown are the results so far" if found else " before there was a result")
        )
        raise typer.Exit(Exit.INTERRUPTED)


def compile_kernels(planned: Plan, *, says: bool) -> None:
    """Have what is compiled ready before anything is timed; where that takes long, ``says`` so."""
    from penstock_policies.levels import compiled as matching
    from penstock_policies.levels import warming
    from penstock_sim.counted.engine import warm
    from penstock_sim.counted.kernels import compiled as counting

    found: list[tuple[Kernels, Callable[[], None]]] = []
    if planned.engine == "counted" or sized(planned.asked):
        found.append((counting.KERNELS, warm))
    if planned.engine == "deciders":
        found.append((matching.KERNELS, warming.compile_kernels))
    for kernels, compile_all in found:
        if not kernels.are_kept():
            if says:
                tell("compiling the simulator, once on this machine: about 40 s")
            kernels.keep_all(compile_all)


def _present(planned: Plan, found: Sequence[Ran], wanted: Wanted, *, over: bool) -> None:
    stopped = ["stopped by Ctrl-C: these are the results so far"] if over else []
    comparison = Comparison(
        trace=planned.trace,
        cluster=planned.asked.cluster,
        outcomes=[ran.outcome for ran in found if ran.seed == planned.seeds[0]],
        settings=planned.described,
        command=["penstock", "sim", *planned.asked.words(), *wanted.words()],
        versions=comparing.versions(),
        notes=[*planned.notes, *stopped],
        window_s=planned.asked.window_s or math.inf,
    )
    if len(planned.seeds) == 1:
        comparing.present(comparison, wanted, "Simulation")
        return
    several = over_seeds(comparison, found)
    lines = render.table(seeds.headers(several), seeds.rows(several, span))
    addition = Addition(several.seeds_document, lines, [seeds.section(several, span)])
    comparing.present(several, wanted, "Simulation", addition)


def over_seeds(comparison: Comparison, found: Sequence[Ran]) -> SeedComparison:
    """Return the comparison with the means over the seeds."""
    policies = dict.fromkeys(ran.policy for ran in found)
    by_seed = {policy: {ran.seed: ran.outcome for ran in found if ran.policy == policy} for policy in policies}
    note = f"means over {max(map(len, by_seed.values()))} seeds; +- is the standard deviation between them"
    return SeedComparison(
        **{**vars(comparison), "notes": [*comparison.notes, note]},
        by_seed=by_seed,
    )


def _one_by_one(planned: Plan, patience: Patience) -> Iterator[Ran]:
    """Run seed by seed, so that what Ctrl-C leaves compares all policies."""
    runs = [(policy, seed) for seed in planned.seeds for policy in planned.asked.policies]
    for at, (policy, seed) in enumerate(runs):
        if patience.over:
            return
        what = policy if len(planned.seeds) == 1 else f"{policy}, seed {seed}"
        label = what if len(runs) == 1 else f"{what} ({at + 1} of {len(runs)})"
        told = patience.watch(label, len(planned.trace))
        told(0)
        yield Ran(policy, seed, planned.run(policy, seed, told))


def _at_once(planned: Plan, patience: Patience) -> list[Ran]:
    """Run policies and seeds in processes of their own; return what they found in the order in which it was asked."""
    runs = [(policy, seed) for seed in planned.seeds for policy in planned.asked.policies]
    context = get_context("spawn")
    stop = context.Event()
    found: dict[tuple[str, int], Outcome] = {}
    with ProcessPoolExecutor(
        min(planned.asked.processes, len(runs)), mp_context=context, initializer=_heed, initargs=(stop,)
    ) as pool:
        with patience.deaf():  # so are processes that are started now: they are told by the event alone
            running = {pool.submit(_run, planned, policy, seed): (policy, seed) for policy, seed in runs}
        told, waiting = patience.steps("simulations", len(runs)), set(running)
        while waiting:
            done, waiting = wait(waiting, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            found.update({running[one]: outcome for one in done if (outcome := one.result()) is not None})
            if not told(len(found)):
                stop.set()
                waiting = {one for one in waiting if not one.cancel()}
    return [Ran(policy, seed, found[policy, seed]) for policy, seed in runs if (policy, seed) in found]


_stops: list[Event] = []
"""In a process of its own: what tells it to end with the results so far."""


def _heed(stop: Event) -> None:
    _stops.append(stop)


def _run(planned: Plan, policy: str, seed: int) -> Outcome | None:
    """Simulate in a process of its own; return None where it has been stopped before it began."""
    stop = _stops[0]
    return None if stop.is_set() else planned.run(policy, seed, lambda _ended: not stop.is_set())
