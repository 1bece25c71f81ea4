"""The cause that `why` names is the true one: on random clusters, what it names is taken away, and the job starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from gateway_cluster import Settings, VirtualCluster, job, node, random_cluster

from penstock_gateway.why import WaitExplainer
from penstock_log import (
    Job,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobState,
    NodeDrained,
    PolicySet,
    ReservationCancelled,
    ReservationMade,
)
from penstock_log.views import WhyView
from penstock_ranker.machine import RankerSettings
from penstock_scheduler.pool.pool_settings import MatcherSettings
from sweeps import sampled

pytestmark = pytest.mark.slow

CASES = 11
CLASSED_CASES = 8
BEHIND_A_SAMPLE = 39
SOON_S = 1.2
"""Time for whoever is preempted to stop."""

PLENTY = {"fast": 40, "slow": 40, "old": 40, "cpu": 40, "tpu": 40}
FOR_DEVICES = {"capacity", "gang", "order", "fairness", "later_place", "never_fits", "no_nodes"}

Change = Callable[[VirtualCluster], None]


def waiting(cluster: VirtualCluster) -> list[Job]:
    jobs = (one for one in cluster.state.jobs if one.state is JobState.PENDING and one.sample is None)
    return [one for one in jobs if one.spec.pool == "default"]


def why(cluster: VirtualCluster, job_id: str) -> WhyView:
    return WaitExplainer(cluster.state, cluster.now_s, cluster.settings.matcher).explain(cluster.state.jobs[job_id])


def served(cluster: VirtualCluster, change: Change) -> tuple[set[str], set[str]]:
    """Return which of the jobs that wait are served at once when something is changed, and which have started soon."""
    waits, past = {one.id for one in waiting(cluster)}, len(cluster.rounds)
    change(cluster)
    new = cluster.rounds[past:]
    at_once = {placed.job_id for each in new for placed in each.placements}
    at_once |= {preempted.for_job for each in new for preempted in each.preemptions}
    cluster.run_until(cluster.now_s + SOON_S)
    return at_once & waits, {job_id for job_id in waits if cluster.state.jobs[job_id].first_started_s} | at_once & waits


def nothing(cluster: VirtualCluster) -> None:
    cluster.rule_by()


def no_fairness(cluster: VirtualCluster) -> None:
    cluster.rule_by(alpha=1.0)


def more_quota(team: str) -> Change:
    def change(cluster: VirtualCluster) -> None:
        cluster.rule_by(quotas={**cluster.settings.matcher.quotas, team: 1_000})

    return change


def more_devices(cluster: VirtualCluster) -> None:
    cluster.now(node("plenty", 64, at_s=cluster.now_s, **PLENTY))


def hold_others(but: str) -> Change:
    def change(cluster: VirtualCluster) -> None:
        others = [one for one in waiting(cluster) if one.id != but and not one.held]
        samples = [one for one in cluster.state.jobs if one.state is JobState.PENDING and one.sample is not None]
        cluster.now(
            *(JobHeld(at_s=cluster.now_s, job_id=one.id) for one in others),
            *(JobCancelled(at_s=cluster.now_s, job_id=one.id) for one in samples),
        )

    return change


def no_limits(cluster: VirtualCluster) -> None:
    classes = cluster.settings.matcher.classes.items()
    cluster.rule_by(classes={name: msgspec.structs.replace(rules, most_gpus=0) for name, rules in classes})


def disagreements(seed: int, *, classed: bool = False) -> list[str]:
    """Return in which of the jobs that wait on a random cluster the cause is not the true one."""

    def cluster() -> VirtualCluster:
        return random_cluster(seed, quotas=bool(seed % 3), fair=bool(seed % 2), classed=classed)

    now = cluster()
    views = {one.id: why(now, one.id) for one in waiting(now)}
    teams = {one.spec.team for one in waiting(now)} if now.settings.matcher.quotas else set()
    control_now, _ = served(cluster(), nothing)
    fair_now, fair_soon = served(cluster(), no_fairness) if now.settings.matcher.alpha < 1.0 else (set(), set())
    larger = cluster()
    _, plenty = served(larger, more_devices)
    causes = {one.id: why(larger, one.id).cause for one in waiting(larger)}
    plenty |= {job_id for job_id, other in causes.items() if other == "profiling"}  # on kinds new to it
    plenty |= {job_id for job_id, other in causes.items() if other == "class_quota"}  # which devices do not change
    limitless = set[str]()
    if any(view.cause == "class_quota" for view in views.values()):
        free = cluster()
        no_limits(free)
        limitless = served(free, more_devices)[1]
    quota = {team: served(cluster(), more_quota(team)) for team in sorted(teams)}
    found = []
    for job_id, view in views.items():
        team = now.state.jobs[job_id].spec.team
        quota_now, quota_soon = quota.get(team, (set(), set()))
        unfair_now = job_id in (quota_now | fair_now) - control_now
        unfair_soon = job_id in (quota_soon | fair_soon)
        if view.cause == "fairness" and not unfair_soon:
            found.append(f"{seed} {job_id}: fairness, and neither a larger quota nor alpha = 1 starts it")
        if view.cause in FOR_DEVICES - {"fairness"} and unfair_now:
            found.append(f"{seed} {job_id}: {view.cause}, and a larger quota or alpha = 1 starts it")
        if view.cause in FOR_DEVICES and job_id not in plenty:
            found.append(f"{seed} {job_id}: {view.cause}, and more devices than anybody needs do not start it")
        if view.cause == "class_quota" and job_id not in limitless:
            found.append(f"{seed} {job_id}: class_quota, and it does not start without limits on many devices")
        if view.cause == "order":
            started = served(cluster(), hold_others(job_id))[1]
            if job_id not in started:
                found.append(f"{seed} {job_id}: order, and it does not start where nobody else waits")
    return found


@pytest.mark.parametrize("seed", [*sampled(range(CASES)), BEHIND_A_SAMPLE])
def test_what_keeps_a_job_waiting_is_what_why_names(seed: int) -> None:
    assert disagreements(seed) == []


@pytest.mark.parametrize("seed", sampled(range(300, 300 + CLASSED_CASES)))
def test_what_keeps_a_job_of_a_class_waiting_is_what_why_names(seed: int) -> None:
    assert disagreements(seed, classed=True) == []


# --- each cause: alone, and where it is there and keeps nobody waiting
def small(**rules: Any) -> VirtualCluster:
    """Return two fast devices and two slow ones, of a pool in which who fits may overtake."""
    settings = MatcherSettings(explain_every_s=0.0, min_run_s=0.0, **rules)
    cluster = VirtualCluster(Settings(RankerSettings(order="fifo-backfill"), settings))
    cluster.now(node("n0", fast=2, slow=2))
    return cluster


def cause(cluster: VirtualCluster, **fields: Any) -> str:
    """Submit a job; return why it waits, or `running`."""
    return why(cluster, cluster.submit(job(**fields)).id).cause


def test_a_held_job_waits_for_its_release_and_a_released_one_does_not() -> None:
    cluster = small()
    assert cause(cluster, hold=True) == "held"
    cluster.now(JobReleased(at_s=cluster.now_s, job_id="new"))
    assert why(cluster, "new").cause == "running"


def test_a_failed_job_waits_for_its_next_try_and_not_after_it_is_due() -> None:
    cluster = small()
    cluster.submit(job(retries=1, backoff_s=10.0, kinds=("fast",)), 5.0, failures=[(1.0, 0.0)])
    cluster.run_until(cluster.now_s + 2.0)
    assert why(cluster, "new").cause == "backoff"
    cluster.submit(job("wide", gpus=2, kinds=("fast",)), 50.0)
    cluster.run_until(cluster.now_s + 12.0)
    assert why(cluster, "new").cause == "capacity"


def test_a_new_workload_waits_for_its_speeds_and_no_longer_than_it_may() -> None:
    sampled = {"profile": "on"}
    assert cause(small(), **sampled) == "profiling"
    assert cause(small(), kinds=("fast",), **sampled) == "running"
    assert cause(small(await_profile_s=0.0), **sampled) == "running"


def test_no_nodes_are_a_cause_where_none_takes_jobs() -> None:
    cluster = small()
    assert cause(cluster, pool="lab") == "no_nodes"
    cluster.now(node("n1", pool="far", fast=1), NodeDrained(at_s=cluster.now_s, node_id="n1"))
    assert cause(cluster, job_id="far", pool="far") == "no_nodes"
    assert cause(cluster, job_id="here") == "running"


@pytest.mark.parametrize("fields", [{"gpus": 3}, {"kinds": ("tpu",)}, {"memory_bytes": 2**50}])
def test_what_no_node_holds_never_fits_and_what_one_does_waits_for_it(fields: dict[str, Any]) -> None:
    cluster = small()
    assert cause(cluster, **fields) == "never_fits"
    cluster.now(node("n1", 2**21, at_s=cluster.now_s, fast=3, tpu=1))
    assert why(cluster, "new").cause == "running"


def test_capacity_is_the_cause_where_all_are_busy_and_gang_where_too_few_are_idle() -> None:
    cluster = small()
    cluster.submit(job("one", kinds=("fast",)))
    assert cause(cluster, job_id="gang", gpus=2, kinds=("fast",)) == "gang"
    cluster.submit(job("two", kinds=("fast",)))
    assert why(cluster, "gang").cause == "capacity"
    assert cause(cluster, job_id="more", kinds=("fast",)) == "capacity"
    assert cause(cluster, job_id="slow", gpus=2, kinds=("slow",)) == "running"


def test_a_reservation_is_the_cause_only_of_what_would_run_into_it() -> None:
    def reserved(gpus: int = 4) -> VirtualCluster:
        cluster = small()
        at_s = cluster.now_s
        cluster.now(
            ReservationMade(
                at_s=at_s,
                pool="default",
                reservation_id="a-1",
                team="a",
                gpus=gpus,
                from_s=at_s + 60.0,
                until_s=at_s + 120.0,
            )
        )
        return cluster

    cluster = reserved()
    assert cause(cluster, opaque=True) == "reservation"
    cluster.now(ReservationCancelled(at_s=cluster.now_s, pool="default", reservation_id="a-1"))
    assert why(cluster, "new").cause == "running"
    assert cause(reserved(), opaque=True, time_limit_s=50.0) == "running"
    assert cause(reserved(), opaque=True, time_limit_s=70.0) == "reservation"
    assert cause(reserved(), opaque=True, team="a") == "running"
    assert cause(reserved(3), opaque=True) == "running"
    late = reserved()
    late.submit(job(opaque=True))
    late.run_until(late.now_s + 61.0)
    assert why(late, "new").cause == "running"  # it borrows now


def test_of_jobs_that_ask_for_the_same_each_waits_behind_those_that_came_before_it() -> None:
    cluster = VirtualCluster()
    cluster.now(node("n0", fast=2, slow=2))
    for number in range(8):
        cluster.submit(job(f"j{number}"))
        cluster.run_until(cluster.now_s + 0.01)
    cluster.run_until(cluster.now_s + 2.0)
    ranks = [why(cluster, f"j{number}").rank for number in range(4, 8)]
    assert [rank.ahead for rank in ranks if rank is not None] == [0, 1, 2, 3]
    cleared = "not its priority: no waiting job stands before it"
    assert [cleared in why(cluster, f"j{number}").not_causes for number in range(4, 8)] == [True, False, False, False]


def test_order_is_the_cause_only_where_nobody_overtakes() -> None:
    for order, said in (("fifo", "order"), ("fifo-backfill", "running")):
        cluster = small()
        cluster.now(PolicySet(at_s=cluster.now_s, pool="default", settings={"order": order}))
        cluster.submit(job("one", kinds=("fast",)))
        cluster.submit(job("gang", gpus=2, kinds=("fast",)))
        assert cause(cluster) == said


def test_a_quota_is_the_cause_where_others_have_borrowed_what_a_larger_one_would_cover() -> None:
    cluster = small(quotas={"vision": 1})
    for number, team in enumerate(["vision", "speech", "speech", "speech"]):
        cluster.submit(job(f"j{number}", team=team))
    cluster.run_until(cluster.now_s + 1.0)
    assert cause(cluster, team="vision") == "fairness"
    assert cause(cluster, job_id="other", team="speech") == "capacity"
    cluster.rule_by(quotas={"vision": 2})
    cluster.run_until(cluster.now_s + SOON_S)
    assert why(cluster, "new").cause == "running"


def test_it_is_not_where_the_team_has_all_devices_to_itself() -> None:
    cluster = small(quotas={"vision": 1})
    for number in range(4):
        cluster.submit(job(f"j{number}", team="vision"))
    assert cause(cluster, team="vision") == "capacity"
    view = why(cluster, "new")
    assert "not a quota: its team's is used up, and a larger one would not start it now" in view.not_causes
    assert view.remedy == ""
