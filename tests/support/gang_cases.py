"""Small instances with gangs, and the best schedule of all."""

from __future__ import annotations

import itertools

import numpy as np

from penstock_policies.matching import UNFIT


def gang_instance(seed, jobs=5):
    """Return lengths, machines for each job and ready times: two kinds of up to four machines, some busy."""
    rng = np.random.default_rng(seed)
    machines = rng.integers(2, 5, 2)
    gpus = rng.choice([1, 1, 2, 4], jobs)
    length = rng.lognormal(3, 1, (jobs, 1)) / np.array([1.0, 2.0]) * rng.lognormal(0, 0.3, (jobs, 2))
    ready = [(rng.exponential(10, m) * (rng.random(m) < 0.5)).astype(np.int64) for m in machines]
    gpus = np.minimum(gpus, machines.max())
    return np.maximum(1, length).astype(np.int64), gpus, ready


def least_total(p, gpus, ready):
    """
    Return the least sum of completion times over all schedules.

    In the order of their starts in a best schedule, each gang on those machines of its kind that are free first starts
    no later than there: so all orders and all kinds are all that has to be tried.
    """
    best = np.inf
    for kinds in itertools.product(range(len(ready)), repeat=len(p)):
        if any(p[j, t] == UNFIT or gpus[j] > len(ready[t]) for j, t in enumerate(kinds)):
            continue
        best = min(best, sum(_least_in_kind(p, gpus, ready[t], t, kinds) for t in set(kinds)))
    return best


def _least_in_kind(p, gpus, ready, kind, kinds):
    mine = [j for j, t in enumerate(kinds) if t == kind]
    return min(
        _total(p[:, kind].tolist(), gpus.tolist(), ready.tolist(), order) for order in itertools.permutations(mine)
    )


def _total(length, gpus, ready, order):
    free, total = sorted(ready), 0
    for job in order:
        end = free[gpus[job] - 1] + length[job]
        free = sorted([end] * gpus[job] + free[gpus[job] :])
        total += end
    return total
