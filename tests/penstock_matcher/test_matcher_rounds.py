"""Rounds: who starts where, in which order, and who makes room."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from matcher_facts import (
    GIB,
    causes,
    ended,
    job,
    matcher,
    node,
    on,
    profiled,
    queued,
    rounds,
    run_all,
    slot,
    spec,
    where,
)

from penstock_log import (
    DeviceDrained,
    DeviceFailed,
    DeviceResumed,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobUnblocked,
    MemoryNeed,
    NodeDrained,
    NodeLeft,
    NodeResumed,
    Placement,
    Preemption,
    ProfileSample,
    RoundDecided,
    RunEnded,
    SamplesRequested,
)


@pytest.fixture
def cluster():
    """One node with two fast and two slow devices."""
    return matcher().given(node("n1", fast=2, slow=2))


@pytest.fixture
def pair():
    """One node with two fast devices."""
    return matcher().given(node("n1", fast=2))


def test_a_job_starts_on_an_idle_device_under_epoch_1(pair):
    placement = Placement(job_id="j1", epoch=1, kind="fast", slots=(slot("n1", 0),))
    pair.at(2.0).when(job("j1")).then(RoundDecided(pool="default", at_s=2.0, placements=(placement,)))
    pair.then().then_wakes_at(None)


def test_without_jobs_there_is_no_round(pair):
    pair.at(2.0).then().then_wakes_at(None)


def test_a_device_is_free_again_when_the_run_has_ended_on_its_node(pair):
    pair.given(job("a"), job("b"), job("c", at_s=1.5))
    assert run_all(pair, 2.0) == {"a": "fast", "b": "fast"}
    pair.given(JobCancelled(job_id="a", at_s=3.0)).at(3.0)
    assert where(pair.settle()) == {}
    pair.given(ended("a", 4.0, outcome="cancelled")).at(4.0)
    assert where(pair.settle()) == {"c": "fast"}


def test_a_run_that_is_preempted_or_retried_comes_back_under_the_next_epoch(pair):
    pair.given(job("a", retries=1, backoff_s=0.0))
    run_all(pair, 2.0)
    pair.given(ended("a", 5.0, outcome="failed")).at(5.0)
    (fact,) = rounds(pair.settle())
    assert [on(p) for p in fact.placements] == [("a", "fast", 2, (("n1", (0,)),))]


def test_the_order_is_queue_then_position_and_a_job_without_a_rank_counts_as_new():
    one = matcher().given(node("n1", fast=1), job("a"), job("b"), job("c", at_s=1.5))
    one.given(queued(a=1, b=0))
    assert where(one.at(3.0).settle()) == {"c": "fast"}  # submitted at 1.5, before b entered queue 0 at 3
    one.given(ended("c", 4.0)).at(4.0)
    assert where(one.settle()) == {"b": "fast"}


def test_samples_go_before_everybody_but_preempt_nobody():
    one = matcher().given(node("n1", fast=1), job("a"))
    run_all(one, 2.0)
    one.given(queued(a=2), job("b", at_s=2.5))
    sample = ProfileSample(sample_id="s1", kind="fast", iterations=4)
    one.given(SamplesRequested(key="k", spec=spec(), samples=(sample,), at_s=3.0))
    one.given(JobCancelled(job_id="b", at_s=3.0)).at(60.0)
    assert all(not fact.preemptions for fact in rounds(one.settle()))
    one.given(job("c", at_s=60.0), ended("a", 61.0)).at(61.0)
    assert where(one.settle()) == {"s1": "fast"}


def test_a_cpu_device_is_given_only_to_those_who_name_it():
    one = matcher().given(node("n1", cpu=1), job("a"), job("b", kinds=("cpu",)))
    assert where(one.at(2.0).settle()) == {"b": "cpu"}
    assert causes(one) == {"a": "never_fits"}


def test_memory_decides_within_a_kind():
    one = matcher().given(node("n1", fast=1), job("small"), job("large", memory_bytes=9 * GIB))
    assert where(one.at(2.0).settle()) == {"small": "fast"}
    assert causes(one) == {"large": "never_fits"}


def test_pools_do_not_share_nodes():
    two = matcher().given(node("n1", fast=1), node("n2", pool="lab", fast=1), job("a"), job("b"), job("c", pool="lab"))
    facts = rounds(two.at(2.0).settle())
    assert [(fact.pool, [p.job_id for p in fact.placements]) for fact in facts] == [("default", ["a"]), ("lab", ["c"])]


# --- matching


def test_the_job_with_the_larger_speed_up_gets_the_fast_device():
    mlp, cnn = spec(model="mlp"), spec(model="cnn")
    two = matcher().given(
        node("n1", fast=1, slow=1), profiled(mlp, fast=1.0, slow=0.9), profiled(cnn, fast=1.0, slow=0.1)
    )
    two.given(job("a", model="mlp", duration_s=10.0), job("b", at_s=1.5, model="cnn", duration_s=10.0))
    assert where(two.at(2.0).settle()) == {"a": "slow", "b": "fast"}


def test_a_job_waits_for_a_fast_device_that_is_soon_free_and_says_so():
    mlp = spec(model="mlp")
    two = matcher().given(node("n1", fast=1, slow=1), profiled(mlp, fast=1.0, slow=0.1))
    two.given(job("a", model="mlp", duration_s=10.0))
    assert run_all(two, 2.0) == {"a": "fast"}
    two.given(job("b", at_s=8.0, model="mlp", duration_s=10.0)).at(8.0)
    (fact,) = rounds(two.settle())
    (wait,) = fact.waits
    assert (wait.cause, wait.remedy) == ("later_place", "accept kind `slow` only: it starts now, at 0.1x speed")
    assert "`fast` is expected in 4.0 s" in wait.evidence
    two.then_wakes_at(12.0)
    two.given(ended("a", 12.5)).at(12.5)
    assert where(two.settle()) == {"b": "fast"}


@pytest.mark.parametrize("declared", [{"duration_s": 10.0}, {}])
def test_nobody_waits_for_ever_beside_an_idle_device_for_one_that_is_always_expected_soon(declared):
    mlp = spec(model="mlp")
    two = matcher(prior_service_s=10.0).given(node("n1", fast=1, slow=1), profiled(mlp, fast=1.0, slow=0.45))
    two.given(job("a", model="mlp", **declared))
    assert run_all(two, 2.0) == {"a": "fast"}
    now_s = 10.0
    two.given(job("b", at_s=now_s, model="mlp", duration_s=10.0))
    while not (found := where(two.at(now_s).settle())):
        now_s = two.decision().wake_at_s
        assert now_s < 60.0  # a never ends
    assert found == {"b": "slow"}
    assert now_s > 12.0


def test_what_the_pool_has_finished_tells_how_long_an_unknown_job_takes():
    mlp = spec(model="mlp")
    two = matcher(prior_service_s=1000.0).given(node("n1", fast=1, slow=1), profiled(mlp, fast=1.0, slow=0.5))
    two.given(job("a", model="mlp"))
    run_all(two, 2.0)
    two.given(ended("a", 6.0))
    assert two.state.finished_s == {"default": [4.0]}
    two.given(job("b", at_s=7.0, model="mlp"), job("c", at_s=7.5, model="mlp"))
    assert run_all(two, 10.0) == {"b": "fast", "c": "slow"}


def test_jobs_that_are_all_alike_start_in_rank_order():
    one = matcher().given(node("n1", fast=1), *(job(f"j{i}", at_s=9.0 - i) for i in range(8)))
    assert where(one.at(10.0).settle()) == {"j7": "fast"}


def test_within_a_queue_a_short_job_goes_first_but_not_for_ever():
    one = matcher(patience_s=30.0).given(node("n1", fast=1), job("now", duration_s=1.0))
    run_all(one, 2.0)
    one.given(job("long", at_s=3.0, duration_s=500.0), job("short", at_s=4.0, duration_s=1.0))
    one.given(ended("now", 5.0)).at(5.0)
    assert run_all(one, 5.0) == {"short": "fast"}
    one.given(job("short2", at_s=40.0, duration_s=1.0), ended("short", 41.0))
    assert run_all(one, 41.0) == {"long": "fast"}


def test_a_shorter_job_of_a_higher_queue_number_does_not_go_first():
    one = matcher().given(node("n1", fast=1), job("long", duration_s=500.0), job("short", duration_s=1.0))
    one.given(queued(long=0, short=1))
    assert where(one.at(5.0).settle()) == {"long": "fast"}


# --- gangs


def test_a_gang_starts_whole_on_one_kind_or_not_at_all():
    one = matcher().given(node("n1", fast=1, slow=2), job("g", gpus=2))
    (fact,) = rounds(one.at(2.0).settle())
    assert [on(p) for p in fact.placements] == [("g", "slow", 1, (("n1", (1, 2)),))]


def test_a_gang_may_span_nodes_and_takes_the_fewest():
    three = matcher().given(node("n1", fast=1), node("n2", fast=3), node("n3", fast=2), job("g", gpus=4))
    (fact,) = rounds(three.at(2.0).settle())
    assert [on(p) for p in fact.placements] == [("g", "fast", 1, (("n1", (0,)), ("n2", (0, 1, 2))))]


def test_a_gang_takes_the_node_where_it_leaves_least_over():
    two = matcher().given(node("n1", fast=4), node("n2", fast=2), job("g", gpus=2))
    (fact,) = rounds(two.at(2.0).settle())
    assert [on(p) for p in fact.placements] == [("g", "fast", 1, (("n2", (0, 1)),))]


def test_smaller_jobs_start_behind_a_gang_that_does_not_fit(pair):
    pair.given(job("a"), job("g", at_s=1.5, gpus=2), job("b", at_s=1.7))
    assert run_all(pair, 2.0) == {"a": "fast", "b": "fast"}
    assert causes(pair) == {"g": "capacity"}


def test_backfill_does_not_starve_a_gang(pair):
    pair.given(job("s0"), job("g", at_s=1.5, gpus=2))
    started_s = dict.fromkeys(run_all(pair, 2.0), 2.0)
    for now_s in range(3, 80):  # one job arrives every second, and each runs for two
        pair.given(job(f"s{now_s}", at_s=now_s - 0.5))
        for done in [job_id for job_id, at_s in started_s.items() if at_s <= now_s - 2]:
            del started_s[done]
            pair.given(ended(done, float(now_s)))
        started_s |= dict.fromkeys(run_all(pair, float(now_s)), float(now_s))
        if "g" in started_s:
            break
    assert 31 <= now_s <= 35  # patient for 30 s, then the devices that fall free are kept for it


def test_an_impatient_gang_keeps_what_is_free_and_the_others_are_told():
    one = matcher(patience_s=30.0).given(node("n1", fast=2), job("a"))
    run_all(one, 2.0)
    one.given(job("g", at_s=3.0, gpus=2)).at(3.0)
    one.settle()
    one.then_wakes_at(33.0)
    one.given(job("b", at_s=33.0)).at(33.0)
    (fact,) = rounds(one.settle())
    assert fact.placements == ()
    assert {wait.job_id: wait.cause for wait in fact.waits} == {"g": "capacity", "b": "capacity"}
    assert fact.waits[0].evidence == "what falls free of fast is kept for it; it needs 2 and has 1 so far"
    assert fact.waits[1].evidence == "2 fast busy with 1 job of queue 0, or kept free for `g`; 1 waiting job before it"
    one.given(ended("a", 40.0)).at(40.0)
    assert where(one.settle()) == {"g": "fast"}


def test_of_two_kinds_that_are_as_far_an_impatient_gang_keeps_the_faster():
    mlp = spec(model="mlp")
    one = matcher(patience_s=30.0).given(node("n1", fast=2, slow=2), profiled(mlp, fast=1.0, slow=0.4))
    one.given(job("a", kinds=("fast",)), job("b", kinds=("slow",)))
    run_all(one, 2.0)
    one.given(job("g", at_s=3.0, gpus=2, model="mlp"), job("c", at_s=33.0, kinds=("fast",))).at(33.0)
    one.given(job("d", at_s=33.0, kinds=("slow",)))
    assert where(one.settle()) == {"d": "slow"}


def test_two_gangs_that_keep_devices_do_not_block_each_other_for_ever():
    one = matcher(patience_s=5.0).given(node("n1", fast=3, slow=3), *(job(name, at_s=0.9) for name in "abcdef"))
    runs = list(run_all(one, 1.0))
    gangs = [job(f"g{i}", at_s=2.0 + i / 10, gpus=3) for i in range(3)]
    one.given(*gangs, *(job(f"s{i}", at_s=3.0, gpus=2) for i in range(3)))
    begun: list[str] = []
    for now_s in range(10, 30):  # all are impatient by now, and one run ends every second
        if runs:
            one.given(ended(runs.pop(0), float(now_s)))
        new = run_all(one, float(now_s))
        runs += new
        begun += new
    assert sorted(begun) == ["g0", "g1", "g2", "s0", "s1", "s2"]
    assert begun.index("g0") < begun.index("g2")


def test_a_gang_that_could_never_fit_keeps_nothing():
    one = matcher().given(node("n1", fast=2), job("g", gpus=3), job("a", at_s=99.0))
    assert where(one.at(100.0).settle()) == {"a": "fast"}


# --- preemption


def preemptions(facts):
    return [(p.job_id, p.epoch) for fact in rounds(facts) for p in fact.preemptions]


def test_a_run_makes_room_for_a_job_of_a_lower_queue_once_it_has_run_long_enough():
    one = matcher(min_run_s=5.0).given(node("n1", fast=1), job("old"))
    run_all(one, 2.0)
    one.given(queued(old=1), job("new", at_s=4.0)).at(4.0)
    assert preemptions(one.settle()) == []
    one.then_wakes_at(7.0)
    one.at(7.0)
    (fact,) = rounds(one.settle())
    assert fact.preemptions == (
        Preemption(job_id="old", epoch=1, reason="for job new of queue 0; this one is of queue 1", for_job="new"),
    )
    one.at(8.0).then()
    one.given(ended("old", 8.5, outcome="preempted")).at(8.5)
    assert run_all(one, 8.5) == {"new": "fast"}
    one.given(ended("new", 9.5)).at(9.5)
    assert run_all(one, 9.5) == {"old": "fast"}
    assert one.state.jobs["old"].epoch == 2


def test_never_within_a_queue():
    one = matcher().given(node("n1", fast=1), job("old"))
    run_all(one, 2.0)
    one.given(queued(old=0), job("new", at_s=4.0)).at(1000.0)
    assert preemptions(one.settle()) == []


def test_nobody_is_preempted_for_a_job_that_finds_an_idle_device(cluster):
    cluster.given(job("a"), job("b"))
    run_all(cluster, 2.0)
    cluster.given(queued(a=1, b=1), job("c", at_s=10.0)).at(10.0)
    facts = cluster.settle()
    assert (where(facts), preemptions(facts)) == ({"c": "slow"}, [])


def test_a_gang_preempts_only_as_many_as_it_needs_lowest_ranked_first():
    one = matcher().given(node("n1", fast=4), *(job(name) for name in "abcd"))
    run_all(one, 2.0)
    one.given(queued(a=1, b=1, c=2, d=1), job("g", at_s=10.0, gpus=2)).at(10.0)
    assert preemptions(one.settle()) == [("c", 1), ("d", 1)]


def test_devices_of_stopping_runs_are_kept_for_whom_they_stop():
    one = matcher().given(node("n1", fast=2), job("a"), job("b"))
    run_all(one, 2.0)
    one.given(queued(a=1, b=1), job("g", at_s=10.0, gpus=2)).at(10.0)
    assert preemptions(one.settle()) == [("a", 1), ("b", 1)]
    one.given(ended("a", 10.5, outcome="preempted"), job("s", at_s=10.6)).at(10.6)
    assert where(one.settle()) == {}
    one.given(ended("b", 10.7, outcome="preempted")).at(10.7)
    assert where(one.settle()) == {"g": "fast"}


def test_a_gang_that_is_preempted_leaves_the_rest_of_its_devices_to_others():
    one = matcher().given(node("n1", fast=4), job("g", gpus=4))
    run_all(one, 2.0)
    one.given(queued(g=2), job("a", at_s=10.0), job("b", at_s=10.1)).at(10.1)
    assert preemptions(one.settle()) == [("g", 1)]
    one.given(ended("g", 11.0, outcome="preempted"))
    assert run_all(one, 11.0) == {"a": "fast", "b": "fast"}


def test_what_was_made_free_for_a_job_does_not_go_to_a_sample():
    two = matcher().given(node("n1", fast=2), job("a"), job("b"))
    run_all(two, 2.0)
    two.given(queued(a=1, b=1), job("new", at_s=10.0)).at(10.0)
    assert preemptions(two.settle()) == [("b", 1)]
    sample = ProfileSample(sample_id="s1", kind="fast", iterations=4)
    two.given(SamplesRequested(key="k", spec=spec(), samples=(sample,), at_s=10.1))
    two.given(ended("b", 10.5, outcome="preempted")).at(10.5)
    facts = two.settle()
    assert (where(facts), preemptions(facts)) == ({"new": "fast"}, [])
    assert two.state.promised == set()


@pytest.mark.parametrize("last", [JobCancelled(job_id="new", at_s=10.1), JobHeld(job_id="new", at_s=10.1)])
def test_a_job_that_no_longer_waits_has_nothing_promised(last):
    one = matcher().given(node("n1", fast=1), job("a"))
    run_all(one, 2.0)
    one.given(queued(a=1), job("new", at_s=10.0)).at(10.0).settle()
    assert one.state.promised == {"new"}
    assert one.given(last).state.promised == set()


def test_a_workload_that_is_slow_to_start_runs_so_long_that_it_pays():
    one = matcher(min_run_s=5.0, overhead_share=0.2).given(node("n1", fast=1), job("old"))
    run_all(one, 2.0)
    first = RunEnded(
        job_id="old", epoch=1, node_id="n1", outcome="preempted", steps=9, loop_steps=9, loop_s=4.0, at_s=16.0
    )
    one.given(queued(old=1), first)  # it ran for 14 s, and 10 of them were no loop
    run_all(one, 20.0)
    one.given(job("new", at_s=30.0)).at(30.0)
    assert preemptions(one.settle()) == []
    one.then_wakes_at(70.0)
    one.at(70.0)
    assert preemptions(one.settle()) == [("old", 2)]


def test_a_command_that_starts_over_each_time_comes_to_its_end_however_many_overtake_it():
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), job("old"))
    now_s, runs_s = 2.0, []
    for i in range(5):
        run_all(one, now_s)
        one.given(queued(old=1), job(f"new{i}", at_s=now_s, command=("other",))).at(now_s)
        start_s = now_s
        while not preemptions(one.settle()):
            now_s = one.decision().wake_at_s
            one.at(now_s)
        runs_s.append(now_s - start_s)
        one.given(ended("old", now_s, epoch=i + 1, outcome="preempted"))
        assert run_all(one, now_s) == {f"new{i}": "fast"}
        now_s += 1.0
        one.given(ended(f"new{i}", now_s))
    assert all(later >= 2 * earlier for earlier, later in pairwise(runs_s))


# --- what keeps a job from starting


def test_a_held_job_starts_when_it_is_released(pair):
    pair.given(job("a"), JobHeld(job_id="a", at_s=1.5)).at(2.0)
    assert where(pair.settle()) == {}
    assert causes(pair) == {"a": "held"}
    assert where(pair.given(JobReleased(job_id="a", at_s=3.0)).at(3.0).settle()) == {"a": "fast"}


def test_a_failed_job_backs_off_and_the_matcher_sleeps_until_then(pair):
    pair.given(job("a", retries=2, backoff_s=4.0))
    run_all(pair, 2.0)
    pair.given(ended("a", 5.0, outcome="failed")).at(5.0)
    (fact,) = rounds(pair.settle())
    assert [(w.cause, w.evidence) for w in fact.waits] == [("backoff", "failed 1 of 3 times; its next try is in 4.0 s")]
    pair.then_wakes_at(9.0)
    assert where(pair.at(9.0).settle()) == {"a": "fast"}


@pytest.mark.parametrize("hindrance", [{"begin_s": 100.0}, {"hold": True}, {"after": ("afterok:other",)}])
def test_a_job_that_may_not_start_yet_keeps_no_device_from_those_behind_it(pair, hindrance):
    """It is the first of its demand, and what hinders it does not hold for the others."""
    pair.given(job("a", **hindrance), job("b")).at(2.0)
    assert where(pair.settle()) == {"b": "fast"}
    pair.given(ended("b", 3.0), NodeDrained(node_id="n1", at_s=4.0)).at(4.0).settle()
    pair.given(job("c"), NodeResumed(node_id="n1", at_s=5.0)).at(5.0)  # the index is made anew
    assert "c" in where(pair.settle())


def test_a_job_begins_at_its_time_and_the_matcher_sleeps_until_then(pair):
    pair.given(job("a", begin_s=9.0)).at(2.0)
    (fact,) = rounds(pair.settle())
    assert [(w.cause, w.evidence) for w in fact.waits] == [("begin", "it is to begin in 7.0 s, not before")]
    pair.then_wakes_at(9.0)
    assert where(pair.at(9.0).settle()) == {"a": "fast"}


def test_an_unseen_workload_waits_for_its_speeds_where_it_could_run_on_several_kinds(cluster):
    unseen = spec(model="new", profile="auto")
    cluster.given(job("a", model="new", profile="auto")).at(2.0)
    assert where(cluster.settle()) == {}
    assert causes(cluster) == {"a": "profiling"}
    cluster.then_wakes_at(11.0)
    cluster.given(profiled(unseen, fast=1.0, slow=0.4)).at(3.0)
    assert where(cluster.settle()) == {"a": "fast"}


def test_its_time_for_that_begins_once_it_may_start(cluster):
    cluster.given(job("a", model="new", profile="auto", after=("afterok:x",))).at(2.0).settle()
    cluster.given(JobUnblocked(job_id="a", at_s=50.0)).at(50.0)
    assert where(cluster.settle()) == {}
    assert causes(cluster) == {"a": "profiling"}
    cluster.then_wakes_at(60.0)
    assert where(cluster.at(60.0).settle()) == {"a": "fast"}


def test_it_waits_for_them_no_longer_than_the_setting_says(cluster):
    cluster.given(job("a", profile="on"))
    cluster.at(2.0).settle()
    assert where(cluster.at(11.0).settle()) == {"a": "fast"}


@pytest.mark.parametrize("fields", [{"profile": "off"}, {"profile": "auto"}, {"profile": "on", "kinds": ("slow",)}])
def test_nobody_waits_for_speeds_that_would_decide_nothing(cluster, fields):
    assert set(where(cluster.given(job("a", **fields)).at(2.0).settle())) == {"a"}


# --- nodes

_LANE = {"sharing": "lane", "memory": MemoryNeed(persistent_bytes=1 << 20)}


def test_a_drained_node_takes_nothing_new_and_its_runs_go_on():
    two = matcher().given(node("n1", fast=1), node("n2", fast=1), job("a"))
    run_all(two, 2.0)
    two.given(NodeDrained(node_id="n1", at_s=3.0), NodeDrained(node_id="n2", at_s=3.0), job("b", at_s=3.5)).at(60.0)
    facts = two.settle()
    assert (where(facts), preemptions(facts)) == ({}, [])
    assert causes(two) == {"b": "no_nodes"}
    two.given(NodeResumed(node_id="n2", at_s=61.0)).at(61.0)
    assert where(two.settle()) == {"b": "fast"}


def test_draining_with_preemption_moves_the_runs():
    two = matcher().given(node("n1", fast=1), job("a"))
    run_all(two, 2.0)
    two.given(node("n2", at_s=2.5, fast=1), NodeDrained(node_id="n1", at_s=3.0, preempt=True)).at(3.0)
    (fact,) = rounds(two.settle())
    assert fact.preemptions == (Preemption(job_id="a", epoch=1, reason="node n1 is drained"),)
    two.given(ended("a", 4.0, outcome="preempted")).at(4.0)
    (fact,) = rounds(two.settle())
    assert [on(p) for p in fact.placements] == [("a", "fast", 2, (("n2", (0,)),))]


def test_the_runs_of_a_failed_device_are_moved_and_its_neighbours_go_on():
    two = matcher().given(node("n1", fast=2), job("a"), job("b"))
    run_all(two, 2.0)
    reason = "XID 79: the GPU has fallen off the bus"
    failed = DeviceFailed(node_id="n1", at_s=3.0, index=0, code="xid 79", reason=reason)
    two.given(node("n2", at_s=2.5, fast=1), failed).at(3.0)
    (fact,) = rounds(two.settle())
    assert fact.preemptions == (Preemption(job_id="a", epoch=1, reason=f"device n1/fast0 failed: {reason}"),)
    two.given(ended("a", 4.0, outcome="preempted")).at(4.0)
    (fact,) = rounds(two.settle())
    assert [on(p) for p in fact.placements] == [("a", "fast", 2, (("n2", (0,)),))]


def test_a_gang_with_one_part_on_a_failed_device_is_moved_as_a_whole():
    some = matcher().given(node("n1", fast=2), job("a", gpus=2))
    run_all(some, 2.0)
    some.given(DeviceFailed(node_id="n1", at_s=3.0, index=1, code="lost"), node("n2", at_s=3.0, fast=2)).at(3.0)
    (fact,) = rounds(some.settle())
    assert [p.job_id for p in fact.preemptions] == ["a"]
    some.given(ended("a", 4.0, outcome="preempted")).at(4.0)
    (fact,) = rounds(some.settle())
    assert [on(p) for p in fact.placements] == [("a", "fast", 2, (("n2", (0, 1)),))]


def test_all_lanes_of_a_failed_device_are_moved():
    some = matcher().given(node("n1", fast=1), job("a", **_LANE), job("b", **_LANE))
    run_all(some, 2.0)
    some.given(DeviceFailed(node_id="n1", at_s=3.0, index=0, code="lost"), node("n2", at_s=3.0, fast=1)).at(3.0)
    assert sorted(one.job_id for fact in rounds(some.settle()) for one in fact.preemptions) == ["a", "b"]
    some.given(ended("a", 4.0, outcome="preempted"), ended("b", 4.0, outcome="preempted")).at(4.0)
    places = [on(p) for fact in rounds(some.settle()) for p in fact.placements]
    assert sorted(place[3] for place in places) == [(("n2", (0,)),)] * 2


def test_a_run_of_a_drained_device_goes_on_and_nobody_follows_it(pair):
    pair.given(job("a"), job("b"))
    run_all(pair, 2.0)
    pair.given(DeviceDrained(node_id="n1", at_s=3.0, index=0), job("c", at_s=3.5)).at(60.0)
    assert preemptions(pair.settle()) == []
    pair.given(ended("a", 61.0)).at(61.0)
    assert where(pair.settle()) == {}
    pair.given(DeviceResumed(node_id="n1", at_s=62.0, index=0)).at(62.0)
    assert where(pair.settle()) == {"c": "fast"}


def test_a_pool_rests_again_once_nobody_is_on_its_failed_device(pair):
    pair.given(job("a", gpus=2))
    run_all(pair, 2.0)
    pair.given(DeviceFailed(node_id="n1", at_s=3.0, index=0, code="lost")).at(3.0).settle()
    assert not pair.state.at_rest("default")
    pair.given(ended("a", 4.0, outcome="preempted"), JobCancelled(job_id="a", at_s=4.0)).at(4.0).settle()
    assert pair.state.at_rest("default")


def test_a_node_that_left_takes_nothing_until_it_joins_again(pair):
    pair.given(NodeLeft(node_id="n1", at_s=1.0), job("a")).at(2.0)
    assert where(pair.settle()) == {}
    assert causes(pair) == {"a": "node_down"}
    assert where(pair.given(node("n1", at_s=3.0, fast=2)).at(3.0).settle()) == {"a": "fast"}


def test_a_drained_node_that_restarts_stays_drained(pair):
    pair.given(NodeDrained(node_id="n1", at_s=1.0), node("n1", at_s=2.0, fast=2), job("a")).at(3.0)
    assert where(pair.settle()) == {}


def test_no_job_begins_on_a_node_that_leaves_by_itself_too_soon():
    lent = msgspec.structs.replace(node("n1", fast=1), until_s=100.0)
    one = matcher(least_left_s=5.0).given(lent, job("j"))
    assert not where(one.at(96.0).settle())
    one.given(node("n2", fast=1))
    assert [on(placement) for fact in rounds(one.settle()) for placement in fact.placements] == [
        ("j", "fast", 1, (("n2", (0,)),))
    ]


def test_a_job_begins_on_a_node_with_time_left():
    lent = msgspec.structs.replace(node("n1", fast=1), until_s=100.0)
    assert where(matcher(least_left_s=5.0).given(lent, job("j")).at(94.0).settle()) == {"j": "fast"}


@pytest.mark.parametrize(("until_s", "expected"), [(12.0, []), (13.0, [("old", 1)])])
def test_no_run_is_preempted_on_a_node_that_leaves_by_itself_too_soon(until_s, expected):
    lent = msgspec.structs.replace(node("n1", fast=1), until_s=until_s)
    one = matcher(min_run_s=5.0, least_left_s=5.0).given(lent, job("old"))
    run_all(one, 2.0)
    one.given(queued(old=1), job("new", at_s=4.0)).at(7.5)
    assert preemptions(one.settle()) == expected


def beside_a_node_that_leaves(*facts):
    """Two runs of queue 1, `b` on a node that leaves too soon for a job to begin there, and a job of queue 0."""
    lent = msgspec.structs.replace(node("n2", fast=1), until_s=12.0)
    one = matcher(min_run_s=5.0, least_left_s=5.0).given(node("n1", fast=1), lent, job("a"), job("b"))
    run_all(one, 2.0)
    assert one.state.jobs["b"].open_nodes == {"n2"}
    return one.given(queued(a=1, b=1), *facts, job("new", at_s=4.0)).at(7.5)


def test_a_run_is_preempted_where_a_job_can_begin_and_not_where_the_node_leaves():
    assert preemptions(beside_a_node_that_leaves().settle()) == [("a", 1)]


def test_no_job_waits_for_a_run_that_stops_on_a_node_that_leaves_by_itself_too_soon():
    assert preemptions(beside_a_node_that_leaves(JobCancelled(job_id="b", at_s=3.0)).settle()) == [("a", 1)]


def saved(job_id, at_s, *, asked_s, started_s=2.0):
    """The end of a preempted run that stopped as soon as it was asked to, and then saved until now."""
    loop_s = asked_s - started_s
    fact = ended(job_id, at_s, outcome="preempted")
    return msgspec.structs.replace(fact, steps=10, loop_steps=10, loop_s=loop_s)


def of_slow_checkpoints(until_s, *more, save_s=15.0, gpus=1):
    """A job whose checkpoint took so long waits again, and its node is gone; another has joined, until so late."""
    one = matcher(min_run_s=5.0, least_left_s=5.0).given(
        node("n1", fast=gpus), job("slow", command=("big",), gpus=gpus)
    )
    run_all(one, 2.0)
    one.given(NodeDrained(node_id="n1", preempt=True, at_s=8.0)).at(8.0).settle()
    one.given(saved("slow", 8.0 + save_s, asked_s=8.0), NodeLeft(node_id="n1", at_s=30.0))
    assert one.state.history.costs.by_key, "the save is measured"
    lent = msgspec.structs.replace(node("n2", at_s=40.0, fast=gpus), until_s=until_s)
    return one.given(lent, *more)


@pytest.mark.parametrize(("now_s", "expected"), [(169.0, {"slow": "fast"}), (171.0, {})])
def test_a_job_of_long_checkpoints_begins_only_where_twice_their_time_is_left(now_s, expected):
    assert where(of_slow_checkpoints(200.0).at(now_s).settle()) == expected


def test_a_job_of_long_checkpoints_is_told_how_soon_the_node_leaves():
    one = of_slow_checkpoints(200.0).at(180.0)
    (wait,) = [wait for fact in rounds(one.settle()) for wait in fact.waits]
    assert (wait.job_id, wait.cause) == ("slow", "capacity")
    assert wait.evidence == (
        "idle: 1 fast, but node `n2` leaves in 20 s, and a start and a save of its workload take 15 s"
    )


def test_jobs_of_one_workload_learn_from_each_other_how_long_a_checkpoint_takes():
    one = of_slow_checkpoints(200.0, JobCancelled(job_id="slow", at_s=31.0), job("other", command=("big",), at_s=50.0))
    assert where(one.at(180.0).settle()) == {}


def test_a_short_stay_is_for_every_job_in_its_first_half():
    assert where(of_slow_checkpoints(60.0).at(49.0).settle()) == {"slow": "fast"}
    assert where(of_slow_checkpoints(60.0).at(51.0).settle()) == {}


@pytest.mark.parametrize("gpus", [1, 2])
def test_others_begin_where_too_little_time_is_left_for_a_job_before_them(gpus):
    many = [job(f"s{n}", at_s=41.0 + n, command=("big",), gpus=gpus) for n in range(8)]
    one = of_slow_checkpoints(200.0, *many, job("quick", at_s=60.0, command=("small",), gpus=gpus), gpus=gpus)
    assert where(one.at(180.0).settle()) == {"quick": "fast"}


def test_a_job_of_long_checkpoints_takes_the_node_that_stays():
    one = of_slow_checkpoints(200.0, node("n3", at_s=40.0, fast=1), job("quick", at_s=60.0, command=("small",)))
    placed = {
        placement.job_id: placement.slots[0].node_id
        for fact in rounds(one.at(180.0).settle())
        for placement in fact.placements
    }
    assert placed == {"slow": "n3", "quick": "n2"}


def test_a_job_of_long_checkpoints_preempts_nobody_where_too_little_time_is_left():
    one = of_slow_checkpoints(200.0, job("low", at_s=45.0, command=("small",)), queued(slow=0, low=1))
    one.given(JobHeld(job_id="slow", at_s=45.0))
    assert run_all(one, 172.0) == {"low": "fast"}
    one.given(JobReleased(job_id="slow", at_s=175.0))
    assert preemptions(one.at(180.0).settle()) == []
    assert preemptions(one.given(job("new", at_s=181.0, command=("small",)), queued(new=0)).at(182.0).settle()) == [
        ("low", 1)
    ]
