"""On which kind of device elastic jobs go: against every choice of kinds, on small cases."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sizing_cases import Curves, best_kinds, score, some_curves, some_requests, table_of

from penstock_scheduler.sizing import kind_search
from penstock_scheduler.sizing.decision import decide
from penstock_scheduler.sizing.problem import SizingRules
from sweeps import examples


def gap(jobs: list[Curves], capacity: dict[str, int]) -> float | None:
    """Return by which share the chosen kinds are below the best ones; None where not all jobs fit."""
    best, _, first = best_kinds(jobs, capacity)
    if not first:
        return None
    names = [f"j{at}" for at in range(len(jobs))]
    found = kind_search.chosen(names, table_of(jobs), dict(zip(names, first, strict=True)), capacity)
    chosen = [found[name] for name in names]
    assert score(jobs, chosen, capacity) >= score(jobs, first, capacity) - 1e-9
    return 1 - score(jobs, chosen, capacity) / best


@pytest.mark.parametrize(
    ("jobs", "capacity"), [(5, {"x": 4, "y": 4}), (6, {"x": 6, "y": 3}), (4, {"x": 4, "y": 3, "z": 2})]
)
def test_few_other_choices_of_kinds_are_better_and_by_little(jobs: int, capacity: dict[str, int]) -> None:
    gaps = [
        found for seed in range(25) if (found := gap(some_curves(seed, jobs, len(capacity), 4), capacity)) is not None
    ]
    assert len(gaps) >= 15
    assert np.mean(gaps) <= 0.01
    assert np.mean(np.array(gaps) < 1e-6) >= 0.9


def test_jobs_that_only_one_kind_suits_are_left_where_they_are() -> None:
    jobs = [{"x": np.array([1.0, 1.5])}, {"x": np.array([1.0, 1.9])}]
    assert kind_search.chosen(["j0", "j1"], table_of(jobs), {"j0": "x", "j1": "x"}, {"x": 2, "y": 9}) == {
        "j0": "x",
        "j1": "x",
    }


def test_two_jobs_change_places_where_neither_could_move_alone() -> None:
    one, two = np.array([np.nan, 1.0]), np.array([np.nan, 0.2])
    jobs: list[Curves] = [{"x": one, "y": two}, {"x": two, "y": one}]
    table, capacity = table_of(jobs), {"x": 2, "y": 2}
    assert kind_search.chosen(["j0", "j1"], table, {"j0": "y", "j1": "x"}, capacity) == {"j0": "x", "j1": "y"}


def test_jobs_are_put_in_where_they_add_most_even_if_nothing_can_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind_search, "MOST_WORK", 0)
    jobs: list[Curves] = [{"x": np.array([1.0]), "y": np.array([0.1])}, {"x": np.array([1.0]), "y": np.array([0.9])}]
    found = kind_search.chosen(["j0", "j1"], table_of(jobs), {"j0": "y", "j1": "x"}, {"x": 1, "y": 1})
    assert found == {"j0": "x", "j1": "y"}


def test_what_one_search_leaves_over_is_done_before_the_decision_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind_search, "MOST_WORK", 100_000)  # a pass or two
    order, devices = some_requests(14, 24, 6, ("x", "y")), {"x": 24, "y": 24}
    found = decide(order, devices, SizingRules())
    after = [
        msgspec.structs.replace(request, now=found.jobs[request.job_id].size, kind=found.jobs[request.job_id].kind)
        for request in order
    ]
    assert not any(each.changed for each in decide(after, devices, SizingRules()).jobs.values())


@settings(max_examples=examples(30))
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_no_job_is_put_where_its_smallest_width_finds_no_room(seed: int, jobs: int) -> None:
    capacity = {"x": 3, "y": 2}
    found = gap(some_curves(seed, jobs, 2, 3), capacity)
    assume(found is not None)
    assert found is not None
    assert found < 1  # a choice that does not fit has no sum


def test_a_bound_on_the_work_leaves_a_choice_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind_search, "MOST_WORK", 0)
    found = decide(some_requests(3, 12, 4, ("x", "y")), {"x": 8, "y": 8}, SizingRules())
    assert all(each.gpus for each in found.jobs.values())
    for kind in ("x", "y"):
        assert sum(each.gpus for each in found.jobs.values() if each.kind == kind) <= 8
