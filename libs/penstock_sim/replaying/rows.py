"""Some of an outcome's jobs, as an outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock_sim.outcome import Outcome, Spells, Timeline
from penstock_sim.trace import Ints, Trace


def only(outcome: Outcome, rows: Ints) -> Outcome:
    """
    Return the outcome of some of the jobs; the others ran as well and are not told of.

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
    return replace(
        outcome,
        trace=_trace(outcome.trace, rows),
        start_s=outcome.start_s[rows],
        end_s=outcome.end_s[rows],
        executed_s=outcome.executed_s[rows],
        preemptions=outcome.preemptions[rows],
        promotions=outcome.promotions[rows],
        held_gpu_s=outcome.held_gpu_s[rows] if outcome.held_gpu_s is not None else None,
        timeline=_since(outcome.timeline, float(outcome.trace.submit_s[rows[0]])) if outcome.timeline else None,
        spells=_spells(outcome.spells, rows, len(outcome.trace)) if outcome.spells else None,
    )


def without_ends(outcome: Outcome, jobs: npt.NDArray[np.bool_]) -> Outcome:
    """Return the outcome as if nobody knew when some jobs, (J,) bool, ended; what they held is kept."""
    last_s = float(np.nanmax(outcome.end_s, initial=-np.inf))
    until_s = max(last_s, -np.inf if outcome.until_s is None else outcome.until_s)
    end_s = np.where(jobs, np.nan, outcome.end_s)
    return replace(outcome, end_s=end_s, until_s=until_s if np.isfinite(until_s) else None)


def _trace(trace: Trace, rows: Ints) -> Trace:
    def kept(column: Sequence[str]) -> Sequence[str]:
        return [column[row] for row in rows] if column else ()

    return replace(
        trace,
        job_ids=kept(trace.job_ids),
        submit_s=trace.submit_s[rows],
        num_gpus=trace.num_gpus[rows],
        duration_s=trace.duration_s[rows],
        gpu_share=trace.gpu_share[rows] if trace.gpu_share is not None else None,
        batch_sizes=trace.batch_sizes[rows] if trace.batch_sizes is not None else None,
        vcs=kept(trace.vcs),
        users=kept(trace.users),
        models=kept(trace.models),
        kinds=kept(trace.kinds),
        states=kept(trace.states),
    )


def _since(timeline: Timeline, from_s: float) -> Timeline:
    first = max(0, int(np.searchsorted(timeline.at_s, from_s, side="right")) - 1)
    at_s = np.maximum(timeline.at_s[first:], from_s)
    return Timeline(at_s=at_s, busy_gpus=timeline.busy_gpus[first:], waiting_jobs=timeline.waiting_jobs[first:])


def _spells(spells: Spells, rows: Ints, jobs: int) -> Spells:
    row_of = np.full(jobs, -1, dtype=np.int64)
    row_of[rows] = np.arange(rows.size)
    job = row_of[spells.job]
    kept = job >= 0
    return Spells(job=job[kept], device=spells.device[kept], from_s=spells.from_s[kept], to_s=spells.to_s[kept])
