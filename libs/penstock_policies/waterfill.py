"""How many devices each trial of a group gets: water-filling, and the run-time model behind it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-9  # a share of 2.9999999999 devices is a share of 3


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
    _expect(bool(np.all(np.isfinite(h1_s) & (h1_s > 0))), "h1_s", "positive and finite run times")
    _expect(gpus >= 0, "gpus", "0 or more devices")
    _expect(packing_c >= 1, "packing_c", "at least 1 trial a device")
    _expect(max_gpus_d >= 1, "max_gpus_d", "at least 1 device a trial")
    if not h1_s.size:
        return np.empty(0)
    share = h1_s / h1_s.max()  # scaled first, so that no sum overflows
    width = np.floor(share * gpus / share.sum() * (1 + _ROUNDING))
    return np.asarray(np.clip(width, 1.0 / packing_c, max_gpus_d), dtype=np.float64)


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
    Yu et al., MLSys 2021, section 4.2.

    Examples
    --------
    >>> run_time_s(30.0, 0.5, alpha=1.3, beta=1.05), run_time_s(30.0, 2.0, alpha=1.3, beta=1.05)
    (39.0, 15.75)
    """
    _expect(width > 0, "width", "a positive number of devices")
    if width < 1.0:
        return float(h1_s * alpha ** (1.0 / width - 1.0))
    return float(h1_s / width * beta ** (width - 1.0))


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


def packing_c(iteration_s: Floats, least_gain: float) -> int:
    """
    Return how many trials to pack on one device at most.

    Parameters
    ----------
    iteration_s : (P,) float array, seconds
        Average iteration time with 1, 2, …, P trials on one device.
    least_gain : float
        Least gain by the p-th trial (the published threshold ``O_th``).

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
    """
    p = np.arange(2, iteration_s.size + 1)
    gain = 1.0 - (p - 1) / p * iteration_s[1:] / iteration_s[:-1]
    worth = p[gain > least_gain]
    return int(worth[-1]) if worth.size else 1


def _expect(holds: bool, name: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is out of range; expected {expected}")
