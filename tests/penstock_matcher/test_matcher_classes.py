"""Priority classes: who comes first, for whom runs make way, and how much of a class a user may hold."""

from __future__ import annotations

from typing import Any

import pytest
from matcher_facts import causes, ended, job, matcher, node, queued, rounds, run_all
from sharing_facts import part

from penstock_log import JobRank, JobsRanked, PolicySet
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_scheduler.round_types import PriorityClass

ORDERS = ["fifo", "fifo-backfill", "2d-las", "srtf", "2d-gittins"]
CLASSES = {
    "urgent": PriorityClass(weight=10, preempts=True),
    "gold": PriorityClass(weight=5),
    "scavenger": PriorityClass(weight=-5),
}


def with_classes(devices: int = 1, **more: Any) -> Any:
    return matcher(**{"min_run_s": 1.0, "alpha": 1.0, "classes": CLASSES, **more}).given(node("n1", fast=devices))


def preempted(facts: Any) -> dict[str, str]:
    return {p.job_id: p.reason for fact in rounds(facts) for p in fact.preemptions}


def under(order: str, *names: str, at_s: float = 2.0) -> JobsRanked:
    mode = QUEUE_POLICIES[order].mode
    ranks = tuple(JobRank(job_id=name, queue=0, position=float(at), since_s=0.0) for at, name in enumerate(names))
    return JobsRanked(pool="default", at_s=at_s, ranks=ranks, backfills=mode.backfills, preempts=mode.preempts)


def test_a_higher_weight_comes_first_and_a_negative_one_last() -> None:
    one = with_classes()
    one.given(job("low", 1.0, priority_class="scavenger"), job("plain", 1.1), job("gold", 1.2, priority_class="gold"))
    assert run_all(one, 2.0).keys() == {"gold"}
    one.given(ended("gold", 3.0))
    assert run_all(one, 3.0).keys() == {"plain"}
    one.given(ended("plain", 4.0))
    assert run_all(one, 4.0).keys() == {"low"}


@pytest.mark.parametrize("order", ORDERS)
def test_a_class_that_preempts_has_runs_of_lower_ones_make_way_whatever_the_order(order: str) -> None:
    one = with_classes().given(job("plain"), under(order, "plain"))
    run_all(one, 2.0)
    one.given(job("now", 9.0, priority_class="urgent"), under(order, "plain", "now", at_s=9.0))
    assert preempted(one.at(9.0).settle()) == {"plain": "for job now of class `urgent`; this one is of no class"}
    one.given(ended("plain", 9.5, outcome="preempted"))
    assert run_all(one, 9.5).keys() == {"now"}


@pytest.mark.parametrize("order", ORDERS)
def test_a_class_that_does_not_preempt_comes_first_once_a_device_is_free(order: str) -> None:
    one = with_classes().given(job("plain"), under(order, "plain"))
    run_all(one, 2.0)
    one.given(job("gold", 9.0, priority_class="gold"), job("other", 8.0), under(order, "plain", "other", "gold"))
    assert preempted(one.at(9.0).settle()) == {}
    one.given(ended("plain", 60.0))
    assert run_all(one, 60.0).keys() == {"gold"}


def test_an_urgent_job_preempts_what_a_job_of_no_class_would_wait_for() -> None:
    # It has run for ten minutes, saves nothing, and is expected to end soon: no gain is worth that within a class.
    one = with_classes().given(job("plain"), queued(2.0, plain=2))
    run_all(one, 2.0)
    one.given(job("short", 602.0), queued(602.0, short=0))
    assert preempted(one.at(602.0).settle()) == {}
    one.given(job("now", 603.0, priority_class="urgent"), queued(603.0, now=0))
    assert preempted(one.at(603.0).settle()).keys() == {"plain"}


def test_nor_does_a_class_preempt_before_a_run_has_lasted_long_enough() -> None:
    one = with_classes(min_run_s=50.0).given(job("plain"))
    run_all(one, 2.0)
    one.given(job("now", 9.0, priority_class="urgent"))
    assert preempted(one.at(9.0).settle()) == {}
    assert one.decision().wake_at_s == 52.0
    assert preempted(one.at(52.0).settle()).keys() == {"plain"}


def test_within_a_class_the_order_says_who_makes_way() -> None:
    one = with_classes().given(job("old", priority_class="gold"), queued(2.0, old=2))
    run_all(one, 2.0)
    one.given(job("new", 9.0, priority_class="gold", duration_s=1.0), queued(9.0, new=0))
    assert preempted(one.at(9.0).settle()) == {"old": "for job new of queue 0; this one is of queue 2"}


def test_a_class_that_waits_in_vain_does_not_keep_jobs_behind_it_from_preempting_their_own() -> None:
    one = with_classes(devices=2).given(job("old"), job("urgent", priority_class="urgent"), queued(2.0, old=2))
    run_all(one, 2.0)
    one.given(job("gold", 9.0, gpus=2, priority_class="gold"), job("new", 9.0), queued(9.0, gold=0, new=0))
    assert preempted(one.at(9.0).settle()).keys() == {"old"}


def test_the_lowest_class_makes_way_first_where_losses_are_equal() -> None:
    one = with_classes(devices=2).given(job("low", priority_class="scavenger"), job("plain"))
    run_all(one, 2.0)
    one.given(job("now", 9.0, priority_class="urgent"))
    assert preempted(one.at(9.0).settle()).keys() == {"low"}


def test_classes_of_equal_weight_are_as_one() -> None:
    classes = {"a": PriorityClass(weight=3, preempts=True), "b": PriorityClass(weight=3)}
    one = with_classes(classes=classes).given(job("b", priority_class="b"))
    run_all(one, 2.0)
    one.given(job("a", 9.0, priority_class="a"))
    assert preempted(one.at(9.0).settle()) == {}


def test_fairness_between_users_holds_within_a_class() -> None:
    one = with_classes(alpha=0.5).given(job("much", user="ada"))
    run_all(one, 2.0)
    one.given(ended("much", 900.0))
    one.given(job("bobs", 900.5, user="bob"), job("adas", 900.6, user="ada", priority_class="gold"))
    assert run_all(one, 901.0).keys() == {"adas"}


def test_a_job_whose_class_has_gone_counts_as_one_without_a_class() -> None:
    one = with_classes(classes={}).given(job("first", 1.0), job("second", 1.1, priority_class="urgent"))
    assert run_all(one, 2.0).keys() == {"first"}
    assert preempted(one.at(20.0).settle()) == {}


def test_a_class_that_is_set_live_holds_from_the_next_round_on() -> None:
    one = with_classes(classes={}).given(job("plain"))
    run_all(one, 2.0)
    one.given(job("now", 1.5, priority_class="urgent"))
    assert preempted(one.at(9.0).settle()) == {}
    settings = {"class.urgent.weight": 1, "class.urgent.preempts": True}
    one.given(PolicySet(at_s=10.0, pool="default", settings=settings))
    assert preempted(one.at(10.0).settle()).keys() == {"plain"}


# --- limits
LIMITED = {"urgent": PriorityClass(weight=10, most_gpus=2)}


def test_a_user_holds_no_more_devices_of_a_class_than_it_says() -> None:
    one = with_classes(devices=8, classes=LIMITED)
    one.given(*(job(f"a{i}", 1.0 + i / 10, user="ada", priority_class="urgent") for i in range(4)))
    one.given(job("b0", 1.9, user="bob", priority_class="urgent"), job("plain", 1.95, user="ada"))
    assert run_all(one, 2.0).keys() == {"a0", "a1", "b0", "plain"}
    assert {name: causes(one)[name] for name in ("a2", "a3")} == {"a2": "class_quota", "a3": "class_quota"}
    one.given(ended("a0", 5.0))
    assert run_all(one, 5.0).keys() == {"a2"}


def test_what_is_left_of_a_limit_goes_to_a_smaller_job_behind_one_that_does_not_fit_in() -> None:
    one = with_classes(devices=8, classes={"urgent": PriorityClass(most_gpus=3)})
    one.given(*(job(f"j{gpus}", 1.0, gpus=gpus, priority_class="urgent") for gpus in (1, 2, 3)))
    one.given(queued(1.5, j2=0, j3=0, j1=0))
    assert run_all(one, 2.0).keys() == {"j2", "j1"}


def test_why_says_the_limit_and_what_is_held_of_it() -> None:
    one = with_classes(devices=8, classes=LIMITED)
    one.given(*(job(f"a{i}", 1.0 + i / 10, user="ada", priority_class="urgent") for i in range(3)))
    (wait,) = rounds(one.at(2.0).settle())[-1].waits
    assert wait.evidence == (
        "class `urgent` lets a user hold 2 devices at once; jobs of ada in it hold 0, and 2 go to jobs before this "
        "one; this one needs 1"
    )


def test_a_gang_that_is_larger_than_the_limit_never_starts_and_is_told_so() -> None:
    one = with_classes(devices=8, classes=LIMITED).given(job("gang", gpus=4, priority_class="urgent"))
    (wait,) = rounds(one.at(2.0).settle())[-1].waits
    assert (wait.cause, wait.evidence) == (
        "class_quota",
        "class `urgent` lets a user hold 2 devices at once, and it needs 4",
    )


def test_a_job_that_could_not_start_takes_nothing_of_the_limit() -> None:
    one = with_classes(devices=2, classes={"urgent": PriorityClass(most_gpus=2)})
    one.given(
        job("held", 1.0, priority_class="urgent", hold=True, gpus=2),
        job("odd", 1.1, priority_class="urgent", kinds=("tpu",), gpus=2),
        job("later", 1.2, priority_class="urgent", begin_s=100.0, gpus=2),
        job("ready", 1.3, priority_class="urgent", gpus=2),
    )
    assert run_all(one, 2.0).keys() == {"ready"}


def test_a_run_that_is_stopping_still_counts() -> None:
    classes = {"u": PriorityClass(weight=1, most_gpus=1), "top": PriorityClass(weight=2, preempts=True)}
    one = with_classes(devices=1, classes=classes).given(job("first", user="ada", priority_class="u"))
    run_all(one, 2.0)
    one.given(job("top", 9.0, user="bob", priority_class="top"), job("second", 9.0, user="ada", priority_class="u"))
    assert preempted(one.at(9.0).settle()).keys() == {"first"}
    one.given(node("n2", 9.2, fast=2))
    assert run_all(one, 9.3).keys() == {"top"}
    one.given(ended("first", 9.5, outcome="preempted"), queued(9.5, first=1, second=0))
    assert run_all(one, 9.5).keys() == {"second"}


def test_a_limit_that_is_lowered_stops_no_run() -> None:
    one = with_classes(devices=4, classes=LIMITED)
    one.given(*(job(f"a{i}", 1.0, priority_class="urgent") for i in range(2)))
    run_all(one, 2.0)
    one.given(PolicySet(at_s=9.0, pool="default", settings={"class.urgent.most_gpus": 1}))
    one.given(job("a2", 9.0, priority_class="urgent"))
    assert preempted(one.at(9.0).settle()) == {}
    one.given(ended("a0", 10.0))
    assert run_all(one, 10.0) == {}
    one.given(ended("a1", 11.0))
    assert run_all(one, 11.0).keys() == {"a2"}


def test_jobs_that_share_a_device_count_as_their_parts_of_it() -> None:
    one = with_classes(devices=4, classes={"small": PriorityClass(most_gpus=1)})
    one.given(*(part(f"p{i}", 0.5, user="ada", priority_class="small") for i in range(3)))
    assert len(run_all(one, 2.0)) == 2


def test_a_thousand_jobs_of_one_user_start_as_many_as_the_limit_says() -> None:
    one = with_classes(devices=64, classes={"urgent": PriorityClass(most_gpus=5)})
    one.given(*(job(f"j{i:04d}", 1.0, priority_class="urgent") for i in range(1_000)))
    assert len(run_all(one, 2.0)) == 5


# --- with quotas
def test_a_class_that_does_not_preempt_takes_nothing_of_the_quota_from_runs_of_its_team() -> None:
    one = with_classes(devices=4, quotas={"a": 2, "b": 2})
    one.given(job("a0", team="a"), job("a1", team="a"), job("b0", team="b"), job("b1", team="b"))
    run_all(one, 2.0)
    one.given(job("gold", 9.0, team="a", priority_class="gold"))
    assert preempted(one.at(9.0).settle()) == {}
    one.given(job("now", 10.0, team="a", priority_class="urgent"))
    assert preempted(one.at(10.0).settle()).keys() <= {"a0", "a1"}


def test_quotas_come_before_classes() -> None:
    one = with_classes(devices=2, quotas={"a": 1, "b": 1})
    one.given(job("a0", team="a"), job("b0", team="b"))
    run_all(one, 2.0)
    one.given(job("now", 9.0, team="c", priority_class="urgent"))
    assert preempted(one.at(9.0).settle()) == {}
