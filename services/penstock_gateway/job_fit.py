"""
A job against the present nodes.

:class:`NodeFit` says why the nodes can never hold a job, whatever ends, :func:`problem` why an elastic job cannot start
at its smallest size, and :func:`warnings` says so to whoever submits it. :func:`holders` and :func:`taken` say who has
which device, and what the jobs that share one hold of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from penstock_cluster.nodes import Cluster, Node
from penstock_gateway.job_sizes import range_text
from penstock_gateway.machine import GatewayState
from penstock_gateway.pilot_outlooks import PilotOutlooks, listed_outlooks
from penstock_log import ACTIVE, Device, Job, JobSpec, Scalability, workload
from penstock_log.text import count, listed
from penstock_log.views import DeviceView
from penstock_policies import sample_plan
from penstock_scheduler import wait_causes
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.round_types import RoundRules
from penstock_scheduler.sharing.shared_devices import At, SharingLimits, sharing_demand
from penstock_scheduler.sizing.smallest_size import Caps, cap, most_devices, needed
from penstock_scheduler.wait_causes import RoundAftermath, WaitCause

_NO_RULES: Final = RoundRules()


def unknown_kinds(cluster: Cluster, spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence about the kinds that no node ever had, if the job names any."""
    if not spec.kinds:
        return ()
    known = sorted({device.kind for node in cluster.nodes.values() for device in node.devices})
    unknown = [kind for kind in spec.kinds if kind not in known]
    return (f"unknown device kind {listed(unknown)}; known kinds: {listed(known)}",) if unknown else ()


class NodeFit:
    """
    What the present nodes can hold, for many jobs one after the other.

    It looks at each pool's nodes once, and at each demand once: use it only while the nodes do not change.

    Parameters
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._nodes: dict[str, RoundAftermath] = {}
        self._never: dict[tuple[object, ...], WaitCause | None] = {}

    def nodes(self, pool: str) -> RoundAftermath:
        """Return a pool's nodes as if nothing ran on them."""
        found = self._nodes.get(pool)
        if found is None:
            found = self._nodes[pool] = wait_causes.without_runs(self.cluster, pool)
        return found

    def never(self, job: Job, rules: RoundRules = _NO_RULES) -> WaitCause | None:
        """
        Return why the present nodes cannot take the job, whatever ends; None if it only has to wait for its turn.

        ``rules`` are the pool's; without them, those that hold where nobody has set others.
        """
        spec, share = job.spec, rules.lane_reserve_share
        demand = sharing_demand(job, lambda _: None)
        key = (spec.pool, spec.kinds, spec.memory_bytes, spec.gpus, spec.host_demand, demand, share)
        if key not in self._never:
            self._never[key] = wait_causes.impossible_cause(spec, self.nodes(spec.pool), demand, share)
        return self._never[key]


def problem(spec: JobSpec, known: Caps, kinds: Mapping[str, int], pool: str) -> str:
    """Return a sentence if no kind of device could hold the job's smallest batch; empty if one can."""
    if not (spec.elastic and kinds):
        return ""
    if any(needed(spec, kind, known) <= most_devices(spec, most) for kind, most in kinds.items()):
        return ""
    least = spec.batch.min if spec.batch is not None else spec.batch_size
    wants = [
        f"{needed(spec, kind, known)} {kind} of at most {cap(spec, kind, known)} samples each"
        for kind in kinds
        if cap(spec, kind, known)
    ]
    if not wants:  # its widths are too large, not its batch: `never` says so
        return ""
    there = listed(f"{most_devices(spec, most)} {kind}" for kind, most in kinds.items())
    remedy = "lower the smallest batch" if spec.batch is not None else "lower batch_size"
    widest = f", or accept more than {count(spec.max_gpus, 'device')}" if spec.max_gpus else ""
    return (
        f"it cannot start now: its smallest batch, {least}, needs {' or '.join(wants)}; of pool `{pool}` it can have "
        f"{there} ({remedy}{widest})"
    )


def warnings(
    fit: NodeFit, spec: JobSpec, caps: Caps | None = None, outlooks: PilotOutlooks | None = None
) -> tuple[str, ...]:
    """
    Return what would keep a job waiting for ever, in sentences.

    ``caps`` says how many samples one device of each kind holds, if an elastic job's workload was measured;
    ``outlooks``, what allocations could do for it.
    """
    reason = fit.never(Job(id="", spec=spec, submitted_s=0.0))
    allocations = outlooks.of(spec) if outlooks is not None and reason is not None else ()
    if reason is not None and any(one.is_hopeful for one in allocations):
        return ()  # `awaited_pilots` says so
    found = list(unknown_kinds(fit.cluster, spec))
    if reason is not None:
        what = "it can never fit now" if reason.cause == "never_fits" else "it cannot start now"
        remedy = f" ({reason.remedy})" if reason.remedy else ""
        said = f"; {listed_outlooks(allocations)}" if allocations else ""
        found.append(f"{what}: {reason.evidence}{remedy}{said}")
    elif too_large := problem(spec, caps or {}, fit.nodes(spec.pool).whole.kinds(spec), spec.pool):
        found.append(too_large)
    return tuple(found)


def awaited_pilots(fit: NodeFit, spec: JobSpec, outlooks: PilotOutlooks) -> tuple[str, ...]:
    """Return a sentence on what may bring a node for a job that no present node holds; none where nothing may."""
    if fit.never(Job(id="", spec=spec, submitted_s=0.0)) is None:
        return ()
    awaited = outlooks.awaited(spec)
    return (f"it waits for a pilot: {awaited.evidence}",) if awaited is not None and not awaited.remedy else ()


def caps(state: GatewayState, spec: JobSpec) -> dict[str, int]:
    """Return the limits that were measured for a job's workload."""
    scaled = state.scaled.get(workload.key(spec))
    known: tuple[Scalability, ...] = scaled.kinds if scaled is not None else ()
    return {each.kind: each.per_gpu_cap for each in known if each.per_gpu_cap}


def awaits_scaling(state: GatewayState, spec: JobSpec) -> bool:
    """Return whether a job would wait for its first size until the profiler has measured its workload."""
    job = Job(id="", spec=spec, submitted_s=0.0)
    return sample_plan.awaits_scaling(job, known=workload.key(spec) in state.scaled)


def tried_size_text(spec: JobSpec, trial: JobSpec, await_s: float) -> str:
    """
    Return a sentence about the size that a dry run has tried for an elastic job; empty for other jobs.

    ``await_s`` is the longest time that the job waits until its workload is measured; 0 if it does not wait.
    """
    if not spec.elastic:
        return ""
    batch = f" and a batch of {trial.batch_size}" if trial.batch_size else ""
    when = f"once its workload is measured, or after {await_s:g} s" if await_s else "when it comes"
    return (
        f"tried with {count(trial.gpus, 'device')}{batch}, the fewest that do; it may be given {range_text(spec)}, "
        f"and what it gets of that is decided {when}"
    )


def making_way(state: GatewayState, spec: JobSpec, kinds: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence on the devices that running elastic jobs have beyond their smallest sizes."""
    runs = (job for job in state.jobs if job.state in ACTIVE and job.spec.max_gpus and job.spec.pool == spec.pool)
    near = (job for job in runs if job.placement is not None and job.placement.kind in kinds)
    if spare := {job.id: devices for job in near if (devices := job.spec.gpus - job.spec.widths[0]) > 0}:
        whose = listed([*spare][:3]) + (", …" if len(spare) > 3 else "")
        yield (
            f"{count(len(spare), 'elastic job')} ({whose}) could give up {count(sum(spare.values()), 'device')} "
            "between them: the autoscaler decides on that when it comes"
        )


def holders(jobs: Iterable[Job]) -> dict[At, list[Job]]:
    """Return the jobs that have each device, in order of submission."""
    found: dict[At, list[Job]] = {}
    for job in jobs:
        for slot in job.placement.slots if job.placement is not None else ():
            for index in slot.devices if slot.node_id in job.open_nodes else ():
                found.setdefault((slot.node_id, index), []).append(job)
    return found


def taken(state: GatewayState, settings: MatcherSettings) -> dict[At, str]:
    """Return in words how much is held of each device that other jobs may join."""
    pools = {
        job.spec.pool for job in state.jobs.not_over() if job.placement is not None and job.spec.sharing != "exclusive"
    }
    found: dict[At, str] = {}
    for name in sorted(pools):
        rules = rules_of(state, name, settings)
        index = state.pool(name, state.jobs, rules.topology, rules.classes).index.sharing
        shared = index.shared(SharingLimits(rules.lane_reserve_share, rules.most_sharers))
        found |= {at: one.taken() for at, one in shared.items()}
    return found


def beside(jobs: Iterable[Job], job_id: str, devices: Iterable[At]) -> tuple[str, ...]:
    """Return the other jobs on some devices, in order of submission."""
    there = holders(jobs)
    found = (job.id for at in devices for job in there.get(at, ()) if job.id != job_id)
    return tuple(dict.fromkeys(found))


def device(node: Node, device: Device, held_by: Sequence[Job], taken: Mapping[At, str]) -> DeviceView:
    """Return one device with the jobs that have it."""
    outage = node.outage(device.index)
    sharing = [job.id for job in held_by if job.spec.sharing != "exclusive"]
    return DeviceView(
        name=f"{node.id}/{device.kind}{device.index}",
        device=device,
        job_id=held_by[0].id if held_by else "",
        shared_by=tuple(sharing),
        taken=taken.get((node.id, device.index), "") if sharing else "",
        state=outage.state if outage is not None else "",
        reason=outage.reason if outage is not None else "",
    )
