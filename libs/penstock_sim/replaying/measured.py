"""What really happened, as an outcome beside those of simulations."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock_events import Job, State
from penstock_sim.history import History, longest
from penstock_sim.outcome import Outcome, Spells, Timeline
from penstock_sim.trace import Floats, Trace

AS_IT_WAS: Final = "as it was"
"""The name of what really happened, among policies."""

STATES: Final = {State.COMPLETED: "completed", State.FAILED: "failed", State.CANCELLED: "cancelled"}


def trace_of(history: History, jobs: list[Job]) -> Trace:
    """Return jobs as a trace; their lengths are the times that they held their devices, on the log's clock."""
    return Trace(
        name="log",
        job_ids=[job.id for job in jobs],
        submit_s=np.array([job.submitted_s for job in jobs], dtype=np.float64),
        num_gpus=np.array([longest(history.runs[job.id]).gpus for job in jobs], dtype=np.int64),
        duration_s=np.array([job.executed_by(history.last_s) for job in jobs], dtype=np.float64),
        vcs=[job.spec.team for job in jobs],
        users=[job.spec.user for job in jobs],
        models=[job.spec.model for job in jobs],
        states=[STATES.get(job.state, "running") for job in jobs],
    )


def measured(history: History, jobs: list[Job], trace: Trace) -> Outcome:
    """Return what really became of the jobs."""
    ended_s = [job.finished_s if job.state is State.COMPLETED else np.nan for job in jobs]
    return Outcome(
        policy=AS_IT_WAS,
        trace=trace,
        gpus=sum(len(joined.devices) for joined in history.joined),
        start_s=np.array([job.first_started_s or np.nan for job in jobs], dtype=np.float64),
        end_s=np.array(ended_s, dtype=np.float64),
        executed_s=trace.duration_s,
        preemptions=np.array([job.preemptions for job in jobs], dtype=np.int64),
        promotions=np.zeros(len(jobs), dtype=np.int64),
        events=len(history.seqs),
        wall_s=0.0,
        timeline=_timeline(history, jobs),
        spells=_spells(history, jobs),
        held_gpu_s=_held_gpu_s(history, jobs),
        until_s=max(run.ended_s for job in jobs for run in history.runs[job.id]),
    )


def censored(jobs: list[Job]) -> npt.NDArray[np.bool_]:
    """Return which jobs have no true length: they were cancelled, failed, or still run."""
    return np.array([job.state is not State.COMPLETED for job in jobs], dtype=bool)


def _held_gpu_s(history: History, jobs: list[Job]) -> Floats | None:
    """Return what each job held of devices, (J,); None where that is always as many as it asked for."""
    if not any(history.jobs[job.id].spec.elastic for job in jobs):
        return None
    return np.array(
        [sum((run.ended_s - run.started_s) * run.size.gpus for run in history.runs[job.id]) for job in jobs]
    )


def _timeline(history: History, jobs: list[Job]) -> Timeline:
    """Return devices in use and jobs that wait, at every time at which one of them changes."""
    steps = [(job.submitted_s, 0, 1) for job in jobs]
    for job in jobs:
        runs = history.runs[job.id]
        for run in runs:
            gpus = run.size.gpus
            steps += [(run.started_s, gpus, -1), (run.ended_s, -gpus, 1)]
        steps.append((max(job.finished_s or history.last_s, runs[-1].ended_s), 0, -1))
    changes = np.array(sorted(steps), dtype=np.float64)
    at_s, last = np.unique(changes[::-1, 0], return_index=True)
    sums = np.cumsum(changes[:, 1:], axis=0)[len(changes) - 1 - last].astype(np.int64)
    return Timeline(at_s=at_s, busy_gpus=sums[:, 0], waiting_jobs=sums[:, 1])


def _spells(history: History, jobs: list[Job]) -> Spells:
    first, devices = dict[str, int](), 0
    for joined in history.joined:
        first[joined.node_id] = devices
        devices += len(joined.devices)
    rows = [
        (row, first[slot.node_id] + index, run.started_s, run.ended_s)
        for row, job in enumerate(jobs)
        for run in history.runs[job.id]
        for slot in run.slots
        if slot.node_id in first
        for index in slot.devices
    ]
    job, device, from_s, to_s = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Spells(
        job=np.array(job, dtype=np.int64),
        device=np.array(device, dtype=np.int64),
        from_s=np.array(from_s, dtype=np.float64),
        to_s=np.array(to_s, dtype=np.float64),
    )
