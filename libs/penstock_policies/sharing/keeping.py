"""What is kept for a job that has lost its patience: nobody else gets there, and what ends there makes room for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock_policies.order import Ranked
from penstock_policies.placement import Free, Located
from penstock_policies.sharing.devices import Shared
from penstock_policies.sharing.near import key_of
from penstock_policies.sharing.tenants import Tenant


class Kept(NamedTuple):
    """Devices of one kind: those that are shared, and those that nobody has."""

    kind: str
    shared: Sequence[Shared]
    free: Sequence[Located]


def device(open_to: Iterable[Shared]) -> Kept | None:
    """Return the device that has most room; None if there is none."""
    most = max(open_to, key=lambda shared: (shared.room_bytes, key_of(shared.at)), default=None)
    return None if most is None else Kept(most.at[1].kind, [most], [])


def node(ranked: Ranked, tenant: Tenant, open_to: Iterable[Shared], free: Free) -> Kept | None:
    """
    Return as many devices of one node and kind as a gang of lanes needs; None where no node has as many.

    Those of the node on which most of them are free or have room already, then of the one with most room: while nobody
    else gets there, neither becomes less.
    """
    spec = ranked.job.spec
    shared: defaultdict[tuple[str, str], list[Shared]] = defaultdict(list)
    for one in open_to:
        shared[one.at[1].kind, one.at[0]].append(one)
    empty = {kind: free.standing(spec, kind) for kind in free.kinds(spec)}
    options = []
    for (kind, node_id), there in shared.items():
        idle = [(node_id, device) for device in empty.get(kind, {}).get(node_id, [])][: tenant.gpus]
        lacking = tenant.gpus - len(idle)
        if lacking <= len(there):
            roomiest = sorted(there, key=lambda one: (-one.holds(tenant), -one.room_bytes, key_of(one.at)))[:lacking]
            ready = len(idle) + sum(one.holds(tenant) for one in roomiest)
            room_bytes = sum(one.room_bytes for one in roomiest) + sum(device.memory_bytes for _, device in idle)
            options.append((-ready, -room_bytes, node_id, kind, roomiest, idle))
    if not options:
        return None
    _, _, _, kind, roomiest, idle = min(options, key=lambda option: option[:4])
    return Kept(kind, roomiest, idle)
