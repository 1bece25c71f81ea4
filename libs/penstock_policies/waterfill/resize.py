"""When a running trial is worth being stopped and resumed on another width."""

from __future__ import annotations

import numpy as np

from penstock_policies.waterfill.fill import ROUNDING, Mechanisms, fill
from penstock_policies.waterfill.model import Floats, run_time_s


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
        What is left of each, on one whole device.
    widths : (T,) float array
        At present.
    gpus : int
        All devices that they may have, idle or held by them.
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
    are devices. The same state gives the widths that it has: nobody is moved to and fro.

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
