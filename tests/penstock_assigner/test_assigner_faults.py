"""Aggregators, agents and nodes that go, and copies that do not come."""

from __future__ import annotations

import msgspec
from aggregation_cases import (
    AssignerScenario,
    asked,
    gone,
    lost,
    measured,
    node,
    offered,
    placed,
    running,
    submitted,
    unreachable,
)

from penstock_log import AggregationAssigned, AggregatorsAllocated, AggregatorsRecycled, NodeRemoved, PartPlaced


def assigner(**settings: float) -> AssignerScenario:
    return AssignerScenario(**settings)


def test_the_parts_of_a_killed_aggregator_join_on_a_new_one() -> None:
    it = assigner().nodes(n1=2).runs("j1")
    it.settle()
    it.given(running("n1/0")).at(9.0).when(gone("n1/0"))
    allocated, assigned = it.settle()
    assert isinstance(allocated, AggregatorsAllocated)
    assert allocated.aggregators == ("n1/1",)
    assert isinstance(assigned, AggregationAssigned)
    assert (assigned.phase, assigned.because) == ("recovered", "n1/0 ended (killed)")
    assert assigned.placed == tuple(PartPlaced(part=part, aggregator="n1/1", generation=2) for part in (0, 1))


def test_parts_that_are_not_lost_stay_with_their_generation() -> None:
    it = assigner().nodes(n1=3).runs("j1", servers=2)
    it.settle()
    it.given(running("n1/1")).when(gone("n1/1")).settle()
    assert [(one.aggregator, one.generation) for one in it.run("j1").placed] == [("n1/0", 1), ("n1/2", 2)]


def test_without_a_free_aggregator_lost_parts_go_to_those_that_are_left() -> None:
    it = assigner().nodes(n1=1, n2=1).runs("j1", servers=2)
    it.settle()
    it.when(lost("n2")).settle()
    assert it.where("j1") == ["n1/0", "n1/0"]


def test_a_run_whose_aggregators_are_all_gone_waits_for_one() -> None:
    it = assigner().nodes(n2=1).runs("j1")
    it.settle()
    it.when(lost("n2")).settle()
    assert it.where("j1") == ["n2/0", "n2/0"]
    it.when(node("n2"), offered("n2", 1, "b")).settle()
    assert it.where("j1") == ["n2/1", "n2/1"]


def test_an_agent_that_starts_again_has_lost_all_of_its_aggregators() -> None:
    it = assigner().nodes(n1=2).packed("j1").packed("j2")
    it.when(offered("n1", 2, "b")).settle()
    assert set(it.where("j1")) == set(it.where("j2")) == {"n1/2"}
    assert it.run("j1").phase == it.run("j2").phase == "recovered"
    assert it.run("j1").stage == "packed"


def test_an_agent_that_says_the_same_again_has_lost_nothing() -> None:
    it = assigner().nodes(n1=2).packed("j1")
    it.when(offered("n1", 2, "a")).then()


def test_an_aggregator_on_a_node_that_is_back_is_told_to_end() -> None:
    it = assigner().nodes(n1=1, n2=1).runs("j1", nodes=("n2",))
    it.settle()
    it.when(lost("n2")).at(9.0)
    settled = it.settle()
    assert settled[-1] == AggregatorsRecycled(at_s=9.0, pool="default", aggregators=("n2/0",))
    assert "n2/0" not in it.state.table.aggregators


def test_a_rank_that_cannot_reach_an_aggregator_gets_its_parts_elsewhere() -> None:
    it = assigner().nodes(n2=2, n3=1).runs("j1", nodes=("n2",))
    it.settle()
    it.when(unreachable("n2/0", "j1", 1)).settle()
    assert it.where("j1") == ["n3/0", "n3/0"], "another node first"
    assert not it.state.table.serves("n2/0")


def test_an_aggregator_that_one_run_cannot_reach_goes_on_for_others() -> None:
    it = assigner().nodes(n1=2).packed("j1").packed("j2")
    assert it.where("j1") == it.where("j2")
    it.given(gone("n1/1", "recycled"))
    it.when(unreachable("n1/0", "j2", it.run("j2").generation)).settle()
    assert set(it.where("j1")) == {"n1/0"}
    assert set(it.where("j2")) == {"n1/2"}


def test_a_late_word_about_an_aggregator_that_a_run_has_left_changes_nothing() -> None:
    it = assigner().nodes(n1=2).runs("j1")
    it.settle()
    it.given(running("n1/0"), gone("n1/0"))
    it.settle()
    it.when(unreachable("n1/0", "j1", 1)).then()


def test_a_copy_whose_source_is_gone_joins_where_it_was_to_go() -> None:
    it = assigner().nodes(n1=2).runs("j1", servers=2)
    it.settle()
    it.measure("j1", 1.0, 0.1, steps=20).settle()
    it.given(running("n1/1")).when(gone("n1/1")).settle()
    assert it.run("j1").placed[1] == PartPlaced(part=1, aggregator="n1/0", generation=3)
    assert not it.run("j1").moving


def test_a_copy_whose_target_is_gone_joins_elsewhere() -> None:
    it = assigner().nodes(n1=3).runs("j1", servers=2)
    it.settle()
    it.measure("j1", 1.0, 0.1, steps=20).settle()
    it.given(running("n1/0")).when(gone("n1/0")).settle()
    assert [one.how for one in it.run("j1").placed] == ["join", "join"]
    assert {one.generation for one in it.run("j1").placed} == {3}
    assert "n1/0" not in it.where("j1")


def test_a_node_whose_aggregators_fail_to_start_is_tried_again_later() -> None:
    it = assigner().nodes(n1=1).runs("j1")
    it.settle()
    it.when(gone("n1/0", "failed", at_s=10.0)).at(10.1).then().then_wakes_at(11.0)
    it.at(11.0).settle()
    it.when(gone("n1/1", "failed", at_s=20.0)).at(20.1).then_wakes_at(22.0)
    it.given(running("n1/1")).at(22.0).settle()
    assert it.where("j1") == ["n1/2", "n1/2"]


def test_an_aggregator_that_never_starts_is_given_up() -> None:
    it = assigner().nodes(n1=1, n2=1).at(10.0).runs("j1")
    it.settle()
    it.then_wakes_at(40.0).at(40.0)
    settled = it.settle()
    assert it.where("j1") == ["n2/0", "n2/0"]
    assert it.run("j1").because == "n1/0 did not start"
    assert settled[0] == AggregatorsRecycled(at_s=40.0, pool="default", aggregators=("n1/0",))
    it.given(running("n2/0")).then_wakes_at(None)


def test_a_node_that_was_removed_and_is_back_gives_new_names() -> None:
    it = assigner().nodes(n2=1).runs("j1")
    it.settle()
    it.given(NodeRemoved(at_s=5.0, node_id="n2"), node("n2"), offered("n2", 1, "b"))
    it.settle()
    assert it.where("j1") == ["n2/1", "n2/1"]


def test_a_newcomer_takes_another_node_meanwhile() -> None:
    it = assigner().nodes(n1=1, n2=1).runs("j1")
    it.settle()
    it.when(gone("n1/0", "failed", at_s=10.0)).at(10.1).settle()
    assert it.where("j1") == ["n2/0", "n2/0"]


def test_a_measurement_of_an_earlier_generation_is_not_taken() -> None:
    it = assigner().nodes(n1=2).runs("j1")
    it.settle()
    it.given(running("n1/0"), gone("n1/0"))
    old = it.run("j1").generation
    it.settle()
    (fact,) = measured(it.run("j1"), 1.0, 0.1)
    it.when(msgspec.structs.replace(fact, generation=old)).then()


def test_an_aggregator_whose_parts_stay_measures_under_their_generation() -> None:
    it = assigner().nodes(n1=3).runs("j1", servers=2)
    it.settle()
    it.given(running("n1/1"), gone("n1/1"))
    it.settle()
    first, second = measured(it.run("j1"), 1.0, 0.1)
    it.given(msgspec.structs.replace(first, generation=1), second)
    it.settle()
    assert it.run("j1").stage == "packed"


def test_lost_parts_of_a_packed_run_that_fit_nowhere_get_aggregators_of_their_own() -> None:
    it = assigner().nodes(n1=2).given(submitted("j1"), placed("j1"), asked("j1"))
    it.settle()
    it.measure("j1", 1.0, 0.1, steps=20).settle()
    it.measure("j1", 1.0, 0.9)
    it.given(running("n1/0")).when(gone("n1/0")).settle()
    assert it.run("j1").stage == "own"
    assert it.where("j1") == ["n1/1", "n1/1"]


def test_a_copy_that_fails_joins_where_it_was_to_go() -> None:
    it = assigner().nodes(n1=2).runs("j1", servers=2)
    it.settle()
    it.measure("j1", 1.0, 0.1, steps=20).settle()
    it.when(unreachable("n1/0", "j1", 2))
    joined = it.settle()[0]
    assert isinstance(joined, AggregationAssigned)
    assert joined.placed[1] == PartPlaced(part=1, aggregator="n1/0", generation=3)
    assert joined.because == "n1/1 cannot be reached from node n1: timed out"
    assert not it.run("j1").avoids
