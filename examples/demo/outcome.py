"""What came of the demo: figures for each job, for the whole, and beside them what FIFO would have given."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from demo.workload import SWEEP_STEPS, Arrival
from penstock_events import KindSpeed, views
from penstock_policies import fifo

KINDS = {"fast": 2, "slow": 2, "cpu": 1}


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One job's line in the summary; times in seconds, None where there is none."""

    id: str
    name: str
    state: str
    wait_s: float | None
    run_s: float | None
    jct_s: float | None
    devices: tuple[str, ...]
    preemptions: int
    attempts: int
    steps: int
    accuracy: float | None
    reason: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demo. ``wrong`` says what ended other than it should."""

    ok: bool
    avg_jct_s: float
    fifo_avg_jct_s: float
    wrong: tuple[str, ...]
    jobs: tuple[JobOutcome, ...]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One completed job as it was measured: how long it ran on which kind, and what is known of its speeds."""

    submitted_s: float
    gpus: int
    on_kind_s: dict[str, float]
    kinds: tuple[str, ...]
    speeds: tuple[KindSpeed, ...]


def of_job(view: views.JobView) -> JobOutcome:
    """Return a job's line."""
    return JobOutcome(
        id=view.id,
        name=view.name,
        state=view.state,
        wait_s=view.wait_s,
        run_s=view.run_s,
        jct_s=view.jct_s,
        devices=view.devices,
        preemptions=view.preemptions,
        attempts=view.attempts,
        steps=view.steps,
        accuracy=view.metrics.get("accuracy"),
        reason=view.reason,
    )


def refused(name: str, reason: str) -> JobOutcome:
    """Return the line of a job that was not accepted."""
    nothing: dict[str, None] = dict.fromkeys(("wait_s", "run_s", "jct_s", "accuracy"))
    return JobOutcome(
        id="", name=name, state="refused", devices=(), preemptions=0, attempts=0, steps=0, reason=reason, **nothing
    )


def faults(arrival: Arrival, outcome: JobOutcome) -> list[str]:
    """Return what is wrong with how a job ended; empty where all is as it should be."""
    wanted: list[tuple[str, object, bool]] = [(f"state {arrival.end}", outcome.state, outcome.state == arrival.end)]
    if arrival.end == "CD":
        wanted += [
            (f"{arrival.steps} steps", outcome.steps, outcome.steps == arrival.steps),
            (f"at least {arrival.attempts} attempts", outcome.attempts, outcome.attempts >= arrival.attempts),
            (
                f"at least {arrival.preemptions} preemptions",
                outcome.preemptions,
                outcome.preemptions >= arrival.preemptions,
            ),
            ("an accuracy above 0.8", outcome.accuracy, (outcome.accuracy or 0.0) > 0.8),
        ]
    if arrival.end == "refused":
        wanted.append(("a reason", outcome.reason, bool(outcome.reason)))
    return [f"{outcome.name}: expected {what}, got {got}" for what, got, fine in wanted if not fine]


def trial_faults(outcome: JobOutcome) -> list[str]:
    """Return what is wrong with how a trial ended."""
    fine = outcome.state == "CD" and outcome.steps == SWEEP_STEPS and outcome.accuracy is not None
    return [] if fine else [f"{outcome.name}: expected state CD after {SWEEP_STEPS} steps, got {outcome}"]


def fifo_avg_jct_s(runs: list[Run]) -> float:
    """
    Return the average completion time that FIFO would have given the same jobs on the same devices, in seconds.

    Each job's measured run time is carried over to the other kinds by its measured speed-ups.
    """
    runs = sorted(runs, key=lambda run: run.submitted_s)
    submit_s = np.array([run.submitted_s for run in runs])
    gpus = np.array([run.gpus for run in runs])
    run_s = np.array([[_on(run, kind) for kind in KINDS] for run in runs])
    _, end_s = fifo.schedule(submit_s, gpus, run_s, np.array(list(KINDS.values())))
    return float(np.mean(end_s - submit_s))


def _on(run: Run, kind: str) -> float:
    allowed = kind in run.kinds if run.kinds else kind != "cpu"
    if not allowed:
        return math.inf
    speed = {entry.kind: entry.speed for entry in run.speeds}
    work_s = sum(seconds * speed.get(used, 1.0) for used, seconds in run.on_kind_s.items())
    return work_s / speed.get(kind, 1.0)
