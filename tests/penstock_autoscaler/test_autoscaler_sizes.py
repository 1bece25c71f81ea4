"""Sizes as jobs and nodes come and go."""

from __future__ import annotations

import msgspec
import pytest
from scaling_facts import (
    GIB,
    autoscaler,
    decisions,
    demands,
    elastic,
    ended,
    fixed,
    job,
    node,
    placed,
    preempted,
    ranked,
    scaled,
    seasoned,
    widths,
)

from penstock_log import (
    JobCancelled,
    JobHeld,
    JobReleased,
    NodeDrained,
    NodeJoined,
    ProfileSample,
    RunCheckpointed,
    SamplesRequested,
)

WORK = elastic()


def test_a_new_job_gets_as_many_devices_as_help_it() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK)).at(1.0).when(job("a"))
    (decided,) = decisions(it.settle())
    assert widths([decided]) == {"a": 4}
    assert decided.because == "arrival"
    assert it.state.jobs["a"].spec.gpus == 4
    assert it.state.jobs["a"].epoch == 1


def test_a_new_job_is_sized_even_where_it_keeps_what_it_asks_for() -> None:
    it = autoscaler().given(node(fast=1), scaled(WORK)).at(1.0).when(job("a"))
    assert widths(it.settle()) == {"a": 1}
    assert it.state.jobs["a"].epoch == 1


def test_a_new_job_that_finds_no_room_is_told_its_smallest_size_and_waits_with_it() -> None:
    it = autoscaler().given(node(fast=2), scaled(WORK), job("b", fixed(2), 0.9), job("a")).at(1.0)
    assert widths(it.settle()) == {"a": 1}


def test_two_jobs_share_what_is_there() -> None:
    it = autoscaler().given(node(fast=8), scaled(WORK), job("a"), job("b")).at(1.0)
    assert widths(it.settle()) == {"a": 4, "b": 4}


def test_a_running_job_shrinks_for_a_newcomer_and_says_what_it_gives() -> None:
    it = seasoned().when(job("b", at_s=100.0))
    (decided,) = decisions(it.settle())
    assert widths([decided]) == {"a": 2, "b": 2}
    assert decided.because == "arrival"
    assert demands([decided])["a"].gives == {"b": 2}
    assert it.state.jobs["a"].demand is not None


def test_it_grows_when_another_ends() -> None:
    it = seasoned().given(job("b", at_s=100.0))
    it.settle()
    it.given(*preempted(it, "a", 101.0)).at(102.0).settle()
    it.given(*placed(it, "a", 102.0, 0, 1), *placed(it, "b", 102.0, 2, 3)).at(200.0).then()
    (decided,) = decisions(it.when(ended(it, "b", 200.0)).settle())
    assert widths([decided]) == {"a": 4}
    assert decided.because == "completion"


def test_it_shrinks_to_let_a_fixed_gang_in() -> None:
    it = seasoned().when(job("b", fixed(3), at_s=100.0))
    (decided,) = decisions(it.settle())
    assert widths([decided]) == {"a": 1}
    assert demands([decided])["a"].gives == {"b": 3}


def test_it_does_not_make_way_altogether_for_a_job_of_its_own_queue() -> None:
    it = seasoned().when(job("b", fixed(4), at_s=100.0))
    assert not widths(it.settle())


def test_who_comes_first_is_admitted_first() -> None:
    three = elastic(3, 4)
    facts = [node(fast=4), scaled(three), job("a", three), job("b", three)]
    first = autoscaler().given(*facts, ranked(a=1.0, b=2.0)).at(2.0)
    assert widths(first.settle()) == {"a": 4, "b": 3}  # b waits, and asks for the least
    second = autoscaler().given(*facts, ranked(a=2.0, b=1.0)).at(2.0)
    assert widths(second.settle()) == {"a": 3, "b": 4}


def test_a_change_of_the_order_is_followed() -> None:
    three = elastic(3, 4)
    it = autoscaler().given(node(fast=4), scaled(three), job("a", three), job("b", three), ranked(a=1.0, b=2.0)).at(2.0)
    it.settle()
    (decided,) = decisions(it.when(ranked(3.0, a=3.0)).settle())
    assert widths([decided]) == {"a": 3, "b": 4}
    assert decided.because == "order"


def test_a_waiting_job_of_several_devices_is_resized_when_a_fixed_job_has_taken_some() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK), job("a")).at(1.0)
    it.settle()
    it.given(job("b", fixed(2), 0.5))
    it.given(*placed(it, "b", 1.2, 2, 3))
    assert widths(it.at(1.3).settle()) == {"a": 2}
    assert it.state.jobs["a"].epoch == 2


def test_new_nodes_are_used_and_lost_ones_are_not_counted() -> None:
    it = autoscaler().given(node(fast=2), scaled(WORK), job("a")).at(1.0)
    it.settle()
    (decided,) = decisions(it.when(node("n2", fast=2)).settle())
    assert widths([decided]) == {"a": 4}
    assert decided.because == "nodes"
    assert widths(it.when(NodeDrained(at_s=3.0, node_id="n2")).settle()) == {"a": 2}


def test_a_job_on_a_node_that_is_drained_is_left_alone() -> None:
    it = seasoned()
    it.when(NodeDrained(at_s=100.0, node_id="n1"), job("b", at_s=100.0), node("n2", fast=2))
    assert widths(it.settle()) == {"b": 2}


def test_devices_that_jobs_share_are_not_counted() -> None:
    it = autoscaler().given(node(fast=3), scaled(WORK), job("l", fixed(1, sharing="lane"), 0.6)).at(1.0)
    it.given(*placed(it, "l", 0.7, 0)).when(job("a"))
    assert widths(it.settle()) == {"a": 2}


@pytest.mark.parametrize(("sharers", "left"), [(0, 2), (2, 3), (4, 3)])
def test_waiting_jobs_that_share_take_as_many_devices_as_they_would_open(sharers: int, left: int) -> None:
    lanes = [job(f"l{i}", fixed(1, sharing="lane", sharers=sharers), 0.6) for i in range(2)]
    it = autoscaler().given(node(fast=4), scaled(WORK), *lanes).at(1.0).when(job("a"))
    assert widths(it.settle()) == {"a": left}


@pytest.mark.parametrize(("gib", "most"), [(0, 4), (8, 4), (12, 2), (30, 1)])
def test_a_job_is_no_wider_than_the_hosts_have_room_for_what_it_asks(gib: int, most: int) -> None:
    asking = elastic(host_memory_bytes=gib * GIB)
    joined = msgspec.structs.replace(node(fast=4), cpus=8.0, host_memory_bytes=32 * GIB)
    it = autoscaler().given(joined, scaled(asking)).at(1.0)
    assert widths(it.when(job("a", asking)).settle())["a"] <= most


def sample(gpus: int) -> SamplesRequested:
    asked = ProfileSample(sample_id="s1", kind="fast", iterations=5, gpus=gpus)
    return SamplesRequested(at_s=100.0, key="k", spec=fixed(1), samples=(asked,))


def test_no_run_is_resized_for_the_profilers_samples() -> None:
    it = seasoned()
    it.when(sample(gpus=2)).then()
    assert widths(it.when(node("n2", 101.0, fast=1)).at(101.0).settle()) == {"a": 5}


def test_a_sample_that_can_start_on_idle_devices_comes_before_the_others() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK)).at(100.0)
    it.when(sample(gpus=1), job("a", at_s=100.0))
    assert widths(it.settle()) == {"a": 3}


def test_a_job_that_is_held_asks_for_nothing_until_it_is_released() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK), job("a", elastic(hold=True)), job("b")).at(1.0)
    assert widths(it.settle()) == {"b": 4}
    (decided,) = decisions(it.when(JobReleased(at_s=5.0, job_id="a")).settle())
    assert widths([decided]) == {"a": 2, "b": 2}
    assert widths(it.when(JobHeld(at_s=6.0, job_id="a")).settle()) == {"b": 4}


def test_what_a_cancelled_job_leaves_is_not_given_away_before_it_has_left() -> None:
    it = seasoned(8).given(job("b", at_s=100.0))
    it.settle()
    it.given(*preempted(it, "a", 101.0)).at(102.0).settle()
    it.given(*placed(it, "a", 102.0, 0, 1, 2, 3), *placed(it, "b", 102.0, 4, 5, 6, 7)).at(200.0).then()
    it.when(JobCancelled(at_s=200.0, job_id="b")).then()
    assert widths(it.when(ended(it, "b", 201.0, "cancelled")).at(201.0).settle()) == {"a": 8}


def test_nobody_shrinks_for_a_job_that_can_have_what_a_cancelled_one_is_about_to_leave() -> None:
    it = seasoned(8).given(job("b", at_s=100.0))
    it.settle()
    it.given(*preempted(it, "a", 101.0)).at(102.0).settle()
    it.given(*placed(it, "a", 102.0, 0, 1, 2, 3), *placed(it, "b", 102.0, 4, 5, 6, 7)).at(200.0).then()
    it.when(JobCancelled(at_s=200.0, job_id="b"), job("c", fixed(2), 200.0)).then()
    assert widths(it.when(ended(it, "b", 201.0, "cancelled")).at(201.0).settle()) == {"a": 6}


@pytest.mark.parametrize("sharing", ["exclusive", "lane"])
def test_a_job_that_is_not_to_begin_yet_takes_no_device_from_an_elastic_one(sharing: str) -> None:
    it = seasoned().given(job("b", fixed(sharing=sharing, begin_s=1e6), 100.0)).at(500.0)
    assert demands(it.settle()) == {}


def test_nobody_shrinks_for_a_job_before_its_next_try_is_due() -> None:
    it = seasoned(4, elastic(1, 3)).given(job("b", fixed(retries=1, backoff_s=50.0), 50.0))
    it.given(*placed(it, "b", 51.0, 3))
    it.given(ended(it, "b", 100.0, "failed", exit_code=1), job("c", fixed(), 100.0)).then()
    it.given(*placed(it, "c", 100.0, 3)).then().then_wakes_at(150.0)
    assert widths(it.at(150.0).settle()) == {"a": 2}


def test_pools_are_decided_each_for_itself() -> None:
    other = elastic(pool="other")
    it = autoscaler().given(node(fast=2), node("n2", pool="other", fast=3), scaled(WORK)).at(1.0)
    found = decisions(it.when(job("a"), job("b", other)).settle())
    assert {fact.pool: widths([fact]) for fact in found} == {"default": {"a": 2}, "other": {"b": 3}}


def test_a_size_is_for_one_kind_where_a_job_accepts_several() -> None:
    it = autoscaler().given(node(fast=2, slow=4), scaled(WORK, 1.0, {1: 0.4, 2: 0.21, 4: 0.11}, 0, "fast")).at(1.0)
    found = demands(it.when(job("a", elastic(2, 4))).settle())["a"]
    assert (found.gpus, found.kinds) == (2, ("fast",))
    assert it.state.jobs["a"].spec.kinds == ("fast",)
    it.when(NodeDrained(at_s=2.0, node_id="n1"), NodeJoined(at_s=2.0, node_id="n2", devices=node(slow=2).devices))
    assert demands(it.settle())["a"].gpus == 2


@pytest.mark.parametrize("drop", [False, True])
def test_a_job_that_only_some_devices_of_a_kind_hold_keeps_its_smallest_width_and_finds_room(drop: bool) -> None:
    there = [msgspec.structs.replace(device, memory_bytes=device.index * GIB) for device in node(fast=4).devices]
    large = elastic(2, 4, memory_bytes=2 * GIB, profile="off", command=("python", "large.py"))
    it = autoscaler(drop=drop).given(msgspec.structs.replace(node(), devices=tuple(there)), scaled(WORK)).at(1.0)
    assert widths(it.when(job("a", large)).settle()) == {"a": 2}
    assert widths(it.when(job("b")).settle()) == {"b": 2}
    it.given(*placed(it, "a", 2.0, 2, 3), RunCheckpointed(at_s=2.0, job_id="a", epoch=2, node_id="n1", step=9))
    it.at(100.0).then()


def test_a_pool_without_elastic_jobs_is_left_alone() -> None:
    it = autoscaler().given(node(fast=2), job("b", fixed(4))).at(1.0)
    it.then().then_wakes_at(None)
