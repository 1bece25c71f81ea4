"""
What each job is worth on each width of each kind: throughput, relative to that at its smallest width.

Resizing costs a job ``cost_s`` seconds of work, and so does starting one. Within a horizon H it gets
``T(g) (H - cost_s)`` done if it is resized to g devices, and ``T(now) H`` if it stays. So the row that the programme
sums has ``T(g) (1 - cost_s / H)`` at all sizes but the present one, and its optimum is the most work that can be done
within H, resizing included. The present size counts for a little more, as measured throughputs are not exact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from penstock_events import Size
from penstock_policies import elastic
from penstock_policies.autoscale.wish import Rules, Wish
from penstock_policies.elastic import Floats, Ints, Profile

MOST_COST: Final = 1 - 1e-6
"""Of its throughput: what resizing a job costs at most, so that some is left."""


class Row(NamedTuple):
    """
    A job on one kind, for widths from 1.

    Attributes
    ----------
    batch : (k_max,) int array
        Chosen at each width; 0 where it is not feasible.
    scaling : (k_max,) float array
        nan where it is not feasible.
    net : (k_max,) float array
        The same, less what resizing costs: what the programme adds up.
    """

    batch: Ints
    scaling: Floats
    net: Floats

    @property
    def least(self) -> int:
        """The smallest feasible width; 0 where there is none."""
        return int(elastic.smallest(self.net[None, :])[0])


def rows(wish: Wish, devices: Mapping[str, int], rules: Rules) -> dict[str, Row]:
    """Return a job's rows for the kinds on which some width of its is feasible."""
    found = {}
    for kind, profile in wish.profiles.items():
        widths = _within(wish.widths, devices.get(kind, 0))
        batch, speed = _best(profile, widths, wish.unfit)
        if batch.any():
            found[kind] = (widths, batch, speed)
    unit = max((speed[batch > 0][0] for _, batch, speed in found.values()), default=1.0)
    return {kind: _row(wish, kind, each, float(unit), rules) for kind, each in found.items()}


def _within(widths: range, most: int) -> range:
    return range(max(1, widths.start), min(widths.stop - 1, most) + 1)


def _row(wish: Wish, kind: str, known: tuple[range, Ints, Floats], unit: float, rules: Rules) -> Row:
    """Write a job's best batches out from width 1, and charge it for resizing."""
    widths, batch, speed = known
    before = np.zeros(widths.start - 1, dtype=np.int64)
    batch = np.concatenate((before, batch))
    scaling = np.concatenate((np.full(len(before), np.nan), speed)) / unit
    net = scaling * (1 - min(wish.cost_s / rules.horizon_s, MOST_COST))
    if wish.now is not None and kind == wish.kind and wish.now.gpus in widths:
        stays, at = present_speed(wish, kind) / unit, wish.now.gpus - 1
        if stays * (1 + rules.least_gain) >= net[at] or (batch[at] == 0 and stays > 0):
            batch[at], scaling[at], net[at] = wish.now.batch_size, stays, stays * (1 + rules.least_gain)
    return Row(batch, scaling, net)


def present_speed(wish: Wish, kind: str) -> float:
    """Return a job's throughput with the size that it has; nan where that is not known to be feasible."""
    if wish.now is None or wish.now in wish.unfit or kind not in wish.profiles:
        return float("nan")
    profile = wish.profiles[kind]
    batch = wish.now.batch_size or profile.b_min
    return float(profile.throughput(batch, wish.now.gpus)) if profile.b_min <= batch <= profile.b_max else float("nan")


def _best(profile: Profile, widths: range, unfit: Collection[Size]) -> tuple[Ints, Floats]:
    batches, speeds = _table(profile.key, widths.stop - 1)
    batch, speed = batches[widths.start - 1 :].copy(), speeds[widths.start - 1 :].copy()
    for gpus in {size.gpus for size in unfit} & set(widths):
        below = min(size.batch_size for size in unfit if size.gpus == gpus)
        one, fast = _smaller(profile, gpus, below)
        batch[gpus - widths.start], speed[gpus - widths.start] = one, fast
    return batch, speed


def _smaller(profile: Profile, gpus: int, below: int) -> tuple[int, float]:
    """Return the best batch on so many devices below one that did not do."""
    most = min(profile.b_max, below - 1)
    if most < profile.b_min:
        return 0, float("nan")
    batch, speed = elastic.table(profile.up_to(most), range(gpus, gpus + 1))
    return int(batch[0]), float(speed[0])


@lru_cache(maxsize=4096)
def _table(key: elastic.Key, k_max: int) -> tuple[Ints, Floats]:
    return elastic.table(Profile.of(key), range(1, k_max + 1))


def forget() -> None:
    """Work out tables of profiles anew, although they were seen before."""
    _table.cache_clear()
