"""
What really happened, as an outcome.

:func:`measured` returns a history as an outcome that can stand beside those of simulations; :func:`trace_of` returns
its jobs as a trace. :func:`only` and :func:`without_ends` return a part of an outcome.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock_log import Job, JobState
from penstock_simulator.outcome import UNTOUCHED, ClusterTimeline, DeviceSpells, Outcome
from penstock_simulator.replay.history import ClusterHistory, longest
from penstock_simulator.trace import Floats, Ints, Trace, taken

AS_IT_WAS: Final = "as it was"
"""The name of what really happened, among policies."""

STATES: Final = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "cancelled"}


def trace_of(history: ClusterHistory, jobs: list[Job]) -> Trace:
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


def measured(history: ClusterHistory, jobs: list[Job], trace: Trace) -> Outcome:
    """Return what really became of the jobs."""
    ended_s = [job.finished_s if job.state is JobState.COMPLETED else np.nan for job in jobs]
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
        spells=_recorded_spells(history, jobs),
        held_gpu_s=_held_gpu_s(history, jobs),
        until_s=max(run.ended_s for job in jobs for run in history.runs[job.id]),
    )


def censored(jobs: list[Job]) -> npt.NDArray[np.bool_]:
    """Return which jobs have no true length: they were cancelled, failed, or still run."""
    return np.array([job.state is not JobState.COMPLETED for job in jobs], dtype=bool)


def _held_gpu_s(history: ClusterHistory, jobs: list[Job]) -> Floats | None:
    """Return each job's device time, (J,); None if each job always held as many devices as it asked for."""
    if not any(history.jobs[job.id].spec.elastic for job in jobs):
        return None
    return np.array(
        [sum((run.ended_s - run.started_s) * run.size.gpus for run in history.runs[job.id]) for job in jobs]
    )


def _timeline(history: ClusterHistory, jobs: list[Job]) -> ClusterTimeline:
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
    return ClusterTimeline(at_s=at_s, busy_gpus=sums[:, 0], waiting_jobs=sums[:, 1])


def _recorded_spells(history: ClusterHistory, jobs: list[Job]) -> DeviceSpells:
    sizes = [len(joined.devices) for joined in history.joined]
    first = dict(zip((joined.node_id for joined in history.joined), accumulate(sizes, initial=0), strict=False))
    rows = [
        (row, first[slot.node_id] + index, run.started_s, run.ended_s)
        for row, job in enumerate(jobs)
        for run in history.runs[job.id]
        for slot in run.slots
        if slot.node_id in first
        for index in slot.devices
    ]
    return DeviceSpells.of_rows(rows)


def only(outcome: Outcome, rows: Ints) -> Outcome:
    """
    Return the outcome of some of the jobs; the others ran as well and are left out.

    Parameters
    ----------
    rows : (K,) int array
        Rows of the trace, rising.

    Notes
    -----
    The timeline, which is of the whole cluster, is cut to the time from the first of these submissions on.
    """
    if rows.size == len(outcome.trace):
        return outcome
    columns = {name: values[rows] for name in UNTOUCHED if (values := getattr(outcome, name)) is not None}
    return replace(
        outcome,
        trace=taken(outcome.trace, rows),
        timeline=_since(outcome.timeline, float(outcome.trace.submit_s[rows[0]])) if outcome.timeline else None,
        spells=_spells_of_rows(outcome.spells, rows, len(outcome.trace)) if outcome.spells else None,
        **columns,
    )


def without_ends(outcome: Outcome, jobs: npt.NDArray[np.bool_]) -> Outcome:
    """Return the outcome without the ends of some jobs, (J,) bool; the devices that they held stay."""
    last_s = float(np.nanmax(outcome.end_s, initial=-np.inf))
    until_s = max(last_s, -np.inf if outcome.until_s is None else outcome.until_s)
    end_s = np.where(jobs, np.nan, outcome.end_s)
    return replace(outcome, end_s=end_s, until_s=until_s if np.isfinite(until_s) else None)


def _since(timeline: ClusterTimeline, from_s: float) -> ClusterTimeline:
    first = max(0, int(np.searchsorted(timeline.at_s, from_s, side="right")) - 1)
    at_s = np.maximum(timeline.at_s[first:], from_s)
    return ClusterTimeline(at_s=at_s, busy_gpus=timeline.busy_gpus[first:], waiting_jobs=timeline.waiting_jobs[first:])


def _spells_of_rows(spells: DeviceSpells, rows: Ints, jobs: int) -> DeviceSpells:
    row_of = np.full(jobs, -1, dtype=np.int64)
    row_of[rows] = np.arange(rows.size)
    job = row_of[spells.job]
    kept = job >= 0
    return DeviceSpells(job=job[kept], device=spells.device[kept], from_s=spells.from_s[kept], to_s=spells.to_s[kept])
