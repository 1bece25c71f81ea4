"""
Prices to begin with: guessed where jobs differ, else those of a quarter of the jobs on a quarter of the machines.

Jobs that are alike, or as much faster on one kind as all others, change their minds all at once, so that guessed prices
swing and never settle. But every fourth job on every fourth machine has queues as deep as all of them, and so about the
same prices: they are found exactly, in the same way, on a problem of a quarter the size.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock_policies.levels.guess import guess
from penstock_policies.levels.paths import TOO_DEEP
from penstock_policies.levels.start import seat_all, seat_rest
from penstock_policies.levels.state import NOWHERE, Flow, Ints, new_flow, new_paths

STRIDE: Final = 4
FEWEST_JOBS: Final = 256  # fewer are not worth a sample
FEWEST_MACHINES: Final = 8  # of a kind
ALIKE: Final = 4  # jobs are much alike if there are at least so many for each that is different,
WORKLOADS: Final = 128  # or if no more than these are different in their ratios of speeds
SETTLED_SHARE: Final = 8  # guessed prices are good if they leave no more than one job in so many unseated


def set_prices(flow: Flow, deepest: int) -> Ints:
    """
    Set the prices of an empty flow such that few jobs will be left to seat one by one; return the order for seating.

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
    seat_all(sample, np.arange(sample.level.size))
    return bool((sample.level == NOWHERE).sum() * SETTLED_SHARE > sample.level.size)


def _price_by_sample(flow: Flow, order: Ints | None, deepest: int) -> None:
    """Take over the prices of the best schedule of a sample."""
    sample = _thinned(flow, order, deepest)
    if _divisible(sample):
        _price_by_sample(sample, None, deepest)
    else:
        _guess(sample)
    seat_all(sample, np.arange(sample.level.size))
    if seat_rest(sample, new_paths(sample.first.size)) == TOO_DEEP:
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
