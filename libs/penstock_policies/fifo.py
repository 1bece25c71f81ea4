"""First in, first out on several kinds of devices: what any other order is held against."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def schedule(submit_s: Floats, gpus: Ints, run_s: Floats, devices: Ints) -> tuple[Floats, Floats]:
    """
    Start jobs strictly in the order of their submission, without preemption and blind to speed.

    The first waiting job starts as soon as one kind has enough free devices for its whole gang, on the first such kind;
    nobody overtakes it. A job that fits no kind is left out.

    Parameters
    ----------
    submit_s : (J,) float array, seconds
    gpus : (J,) int array
        Devices of each gang, all of one kind.
    run_s : (J, T) float array, seconds
        Run time of each job on each kind; ``inf`` where it must not run there.
    devices : (T,) int array
        Devices of each kind.

    Returns
    -------
    start_s, end_s : (J,) float arrays, seconds
        ``nan`` for jobs that fit no kind.

    Notes
    -----
    O(J (T + log J)).

    Examples
    --------
    >>> start, end = schedule(np.array([0.0, 0.0, 0.0]), np.array([1, 2, 1]), np.full((3, 1), 4.0), np.array([2]))
    >>> end
    array([ 4.,  8., 12.])
    """
    start_s, end_s = np.full(len(submit_s), np.nan), np.full(len(submit_s), np.nan)
    free = devices.astype(np.int64).copy()
    running: list[tuple[float, int, int]] = []
    now_s = -np.inf
    for job in np.argsort(submit_s, kind="stable"):
        allowed = np.isfinite(run_s[job]) & (devices >= gpus[job])
        if not allowed.any():
            continue
        now_s = max(now_s, float(submit_s[job]))
        while not (fits := allowed & (free >= gpus[job])).any() or (running and running[0][0] <= now_s):
            ended_s, kind, count = heapq.heappop(running)
            now_s = max(now_s, ended_s)
            free[kind] += count
        kind = int(np.argmax(fits))
        free[kind] -= gpus[job]
        start_s[job], end_s[job] = now_s, now_s + run_s[job, kind]
        heapq.heappush(running, (float(end_s[job]), kind, int(gpus[job])))
    return start_s, end_s
