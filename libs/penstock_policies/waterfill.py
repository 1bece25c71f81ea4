"""
Water-filling: how many devices each trial of a group gets, after Fluid (MLSys 2021).

The order to read: :func:`run_time_s` and :func:`packing_c` say how long a trial takes on a width, a share of one device
or several devices, and how many trials are worth packing on one. :func:`allot` and :func:`fill` say which width each
trial gets. :class:`IdleDevices` says whether there is room for a width, with packed trials side by side on one device.
:func:`worth_resizing` and :func:`resized` say when a running trial is worth stopping and resuming on another width.
:class:`Mechanisms` switches each mechanism off alone.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def run_time_s(h1_s: float, width: float, alpha: float, beta: float) -> float:
    """
    Return the run time of a trial on ``width`` devices, in seconds.

    Parameters
    ----------
    h1_s : float, seconds
        Run time on one whole device.
    width : float
        Devices; below 1, a share of one.
    alpha, beta : float
        Penalty factors of packing and of scaling out, 1 or more.

    References
    ----------
    Yu et al., Fluid: Resource-aware hyperparameter tuning engine, MLSys 2021, section 4.2.

    Examples
    --------
    >>> run_time_s(30.0, 0.5, alpha=1.3, beta=1.05), run_time_s(30.0, 2.0, alpha=1.3, beta=1.05)
    (39.0, 15.75)
    """
    expect(width > 0, "width", "a positive number of devices")
    if width < 1.0:
        return float(h1_s * alpha ** (1.0 / width - 1.0))
    return float(h1_s / width * beta ** (width - 1.0))


def widest(beta: float) -> int:
    """
    Return on how many devices a trial is fastest: beyond that, each further one slows it down.

    Notes
    -----
    The least of ``beta^(w-1) / w`` over whole w lies beside ``1 / log beta``.

    Examples
    --------
    >>> widest(1.05), widest(1.5), widest(2.5)
    (21, 2, 1)
    """
    expect(beta >= 1.0, "beta", "1.0 or more")
    if beta < 1.0 + 1e-6:
        return 1_000_000
    about = max(1, int(1.0 / math.log(beta)))
    return min((about, about + 1), key=lambda width: run_time_s(1.0, width, 1.0, beta))


def packing_c(iteration_s: Floats, least_gain: float, *, stop_at_first_below: bool = False) -> int:
    """
    Return how many trials to pack on one device at most.

    Parameters
    ----------
    iteration_s : (P,) float array, seconds
        Average iteration time with 1, 2, …, P trials on one device.
    least_gain : float
        Least gain by the p-th trial (the published threshold ``O_th``).
    stop_at_first_below : bool
        Look no further than the first p whose gain is not above it: what can be known where packing is measured step
        by step, one trial more at a time. The answers differ where a later trial gains after one that did not.

    Notes
    -----
    The gain is ``1 - (p-1)/p · t_p/t_{p-1}``; the answer is the largest p whose gain is above the threshold.

    References
    ----------
    Yu et al., MLSys 2021, section 4.2.

    Examples
    --------
    >>> packing_c(np.array([10.0, 12.0, 16.0, 22.0, 31.0]), least_gain=0.1)
    3
    >>> jagged = np.array([10.0, 19.0, 19.5])
    >>> packing_c(jagged, least_gain=0.1), packing_c(jagged, least_gain=0.1, stop_at_first_below=True)
    (3, 1)
    """
    p = np.arange(2, iteration_s.size + 1)
    gain = 1.0 - (p - 1) / p * iteration_s[1:] / iteration_s[:-1]
    above = gain > least_gain
    worth = p[np.logical_and.accumulate(above) if stop_at_first_below else above]
    return int(worth[-1]) if worth.size else 1


def expect(holds: bool, name: str, expected: str) -> None:
    """Refuse an argument by its name."""
    if not holds:
        raise ValueError(f"{name} is out of range; expected {expected}")


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


class IdleDevices:
    """
    Devices: idle ones, and places on devices that hold packed trials of one width.

    Parameters
    ----------
    gpus : int
        All of them, idle at first.

    Examples
    --------
    >>> devices = IdleDevices(2)
    >>> devices.take(0.5), devices.take(0.5), devices.take(1.0), devices.take(0.5)
    (True, True, True, False)
    """

    def __init__(self, gpus: int) -> None:
        self.idle = gpus
        self.packed: dict[float, int] = {}  # width → trials of it

    def take(self, width: float) -> bool:
        """Give a trial its width, if there is room; say whether there was."""
        new = self._devices(width, 1) if width < 1 else int(width)
        if new > self.idle:
            return False
        self._add(width, 1, new)
        return True

    def free(self, width: float) -> None:
        """Take a trial's width back."""
        self._add(width, -1, self._devices(width, -1) if width < 1 else -int(width))

    def _devices(self, width: float, more: int) -> int:
        """Return how many devices more (or fewer) the packed trials take; they move together as they end."""
        side_by_side, now = round(1 / width), self.packed.get(width, 0)
        return -(-(now + more) // side_by_side) + (-now // side_by_side)

    def _add(self, width: float, more: int, devices: int) -> None:
        self.idle -= devices
        if width < 1:
            self.packed[width] = self.packed.get(width, 0) + more


def worth_resizing(
    h1_left_s: float, width: float, new_width: float, *, overhead_s: float, alpha: float, beta: float
) -> bool:
    """
    Say whether a running trial should change its width.

    Parameters
    ----------
    h1_left_s : float, seconds
        What is left of the trial, on one whole device.
    width, new_width : float
        Devices now and then.
    overhead_s : float, seconds
        What stopping and resuming costs (ε).
    alpha, beta : float
        As for :func:`run_time_s`.

    Notes
    -----
    Growing must shorten the trial, overhead included. Shrinking must save device time, overhead included.

    References
    ----------
    Yu et al., MLSys 2021, algorithm 2.

    Examples
    --------
    >>> worth_resizing(30.0, 1, 3, overhead_s=5.0, alpha=1.3, beta=1.05)
    True
    >>> worth_resizing(30.0, 3, 1, overhead_s=5.0, alpha=1.3, beta=1.05)
    False
    """
    stay_s = run_time_s(h1_left_s, width, alpha, beta)
    move_s = run_time_s(h1_left_s, new_width, alpha, beta) + overhead_s
    if new_width > width:
        return move_s < stay_s
    return new_width < width and new_width * move_s < width * stay_s


def resized(
    h1_left_s: Floats,
    widths: Floats,
    gpus: int,
    packing_c: int,
    max_gpus_d: int,
    *,
    overhead_s: float,
    alpha: float,
    beta: float,
    mechanisms: Mechanisms = Mechanisms(),  # noqa: B008 - frozen
) -> Floats:
    """
    Return the widths after a change of the devices, or of how many trials share them; nothing else waits.

    Parameters
    ----------
    h1_left_s : (T,) float array, seconds
        The remaining run time of each trial, on one whole device.
    widths : (T,) float array
        The trials' present widths.
    gpus : int
        All devices that the trials may have, idle or held by them.
    packing_c, max_gpus_d : int
        As for :func:`allot`.
    overhead_s, alpha, beta : float
        As for :func:`worth_resizing`.

    Returns
    -------
    (T,) float array
        Each trial's present width; or the one that :func:`fill` would give it now; or, of those between, the widest
        that fits and is worth it.

    Notes
    -----
    Shrinking comes first, then growing, the longest first. The published algorithm does not say what happens where
    growing trials want more than shrinking ones give back, because some keep what they have; ours grow as far as there
    are devices. The same state gives the widths that it has: no trial is moved to and fro.

    References
    ----------
    Yu et al., MLSys 2021, algorithm 2.
    """
    if not mechanisms.dynamic or not h1_left_s.size:
        return widths.copy()
    wanted = fill(h1_left_s, gpus, packing_c, max_gpus_d, alpha=alpha, beta=beta, mechanisms=mechanisms)
    wide = widths.copy()

    def worth(i: int, width: float) -> bool:
        left_s, now = float(h1_left_s[i]), float(wide[i])
        return worth_resizing(left_s, now, width, overhead_s=overhead_s, alpha=alpha, beta=beta)

    for i in np.flatnonzero(wanted < widths).tolist():
        wide[i] = wanted[i] if worth(i, float(wanted[i])) else wide[i]
    growing = np.flatnonzero(wanted > widths)
    for i in growing[np.argsort(-h1_left_s[growing], kind="stable")].tolist():
        most = min(float(wanted[i]), np.floor(float(wide[i]) + gpus - float(wide.sum()) + ROUNDING))
        wider = (width for width in range(int(most), int(wide[i]), -1) if worth(i, float(width)))
        wide[i] = next(wider, wide[i])
    return wide
