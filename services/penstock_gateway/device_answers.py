"""
Answers about the devices and the queue as a whole, for who looks at all of them at once.

:func:`devices` says who has each device. :func:`queue` lists waiting jobs in the order in which rounds consider them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from penstock_cluster.nodes import Node
from penstock_gateway import answers, job_fit, why
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import Caller
from penstock_gateway.job_filter import matching
from penstock_gateway.machine import GatewayState
from penstock_log import Job, request_bodies
from penstock_log.allocation_spec import LABEL_PILOT
from penstock_log.job_state import JobState
from penstock_log.views import (
    DeviceOccupation,
    DevicesView,
    HolderView,
    NodeDevicesView,
    QueuedJobView,
    QueueView,
)
from penstock_scheduler.pool.pool_settings import rules_of
from penstock_scheduler.priority_classes import levels


def devices(model: ReadModel, caller: Caller) -> DevicesView:
    """Return all devices by node, and the jobs that have them; names only of jobs that the caller may see."""
    state = model.state
    holders, taken = job_fit.holders(state.jobs.not_over()), job_fit.taken(state, model.settings)
    racks = {pool: _rack_label(model, pool) for pool in {node.pool for node in state.cluster.nodes.values()}}
    nodes = []
    for node in sorted(state.cluster.nodes.values(), key=lambda node: (node.pool, node.id)):
        found = []
        for one in node.devices:
            jobs = holders.get((node.id, one.index), ())
            shared = taken.get((node.id, one.index), "") if any(job.spec.sharing != "exclusive" for job in jobs) else ""
            outage = node.outage(one.index)
            out = (outage.state, outage.reason) if outage is not None else ("", "")
            ids = tuple(job.id for job in jobs)
            found.append(DeviceOccupation(one.index, one.kind, one.memory_bytes, ids, shared, *out))
        nodes.append(_node(model, node, racks[node.pool], tuple(found)))
    having = {job.id: job for jobs in holders.values() for job in jobs}
    gives = _gives(state)
    views = tuple(_holder(job, gives.get(job.id, ()), caller) for job in having.values())
    return DevicesView(nodes=tuple(nodes), jobs=views, seq=model.seq, now_s=model.now_s)


def _rack_label(model: ReadModel, pool: str) -> str:
    topology = rules_of(model.state, pool, model.settings).topology
    return f"topology.{topology[-1] if topology else 'rack'}"


def _node(model: ReadModel, node: Node, rack: str, devices: tuple[DeviceOccupation, ...]) -> NodeDevicesView:
    state = answers.node_state(model.state, node)
    label = node.labels.get(rack, node.labels.get("rack", ""))
    heard_s = model.heartbeats.get(node.id)
    pilot = node.labels.get(LABEL_PILOT, "")
    own = {"state": state, "rack": label, "heard_s": heard_s, "reason": node.drain_reason, "pilot": pilot}
    return NodeDevicesView.of(node, devices=devices, **own)


def _gives(state: GatewayState) -> dict[str, list[str]]:
    """Return for each running job the jobs for which it gives up devices."""
    found: dict[str, list[str]] = {}
    for job in state.jobs.not_over():
        for giver in state.histories[job.id].freed:
            found.setdefault(giver, []).append(job.id)
    return found


def _holder(job: Job, gives_to: list[str] | tuple[()], caller: Caller) -> HolderView:
    seen = caller.sees(job.spec)
    return HolderView.of(
        job,
        job.spec,
        name=job.spec.name if seen else "",
        model=job.spec.model if seen else "",
        grows_to=job.demand.gpus if job.demand is not None else 0,
        gives_to=tuple(gives_to),
    )


def queue(model: ReadModel, ask: request_bodies.QueueRequest, caller: Caller) -> QueueView:
    """Return the part of the waiting jobs that was asked for, in rank order, and counts of all that match."""
    wanted = {job.id for job in matching(model.state, ask, caller, among=model.state.jobs.not_over())}
    found = [(place, job) for place, job in _ranked(model) if job.id in wanted]
    causes = {job.id: model.why.cause(job) for _, job in found}
    if ask.cause:
        found = [(place, job) for place, job in found if causes[job.id] == ask.cause]
    part = found[ask.offset : ask.offset + ask.limit]
    return QueueView(
        jobs=tuple(_queued(model, place, job, caller) for place, job in part),
        total=len(found),
        gpus=sum(job.spec.gpus for _, job in found),
        by_user=dict(Counter(job.spec.user for _, job in found).most_common()),
        by_team=dict(Counter(job.spec.team for _, job in found).most_common()),
        by_pool=dict(Counter(job.spec.pool for _, job in found).most_common()),
        by_cause=dict(Counter(causes[job.id] for _, job in found).most_common()),
        seq=model.seq,
        now_s=model.now_s,
    )


def _ranked(model: ReadModel) -> Iterator[tuple[int, Job]]:
    """Yield waiting jobs with their places in their pools: unranked ones, then those that may not start, come last."""
    waiting = [job for job in model.state.jobs.not_over() if job.state is JobState.PENDING and job.sample is None]
    pools = {job.spec.pool for job in waiting}
    of_pools = {pool: levels(rules_of(model.state, pool, model.settings).classes) for pool in pools}
    waiting.sort(key=lambda job: _key(model, job, of_pools[job.spec.pool]))
    places: Counter[str] = Counter()
    for job in waiting:
        places[job.spec.pool] += 1
        yield places[job.spec.pool], job


def _key(model: ReadModel, job: Job, of_classes: Mapping[str, int]) -> tuple[bool, int, float, float, float, str]:
    last = not why.may_start(job, model.now_s)
    past = model.state.histories.get(job.id)
    rank = past.rank if past is not None else None
    level = of_classes.get(job.spec.priority_class, of_classes[""])
    if rank is None:
        return last, level, math.inf, math.inf, job.submitted_s, job.id
    return last, level, *rank.key


def _queued(model: ReadModel, place: int, job: Job, caller: Caller) -> QueuedJobView:
    spec, past = job.spec, model.state.histories[job.id]
    cause, seen = model.why.waiting(job), caller.sees(spec)
    blank = {} if seen else {"name": "", "model": "", "parent": ""}
    return QueuedJobView.of(
        job,
        spec,
        place=place,
        cause=cause.cause,
        evidence=cause.evidence if seen else "",
        remedy=cause.remedy if seen else "",
        since_s=job.pending_since_s or job.submitted_s,
        queue=past.rank.queue if past.rank is not None else None,
        own=caller.is_service or caller.sees_all or spec.user == caller.name,
        **blank,
    )
