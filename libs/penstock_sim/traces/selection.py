"""Parts of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock_sim.trace import Ints, Trace
from penstock_sim.traces.errors import TraceError


def taken(trace: Trace, rows: Ints) -> Trace:
    """Return some jobs of a trace, given by their rising rows; nothing counts as dropped."""
    chosen = rows.tolist()

    def cells(column: Sequence[str]) -> list[str]:
        return [column[i] for i in chosen] if column else []

    return replace(
        trace,
        job_ids=cells(trace.job_ids),
        submit_s=trace.submit_s[rows],
        num_gpus=trace.num_gpus[rows],
        duration_s=trace.duration_s[rows],
        gpu_share=None if trace.gpu_share is None else trace.gpu_share[rows],
        batch_sizes=None if trace.batch_sizes is None else trace.batch_sizes[rows],
        vcs=cells(trace.vcs),
        users=cells(trace.users),
        models=cells(trace.models),
        kinds=cells(trace.kinds),
        states=cells(trace.states),
        dropped={},
    )


def window(trace: Trace, from_s: float, to_s: float) -> Trace:
    """
    Return the jobs submitted in ``[from_s, to_s)``, seconds after the trace's first submission.

    Raises
    ------
    TraceError
        If there are none.
    """
    after_s = trace.submit_s - (trace.submit_s[0] if len(trace) else 0.0)
    rows = np.flatnonzero((after_s >= from_s) & (after_s < to_s))
    if not rows.size:
        span_s = float(after_s[-1]) if len(trace) else 0.0
        raise TraceError(f"no job was submitted from {from_s:g} s to {to_s:g} s; the trace spans 0 to {span_s:g} s")
    return taken(trace, rows)


def sample(trace: Trace, jobs: int, rng: np.random.Generator) -> Trace:
    """
    Return that many jobs drawn evenly without replacement, in their order; the load falls in proportion.

    Raises
    ------
    TraceError
        If the trace has fewer.
    """
    if not 1 <= jobs <= len(trace):
        raise TraceError(f"{jobs} jobs cannot be drawn from {len(trace)}; expected 1 to {len(trace)}")
    return taken(trace, np.sort(rng.choice(len(trace), jobs, replace=False)))


def scale_load(trace: Trace, factor: float) -> Trace:
    """
    Return the trace with the gaps between submissions divided by a factor: at 2 jobs come twice as fast.

    Raises
    ------
    TraceError
        If the factor is not above 0.
    """
    if not (factor > 0 and np.isfinite(factor)):
        raise TraceError(f"the load cannot be scaled by {factor:g}; expected a number above 0")
    first_s = trace.submit_s[:1]
    return replace(trace, submit_s=first_s + (trace.submit_s - first_s) / factor)
