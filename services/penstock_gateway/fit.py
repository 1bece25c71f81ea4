"""Could a job ever run on the present nodes, whoever else is running?"""

from __future__ import annotations

from collections import Counter

from penstock_events import JobSpec, Wait
from penstock_gateway.words import count, listed
from penstock_policies.cluster import Cluster, fits


def known_kinds(cluster: Cluster, pool: str | None = None) -> list[str]:
    """Return the device kinds of all nodes that ever joined, sorted."""
    nodes = [node for node in cluster.nodes.values() if pool in {None, node.pool}]
    return sorted({device.kind for node in nodes for device in node.devices})


def fitting(cluster: Cluster, spec: JobSpec) -> Counter[str]:
    """Return how many present devices of the job's pool it accepts, by kind; drained ones count."""
    return Counter(device.kind for node in cluster.present(spec.pool) for device in node.devices if fits(spec, device))


def obstacle(cluster: Cluster, spec: JobSpec, job_id: str = "") -> Wait | None:
    """Return why no set of present nodes could hold the job, or None where one could."""
    if not any(cluster.present(spec.pool)):
        return _no_nodes(cluster, spec, job_id)
    counts = fitting(cluster, spec)
    most = max(counts.values(), default=0)
    if most >= spec.gpus:
        return None
    asked = f"it asks for {count(spec.gpus, 'device')}{_of_kinds(spec)}{_at_once(spec)}"
    have = listed(f"{number} {kind}" for kind, number in sorted(counts.items()))
    evidence = f"{asked}, and of those pool {spec.pool} has: {have}"
    remedy = f"ask for {most} at most, or add nodes" if most else _other_devices(cluster, spec)
    return Wait(job_id=job_id, cause="never_fits", evidence=evidence, remedy=remedy)


def warnings(cluster: Cluster, spec: JobSpec) -> tuple[str, ...]:
    """Return what will keep a job waiting however long it waits, in sentences."""
    known = known_kinds(cluster)
    unknown = [kind for kind in spec.kinds if kind not in known]
    found = [f"unknown device kind {listed(unknown)}; known kinds: {listed(known)}"] if unknown else []
    if (wait := obstacle(cluster, spec)) is not None:
        found.append(f"it can never fit now: {wait.evidence}; {wait.remedy}")
    return tuple(found)


def _no_nodes(cluster: Cluster, spec: JobSpec, job_id: str) -> Wait:
    others = sorted({node.pool for node in cluster.present()} - {spec.pool})
    elsewhere = f"; pools with nodes: {listed(others)}" if others else ""
    return Wait(
        job_id=job_id,
        cause="no_nodes",
        evidence=f"pool {spec.pool} has no node that is up{elsewhere}",
        remedy="start an executor in that pool" + (", or name another pool" if others else ""),
    )


def _other_devices(cluster: Cluster, spec: JobSpec) -> str:
    kinds = listed(known_kinds(cluster, spec.pool))
    return f"name other kinds (known: {kinds}) or ask for less memory, or add nodes"


def _of_kinds(spec: JobSpec) -> str:
    memory = f" with {spec.memory_bytes} bytes" if spec.memory_bytes else ""
    return (f" of kind {' or '.join(spec.kinds)}" if spec.kinds else "") + memory


def _at_once(spec: JobSpec) -> str:
    return " of one kind at once" if spec.gpus > 1 else ""
