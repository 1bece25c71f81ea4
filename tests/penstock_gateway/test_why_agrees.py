"""The cause that `why` names is the true one: on random clusters, what it names is taken away, and the job starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from virtual_cluster import VirtualCluster, node, random_cluster

from penstock_events import Job, JobHeld, State
from penstock_events.views import WhyView
from penstock_gateway.why import Why

CASES = 10
SOON_S = 1.2
"""Time for whoever is preempted to stop."""

PLENTY = {"fast": 40, "slow": 40, "old": 40, "cpu": 40, "tpu": 40}
FOR_DEVICES = {"capacity", "gang", "order", "fairness", "later_place", "never_fits", "no_nodes"}

Change = Callable[[VirtualCluster], None]


def waiting(cluster: VirtualCluster) -> list[Job]:
    jobs = (one for one in cluster.state.jobs if one.state is State.PENDING and one.sample is None)
    return [one for one in jobs if one.spec.pool == "default"]


def why(cluster: VirtualCluster, job_id: str) -> WhyView:
    return Why(cluster.state, cluster.now_s, cluster.settings.matcher).explain(cluster.state.jobs[job_id])


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
        cluster.now(*(JobHeld(at_s=cluster.now_s, job_id=one.id) for one in others))

    return change


def disagreements(seed: int) -> list[str]:
    """Return in which of the jobs that wait on a random cluster the cause is not the true one."""

    def cluster() -> VirtualCluster:
        return random_cluster(seed, quotas=bool(seed % 3), fair=bool(seed % 2))

    now = cluster()
    views = {one.id: why(now, one.id) for one in waiting(now)}
    teams = {one.spec.team for one in waiting(now)} if now.settings.matcher.quotas else set()
    control_now, _ = served(cluster(), nothing)
    fair_now, fair_soon = served(cluster(), no_fairness) if now.settings.matcher.alpha < 1.0 else (set(), set())
    _, plenty = served(cluster(), more_devices)
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
        if view.cause == "order":
            started = served(cluster(), hold_others(job_id))[1]
            if job_id not in started:
                found.append(f"{seed} {job_id}: order, and it does not start where nobody else waits")
    return found


@pytest.mark.parametrize("seed", range(CASES))
def test_what_keeps_a_job_waiting_is_what_why_names(seed: int) -> None:
    assert disagreements(seed) == []
