"""Put jobs into levels and take them out, and keep known how long the jobs of each level are."""

from __future__ import annotations

import numpy as np

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.state import FAR, NOWHERE, Flow


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
    kind = level // (flow.first.size // flow.machines.size)
    length = flow.length[job, kind]
    if first == NOWHERE or length < flow.length[flow.shortest[level], kind]:
        flow.shortest[level] = job
    if first == NOWHERE or length > flow.length[flow.longest[level], kind]:
        flow.longest[level] = job


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
    if job == flow.shortest[level] or job == flow.longest[level]:
        _measure(flow, level)


@kernel
def _measure(flow: Flow, level: int) -> None:
    """Look for the shortest and the longest job of a level."""
    kind = level // (flow.first.size // flow.machines.size)
    job = flow.first[level]
    shortest, longest = job, job
    while job != NOWHERE:
        if flow.length[job, kind] < flow.length[shortest, kind]:
            shortest = job
        if flow.length[job, kind] > flow.length[longest, kind]:
            longest = job
        job = flow.after[job]
    flow.shortest[level], flow.longest[level] = shortest, longest


@kernel
def lay_floor(flow: Flow, level: int) -> None:
    """Note the floor of a level that was changed, and of the empty ones below it."""
    reach = flow.first.size // flow.machines.size
    kind = level // reach
    floor = flow.floor[level - 1] if level > kind * reach else FAR
    if flow.held[level] > 0:
        floor = flow.length[flow.shortest[level], kind]
    flow.floor[level] = floor
    level += 1
    while level < kind * reach + flow.depth[kind] and flow.held[level] == 0:
        flow.floor[level] = floor
        level += 1


@kernel
def take_units(flow: Flow, level: int) -> None:
    """Take the machines under a level that its price pays for; of those it just pays for, as many as it has jobs."""
    flow.units[level] = min(paid_units(flow, level), max(_gaining_units(flow, level), flow.held[level]))


@kernel
def paid_units(flow: Flow, level: int) -> int:
    """Return how many machines are ready at a level's price, or before."""
    kind = level // (flow.first.size // flow.machines.size)
    offer = flow.price[level] - flow.price[-1]
    return int(np.searchsorted(flow.ready[kind, : flow.machines[kind]], offer, side="right"))


@kernel
def _gaining_units(flow: Flow, level: int) -> int:
    """Return how many machines are ready before a level's price."""
    kind = level // (flow.first.size // flow.machines.size)
    offer = flow.price[level] - flow.price[-1]
    return int(np.searchsorted(flow.ready[kind, : flow.machines[kind]], offer, side="left"))


@kernel
def arrive(flow: Flow, job: int, level: int) -> None:
    """Seat one more job; there is then one too many in its level."""
    enter(flow, job, level)
    lay_floor(flow, level)
    flow.excess[level] += 1
    flow.excess[-1] -= 1


@kernel
def depart(flow: Flow, job: int) -> None:
    """Take a seated job away; there is then one too few in its level."""
    level = flow.level[job]
    leave(flow, job)
    lay_floor(flow, level)
    flow.excess[level] -= 1
    flow.excess[-1] += 1
