"""Trials that exceed their memory: once more alone, or failed, as the sweep says."""

from __future__ import annotations

from typing import Any

import pytest
from tuner_facts import node, sweep_spec

from penstock_log import (
    AnyEvent,
    Budget,
    Choice,
    JobSubmitted,
    MemoryNeed,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
)
from penstock_testing import Scenario
from penstock_tuner.machine import TunerState, decider, submission

Tuner = Scenario[TunerState]
MIB = 2**20
KILLED = "rank 0 wanted more than the 164 MiB that it may hold, and was ended by the kernel"
WHY = f"trial exceeded its memory: asked 100 MiB, used 150 MiB; {KILLED}"


def opened(**fields: Any) -> Tuner:
    spec = sweep_spec(**{"space": {"lr": Choice(values=(0.1, 0.2))}, **fields})
    tuner = Scenario(decider()).at(1.0).given(node("n1", "a"))
    tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    return tuner


def run(tuner: Tuner, job_id: str, **end: Any) -> list[AnyEvent]:
    """Let a trial be accepted, run and end; return what the tuner says then."""
    tuner.given(JobSubmitted(at_s=1.0, job_id=job_id, spec=submission(tuner.state, job_id)))
    placement = Placement(job_id=job_id, epoch=1, kind="a", slots=(Slot(node_id="n1", devices=(0,)),))
    tuner.given(RoundDecided(at_s=2.0, pool="default", placements=(placement,)))
    tuner.given(RunStarted(at_s=2.0, job_id=job_id, epoch=1, node_id="n1", devices=(0,)))
    tuner.given(RunEnded(at_s=3.0, job_id=job_id, epoch=1, node_id="n1", **end))
    return tuner.settle()


def exceed(tuner: Tuner, job_id: str, cap_bytes: int = 100 * MIB) -> list[AnyEvent]:
    used = {"peak_memory_bytes": 150 * MIB, "cap_bytes": cap_bytes}
    return run(tuner, job_id, outcome="failed", reason=KILLED, out_of_memory=True, **used)


def complete(tuner: Tuner, job_id: str, value: float = 0.5) -> list[AnyEvent]:
    return run(tuner, job_id, outcome="completed", metrics={"acc": value})


def test_a_trial_that_exceeds_its_memory_beside_others_runs_once_more_with_a_device_to_itself():
    tuner = opened()
    (retried,) = exceed(tuner, "s1-t000")
    assert isinstance(retried, TrialRetried)
    assert (retried.job_id, retried.trial.job_id, retried.reason) == ("s1-t000", "s1-t000-a", WHY)
    spec = submission(tuner.state, "s1-t000-a")
    assert (spec.sharing, spec.sharers, spec.params["lr"], spec.name) == ("exclusive", 0, 0.1, "digits-t000-a")
    (report,) = complete(tuner, "s1-t000-a", 0.9)
    assert isinstance(report, TrialFinished)
    assert (report.job_id, report.value, report.problem) == ("s1-t000-a", 0.9, "")
    *_, finish = complete(tuner, "s1-t001")
    assert isinstance(finish, SweepFinished)
    assert (finish.best_job_id, finish.best_value) == ("s1-t000-a", 0.9)


def test_one_that_exceeds_a_whole_device_has_failed_and_the_search_hears_so():
    tuner = opened()
    exceed(tuner, "s1-t000")
    (report,) = exceed(tuner, "s1-t000-a", cap_bytes=0)
    assert isinstance(report, TrialFinished)
    assert (report.state, report.value, report.problem) == ("failed", None, "memory")
    assert report.reason == f"trial exceeded its memory: asked a whole device, used 150 MiB; {KILLED}"


@pytest.mark.parametrize("how", [{"on_memory": "fail"}, {"intra": False}])
def test_it_fails_at_once_where_the_sweep_says_so_or_it_was_alone_already(how):
    (report,) = exceed(opened(**how), "s1-t000")
    assert isinstance(report, TrialFinished)
    assert (report.state, report.problem, report.reason) == ("failed", "memory", WHY)


def test_what_was_asked_is_what_the_specification_says_where_it_does():
    job = sweep_spec().job
    tuner = opened(job=type(job)(name="t", command=("x",), sharing="lane", memory=MemoryNeed(10 * MIB, 0, 30 * MIB)))
    (retried,) = exceed(tuner, "s1-t000")
    assert isinstance(retried, TrialRetried)
    assert retried.reason.startswith("trial exceeded its memory: asked 40 MiB, used 150 MiB")


@pytest.mark.parametrize(
    "shares", [{"sharing": "lane", "memory": MemoryNeed(1, 0, 1)}, {"sharing": "fraction", "fraction": 0.5}]
)
def test_one_whose_template_shares_by_itself_is_alone_the_second_time_too_and_there_is_no_third(shares):
    job = sweep_spec().job
    tuner = opened(job=type(job)(name="t", command=("x",), **shares))
    exceed(tuner, "s1-t000")
    spec = submission(tuner.state, "s1-t000-a")
    assert (spec.sharing, spec.sharers, spec.fraction, spec.memory) == ("exclusive", 0, 1.0, None)
    (report,) = exceed(tuner, "s1-t000-a", cap_bytes=0)
    assert isinstance(report, TrialFinished)
    assert (report.job_id, report.problem) == ("s1-t000-a", "memory")


def test_one_whose_last_request_was_refused_wanted_more_than_it_used():
    (retried,) = exceed(opened(), "s1-t000", cap_bytes=200 * MIB)
    assert isinstance(retried, TrialRetried)
    assert retried.reason == f"trial exceeded its memory: asked 200 MiB, used 150 MiB and wanted more; {KILLED}"


def test_a_run_that_crashes_otherwise_has_crashed():
    (report,) = run(opened(), "s1-t000", outcome="failed", reason="exit code 1")
    assert isinstance(report, TrialFinished)
    assert report.problem == "crashed"


def test_a_sweep_that_is_cancelled_meanwhile_runs_nothing_once_more():
    tuner = opened()
    tuner.given(JobSubmitted(at_s=1.0, job_id="s1-t000", spec=submission(tuner.state, "s1-t000")))
    placement = Placement(job_id="s1-t000", epoch=1, kind="a", slots=(Slot(node_id="n1", devices=(0,)),))
    about = {"job_id": "s1-t000", "epoch": 1, "node_id": "n1"}
    tuner.given(RoundDecided(at_s=2.0, pool="default", placements=(placement,)))
    tuner.given(RunEnded(at_s=3.0, outcome="failed", out_of_memory=True, **about))
    said = tuner.given(SweepCancelled(at_s=3.0, sweep_id="s1")).settle()
    assert [(fact.job_id, fact.state) for fact in said if isinstance(fact, TrialFinished)] == [
        ("s1-t000", "failed"),
        ("s1-t001", "cancelled"),
    ]


def test_a_trial_that_ran_once_more_can_be_promoted():
    tuner = opened(search="halving", trials=2, budget=Budget(param="epochs", least=1, most=2, eta=2), sampler="random",
                   space=sweep_spec(search="random").space)  # fmt: skip
    exceed(tuner, "s1-t000")
    complete(tuner, "s1-t001", 0.1)
    said = complete(tuner, "s1-t000-a", 0.9)
    (group,) = [fact for fact in said if isinstance(fact, TrialGroupOpened)]
    assert [(trial.job_id, trial.origin) for trial in group.trials] == [("s1-t000-r1", "s1-t000-a")]
