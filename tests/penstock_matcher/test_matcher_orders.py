"""Orders as the matcher walks them: strictly, with backfill, preempting by position; and rules of pools."""

from __future__ import annotations

import msgspec
import pytest
from matcher_facts import ended, job, matcher, node, profiled, rounds, run_all, spec, where

from penstock_bus.settings import SettingsError, load
from penstock_log import JobRank, JobsRanked, PolicySet
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_scheduler.pool.pool_settings import MatcherSettings


def ranked(order: str, at_s: float = 2.0, falls_per_s: float = 0.0, **positions: float) -> JobsRanked:
    """These jobs have these positions in queue 0 of such an order."""
    mode = QUEUE_POLICIES[order].mode
    ranks = tuple(
        JobRank(job_id=name, queue=0, position=position, since_s=0.0, falls_per_s=falls_per_s)
        for name, position in positions.items()
    )
    return JobsRanked(pool="default", at_s=at_s, ranks=ranks, backfills=mode.backfills, preempts=mode.preempts)


def preempted(facts) -> list[str]:
    return [preemption.job_id for fact in rounds(facts) for preemption in fact.preemptions]


def test_fifo_stops_at_the_first_job_that_does_not_fit_and_backfill_goes_on():
    for order, expected in (("fifo", {}), ("fifo-backfill", {"small": "fast"})):
        one = matcher().given(node("n1", fast=2), job("first"))
        run_all(one, 2.0)
        one.given(job("gang", at_s=3.0, gpus=2), job("small", at_s=4.0))
        one.given(ranked(order, first=1.0, gang=3.0, small=4.0))
        assert where(one.at(5.0).settle()) == expected
        one.given(ended("first", 6.0), *([] if order == "fifo" else [ended("small", 6.0)]))
        assert "gang" in run_all(one, 6.0)


def test_a_job_that_must_not_overtake_is_told_whom_and_what_is_idle():
    one = matcher().given(node("n1", fast=2), job("first"))
    run_all(one, 2.0)
    one.given(job("gang", at_s=3.0, gpus=2), job("small", at_s=4.0), ranked("fifo", first=1.0, gang=3.0, small=4.0))
    (fact,) = rounds(one.at(5.0).settle())
    assert [(wait.job_id, wait.cause) for wait in fact.waits] == [("gang", "gang"), ("small", "order")]
    assert fact.waits[1].evidence == "`gang` comes before it, and in this order nobody overtakes; idle: 1 fast"


def test_fifo_waits_for_no_job_that_could_not_start_anyway():
    one = matcher().given(node("n1", fast=1), job("huge", gpus=2), job("held", hold=True), job("small", at_s=1.5))
    one.given(ranked("fifo", huge=1.0, held=1.1, small=1.5))
    assert where(one.at(5.0).settle()) == {"small": "fast"}


def test_fifo_starts_a_long_job_before_a_short_one_that_came_later():
    one = matcher().given(node("n1", fast=1), job("long", duration_s=500.0), job("short", at_s=1.5, duration_s=1.0))
    one.given(ranked("fifo", long=1.0, short=1.5))
    assert where(one.at(2.0).settle()) == {"long": "fast"}


def test_nobody_is_preempted_in_an_order_that_does_not_preempt():
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), job("old"))
    run_all(one, 2.0)
    one.given(ranked("fifo-backfill", old=5.0), job("new", at_s=3.0), ranked("fifo-backfill", new=1.0))
    assert preempted(one.at(60.0).settle()) == []


def test_a_running_gang_makes_way_for_a_smaller_job_where_the_smallest_come_first():
    one = matcher(min_run_s=1.0).given(node("n1", fast=2), job("wide", gpus=2))
    run_all(one, 2.0)
    one.given(ranked("fewest-gpus", wide=2.0), job("narrow", at_s=10.0), ranked("fewest-gpus", narrow=1.0))
    assert preempted(one.at(10.0).settle()) == ["wide"]


def test_equals_do_not_preempt_each_other():
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), job("old"))
    run_all(one, 2.0)
    one.given(ranked("fewest-gpus", old=1.0), job("new", at_s=10.0), ranked("fewest-gpus", new=1.0))
    assert preempted(one.at(10.0).settle()) == []


def test_what_a_run_has_left_shrinks_as_it_runs_and_is_what_counts():
    one = matcher(min_run_s=1.0).given(node("n1", fast=1), job("long", duration_s=100.0))
    run_all(one, 1.0)
    one.given(ranked("srtf", falls_per_s=1.0, long=100.0), job("new", at_s=1.0, duration_s=60.0))
    one.given(ranked("srtf", falls_per_s=1.0, new=60.0))
    assert preempted(one.at(50.0).settle()) == []  # 51 s are left of it
    one.given(job("short", at_s=50.0, duration_s=10.0), ranked("srtf", falls_per_s=1.0, short=10.0))
    assert preempted(one.at(50.0).settle()) == ["long"]


# --- settings


def test_each_pool_may_have_rules_of_its_own():
    mlp = spec(model="mlp")
    chosen = {"assign": "first-fit", "pools": {"lab": {"assign": "allox"}}}
    two = matcher(**chosen).given(node("n1", a=1, b=1), node("n2", pool="lab", a=1, b=1), profiled(mlp, a=0.1, b=1.0))
    two.given(job("j1", model="mlp"), job("j2", model="mlp", pool="lab"))
    assert where(two.at(2.0).settle()) == {"j1": "a", "j2": "b"}


def test_rules_that_are_set_live_hold_from_then_on():
    mlp = spec(model="mlp")
    one = matcher().given(node("n1", a=1, b=1), profiled(mlp, a=0.1, b=1.0))
    one.given(PolicySet(pool="default", at_s=1.0, settings={"assign": "first-fit"}), job("j1", model="mlp"))
    assert where(one.at(2.0).settle()) == {"j1": "a"}


def test_rules_of_pools_are_read_from_the_environment():
    text = '{"lab": {"assign": "load-balance", "patience_s": 5}}'
    found = load(MatcherSettings, "matcher", environ={"PENSTOCK_MATCHER_POOLS": text, "PENSTOCK_MATCHER_WINDOW": "7"})
    assert (found.of("lab").assign, found.of("lab").patience_s, found.of("lab").window) == ("load-balance", 5.0, 7)
    assert found.of("other").assign == "allox"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PENSTOCK_MATCHER_ASSIGN": "best"}, "expected one of allox, first-fit, load-balance"),
        ({"PENSTOCK_MATCHER_POOLS": '{"lab": {"assign": "best"}}'}, "expected one of allox, first-fit, load-balance"),
        (
            {"PENSTOCK_MATCHER_POOLS": '{"lab": {"node_timeout_s": 1}}'},
            "pools.lab sets node_timeout_s, which it cannot",
        ),
        ({"PENSTOCK_MATCHER_POOLS": '{"lab": {"window": 0}}'}, "pools.lab"),
    ],
)
def test_what_cannot_be_set_is_refused_at_start(environ, message):
    with pytest.raises((SettingsError, msgspec.ValidationError), match=message):
        load(MatcherSettings, "matcher", environ=environ)
