"""Devices and batch sizes of elastic jobs: against reference values, and against trying everything."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from penstock_policies import elastic
from penstock_policies.elastic import Floats, ThroughputProfile, added, allocate, best_batch, scaling, smallest, table
from sweeps import examples


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return published.reference("elastic.json")["elastic_dp"]


def profile(reference: dict[str, Any], name: str, fixed: int | None = None) -> ThroughputProfile:
    known = reference["profile"][name]
    times = {
        which: {int(at): float(Fraction(time_s)) for at, time_s in known[which].items()}
        for which in ("t_proc_s", "t_comm_s")
    }
    return ThroughputProfile(
        b_min=fixed or known["b_min"],
        b_max=fixed or known["b_max"],
        per_gpu_cap=known["per_gpu_cap"],
        batch_step=known["batch_step"],
        **times,
    )


def row_of(reference: dict[str, Any], name: str, fixed: int | None, k_max: int) -> Floats:
    """A job's scaling; at a fixed batch relative to the best at its smallest width, as the reference counts."""
    free, one = profile(reference, name), profile(reference, name, fixed)
    batches = best_batch(free, 1), best_batch(one, 1)
    if fixed is None or None in batches:
        return scaling(one, k_max)
    return scaling(one, k_max) * float(one.throughput(batches[1], 1)) / float(free.throughput(batches[0], 1))


def test_scaling_and_batches_are_those_of_the_reference(reference: dict[str, Any]) -> None:
    for name, rows in reference["scaling_tables"].items():
        one = profile(reference, name)
        found = scaling(one, max(row["k"] for row in rows))
        for row in rows:
            assert found[row["k"] - 1] == pytest.approx(row["scaling"], abs=1e-6)
            assert best_batch(one, row["k"]) == row["batch"]


def test_allotments_are_those_of_the_reference(reference: dict[str, Any]) -> None:
    for case in reference["cases"]:
        fixed = {**dict.fromkeys(case["jobs"]), **(case.get("fixed_batch") or {})}
        if case["name"].endswith("fixed_max_batch"):  # which only says that it is infeasible
            fixed = {name: reference["profile"][name]["b_max"] for name in case["jobs"]}
        rows = np.array([row_of(reference, name, fixed[name], case["k_max"]) for name in case["jobs"]])
        found = allocate(rows, case["K"])
        if case.get("infeasible"):
            assert found[-1] == 0, case["name"]  # the last one waits
            continue
        assert found.tolist() == [case["alloc"][name]["gpus"] for name in case["jobs"]], case["name"]
        total = sum(row[gpus - 1] for row, gpus in zip(rows, found, strict=True))
        assert total == pytest.approx(float(Fraction(case["total_scaling"])))


def test_who_joins_and_leaves_is_given_what_the_published_autoscaler_gives() -> None:
    body = published.reference("elastic.json")
    one = scaling(profile(body["elastic_dp"], "compute_bound"), 4)
    for tick in body["autoscaler_trace_K4"]:
        wanted = {**tick["running_gpus_batch"], **dict.fromkeys(tick["queued_or_dropped"], (0, 0))}
        found = allocate(np.tile(one, (len(wanted), 1)), 4)
        assert sorted(found.tolist()) == sorted(gpus for gpus, _ in wanted.values())


curves = npst.arrays(
    np.float64,
    npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=4),
    elements=st.one_of(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]), st.floats(0.1, 9.0), st.just(np.nan)),
)


def total(rows: Floats, widths: Any) -> float:
    return float(sum(row[width - 1] for row, width in zip(rows, widths, strict=True) if width))


@settings(max_examples=examples(150))
@given(curves, st.integers(0, 9))
def test_nothing_that_could_be_tried_is_better(rows: Floats, gpus: int) -> None:
    found = allocate(rows, gpus)
    inside = np.flatnonzero(found)
    options = [[w for w in range(1, rows.shape[1] + 1) if not np.isnan(rows[job, w - 1])] for job in inside]
    best = max(total(rows[inside], widths) for widths in product(*options) if sum(widths) <= gpus)
    assert total(rows, found) == pytest.approx(best)
    assert found.sum() <= gpus


@given(curves, st.integers(0, 9))
def test_each_job_that_is_admitted_has_its_smallest_width_at_least(rows: Floats, gpus: int) -> None:
    found, least = allocate(rows, gpus), smallest(rows)
    assert np.all((found == 0) | (found >= least))
    waiting = (found == 0) & (least >= 1) & (least <= gpus)
    if waiting.any():  # those behind the first that waits wait too
        first = int(waiting.argmax())
        assert np.all(found[first:] == 0)
        assert least[: first + 1][least[: first + 1] <= gpus].sum() > gpus


@given(curves, st.integers(0, 8))
def test_more_devices_never_make_it_worse_for_those_who_are_in(rows: Floats, gpus: int) -> None:
    rows = rows[smallest(rows) <= gpus]  # a job that can begin only now comes before those of lower rank
    before, after = allocate(rows, gpus), allocate(rows, gpus + 1)
    assert (after > 0).sum() >= (before > 0).sum()
    if np.array_equal(before > 0, after > 0):
        assert total(rows, after) >= total(rows, before) - 1e-9


def test_of_equal_sums_the_fewest_devices_win() -> None:
    assert allocate(np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]), 6).tolist() == [1, 1]
    assert allocate(np.array([[0.1, 0.3, 0.2 + 0.1]]), 3).tolist() == [2]  # equal but for rounding


@pytest.mark.parametrize(
    ("rows", "gpus", "said"),
    [([[1.0]], -1, "expected 0 or more devices"), ([[0.0]], 1, "not above 0"), ([[np.inf]], 1, "infinite")],
)
def test_what_is_no_scaling_is_refused(rows: list[list[float]], gpus: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        allocate(np.array(rows), gpus)


GOOD: dict[str, Any] = {"b_min": 64, "b_max": 128, "per_gpu_cap": 128, "t_proc_s": {64: 0.1}}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"b_min": 256}, "the smallest at most the largest"),
        ({"batch_step": 0}, "expected at least 1 each"),
        ({"t_proc_s": {64: 0.0}}, "t_proc_s at 64 is 0.0; expected seconds above 0"),
        ({"t_comm_s": {2: float("nan")}}, "t_comm_s at 2 is nan"),
        ({"t_proc_s": {}}, "t_proc_s is empty"),
    ],
)
def test_what_is_no_profile_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ThroughputProfile(**{**GOOD, **wrong})


def test_a_smallest_batch_that_one_device_cannot_hold_needs_more() -> None:
    one = ThroughputProfile(b_min=256, b_max=256, per_gpu_cap=128, t_proc_s={64: 0.1, 128: 0.2}, t_comm_s={2: 0.01})
    assert best_batch(one, 1) is None
    assert np.isnan(scaling(one, 1)).all()
    assert scaling(one, 2)[1] == 1.0
    assert allocate(scaling(one, 2)[None, :], 1).tolist() == [0]


def test_no_job_gets_nothing() -> None:
    assert allocate(np.empty((0, 4)), 8).tolist() == []


def test_of_very_many_batches_some_are_tried_the_largest_among_them() -> None:
    one = ThroughputProfile(b_min=1, b_max=2**31, per_gpu_cap=2**31, t_proc_s={1: 1.0, 2**31: 2.0})
    assert best_batch(one, 1) == 2**31
    assert table(one, range(1, 1))[0].tolist() == []


def test_many_widths_are_worked_out_a_few_at_a_time_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ThroughputProfile(
        b_min=40, b_max=90, batch_step=5, per_gpu_cap=20, t_proc_s={1: 0.1, 20: 0.5}, t_comm_s={2: 0.1}
    )
    whole, asked = table(one, range(1, 12)), list[int]()
    work_out = ThroughputProfile.throughput
    monkeypatch.setattr(elastic, "AT_ONCE", 30)
    monkeypatch.setattr(ThroughputProfile, "throughput", lambda *of: (asked.append(len(of[2])), work_out(*of))[1])
    for found, expected in zip(table(one, range(1, 12)), whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert asked == [2, 2, 2, 2, 2, 1]


@given(curves, st.integers(0, 9))
def test_adding_jobs_one_by_one_comes_to_the_sum_of_what_they_are_given(rows: Floats, gpus: int) -> None:
    found = allocate(rows, gpus)
    sums = np.zeros(gpus + 1)
    for row in rows[found > 0]:
        sums = added(sums, row)
    assert float(sums[-1]) == pytest.approx(total(rows, found))


def test_a_profile_is_found_again_by_its_key() -> None:
    one = ThroughputProfile(**{**GOOD, "t_comm_s": {4: 0.2, 2: 0.1}})
    assert ThroughputProfile.of(one.key).key == one.key
    assert ThroughputProfile.of(one.key).throughput(128, [1, 2, 4]) == pytest.approx(one.throughput(128, [1, 2, 4]))
    assert one.up_to(96).b_max == 96
