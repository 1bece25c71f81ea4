"""A job against the present nodes: could they ever hold it, and would they now?"""

from __future__ import annotations

from penstock_events import Job, JobSpec
from penstock_gateway import smallest
from penstock_gateway.words import listed
from penstock_policies.cluster import Cluster
from penstock_policies.order import Rules
from penstock_policies.placement import Free
from penstock_policies.sharing import words
from penstock_policies.sharing.tenants import tenant_of
from penstock_policies.waiting import Reason, Scene, impossible


def known_kinds(cluster: Cluster) -> list[str]:
    """Return the device kinds of all nodes that ever joined, sorted."""
    return sorted({device.kind for node in cluster.nodes.values() for device in node.devices})


def nodes_of(cluster: Cluster, pool: str) -> Scene:
    """Return a pool's nodes as if nothing ran on them."""
    nodes = tuple(sorted(cluster.present(pool), key=lambda node: node.id))
    usable = [node for node in nodes if node.usable]
    whole = Free({node.id: node.devices for node in usable}, hosts=usable)
    return Scene(pool=pool, nodes=nodes, whole=whole, idle=Free({}))


def unknown_kinds(cluster: Cluster, spec: JobSpec) -> tuple[str, ...]:
    """Return a sentence about the kinds that no node ever had, if the job names any."""
    known = known_kinds(cluster)
    unknown = [kind for kind in spec.kinds if kind not in known]
    return (f"unknown device kind {listed(unknown)}; known kinds: {listed(known)}",) if unknown else ()


def never(job: Job, scene: Scene) -> Reason | None:
    """Return why the present nodes cannot take the job whatever ends; None where it only has to wait its turn."""
    tenant = tenant_of(job, lambda _: None)
    if tenant is None:
        return impossible(job.spec, scene)
    return words.impossible(job.spec, tenant, scene, Rules().lane_reserve_share)


def warnings(cluster: Cluster, spec: JobSpec, caps: smallest.Caps | None = None) -> tuple[str, ...]:
    """
    Return what will keep a job waiting however long it waits, in sentences.

    ``caps`` says how many samples one device of each kind holds, where an elastic job's workload was measured.
    """
    found = list(unknown_kinds(cluster, spec))
    scene = nodes_of(cluster, spec.pool)
    reason = never(Job(id="", spec=spec, submitted_s=0.0), scene)
    if reason is not None:
        what = "it can never fit now" if reason.cause == "never_fits" else "it cannot start now"
        remedy = f" ({reason.remedy})" if reason.remedy else ""
        found.append(f"{what}: {reason.evidence}{remedy}")
    elif too_large := smallest.problem(spec, caps or {}, scene.whole.kinds(spec), spec.pool):
        found.append(too_large)
    return tuple(found)
