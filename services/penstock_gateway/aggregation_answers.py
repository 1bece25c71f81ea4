"""
Answers about aggregation, from the gateway's read model.

Everybody may see which aggregators there are and how busy they are. Of the jobs on them, people see those that they
may see anyway, and of the others how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import SERVICE, Caller
from penstock_log import Job
from penstock_log.aggregation_facts import node_of
from penstock_log.aggregation_messages import AggregatorReport
from penstock_log.views import AggregatedJobView, AggregationView, AggregatorUseView
from penstock_policies.aggregation import AggregatorLoad
from penstock_scheduler.aggregation.aggregation_report import loads_of, loss_of, measured_loss_of, place_text, wait_text
from penstock_scheduler.aggregation.aggregation_table import AggregationRun, AggregatorRecord
from penstock_scheduler.aggregation.aggregator_choice import room_of


def aggregation(model: ReadModel, caller: Caller = SERVICE, one: Job | None = None) -> AggregationView:
    """
    Return all aggregators by name, and the jobs with aggregation that the caller may see, in the order of asking.

    Parameters
    ----------
    one : Job or None
        Only this job, with the place of each of its parts, and the aggregators that it is on.
    """
    table, jobs = model.state.aggregation, model.state.jobs
    runs = [run for run in table.runs.values() if one is None or run.job_id == one.id]
    named = table.aggregators.keys() if one is None else {name for run in runs for name in run.aggregators}
    loads, holders = loads_of(table), table.holders()
    parts = Counter(each.aggregator for run in table.runs.values() for each in run.placed)
    seen = {job_id for job_id in table.runs if (job := jobs.get(job_id)) is not None and caller.sees(job.spec)}
    rooms = {pool: room_of(table, model.state.cluster, pool, model.now_s) for pool in table.pools()}
    return AggregationView(
        aggregators=tuple(
            _aggregator(model, name, loads.get(name), parts=parts[name], holders=holders.get(name, ()), seen=seen)
            for name in sorted(table.aggregators.keys() & named)
        ),
        jobs=tuple(_job(model, run, loss_of(run, loads), whole=one is not None) for run in runs if run.job_id in seen),
        seq=model.seq,
        most={pool: room.most for pool, room in rooms.items()},
        free={pool: room.total for pool, room in rooms.items()},
    )


def _aggregator(
    model: ReadModel,
    name: str,
    load: AggregatorLoad | None,
    *,
    parts: int,
    holders: Collection[str],
    seen: Collection[str],
) -> AggregatorUseView:
    record = model.state.aggregation.aggregators[name]
    heard_s, said = model.aggregators.get(name, (None, AggregatorReport(aggregator=name)))
    shown = tuple(job_id for job_id in holders if job_id in seen)
    return AggregatorUseView.of(
        said,
        record,
        id=name,
        node_id=node_of(name),
        state=_state_of(record),
        parts=parts,
        jobs=shown,
        others=len(holders) - len(shown),
        cycle_s=load.cycle_s if load is not None else 0.0,
        busy_s=load.busy_s if load is not None else 0.0,
        utilisation=load.utilisation if load is not None else 0.0,
        heard_s=heard_s,
        spent_s=said.busy_s,
    )


def _state_of(record: AggregatorRecord) -> str:
    if record.gone:
        return "gone"
    return "ending" if record.recycled else "running" if record.started_s else "starting"


def _job(model: ReadModel, run: AggregationRun, loss: float, *, whole: bool) -> AggregatedJobView:
    state = model.state
    without = "refused" if run.refused else "left" if run.closed else "waits"
    waits = wait_text(state.aggregation, state.cluster, run, model.now_s)
    return AggregatedJobView.of(
        run,
        state.jobs[run.job_id].spec,
        id=run.job_id,
        phase=run.phase if run.open else without,
        shares=run.stage == "packed",
        aggregators=run.aggregators,
        parts=len(run.parts),
        size_bytes=sum(run.parts),
        loss=loss,
        measured_loss=measured_loss_of(run),
        moving=sum(map(bool, run.sources)),
        placed=run.placed if whole else (),
        assigned_s=run.assigned_s if run.open else None,
        evidence=waits or place_text(run, model.now_s),
    )
