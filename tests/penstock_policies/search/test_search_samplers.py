from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from search_cases import LR, budget, hill, play, sweep

from penstock_log import Choice, Integers, SweepSpec
from penstock_policies.search import BadSpace, RunHistory, WantedRun, next_runs, space
from penstock_policies.search.space import sampler

optuna = pytest.importorskip("optuna", reason="Optuna's searches are not checked: pip install 'penstock[optuna]'")

from penstock_policies.search import optuna_bridge  # noqa: E402 - needs Optuna

MIXED = {"lr": LR, "layers": Integers(low=1, high=4), "act": Choice(values=(True, 1, 1.0, "x"))}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("optuna").setLevel(logging.WARNING)


def best(search: str, seed: int, **fields: Any) -> float:
    past = play(sweep(search, trials=40, seed=seed, **fields), lambda params, _: hill(params, 100), devices=1)
    return max(run.value for run in past.runs if run.value is not None)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["tpe", "cmaes"])
def test_a_search_with_a_model_does_better_than_chance(search):
    assert np.median([best(search, seed) for seed in range(2)]) > np.median([best("random", s) for s in range(15)])


@pytest.mark.parametrize("name", ["random", "tpe", "model", "cmaes"])
def test_points_lie_in_the_space_and_have_its_types(name):
    spec = sweep("tpe", trials=30, space=MIXED)
    past = RunHistory()
    for number in range(14):
        past.open(WantedRun(trial=number, params=sampler("random")(spec, past, 1)[0]))
        past.end(number, float(number))
    for point in sampler(name)(spec, past, 6):
        assert LR.low <= point["lr"] <= LR.high
        assert point["layers"] in (1, 2, 3, 4)
        assert (type(point["act"]), point["act"]) in {(bool, True), (int, 1), (float, 1.0), (str, "x")}


def test_cma_es_worked_out_again_for_each_question_is_optunas_own():
    spec = sweep("cmaes", trials=20, seed=3)
    past = play(spec, lambda params, _: hill(params, 100), devices=1)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.CmaEsSampler(seed=3))
    for run in past.runs:
        trial = study.ask(optuna_bridge.distributions(spec))
        assert trial.params == run.params
        study.tell(trial, hill(trial.params, 100))


def test_points_asked_for_together_differ():
    past = play(sweep("tpe", trials=16, concurrency=8))
    assert len({run.params["lr"] for run in past.runs}) == 16


def test_the_kth_random_trial_of_a_seed_is_the_same_in_every_search():
    first = play(sweep("random", trials=9, seed=7))
    second = play(sweep("hyperband", budget=budget(), seed=7))
    assert [run.params for run in first.runs] == [run.params for run in second.runs if run.rung == 0][:9]


def test_a_model_learns_from_the_largest_budget_that_tells_enough():
    spec = sweep("bohb", budget=budget(most=81), trials=200, seed=1)
    past = RunHistory()

    def add(count: int, run_budget: int, centre: float) -> None:
        for _ in range(count):
            lr = float(10 ** np.random.default_rng(len(past.runs)).normal(centre, 0.3))
            params: dict[str, Any] = {"lr": min(max(lr, LR.low), LR.high), "momentum": 0.9}
            past.open(WantedRun(trial=past.trials, params=params, budget=run_budget))
            past.end(len(past.runs) - 1, -abs(float(np.log10(lr)) - centre))

    add(20, run_budget=1, centre=-1.0)
    add(3, run_budget=9, centre=-3.0)  # too few
    few = [point["lr"] for point in sampler("model")(spec, past, 12)]
    add(20, run_budget=9, centre=-3.0)
    many = [point["lr"] for point in sampler("model")(spec, past, 12)]
    assert np.median(many) < 1e-2 < np.median(few)


class Corner:
    """A third library: always the same corner of the space."""

    def __call__(self, spec: SweepSpec, past: RunHistory, count: int) -> list[dict[str, Any]]:
        return [{"lr": LR.low, "momentum": 0.0}] * min(count, spec.trials - past.trials)


def test_a_third_library_is_one_function_with_an_entry_point(monkeypatch):
    class Entry:
        name = "corner"

        def load(self) -> Corner:
            return Corner()

    monkeypatch.setattr(space, "entry_points", lambda name="corner", **_: [Entry()] if name == "corner" else [])
    space.sampler.cache_clear()
    try:
        past = play(sweep("corner", trials=3))
        with pytest.raises(BadSpace, match="expected one of cmaes, corner, grid"):
            sampler("corners")
    finally:
        space.sampler.cache_clear()
    assert [run.params["lr"] for run in past.runs] == [LR.low] * 3


@pytest.fixture
def proposing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let the sampler ``random`` propose this one point."""

    def propose(point: Any) -> None:
        monkeypatch.setattr(space, "sampler", lambda _name: lambda _spec, _past, _count: [point])

    return propose


def test_what_a_library_proposes_becomes_plain_values_of_the_spaces_own_types(proposing):
    proposing({"lr": np.float64(0.5), "layers": np.int64(2), "act": np.str_("x")})
    (wanted,) = next_runs(sweep("random", trials=1, space=MIXED), RunHistory(), 1)
    assert wanted.params == {"act": "x", "layers": 2, "lr": 0.5}
    assert [type(value) for value in wanted.params.values()] == [str, int, float]


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"lr": 0.5}, "the sampler gave lr; expected a value for each of act, layers, lr"),
        ({"lr": 9.0, "layers": 1, "act": "x"}, r"gave lr = 9\.0; expected a number from 0\.0001 to 1\.0"),
        ({"lr": float("nan"), "layers": 1, "act": "x"}, "gave lr = nan; expected a number"),
        ({"lr": 0.5, "layers": 1.5, "act": "x"}, r"gave layers = 1\.5; expected a whole number from 1 to 4"),
        ({"lr": 0.5, "layers": 1, "act": "y"}, r"gave act = 'y'; expected one of True, 1, 1\.0, x"),
        (None, "sampler 'random' raised AttributeError: "),
    ],
)
def test_a_point_that_is_not_in_the_space_is_the_sweeps_trouble_alone(proposing, monkeypatch, point, message):
    proposing(point)
    if point is None:
        monkeypatch.setattr(space, "sampler", lambda _name: lambda spec, _past, _count: spec.gone)
    with pytest.raises(BadSpace, match=message):
        next_runs(sweep("random", trials=1, space=MIXED), RunHistory(), 1)


def test_a_sampler_that_learns_is_shown_what_was_tried_whatever_the_search():
    assert play(sweep("random", sampler="tpe", trials=30)) == play(sweep("tpe", trials=30))


def test_a_library_that_is_not_installed_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(space, "find_spec", lambda _: None)
    space.sampler.cache_clear()
    with pytest.raises(BadSpace, match=r"'cmaes' needs optuna; .* pip install 'penstock\[optuna\]'"):
        sampler("cmaes")


@pytest.mark.parametrize("search", ["tpe", "cmaes", "bohb"])
def test_a_study_made_again_from_the_log_asks_the_same(search):
    spec = sweep(search, trials=25, budget=budget() if search == "bohb" else None, seed=3)
    past = play(msgspec.structs.replace(spec, trials=20))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(past), type=RunHistory)
    assert next_runs(spec, past, 4) == next_runs(spec, again, 4) != []
