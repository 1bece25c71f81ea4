"""Runs as the columns by which preemption weighs them, each made from the run itself."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock_scheduler.placement import Shape
from penstock_scheduler.pool.run_columns import RunColumns, shape_of
from penstock_scheduler.round_types import PreemptibleRun, RoundContext


def columns_of(running: Iterable[PreemptibleRun], context: RoundContext) -> RunColumns:
    """Return runs as columns; each run carries its own place and expected end."""
    found = list(running)
    jobs, costs = [run.ranked.job for run in found], [context.cost(run.ranked.job) for run in found]
    shapes: dict[tuple[str, Shape], int] = {}
    return RunColumns(
        queue=np.array([run.ranked.queue for run in found], dtype=np.float64),
        position=np.array([run.ranked.position for run in found], dtype=np.float64),
        started_s=np.array([job.started_s for job in jobs], dtype=np.float64),
        saved_s=np.array([max(job.started_s, job.checkpointed_s) for job in jobs], dtype=np.float64),
        devices=np.array([len(run.devices) for run in found], dtype=np.float64),
        left_s=np.array([run.left_s for run in found], dtype=np.float64),
        overhead_s=np.array([cost.overhead_s for cost in costs], dtype=np.float64),
        switch_s=np.array([cost.switch_s for cost in costs], dtype=np.float64),
        saves=np.array([cost.saves for cost in costs], dtype=np.bool_),
        group=np.array([shapes.setdefault((run.kind, shape_of(run)), len(shapes)) for run in found], dtype=np.int64),
        shapes=list(shapes),
        rows=np.arange(len(found)),
        all=found,
    )
