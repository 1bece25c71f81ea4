"""On which nodes the matcher places a gang, by its model's skew and by where the nodes stand."""

from __future__ import annotations

import msgspec
import pytest
from matcher_facts import Matcher, job, matcher, node, profiled, run_all, spec

from penstock_log import NodeJoined
from penstock_scheduler.pool.pool_settings import MatcherSettings


def standing(name: str, rack: str, fast: int) -> NodeJoined:
    return msgspec.structs.replace(node(name, fast=fast), labels={"topology.rack": rack})


def used(one: Matcher, job_id: str = "g") -> dict[str, int]:
    """Node → how many of its devices the job has."""
    placement = one.state.jobs[job_id].placement
    assert placement is not None
    return {slot.node_id: len(slot.devices) for slot in placement.slots}


def holes(**settings: object) -> Matcher:
    return matcher(**settings).given(node("n1", fast=1), node("n2", fast=2), node("n3", fast=3), node("n4", fast=4))


def test_a_gang_of_a_skewed_model_is_on_the_fewest_nodes_and_any_other_in_the_holes():
    for skew, expected in ((0.7, {"n2": 2, "n4": 4}), (0.0, {"n1": 1, "n2": 2, "n3": 3})):
        one = holes().given(job("g", gpus=6, skew=skew))
        run_all(one, 2.0)
        assert used(one) == expected


def test_what_a_script_has_told_of_its_model_counts_as_well():
    told = msgspec.structs.replace(profiled(spec(), fast=1.0), skew=0.7)
    one = holes().given(told, job("g", gpus=6))
    run_all(one, 2.0)
    assert used(one) == {"n2": 2, "n4": 4}


def test_the_threshold_is_a_setting():
    one = holes(skew_threshold=0.2).given(job("g", gpus=6, skew=0.3))
    run_all(one, 2.0)
    assert used(one) == {"n2": 2, "n4": 4}
    with pytest.raises(ValueError, match=r"expected a number from 0\.14 to 0\.61"):
        MatcherSettings(skew_threshold=0.9)


def test_a_skewed_gang_is_within_one_rack_where_one_will_do():
    one = matcher().given(standing("n1", "r1", 2), standing("n2", "r2", 2), standing("n3", "r2", 2))
    one.given(job("g", gpus=4, skew=0.7))
    run_all(one, 2.0)
    assert used(one) == {"n2": 2, "n3": 2}


def test_levels_that_are_not_named_do_not_count():
    one = matcher(topology=()).given(standing("n1", "r1", 2), standing("n2", "r2", 2), standing("n3", "r2", 2))
    one.given(job("g", gpus=4, skew=0.7))
    run_all(one, 2.0)
    assert used(one) == {"n1": 2, "n2": 2}


def test_a_gang_is_never_of_two_kinds():
    one = matcher().given(node("n1", fast=2, slow=2), node("n2", fast=1, slow=1), job("g", gpus=4, skew=0.7))
    assert run_all(one, 2.0) == {}
    one.given(job("h", gpus=3, skew=0.7, at_s=2.0))
    assert run_all(one, 2.0) == {"h": "fast"}
    assert used(one, "h") == {"n1": 2, "n2": 1}


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("best-fit", {"n1": 1, "n3": 3, "n4": 2}),
        ("consolidate", {"n2": 4, "n4": 2}),
        ("first-fit", {"n1": 1, "n2": 4, "n3": 1}),
    ],
)
def test_each_pool_chooses_nodes_in_its_own_way(placement, expected):
    one = matcher(pools={"lab": {"placement": placement}})
    one.given(*(node(f"n{at}", pool="lab", fast=size) for at, size in enumerate((1, 4, 3, 2), start=1)))
    run_all(one.given(job("g", gpus=6, pool="lab")), 2.0)
    assert used(one) == expected


def test_one_device_is_the_first_one_where_nodes_are_taken_in_order():
    for placement, expected in (("best-fit", {"n2": 1}), ("first-fit", {"n1": 1})):
        one = matcher(placement=placement).given(node("n1", fast=2), node("n2", fast=1), job("g"))
        run_all(one, 2.0)
        assert used(one) == expected


def test_a_placement_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="placement is 'tight'; expected one of best-fit, consolidate, first-fit"):
        MatcherSettings(placement="tight")
