"""The ways of giving devices to trials that are compared: water-filling with its mechanisms, and two baselines."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_policies.waterfill import Mechanisms, fill, resized, widest

Floats = npt.NDArray[np.float64]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """
    How trials behave on devices, and how many there are.

    Attributes
    ----------
    gpus : int
    max_gpus_d, packing_c : int
        Most devices for one trial, most trials on one device.
    alpha, beta : float
        Penalties of packing and of scaling out.
    overhead_s : float
        What starting, or stopping and resuming, takes on a trial's devices (ε).
    """

    gpus: int
    max_gpus_d: int = 4
    packing_c: int = 2
    alpha: float = 1.3
    beta: float = 1.05
    overhead_s: float = 0.0


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """
    One of them.

    Attributes
    ----------
    kind : {"water", "one", "fixed"}
    longest_first : bool
        Of those that wait; else in the order in which they were opened.
    refills : bool
        Whether those that wait are filled anew when devices become idle; as published, they keep their widths.
    """

    kind: Literal["water", "one", "fixed"] = "water"
    mechanisms: Mechanisms = Mechanisms()
    longest_first: bool = True
    refills: bool = True

    def widths(self, h1_s: Floats, idle: int, model: Model) -> Floats:
        """Return the widths of a group of trials that is opened while so many devices are idle."""
        match self.kind:
            case "water":
                return fill(
                    h1_s,
                    idle,
                    model.packing_c,
                    _widest(model),
                    alpha=model.alpha,
                    beta=model.beta,
                    mechanisms=self.mechanisms,
                )
            case "fixed":
                return np.full(h1_s.size, self._part(h1_s.size, model))
            case "one":
                return np.ones(h1_s.size)

    def resized(self, h1_left_s: Floats, widths: Floats, model: Model) -> Floats:
        """Return the widths of running trials after devices became idle for which nobody waits."""
        if self.kind != "water":
            return widths
        return resized(
            h1_left_s,
            widths,
            model.gpus,
            model.packing_c,
            _widest(model),
            overhead_s=model.overhead_s,
            alpha=model.alpha,
            beta=model.beta,
            mechanisms=self.mechanisms,
        )

    def _part(self, trials: int, model: Model) -> float:
        """Return an equal part of all devices, within bounds."""
        if trials <= model.gpus:
            return float(min(model.max_gpus_d, model.gpus // trials))
        return 1.0 / min(model.packing_c, -(-trials // model.gpus))


def _widest(model: Model) -> int:
    """Return the most devices that water-filling gives a trial; as in the tuner, never more than make it faster."""
    return min(model.max_gpus_d, model.gpus, widest(model.beta))


FILLINGS: Final = {
    "one": Filling(kind="one", longest_first=False, refills=False),
    "fixed": Filling(kind="fixed", longest_first=False, refills=False),
    "spread": Filling(mechanisms=Mechanisms(intra=False, dynamic=False), longest_first=False, refills=False),
    "water": Filling(),
    "water+leftover": Filling(mechanisms=Mechanisms(leftover=True)),
    "water-intra": Filling(mechanisms=Mechanisms(intra=False)),
    "water-inter": Filling(mechanisms=Mechanisms(inter=False)),
    "water-dynamic": Filling(mechanisms=Mechanisms(dynamic=False)),
}
"""By the names that people write. ``spread`` only spreads, and keeps the widths that it gave."""
