"""Population-based training: the worst take over the weights of the best, and hyper-parameters near theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

import numpy as np

from penstock_events.spec import Choice, Dimension, Integers, Param, SweepSpec, Uniform
from penstock_policies.search.drivers import Sample, budget_of, promoted
from penstock_policies.search.past import Params, Past, Wanted
from penstock_policies.search.space import points

QUANTILE: Final = 0.2
"""The part of a generation that is replaced, and the part whose members replace it."""
FACTORS: Final = (0.8, 1.2)
RESAMPLED: Final = 0.25
"""How often a hyper-parameter is drawn anew instead of moved."""


def generations(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:  # noqa: ARG001
    """
    Open a generation, each member trained ``budget.least`` further, and the next one when it is over.

    References
    ----------
    Jaderberg et al., Population based training of neural networks, arXiv 1711.09846, 2017: truncation selection,
    perturbation by 0.8 or 1.2, resampling with probability 0.25.
    """
    budget = budget_of(spec)
    last = budget.most // budget.least - 1
    now = max(0, past.rungs(0) - 1)
    if past.trials < spec.trials and not now:
        drawn = sample(spec.trials - past.trials)
        return [Wanted(trial=past.trials + i, params=p, budget=budget.least) for i, p in enumerate(drawn)]
    level = past.level(0, now)
    before = past.level(0, now - 1)
    if now and len(level) < len(before) and past.ranked(before, spec.mode):  # opened in part only
        return _next(spec, past, before, now)[len(level) :]
    if now >= last or past.unfinished(0, now) or not past.ranked(level, spec.mode):
        return []
    return _next(spec, past, level, now + 1)


def _next(spec: SweepSpec, past: Past, level: Sequence[int], rung: int) -> list[Wanted]:
    """Return the generation after one that is over; the same however much of it has been opened."""
    budget = budget_of(spec)
    ranked = past.ranked(level, spec.mode)
    few = max(1, int(len(level) * QUANTILE))
    kept = len(level) - few if len(level) > 1 else 1
    goes_on, donors = set(ranked[:kept]), ranked[:few]
    fresh = 1 + max(past.runs[i].trial for i in level)
    wanted = []
    for i in level:
        if i in goes_on:
            wanted.append(promoted(past, i, rung, budget.least * (rung + 1)))
            continue
        rng = np.random.default_rng([spec.seed % 2**64, rung, i])
        donor = donors[int(rng.integers(len(donors)))]
        params = perturbed(spec, past.runs[donor].params, rng)
        wanted.append(Wanted(trial=fresh, params=params, rung=rung, budget=budget.least * (rung + 1), origin=donor))
        fresh += 1
    return wanted


def perturbed(spec: SweepSpec, params: Params, rng: np.random.Generator) -> Params:
    """Return a point near another one."""
    (drawn,) = points(spec, 0, 1, rng)
    return {
        name: drawn[name] if rng.random() < RESAMPLED else _moved(dimension, params[name], rng)
        for name, dimension in sorted(spec.space.items())
    }


def _moved(dimension: Dimension, value: Param, rng: np.random.Generator) -> Param:
    factor = FACTORS[int(rng.integers(2))]
    match dimension:
        case Uniform():
            return min(max(float(value) * factor, dimension.low), dimension.high)
        case Integers():
            return min(max(round(int(value) * factor), dimension.low), dimension.high)
        case Choice():
            return value
        case _:
            assert_never(dimension)
