"""What it makes of nodes that are lost, sizes that do not do, and jobs that do not do as they say."""

from __future__ import annotations

import pytest
from scaling_facts import (
    autoscaler,
    batched,
    decisions,
    demands,
    elastic,
    ended,
    fixed,
    job,
    node,
    placed,
    scaled,
    seasoned,
    widths,
)

from penstock_autoscaler import machine
from penstock_log import Demand, JobState, RoundDecided, RunCheckpointed, ScaleDecided, Size, workload

WORK = elastic()


def test_the_job_of_a_lost_node_is_sized_for_what_is_left() -> None:
    it = autoscaler().given(node(fast=2), node("n2", fast=2), scaled(WORK), job("a")).at(1.0)
    assert widths(it.settle()) == {"a": 4}
    place, _ = placed(it, "a", 2.0, 0, 1)
    assert isinstance(place, RoundDecided)
    it.given(place, *placed(it, "a", 2.0, 0)[1:])
    (decided,) = decisions(it.at(50.0).when(RoundDecided(at_s=50.0, pool="default", lost_nodes=("n1",))).settle())
    assert widths([decided]) == {"a": 2}
    assert decided.because == "nodes"
    assert it.state.jobs["a"].state is JobState.PENDING


def test_a_job_that_uses_another_batch_than_it_is_given_keeps_the_one_that_it_uses() -> None:
    spec = batched(64, 512)
    it = autoscaler().given(node(fast=4), scaled(spec), job("a", spec)).at(1.0)
    first = demands(it.settle())["a"]
    assert first.batch_size > 64
    it.given(*placed(it, "a", 2.0, *range(first.gpus))).at(50.0)
    it.given(ended(it, "a", 50.0, "preempted", batch_size=64))
    after = demands(it.settle())
    assert it.state.shown.stubborn == {"a": 64}
    it.given(node("n2", 51.0, fast=4))
    after |= demands(it.settle())
    assert after["a"].batch_size == 0
    assert "its script uses a batch of 64 whatever it is given" in after["a"].reason
    assert it.state.jobs["a"].spec.batch_size == first.batch_size


def test_a_job_that_says_nothing_of_its_batch_keeps_what_it_was_given() -> None:
    spec = batched(64, 512)
    it = autoscaler().given(node(fast=4), scaled(spec), job("a", spec)).at(1.0)
    first = demands(it.settle())["a"]
    it.given(*placed(it, "a", 2.0, *range(first.gpus))).at(50.0)
    it.given(ended(it, "a", 50.0, "preempted", batch_size=0)).settle()
    assert it.state.shown.stubborn == {"a": first.batch_size}


@pytest.mark.parametrize(("used", "loop_steps"), [(64, 0), (256, 10)])
def test_a_job_that_does_as_it_is_told_or_has_done_nothing_yet_is_believed(used: int, loop_steps: int) -> None:
    spec = batched(256, 256)
    it = autoscaler().given(node(fast=4), scaled(spec), job("a", spec)).at(1.0)
    it.settle()
    it.given(*placed(it, "a", 2.0, 0, 1)).given(
        ended(it, "a", 3.0, "preempted", batch_size=used, loop_steps=loop_steps)
    )
    assert not it.state.shown.stubborn


def test_a_batch_that_did_not_fit_is_not_tried_again_nor_a_larger_one_on_a_device() -> None:
    spec = batched(64, 512)
    it = seasoned(4, spec)
    before = it.state.jobs["a"].size
    local = before.batch_size // before.gpus
    it.when(ended(it, "a", 100.0, "failed", out_of_memory=True, reason="out of memory", exit_code=1))
    it.settle()
    it.when(job("c", spec, 101.0)).at(101.0)
    found = demands(it.settle())["c"]
    assert -(-found.batch_size // found.gpus) < local


def test_what_is_said_not_to_fit_is_believed_until_a_run_gets_on_with_it() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK), job("a"), job("b")).at(1.0)
    it.settle()
    it.given(*placed(it, "a", 2.0, 0, 1), *placed(it, "b", 2.0, 2, 3))
    it.when(
        ended(it, "b", 3.0, "failed", out_of_memory=True, loop_steps=0, exit_code=1, reason="out of memory")
    ).settle()
    assert it.state.shown.caps == {workload.key(WORK): {"fast": 31}}
    it.at(49.0).then()  # a is as wide as what is said not to fit: it is left as it is
    it.given(RunCheckpointed(at_s=50.0, job_id="a", epoch=2, node_id="n1", step=20))
    assert it.state.shown.caps == {workload.key(WORK): {}}
    assert "a" in widths(it.at(50.0).settle())


def test_a_size_that_failed_is_not_given_again() -> None:
    it = seasoned(2)
    it.given(node("n2", 100.0, fast=2))
    assert widths(it.settle()) == {"a": 4}
    it.given(ended(it, "a", 101.0, "preempted")).at(102.0).settle()
    it.given(*placed(it, "a", 102.0, 0, 1)).at(103.0)
    it.given(ended(it, "a", 103.0, "failed", loop_steps=0, steps=0, exit_code=1, reason="boom"))
    assert it.state.jobs["a"].is_unfit(Size(4, 64))
    it.settle()
    assert it.state.jobs["a"].spec.gpus == 3


def test_a_job_that_saves_no_checkpoint_is_not_resized_while_it_runs() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK), job("before")).at(1.0)
    it.settle()
    it.given(*placed(it, "before", 1.0, 0, 1, 2, 3), ended(it, "before", 1.5, saves=False), job("a", at_s=1.6))
    it.settle()
    it.given(*placed(it, "a", 2.0, 0, 1, 2, 3)).at(100.0).when(job("b", at_s=100.0))
    assert widths(it.settle()) == {"b": 1}


def test_a_demand_that_has_changed_nothing_is_not_made_again() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK), job("a")).at(1.0)
    (decided,) = decisions(it.facts())
    it.given(*placed(it, "a", 1.1, 0), decided)  # the matcher was faster
    assert it.state.void["a"] == decided.demands[0]
    fresh = autoscaler().given(node(fast=4), scaled(WORK), job("a"))
    fresh.state.void["a"] = decided.demands[0]
    assert not fresh.decider.decide(fresh.state, 1.0).proposals


def test_new_jobs_without_room_are_dropped_where_that_is_set() -> None:
    it = autoscaler(drop=True).given(node(fast=2), scaled(WORK), job("b", fixed(2), 0.5)).at(1.0)
    (decided,) = decisions(it.when(job("a")).settle())
    assert decided.dropped == ("a",)
    assert not decided.demands
    assert not it.state.pools["default"].elastic


@pytest.mark.parametrize("drop", [False, True])
def test_more_jobs_than_a_message_holds_are_told_in_several(monkeypatch: pytest.MonkeyPatch, drop: bool) -> None:
    monkeypatch.setattr(machine, "MOST_DEMANDS", 2)
    names = [f"j{number}" for number in range(7)]
    it = autoscaler(drop=drop).given(node(fast=3), scaled(WORK), *map(job, names)).at(1.0)
    found = decisions(it.settle())
    assert [(len(fact.demands), len(fact.dropped)) for fact in found] == (
        [(2, 2), (1, 2)] if drop else [(2, 0), (2, 0), (2, 0), (1, 0)]
    )
    assert {*widths(list(found)), *(job_id for fact in found for job_id in fact.dropped)} == set(names)


def test_nobody_is_dropped_while_no_node_is_there_yet() -> None:
    it = autoscaler(drop=True).given(scaled(WORK), job("a")).at(1.0)
    assert not [job_id for fact in decisions(it.settle()) for job_id in fact.dropped]


def test_a_job_that_waits_although_it_has_run_is_never_dropped() -> None:
    it = seasoned(2, drop=True)
    it.given(ended(it, "a", 100.0, "preempted"), job("b", fixed(2), 0.1))
    assert not [job_id for fact in decisions(it.settle()) for job_id in fact.dropped]


def test_a_job_that_has_no_batch_to_divide_is_taken_as_it_is() -> None:
    it = autoscaler().given(node(fast=4), job("a", elastic(batch_size=0))).at(20.0)
    it.then()


def test_a_demand_of_another_epoch_is_void() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK), job("a")).at(1.0)
    it.settle()
    stale = ScaleDecided(at_s=1.0, pool="default", demands=(Demand(job_id="a", epoch=0, gpus=2),))
    it.given(stale).then()
    assert it.state.jobs["a"].spec.gpus == 4
