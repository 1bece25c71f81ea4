"""Put jobs into levels and take them out."""

from __future__ import annotations

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.state import FAR, NOWHERE, UNFIT, Flow


@kernel
def enter(flow: Flow, job: int, level: int) -> None:
    """Put a job into a level."""
    first = flow.first[level]
    flow.after[job] = first
    flow.before[job] = NOWHERE
    if first != NOWHERE:
        flow.before[first] = job
    flow.first[level] = job
    flow.level[job] = level
    flow.held[level] += 1


@kernel
def leave(flow: Flow, job: int) -> None:
    """Take a job out of its level."""
    level, after, before = flow.level[job], flow.after[job], flow.before[job]
    if before == NOWHERE:
        flow.first[level] = after
    else:
        flow.after[before] = after
    if after != NOWHERE:
        flow.before[after] = before
    flow.level[job] = NOWHERE
    flow.held[level] -= 1


@kernel
def cheapest(flow: Flow, job: int) -> int:
    """Return the level whose cost and price together are least for a job; NOWHERE if it fits no kind with machines."""
    reach = flow.first.size // flow.machines.size
    best, found = FAR, NOWHERE
    for kind in range(flow.machines.size):
        length = flow.length[job, kind]
        if length == UNFIT or flow.machines[kind] == 0:
            continue
        for place in range(1, flow.depth[kind] + 1):
            level = kind * reach + place - 1
            cost = place * length + flow.price[level]
            if cost < best:
                best, found = cost, level
    return found


@kernel
def take_units(flow: Flow, level: int) -> None:
    """Take as many machines under a level as its price pays for; of those it just pays for, as many as it has jobs."""
    reach = flow.first.size // flow.machines.size
    kind = level // reach
    offer = flow.price[level] - flow.price[-1]
    ready = flow.ready[kind]
    units = 0
    while units < flow.machines[kind] and (
        ready[units] < offer or (ready[units] == offer and units < flow.held[level])
    ):
        units += 1
    flow.units[level] = units
