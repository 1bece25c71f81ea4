"""Runs that are to be of another width: they make way, and their jobs are placed again."""

from __future__ import annotations

from matcher_facts import Matcher, ended, job, matcher, node, on
from sharing_facts import devices, lane, make_true, preempted

from penstock_log import Demand, TrialsScaled


def pool(*facts: object) -> Matcher:
    one = matcher(lane_reserve_share=0.0).given(node("n1", fast=4), *facts)
    make_true(one, 2.0)
    return one


def demand(job_id: str, epoch: int = 1, **fields: object) -> TrialsScaled:
    return TrialsScaled(at_s=3.0, sweep_id="s1", demands=(Demand(job_id=job_id, epoch=epoch, **fields),))


def test_a_run_makes_way_for_its_own_next_run_on_more_devices():
    one = pool(job("a"), job("b"))
    one.given(demand("a", gpus=3, reason="a device has come free"))
    (found,) = make_true(one, 4.0)
    assert [(p.job_id, p.epoch, p.reason) for p in found.preemptions] == [("a", 1, "a device has come free")]
    one.given(ended("a", 5.0, outcome="preempted"))
    (found,) = make_true(one, 6.0)
    assert [(p.job_id, p.epoch, len(p.slots[0].devices)) for p in found.placements] == [("a", 2, 3)]
    assert one.state.jobs["b"].epoch == 1, "who is not named is not touched"


def test_a_job_asks_for_its_new_width_only_once():
    one = pool(job("a"))
    one.given(demand("a", gpus=2))
    assert preempted(make_true(one, 4.0)) == {"a"}
    assert make_true(one, 4.5) == []
    one.given(ended("a", 5.0, outcome="preempted"))
    make_true(one, 6.0)
    assert make_true(one, 7.0) == []


def test_a_job_that_waits_is_placed_at_the_width_it_is_given():
    one = pool(job("a", gpus=4), job("b", gpus=4))
    one.given(demand("b", epoch=0, gpus=1), ended("a", 5.0))
    (found,) = make_true(one, 6.0)
    assert [on(p) for p in found.placements] == [("b", "fast", 2, (("n1", (0,)),))]


def test_a_run_that_is_narrowed_joins_others_who_share():
    one = pool(lane("a", sharers=2), job("b", user="ada"))
    one.given(lane("c", sharers=2, at_s=3.0))
    make_true(one, 3.0)
    assert devices(one) == {"n1/0": {"a", "c"}, "n1/1": {"b"}}
    one.given(demand("c", sharing="exclusive"))
    assert preempted(make_true(one, 4.0)) == {"c"}
    one.given(ended("c", 5.0, outcome="preempted"))
    make_true(one, 6.0)
    assert devices(one) == {"n1/0": {"a"}, "n1/1": {"b"}, "n1/2": {"c"}}


def test_a_device_gets_no_more_jobs_than_any_of_those_on_it_allows():
    one = pool(*(lane(name, sharers=2) for name in "abcde"))
    assert devices(one) == {"n1/0": {"a", "b"}, "n1/1": {"c", "d"}, "n1/2": {"e"}}
    one.given(lane("free", at_s=3.0), lane("alone", sharers=1, at_s=3.0))
    make_true(one, 3.5)
    assert devices(one) == {"n1/0": {"a", "b"}, "n1/1": {"c", "d"}, "n1/2": {"e", "free"}, "n1/3": {"alone"}}
