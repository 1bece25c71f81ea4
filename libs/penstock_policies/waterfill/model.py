"""How long a trial takes on a share of one device or on several, and how many are worth packing on one."""

from __future__ import annotations

import math

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
