"""
Guess the prices: jobs take the kind that is best for them, prices follow what the jobs did, by ever smaller steps.

Nothing here decides what is optimal: a better guess only leaves less to do. The last step is a whole one, so that the
prices are those of a schedule.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock_policies.levels.compiled import kernel
from penstock_policies.levels.schedule import price_kind
from penstock_policies.levels.state import FAR, NOWHERE, UNFIT, Flow, Ints

MOST_TURNS: Final = 40
SETTLED_SHARE: Final = 400  # one job in so many that changes its mind is few enough
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
        last = turn == MOST_TURNS - 1 or (before != kind_of).sum() * SETTLED_SHARE <= jobs
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
