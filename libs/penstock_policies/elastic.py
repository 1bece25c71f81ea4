"""
How many devices each elastic job gets, and which batch size: the most scaling efficiency that a cluster can have.

A job's *scaling* at a width is its best throughput there relative to that at its smallest feasible width. An exact
dynamic programme shares the devices out such that the sum over the jobs is greatest:

    ``P(0, k) = 0;  P(j, k) = max over g <= min(k, k_max) of P(j - 1, k - g) + T_j(g)``.

Every job that is admitted gets at least its smallest feasible width. Jobs come in rank order, and where those minima do
not fit, the last ones wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Times = tuple[tuple[int, float], ...]
Key = tuple[int, int, int, int, Times, Times]
"""Of a profile: its four numbers, in the order in which it names them, and its two tables."""

ROUNDING: Final = 1e-9
"""Sums of scaling that differ by less are equal, and the fewer devices win."""

MOST_BATCHES: Final = 4096
"""Batch sizes of one job that are tried."""

AT_ONCE: Final = 1 << 18
"""Batches times widths that are worked out together: more take more memory, and no less time."""


def allocate(scaling: Floats, gpus: int) -> Ints:
    """
    Return how many devices each job gets.

    Parameters
    ----------
    scaling : (J, k_max) float array
        ``scaling[j, g - 1]`` is that of job j on g devices, above 0; nan where the width is not feasible. In rank
        order.
    gpus : int
        Devices to be shared.

    Returns
    -------
    (J,) int array
        0 where a job waits: it is not feasible at all, or behind those whose smallest widths take up the devices.

    Raises
    ------
    ValueError
        If a scaling is infinite or not above 0, or the number of devices is negative.

    Notes
    -----
    O(J · K · k_max) time in whole-array steps and O(J · K) memory, for K devices. Of equal sums, the last job gets the
    fewest devices, then the last but one, and so on; nobody gets devices that add nothing.

    References
    ----------
    Saxena et al., Effective elastic scaling of deep learning workloads, MASCOTS 2020.

    Examples
    --------
    >>> allocate(np.array([[1.0, 1.9, 2.8], [1.0, 1.4, 1.5], [np.nan, 1.0, 1.5]]), gpus=5).tolist()
    [2, 1, 2]
    >>> allocate(np.array([[1.0, 1.9], [np.nan, 1.0]]), gpus=2).tolist()
    [2, 0]
    """
    scaling = np.atleast_2d(np.asarray(scaling, dtype=np.float64))
    if gpus < 0:
        raise ValueError(f"gpus is {gpus}; expected 0 or more devices")
    if np.any(np.isinf(scaling)) or np.any(scaling <= 0):
        raise ValueError(
            "scaling has a value that is infinite or not above 0; expected nan where a width is infeasible"
        )
    found = np.zeros(len(scaling), dtype=np.int64)
    rows = admitted(smallest(scaling), gpus)
    if rows.size:
        found[rows] = _share(scaling[rows][:, : max(gpus, 1)], gpus)
    return found


def smallest(scaling: Floats) -> Ints:
    """Return each job's smallest feasible width, (J,); 0 for those that have none."""
    feasible = ~np.isnan(scaling)
    return np.where(feasible.any(axis=1), feasible.argmax(axis=1) + 1, 0).astype(np.int64)


def admitted(least: Ints, gpus: int) -> Ints:
    """
    Return the rows of the jobs that are admitted: the first ones, as long as their smallest widths fit.

    Those that need more than there is, or are not feasible at all, hold up nobody.

    Examples
    --------
    >>> admitted(np.array([2, 9, 0, 1, 2, 1]), gpus=4).tolist()
    [0, 3]
    """
    possible = np.flatnonzero((least >= 1) & (least <= gpus))
    return possible[np.cumsum(least[possible]) <= gpus]


def added(sums: Floats, row: Floats) -> Floats:
    """
    Return the greatest sums of scaling on 0 to K devices, (K + 1,), once one more job gets some of them.

    Examples
    --------
    >>> added(np.array([0.0, 1.0, 1.5]), np.array([1.0, 1.9])).tolist()
    [-inf, 1.0, 2.0]
    """
    gains = np.where(np.isnan(row), -np.inf, row)[::-1]
    before = np.concatenate((np.full(len(gains), -np.inf), sums))
    return np.asarray((_windows(before, len(gains))[: len(sums)] + gains).max(axis=1), dtype=np.float64)


def _share(scaling: Floats, gpus: int) -> Ints:
    """Solve the programme for jobs that all fit at their smallest widths."""
    jobs, widest = scaling.shape
    gains = np.where(np.isnan(scaling), -np.inf, scaling)[:, ::-1].copy()  # the widest first
    best = np.full((jobs + 1, widest + gpus + 1), -np.inf)  # P, behind as many numbers of devices below 0
    best[0, widest:] = 0.0
    for job in range(jobs):
        # Row k has what is best for the jobs before this one on k - widest, ..., k - 1 devices.
        before = _windows(best[job], widest)[: gpus + 1]
        np.max(before + gains[job], axis=1, out=best[job + 1, widest:])
    return _traced(best, gains, gpus)


def _windows(values: Floats, width: int) -> Floats:
    """Return all stretches of so many neighbouring values, (len(values) - width + 1, width), not copied."""
    step = values.strides[0]
    return np.ndarray((len(values) - width + 1, width), np.float64, values, strides=(step, step))


def _traced(best: Floats, gains: Floats, gpus: int) -> Ints:
    """Return the widths that add up to the best sum, the narrowest of equal ones, from the last job to the first."""
    jobs, widest = gains.shape
    found, left = np.zeros(jobs, dtype=np.int64), gpus
    for job in range(jobs - 1, -1, -1):
        sums = (best[job, left : left + widest] + gains[job])[::-1]
        most = sums.max()
        found[job] = int((sums >= most - ROUNDING * max(abs(most), 1.0)).argmax()) + 1
        left -= int(found[job])
    return found


class ThroughputProfile(msgspec.Struct, frozen=True, kw_only=True):
    """
    How fast a job is at each batch size and width, as measured.

    Attributes
    ----------
    b_min, b_max : int
        Smallest and largest batch over all devices.
    per_gpu_cap : int
        Largest batch that one device holds.
    batch_step : int
        Batches are ``b_min``, ``b_min + batch_step``, … up to ``b_max``.
    t_proc_s : mapping of int to float
        Batch on one device → seconds of an iteration; between and beyond them along straight lines.
    t_comm_s : mapping of int to float
        Devices, from 2 → seconds of communication of an iteration; along straight lines over 1 / devices, as that of a
        ring goes.
    """

    b_min: int
    b_max: int
    per_gpu_cap: int
    batch_step: int = 1
    t_proc_s: Mapping[int, float]
    t_comm_s: Mapping[int, float] = {}

    def __post_init__(self) -> None:
        if not (1 <= self.b_min <= self.b_max and self.per_gpu_cap >= 1 and self.batch_step >= 1):
            raise ValueError(
                f"batch {self.b_min} to {self.b_max} by {self.batch_step}, {self.per_gpu_cap} a device; "
                "expected at least 1 each, and the smallest at most the largest"
            )
        for name, times in (("t_proc_s", self.t_proc_s), ("t_comm_s", self.t_comm_s)):
            if wrong := [size for size, time_s in times.items() if not (time_s > 0 and math.isfinite(time_s))]:
                raise ValueError(f"{name} at {wrong[0]} is {times[wrong[0]]}; expected seconds above 0")
        if not self.t_proc_s:
            raise ValueError("t_proc_s is empty; expected a measured time at one batch size at least")

    @property
    def key(self) -> Key:
        """Everything in it, to look it up by."""
        times = tuple(sorted(self.t_proc_s.items())), tuple(sorted(self.t_comm_s.items()))
        return (self.b_min, self.b_max, self.per_gpu_cap, self.batch_step, *times)

    @classmethod
    def of(cls, key: Key) -> ThroughputProfile:
        """Return the profile with this key."""
        b_min, b_max, per_gpu_cap, batch_step, t_proc_s, t_comm_s = key
        return cls(
            b_min=b_min,
            b_max=b_max,
            per_gpu_cap=per_gpu_cap,
            batch_step=batch_step,
            t_proc_s=dict(t_proc_s),
            t_comm_s=dict(t_comm_s),
        )

    def up_to(self, b_max: int) -> ThroughputProfile:
        """Return the same with another largest batch."""
        return msgspec.structs.replace(self, b_max=b_max)

    def throughput(self, batch: npt.ArrayLike, gpus: npt.ArrayLike) -> Floats:
        """Return samples a second of batch sizes on so many devices; nan where a device cannot hold its share."""
        batches, widths = np.asarray(batch, dtype=np.float64), np.asarray(gpus, dtype=np.float64)
        local = np.ceil(batches / widths)
        iteration_s = _line(local, self.t_proc_s)
        if self.t_comm_s:
            over = {1.0 / width: time_s for width, time_s in self.t_comm_s.items()}
            iteration_s = iteration_s + np.where(widths > 1, _line(1.0 / widths, over), 0.0)
        possible = (local <= self.per_gpu_cap) & (batches >= widths) & (iteration_s > 0)
        with np.errstate(divide="ignore"):
            return np.where(possible, batches / iteration_s, np.nan)


Profile = ThroughputProfile
"""The name under which the profile of :func:`allocate` was published."""


def best_batch(profile: ThroughputProfile, gpus: int) -> int | None:
    """
    Return the batch size with the highest throughput on so many devices, the smallest of equal ones; None if none fits.

    Examples
    --------
    >>> t_proc_s = {32: 0.1, 64: 0.18, 128: 0.34}
    >>> profile = ThroughputProfile(b_min=64, b_max=512, per_gpu_cap=128, batch_step=32, t_proc_s=t_proc_s)
    >>> best_batch(profile, 1), best_batch(profile, 2), best_batch(profile, 8)
    (128, 256, 512)
    """
    return int(table(profile, range(gpus, gpus + 1))[0][0]) or None


def scaling(profile: ThroughputProfile, k_max: int) -> Floats:
    """
    Return a job's scaling on 1 to ``k_max`` devices, (k_max,): one row of what :func:`allocate` takes.

    Examples
    --------
    >>> profile = ThroughputProfile(b_min=64, b_max=256, per_gpu_cap=128, batch_step=64, t_proc_s={64: 0.25, 128: 0.5})
    >>> scaling(profile, 4).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    found = table(profile, range(1, k_max + 1))[1]
    known = found[~np.isnan(found)]
    return found / known[0] if known.size else found


def table(profile: ThroughputProfile, widths: range) -> tuple[Ints, Floats]:
    """
    Return a job's best batch on each of W widths and its throughput with it.

    Returns
    -------
    (W,) int array, (W,) float array
        The smallest of the best batches, and samples a second; 0 and nan where none fits.

    Notes
    -----
    O(B · W) time and O(B + W) memory for the B batches that are tried: all of them, up to :data:`MOST_BATCHES`, and so
    many evenly spread ones beyond, the largest among them.
    """
    batches = _batches(profile)
    if not len(widths):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    count = max(1, AT_ONCE // len(batches))
    parts = [_best(profile, batches, widths[at : at + count]) for at in range(0, len(widths), count)]
    best, speed = zip(*parts, strict=True)
    return np.concatenate(best), np.concatenate(speed)


def _best(profile: ThroughputProfile, batches: Ints, widths: range) -> tuple[Ints, Floats]:
    speeds = profile.throughput(batches[:, None], np.array(widths))
    none = np.isnan(speeds).all(axis=0)
    best = np.nanmax(np.where(none, 0.0, speeds), axis=0)
    at = (speeds >= best * (1 - ROUNDING)).argmax(axis=0)
    return np.where(none, 0, batches[at]), np.where(none, np.nan, speeds[at, np.arange(len(widths))])


def _batches(profile: ThroughputProfile) -> Ints:
    many = (profile.b_max - profile.b_min) // profile.batch_step + 1
    steps = np.arange(many) if many <= MOST_BATCHES else np.linspace(0, many - 1, MOST_BATCHES).astype(np.int64)
    return np.asarray(profile.b_min + profile.batch_step * steps, dtype=np.int64)


def _line(at: Floats, known: Mapping[float, float] | Mapping[int, float]) -> Floats:
    """Return values between known ones, and beyond them along the outermost lines."""
    x, y = np.array(sorted(known.items()), dtype=np.float64).T
    if len(x) == 1:
        return np.full(np.shape(at), y[0])
    left = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    slope = (y[left + 1] - y[left]) / (x[left + 1] - x[left])
    return np.asarray(y[left] + slope * (at - x[left]), dtype=np.float64)
