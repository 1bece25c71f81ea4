"""Which width each trial of a group gets."""

from __future__ import annotations

import heapq
from typing import Final

import msgspec
import numpy as np

from penstock_policies.waterfill.model import Floats, expect, run_time_s

ROUNDING: Final = 1e-9
"""A share of 2.9999999999 devices is a share of 3."""


class Mechanisms(msgspec.Struct, frozen=True, kw_only=True):
    """
    What water-filling may do; each can be switched off alone.

    Attributes
    ----------
    intra : bool
        Pack several trials on one device.
    inter : bool
        Spread one trial over several devices.
    dynamic : bool
        Move running trials to other widths.
    leftover : bool
        Hand devices that rounding down leaves over to the trials that gain most. The published algorithm does not.
    """

    intra: bool = True
    inter: bool = True
    dynamic: bool = True
    leftover: bool = False


def allot(h1_s: Floats, gpus: int, packing_c: int, max_gpus_d: int) -> Floats:
    """
    Return how many devices each trial of a new group gets.

    Parameters
    ----------
    h1_s : (T,) float array, seconds
        Expected run time of each trial on one device; only the ratios count.
    gpus : int
        Devices to be shared (n).
    packing_c : int
        Most trials packed on one device; the narrowest trial gets ``1/packing_c``.
    max_gpus_d : int
        Most devices for one trial.

    Returns
    -------
    (T,) float array
        Whole numbers, or ``1/packing_c``. The sum can exceed ``gpus``: what does not fit waits, longest first.

    Raises
    ------
    ValueError
        If a run time is not positive and finite, or a bound is out of range.

    Notes
    -----
    O(T). Each trial's share of the devices is its share of the work, rounded down.

    References
    ----------
    Yu et al., Fluid: Resource-aware hyperparameter tuning engine, MLSys 2021, algorithm 1.

    Examples
    --------
    >>> allot(np.array([30.0, 12.0, 4.0, 4.0]), gpus=5, packing_c=2, max_gpus_d=4).tolist()
    [3.0, 1.0, 0.5, 0.5]
    """
    expect(bool(np.all(np.isfinite(h1_s) & (h1_s > 0))), "h1_s", "positive and finite run times")
    expect(gpus >= 0, "gpus", "0 or more devices")
    expect(packing_c >= 1, "packing_c", "at least 1 trial a device")
    expect(max_gpus_d >= 1, "max_gpus_d", "at least 1 device a trial")
    if not h1_s.size:
        return np.empty(0)
    share = h1_s / h1_s.max()  # scaled first, so that no sum overflows
    width = np.floor(share * gpus / share.sum() * (1 + ROUNDING))
    return np.asarray(np.clip(width, 1.0 / packing_c, max_gpus_d), dtype=np.float64)


def fill(
    h1_s: Floats,
    gpus: int,
    packing_c: int,
    max_gpus_d: int,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    mechanisms: Mechanisms = Mechanisms(),  # noqa: B008 - frozen
) -> Floats:
    """
    Return :func:`allot` with the mechanisms that are switched on; parameters as there and for :func:`run_time_s`.

    Examples
    --------
    >>> h1_s = np.array([40.0, 10.0, 6.0, 4.0])
    >>> fill(h1_s, 4, 2, 4, mechanisms=Mechanisms(intra=False)).tolist()
    [2.0, 1.0, 1.0, 1.0]
    >>> fill(h1_s, 16, 2, 8, mechanisms=Mechanisms(leftover=True)).tolist()
    [8.0, 3.0, 3.0, 2.0]
    """
    c = packing_c if mechanisms.intra else 1
    d = max_gpus_d if mechanisms.inter else 1
    widths = allot(h1_s, gpus, c, d)
    return hand_out(h1_s, widths, gpus, d, alpha=alpha, beta=beta) if mechanisms.leftover else widths


def hand_out(h1_s: Floats, widths: Floats, gpus: int, max_gpus_d: int, *, alpha: float, beta: float) -> Floats:
    """
    Return the widths after the devices left over went, one after the other, to where each shortens a trial most.

    Parameters
    ----------
    h1_s, widths : (T,) float arrays
    gpus, max_gpus_d : int
        As for :func:`allot`.
    alpha, beta : float
        As for :func:`run_time_s`.

    Notes
    -----
    A packed trial gets a device of its own first. O((T + n) log T) with n devices left over. Our addition to the
    published algorithm, which leaves them idle.
    """
    wide = widths.copy()
    left = gpus - float(wide.sum())

    def gain(i: int) -> tuple[float, int, float] | None:
        """Return what a device more saves (negative, for the heap), the trial and its next width."""
        now, to = float(wide[i]), float(np.floor(wide[i])) + 1.0
        saved = run_time_s(float(h1_s[i]), now, alpha, beta) - run_time_s(float(h1_s[i]), to, alpha, beta)
        return (-saved / (to - now), i, to) if saved > 0 and to <= max_gpus_d else None

    queue = [entry for i in range(wide.size) if (entry := gain(i)) is not None]
    heapq.heapify(queue)
    while queue and left > 0:
        _, i, to = heapq.heappop(queue)
        if to - wide[i] > left + ROUNDING:
            continue
        left -= to - wide[i]
        wide[i] = to
        if (entry := gain(i)) is not None:
            heapq.heappush(queue, entry)
    return wide
