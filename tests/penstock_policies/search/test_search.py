from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import Budget, Choice, Dimension, Integers, JobSpec, SweepSpec, Uniform
from penstock_policies.search import BadSpace, check, points, size

LR = Uniform(low=1e-4, high=1.0, log=True)
WIDTH = Integers(low=8, high=64)
ACT = Choice(values=("relu", "tanh"))


def sweep(space: dict[str, Dimension] | None = None, **more: Any) -> SweepSpec:
    job = JobSpec(name="train", command=("python", "train.py"))
    space = {"lr": LR, "width": WIDTH, "act": ACT} if space is None else space
    return SweepSpec(**{"name": "s", "job": job, "space": space, "metric": "acc", "trials": 10, **more})


def drawn(spec: SweepSpec, seed: int = 0) -> list[dict[str, Any]]:
    check(spec)
    whole = spec.search == "grid"
    return points(spec, 0, size(spec) if whole else spec.trials, np.random.default_rng(seed), whole=whole)


@given(trials=st.integers(1, 50), seed=st.integers(0, 2**32))
def test_random_points_lie_in_the_space_and_follow_the_seed(trials, seed):
    spec = sweep(trials=trials)
    found = drawn(spec, seed)
    assert len(found) == trials
    assert found == drawn(spec, seed)
    for point in found:
        assert LR.low <= point["lr"] <= LR.high
        assert point["width"] in range(WIDTH.low, WIDTH.high + 1)
        assert point["act"] in ACT.values


def test_the_order_in_which_dimensions_are_written_makes_no_difference():
    assert drawn(sweep({"a": LR, "b": WIDTH})) == drawn(sweep({"b": WIDTH, "a": LR}))


def test_values_are_plain_numbers_that_json_knows():
    point = drawn(sweep())[0]
    assert [type(point[name]) for name in ("act", "lr", "width")] == [str, float, int]


def test_a_logarithmic_dimension_is_even_in_its_logarithm():
    values = [point["lr"] for point in drawn(sweep({"lr": LR}, trials=2000))]
    assert 0.45 < np.mean(np.array(values) < 1e-2) < 0.55


def test_a_grid_walks_the_whole_product_once():
    spec = sweep({"act": ACT, "width": Integers(low=1, high=3)}, search="grid", trials=0)
    found = drawn(spec)
    assert len(found) == size(spec) == 6
    assert {(point["act"], point["width"]) for point in found} == {(a, w) for a in ACT.values for w in (1, 2, 3)}


def test_a_grid_can_be_cut_short():
    spec = sweep({"n": Integers(low=-(2**63), high=2**63 - 1)}, search="grid", trials=2)
    assert drawn(spec) == [{"n": -(2**63)}, {"n": -(2**63) + 1}]


@given(start=st.integers(0, 12), count=st.integers(0, 12))
def test_a_grid_in_pieces_is_the_grid_in_one(start, count):
    spec = sweep({"act": ACT, "width": Integers(low=1, high=5)}, search="grid", trials=0)
    piece = points(spec, start, count, np.random.default_rng(0), whole=True)
    assert piece == drawn(spec)[start : start + count]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (sweep({}), "space has no dimension; expected at least one"),
        (sweep({"lr": Uniform(low=1.0, high=1.0)}), r"space\.lr: low 1\.0 is not below high 1\.0; expected low < high"),
        (sweep({"n": Integers(low=3, high=2)}), r"space\.n: low 3 is not below high 2"),
        (sweep({"n": Integers(low=0, high=2**63)}), r"space\.n is beyond 64 bits; expected whole numbers of 64 bits"),
        (
            sweep({"lr": Uniform(low=0.0, high=1.0, log=True)}),
            r"space\.lr is on a logarithmic scale from 0\.0; expected",
        ),
        (sweep({"lr": Uniform(low=float("-inf"), high=1.0)}), r"space\.lr is not finite; expected finite low and high"),
        (sweep({"lr": Uniform(low=float("nan"), high=1.0)}), r"space\.lr is not finite"),
        (sweep({"lr": Uniform(low=-1.7e308, high=1.7e308)}), r"space\.lr is too wide"),
        (sweep({"lr": LR}, search="grid"), r"space\.lr is continuous and search is 'grid'; expected a choice or int"),
        (sweep({"a": Choice(values=())}), r"space\.a is without values; expected at least one"),
        (sweep({"a": Choice(values=("x", -(2**63) - 1))}), r"space\.a is beyond 64 bits"),
        (sweep(seed=2**63), "seed is beyond 64 bits; expected whole numbers of 64 bits"),
        (sweep(trials=0), "trials is 0; expected 1 or more for search = 'random'"),
        (sweep({"n": Integers(low=0, high=2**40)}, search="grid", trials=0), "the grid has 1099511627777 points"),
        *(
            (sweep(search=search, trials=0, budget=Budget(least=1, most=10**9, eta=2)), r"budget: .* trials; expected")
            for search in ("halving", "hyperband", "bohb")
        ),
    ],
)
def test_a_space_that_makes_no_sense_is_refused_by_name(spec, message):
    with pytest.raises(BadSpace, match=message):
        check(spec)
