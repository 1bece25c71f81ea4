"""
What aggregators have to do, and why a run has its aggregators or none: what people see of the fold.

:func:`loads_of` gives each aggregator's cycle and how much of it is used, :func:`loss_of` what a run loses by sharing.
:func:`wait_text` and :func:`place_text` are the sentences of ``penstock why``.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock_cluster.nodes import Cluster
from penstock_log.text import count, duration, listed
from penstock_policies.aggregation import AggregatorLoad, Task
from penstock_scheduler.aggregation.aggregation_table import AggregationRun, AggregationTable
from penstock_scheduler.aggregation.aggregator_choice import room_of


def loads_of(table: AggregationTable) -> dict[str, AggregatorLoad]:
    """
    Return what each aggregator has to do, by its name; runs that were not measured yet do not count.

    Examples
    --------
    >>> loads_of(AggregationTable())
    {}
    """
    runs = [run for run in table.runs.values() if run.open and run.alone_s > 0]
    alone_s = {run.job_id: run.alone_s for run in runs}
    tasks: dict[str, list[Task]] = {}
    for run in runs:
        for one in run.placed:
            tasks.setdefault(one.aggregator, []).append(Task(run.job_id, one.part, run.cost_s(one.part)))
    return {name: AggregatorLoad(tuple(held), alone_s) for name, held in sorted(tasks.items())}


def loss_of(run: AggregationRun, loads: Mapping[str, AggregatorLoad]) -> float:
    """Return the share of its speed that a run loses by sharing, as computed from what was measured."""
    if run.stage != "packed" or not run.alone_s:
        return 0.0
    held = (loads[name] for name in run.aggregators if name in loads)
    return max((load.loss_of(run.job_id) for load in held), default=0.0)


def measured_loss_of(run: AggregationRun) -> float:
    """Return the share of its speed that a run has lost, as measured last; negative where it is faster."""
    return 1 - run.alone_s / run.now_s if run.alone_s and run.now_s else 0.0


def wait_text(table: AggregationTable, cluster: Cluster, run: AggregationRun, now_s: float) -> str:
    """Return what a run without aggregators waits for, or why it is given none; empty where it has some."""
    if run.refused:
        return f"aggregation is refused: {run.refused}"
    room = room_of(table, cluster, run.pool, now_s)
    lost = any(not table.serves(name) or name in run.avoids for name in run.aggregators)
    if not run.waits and not lost:
        return ""
    what = "another aggregator" if lost else count(run.servers, "aggregator")
    return f"waits for {what}: {room.total} of {room.most} {'is' if room.total == 1 else 'are'} free"


def place_text(run: AggregationRun, now_s: float) -> str:
    """Return which aggregators a run has, since when, and why; empty where it has none."""
    if not run.open:
        return ""
    moved = run.generation > 1 and any(one.generation == run.generation for one in run.placed)
    because = f" because {run.because}" if run.because else ""
    since = duration(max(0.0, now_s - run.assigned_s))
    where = listed(run.aggregators)
    return f"aggregation {f'moved to {where} {since} ago' if moved else f'is on {where} for {since},'}{because}"
