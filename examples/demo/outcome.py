"""What came of the demo: figures for each job, for the whole, and beside them what FIFO would have given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

import msgspec
import numpy as np

from demo.workload import SWEEP_STEPS, TRIALS, Arrival
from penstock_events import KindSpeed, views
from penstock_policies import fifo

KINDS = {"fast": 2, "slow": 2, "cpu": 1}


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    One job's line in the summary; times in seconds, None where there is none.

    ``widths`` are the devices of its runs, each once as long as it stayed the same.
    """

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
    samples: int = 0
    widths: tuple[int, ...] = ()

    @property
    def grew(self) -> bool:
        """Whether a run had more devices than the one before."""
        return any(after > before for before, after in pairwise(self.widths))


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demo. ``wrong`` says what ended other than it should."""

    ok: bool
    avg_jct_s: float
    fifo_avg_jct_s: float
    wrong: tuple[str, ...]
    jobs: tuple[JobOutcome, ...]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """
    One run of a job as it was measured.

    ``loop_s`` of its ``run_s`` seconds went into ``loop_steps`` steps, and these into ``samples`` images.
    """

    kind: str
    ended: str
    run_s: float
    loop_s: float
    loop_steps: int
    gpus: int = 1
    samples: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One completed job as it was measured: its runs, and its speeds on the kinds of devices."""

    submitted_s: float
    gpus: int
    kinds: tuple[str, ...]
    speeds: tuple[KindSpeed, ...]
    runs: tuple[Run, ...]


def of_job(view: views.JobView, runs: Sequence[Run] = ()) -> JobOutcome:
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
        samples=view.samples,
        widths=tuple(gpus for gpus, _ in groupby(run.gpus for run in runs if run.loop_steps)),
    )


def refused(name: str, reason: str) -> JobOutcome:
    """Return the line of a job that was not accepted."""
    return JobOutcome(
        id="",
        name=name,
        state="refused",
        wait_s=None,
        run_s=None,
        jct_s=None,
        devices=(),
        preemptions=0,
        attempts=0,
        steps=0,
        accuracy=None,
        reason=reason,
    )


def faults(arrival: Arrival, outcome: JobOutcome) -> list[str]:
    """Return what is wrong with how a job ended; empty where all is as it should be."""
    wanted: list[tuple[str, object, bool]] = [(f"state {arrival.end}", outcome.state, outcome.state == arrival.end)]
    if arrival.end == "CD":
        wanted += [
            (f"{arrival.steps} steps", outcome.steps, not arrival.steps or outcome.steps == arrival.steps),
            (f"{arrival.samples} samples", outcome.samples, not arrival.samples or outcome.samples == arrival.samples),
            ("more devices than before in some run", outcome.widths, not arrival.grows or outcome.grew),
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


def trial_faults(trials: Sequence[JobOutcome]) -> list[str]:
    """Return what is wrong with how the sweep's trials ended."""
    missing = [] if len(trials) == TRIALS else [f"sweep: expected {TRIALS} trials, got {len(trials)}"]
    wrong = [t for t in trials if t.state != "CD" or t.steps != SWEEP_STEPS or t.accuracy is None]
    return missing + [f"{t.name}: expected state CD after {SWEEP_STEPS} steps, got {t}" for t in wrong]


def step_faults(outcome: JobOutcome, runs: Sequence[Run]) -> list[str]:
    """
    Return what is wrong with how often a completed job did its steps: each once, over all of its runs.

    After a crash those since the last checkpoint are done again.
    """
    done = sum(run.loop_steps for run in runs)
    crashed = any(run.ended not in {"completed", "preempted"} for run in runs)
    if done == outcome.steps or (crashed and done > outcome.steps):
        return []
    return [f"{outcome.name}: expected {outcome.steps} steps done over all of its runs, got {done}"]


def fifo_avg_jct_s(jobs: Sequence[Measured]) -> float:
    """
    Return the average completion time that FIFO would have given the same jobs on the same devices, in seconds.

    What a job's steps took is carried over to the other kinds by its measured speed-ups. The time around them (start,
    end, what a busy host takes) is taken as it is, less one start and end for each preemption: FIFO preempts nobody.
    The profiler's samples and the job that was cancelled cost it nothing either. An elastic job has its narrowest width
    there, at the pace that it had on it.
    """
    if not jobs:
        return 0.0
    jobs = sorted(jobs, key=lambda job: job.submitted_s)
    submit_s = np.array([job.submitted_s for job in jobs])
    gpus = np.array([job.gpus for job in jobs])
    run_s = np.array([[_on(job, kind) for kind in KINDS] for job in jobs])
    _, end_s = fifo.schedule(submit_s, gpus, run_s, np.array(list(KINDS.values())))
    return float(np.mean(end_s - submit_s))


def _on(job: Measured, kind: str) -> float:
    allowed = kind in job.kinds if job.kinds else kind != "cpu"
    if not allowed:
        return math.inf
    speed = {entry.kind: entry.speed for entry in job.speeds}
    narrow = [run for run in job.runs if run.gpus == job.gpus] or job.runs
    work_s = _times(job, narrow) * sum(run.loop_s * speed.get(run.kind, 1.0) for run in narrow)
    around_s = [run.run_s - run.loop_s for run in job.runs]
    preemptions = sum(run.ended == "preempted" for run in job.runs)
    return work_s / speed.get(kind, 1.0) + sum(around_s) - preemptions * min(around_s, default=0.0)


def _times(job: Measured, narrow: Sequence[Run]) -> float:
    """Return how often some of a job's runs would have to be done for all that it did."""
    done = sum(run.samples for run in narrow)
    return sum(run.samples for run in job.runs) / done if done else 1.0
