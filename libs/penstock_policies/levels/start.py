"""Begin at given prices: every job in its cheapest level, as many machines taken as the prices pay for."""

from __future__ import annotations

import numpy as np

from penstock_policies.levels.choice import cheapest, choose
from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.paths import BALANCED, TOO_DEEP, balance
from penstock_policies.levels.seats import enter, lay_floor, paid_units, take_units
from penstock_policies.levels.state import FAR, NOWHERE, UNFIT, Flow, Ints, Paths


@kernel
def seat_all(flow: Flow, order: Ints) -> None:
    """
    Seat the jobs of an empty flow for which there is a machine in their level; the others are left for `seat_rest`.

    Each machine that a price pays for and that no job took is lacking a job: that is the excess then.

    Parameters
    ----------
    order : (J,) int array
        The jobs in the order of seating. It is of advantage to have those together that are alike.
    """
    kinds, sink = flow.machines.size, flow.first.size
    reach = sink // kinds
    cost, level = np.empty_like(flow.level), np.empty_like(flow.level)
    price = flow.price[:sink].reshape((kinds, reach))
    choose(flow.length, price, np.where(flow.machines > 0, reach, 0), cost, level)
    flow.excess[sink] = 0
    for node in range(sink):
        flow.units[node] = paid_units(flow, node)
    for job in order:
        if level[job] != NOWHERE:
            flow.excess[sink] -= 1
            if flow.held[level[job]] < flow.units[level[job]]:
                enter(flow, job, level[job])
    _seat_at_equal_cost(flow, order, cost)
    for node in range(sink):
        take_units(flow, node)
        flow.excess[node] = flow.held[node] - flow.units[node]
        flow.excess[sink] += flow.units[node]
    _look_no_deeper_than_needed(flow)


@kernel
def _seat_at_equal_cost(flow: Flow, order: Ints, cost: Ints) -> None:
    """Seat jobs in other levels that cost them no more, where there is room: jobs that are alike fill one by one."""
    kinds, sink = flow.machines.size, flow.first.size
    reach = sink // kinds
    for job in order:
        if flow.level[job] != NOWHERE or cost[job] == FAR:
            continue
        for node in range(sink):
            length = flow.length[job, node // reach]
            if length == UNFIT or flow.held[node] >= flow.units[node]:
                continue
            if (node % reach + 1) * length + flow.price[node] == cost[job]:
                enter(flow, job, node)
                break


@kernel
def seat_rest(flow: Flow, paths: Paths) -> int:
    """Seat the jobs that are left one by one, each time making the flow optimal; return as `balance` does."""
    if balance(flow, paths) == TOO_DEEP:
        return TOO_DEEP
    for job in range(flow.level.size):
        if flow.level[job] == NOWHERE:
            level = cheapest(flow, job)
            if level != NOWHERE:
                enter(flow, job, level)
                lay_floor(flow, level)
                flow.excess[level] += 1
                if balance(flow, paths) == TOO_DEEP:
                    return TOO_DEEP
    return BALANCED


@kernel
def _look_no_deeper_than_needed(flow: Flow) -> None:
    kinds = flow.machines.size
    reach = flow.first.size // kinds
    for kind in range(kinds):
        last = (kind + 1) * reach - 1
        while last > kind * reach and flow.held[last - 1] == 0 and flow.units[last - 1] == 0:
            last -= 1
        flow.depth[kind] = last - kind * reach + 1
        for level in range(kind * reach, last + 1):
            lay_floor(flow, level)


@kernel
def reseat(flow: Flow) -> None:
    """Seat all jobs anew at the prices there are, after the machines' ready times have changed."""
    kinds, sink = flow.machines.size, flow.first.size
    reach = sink // kinds
    flow.first[:] = NOWHERE
    flow.held[:] = 0
    flow.level[:] = NOWHERE
    for kind in range(kinds):
        if flow.machines[kind] > 0:
            for level in range(kind * reach, (kind + 1) * reach):
                used = level < kind * reach + flow.depth[kind]
                price = flow.price[level] - flow.price[sink] if used else flow.ready[kind, 0]
                flow.price[level] = max(price, flow.ready[kind, 0])
    flow.price[sink] = 0
    seat_all(flow, np.arange(flow.level.size))
