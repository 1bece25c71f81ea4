"""What does not fit waits: list scheduling, longest first, with packed trials side by side on one device."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from penstock_policies.waterfill.model import Floats, expect


def starting(run_s: Floats, widths: Floats, gpus: int) -> npt.NDArray[np.intp]:
    """
    Return which trials start now on idle devices, the longest first; the others wait.

    Parameters
    ----------
    run_s : (T,) float array, seconds
        Run time of each at its width; of equal ones the first goes first.
    widths : (T,) float array
    gpus : int
        Idle devices.

    Returns
    -------
    (S,) int array
        Their places in ``run_s``, in the order in which they start.

    Examples
    --------
    >>> starting(np.array([97.0, 1.0, 2.0, 1.0]), np.array([3.0, 0.5, 0.5, 0.5]), gpus=4).tolist()
    [0, 2, 1]
    """
    room = Room(gpus)
    order = np.argsort(-run_s, kind="stable")
    return np.array([i for i in order if room.take(float(widths[i]))], dtype=np.intp)


def list_schedule(run_s: Floats, widths: Floats, gpus: int) -> Floats:
    """
    Return when each trial starts if whatever ends lets the longest that fits begin.

    Parameters
    ----------
    run_s, widths : (T,) float arrays
        As for :func:`starting`.
    gpus : int
        Devices, all idle at first.

    Returns
    -------
    (T,) float array, seconds
        The makespan is ``(starts + run_s).max()``.

    Raises
    ------
    ValueError
        If a trial is wider than the devices: it would never start.

    Notes
    -----
    O(T²) where nothing fits for long, O(T log T) where trials are of one width.

    References
    ----------
    Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17(2), 1969.

    Examples
    --------
    >>> list_schedule(np.array([1.0, 3.0, 2.0]), np.ones(3), gpus=2).tolist()
    [2.0, 0.0, 0.0]
    """
    expect(not widths.size or float(widths.max()) <= gpus, "widths", f"no trial wider than the {gpus} devices")
    room, starts, now_s = Room(gpus), np.zeros(run_s.size), 0.0
    waiting = [int(i) for i in np.argsort(-run_s, kind="stable")]
    running: list[tuple[float, int]] = []
    while waiting:
        begun = {i for i in waiting if room.take(float(widths[i]))}
        for i in begun:
            starts[i] = now_s
            heapq.heappush(running, (now_s + float(run_s[i]), i))
        waiting = [i for i in waiting if i not in begun]
        now_s = running[0][0]
        while running and running[0][0] <= now_s:
            room.free(float(widths[heapq.heappop(running)[1]]))
    return starts


class Room:
    """
    Devices: idle ones, and places on devices that hold packed trials of one width.

    Parameters
    ----------
    gpus : int
        All of them, idle at first.

    Examples
    --------
    >>> room = Room(2)
    >>> room.take(0.5), room.take(0.5), room.take(1.0), room.take(0.5)
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
