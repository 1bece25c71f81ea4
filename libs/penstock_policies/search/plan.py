"""How much a sweep has before it, where its search says so."""

from __future__ import annotations

import msgspec

from penstock_events.spec import SweepSpec
from penstock_policies.search.drivers import brackets, budget_of, limit, one_bracket
from penstock_policies.search.rungs import Rung


class Plan(msgspec.Struct, frozen=True):
    """
    What a sweep is going to do, if nothing fails.

    Attributes
    ----------
    trials, runs : int
        Points, and runs of them.
    work : int
        Units of budget, each trained once; runs, where the sweep has no budget.
    """

    trials: int
    runs: int
    work: int


def planned(spec: SweepSpec) -> Plan | None:
    """
    Return what a sweep is going to do; None where that turns out on the way, as in asynchronous searches.

    Examples
    --------
    >>> from penstock_events import Budget, JobSpec
    >>> job = JobSpec(name="j", command=("x",))
    >>> budget = Budget(least=1, most=9)
    >>> planned(SweepSpec(name="s", job=job, space={}, metric="m", search="hyperband", budget=budget))
    Plan(trials=17, runs=22, work=69)
    """
    if spec.pruner or spec.search in {"asha", "bohb-async"}:
        return None
    if spec.search in {"hyperband", "bohb"}:
        return _climbing(brackets(spec))
    if spec.search == "halving":
        return _climbing([one_bracket(spec)])
    if spec.search == "pbt":
        generations = budget_of(spec).most // budget_of(spec).least
        return Plan(spec.trials, spec.trials * generations, spec.trials * budget_of(spec).least * generations)
    trials = limit(spec)
    return Plan(trials, trials, trials)


def _climbing(brackets: list[list[Rung]]) -> Plan:
    """Add up rungs, of which each goes on where the one below ended."""
    work = 0
    for rungs in brackets:
        below = 0
        for rung in rungs:
            work, below = work + rung.trials * (rung.budget - below), rung.budget
    runs = sum(rung.trials for rungs in brackets for rung in rungs)
    return Plan(sum(rungs[0].trials for rungs in brackets), runs, work)
