"""Sweeps over recorded learning curves, in virtual time."""

from __future__ import annotations

from io import StringIO
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_log import Budget, Choice, JobSpec, SweepSpec, Uniform
from penstock_simulator.sweep_simulation import FILLINGS, BadCurves, LearningCurves, TrialModel, play, read
from sweeps import examples

LR = Uniform(low=0.001, high=1.0, log=True)
CSV = "lr,width,unit_s,1,9\n0.01,64,2.0,0.5,0.9\n0.1,64,1.0,0.4,\n0.1,128,4.0,0.6,0.8\n"


def sweep(search: str = "halving", **fields: Any) -> SweepSpec:
    job = JobSpec(name="t", command=("true",))
    base = {"name": "s", "job": job, "space": {"lr": LR}, "metric": "acc", "budget": Budget(least=1, most=27)}
    return SweepSpec(**{**base, "search": search, "trials": 27, **fields})


def curves(count: int = 40, spread: float = 0.5, seed: int = 0) -> LearningCurves:
    rng = np.random.default_rng(seed)
    lrs = 10 ** rng.uniform(-3, 0, count)
    top = 1 - (np.log10(lrs) + 1.5) ** 2 / 4
    budgets = np.array([1.0, 3.0, 9.0, 27.0])
    return LearningCurves(
        points=[{"lr": repr(float(lr))} for lr in lrs],
        unit_s=rng.lognormal(3.0, spread, count),
        budgets=budgets,
        values=top[:, None] * (1 - 0.5 / budgets),
    )


MODEL = TrialModel(gpus=8, overhead_s=5.0)


@pytest.mark.parametrize("search", ["halving", "hyperband", "pbt"])
def test_a_search_that_waits_for_whole_groups_tries_the_same_whoever_gets_the_devices(search):
    spec = sweep(search, trials=6 if search == "pbt" else 27)
    found = {name: play(spec, curves(), MODEL, filling) for name, filling in FILLINGS.items()}
    assert len({(outcome.trials, outcome.runs, outcome.best) for outcome in found.values()}) == 1
    assert found["one"].resizes == found["fixed"].resizes == found["water-dynamic"].resizes == 0
    assert found["water"].resizes > 0


def test_water_filling_is_much_shorter_than_one_trial_a_device_where_few_trials_are_left():
    one, water = (play(sweep(), curves(), MODEL, FILLINGS[name]) for name in ("one", "water"))
    assert one.makespan_s / water.makespan_s > 1.3
    assert water.utilisation > one.utilisation


def test_where_scaling_out_slows_a_trial_down_none_is_spread():
    steep = msgspec.structs.replace(MODEL, beta=3.0)
    few = sweep("random", trials=3, budget=None)
    spans = {name: play(few, curves(), steep, FILLINGS[name]).makespan_s for name in ("one", "spread", "water")}
    assert spans["spread"] == spans["water"] == spans["one"]


def test_spreading_helps_where_few_are_left_and_packing_where_many_wait():
    few, many = sweep("random", trials=3, budget=None), sweep("random", trials=80, budget=None)
    free = msgspec.structs.replace(MODEL, alpha=1.1, packing_c=3)
    spans = {
        (n, t): play(s, curves(), free, FILLINGS[n]).makespan_s for n in FILLINGS for t, s in enumerate((few, many))
    }
    assert spans["water", 0] < spans["water-inter", 0]
    assert spans["water", 1] < spans["water-intra", 1]


@given(
    name=st.sampled_from(list(FILLINGS)),
    search=st.sampled_from(["halving", "hyperband", "asha", "random", "pbt"]),
    gpus=st.integers(1, 12),
    overhead_s=st.sampled_from([0.0, 7.0, 500.0]),
    c=st.integers(1, 4),
)
@settings(max_examples=examples(40))
def test_no_device_does_more_than_it_can_and_nothing_is_left_undone(name, search, gpus, overhead_s, c):
    spec = sweep(search, trials=9, budget=Budget(least=1, most=9) if search != "random" else None)
    model = TrialModel(gpus=gpus, overhead_s=overhead_s, packing_c=c, alpha=1.0, beta=1.0)
    recorded = curves()
    outcome = play(spec, recorded, model, FILLINGS[name])
    assert 0 < outcome.utilisation <= 1 + 1e-9
    assert 0 <= outcome.goodput <= 1 + 1e-9
    assert outcome.trials >= 9
    least_s = 9 * recorded.unit_s.min() * (1 if spec.budget else 27) / gpus
    assert outcome.makespan_s >= least_s * (1 - 1e-9)


def test_the_time_to_the_target_is_that_of_the_first_run_that_reaches_it():
    spec = sweep("random", trials=4, budget=None, seed=2)
    alone = TrialModel(gpus=1)
    first = play(msgspec.structs.replace(spec, trials=1), curves(), alone, FILLINGS["one"])
    easy, hard = (msgspec.structs.replace(spec, target=target) for target in (-9.0, 9.0))
    assert play(easy, curves(), alone, FILLINGS["one"]).target_s == first.makespan_s
    assert play(hard, curves(), alone, FILLINGS["one"]).target_s is None


def test_a_trial_alone_on_one_device_takes_its_recorded_time():
    recorded = read(StringIO(CSV), "x.csv", sweep())
    spec = sweep("grid", space={"lr": Choice(values=(0.01,))}, budget=None, trials=0)
    outcome = play(spec, recorded, TrialModel(gpus=1, overhead_s=3.0), FILLINGS["one"])
    assert outcome.makespan_s == 3.0 + 9 * 2.0
    assert outcome.goodput == pytest.approx(18 / 21)
    assert outcome.best == 0.9


@pytest.mark.parametrize("name", list(FILLINGS))
@pytest.mark.parametrize("overhead_s", [0.0, 30.0])
def test_all_that_was_held_is_accounted_for(name, overhead_s):
    recorded = curves()
    recorded.values[3:9] = np.nan
    outcome = play(sweep(), recorded, TrialModel(gpus=4, overhead_s=overhead_s), FILLINGS[name])
    parts = (outcome.goodput, outcome.stopped, outcome.failed, outcome.rescale, outcome.overhead)
    assert sum(parts) == pytest.approx(1.0)
    assert outcome.failed > 0
    assert (outcome.rescale > 1e-9) == (outcome.resizes > 0 and overhead_s > 0)


def test_curves_are_read_with_points_paces_and_values_and_gaps_are_divergence():
    recorded = read(StringIO(CSV), "x.csv", sweep())
    assert recorded.unit_s.tolist() == [2.0, 1.0, 4.0]
    assert recorded.value(0, 5) == pytest.approx(0.7)
    assert recorded.value(1, 9) is None
    spec = sweep(space={"lr": LR, "width": Choice(values=(64, 128))})
    both = read(StringIO(CSV), "x.csv", spec)
    assert [both.nearest(spec, {"lr": lr, "width": w}) for lr, w in ((0.09, 64), (0.2, 128), (0.011, 64))] == [1, 2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.csv has no column lr, unit_s; expected one for each dimension"),
        ("lr,unit_s\n0.1,1\n", "x.csv has no column that is a number; expected one for each budget"),
        ("lr,unit_s,9\n0.1,fast,0.5\n", "x.csv has a cell that is no number .*'fast'"),
        ("lr,unit_s,9\nlow,1,0.5\n", "x.csv has a cell that is no number .*'low'"),
        ("lr,unit_s,9\n0,1,0.5\n", "x.csv has a lr out of range; expected numbers above 0, as its scale is log"),
        ("lr,unit_s,9\n0.1,0,0.5\n", "x.csv has a unit_s that is not above 0; expected seconds for one unit"),
        ("lr,unit_s,9,3\n0.1,1,0.5,0.4\n", "x.csv has budgets that do not ascend; expected their columns from the"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_what_it_lacks(text, message):
    with pytest.raises(BadCurves, match=message):
        read(StringIO(text), "x.csv", sweep())
