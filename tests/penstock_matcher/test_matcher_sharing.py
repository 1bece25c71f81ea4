"""Jobs that share devices: who goes where, with whom, and who makes way for whom."""

from __future__ import annotations

import msgspec
import pytest
from matcher_facts import Matcher, ended, job, matcher, node, profiled, queued, rounds, spec
from sharing_facts import devices, gib, lane, make_true, measured, part, preempted

from penstock_log import JobCancelled, ProfileSample, RunCheckpointed, SamplesRequested


def pool(**settings: object) -> Matcher:
    return matcher(**{"min_run_s": 1.0, "lane_reserve_share": 0.0, **settings}).given(node("n1", fast=2))


# --- who goes where
def test_jobs_that_share_are_packed_onto_one_device_and_leave_the_other_whole():
    one = pool().given(lane("a"), lane("b"), lane("c"), job("x"))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a", "b", "c"}, "n1/1": {"x"}}


def test_no_job_joins_others_on_a_node_that_leaves_by_itself_too_soon():
    lent = msgspec.structs.replace(node("n1", fast=1), until_s=100.0)
    one = matcher(lane_reserve_share=0.0, least_left_s=5.0).given(lent, lane("a"))
    make_true(one, 2.0)
    one.given(lane("b", at_s=3.0))
    make_true(one, 96.0)
    assert devices(one) == {"n1/0": {"a"}}
    one.given(node("n2", fast=1))
    make_true(one, 97.0)
    assert devices(one) == {"n1/0": {"a"}, "n2/0": {"b"}}


@pytest.mark.parametrize(("until_s", "expected"), [(12.0, set()), (13.0, {"a"})])
def test_no_job_makes_way_for_another_on_a_node_that_leaves_by_itself_too_soon(until_s, expected):
    lent = msgspec.structs.replace(node("n1", fast=1), until_s=until_s)
    one = matcher(min_run_s=1.0, lane_reserve_share=0.0, least_left_s=5.0).given(lent, lane("a", 3, 3))
    make_true(one, 2.0)
    one.given(queued(a=1), lane("b", 3, 3, at_s=3.0))
    assert preempted(make_true(one, 7.5)) == expected


def test_an_exclusive_job_waits_rather_than_joins():
    one = pool().given(lane("a"), job("x"), job("y"))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a"}, "n1/1": {"x"}}


def test_a_job_that_shares_does_not_join_an_exclusive_one():
    one = matcher().given(node("n1", fast=1), job("x"))
    make_true(one, 2.0)
    one.given(lane("a"))
    assert make_true(one, 3.0)[0].placements == ()


def test_many_who_find_no_room_keep_nobody_from_a_device_that_they_do_not_want():
    one = pool().given(node("n2", slow=1))
    one.given(*(lane(f"a{number:03}", 2, 6 - number / 1000, kinds=("fast",)) for number in range(140)))
    one.given(lane("slow", kinds=("slow",)), lane("small", 0.001, 0.001, kinds=("fast",), at_s=2.0))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a000"}, "n1/1": {"a001", "small"}, "n2/0": {"slow"}}


def test_another_device_is_opened_where_the_first_has_no_room():
    one = pool().given(lane("a", 3, 2), lane("b", 2, 1), lane("c", 2, 1))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a", "b"}, "n1/1": {"c"}}


def test_largest_iteration_counts_once():
    """Of P = 1 and E = 5, three fit into 8 GiB: 3 + 5."""
    one = pool().given(*(lane(name, 1, 5) for name in "abcd"))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a", "b", "c"}, "n1/1": {"d"}}


def test_a_part_of_the_device_is_kept_in_reserve():
    one = pool(lane_reserve_share=0.25).given(*(lane(name, 2, 2) for name in "abc"))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a", "b"}, "n1/1": {"c"}}


def test_best_fit_takes_the_device_with_least_left_over():
    one = pool().given(lane("a", 5, 1), lane("b", 3, 1, kinds=("fast",), share_with="team"))
    make_true(one, 2.0)
    one.given(lane("c", 1, 1))
    make_true(one, 3.0)
    assert devices(one) == {"n1/0": {"a", "c"}, "n1/1": {"b"}}


def test_fractions_add_up_to_a_whole_device():
    one = pool().given(*(part(f"p{i}", 0.1) for i in range(10)), part("q", 0.6), part("r", 0.5))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {f"p{i}" for i in range(10)}, "n1/1": {"q"}}


def test_lanes_and_fractions_are_never_on_one_device():
    one = pool().given(lane("a"), part("p", 0.1), lane("b"), part("q", 0.1))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a", "b"}, "n1/1": {"p", "q"}}


def test_a_job_joins_only_the_kinds_that_it_accepts():
    one = matcher().given(node("n1", slow=1, fast=1), lane("a", kinds=("fast",)), lane("b", kinds=("slow",)))
    make_true(one, 2.0)
    assert devices(one) == {"n1/1": {"a"}, "n1/0": {"b"}}


def test_the_first_opens_a_device_of_the_kind_that_it_is_fastest_on():
    speeds = profiled(spec(), fast=1.0, slow=0.4)
    one = matcher().given(node("n1", slow=1, fast=1), speeds, lane("a"), lane("b"))
    make_true(one, 2.0)
    assert devices(one) == {"n1/1": {"a", "b"}}


def test_no_more_jobs_share_a_device_than_the_pool_allows():
    one = pool(most_sharers=2).given(*(lane(name, 0.1, 0.1) for name in "abc"))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a", "b"}, "n1/1": {"c"}}


# --- with whom
@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ({}, {}, True),
        ({"user": "ann"}, {"user": "bob"}, True),
        ({"user": "ann", "share_with": "user"}, {"user": "bob"}, False),
        ({"user": "ann"}, {"user": "bob", "share_with": "user"}, False),
        ({}, {"team": "speech"}, False),
        ({"share_with": "anyone"}, {"team": "speech"}, False),
        ({"share_with": "anyone"}, {"team": "speech", "share_with": "anyone"}, True),
        ({"team": "", "user": "ann"}, {"team": "", "user": "bob"}, False),
        ({"team": "", "user": "ann"}, {"team": "", "user": "ann"}, True),
        ({"user": "ann"}, {"user": "ann", "team": "speech"}, False),
    ],
)
def test_both_have_to_be_willing(first, second, together):
    one = pool().given(lane("a", **first), lane("b", **second))
    make_true(one, 2.0)
    assert devices(one) == ({"n1/0": {"a", "b"}} if together else {"n1/0": {"a"}, "n1/1": {"b"}})


# --- what is not known yet
def test_a_job_of_unknown_need_has_its_device_alone_until_a_run_has_measured_it():
    one = matcher(lane_reserve_share=0.0).given(node("n1", fast=1), lane("a", memory=None))
    make_true(one, 2.0)
    one.given(lane("b", at_s=3.0))
    make_true(one, 3.0)
    assert devices(one) == {"n1/0": {"a"}}
    one.given(measured("a", gib(2, 2), 4.0))
    make_true(one, 4.0)
    assert devices(one) == {"n1/0": {"a", "b"}}


def test_what_one_run_measured_is_known_of_all_jobs_of_its_workload():
    one = pool().given(lane("a", memory=None))
    make_true(one, 2.0)
    one.given(measured("a", gib(2, 2), 3.0), lane("b", memory=None), lane("c", memory=None))
    make_true(one, 4.0)
    assert devices(one) == {"n1/0": {"a", "b", "c"}}


def test_a_placement_says_what_others_of_the_workload_have_needed_so_that_the_executor_can_go_by_it():
    one = pool().given(lane("a", memory=None))
    assert [p.need for fact in make_true(one, 2.0) for p in fact.placements] == [None]
    one.given(measured("a", gib(2, 2), 3.0), lane("b", memory=None))
    assert [p.need for fact in make_true(one, 4.0) for p in fact.placements] == [gib(2, 2)]
    assert one.state.jobs["b"].need == gib(2, 2)


def test_a_sample_of_the_profiler_tells_what_its_workload_needs_and_has_its_device_alone():
    wanted = lane("a", memory=None).spec
    asked = SamplesRequested(
        at_s=1.0, key="k", spec=wanted, samples=(ProfileSample(sample_id="s", kind="fast", iterations=5),)
    )
    one = matcher().given(node("n1", fast=1), asked)
    make_true(one, 2.0)
    one.given(lane("b"))
    make_true(one, 2.5)
    assert devices(one) == {"n1/0": {"s"}}
    one.given(measured("s", gib(1, 1), 3.0), ended("s", 3.5))
    assert one.state.needs == {"k": gib(1, 1)}


def test_what_a_run_measures_counts_more_than_what_was_declared():
    one = matcher(lane_reserve_share=0.0).given(node("n1", fast=1), lane("a", 1, 1))
    make_true(one, 2.0)
    one.given(measured("a", gib(5, 2), 3.0), lane("b", 2, 1))
    make_true(one, 4.0)
    assert devices(one) == {"n1/0": {"a"}}


def test_a_job_whose_need_has_grown_over_every_device_is_placed_nowhere_again():
    one = matcher().given(node("n1", fast=1), lane("a", 1, 1))
    make_true(one, 2.0)
    one.given(measured("a", gib(9, 2), 3.0), ended("a", 4.0, outcome="preempted"))
    assert not any(fact.placements for fact in make_true(one, 5.0))


# --- gangs
def test_a_gang_of_lanes_has_one_on_each_of_its_devices():
    one = pool().given(lane("g", gpus=2), lane("a"), lane("h", gpus=2))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"g", "a", "h"}, "n1/1": {"g", "h"}}


def test_a_gang_of_lanes_joins_some_and_opens_the_others_where_neither_is_enough():
    one = matcher().given(node("n1", fast=3), lane("a"), job("b"), lane("g", gpus=2))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a", "g"}, "n1/1": {"b"}, "n1/2": {"g"}}
    one.given(ended("g", 3.0), job("y"))
    make_true(one, 4.0)
    assert devices(one) == {"n1/0": {"a"}, "n1/1": {"b"}, "n1/2": {"y"}}


def test_a_gang_of_lanes_prefers_devices_with_the_same_jobs():
    ann = {"share_with": "user", "user": "ann"}
    one = matcher().given(node("n1", fast=4), lane("a", 4, 2), lane("b", 4, 2), lane("g", gpus=2, **ann))
    make_true(one, 2.0)
    assert devices(one) == {"n1/0": {"a"}, "n1/1": {"b"}, "n1/2": {"g"}, "n1/3": {"g"}}
    one.given(lane("c", 0.5, 0.1), lane("h", 1, 0.5, gpus=2, **ann))
    make_true(one, 3.0)
    assert devices(one)["n1/2"] == devices(one)["n1/3"] == {"g", "h"}


def test_small_jobs_do_not_overtake_a_gang_of_lanes_for_ever():
    one = pool(patience_s=5.0).given(lane("a", 4, 3), lane("b", 4, 3))
    make_true(one, 2.0)
    one.given(lane("g", 2, 2, gpus=2, at_s=2.5), lane("c", 1, 1, at_s=3.0))
    make_true(one, 3.0)  # it is patient still
    assert devices(one) == {"n1/0": {"a", "c"}, "n1/1": {"b"}}
    one.given(lane("d", 1, 1, at_s=8.0))
    make_true(one, 8.0)  # now nobody else gets there
    one.given(ended("a", 9.0), lane("e", 1, 1, at_s=9.0))
    make_true(one, 9.0)
    assert devices(one) == {"n1/0": {"c"}, "n1/1": {"b"}}
    one.given(ended("b", 10.0))
    make_true(one, 10.0)
    assert all("g" in there for there in devices(one).values())


def test_a_gang_of_lanes_whose_patience_is_over_keeps_a_free_device_beside_the_shared_one():
    one = pool(patience_s=5.0).given(lane("a", 3, 3), job("x"))
    make_true(one, 2.0)
    one.given(lane("g", 3, 3, gpus=2, at_s=2.5))
    make_true(one, 8.0)
    one.given(ended("x", 9.0), job("y", at_s=9.0))
    make_true(one, 9.0)
    assert devices(one) == {"n1/0": {"a"}}
    one.given(ended("a", 10.0))
    make_true(one, 10.0)
    assert devices(one) == {"n1/0": {"g"}, "n1/1": {"g"}}


def test_a_gang_of_lanes_is_of_one_node():
    one = matcher().given(node("n1", fast=1), node("n2", fast=1), lane("g", gpus=2))
    assert not any(fact.placements for fact in make_true(one, 2.0))
    one.given(node("n3", fast=2))
    make_true(one, 3.0)
    assert devices(one) == {"n3/0": {"g"}, "n3/1": {"g"}}


# --- who makes way
def test_an_exclusive_job_of_an_earlier_queue_preempts_all_who_share_a_device():
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), lane("a"), lane("b"))
    make_true(one, 2.0)
    one.given(queued(a=1, b=2), job("x", at_s=9.0))
    assert preempted(make_true(one, 10.0)) == {"a", "b"}
    one.given(ended("a", 11.0, outcome="preempted"))
    assert not any(fact.placements for fact in make_true(one, 11.0)), "one of them still holds the device"
    one.given(ended("b", 12.0, outcome="preempted"))
    make_true(one, 12.0)
    assert devices(one) == {"n1/0": {"x"}}


def test_nobody_is_preempted_where_one_of_those_who_share_is_of_the_same_queue():
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), lane("a"), lane("b"))
    make_true(one, 2.0)
    one.given(queued(a=0, b=2), job("x", at_s=9.0))
    assert preempted(make_true(one, 10.0)) == set()


def test_the_device_on_which_least_is_lost_falls_free():
    one = pool().given(*(lane(name, 3, 1) for name in "abc"))
    make_true(one, 2.0)
    saved = RunCheckpointed(job_id="c", epoch=1, node_id="n1", step=5, at_s=15.0)
    one.given(queued(a=1, b=1, c=1), saved, job("x", at_s=19.0))
    assert preempted(make_true(one, 20.0)) == {"c"}


def test_a_job_that_shares_preempts_no_more_of_them_than_it_needs():
    one = matcher(min_run_s=1.0, lane_reserve_share=0.0).given(node("n1", fast=1))
    one.given(*(lane(name, 2, 1) for name in "abc"))
    make_true(one, 2.0)
    one.given(queued(a=1, b=1, c=1), lane("x", 2, 1, at_s=9.0))
    gone = preempted(make_true(one, 10.0))
    assert len(gone) == 1
    one.given(ended(gone.pop(), 11.0, outcome="preempted"))
    make_true(one, 11.0)
    assert "x" in devices(one)["n1/0"]
    assert len(devices(one)["n1/0"]) == 3


def test_room_that_others_leave_for_a_job_goes_to_nobody_else():
    one = matcher(min_run_s=1.0, lane_reserve_share=0.0).given(node("n1", fast=1))
    one.given(lane("a", 3, 1), lane("b", 3, 1))
    make_true(one, 2.0)
    one.given(queued(a=1, b=1), lane("x", 4, 1, at_s=9.0))
    gone = preempted(make_true(one, 10.0))
    one.given(lane("small", 1, 1, at_s=10.5), queued(small=1))
    make_true(one, 10.6)
    assert "small" not in devices(one)["n1/0"]
    one.given(ended(gone.pop(), 11.0, outcome="preempted"))
    make_true(one, 11.0)
    assert "x" in devices(one)["n1/0"]


def test_nobody_joins_a_device_that_is_being_cleared_for_another():
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), lane("a"), lane("b"))
    make_true(one, 2.0)
    one.given(queued(a=1, b=1), job("x", at_s=9.0))
    make_true(one, 10.0)
    one.given(ended("a", 11.0, outcome="preempted"), lane("late", at_s=11.0))
    make_true(one, 11.5)
    assert devices(one) == {"n1/0": {"b"}}


def test_a_large_job_is_not_overtaken_for_ever_by_small_ones():
    one = matcher(min_run_s=1.0, patience_s=5.0, lane_reserve_share=0.0).given(node("n1", fast=1))
    one.given(lane("a", 3, 1), lane("b", 3, 1))
    make_true(one, 2.0)
    one.given(lane("large", 4, 1, at_s=3.0))
    make_true(one, 3.0)
    one.given(ended("a", 9.0), *(lane(f"s{i}", 1, 1, at_s=9.0) for i in range(3)))
    make_true(one, 9.0)
    assert "large" in devices(one)["n1/0"]
    one.given(lane("larger", 5, 1, at_s=10.0))
    make_true(one, 16.0)
    one.given(ended("b", 17.0), *(lane(f"t{i}", 1, 1, at_s=17.0) for i in range(3)))
    make_true(one, 17.0)
    assert not {"t0", "t1", "t2"} & devices(one)["n1/0"], "they would take what `larger` waits for"


def test_a_cancelled_job_makes_room_once_its_processes_are_gone():
    one = matcher(lane_reserve_share=0.0).given(node("n1", fast=1), lane("a", 3, 1), lane("b", 3, 1), lane("c", 3, 1))
    make_true(one, 2.0)
    one.given(JobCancelled(job_id="a", at_s=3.0))
    make_true(one, 3.0)
    assert devices(one) == {"n1/0": {"a", "b"}}
    one.given(ended("a", 4.0, outcome="cancelled"))
    make_true(one, 4.0)
    assert devices(one) == {"n1/0": {"b", "c"}}


def test_a_user_advances_by_the_share_that_his_jobs_have():
    one = pool().given(lane("a", user="ann"), lane("b", user="bob"))
    make_true(one, 2.0)
    progress = one.state.history.progress["default"]
    assert [progress.active[user].rate for user in ("ann", "bob")] == [0.25, 0.25]  # half of one of two devices
    one.given(ended("b", 5.0))
    assert progress.active["ann"].rate == 0.5
    assert progress.standing("ann", 5.0).progress_s == pytest.approx(0.75, rel=1e-3)


@pytest.mark.slow
# --- how much one round says
def test_a_round_that_starts_very_many_fits_into_a_message_and_the_next_starts_the_others():
    one = matcher(most_sharers=64).given(*(node(f"n{number}", fast=8) for number in range(5)))
    one.given(*(lane(f"j{number:04}", 0.01 + number / 1e6, 0.1) for number in range(2_050)))
    found = rounds(one.at(2.0).settle())
    assert [len(fact.placements) for fact in found] == [2_000, 50]
    assert max(len(msgspec.json.encode(fact)) for fact in found) < 600_000


# --- why one waits
def why(scenario: Matcher, job_id: str) -> tuple[str, str]:
    waits = [wait for fact in make_true(scenario, 4.0) for wait in fact.waits if wait.job_id == job_id]
    return waits[-1].cause, waits[-1].evidence


def taken() -> Matcher:
    one = matcher(lane_reserve_share=0.0).given(node("n1", fast=3))
    one.given(lane("a", 3, 1), lane("b", 2, 1), lane("c", 1, 1, team="speech"), job("d"))
    make_true(one, 2.0)
    return one


def test_why_says_how_much_is_taken_of_the_device_with_most_room():
    cause, evidence = why(taken().given(lane("l", 4, 2, at_s=3.0)), "l")
    assert cause == "capacity"
    assert evidence == (
        "needs 6 GiB; device n1/fast0: 2 jobs hold 6 of 8 GiB; 1 device with jobs that it may not share with; "
        "1 device held by jobs that do not share; it is next"
    )


def test_why_says_that_a_need_is_not_known_yet():
    cause, evidence = why(taken().given(lane("l", memory=None, at_s=3.0)), "l")
    assert cause == "capacity"
    assert evidence.startswith("needs a device of its own until a run has measured its memory; 1 device held")


def test_why_says_that_devices_are_shared_in_the_other_way():
    _, evidence = why(taken().given(part("p", 0.5, at_s=3.0)), "p")
    assert evidence.startswith(
        "needs 0.5 of a device; 1 device shared in the other way; 1 device with jobs that it may"
    )


def test_why_says_what_never_fits():
    cause, evidence = why(taken().given(lane("l", 9, 1, at_s=3.0)), "l")
    assert (cause, evidence) == (
        "never_fits",
        "needs 10 GiB of each device with what is kept in reserve; the largest has 8 GiB",
    )


def test_why_says_that_a_gang_of_lanes_is_of_one_node():
    one = matcher().given(node("n1", fast=1), node("n2", fast=1), lane("g", gpus=2))
    assert why(one, "g") == ("never_fits", "takes turns on 2 devices of one node and kind; the most that one has is 1")


def test_a_stopping_job_beside_others_does_not_make_its_device_fall_free():
    """An exclusive job is not told to wait for it."""
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), lane("a"), lane("b"))
    make_true(one, 2.0)
    one.given(JobCancelled(job_id="a", at_s=3.0), queued(b=0), job("x", at_s=3.5))
    assert why(one, "x")[1].startswith("1 fast busy with 2 jobs")
    one.given(ended("a", 5.0, outcome="cancelled"), lane("c", at_s=5.0))
    make_true(one, 5.0)
    assert devices(one) == {"n1/0": {"b", "c"}}
