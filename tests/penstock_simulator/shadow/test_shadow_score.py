"""A shadow against what really happened."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadow_cases import LONG_S, SET, commits, followed, node, plan, recorded, submitted

from penstock_bus import Delivery, Shadowed
from penstock_log import Commit, JobCancelled, codec, subjects
from penstock_simulator.shadow.plan import ShadowPlan, ShadowStatus, actor_of
from penstock_simulator.shadow.shadow_score import ShadowScore, score


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[Delivery]:
    return recorded(tmp_path_factory.mktemp("log"))


def live(chosen: ShadowPlan, log: list[Delivery]) -> list[Shadowed]:
    """Return the rounds that a live shadow would have published."""
    found = []
    for one in followed(chosen, log).take():
        if subjects.entity_of(one.subject)[0] == "round":
            commit = Commit(id=one.commit.id, actor=actor_of(chosen), facts=one.commit.facts)
            subject = subjects.shadowed("test", one.subject)
            found.append(Shadowed(seq=one.seq, subject=subject, stored_s=one.stored_s, body=codec.encode(commit)))
    return found


def scored(chosen: ShadowPlan, log: list[Delivery], until_s: float = LONG_S) -> ShadowScore:
    return score(log, live(chosen, log), ShadowStatus(plan=chosen, seq=log[-1].seq, at_s=until_s), until_s)


@pytest.mark.slow
def test_the_clusters_own_policy_changes_nothing(log: list[Delivery]) -> None:
    found = scored(plan("configured", **SET), log)
    assert found.all.jobs == 30
    assert found.all.ratio == pytest.approx(1.0, abs=0.02)
    assert found.preemptions == found.shadow_preemptions > 0
    assert found.agreement.same_starts > 0.8 * found.agreement.starts
    assert (found.behind, found.unscored.running, found.unscored.waiting) == (0, 0, 0)


@pytest.mark.slow
def test_a_worse_policy_is_told_from_the_clusters_own(log: list[Delivery]) -> None:
    found = scored(plan("fifo"), log)
    assert found.all.ratio is not None
    assert found.all.ratio > 1.5
    assert found.all.certain
    assert found.all.was_avg_s < found.all.avg_s
    assert found.shadow_preemptions == 0
    assert set(found.teams) == {"speech", "vision"}
    assert sum(team.jobs for team in found.teams.values()) == found.all.jobs
    assert found.agreement.same < found.agreement.rounds


def test_jobs_that_were_over_before_are_not_scored(log: list[Delivery]) -> None:
    found = scored(plan("fifo", log[: len(log) // 2]), log)
    assert 5 < found.all.jobs < 30


@pytest.mark.slow
def test_jobs_that_the_shadow_has_not_done_count_as_old_as_they_are(log: list[Delivery]) -> None:
    half, last_s = log[:200], log[199].stored_s
    then, later = (scored(plan("fifo"), half, last_s + more_s) for more_s in (2000.0, 2900.0))
    assert then.behind == later.behind > 0  # behind a job of which nobody knows when it ends
    assert later.all.avg_s - then.all.avg_s == pytest.approx(900.0 * then.behind / then.all.jobs)
    assert later.all.was_avg_s == then.all.was_avg_s


def test_jobs_without_a_true_length_are_counted_and_not_scored() -> None:
    cancelled = JobCancelled(job_id="j2", at_s=4.0)
    log = commits(node(), submitted("j1", 2.0), submitted("j2", 3.0), cancelled)
    found = scored(plan("fifo"), log)
    assert found.all.jobs == 0
    assert (found.unscored.waiting, found.unscored.cancelled) == (1, 1)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_score(log: list[Delivery], tmp_path: Path) -> None:
    assert scored(plan("fifo"), log) == scored(plan("fifo"), log)
