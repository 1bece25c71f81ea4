"""The answer to the query ``stats``: figures by pool and team, for metrics; everybody may know them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from penstock_cluster.allocations import Allocation
from penstock_cluster.nodes import Node, taken_devices
from penstock_gateway.answers import ReadModel
from penstock_log import Job, JobState
from penstock_log.totals import DeviceTime, PoolTotals
from penstock_log.usage import RunReport, Usage, usage
from penstock_log.views import DEVICE_STATES, PILOT_ENDS, PILOT_STATES, AllocationStatsView, PoolStatsView, StatsView

_STATES: Final = {
    JobState.PENDING: "pending",
    JobState.RUNNING: "running",
    JobState.PREEMPTING: "preempting",
    JobState.COMPLETING: "completing",
}


def stats(model: ReadModel, last_seq: int) -> StatsView:
    """
    Return the figures of all pools that have or had a node or a job.

    Notes
    -----
    O(jobs that are not over + nodes): those that are over are counted by the fold.
    """
    state, totals = model.state, model.state.totals.whole.pools
    open_jobs = {pool: state.jobs_of(pool, state.jobs) for pool in state.live}
    taken = taken_devices(job for jobs in open_jobs.values() for job in jobs)
    nodes: dict[str, list[Node]] = defaultdict(list)
    for node in state.cluster.nodes.values():
        nodes[node.pool].append(node)
    found = []
    for name in sorted({*state.pools(), *totals}):
        states, devices = _of_nodes(nodes.get(name, ()), taken)
        view = PoolStatsView(pool=name, nodes=states, devices=devices, totals=totals.get(name, PoolTotals()))
        found.append(_with_jobs(model, view, open_jobs.get(name, ())))
    return StatsView(
        pools=tuple(found),
        seq=model.seq,
        last_seq=last_seq,
        archived_jobs=state.archive.jobs,
        allocations=tuple(_of_allocation(one) for _, one in sorted(state.allocations.by_name.items())),
    )


def _of_allocation(one: Allocation) -> AllocationStatsView:
    pilots = dict.fromkeys(PILOT_STATES, 0)
    for pilot in one.pilots.values():
        pilots[pilot.state] += 1
    return AllocationStatsView(
        name=one.name,
        pool=one.spec.pool,
        pilots=pilots,
        paused=bool(one.paused_s),
        failures=one.failures,
        ended={end: one.ends.get(end, 0) for end in PILOT_ENDS},
    )


def _with_jobs(model: ReadModel, view: PoolStatsView, jobs: Iterable[Job]) -> PoolStatsView:
    """Return the figures of a pool with its jobs that are not over; the profiler's samples do not count."""
    by_team: dict[str, Counter[str]] = defaultdict(Counter)
    waits: Counter[str] = Counter()
    longest_s = 0.0
    time: dict[str, DeviceTime] = defaultdict(DeviceTime)
    for job in jobs:
        if job.sample is not None:
            continue
        held = job.held and job.state is JobState.PENDING
        by_team[job.spec.team]["held" if held else _STATES[job.state]] += 1
        if job.placement is not None:
            time[job.spec.team].add(DeviceTime.of(_open_usage(model, job)))
        if job.state is JobState.PENDING:
            waits[model.why.cause(job)] += 1
        if job.state is JobState.PENDING and not held:
            longest_s = max(longest_s, model.now_s - max(job.pending_since_s, job.eligible_s))
    jobs_by_team = {team: dict(counts) for team, counts in sorted(by_team.items())}
    return replace(view, jobs=jobs_by_team, waits=dict(waits), longest_wait_s=longest_s, open_time=dict(time))


def _open_usage(model: ReadModel, job: Job) -> Usage:
    """Return what the run has held and used so far that a job has devices for."""
    account, report = model.state.histories[job.id].account, model.report_of(job)
    told = RunReport(report.loop_s, report.loop_steps, report.waited_s) if report.loop_steps else None
    found = [run for run in account.runs if run.is_granted and not run.is_over]
    return usage(found[-1], model.now_s, measured=account.measured, report=told) if found else Usage()


def _node_state(node: Node, is_used: bool) -> str:
    if node.gone or node.leaving or not node.drained:
        return node.gone or ("leaving" if node.leaving else "up")
    return "draining" if is_used else "drained"


def _of_nodes(nodes: Iterable[Node], taken: set[tuple[str, int]]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return a pool's nodes by state, and its devices by kind and state."""
    used, states = {node_id for node_id, _ in taken}, Counter[str]()
    devices: dict[str, dict[str, int]] = {}
    for node in nodes:
        states[_node_state(node, node.id in used)] += 1
        free = node.gone or ("leaving" if node.leaving else "drained" if node.drained else "idle")
        for device in node.devices:
            of_kind = devices.setdefault(device.kind, dict.fromkeys(DEVICE_STATES, 0))
            outage = node.outage(device.index) if not node.gone else None
            of_kind["busy" if (node.id, device.index) in taken else outage.state if outage is not None else free] += 1
    return dict(states), devices
