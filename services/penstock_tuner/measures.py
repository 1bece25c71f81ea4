"""What trials of one workload have shown of sharing devices, of scaling out, and of being moved."""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from penstock_events import TrialsMeasured
from penstock_policies import waterfill

LEAST_GAIN: Final = 0.1
"""Of one more trial on a device (the published threshold ``O_th``)."""
UNSEEN_ALPHA: Final = 1.5
"""Penalty of packing as long as nobody has seen it: between none at all and devices that are used strictly in turns."""
FIRST_PACKING: Final = 2
"""Trials side by side as long as nobody has seen what that brings."""
MOVING_S: Final = 1.0
"""From being asked to stop to the start of the next run, as long as nobody has been moved."""
_MOST: Final = 64
_FLAT: Final = 1e-3
_STEEPEST: Final = math.log(10.0)  # of the penalties believed: what is measured of loops of microseconds is noise


class Mean(msgspec.Struct):
    """A mean that grows."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take one more in."""
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        """The mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0


class Measures(msgspec.Struct, kw_only=True):
    """
    The penalties of one workload, each from trials that were seen both ways.

    Attributes
    ----------
    spread : dict of str to Mean
        Devices → the logarithm of how much more device-time an iteration took than on one.
    packed : dict of str to Mean
        Trials side by side → the logarithm of how much longer an iteration took than alone.
    start_s : Mean
        What of a run was no iteration: starting, restoring, saving.
    saves : bool
        Its script saves checkpoints, so that a trial that is moved loses no step; moved are none before that was seen.
    move_s : Mean
        From a running trial's being asked to stop to the start of its next run.
    """

    spread: dict[str, Mean] = msgspec.field(default_factory=dict)
    packed: dict[str, Mean] = msgspec.field(default_factory=dict)
    start_s: Mean = msgspec.field(default_factory=Mean)
    saves: bool = False
    move_s: Mean = msgspec.field(default_factory=Mean)

    @property
    def alpha(self) -> float:
        """The penalty of packing, 1 or more."""
        return _penalty(self.packed) if self.packed else UNSEEN_ALPHA

    @property
    def beta(self) -> float:
        """The penalty of scaling out, 1 or more; 1 where it has not been measured."""
        return _penalty(self.spread)

    @property
    def overhead_s(self) -> float:
        """What moving a running trial costs (ε), in seconds."""
        return self.start_s.value + (self.move_s.value if self.move_s.count else MOVING_S)

    def packing(self, most: int) -> int:
        """
        Return how many trials to put on one device, ``most`` at most (c).

        Where all that was tried has been worth it, one more is tried.
        """
        tried = max(map(int, self.packed), default=1)
        if tried == 1:
            return min(FIRST_PACKING, most)
        iteration_s = np.array([self._longer(p) for p in range(1, tried + 1)])
        worth = waterfill.packing_c(iteration_s, LEAST_GAIN)
        return min(worth + 1 if worth == tried else worth, most)

    def told(self, sweep_id: str, key: str, now_s: float) -> TrialsMeasured:
        """Return what there is to tell of a workload."""
        return TrialsMeasured(
            at_s=now_s,
            sweep_id=sweep_id,
            key=key,
            alpha=round(self.alpha, 4) if self.packed else 0.0,
            beta=round(self.beta, 4) if self.spread else 0.0,
            packing=self.packing(_MOST) if self.packed else 0,
            widest=waterfill.widest(self.beta) if self.spread and self.beta > 1.0 + _FLAT else 0,
            overhead_s=round(self.overhead_s, 3) if self.start_s.count else 0.0,
            moves=self.move_s.count,
            saves=self.saves,
        )

    def factor(self, width: float) -> float:
        """Return how long a trial takes on a width, relative to one device."""
        return waterfill.run_time_s(1.0, width, self.alpha, self.beta)

    def compare(self, width: float, over: float) -> None:
        """Note that an iteration on a width took ``over`` times as long as on one device of the same trial."""
        if over > 0 and math.isfinite(over):
            if width > 1:
                self.spread.setdefault(str(round(width)), Mean()).add(math.log(over * width))
            elif width < 1:
                self.packed.setdefault(str(round(1 / width)), Mean()).add(math.log(over))

    def _longer(self, p: int) -> float:
        """Return how much longer an iteration takes with ``p`` side by side; by the model, where it was not seen."""
        found = self.packed.get(str(p))
        return math.exp(min(found.value, _STEEPEST)) if found is not None else self.alpha ** (p - 1)


def _penalty(seen: dict[str, Mean]) -> float:
    """Return the slope of the logarithms over how many are beyond the first, by least squares."""
    xx = sum(mean.count * (int(n) - 1) ** 2 for n, mean in seen.items())
    xy = sum(mean.total * (int(n) - 1) for n, mean in seen.items())
    return math.exp(min(max(0.0, xy / xx), _STEEPEST)) if xx else 1.0
