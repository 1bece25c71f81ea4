from __future__ import annotations

import pytest
from search_cases import budget, play, sweep

from penstock_log import Choice
from penstock_policies.search import planned

GRID = {"lr": Choice(values=(0.1, 0.01)), "momentum": Choice(values=(0.5, 0.9))}


@pytest.mark.parametrize(
    "spec",
    [
        sweep("random", trials=7),
        sweep("grid", space=GRID),
        sweep("cmaes", trials=5),
        sweep("halving", budget=budget()),
        sweep("halving", budget=budget(), trials=10),
        sweep("hyperband", budget=budget()),
        sweep("hyperband", budget=budget(), trials=27),
        sweep("bohb", budget=budget(), trials=11),
        sweep("pbt", budget=budget(least=3), trials=5),
    ],
    ids=lambda spec: f"{spec.search}-{spec.trials}",
)
def test_a_sweep_does_what_was_planned_if_nothing_fails(spec):
    past, expected = play(spec), planned(spec)
    done = {number: run.budget for number, run in enumerate(past.runs)}
    work = sum(budget - done.get(past.runs[i].origin, 0) for i, budget in done.items())
    assert (past.trials, len(past.runs)) >= (expected.trials, expected.runs)
    assert len(past.runs) == expected.runs
    if spec.budget is not None:
        assert work == expected.work


@pytest.mark.parametrize("search", ["asha", "bohb-async"])
def test_what_an_asynchronous_search_will_do_turns_out_on_the_way(search):
    assert planned(sweep(search, trials=9, budget=budget())) is None
