"""What devices there are for the workloads of a pool: one of each sort, and how many."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec

from penstock_events import Device, JobSpec
from penstock_policies.cluster import Cluster, fits


class Offer(msgspec.Struct, frozen=True):
    """So many devices like this one."""

    device: Device
    count: int


Offers = dict[str, list[Offer]]
"""By pool."""


def of_cluster(cluster: Cluster) -> Offers:
    """Return what the nodes that take jobs have."""
    found: defaultdict[str, dict[tuple[str, int, str], list[Device]]] = defaultdict(dict)
    for node in cluster.usable():
        for device in node.devices:
            found[node.pool].setdefault((device.kind, device.memory_bytes, device.backend), []).append(device)
    return {pool: [Offer(alike[0], len(alike)) for alike in by_sort.values()] for pool, by_sort in found.items()}


def sorts(offers: Offers) -> dict[str, list[Device]]:
    """Return the sorts of devices without their numbers."""
    return {pool: [offer.device for offer in found] for pool, found in offers.items()}


def fitting(offers: Offers, spec: JobSpec | None) -> Counter[str]:
    """Return the devices that a job fits in its pool, by kind; none where there is no job."""
    count: Counter[str] = Counter()
    if spec is not None:
        for offer in (offer for offer in offers.get(spec.pool, ()) if fits(spec, offer.device)):
            count[offer.device.kind] += offer.count
    return count
