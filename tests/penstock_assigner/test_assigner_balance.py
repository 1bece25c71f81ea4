"""Parts that move by choice: where a limit is broken, and to empty aggregators; no more often than the settings say."""

from __future__ import annotations

import pytest
from aggregation_cases import AssignerScenario, ended, gone

from penstock_log import AggregationAssigned, AggregatorsAllocated, AggregatorsRecycled, NodeDrained
from penstock_scheduler.aggregation.assignment_step import AssignerSettings


def shared_by_two(**settings: float) -> AssignerScenario:
    """Two runs on one aggregator, packed at 10 s."""
    it = AssignerScenario(**settings).nodes(n1=3).at(10.0)
    it.packed("j1", 1.0, 0.2).packed("j2", 1.0, 0.2)
    return it.given(gone("n1/1", "recycled"))  # type: ignore[return-value]


def test_parts_leave_an_aggregator_that_has_too_much_to_do() -> None:
    it = shared_by_two().at(60.0)
    it.measure("j2", 1.0, 0.4)
    allocated, moved = it.settle()
    assert isinstance(allocated, AggregatorsAllocated)
    assert isinstance(moved, AggregationAssigned)
    assert (moved.phase, moved.because) == ("rebalanced", "n1/0 had more to do than its cycle is long")
    assert sorted(it.where("j1") + it.where("j2")) == ["n1/0", "n1/0", "n1/0", "n1/2"]


def test_what_costs_a_little_more_than_before_moves_nothing() -> None:
    it = shared_by_two().at(60.0)
    it.measure("j2", 1.0, 0.205).then()


def test_nothing_moves_by_choice_before_its_time() -> None:
    it = shared_by_two(rebalance_s=40.0).at(45.0)
    it.measure("j2", 1.0, 0.4).then().then_wakes_at(50.0)
    assert it.at(50.0).settle()


def test_nothing_moves_by_choice_while_parts_are_on_their_way() -> None:
    it = shared_by_two().runs("j3")
    it.settle()
    it.start_all()
    it.measure("j3", 1.0, 0.05, steps=20).settle()
    assert it.run("j3").moving
    it.at(60.0).measure("j2", 1.0, 0.4).then()
    it.copy_all()
    assert any(isinstance(fact, AggregationAssigned) for fact in it.settle())


def test_an_aggregator_whose_parts_fit_elsewhere_is_emptied_and_recycled() -> None:
    it = AssignerScenario().nodes(n1=4).at(10.0)
    it.packed("j1", 1.0, 0.3).packed("j2", 1.0, 0.3).packed("j3", 1.0, 0.15)
    emptied = "n1/0"
    assert it.where("j2") == [emptied, "n1/1"]
    it.at(60.0).when(ended("j1"))
    settled = it.settle()
    moved = [fact for fact in settled if isinstance(fact, AggregationAssigned)]
    assert {(fact.phase, fact.because) for fact in moved} == {("rebalanced", f"{emptied} can be emptied")}
    (recycled,) = it.copy_all().settle()
    assert isinstance(recycled, AggregatorsRecycled)
    assert recycled.aggregators == (emptied,)
    assert len({*it.where("j2"), *it.where("j3")}) == 1


def test_where_no_aggregator_has_time_for_a_run_any_more_it_gets_its_own() -> None:
    it = AssignerScenario().nodes(n1=3).at(10.0).packed("j1", 1.0, 0.2, parts=1).packed("j2", 1.0, 0.2, parts=1)
    it.given(gone("n1/1", "recycled")).at(60.0)
    it.measure("j2", 1.0, 1.2)
    it.settle()
    assert it.run("j2").stage == "own"
    assert it.where("j2") == ["n1/2"]


def test_parts_leave_a_node_that_is_drained_and_it_can_go() -> None:
    it = AssignerScenario().nodes(n1=2, n2=2).at(10.0).packed("j1", 1.0, 0.1).runs("j2", mode="own")
    it.settle()
    it.start_all().when(NodeDrained(at_s=20.0, node_id="n1")).at(20.0)
    moved = [fact for fact in it.settle() if isinstance(fact, AggregationAssigned)]
    assert {(fact.phase, fact.because) for fact in moved} == {("rebalanced", "node n1 is drained")}
    assert {one.how for fact in moved for one in fact.placed} == {"copy"}
    assert (it.where("j1"), it.where("j2")) == (["n2/0", "n2/0"], ["n2/1", "n2/1"])
    (recycled,) = it.copy_all().settle()
    assert isinstance(recycled, AggregatorsRecycled)
    assert recycled.aggregators == ("n1/0", "n1/1")


def test_parts_stay_on_a_drained_node_while_there_is_no_room_elsewhere() -> None:
    it = AssignerScenario().nodes(n1=2).at(10.0).packed("j1", 1.0, 0.1)
    it.when(NodeDrained(at_s=20.0, node_id="n1")).then()
    it.nodes(n2=1).settle()
    assert it.where("j1") == ["n2/0", "n2/0"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"loss_limit": 0.0}, "loss_limit is 0.0; expected a share above 0 and below 1"),
        ({"loss_limit": 1.0}, "loss_limit is 1.0"),
        ({"rebalance_s": -1.0}, "rebalance_s is -1.0; expected seconds, 0 or more"),
        ({"rebalance_s": float("inf")}, "rebalance_s is inf"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AssignerSettings(**fields)
