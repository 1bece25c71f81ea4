"""What the log tells of work: speeds, lengths, and what runs cost beside iterating."""

from __future__ import annotations

import pytest
from shadow_cases import commits, ended, lengths_of, node, placed, started, submitted

from penstock_log import (
    AnyEvent,
    JobCancelled,
    KindSpeed,
    Preemption,
    RoundDecided,
    RunCheckpointed,
    WorkloadProfiled,
    workload,
)

SPEC = submitted("j1", 2.0).spec
PROFILED = WorkloadProfiled(
    key=workload.key(SPEC),
    speeds=(KindSpeed(kind="fast", iteration_s=0.1, speed=1.0), KindSpeed(kind="slow", iteration_s=0.4, speed=0.25)),
    at_s=1.0,
)


def test_a_length_is_known_only_when_the_job_has_ended() -> None:
    so_far: list[AnyEvent] = [node(), submitted("j1", 2.0), placed("j1", 2.0), started("j1", 2.5)]
    assert lengths_of(commits(*so_far)).work_s("j1") is None
    whole = commits(*so_far, ended("j1", 13.0, steps=100, loop_steps=100, loop_s=10.0))
    assert lengths_of(whole).work_s("j1") == pytest.approx(10.0)
    assert lengths_of(whole).rest_s("j1") == pytest.approx(1.0)


def test_a_cancelled_job_has_no_length() -> None:
    facts: list[AnyEvent] = [node(), submitted("j1", 2.0), placed("j1", 2.0), started("j1", 2.5)]
    cancelled: list[AnyEvent] = [JobCancelled(job_id="j1", at_s=4.0), ended("j1", 5.0, outcome="cancelled", steps=9)]
    assert lengths_of(commits(*facts, *cancelled)).work_s("j1") is None


def test_a_command_that_counts_no_iterations_is_as_long_as_it_held_its_devices() -> None:
    log = commits(node(), submitted("j1", 2.0), placed("j1", 3.0), started("j1", 3.5), ended("j1", 13.0))
    assert lengths_of(log).work_s("j1") == pytest.approx(10.0)
    assert lengths_of(log).rest_s("j1") == 0.0


def test_speeds_are_measured_where_a_job_ran_and_the_profilers_ratio_elsewhere() -> None:
    first = ended("j1", 13.0, outcome="preempted", steps=50, loop_steps=50, loop_s=10.0)
    log = commits(node(), PROFILED, submitted("j1", 2.0), placed("j1", 2.0), started("j1", 2.5), first)
    found = lengths_of(log)
    assert found.speed("j1", "fast") == pytest.approx(1.0)
    assert found.speed("j1", "slow") == pytest.approx(0.25)
    assert found.iteration_s("j1") == pytest.approx(0.2)
    assert found.speed("nobody", "fast") == 1.0


def test_what_was_done_before_a_preemption_is_kept_and_what_a_failed_run_repeated_is_work() -> None:
    def life(outcome: str, resumed: int) -> float | None:
        asked = RoundDecided(pool="default", at_s=10.0, preemptions=(Preemption(job_id="j1", epoch=1),))
        log = commits(
            node(),
            submitted("j1", 2.0, retries=1),
            placed("j1", 2.0),
            started("j1", 2.5),
            *([asked] if outcome == "preempted" else []),
            ended("j1", 13.0, outcome=outcome, steps=50, loop_steps=50, loop_s=5.0),
            placed("j1", 20.0, epoch=2),
            started("j1", 20.0, epoch=2, step=resumed),
            ended("j1", 30.0, epoch=2, steps=100, loop_steps=100 - resumed, loop_s=(100 - resumed) / 10.0),
        )
        return lengths_of(log).work_s("j1")

    assert life("preempted", 50) == pytest.approx(10.0)
    assert life("failed", 20) == pytest.approx(13.0)


def test_a_preempted_run_takes_as_long_to_stop_as_others_did() -> None:
    asked = RoundDecided(pool="default", at_s=10.0, preemptions=(Preemption(job_id="j1", epoch=1),))
    stopped = ended("j1", 12.0, outcome="preempted", steps=50, loop_steps=50, loop_s=5.0)
    log = commits(node(), submitted("j1", 2.0), placed("j1", 2.0), started("j1", 2.5), asked, stopped)
    assert lengths_of(log).stop_s == pytest.approx(2.0)
    assert lengths_of(log[:4]).stop_s == 0.0


def test_a_workload_that_lost_its_work_when_it_was_preempted_is_taken_to_lose_it_again() -> None:
    def log(kept: int) -> list[AnyEvent]:
        stopped = ended("j1", 12.0, outcome="preempted", steps=kept, loop_steps=50, loop_s=5.0)
        facts: list[AnyEvent] = [node(), submitted("j1", 2.0), placed("j1", 2.0), started("j1", 2.5), stopped]
        return [*facts, submitted("j2", 20.0), submitted("j3", 20.0, model="other")]

    assert [lengths_of(commits(*log(0))).saves(job_id) for job_id in ("j1", "j2", "j3")] == [False] * 3
    assert [lengths_of(commits(*log(50))).saves(job_id) for job_id in ("j1", "j2", "j3")] == [True] * 3
    assert lengths_of(commits(submitted("j1", 2.0))).saves("j1")


def test_an_opaque_command_starts_from_its_beginning() -> None:
    stopped = ended("j1", 12.0, outcome="preempted")
    again = [placed("j1", 20.0, epoch=2), started("j1", 20.0, epoch=2), ended("j1", 30.0, epoch=2)]
    facts: list[AnyEvent] = [node(), submitted("j1", 2.0), placed("j1", 2.0), started("j1", 2.5), stopped, *again]
    found = lengths_of(commits(*facts))
    assert found.work_s("j1") == pytest.approx(10.0)
    assert not found.saves("j1")


def test_a_run_that_goes_on_for_ever_takes_no_more_memory_with_each_checkpoint() -> None:
    begun: list[AnyEvent] = [node(), submitted("j1", 2.0), placed("j1", 2.0), started("j1", 2.5)]
    saved = [RunCheckpointed(job_id="j1", epoch=1, node_id="n1", step=at, at_s=3.0 + at) for at in range(9)]
    found = lengths_of(commits(*begun, *saved))
    assert found.saves("j1")
    assert found.runs["j1"][-1].facts == []
