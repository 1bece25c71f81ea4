"""What the demo holds against its jobs, and against FIFO."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from demo import outcome, screen, workload
from demo.outcome import JobOutcome, Measured, Run, Summary
from demo.workload import Arrival
from penstock_events import KindSpeed

ARRIVALS = {arrival.spec.name: arrival for arrival in workload.arrivals()}
SPEEDS = (KindSpeed(kind="fast", iteration_s=1.0, speed=1.0), KindSpeed(kind="slow", iteration_s=2.5, speed=0.4))


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


def run(kind: str = "fast", ended: str = "completed", run_s: float = 11.0, loop_s: float = 10.0, steps: int = 0) -> Run:
    return Run(kind=kind, ended=ended, run_s=run_s, loop_s=loop_s, loop_steps=steps)


def measured(*runs: Run, submitted_s: float = 0.0, **fields: Any) -> Measured:
    return Measured(**{"submitted_s": submitted_s, "gpus": 1, "kinds": (), "speeds": SPEEDS, "runs": runs, **fields})


@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=lambda arrival: arrival.spec.name)
def test_a_job_that_ended_as_it_should_has_no_fault(arrival: Arrival) -> None:
    assert outcome.faults(arrival, line(arrival.spec.name)) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mlp-a", {"state": "F"}),
        ("mlp-a", {"steps": 499}),
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
    (fault,) = outcome.trial_faults([*trials[:-1], msgspec.structs.replace(trials[-1], steps=149)])
    assert fault.startswith("t7: expected state CD after 150 steps")


@pytest.mark.parametrize(("second", "fine"), [(300, True), (301, False), (299, False)])
def test_over_all_runs_of_a_preempted_job_each_step_is_done_once(second: int, *, fine: bool) -> None:
    runs = [run(ended="preempted", steps=200), run(steps=second)]
    assert (outcome.step_faults(line("mlp-a"), runs) == []) is fine


def test_after_a_crash_steps_may_be_done_again_but_none_left_out() -> None:
    crashed = run(ended="failed", steps=600)
    assert outcome.step_faults(line("crash-once"), [crashed, run(steps=1200)]) == []
    assert outcome.step_faults(line("crash-once"), [crashed, run(steps=500)]) != []


def test_what_a_job_took_is_carried_over_to_another_kind_but_not_its_start() -> None:
    on_slow = measured(run(kind="slow", run_s=26.0, loop_s=25.0))
    assert outcome.fifo_avg_jct_s([on_slow]) == pytest.approx(11.0)  # 10 s of steps on fast, and 1 s around them


def test_fifo_does_not_pay_for_preemptions() -> None:
    stopped = run(ended="preempted", run_s=5.0, loop_s=4.0)
    assert outcome.fifo_avg_jct_s([measured(stopped, run(run_s=7.0, loop_s=6.0))]) == pytest.approx(11.0)


def test_but_for_what_a_busy_host_took() -> None:
    stopped = run(ended="preempted", run_s=8.0, loop_s=4.0)
    assert outcome.fifo_avg_jct_s([measured(stopped, run(run_s=7.0, loop_s=6.0))]) == pytest.approx(14.0)


def test_it_has_the_same_devices_and_keeps_the_order() -> None:
    jobs = [measured(run(), submitted_s=float(i) / 100) for i in range(5)]
    ends = [11.0, 11.01, 26.02, 26.03, 22.0]  # two fast, two slow, then the first fast one again
    assert outcome.fifo_avg_jct_s(jobs) == pytest.approx(sum(ends) / 5 - 0.02, abs=1e-9)


def test_under_fifo_an_elastic_job_has_its_narrowest_width_at_the_pace_that_it_had_there() -> None:
    narrow = run(run_s=11.0, loop_s=10.0, steps=10)
    wide = msgspec.structs.replace(run(run_s=9.0, loop_s=8.0, steps=10), gpus=2, samples=3000)
    runs = [msgspec.structs.replace(narrow, samples=2000, ended="preempted"), wide]
    assert outcome.fifo_avg_jct_s([measured(*runs)]) == pytest.approx(10.0 * 2.5 + 1.0)


def test_where_a_job_was_resized_that_is_told() -> None:
    grown = line("elastic", widths=(1, 2), samples=1438, steps=20)
    summary = Summary(ok=True, avg_jct_s=1.0, fifo_avg_jct_s=1.0, wrong=(), jobs=(grown, line("mlp-a")))
    assert screen.notes(summary) == ["elastic: on 1, then 2 devices, 1,438 images in 20 steps"]
