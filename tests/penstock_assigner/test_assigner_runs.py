"""Runs as they come, are measured, share aggregators, and go."""

from __future__ import annotations

import msgspec
import pytest
from aggregation_cases import AssignerScenario, asked, ended, gone, measured, node, offered, placed, submitted

from penstock_log import (
    AggregationAssigned,
    AggregationLeft,
    AggregationRefused,
    AggregatorsAllocated,
    AggregatorsRecycled,
    JobCancelled,
    NodeDrained,
    PartPlaced,
)


def assigner(**settings: float) -> AssignerScenario:
    return AssignerScenario(**settings)


def test_a_run_gets_aggregators_of_its_own_to_be_measured() -> None:
    it = assigner().nodes(n1=2).runs("j1", servers=2, parts=3)
    it.at(5.0).then(
        AggregatorsAllocated(at_s=5.0, pool="default", aggregators=("n1/0", "n1/1"), job_id="j1"),
        AggregationAssigned(
            at_s=5.0,
            pool="default",
            job_id="j1",
            epoch=1,
            generation=1,
            phase="profile",
            placed=tuple(
                PartPlaced(part=part, aggregator=name, generation=1)
                for part, name in enumerate(("n1/0", "n1/1", "n1/0"))
            ),
            because="it is to be measured on 2 aggregators of its own",
        ),
    ).then()


def test_aggregators_are_taken_on_the_nodes_of_the_ranks_first_and_on_the_emptiest_of_these() -> None:
    it = assigner().nodes(n1=4, n2=1, n3=2).runs("j1", nodes=("n2", "n3"), servers=4, parts=4)
    it.settle()
    assert it.where("j1") == ["n3/0", "n2/0", "n3/1", "n1/0"]


def test_parts_are_dealt_by_their_bytes() -> None:
    it = assigner().nodes(n1=2).given(submitted("j1"), placed("j1"))
    it.given(msgspec.structs.replace(asked("j1", servers=2), parts=(4, 1, 1, 1)))
    it.settle()
    assert it.where("j1") == ["n1/0", "n1/1", "n1/1", "n1/1"]


def test_a_run_waits_until_all_of_its_aggregators_can_be_had() -> None:
    it = assigner().nodes(n1=2).runs("j1", mode="own").runs("j2", servers=2)
    it.settle()
    assert it.run("j2").waits
    it.when(ended("j1")).settle()
    assert it.run("j2").waits, "the process of the recycled aggregator still runs"
    it.when(gone("n1/0", "recycled")).settle()
    assert it.where("j2") == ["n1/1", "n1/2"], "names are never given again"


def test_a_smaller_one_need_not_wait_for_a_larger_one() -> None:
    it = assigner().nodes(n1=2).runs("j1", mode="own").runs("j2", servers=2).runs("j3")
    it.settle()
    assert it.run("j2").waits
    assert it.where("j3") == ["n1/1", "n1/1"]


def test_what_can_never_be_had_is_refused_and_says_so() -> None:
    it = assigner().nodes(n1=1, n2=1).runs("j1", servers=3)
    (refused,) = it.settle()
    assert isinstance(refused, AggregationRefused)
    assert refused.reason == (
        "it asks for 3 aggregators, and the nodes of pool 'default' run 2 at most: ask for fewer servers"
    )
    it.then()


def test_without_an_agent_in_the_pool_a_run_is_refused() -> None:
    (refused,) = assigner().runs("j1").settle()
    assert isinstance(refused, AggregationRefused)
    assert "no node of pool 'default' runs aggregators" in refused.reason


@pytest.mark.parametrize("fields", [{"servers": 0}, {"parts": 0}, {"world_size": 0}])
def test_what_makes_no_sense_is_refused(fields: dict[str, int]) -> None:
    (refused,) = assigner().nodes(n1=1).runs("j1", **fields).settle()
    assert isinstance(refused, AggregationRefused)
    assert "expected" in refused.reason


def test_what_the_job_says_of_aggregation_wins_over_its_script() -> None:
    it = assigner().nodes(n1=2).given(submitted("j1", aggregation="own"), placed("j1"), asked("j1"))
    it.given(submitted("j2", aggregation="none"), placed("j2"), asked("j2"))
    it.settle()
    assert it.run("j1").stage == "own"
    assert it.run("j2").refused == 'its job says aggregation = "none"; submit it with --aggregation shared or own'


def test_a_run_of_an_epoch_that_is_over_is_not_heard() -> None:
    it = assigner().nodes(n1=1).given(submitted("j1"), placed("j1", epoch=2), asked("j1", epoch=1))
    it.then()


def test_drained_nodes_take_no_newcomers() -> None:
    it = assigner().nodes(n1=1, n2=1).given(NodeDrained(at_s=1.0, node_id="n1")).runs("j1")
    it.settle()
    assert it.where("j1") == ["n2/0", "n2/0"]


def test_a_measured_run_is_packed_onto_as_few_aggregators_as_hold_it() -> None:
    it = assigner().nodes(n1=2).runs("j1", servers=2)
    it.settle()
    (packed,) = it.measure("j1", 1.0, 0.1, steps=20).settle()
    assert isinstance(packed, AggregationAssigned)
    assert (packed.phase, packed.generation, packed.iteration_s) == ("packed", 2, 1.0)
    assert packed.placed == (
        PartPlaced(part=0, aggregator="n1/0", generation=1),
        PartPlaced(part=1, aggregator="n1/0", generation=2, how="copy", before="n1/1"),
    )


def test_an_aggregator_is_recycled_after_the_last_part_has_left_it() -> None:
    it = assigner().nodes(n1=2).runs("j1", servers=2)
    it.settle()
    it.measure("j1", 1.0, 0.1, steps=20).settle()
    it.then()
    it.copy_all().at(9.0).then(AggregatorsRecycled(at_s=9.0, pool="default", aggregators=("n1/1",))).then()


def test_a_second_run_is_packed_beside_the_first() -> None:
    it = assigner().nodes(n1=2).packed("j1").runs("j2")
    it.settle()
    assert it.where("j2") == ["n1/1", "n1/1"]
    (packed,) = it.measure("j2", 2.0, 0.2, steps=20).settle()
    assert isinstance(packed, AggregationAssigned)
    assert it.where("j2") == ["n1/0", "n1/0"]
    assert packed.because == "it was measured, and fits beside j1"
    assert packed.loss == 0.0


def test_a_run_is_not_packed_before_all_of_its_aggregators_have_measured_it() -> None:
    it = assigner().nodes(n1=2).runs("j1", servers=2)
    it.settle()
    first, second = measured(it.run("j1"), 1.0, 0.1)
    it.given(first).then()
    it.given(second)
    assert it.settle()


def test_iterations_whose_lengths_do_not_go_together_keep_their_own_aggregators() -> None:
    it = assigner().nodes(n1=2).packed("j1", 10.0, 0.1).packed("j2", 9.0, 0.1)
    assert it.where("j1") != it.where("j2"), "j2 would lose a tenth in a cycle of 10 s"
    assert it.run("j2").stage == "packed"


def test_a_run_with_aggregators_of_its_own_for_good_shares_them_with_nobody() -> None:
    it = assigner().nodes(n1=2).runs("j1", mode="own")
    (_, own) = it.settle()
    assert isinstance(own, AggregationAssigned)
    assert (own.phase, own.because) == ("own", "it asks for aggregators of its own")
    it.measure("j1", 1.0, 0.01).then()
    it.packed("j2")
    assert it.where("j2") == ["n1/1", "n1/1"]


def test_a_run_whose_parts_keep_its_aggregators_busy_stays_on_them() -> None:
    it = assigner().nodes(n1=1).runs("j1")
    it.settle()
    (own,) = it.measure("j1", 1.0, 0.6, steps=20).settle()
    assert isinstance(own, AggregationAssigned)
    assert own.phase == "own"
    assert all(one.generation == 1 for one in own.placed)


def test_a_packed_run_that_lost_more_than_a_tenth_gets_aggregators_of_its_own_again() -> None:
    it = assigner().nodes(n1=3).packed("j1").packed("j2")
    it.given(gone("n1/1", "recycled"))
    it.measure("j2", 1.0 / 0.86, 0.1, held_s=0.15)
    allocated, own = it.settle()
    assert isinstance(allocated, AggregatorsAllocated)
    assert isinstance(own, AggregationAssigned)
    assert own.phase == "own"
    times = "1.2 s instead of 1.0 s, 150 ms of them at its aggregators instead of 0 ms"
    assert own.because == f"it was 14 % slower over 100 steps: {times}"
    assert all(one.how == "copy" and one.before == "n1/0" for one in own.placed)
    it.copy_all().measure("j2", 1.0, 0.1).then()


def test_a_run_that_got_slower_by_something_else_stays_where_it_is() -> None:
    it = assigner().nodes(n1=3).packed("j1").packed("j2")
    it.given(gone("n1/1", "recycled"))
    it.measure("j2", 2.0, 0.1, held_s=0.4).then()


def test_a_run_that_shares_with_nobody_has_nothing_to_get_back() -> None:
    it = assigner().nodes(n1=3).packed("j1")
    it.measure("j1", 2.0, 0.1).then()
    assert (it.run("j1").stage, it.run("j1").alone_s) == ("packed", 2.0), "this is its time alone now"


def test_a_run_on_fewer_aggregators_than_it_asked_for_gets_them_back() -> None:
    it = assigner().nodes(n1=3).packed("j1", servers=2)
    it.measure("j1", 2.0, 0.1, held_s=0.6)
    it.settle()
    assert (it.run("j1").stage, len(set(it.where("j1")))) == ("own", 2)


def test_short_iterations_are_measured_for_long_enough_before_something_is_decided() -> None:
    it = assigner().nodes(n1=3).runs("j1")
    it.settle()
    it.measure("j1", 0.005, 0.0001, steps=200).runs("j2")
    it.settle()
    it.measure("j2", 0.005, 0.0001, steps=20).then()
    it.measure("j2", 0.005, 0.0001).then()
    it.measure("j2", 0.005, 0.0001).settle()
    it.copy_all()
    it.settle()
    assert it.where("j2") == ["n1/0", "n1/0"]
    for _ in range(6):
        it.measure("j2", 0.007, 0.0001, held_s=0.002).then()
    it.given(gone("n1/1", "recycled"))
    it.measure("j2", 0.007, 0.0001, held_s=0.002)
    it.measure("j2", 0.007, 0.0001, held_s=0.002)
    (_, own) = it.settle()
    assert isinstance(own, AggregationAssigned)
    assert (
        own.because
        == "it was 29 % slower over 800 steps: 7 ms instead of 5 ms, 2 ms of them at its aggregators instead of 0 ms"
    )


def test_a_loss_is_not_believed_after_a_few_steps() -> None:
    it = assigner().nodes(n1=3).packed("j1").packed("j2")
    it.measure("j2", 2.0, 0.1, steps=20, held_s=1.0).then()


def test_a_run_that_is_to_have_its_own_again_waits_for_them_before_newcomers() -> None:
    it = assigner().nodes(n1=2).packed("j1").packed("j2").runs("j3")
    it.measure("j2", 2.0, 0.1, held_s=1.0).then()
    it.given(gone("n1/1", "recycled"))
    it.settle()
    assert it.where("j2") == ["n1/2", "n1/2"]
    assert it.run("j3").waits


def test_a_job_that_ends_takes_its_parts_with_it_and_its_aggregators_are_recycled() -> None:
    it = assigner().nodes(n1=2).packed("j1").at(7.0)
    it.when(ended("j1")).then(AggregatorsRecycled(at_s=7.0, pool="default", aggregators=("n1/0",))).then()


def test_a_new_run_of_a_job_begins_anew() -> None:
    it = assigner().nodes(n1=2).packed("j1")
    it.given(ended("j1", "preempted"), placed("j1", epoch=2))
    it.settle()
    it.given(asked("j1", epoch=2))
    it.settle()
    assert it.run("j1").generation == 1
    assert it.run("j1").stage == "profile"


def test_a_run_that_has_left_has_no_part_and_may_ask_again() -> None:
    it = assigner().nodes(n1=2, n2=1).runs("j1", nodes=("n1", "n2"))
    it.settle()
    (recycled,) = it.when(AggregationLeft(at_s=3.0, node_id="n1", job_id="j1", epoch=1)).settle()
    assert isinstance(recycled, AggregatorsRecycled)
    it.given(asked("j1"))
    it.settle()
    assert it.run("j1").generation == 2, "a late push of before must not fit"


def test_a_refused_run_that_asks_again_is_answered_again() -> None:
    it = assigner().runs("j1")
    it.settle()
    it.given(node("n1"), offered("n1"), asked("j1"))
    it.settle()
    assert it.where("j1") == ["n1/0", "n1/0"]


def test_a_cancelled_job_that_waits_is_given_nothing() -> None:
    it = assigner().nodes(n1=1).runs("j1", mode="own").runs("j2")
    it.settle()
    it.given(JobCancelled(at_s=3.0, job_id="j2"), ended("j2", "cancelled"), ended("j1"), gone("n1/0", "recycled"))
    it.settle()
    assert "j2" not in it.state.table.runs
