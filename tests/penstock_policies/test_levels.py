"""The matching on levels against slow oracles, the reference totals, and what a schedule must be."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from matching_cases import arrays, by_flow, instances, reference

from penstock_policies.levels.solver import assign
from penstock_policies.matching import assign_lsa, starts_us


def test_the_worked_example_has_its_total_and_its_makespan():
    case = reference()["worked_example"]
    p, ready = arrays(case)
    found = assign(p, ready)
    ends = starts_us(p, ready, found) + p[np.arange(len(p)), found.kind]
    assert found.total_us == case["total_completion"] == ends.sum() == 85
    assert ends.max() == case["makespan_with_tie_break"] == 25
    assert found.gap_us == 0


def test_the_random_cases_have_their_totals():
    for case in reference()["random"]:
        p, ready = arrays(case)
        found = assign(p, ready)
        assert (found.total_us, found.gap_us) == (case["total_completion"], 0), case["seed"]
        ends = starts_us(p, ready, found) + p[np.arange(len(p)), found.kind]
        assert ends.sum() == found.total_us, case["seed"]


@settings(deadline=None, max_examples=200)
@given(instances())
def test_total_and_places_are_those_of_the_expanded_matrix(instance):
    p, ready = instance
    found = assign(p, ready)
    oracle = assign_lsa(p, ready)
    assert (found.kind >= 0).tolist() == (oracle.kind >= 0).tolist()
    assert (found.total_us, found.gap_us) == (oracle.total_us, 0)
    if p.max(initial=0) < 10**6:
        assert found.place.sum() == oracle.place.sum()


@settings(deadline=None, max_examples=50)
@given(instances(max_jobs=8))
def test_total_and_places_are_those_of_a_min_cost_flow(instance):
    found = assign(*instance)
    assert (found.total_us, found.place.sum()) == by_flow(*instance)
