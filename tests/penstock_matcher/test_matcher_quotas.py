"""Quotas of teams: what is a team's own, what it borrows, and how the others get theirs back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matcher_facts import ended, job, matcher, node, queued, rounds, run_all, where
from sharing_facts import lane, part

from penstock_bus.settings import load
from penstock_log import Job, JobRank, JobsRanked, RunEnded
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_scheduler.pool.pool_settings import MatcherSettings
from sweeps import examples


def shared(**more: Any) -> Any:
    """Two teams with two devices each, on one node."""
    return matcher(min_run_s=1.0, quotas={"a": 2, "b": 2}, **more).given(node("n1", fast=4))


def preempted(facts: Any) -> dict[str, str]:
    return {p.job_id: p.reason for fact in rounds(facts) for p in fact.preemptions}


def under(order: str, *names: str) -> JobsRanked:
    mode = QUEUE_POLICIES[order].mode
    ranks = tuple(JobRank(job_id=name, queue=0, position=float(at), since_s=0.0) for at, name in enumerate(names))
    return JobsRanked(pool="default", at_s=2.0, ranks=ranks, backfills=mode.backfills, preempts=mode.preempts)


def test_what_nobody_claims_is_lent():
    one = shared().given(*(job(f"a{i}", team="a") for i in range(4)))
    assert run_all(one, 2.0).keys() == {"a0", "a1", "a2", "a3"}


def test_who_is_within_a_quota_comes_before_who_is_not():
    one = shared().given(*(job(f"a{i}", team="a") for i in range(6)), job("b0", at_s=1.5, team="b"))
    assert run_all(one, 2.0).keys() == {"a0", "a1", "b0", "a2"}


@pytest.mark.parametrize("order", ["fifo", "fifo-backfill", "2d-las", "srtf"])
def test_a_team_gets_its_own_back_whatever_the_order(order: str):
    names = [f"a{i}" for i in range(4)]
    one = shared().given(*(job(name, team="a") for name in names), under(order, *names))
    run_all(one, 2.0)
    one.given(job("b0", at_s=9.0, team="b"), under(order, "a0", "a1", "a2", "a3", "b0"))
    found = preempted(one.at(9.0).settle())
    assert found.keys() == {"a3"}
    assert "for job b0, whom a quota covers; team `a`: 4 devices in use, 2 of its own" in found["a3"]


def test_nobody_gets_more_than_his_own_by_claiming():
    one = shared().given(*(job(f"a{i}", team="a") for i in range(4)))
    run_all(one, 2.0)
    one.given(*(job(f"b{i}", at_s=9.0, team="b") for i in range(3)))
    assert preempted(one.at(9.0).settle()).keys() == {"a2", "a3"}


def test_who_borrows_goes_before_a_lower_queue_that_a_quota_covers():
    one = shared().given(*(job(f"a{i}", team="a") for i in range(3)))
    run_all(one, 2.0)
    one.given(job("b0", at_s=20.0, team="b"))
    run_all(one, 20.0)
    one.given(queued(21.0, a0=0, a1=0, a2=0, b0=2), job("b1", at_s=30.0, team="b"))
    # The last of a's goes, although stopping b0 of queue 2, which has just begun, would waste less.
    assert preempted(one.at(30.0).settle()).keys() == {"a2"}


def test_a_team_that_has_no_quota_only_borrows():
    one = shared().given(*(job(f"x{i}", team="x") for i in range(4)))
    run_all(one, 2.0)
    one.given(job("b0", at_s=9.0, gpus=2, team="b"))
    assert len(preempted(one.at(9.0).settle())) == 2


def test_a_gang_that_claims_is_not_overtaken_by_who_borrows():
    one = shared().given(*(job(f"a{i}", team="a") for i in range(4)))
    run_all(one, 2.0)
    one.given(job("gang", at_s=9.0, gpus=2, team="b"), job("a4", at_s=8.0, team="a"))
    assert preempted(one.at(9.0).settle()).keys() == {"a2", "a3"}
    one.given(*(ended(name, 10.0, outcome="preempted") for name in ("a2", "a3")))
    assert where(one.at(10.0).settle()) == {"gang": "fast"}


def test_within_a_team_the_order_holds():
    one = shared().given(*(job(f"b{i}", team="b") for i in range(2)), *(job(f"a{i}", team="a") for i in range(2)))
    run_all(one, 2.0)
    one.given(queued(a0=2, a1=0, b0=0, b1=0), job("a2", at_s=9.0, team="a"), queued(9.0, a2=0))
    assert preempted(one.at(9.0).settle()).keys() == {"a0"}


def test_those_who_wait_beyond_their_quota_are_told_so():
    one = shared(explain_every_s=1.0)
    one.given(*(job(f"a{i}", team="a") for i in range(3)), *(job(f"b{i}", 1.5, team="b") for i in range(2)))
    (wait,) = rounds(one.at(2.0).settle())[-1].waits
    assert (wait.job_id, wait.cause) == ("a2", "fairness")
    assert "team `a`: 2 of 2 devices of its own go to jobs before this one" in wait.evidence


def test_a_quota_is_no_cause_where_a_larger_one_would_not_start_the_job_either():
    one = shared().given(*(job(f"{team}{i}", team=team) for team in "ab" for i in range(2)), job("a2", 1.5, team="a"))
    (wait,) = rounds(one.at(2.0).settle())[-1].waits
    assert (wait.job_id, wait.cause) == ("a2", "capacity")


def test_nor_is_it_where_a_team_has_all_devices_to_itself():
    one = matcher(quotas={"vision": 1}).given(node("n1", fast=4))
    one.given(*(job(f"v{i}", 1.0 + i, team="vision") for i in range(5)))
    one.at(6.0).settle()
    (wait,) = rounds(one.at(7.0).settle())[-1].waits
    assert (wait.job_id, wait.cause) == ("v4", "capacity")


def test_it_is_where_others_have_borrowed_what_it_would_cover():
    one = matcher(min_run_s=1.0, quotas={"a": 1}).given(node("n1", fast=4))
    one.given(job("a0", team="a"), *(job(f"x{i}", team="x") for i in range(3)))
    run_all(one, 2.0)
    one.given(job("a1", 9.0, team="a"), job("x3", 9.0, team="x"))
    waits = {wait.job_id: wait.cause for wait in rounds(one.at(9.0).settle())[-1].waits}
    assert waits == {"a1": "fairness", "x3": "capacity"}


def test_jobs_that_share_a_device_use_one_of_their_teams_together():
    one = matcher(min_run_s=1.0, quotas={"a": 1, "b": 1}).given(node("n1", fast=2))
    one.given(*(lane(f"a{i}", team="a") for i in range(3)))
    assert run_all(one, 2.0).keys() == {"a0", "a1", "a2"}
    one.given(job("a3", at_s=3.0, team="a"))
    run_all(one, 4.0)
    one.given(job("b0", at_s=9.0, team="b"))
    found = preempted(one.at(9.0).settle())
    assert found.keys() == {"a3"}
    assert "team `a`: 2 devices in use, 1 of its own" in found["a3"]


def test_a_fraction_of_a_device_uses_as_much_of_a_quota():
    one = matcher(min_run_s=1.0, quotas={"a": 1, "b": 1}).given(node("n1", fast=2))
    one.given(part("a0", 0.75, team="a"), part("a1", 0.5, team="a"))
    assert run_all(one, 2.0).keys() == {"a0", "a1"}
    one.given(job("b0", at_s=9.0, team="b"))
    found = preempted(one.at(9.0).settle())
    assert found.keys() == {"a1"}
    assert "team `a`: 1.25 devices in use, 1 of its own" in found["a1"]


def test_quotas_come_from_a_pools_table():
    found = load(MatcherSettings, "matcher", environ={"PENSTOCK_MATCHER_POOLS": '{"lab": {"quotas": {"a": 4}}}'})
    assert (found.of("lab").quotas, found.of("other").quotas) == ({"a": 4}, {})


def test_what_is_no_quota_is_refused():
    with pytest.raises(ValueError, match="quotas"):
        MatcherSettings(pools={"lab": {"quotas": {"a": -1}}})


def worked(run: Job, at_s: float) -> RunEnded:
    """The end of a preempted run that did nothing but iterate: so stopping has no measured overhead."""
    end = ended(run.id, at_s, epoch=run.epoch, outcome="preempted")
    return msgspec.structs.replace(end, steps=10, loop_steps=10, loop_s=at_s - run.started_s)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abx"), st.integers(0, 2)), min_size=1, max_size=14),
    st.sampled_from(["fifo-backfill", "2d-las", "srtf"]),
)
@example([("a", 0), ("x", 0), ("x", 0), ("x", 0), ("a", 0), ("b", 0)], "fifo-backfill")
def test_nobody_who_waits_lacks_what_is_his_own(jobs: list[tuple[str, int]], order: str):
    """Jobs come a while after each other, as bounds on preemption have it; those that are preempted end at once."""
    one = matcher(min_run_s=0.0, quotas={"a": 2, "b": 1}).given(node("n1", fast=4))
    teams: dict[str, str] = {}
    for at, (team, _) in enumerate(jobs):
        at_s, name = 2.0 + 20.0 * at, f"j{at:02d}"
        teams[name] = team
        one.given(job(name, at_s=at_s, team=team))
        one.given(under(order, *sorted(teams)))
        for more in range(1, 9):
            run_all(one, at_s + more / 10)
            stopping = [j for j in one.state.jobs if j.stopping and j.placement is not None]
            if not stopping:
                break
            one.given(*(worked(j, at_s + more / 10) for j in stopping))
        held = Counter(teams[j.id] for j in one.state.jobs if j.placement is not None)
        waiting = {teams[j.id] for j in one.state.jobs if j.placement is None}
        assert sum(held.values()) == min(4, len(teams))
        assert all(held[team] >= own for team, own in (("a", 2), ("b", 1)) if team in waiting)
