from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_cases import NOW_S, ended, joined, placed, preempted, ranked, started, submitted, waits

from penstock_gateway import machine
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.why import UNDECIDED, WaitExplainer
from penstock_log import (
    DeviceDrained,
    DeviceFailed,
    JobCancelled,
    JobHeld,
    KindSpeed,
    MemoryNeed,
    NodeDrained,
    NodeLeft,
    ProfileSample,
    SamplesRequested,
    Wait,
    WorkloadProfiled,
    workload,
)
from penstock_log.views import WhyView
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import Scenario

KEY = workload.key(submitted().spec)


@pytest.fixture
def log() -> Scenario[machine.GatewayState]:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S + 10)


def why(log: Scenario[machine.GatewayState], job_id: str = "j1") -> WhyView:
    explainer = WaitExplainer(log.state, log.now_s)
    view = explainer.explain(log.state.jobs[job_id])
    assert explainer.cause(log.state.jobs[job_id]) in ({view.cause, UNDECIDED} if view.state == "PD" else {""})
    return view


def said(log: Scenario[machine.GatewayState]) -> tuple[str, str, str]:
    view = why(log)
    return view.cause, view.evidence, view.remedy


def test_a_held_job_waits_for_its_release_whatever_else_is_wrong(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted(gpus=99), JobHeld(at_s=NOW_S, job_id="j1"))
    assert said(log) == ("held", "it is on hold", "penstock release j1")


def test_a_failed_job_waits_for_its_back_off_to_end(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), submitted(retries=2, backoff_s=10.0), placed(), started())
    log.given(ended(outcome="failed", reason="exit code 3", at_s=NOW_S + 4))
    assert said(log) == ("backoff", "1 of at most 3 runs failed (exit code 3); the next may start in 4.0 s", "")
    log.at(NOW_S + 20)
    assert why(log).cause == "undecided"
    assert "not its failures: the back-off is over" in why(log).not_causes


def test_a_job_in_a_pool_without_nodes_says_so_before_any_round(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted(pool="lab"))
    assert said(log) == ("no_nodes", "pool `lab` has no node", "start an executor in it, or choose another pool")


def test_a_job_whose_nodes_are_all_drained_says_which(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), submitted(), NodeDrained(at_s=NOW_S, node_id="n1"))
    assert said(log) == ("no_nodes", "1 node of pool `default`, all drained", "penstock node resume n1")


def test_a_job_whose_devices_have_failed_says_which_and_why(log: Scenario[machine.GatewayState]) -> None:
    failed = DeviceFailed(at_s=NOW_S, node_id="n1", index=1, code="xid 48", reason="XID 48: two bits")
    log.given(joined(), submitted(gpus=2), failed)
    evidence = "needs 2, 1 left that take jobs; failed: n1/fast1 (XID 48: two bits)"
    assert said(log) == ("capacity", evidence, "ask for at most 1 device: it starts now on `fast`")
    log.given(DeviceDrained(at_s=NOW_S, node_id="n1", index=0, reason="a loud fan"))
    evidence = (
        "needs 2, 0 left that take jobs; failed: n1/fast1 (XID 48: two bits); devices drained: n1/fast0 (a loud fan)"
    )
    assert said(log) == ("capacity", evidence, "penstock node resume n1 --device 0 --device 1")


def test_a_job_of_long_checkpoints_is_told_how_soon_the_idle_node_leaves(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), preempted(at_s=NOW_S + 10))
    log.given(ended(outcome="preempted", at_s=NOW_S + 25, steps=10, loop_steps=10, loop_s=8.0))
    log.given(NodeLeft(at_s=NOW_S + 30, node_id="n1"))
    log.given(msgspec.structs.replace(joined("n2"), at_s=NOW_S + 40, until_s=NOW_S + 200))
    evidence = "idle: 2 fast, but node `n2` leaves in 20 s, and a start and a save of its workload take 15 s"
    log.given(waits(Wait(job_id="j1", cause="capacity", evidence="it leaves in 70 s"), at_s=NOW_S + 130))
    log.at(NOW_S + 180)
    assert said(log)[:2] == ("capacity", evidence)


def test_a_job_on_a_drained_node_with_a_drained_device_is_told_of_both(log: Scenario[machine.GatewayState]) -> None:
    drained = DeviceDrained(at_s=NOW_S, node_id="n1", index=0)
    log.given(joined(), submitted(gpus=2), NodeDrained(at_s=NOW_S, node_id="n1"), drained)
    assert why(log).remedy == "penstock node resume n1 and penstock node resume n1 --device 0"


def test_a_job_that_is_too_large_says_what_there_is_before_any_round(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), submitted(gpus=3))
    view = why(log)
    assert view.cause == "never_fits"
    assert view.remedy == "ask for at most 2 devices: there are 2 of one kind"
    assert view.not_causes == ("it is not held",)


@pytest.mark.parametrize(("reserve", "cause"), [(0.05, "never_fits"), (0.0, UNDECIDED)])
def test_what_sharers_leave_alone_is_what_the_pool_says(
    log: Scenario[machine.GatewayState], reserve: float, cause: str
) -> None:
    log.given(joined(), submitted(sharing="lane", memory=MemoryNeed(persistent_bytes=1 << 30)))  # all of a device
    explainer = WaitExplainer(log.state, log.now_s, MatcherSettings(lane_reserve_share=reserve))
    assert explainer.explain(log.state.jobs["j1"]).cause == cause


def test_a_job_whose_workload_is_being_sampled_says_how_far_that_is(log: Scenario[machine.GatewayState]) -> None:
    samples = tuple(ProfileSample(sample_id=f"k-{i}", kind="fast", iterations=5) for i in range(2))
    log.given(joined(), submitted(), SamplesRequested(at_s=NOW_S, key=KEY, spec=submitted().spec, samples=samples))
    log.given(placed("k-0"), started("k-0"), ended("k-0"))
    assert said(log)[:2] == ("profiling", f"1 of 2 samples of its workload {KEY} are done")


def test_what_the_last_round_said_counts(log: Scenario[machine.GatewayState]) -> None:
    wait = Wait(job_id="j1", cause="capacity", evidence="2 fast busy", remedy="accept kind `slow`: there are 2")
    log.given(joined(), submitted(), waits(wait))
    assert said(log) == ("capacity", "2 fast busy", "accept kind `slow`: there are 2")
    assert why(log).not_causes == (
        "it is not held",
        "not its size: it asks for 1 device, and there are 2 of one kind that it accepts",
        "not a quota: there is none",
        "not fairness: its user is not kept back for others",
    )


@pytest.mark.parametrize("cause", ["held", "backoff", "begin", "dependency"])
def test_a_hindrance_of_the_last_round_that_is_over_is_not_repeated(
    log: Scenario[machine.GatewayState], cause: Any
) -> None:
    log.given(joined(), submitted(), waits(Wait(job_id="j1", cause=cause, evidence="then")))
    assert why(log).cause == "undecided"


def test_a_known_profile_is_named_as_no_cause(log: Scenario[machine.GatewayState]) -> None:
    speeds = tuple(KindSpeed(kind=kind, iteration_s=0.1, speed=1.0) for kind in ("fast", "a-kind-it-cannot-get"))
    log.given(joined(slow=1), submitted(), WorkloadProfiled(at_s=NOW_S, key=KEY, speeds=speeds))
    assert why(log).not_causes[-1] == "not its profile: its speeds are known on fast"
    guess = KindSpeed(kind="slow", iteration_s=0.0, speed=0.4, predicted=True)
    log.given(WorkloadProfiled(at_s=NOW_S, key=KEY, speeds=(*speeds, guess)))
    assert why(log).not_causes[-1] == "not its profile: its speeds are known on fast and predicted on slow"


def test_the_rank_counts_the_waiting_jobs_before_it(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), *(submitted(job_id) for job_id in ("j1", "first", "behind", "held", "running")))
    log.given(
        submitted("elsewhere", pool="lab"),
        submitted("other-pool", pool="lab"),
        JobHeld(at_s=NOW_S, job_id="held"),
        placed("running"),
    )
    positions = {"j1": (1, 5.0), "first": (0, 9.0), "behind": (1, 6.0), "held": (0, 0.0), "running": (0, 0.0)}
    log.given(*(ranked(job_id, *place) for job_id, place in positions.items()), ranked("other-pool"))
    view = why(log)
    assert view.rank is not None
    assert (view.rank.queue, view.rank.ahead) == (1, 1)
    assert why(log, "elsewhere").rank is None


def test_jobs_that_the_ranker_has_not_seen_stand_where_rounds_have_them(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), *(submitted(f"earlier-{number}", at_s=NOW_S + number) for number in range(3)))
    log.given(submitted(at_s=NOW_S + 5), ranked(position=NOW_S + 5))
    view = why(log)
    assert view.rank is not None
    assert (view.rank.queue, view.rank.ahead) == (0, 3)
    assert "not its priority: no waiting job stands before it" not in view.not_causes


def test_jobs_that_may_not_start_stand_before_nobody(log: Scenario[machine.GatewayState]) -> None:
    log.given(
        joined(), submitted("later", begin_s=NOW_S + 1e9), submitted("blocked", after=("after:later",)), submitted()
    )
    log.given(ranked("later", 0, 1.0), ranked("blocked", 0, 2.0), ranked("j1", 1, 5.0))
    view = why(log)
    assert view.rank is not None
    assert view.rank.ahead == 0


def test_what_can_never_start_stands_before_nobody(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), submitted(), submitted("too-big", gpus=99), ranked("too-big", 0, 1.0), ranked("j1", 1, 5.0))
    view = why(log)
    assert view.rank is not None
    assert view.rank.ahead == 0
    assert why(log, "too-big").rank is None


def test_a_job_cancelled_before_it_started_never_ran(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted(), JobCancelled(at_s=NOW_S + 4, job_id="j1", by="ada"))
    assert said(log)[1] == "it was cancelled after 4.0 s (it never ran): cancelled by ada"


def test_a_placed_job_is_being_started_and_then_runs(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined(), submitted(), placed())
    assert said(log) == ("running", "it is placed on n1/fast0, and its processes are being started", "")
    log.given(started())
    assert said(log) == ("running", "it has been running on n1/fast0 for 8.0 s", "")
    assert why(log).since_s == NOW_S + 1


def test_a_job_that_is_being_stopped_says_for_what(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted(), placed(), started(), preempted(reason="j2 ranks higher"))
    assert said(log)[1] == "it is being preempted (j2 ranks higher); its processes have not all ended yet"
    log.given(JobCancelled(at_s=NOW_S + 4, job_id="j1", by="ada"))
    assert said(log)[1] == "it is being cancelled (cancelled by ada); its processes have not all ended yet"


@pytest.mark.parametrize(
    ("outcome", "evidence"),
    [
        ("completed", "it completed after 5.0 s (3.0 s of them running)"),
        ("failed", "it failed after 5.0 s (3.0 s of them running): boom"),
    ],
)
def test_a_finished_job_says_how_it_ended(log: Scenario[machine.GatewayState], outcome: str, evidence: str) -> None:
    log.given(submitted(), placed(), started(), ended(outcome=outcome, reason="boom" if outcome == "failed" else ""))
    assert said(log) == ("finished", evidence, "")
    assert msgspec.json.decode(msgspec.json.encode(why(log)), type=WhyView) == why(log)


def full(log: Scenario[machine.GatewayState]) -> None:
    """One fast device taken for a long time, one slow one idle, and a job that accepts the fast one alone."""
    speeds = (KindSpeed(kind="fast", iteration_s=1.0, speed=1.0), KindSpeed(kind="slow", iteration_s=2.5, speed=0.4))
    log.given(joined(fast=1, slow=1), WorkloadProfiled(at_s=NOW_S, key=KEY, speeds=speeds))
    log.given(submitted("other", duration_s=500.0), placed("other"), started("other"))
    log.given(submitted(kinds=("fast",), memory_bytes=1 << 20), ranked())
    log.given(waits(Wait(job_id="j1", cause="capacity", evidence="1 fast busy", remedy="what was true then")))


def test_what_would_start_it_now_is_tried_now(log: Scenario[machine.GatewayState]) -> None:
    full(log)
    view = why(log)
    assert view.alternative is not None
    assert (view.alternative.change, view.alternative.speed) == ({"kinds": ("fast", "slow")}, 0.4)
    assert view.remedy == view.alternative.text == "accept kind `slow` too: it starts now, at 0.4x speed"
    assert (view.start_in_s, view.basis) == (None, "")


def test_what_is_not_the_cause_is_cleared_with_its_reason(log: Scenario[machine.GatewayState]) -> None:
    full(log)
    assert why(log).not_causes == (
        "it is not held",
        "not its priority: no waiting job stands before it",
        "not its size: it asks for 1 device, and there is 1 of one kind that it accepts",
        "not its memory: asking for less, there would not be an idle device either",
        "not a quota: there is none",
        "not fairness: its user is not kept back for others",
        "not its profile: its speeds are known on fast",
    )


def test_where_nothing_would_start_it_now_an_estimate_says_when_it_does(log: Scenario[machine.GatewayState]) -> None:
    full(log)
    log.given(submitted("third", kinds=("slow",)), placed("third", 1, kind="slow"), started("third"))
    view = why(log)
    assert (view.alternative, view.start_in_s) == (None, pytest.approx(492.0))
    assert view.basis.startswith("1 job by declared duration")
    assert "not its kinds: no other has an idle device for it either" in view.not_causes


def test_a_job_that_the_round_did_not_speak_of_is_asked_after(log: Scenario[machine.GatewayState]) -> None:
    full(log)
    log.given(waits(at_s=NOW_S + 9))
    assert why(log).cause == "capacity"
    assert why(log).evidence.startswith("1 fast busy with 1 job of queue 0")
