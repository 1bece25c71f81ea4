from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_cases import LR, budget, hill, open_runs, play, rungs, sweep

from penstock_log import Choice, Integers
from penstock_log.spec import Budget
from penstock_policies.search import ALGORITHMS, BadSpace, RunHistory, WantedRun, check, drivers, next_runs
from penstock_policies.search.drivers import perturbed
from penstock_policies.search.runs import halving, hyperband
from sweeps import examples

SPECS = {
    "random": sweep("random", trials=7),
    "grid": sweep("grid", space={"lr": Choice(values=(0.1, 0.01)), "momentum": Choice(values=(0.5, 0.9))}),
    "tpe": sweep("tpe", trials=7),
    "cmaes": sweep("cmaes", trials=7),
    "halving": sweep("halving", budget=budget()),
    "hyperband": sweep("hyperband", budget=budget()),
    "asha": sweep("asha", trials=9, budget=budget()),
    "bohb": sweep("bohb", budget=budget()),
    "bohb-async": sweep("bohb-async", trials=9, budget=budget()),
    "pbt": sweep("pbt", trials=5, budget=budget(least=3)),
    "median": sweep("tpe", trials=7, pruner="median", budget=budget()),
}
every_search = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
searches = st.sampled_from(list(SPECS.values()))


# --- numbers of the papers


def test_successive_halving_has_the_published_rungs():
    for case in published.reference("fluid.json")["sha_rungs"]:
        spec = Budget(least=case["init_res"], most=case["max_res"], eta=case["eta"])
        found = halving(case["max_trials"], spec)
        assert [[rung.trials, rung.budget] for rung in found] == case["rungs"], case
        assert sum(rung.trials * rung.budget for rung in found) == case["total_work"]


def test_hyperband_has_the_brackets_of_the_papers_table_1():
    found = [[(rung.trials, rung.budget) for rung in bracket] for bracket in hyperband(Budget(least=1, most=81))]
    assert found == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


# --- what must hold of every search


@pytest.mark.slow
@every_search
def test_every_search_passes_its_own_check_and_comes_to_an_end(spec):
    check(spec)
    past = play(spec)
    assert past.runs
    assert past.running == 0


@given(spec=searches, chance=st.integers(0, 1000), devices=st.integers(1, 8), failing=st.floats(0.0, 1.0))
@settings(max_examples=examples(40))
def test_no_run_is_opened_twice_and_nobody_who_failed_goes_on(spec, chance, devices, failing):
    def objective(params: dict[str, Any], budget: int) -> float | None:
        return hill(params, budget) if (params["lr"] * 1e6) % 1 >= failing else None

    past = play(spec, objective, devices, chance)
    runs = [(run.trial, run.rung) for run in past.runs]
    assert len(set(runs)) == len(runs)
    for run in past.runs:
        if run.origin >= 0:
            origin = past.runs[run.origin]
            assert origin.value is not None
            assert origin.rung == run.rung - 1
            assert origin.budget < run.budget
            assert origin.params == run.params or run.trial != origin.trial
        else:
            assert run.rung == 0


@every_search
def test_a_replica_that_folded_the_same_log_wants_the_same(spec):
    past = RunHistory()
    for _ in range(12):
        open_runs(past, spec)
        running = [i for i, run in enumerate(past.runs) if not run.over]
        if not running:
            return
        last = past.runs[running[-1]]
        past.end(running[-1], hill(last.params, last.budget))
        replica = msgspec.msgpack.decode(msgspec.msgpack.encode(past), type=RunHistory)
        assert next_runs(spec, replica, 4) == next_runs(spec, past, 4)


@every_search
def test_a_group_that_was_opened_in_part_is_completed_and_not_repeated(spec):
    whole = next_runs(spec, RunHistory(), 4)
    past = RunHistory()
    open_runs(past, msgspec.structs.replace(spec), 4)
    assert [run.params for run in past.runs[: len(whole)]] == [one.params for one in whole]
    assert [run.trial for run in past.runs] == list(range(len(past.runs)))


@given(spec=searches, chance=st.integers(0, 1000))
@settings(max_examples=examples(20))
def test_what_is_known_of_each_rung_agrees_with_the_runs(spec, chance):
    past = play(spec, chance=chance)
    for bracket, rung in {(run.bracket, run.rung) for run in past.runs}:
        numbers = [i for i, run in enumerate(past.runs) if (run.bracket, run.rung) == (bracket, rung)]
        assert list(past.level(bracket, rung)) == numbers
        assert past.unfinished(bracket, rung) == past.unfinished(bracket) == 0
    past = RunHistory()
    open_runs(past, spec)
    assert sum(past.unfinished(int(bracket)) for bracket in past.levels) == past.running == len(past.runs)


# --- early stopping


def test_a_rung_waits_for_all_of_the_one_below_and_takes_the_best():
    past = play(sweep("halving", budget=budget()))
    assert rungs(past) == [(9, 1), (3, 3), (1, 9)]
    first = past.ranked(past.level(0, 0), "max")
    assert sorted(past.runs[i].trial for i in first[:3]) == sorted(past.runs[i].trial for i in past.level(0, 1))


def test_the_smallest_loss_wins_where_less_is_better():
    past = play(sweep("halving", budget=budget(), mode="min"), lambda params, budget: -hill(params, budget))
    (last,) = (past.runs[i] for i in past.level(0, 2))
    assert last.value == min(run.value for run in past.runs if run.budget == 9)


def test_a_rung_with_too_few_values_promotes_those_that_there_are():
    past = play(sweep("halving", budget=budget()), lambda params, _: 1.0 if params["lr"] > 0.37 else None)
    valued = sum(run.value is not None for run in past.runs if run.rung == 0)
    assert 0 < valued < 3, "the case asks for fewer values than places"
    assert rungs(past)[1] == (valued, 3)


def test_a_grid_smaller_than_a_bracket_is_halved_as_what_it_is():
    space = {"lr": Choice(values=(0.1, 0.01, 0.001, 0.2)), "momentum": Choice(values=(0.5,))}
    assert rungs(play(sweep("halving", sampler="grid", space=space, budget=budget()))) == [(4, 1), (2, 3), (1, 9)]


@pytest.mark.parametrize(
    "fields", [{"search": "asha"}, {"search": "bohb-async"}, {"search": "grid", "pruner": "median"}]
)
def test_a_grid_that_leaves_the_number_of_trials_open_is_tried_as_a_whole(fields):
    space = {"lr": Choice(values=(0.1, 0.01, 0.001)), "momentum": Choice(values=(0.5, 0.9))}
    spec = sweep(**{"sampler": "grid", "space": space, "budget": budget(), **fields})
    check(spec)
    first = [run.params for run in play(spec).runs if run.rung == 0]
    assert sorted((point["lr"], point["momentum"]) for point in first) == [
        (lr, momentum) for lr in (0.001, 0.01, 0.1) for momentum in (0.5, 0.9)
    ]


def test_a_rung_in_which_everything_failed_ends_its_bracket():
    assert rungs(play(sweep("halving", budget=budget()), lambda *_: None)) == [(9, 1)]


def test_hyperband_opens_all_brackets_at_once_and_bohb_one_after_the_other():
    past = RunHistory()
    open_runs(past, SPECS["hyperband"])
    assert [(run.bracket, run.budget) for run in past.runs] == [(0, 1)] * 9 + [(1, 3)] * 5 + [(2, 9)] * 3
    past = RunHistory()
    open_runs(past, SPECS["bohb"])
    assert {run.bracket for run in past.runs} == {0}


def test_the_number_of_trials_bounds_and_repeats_hyperbands_brackets():
    past = play(sweep("hyperband", budget=budget(), trials=27))
    assert past.trials == 27
    assert [rungs(past, b)[0] for b in range(5)] == [(9, 1), (5, 3), (3, 9), (9, 1), (1, 3)]


def test_asha_promotes_without_waiting_for_a_rung_to_be_full():
    spec = sweep("asha", trials=100, budget=budget())
    past = RunHistory()
    open_runs(past, spec, devices=3)
    for number in range(3):
        past.end(number, hill(past.runs[number].params, 1))
    wanted = next_runs(spec, past, 3)
    assert [(one.rung, one.budget) for one in wanted] == [(1, 3), (0, 1), (0, 1)]
    assert wanted[0].origin == past.ranked(range(3), "max")[0]


@given(devices=st.integers(1, 9), chance=st.integers(0, 100), search=st.sampled_from(["asha", "bohb-async"]))
@settings(max_examples=examples(15))
def test_an_asynchronous_search_never_has_more_open_than_there_is_room(devices, chance, search):
    spec = sweep(search, trials=12, budget=budget(), sampler="random")

    def objective(params: dict[str, Any], budget: int) -> float:
        return hill(params, budget)

    past = play(spec, objective, devices, chance)
    assert past.trials == 12
    assert len([run for run in past.runs if run.rung == 0]) == 12
    assert all(a >= b for a, b in pairwise([trials for trials, _ in rungs(past)]))
    first = RunHistory()
    open_runs(first, spec, devices)
    assert first.running == min(devices, 12)


def test_asynchronous_brackets_get_their_shares():
    past = play(sweep("bohb-async", trials=34, budget=budget(), sampler="random"))
    begun = [len(past.level(b, 0)) for b in range(3)]
    assert begun == [19, 9, 6], "as 9 : 4.5 : 3"


def test_a_generation_replaces_its_worst_by_its_best():
    past = play(SPECS["pbt"])
    assert rungs(past) == [(5, 3), (5, 6), (5, 9)]
    for rung in (1, 2):
        ranked = past.ranked(past.level(0, rung - 1), "max")
        fresh = [
            past.runs[i] for i in past.level(0, rung) if past.runs[i].trial != past.runs[past.runs[i].origin].trial
        ]
        assert [run.origin for run in fresh] == [ranked[0]]
        assert past.runs[ranked[-1]].trial not in {past.runs[i].trial for i in past.level(0, rung)}


def test_members_that_failed_are_replaced_too():
    past = play(SPECS["pbt"], lambda params, budget: hill(params, budget) if params["lr"] < 0.01 else None)
    assert len(past.level(0, 1)) == 5
    assert any(past.runs[i].value is None for i in past.level(0, 0)), "the case asks for failures"


@given(seed=st.integers(0, 1000))
def test_a_perturbed_point_stays_in_the_space(seed):
    spec = sweep("pbt", space={"a": LR, "b": Integers(low=1, high=3), "c": Choice(values=("x", "y"))})
    point = perturbed(spec, {"a": 1.0, "b": 3, "c": "x"}, np.random.default_rng(seed))
    assert LR.low <= point["a"] <= LR.high
    assert point["b"] in (1, 2, 3)
    assert point["c"] in ("x", "y")


def test_a_pruner_stops_what_is_worse_than_the_median():
    past = play(sweep("random", trials=12, pruner="median", budget=budget()), devices=1)
    last = [trials for trials, _ in rungs(past)]
    assert last[0] == 12
    assert 0 < last[-1] < 12


def test_each_run_is_told_to_a_pruner_once_however_long_the_sweep(monkeypatch):
    optuna = pytest.importorskip("optuna")
    told: list[float] = []
    report = optuna.Trial.report
    monkeypatch.setattr(optuna.Trial, "report", lambda *of: (told.append(of[1]), report(*of))[1])
    past = play(sweep("random", trials=20, pruner="median", budget=budget()), devices=3, chance=1)
    last = max(run.after for run in past.runs)  # whoever ended after the last opening is not asked about any more
    assert told[: last - 1] == [run.value for run in sorted(past.runs, key=lambda run: run.ended)][: last - 1]
    assert len(told) <= len(past.runs)


@pytest.mark.parametrize("pruner", ["median", "percentile", "halving"])
def test_a_pruner_that_has_forgotten_everything_judges_as_before(pruner):
    pytest.importorskip("optuna")
    spec = sweep("random", trials=30, pruner=pruner, budget=budget())
    kept = play(spec, devices=3, chance=1)

    def forgetting(params, at):
        drivers._KEPT.clear()
        return hill(params, at)

    assert play(spec, forgetting, devices=3, chance=1) == kept
    assert len(kept.level(0, 2)) < 30, "somebody was stopped"


def test_a_trial_that_went_on_although_it_would_be_stopped_now_is_no_reason_to_judge_nobody():
    pytest.importorskip("optuna")
    spec = sweep("random", trials=20, pruner="median", budget=budget())
    past = play(spec, devices=3, chance=1)
    went_on = {run.origin for run in past.runs}
    number = next(i for i, run in enumerate(past.runs) if run.rung == 0 and i not in went_on)
    stopped = past.runs[number]
    past.open(WantedRun(trial=stopped.trial, params=stopped.params, budget=3, rung=1, origin=number))
    past.end(len(past.runs) - 1, 0.5)
    assert [(one.trial, one.rung) for one in next_runs(spec, past, 3)] == [(stopped.trial, 2)]


def test_the_pruner_halving_lets_about_one_in_eta_go_on():
    pytest.importorskip("optuna")
    past = play(sweep("random", trials=40, pruner="halving", budget=budget()), devices=2, chance=3)
    first, second, third = (trials for trials, _ in rungs(past))
    assert first == 40
    assert 40 / 3 <= second <= 40 * 0.6, "the first ones have nobody to be worse than"
    assert third <= second * 0.6


def test_judging_by_a_pruner_costs_about_the_same_however_many_were_judged(monkeypatch):
    optuna = pytest.importorskip("optuna")
    made: list[object] = []
    create = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **how: (made.append(how), create(**how))[1])
    play(sweep("random", trials=40, pruner="median", budget=budget()), devices=2)
    assert len(made) == 1, "one study for a sweep, not one for each question"


def test_a_batch_is_bounded_on_a_large_cluster():
    assert len(next_runs(sweep("tpe", trials=900), RunHistory(), devices=500)) == 64
    assert len(next_runs(sweep("tpe", trials=900, concurrency=100), RunHistory(), devices=5)) == 100


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"search": "hyperbnd"}, r"search 'hyperbnd' is not known; expected one of random, .*did you mean `hyperband`"),
        ({"sampler": "gp"}, r"sampler 'gp' is not known; expected one of cmaes, grid, model, random, tpe"),
        ({"search": "hyperband"}, r"search = 'hyperband' needs a budget; expected a table \[budget\] with param"),
        ({"pruner": "median"}, r"needs a budget"),
        ({"pruner": "medium", "budget": budget()}, r"pruner 'medium' is not known.*did you mean `median`"),
        ({"search": "asha", "trials": 0, "budget": budget()}, "trials is 0; expected 1 or more for search = 'asha'"),
        ({"search": "pbt", "trials": 1, "budget": budget()}, "trials is 1; expected a population of 2 or more"),
        ({"search": "halving", "budget": budget(least=10)}, "budget.least is 10, above most = 9"),
        (
            {"search": "halving", "budget": Budget(most=9, param="lr")},
            "space.lr is the budget as well; expected it in one of them",
        ),
    ],
)
def test_a_search_that_cannot_be_carried_out_is_refused_by_name(fields, message):
    with pytest.raises(BadSpace, match=message):
        check(sweep(**{"search": "random", "trials": 3, **fields}))


def test_every_search_that_is_offered_is_tested_here():
    assert ALGORITHMS.keys() <= SPECS.keys()
