from __future__ import annotations

from typing import Any

import pytest
from gateway_cases import NOW_S, ended, joined, placed, preempted, ranked, started, submitted, sweep_spec, waits
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_bus.decider import Fold
from penstock_gateway import machine
from penstock_gateway.machine import GatewaySettings
from penstock_log import (
    AnyEvent,
    JobCancelled,
    JobFinished,
    JobHeld,
    JobsArchived,
    JobState,
    ProfileSample,
    RoundDecided,
    RunWarned,
    SamplesRequested,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    Wait,
)
from penstock_testing import Scenario, check_replay, delivery
from sweeps import examples

Gateway = Scenario[machine.GatewayState]


@pytest.fixture
def gateway() -> Gateway:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S + 50)


def finished(job_id: str = "j1", state: Any = "completed", **fields: Any) -> JobFinished:
    return JobFinished(
        **{"at_s": NOW_S + 5, "job_id": job_id, "name": "job", "state": state, "submitted_s": NOW_S, **fields}
    )


def sweep(sweep_id: str = "s1") -> SweepSubmitted:
    return SweepSubmitted(at_s=NOW_S, sweep_id=sweep_id, spec=sweep_spec(id=sweep_id))


def cancelled_sweep(by: str = "") -> SweepCancelled:
    return SweepCancelled(at_s=NOW_S + 9, sweep_id="s1", by=by)


def trial_cancelled(job_id: str, by: str = "") -> JobCancelled:
    return JobCancelled(at_s=NOW_S + 50, job_id=job_id, by=by, reason="its sweep s1 was cancelled")


def test_a_completed_job_is_announced_with_what_it_took(gateway: Gateway) -> None:
    gateway.given(joined(), submitted(user="ada", gpus=2), placed("j1", 0, 1), started())
    gateway.when(ended(steps=30, exit_code=0, metrics={"accuracy": 0.9})).then(
        finished(run_s=3.0, gpu_s=6.0, attempts=1, steps=30, exit_code=0, metrics={"accuracy": 0.9}, user="ada")
    )
    gateway.then()


def test_the_announcement_names_the_commit_that_ended_the_job(gateway: Gateway) -> None:
    gateway.given(submitted(), placed(), started()).when(ended())
    (proposal,) = gateway.decision().proposals
    assert proposal.cause == gateway.fold.last_seq


def test_a_preempted_job_is_not_announced_before_its_last_run_has_ended(gateway: Gateway) -> None:
    gateway.given(submitted(), placed(), started(), preempted()).when(ended(outcome="preempted", steps=10)).then()
    gateway.given(placed(epoch=2, at_s=NOW_S + 6), started(epoch=2, at_s=NOW_S + 7))
    gateway.when(ended(epoch=2, at_s=NOW_S + 9, steps=20)).then(
        finished(at_s=NOW_S + 9, run_s=5.0, gpu_s=5.0, attempts=2, preemptions=1, steps=20)
    )


def test_a_job_that_is_to_be_tried_again_is_not_announced(gateway: Gateway) -> None:
    gateway.given(submitted(retries=1), placed(), started()).when(ended(outcome="failed", exit_code=3)).then()


def test_a_cancelled_waiting_job_is_announced(gateway: Gateway) -> None:
    gateway.given(submitted()).when(JobCancelled(at_s=NOW_S + 5, job_id="j1", by="ada")).then(
        finished(state="cancelled", reason="cancelled by ada")
    )


def test_the_end_of_a_sample_is_not_announced(gateway: Gateway) -> None:
    request = SamplesRequested(
        at_s=NOW_S, key="k", spec=submitted().spec, samples=(ProfileSample(sample_id="k-1", kind="fast", iterations=5),)
    )
    gateway.given(request, placed("k-1"), started("k-1")).when(ended("k-1")).then()


def test_the_trials_of_a_cancelled_sweep_are_cancelled_each_once(gateway: Gateway) -> None:
    gateway.given(sweep(), submitted("a", parent="s1"), submitted("b", parent="s1"), submitted("c", parent="s1"))
    gateway.given(
        placed("b"), started("b"), submitted("other"), placed("c", 1), started("c"), ended("c"), finished("c")
    )
    gateway.when(cancelled_sweep(by="ada")).then(trial_cancelled("a", by="ada"), trial_cancelled("b", by="ada"))
    reason = "its sweep s1 was cancelled"
    gateway.then(finished("a", "cancelled", at_s=NOW_S + 50, reason=reason, parent="s1"))
    assert gateway.state.jobs["b"].state is JobState.COMPLETING
    gateway.then()


def test_a_trial_that_arrives_after_its_sweep_was_cancelled_is_cancelled_too(gateway: Gateway) -> None:
    gateway.given(sweep(), cancelled_sweep()).when(submitted("late", parent="s1")).then(trial_cancelled("late"))


def test_a_trial_that_is_to_be_cancelled_is_though_its_sweep_is_archived_by_then(gateway: Gateway) -> None:
    gateway.given(sweep(), submitted("a", parent="s1"), cancelled_sweep(by="ada"))
    gateway.when(JobsArchived(at_s=NOW_S, archive="log", job_ids=(), sweep_ids=("s1",))).then(trial_cancelled("a"))


def test_a_trial_that_arrives_before_its_sweep_is_still_the_sweeps(gateway: Gateway) -> None:
    gateway.given(submitted("early", parent="s1"), sweep()).when(cancelled_sweep()).then(trial_cancelled("early"))


def test_all_devices_of_all_runs_are_remembered_once_each(gateway: Gateway) -> None:
    gateway.given(joined(), submitted(gpus=2), placed("j1", 0, 1), started(), preempted(), ended(outcome="preempted"))
    gateway.given(placed("j1", 1, 2, epoch=2))
    assert gateway.state.histories["j1"].devices == ["n1/fast0", "n1/fast1", "n1/fast2"]


def test_a_placement_that_came_too_late_leaves_no_device_behind(gateway: Gateway) -> None:
    gateway.given(submitted(), JobCancelled(at_s=NOW_S, job_id="j1"), placed())
    assert gateway.state.histories["j1"].devices == []


def test_a_rounds_reasons_replace_those_of_the_round_before(gateway: Gateway) -> None:
    wait = Wait(job_id="j1", cause="capacity", evidence="2 fast busy")
    gateway.given(submitted(), waits(wait))
    assert gateway.state.wait_of(gateway.state.jobs["j1"]) == wait
    gateway.given(waits())
    assert gateway.state.wait_of(gateway.state.jobs["j1"]) is None


def test_only_the_last_few_warnings_are_kept(gateway: Gateway) -> None:
    gateway.given(submitted(), placed())
    gateway.given(*(RunWarned(at_s=NOW_S, job_id="j1", epoch=1, node_id="n1", warning=f"w{i}") for i in range(9)))
    assert gateway.state.histories["j1"].warnings == ["w4", "w5", "w6", "w7", "w8"]


def test_a_sweep_is_followed_from_its_first_group_to_its_end(gateway: Gateway) -> None:
    trials = (Trial(job_id="a", params={"lr": 0.1}), Trial(job_id="b", params={"lr": 0.2}))
    gateway.given(sweep(), TrialGroupOpened(at_s=NOW_S, sweep_id="s1", group=0, trials=trials))
    gateway.given(TrialFinished(at_s=NOW_S, sweep_id="s1", job_id="a", state="completed", value=0.5))
    seen = gateway.state.sweeps["s1"]
    assert (seen.state, seen.trials["a"].finished is not None, seen.trials["b"].finished) == ("running", True, None)
    gateway.given(cancelled_sweep())
    assert seen.state == "cancelling"
    gateway.given(SweepFinished(at_s=NOW_S, sweep_id="s1", state="cancelled"))
    assert seen.state == "cancelled"


def _life(job_id: str) -> list[AnyEvent]:
    return [
        submitted(job_id, retries=1, parent="s1" if job_id == "j1" else ""),
        ranked(job_id, queue=1),
        JobHeld(at_s=NOW_S, job_id=job_id),
        placed(job_id),
        started(job_id),
        preempted(job_id),
        ended(job_id, "preempted"),
        placed(job_id, 1, epoch=2),
        started(job_id, epoch=2),
        ended(job_id, "failed", epoch=2),
        ended(job_id, "completed"),
        JobCancelled(at_s=NOW_S + 9, job_id=job_id),
        finished(job_id),
        RoundDecided(at_s=NOW_S + 9, pool="default", lost_nodes=("n1",)),
    ]


facts = st.lists(st.sampled_from([joined(), sweep(), cancelled_sweep(), *_life("j1"), *_life("j2")]), max_size=40)


@given(facts)
@settings(max_examples=examples(200), deadline=None)
def test_replaying_any_log_gives_the_live_state(log: list[AnyEvent]) -> None:
    deliveries = [delivery(seq, fact) for seq, fact in enumerate(log, 1)]
    live = Fold(machine.decider(GatewaySettings()))
    for one in deliveries:
        live.apply(one)
    check_replay(machine.decider(GatewaySettings()), deliveries, live)


@given(facts)
@settings(max_examples=examples(200), deadline=None)
def test_after_any_log_the_gateway_comes_to_rest_with_every_ended_job_announced(log: list[AnyEvent]) -> None:
    gateway = Scenario(machine.decider(GatewaySettings())).at(NOW_S + 50).given(*log)
    gateway.settle(rounds=5)
    for job in gateway.state.jobs:
        assert gateway.state.histories[job.id].announced or job.state not in {
            JobState.COMPLETED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
