"""Begin: prices from a guess, every job in the level that suits it best at these prices."""

from __future__ import annotations

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.seats import cheapest, enter, take_units
from penstock_policies.levels.state import NOWHERE, Flow


@kernel
def idle_prices(flow: Flow) -> None:
    """Price every level at the first machine's ready time, as if nobody wanted it."""
    reach = flow.first.size // flow.machines.size
    for kind in range(flow.machines.size):
        if flow.machines[kind] > 0:
            flow.price[kind * reach : (kind + 1) * reach] = flow.ready[kind, 0]


@kernel
def seat_all(flow: Flow) -> None:
    """Put every job into the level that suits it best, and take the machines that the prices pay for."""
    sink = flow.first.size
    reach = sink // flow.machines.size
    flow.depth[:] = reach
    flow.excess[sink] = 0
    for job in range(flow.level.size):
        level = cheapest(flow, job)
        if level != NOWHERE:
            enter(flow, job, level)
            flow.excess[sink] -= 1
    for level in range(sink):
        take_units(flow, level)
        flow.excess[level] = flow.held[level] - flow.units[level]
        flow.excess[sink] += flow.units[level]
    for kind in range(flow.machines.size):
        last = (kind + 1) * reach - 1
        while last > kind * reach and flow.held[last - 1] == 0 and flow.units[last - 1] == 0:
            last -= 1
        flow.depth[kind] = last - kind * reach + 1
