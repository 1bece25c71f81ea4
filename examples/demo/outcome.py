"""What came of the demo: figures for each job and for the whole, and what ended other than it should."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import msgspec

from demo.workload import SWEEP_STEPS, TRIALS, Arrival
from penstock_log import views


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
    """
    The whole demo.

    Attributes
    ----------
    avg_jct_s : float
        Average completion time as measured.
    virtual_avg_jct_s, fifo_avg_jct_s : float
        The same under virtual time (:mod:`demo.comparison`), by the demo's deciders and by the same ones under FIFO.
    wrong : tuple of str
        What ended other than it should.
    """

    ok: bool
    avg_jct_s: float
    virtual_avg_jct_s: float
    fifo_avg_jct_s: float
    wrong: tuple[str, ...]
    jobs: tuple[JobOutcome, ...]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job: how it ended, and how many steps it did on how many devices."""

    ended: str
    loop_steps: int
    gpus: int = 1


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
