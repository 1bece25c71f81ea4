"""What the demo holds against its jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from demo import outcome, screen, workload
from demo.outcome import JobOutcome, Run, Summary
from demo.workload import Arrival

ARRIVALS = {arrival.spec.name: arrival for arrival in workload.arrivals()}


def line(name: str, **fields: Any) -> JobOutcome:
    arrival = ARRIVALS.get(name)
    good = {
        "state": "CD" if arrival is None else arrival.end,
        "steps": workload.SWEEP_STEPS if arrival is None else arrival.steps,
        "attempts": 1 if arrival is None else arrival.attempts,
        "preemptions": 0 if arrival is None else arrival.preemptions,
        "accuracy": 0.95,
        "reason": "because",
        "samples": 0 if arrival is None else arrival.samples,
        "widths": (1, 2) if arrival is not None and arrival.grows else (1,),
    }
    times = dict.fromkeys(("wait_s", "run_s", "jct_s"), 1.0)
    return JobOutcome(**{"id": name, "name": name, "devices": (), **times, **good, **fields})


def run(ended: str = "completed", steps: int = 0) -> Run:
    return Run(ended=ended, loop_steps=steps)


@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=lambda arrival: arrival.spec.name)
def test_a_job_that_ended_as_it_should_has_no_fault(arrival: Arrival) -> None:
    assert outcome.faults(arrival, line(arrival.spec.name)) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mlp-a", {"state": "F"}),
        ("mlp-a", {"steps": 299}),
        ("mlp-a", {"accuracy": 0.5}),
        ("mlp-a", {"accuracy": None}),
        ("long", {"preemptions": 0}),
        ("crash-once", {"attempts": 1}),
        ("to-be-cancelled", {"state": "CD"}),
        ("never-fits", {"state": "PD"}),
        ("elastic", {"samples": workload.EPOCHS * workload.DATA_SET - 1}),
        ("elastic", {"widths": (2, 1)}),
        ("never-fits", {"reason": ""}),
    ],
)
def test_one_that_did_not_is_found_out(name: str, wrong: dict[str, Any]) -> None:
    (fault,) = outcome.faults(ARRIVALS[name], line(name, **wrong))
    assert fault.startswith(f"{name}: expected ")


def test_a_sweep_has_eight_trials_and_all_of_them_end() -> None:
    trials = [line(f"t{i}") for i in range(8)]
    assert outcome.trial_faults(trials) == []
    assert outcome.trial_faults(trials[:-1]) == ["sweep: expected 8 trials, got 7"]
    (fault,) = outcome.trial_faults([*trials[:-1], msgspec.structs.replace(trials[-1], steps=99)])
    assert fault.startswith("t7: expected state CD after 100 steps")


@pytest.mark.parametrize(("second", "fine"), [(200, True), (201, False), (199, False)])
def test_over_all_runs_of_a_preempted_job_each_step_is_done_once(second: int, *, fine: bool) -> None:
    runs = [run(ended="preempted", steps=100), run(steps=second)]
    assert (outcome.step_faults(line("mlp-a"), runs) == []) is fine


def test_after_a_crash_steps_may_be_done_again_but_none_left_out() -> None:
    crashed = run(ended="failed", steps=300)
    assert outcome.step_faults(line("crash-once"), [crashed, run(steps=600)]) == []
    assert outcome.step_faults(line("crash-once"), [crashed, run(steps=250)]) != []


def test_where_a_job_was_resized_that_is_told() -> None:
    grown = line("elastic", widths=(1, 2), samples=1438, steps=20)
    summary = Summary(
        ok=True, avg_jct_s=1.0, virtual_avg_jct_s=1.0, fifo_avg_jct_s=1.0, wrong=(), jobs=(grown, line("mlp-a"))
    )
    assert screen.notes(summary) == ["elastic: on 1, then 2 devices, 1,438 images in 20 steps"]
