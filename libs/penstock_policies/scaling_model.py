"""
Model of a job's throughput at any batch and width, from measured iteration times, with its standard error.

An iteration with a batch b on k devices takes ``t(b, k) = t_proc(ceil(b / k)) + t_comm(k)``, with ``t_comm(1) = 0``.
Timings on one device are ``t_proc``. From timings on more devices, ``t_proc`` at their local batch is subtracted; what
remains is ``t_comm``. Neither falls with what it depends on: where noise has it so, neighbours are averaged.

:func:`profile` gives the throughput, :func:`throughput` its error too, and :func:`profiles` fills in what is assumed.
:class:`TimingLines` has the two lines behind them: computation over the local batch, and communication over the
devices. Each point of a line is a weighted sum of timings, so that errors, and what points have in common, carry
through.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock_log import JobSpec, Scalability, Timing
from penstock_policies.elastic import Floats, Ints, ThroughputProfile

EXPONENT: Final = 0.8
"""
Until a workload is timed on several devices, its throughput is taken to go with this power of their number. The medians
of 19 models on three kinds of devices measured by Narayanan et al. (*Gavel*, OSDI 2020) are 1.66 to 1.81, 2.28 to 2.99
and 3.96 to 6.48 on 2, 4 and 8; this power gives 1.74, 3.03 and 5.28.
"""

FLOOR: Final = 1e-3
"""Least communication, as a share of the iteration: a difference of measured times can come out below 0."""

REACH: Final = 2
"""Local batches beyond so many times the largest that was timed are not chosen, where no limit is known."""

LEAST_WEIGHT: Final = 0.2
"""What a new observation counts at least, and what is known already."""


def profile(known: Scalability, spec: JobSpec) -> ThroughputProfile:
    """
    Return the throughput profile of a job on one kind of device.

    Raises
    ------
    ValueError
        If there is no timing at all.

    Examples
    --------
    >>> timings = (Timing(local_batch=32, iteration_s=0.1), Timing(local_batch=64, iteration_s=0.18),
    ...            Timing(gpus=2, local_batch=64, iteration_s=0.2))
    >>> spec = JobSpec(name="a", command=("x",), min_gpus=1, max_gpus=4, batch_size=128)
    >>> found = profile(Scalability(kind="x", timings=timings), spec)
    >>> [round(float(each), 3) for each in found.throughput(128, [1, 2, 4])]
    [376.471, 640.0, 1066.667]
    """
    points = lines(known)
    proc_s = rising(points.proc @ points.time_s, points.proc**2 @ points.errors_s**2)
    least, most, step = _batches(spec)
    found = ThroughputProfile(
        b_min=least,
        b_max=most,
        batch_step=step,
        per_gpu_cap=cap(known, spec),
        t_proc_s=_beyond(points.local, proc_s),
    )
    comm_s = rising(points.comm @ points.time_s, points.comm**2 @ points.errors_s**2)
    over = dict(zip(points.over.tolist(), np.maximum(comm_s, FLOOR * proc_s[-1]).tolist(), strict=True))
    if len(over) - (points.fewest > 1) == 0:
        over |= _assumed_comm(found, spec, points)
    return msgspec.structs.replace(found, t_comm_s=over)


def assumed(spec: JobSpec, speed: float = 1.0) -> ThroughputProfile:
    """
    Return what is assumed of a workload of which nothing is known: that neither devices nor larger batches help it.

    So it gets the smallest width that holds its batch, and keeps that batch, until something is measured.
    """
    least, _, step = _batches(spec)
    batch = spec.batch_size or least
    most = (spec.batch.per_gpu_max if spec.batch is not None else 0) or batch
    return ThroughputProfile(b_min=batch, b_max=batch, batch_step=step, per_gpu_cap=most, t_proc_s={1: 1.0 / speed})


def profiles(
    spec: JobSpec, known: Sequence[Scalability], kinds: Collection[str], speeds: Mapping[str, float]
) -> dict[str, ThroughputProfile]:
    """
    Return what is known or assumed of a job on each of some kinds.

    Parameters
    ----------
    kinds
        Those that the job accepts and that are there.
    speeds : mapping of str to float
        Kind → its speed there on one device, relative to any of them; kinds of which that is not known are left out.

    Returns
    -------
    dict of str to ThroughputProfile
        A kind without timings has those of the fastest kind with timings, in proportion to the speeds. A kind whose
        speed is not known either is left out where anything is known of another.
    """
    timed = {each.kind: each for each in known if each.timings}
    found = {kind: profile(timed[kind], spec) for kind in kinds if kind in timed}
    like = max((kind for kind in timed if kind in speeds), key=lambda kind: speeds[kind], default="")
    for kind in kinds:
        if like and kind in speeds and kind not in found:
            found[kind] = _slower(profile(timed[like], spec), speeds[like] / speeds[kind])
    return found or {kind: assumed(spec, speeds.get(kind, 1.0)) for kind in kinds}


def cap(known: Scalability, spec: JobSpec) -> int:
    """Return the most samples that one device holds: as set, as measured, and no further than timings reach."""
    limits = [spec.batch.per_gpu_max if spec.batch is not None else 0, known.per_gpu_cap]
    least, _, _ = _batches(spec)
    reach = REACH * max(timing.local_batch for timing in known.timings)
    begins = math.ceil(least / max(1, spec.widths[0]))
    return min([limit for limit in limits if limit] or [max(reach, begins)])


def throughput(known: Scalability, spec: JobSpec, batch: int, gpus: int) -> tuple[float, float]:
    """
    Return samples a second at a batch over so many devices, and the standard error of that; nan where it does not fit.

    Notes
    -----
    The iteration time is a weighted sum of the timings that it lies between or beyond, and its error that of the sum:
    ``sqrt(sum(w_i² e_i²))``. At what was timed it is that of the timing; further out it grows.
    """
    speed = float(profile(known, spec).throughput(batch, gpus))
    if math.isnan(speed):
        return speed, speed
    return speed, speed * speed / batch * lines(known).error_s(math.ceil(batch / gpus), gpus)


def refined(timing: Timing, iteration_s: float, error_s: float) -> Timing:
    """
    Return a timing that takes in another observation of the same.

    Both count by the inverse of their variances, but neither less than :data:`LEAST_WEIGHT`: the error of a mean within
    one run says nothing of what differs between runs, and a workload may change. Where the two differ by more than
    their errors say, the error grows.

    Raises
    ------
    ValueError
        If the observed time is not above 0.

    Examples
    --------
    >>> found = refined(Timing(local_batch=32, iteration_s=0.1, error_s=0.003), 0.11, 0.004)
    >>> round(found.iteration_s, 6), round(found.error_s, 6), found.runs
    (0.1036, 0.004157, 2)
    """
    if not (iteration_s > 0 and math.isfinite(iteration_s)):
        raise ValueError(f"iteration_s is {iteration_s}; expected seconds above 0")
    before, seen = error_s_of(timing), error_s or UNKNOWN_ERROR * iteration_s
    weight = min(max(before**2 / (before**2 + seen**2), LEAST_WEIGHT), 1 - LEAST_WEIGHT)
    differ = iteration_s - timing.iteration_s
    spread = weight * (1 - weight) * differ**2 / (timing.runs + 1)
    return msgspec.structs.replace(
        timing,
        iteration_s=timing.iteration_s + weight * differ,
        error_s=math.sqrt(((1 - weight) * before) ** 2 + (weight * seen) ** 2 + spread),
        runs=timing.runs + 1,
    )


def _batches(spec: JobSpec) -> tuple[int, int, int]:
    """Return the smallest and the largest batch that a job may be given, and the step between them."""
    if spec.batch is None:
        return max(1, spec.batch_size), max(1, spec.batch_size), 1
    return spec.batch.min, spec.batch.max, spec.batch.step


def _beyond(local: Ints, proc_s: Floats) -> dict[int, float]:
    """
    Return ``t_proc`` with a point below and one above, so that lines go on from there as iterations could.

    Through the origin where only one batch was timed. Else a single sample takes no less than its share of the smallest
    batch, and a batch twice the largest at least half as long again.
    """
    points = dict(zip(local.tolist(), proc_s.tolist(), strict=True))
    low, high = int(local[0]), int(local[-1])
    if len(points) == 1:
        return points | {2 * low: 2 * points[low]}
    below, above = weights(1.0, local) @ proc_s, weights(2.0 * high, local) @ proc_s
    points[2 * high] = max(float(above), 1.5 * points[high])
    if low > 1:
        points[1] = max(float(below), points[low] / low)
    return points


def _assumed_comm(found: ThroughputProfile, spec: JobSpec, points: TimingLines) -> dict[int, float]:
    """Return communication such that throughput goes with a power of the devices, while none has been timed."""
    fewest = points.fewest
    batch = spec.batch_size if spec.batch is None else int(points.local[-1]) * fewest
    alone_s = batch / float(msgspec.structs.replace(found, per_gpu_cap=batch).throughput(batch, fewest))
    times = (2**power for power in range(1, 17) if fewest * 2**power < 2 * spec.widths[-1])
    if spec.batch is None:  # its local batch shrinks
        return {fewest * more: alone_s * (more**-EXPONENT - 1 / more) for more in times}
    return {fewest * more: alone_s * (more ** (1 - EXPONENT) - 1) for more in times}


def _slower(profile: ThroughputProfile, factor: float) -> ThroughputProfile:
    proc_s = {at: factor * time_s for at, time_s in profile.t_proc_s.items()}
    comm_s = {at: factor * time_s for at, time_s in profile.t_comm_s.items()}
    return msgspec.structs.replace(profile, t_proc_s=proc_s, t_comm_s=comm_s)


UNKNOWN_ERROR: Final = 0.1
"""Standard error of a timing that comes without one, as a share of it."""


class TimingLines(NamedTuple):
    """
    The lines ``t_proc`` and ``t_comm`` as N timings give them.

    Attributes
    ----------
    fewest : int
        Devices behind ``t_proc``: one, or the fewest that were timed. ``t_comm`` is what more devices add.
    local, over : (L,), (W,) int array
        Local batches at which ``t_proc`` is known, and widths at which ``t_comm`` is.
    proc, comm : (L, N), (W, N) float array
        Weights of the timings in each point.
    time_s, errors_s : (N,) float array
    """

    fewest: int
    local: Ints
    over: Ints
    proc: Floats
    comm: Floats
    time_s: Floats
    errors_s: Floats

    def error_s(self, local: int, gpus: int) -> float:
        """Return the standard error of an iteration."""
        parts = weights(local, self.local) @ self.proc
        if gpus > 1 and len(self.over):
            parts = parts + weights(1.0 / gpus, 1.0 / self.over) @ self.comm
        return math.sqrt(float(parts**2 @ self.errors_s**2))


def lines(known: Scalability) -> TimingLines:
    """
    Read the lines off timings; of two of the same, the later one counts.

    Raises
    ------
    ValueError
        If there is no timing.
    """
    timings = list({(each.gpus, each.local_batch): each for each in known.timings}.values())
    if not timings:
        raise ValueError(f"there is no timing on {known.kind}; expected one at least")
    timings.sort(key=lambda each: (each.gpus, each.local_batch))
    gpus, batch = np.array([(each.gpus, each.local_batch) for each in timings], dtype=np.int64).T
    errors_s = np.array([error_s_of(each) for each in timings])
    fewest = int(gpus[0])
    first = gpus == fewest
    every = np.eye(len(timings))
    more = every - np.array([weights(each, batch[first]) for each in batch]) @ every[first]
    over = np.unique(gpus[~first]) if fewest == 1 else np.unique(gpus)
    comm = [_mean(more[gpus == width], errors_s) if width > fewest else 0.0 * errors_s for width in over]
    return TimingLines(
        fewest=fewest,
        local=batch[first],
        over=over,
        proc=every[first],
        comm=np.reshape(comm, (len(over), len(timings))),
        time_s=np.array([each.iteration_s for each in timings]),
        errors_s=errors_s,
    )


def error_s_of(timing: Timing) -> float:
    """Return the standard error of a timing, seconds."""
    return timing.error_s or UNKNOWN_ERROR * timing.iteration_s


def _mean(points: Floats, errors_s: Floats) -> Floats:
    """Return the mean of weighted sums, by the inverse of their variances."""
    share = 1.0 / np.maximum(points**2 @ errors_s**2, np.finfo(np.float64).tiny)
    return np.asarray(share @ points / share.sum(), dtype=np.float64)


def weights(at: float, known: Floats | Ints) -> Floats:
    """
    Return how much values at K places count in that at another: along lines between and beyond them.

    Examples
    --------
    >>> weights(3, np.array([2, 4, 8])).tolist(), weights(12, np.array([2, 4, 8])).tolist()
    ([0.5, 0.5, 0.0], [0.0, -1.0, 2.0])
    """
    found, order = np.zeros(len(known)), np.argsort(known)
    if len(known) == 1:
        found[0] = 1.0
        return found
    rising_at = np.asarray(known, dtype=np.float64)[order]
    left = int(np.clip(np.searchsorted(rising_at, at, side="right") - 1, 0, len(known) - 2))
    share = (at - rising_at[left]) / (rising_at[left + 1] - rising_at[left])
    found[order[left]], found[order[left + 1]] = 1 - share, share
    return found


def rising(values: Floats, variances: Floats) -> Floats:
    """
    Return the nearest values that never fall, each counted by the inverse of its variance.

    Notes
    -----
    Neighbours that fall are pooled until none does. O(N).

    References
    ----------
    Ayer et al., An empirical distribution function for sampling with incomplete information, Ann. Math. Stat. 1955.

    Examples
    --------
    >>> rising(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4)).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    blocks: list[tuple[float, float, int]] = []
    for value, variance in zip(values.tolist(), variances.tolist(), strict=True):
        block = (value, 1.0 / max(variance, 1e-300), 1)
        while blocks and blocks[-1][0] >= block[0]:
            mean, share, count = blocks.pop()
            both = share + block[1]
            block = ((mean * share + block[0] * block[1]) / both, both, count + block[2])
        blocks.append(block)
    return np.repeat([mean for mean, _, _ in blocks], [count for _, _, count in blocks])
