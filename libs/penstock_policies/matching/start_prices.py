"""
Prices to begin with, and the jobs assigned at them.

Nothing here decides what is optimal: a better guess only leaves less to do for the exact part. :func:`assign_all` puts
every job into its cheapest level and takes as many machines as the prices pay for; :func:`assign_rest` does the rest.

:func:`guess` guesses the prices: jobs take the kind that is best for them, and prices follow what the jobs did, by ever
smaller steps. The last step is a whole one, so that the prices are those of a schedule.

Guessed prices swing and never settle where jobs are alike, or all as much faster on one kind, because such jobs change
kinds all at once. But every fourth job on every fourth machine has queues as deep as all of them, and so about the same
prices. :func:`set_prices` then finds those of the sample exactly, in the same way, on a problem of a quarter the size.

:func:`price_kind` is the best schedule in one kind, shortest job first on the machine that is free first, and the
prices that it implies.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock_policies.matching.flow import (
    FAR,
    NOWHERE,
    UNFIT,
    Flow,
    Ints,
    Paths,
    cheapest,
    choose,
    enter,
    kernel,
    new_flow,
    new_paths,
    paid_units,
    take_units,
    update_floor,
)
from penstock_policies.matching.shortest_paths import BALANCED, TOO_DEEP, balance


@kernel
def assign_all(flow: Flow, order: Ints) -> None:
    """
    Assign the jobs of an empty flow whose level has a machine for them; the others are left for `assign_rest`.

    Each machine that a price pays for and that no job took is lacking a job: that is the excess then.

    Parameters
    ----------
    order : (J,) int array
        The jobs in the order of assigning. It is of advantage to have those together that are alike.
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
    _assign_at_equal_cost(flow, order, cost)
    for node in range(sink):
        take_units(flow, node)
        flow.excess[node] = flow.held[node] - flow.units[node]
        flow.excess[sink] += flow.units[node]
    _look_no_deeper_than_needed(flow)


@kernel
def _assign_at_equal_cost(flow: Flow, order: Ints, cost: Ints) -> None:
    """Assign jobs to other levels that cost them no more, where there is room: jobs that are alike fill one by one."""
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
def assign_rest(flow: Flow, paths: Paths) -> int:
    """Assign the jobs that are left one by one, each time making the flow optimal; return as `balance` does."""
    if balance(flow, paths) == TOO_DEEP:
        return TOO_DEEP
    for job in range(flow.level.size):
        if flow.level[job] == NOWHERE:
            level = cheapest(flow, job)
            if level != NOWHERE:
                enter(flow, job, level)
                update_floor(flow, level)
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
            update_floor(flow, level)


@kernel
def reassign_all(flow: Flow) -> None:
    """Assign all jobs anew at the prices there are, after the machines' ready times have changed."""
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
    assign_all(flow, np.arange(flow.level.size))


MOST_TURNS: Final = 40
GUESS_SETTLED_SHARE: Final = 400  # one job in so many that changes its mind is few enough
FIRST_STEP: Final = 0.5
SLOWING: Final = 0.1


@kernel
def guess(flow: Flow, order: Ints) -> None:
    """
    Set the prices of a flow.

    Parameters
    ----------
    order : (T, J) int array
        The jobs by rising length on each kind.

    Notes
    -----
    O(J T log m) a turn, and at most 40 turns.
    """
    kinds, jobs = order.shape
    reach = flow.first.size // kinds
    cost, kind_of = np.empty(jobs, dtype=np.int64), np.full(jobs, NOWHERE, dtype=np.int64)
    before, fresh = kind_of.copy(), np.zeros(reach, dtype=np.int64)
    for kind in range(kinds):
        flow.price[kind * reach : (kind + 1) * reach] = flow.ready[kind, 0] if flow.machines[kind] > 0 else 0
    for turn in range(MOST_TURNS):
        before[:] = kind_of
        cost[:] = FAR
        for kind in range(kinds):
            if flow.machines[kind] > 0:
                _prefer(
                    flow.length[:, kind],
                    order[kind],
                    flow.price[kind * reach : (kind + 1) * reach],
                    cost,
                    kind_of,
                    kind,
                )
        last = turn == MOST_TURNS - 1 or (before != kind_of).sum() * GUESS_SETTLED_SHARE <= jobs
        step = FIRST_STEP / (1 + SLOWING * turn) if turn > 0 and not last else 1.0
        for kind in range(kinds):
            if flow.machines[kind] > 0:
                price_kind(
                    _lengths_of(flow, order[kind], kind_of, kind), flow.ready[kind, : flow.machines[kind]], fresh
                )
                _approach(flow.price[kind * reach : (kind + 1) * reach], fresh, step)
        if last:
            break


@kernel
def _prefer(length: Ints, order: Ints, price: Ints, cost: Ints, kind_of: Ints, kind: int) -> None:  # noqa: PLR0917
    """Let the jobs for which a kind is cheaper than what they had so far take it."""
    place = price.size
    for job in order:
        own = length[job]
        if own == UNFIT:
            break
        while place > 1 and price[place - 2] - price[place - 1] <= own:
            place -= 1
        here = place * own + price[place - 1]
        if here < cost[job]:
            cost[job], kind_of[job] = here, kind


@kernel
def _lengths_of(flow: Flow, order: Ints, kind_of: Ints, kind: int) -> Ints:
    """Return the lengths of the jobs of a kind, rising."""
    lengths = np.empty(order.size, dtype=np.int64)
    size = 0
    for job in order:
        if kind_of[job] == kind:
            lengths[size] = flow.length[job, kind]
            size += 1
    return lengths[:size]


@kernel
def _approach(price: Ints, fresh: Ints, step: float) -> None:
    for at in range(price.size):
        price[at] = fresh[at] if step == 1.0 else price[at] + int(step * (fresh[at] - price[at]))


STRIDE: Final = 4
FEWEST_JOBS: Final = 256  # fewer are not worth a sample
FEWEST_MACHINES: Final = 8  # of a kind
ALIKE: Final = 4  # jobs are much alike if there are at least so many for each that is different,
WORKLOADS: Final = 128  # or if no more than these are different in their ratios of speeds
COARSE_SETTLED_SHARE: Final = 8  # guessed prices are good if they leave no more than one job in so many unassigned


def set_prices(flow: Flow, deepest: int) -> Ints:
    """
    Set the prices of an empty flow such that few jobs are left to assign one by one; return the order for assigning.

    Parameters
    ----------
    deepest : int
        The most places that may be tried in a sample.
    """
    order, much_alike = _strata(flow.length)
    if not _divisible(flow) or not (much_alike or _swings(flow, order, deepest)):
        _guess(flow)
    else:
        _price_by_sample(flow, order, deepest)
    return order


def _swings(flow: Flow, order: Ints, deepest: int) -> bool:
    """Say whether guessed prices do not settle, by a sixteenth of the jobs."""
    sample = _thinned(_thinned(flow, order, deepest), None, deepest)
    _guess(sample)
    assign_all(sample, np.arange(sample.level.size))
    return bool((sample.level == NOWHERE).sum() * COARSE_SETTLED_SHARE > sample.level.size)


def _price_by_sample(flow: Flow, order: Ints | None, deepest: int) -> None:
    """Take over the prices of the best schedule of a sample."""
    sample = _thinned(flow, order, deepest)
    if _divisible(sample):
        _price_by_sample(sample, None, deepest)
    else:
        _guess(sample)
    assign_all(sample, np.arange(sample.level.size))
    if assign_rest(sample, new_paths(sample.first.size)) == TOO_DEEP:
        _guess(flow)
        return
    kinds = flow.machines.size
    reach, least = flow.first.size // kinds, flow.ready[:, :1]
    found = sample.price[:-1].reshape(kinds, -1) - sample.price[-1]
    found = np.where(np.arange(found.shape[1]) < sample.depth[:, None], found, least)
    price = np.maximum(found, least)[:, :reach]
    flow.price[:-1].reshape(kinds, reach)[:, : price.shape[1]] = price


def _guess(flow: Flow) -> None:
    guess(flow, np.ascontiguousarray(np.argsort(flow.length, axis=0).T))


def _divisible(flow: Flow) -> bool:
    some = flow.machines[flow.machines > 0]
    return bool(flow.level.size >= FEWEST_JOBS and some.size and (some >= FEWEST_MACHINES).all())


def _strata(length: Ints) -> tuple[Ints, bool]:
    """Order jobs by their ratios of speeds, about, and then by length; and say whether many are alike in either."""
    ratios = np.rint(4 * np.log2(length[:, 1:] / length[:, :1])).astype(np.int64)
    order: Ints = np.lexsort((*length.T[::-1], *ratios.T))
    jobs = max(1, order.size)
    much_alike = _different(length[order]) * ALIKE <= jobs or _different(ratios[order]) <= min(WORKLOADS, jobs // ALIKE)
    return order, much_alike


def _different(rows: Ints) -> int:
    return 1 + int((rows[1:] != rows[:-1]).any(axis=1).sum())


def _thinned(flow: Flow, order: Ints | None, reach: int) -> Flow:
    """Return an empty flow of every fourth job, in the given order, and every fourth machine."""
    jobs = _every_fourth(flow.level.size)
    machines = (flow.machines + STRIDE - 1) // STRIDE
    ready = np.zeros((machines.size, machines.max(initial=1)), dtype=np.int64)
    for kind, size in enumerate(flow.machines):
        ready[kind, : machines[kind]] = flow.ready[kind, _every_fourth(size)]
    return new_flow(flow.length[jobs if order is None else order[jobs]], ready, machines, reach)


def _every_fourth(size: int) -> Ints:
    """Return a place in every four, from around the middle of them."""
    four = np.arange((size + STRIDE - 1) // STRIDE)
    picked: Ints = np.minimum(STRIDE * four + 1 + four % 2, size - 1)
    return picked


@kernel
def price_kind(lengths: Ints, ready: Ints, price: Ints) -> None:
    """
    Write the prices of a kind's places when it has these jobs.

    Parameters
    ----------
    lengths : (n,) int array, rising
    ready : (m,) int array, rising
    price : (reach,) int array
        Written. Jobs that a machine has beyond ``reach`` are left out.
    """
    reach = price.size
    taken = _machines_in_use(lengths, ready, reach)
    low, high = np.full(reach + 1, ready[0]), np.full(reach + 1, ready[0])
    small, large = np.zeros(reach + 1, dtype=np.int64), np.zeros(reach + 1, dtype=np.int64)
    end = lengths.size
    used = 0
    while used < reach and taken[used] > 0 and end > 0:
        start = max(0, end - taken[used])
        small[used], large[used] = lengths[start], lengths[end - 1]
        end = start
        used += 1
    for place in range(used - 1, -1, -1):
        low[place] = max(low[place + 1] + large[place + 1], ready[taken[place] - 1])
        high[place] = high[place + 1] + small[place]
        if taken[place] < ready.size:
            high[place] = min(high[place], ready[taken[place]])
    price[:] = ready[0]
    for place in range(used):
        least, most = low[place], high[place]
        if place > 0:
            least = max(least, price[place - 1] - small[place - 1])
            most = min(most, price[place - 1] - large[place])
        price[place] = least + (most - least) // 2


@kernel
def _machines_in_use(lengths: Ints, ready: Ints, reach: int) -> Ints:
    """Return how many machines have at least 1, 2, ... reach jobs."""
    free, who = ready.copy(), np.arange(ready.size)
    done = np.zeros(ready.size, dtype=np.int64)
    for length in lengths:
        done[who[0]] += 1
        _end_later(free, who, free[0] + length)
    taken = np.zeros(reach + 1, dtype=np.int64)
    for jobs in done:
        taken[jobs if jobs < reach else reach] += 1
    for place in range(reach - 1, 0, -1):
        taken[place] += taken[place + 1]
    return taken[1:]


@kernel
def _end_later(free: Ints, who: Ints, until: int) -> None:
    """Let the first of a heap of machines be free at another time."""
    machine, at = who[0], 0
    while True:
        child = 2 * at + 1
        if child >= free.size:
            break
        if child + 1 < free.size and free[child + 1] < free[child]:
            child += 1
        if until <= free[child]:
            break
        free[at], who[at] = free[child], who[child]
        at = child
    free[at], who[at] = until, machine
