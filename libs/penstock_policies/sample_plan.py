"""
Plan of samples: which samples a workload needs, and which jobs wait for them.

Iterations take ``t(b, k) = t_proc(ceil(b / k)) + t_comm(k)`` with batch ``b`` on ``k`` devices. So two or three local
batches on one device, from the least that any width leaves to the most, and a few widths at one of them, hold every
size that an elastic job may be given. :func:`points` returns these sizes for one kind of device, :func:`samples` the
samples themselves.

The second half is one rule for all services: whether a workload is sampled (:func:`is_sampled`), and whether a job
waits for what samples show (:func:`awaits_speeds`, :func:`awaits_scaling`). The profiler samples by it, the matcher and
the autoscaler wait by it, and the gateway tells a user by it whether a job would wait.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from penstock_log import Job, JobSpec, ProfileSample

WIDE_APART: Final = 4.0
"""Local batches whose ratio is less need none between them: iterations go nearly along a line."""

FURTHER: Final = 1.25
"""What lies beyond the samples by no more than this factor is not sampled: nodes come one by one."""

MOST_WIDTHS: Final = 4
"""Gangs that are sampled; those between them lie on a curve that few points tell."""

MOST_ALONE: Final = 5
"""Local batches that are sampled, the search for what a device holds included."""

ENOUGH: Final = 1.5
"""What a device holds is known well enough when what fits and what does not differ by no more than this factor."""

LENGTHS: Final = (5, 25)
"""Iterations of the two samples that compare kinds, unless others are set."""

_NAME: Final = 30
"""Characters for a kind within a sample's id, which is at most 63 characters long."""


class SamplePoint(NamedTuple):
    """One size: devices, and the batch over all of them."""

    gpus: int
    batch_size: int

    @property
    def local_batch(self) -> int:
        """Samples on each device."""
        return math.ceil(self.batch_size / self.gpus)

    def __str__(self) -> str:
        """Return it as people read it."""
        where = "one device" if self.gpus == 1 else f"{self.gpus} devices"
        each = "" if self.gpus == 1 else " each"
        return f"{where} with {self.local_batch} sample{'s' if self.local_batch > 1 else ''}{each}"


Wanted = tuple[str, SamplePoint | None]
"""A kind, and the size at which an elastic workload is to be sampled there; None: to be compared with other kinds."""


def points(spec: JobSpec, devices: int) -> list[SamplePoint]:
    """
    Return the sizes to sample of an elastic workload on so many devices of a kind; none if its smallest width is
    more.

    Parameters
    ----------
    spec : JobSpec
    devices : int
        How many devices of the kind the pool has.

    Examples
    --------
    >>> from penstock_log import Batch
    >>> job = JobSpec(name="a", command=("x",), min_gpus=1, max_gpus=4, batch_size=64, batch=Batch(min=64, max=1024))
    >>> [tuple(point) for point in points(job, devices=4)]
    [(1, 16), (1, 128), (1, 1024), (2, 256), (4, 512)]
    """
    widths = _widths(spec, devices)
    if not widths:
        return []
    alone, largest = _alone(spec, most(spec, devices)), batches(spec)[1]
    gangs = [SamplePoint(width, _gang_batch(width, alone, largest)) for width in _few([w for w in widths if w > 1])]
    return [*(SamplePoint(1, local) for local in alone), *gangs]


def missing(spec: JobSpec, devices: int, asked: Iterable[SamplePoint]) -> list[SamplePoint]:
    """
    Return the sizes to sample beyond those asked for before: other ends of the range, other widths.

    Examples
    --------
    >>> job = JobSpec(name="a", command=("x",), min_gpus=1, max_gpus=8, batch_size=64)
    >>> before = points(job, devices=2)
    >>> [tuple(point) for point in before], [tuple(point) for point in missing(job, 4, before)]
    ([(1, 32), (1, 64), (2, 64)], [(1, 16), (4, 64)])
    """
    before = set(asked)
    alone = {point.local_batch for point in before if point.gpus == 1}
    wide = {point.gpus for point in before if point.gpus > 1}
    return [
        point
        for point in points(spec, devices)
        if _outside(*((point.local_batch, alone) if point.gpus == 1 else (point.gpus, wide)))
    ]


def between(fits: int, too_large: int, asked: Iterable[SamplePoint]) -> list[SamplePoint]:
    """
    Return the next local batch to try in search of what one device holds; none once that is known well enough.

    Parameters
    ----------
    fits, too_large : int
        The largest local batch that has fit, and the smallest that has not; 0 where there is none.
    """
    tried = sum(point.gpus == 1 for point in asked)
    if not (fits and too_large > ENOUGH * fits) or tried >= MOST_ALONE:
        return []
    return [SamplePoint(1, _middle(fits, too_large))]


def wanted(
    devices: Mapping[str, int], sizes: Mapping[str, Sequence[SamplePoint]], compared: Collection[str]
) -> list[Wanted]:
    """
    Return what is to be sampled of a workload: on each kind its sizes, or else two lengths that compare the kinds.

    Parameters
    ----------
    devices : mapping of str to int
        Kind → devices of it that the workload fits. Only one kind needs no comparison.
    sizes : mapping of str to sequence of SamplePoint
        Kind → the sizes of an elastic workload that are still to be sampled there.
    compared : collection of str
        Kinds on which the workload was sampled or measured before.

    Examples
    --------
    >>> wanted({"fast": 2, "slow": 1}, {"fast": [SamplePoint(1, 8)]}, compared=())
    [('fast', SamplePoint(gpus=1, batch_size=8)), ('slow', None)]
    >>> wanted({"fast": 2}, {}, compared=()), wanted({"fast": 2, "slow": 1}, {}, compared=("fast", "slow"))
    ([], [])
    """
    found: list[Wanted] = []
    for kind in sorted({*devices, *sizes}):
        here = sizes.get(kind, ())
        found += [(kind, size) for size in here]
        if not here and kind in devices and len(devices) > 1 and kind not in compared:
            found.append((kind, None))
    return found


def samples(key: str, asked: Iterable[Wanted], lengths: tuple[int, int] = LENGTHS) -> tuple[ProfileSample, ...]:
    """
    Return a workload's samples for what is wanted: one for each size, and two of different length to compare kinds.

    Examples
    --------
    >>> asked = [("fast", None), ("slow", SamplePoint(2, 64))]
    >>> [(each.sample_id, each.iterations) for each in samples("0123456789", asked)]
    [('s-01234567-fast-1', 5), ('s-01234567-fast-2', 25), ('s-01234567-slow-2x64', 25)]
    """
    return tuple(sample for kind, size in asked for sample in _samples(key, kind, size, lengths))


def batches(spec: JobSpec) -> tuple[int, int]:
    """Return the smallest and the largest batch over all devices that a job may be given."""
    if spec.batch is None:
        return max(1, spec.batch_size), max(1, spec.batch_size)
    return max(1, spec.batch.min), max(1, spec.batch.max)


def most(spec: JobSpec, devices: int) -> int:
    """Return the largest width that a job may be given on so many devices; 0 where there are too few."""
    return min(spec.widths[-1], devices) if spec.widths[0] <= devices else 0


def _widths(spec: JobSpec, devices: int) -> list[int]:
    """Return the smallest width, powers of two, and no more than there are devices."""
    least, widest = spec.widths[0], most(spec, devices)
    doubled = takewhile(lambda width: width <= widest, (2**power for power in range(32)))
    return [*([least] if widest else []), *(width for width in doubled if width > least)]


def _alone(spec: JobSpec, widest: int) -> list[int]:
    """Return the local batches for one device, ascending."""
    smallest, largest = batches(spec)
    limit = (spec.batch.per_gpu_max if spec.batch is not None else 0) or largest
    high = max(1, min(math.ceil(largest / spec.widths[0]), limit))
    low = min(math.ceil(smallest / widest), high)
    return sorted({low, *([_middle(low, high)] if high > WIDE_APART * low else []), high})


def _gang_batch(width: int, alone: Sequence[int], largest: int) -> int:
    """Return a batch of which each device has as many samples as one device had alone, if that is allowed."""
    in_the_middle = alone[(len(alone) - 1) // 2]
    local = next((local for local in (in_the_middle, alone[0]) if local * width <= largest), alone[0])
    return max(width, min(local * width, largest))


def _few(widths: Sequence[int]) -> list[int]:
    """Return both ends and some between them."""
    if len(widths) <= MOST_WIDTHS:
        return list(widths)
    steps = range(MOST_WIDTHS)
    return [widths[round(step * (len(widths) - 1) / (MOST_WIDTHS - 1))] for step in steps]


def _outside(value: int, known: set[int]) -> bool:
    return not known or value < min(known) / FURTHER or value > max(known) * FURTHER


def _middle(low: int, high: int) -> int:
    return round(math.sqrt(low * high))


def _samples(key: str, kind: str, size: SamplePoint | None, lengths: tuple[int, int]) -> Iterator[ProfileSample]:
    if size is not None:
        name = _id(key, kind, f"{size.gpus}x{size.batch_size}")
        yield ProfileSample(
            sample_id=name, kind=kind, iterations=lengths[1], gpus=size.gpus, batch_size=size.batch_size
        )
        return
    for number, iterations in enumerate(lengths, start=1):
        yield ProfileSample(sample_id=_id(key, kind, str(number)), kind=kind, iterations=iterations)


def _id(key: str, kind: str, which: str) -> str:
    """Return a sample's id: lower case, and another one for each kind, also where two differ in what has no place."""
    name = re.sub(r"[^a-z0-9_-]+", "-", kind.lower())[:_NAME]
    mark = "" if name == kind else f"-{hashlib.sha256(kind.encode()).hexdigest()[:4]}"
    return f"s-{key[:8]}-{name}{mark}-{which}"


def is_sampled(spec: JobSpec) -> bool:
    """
    Return whether samples may be run of an unseen workload for such a job.

    Examples
    --------
    >>> is_sampled(JobSpec(name="a", command=("python", "train.py"), profile="on"))
    True
    """
    return bool(why_sampled(spec))


def why_sampled(spec: JobSpec) -> str:
    """
    Return why samples may be run of an unseen workload for such a job; empty where its real runs alone are measured.

    A sample runs the job's script once more than its user has asked for. So a job is sampled only if its user names its
    workload, searches over it, leaves its size to the autoscaler, or asks for it. Every other script starts once.

    Examples
    --------
    >>> why_sampled(JobSpec(name="a", command=("python", "train.py")))
    ''
    >>> why_sampled(JobSpec(name="a", command=("python", "train.py"), model="mlp"))
    'its model is named'
    >>> why_sampled(JobSpec(name="a", command=("sleep", "1"), model="mlp", opaque=True))
    ''
    """
    if spec.profile == "off" or spec.opaque:
        return ""
    if spec.profile == "on":
        return "it asks for it"
    if spec.model:
        return "its model is named"
    if spec.parent:
        return "it is a sweep's"
    return "it is elastic" if spec.elastic else ""


def is_compared(spec: JobSpec, kinds: Collection[str]) -> bool:
    """Return whether samples compare the device kinds of a pool that such a job fits: one kind needs no comparison."""
    return len(kinds) > 1 and is_sampled(spec)


def awaits_speeds(job: Job, kinds: Collection[str], *, known: bool) -> bool:
    """
    Return whether a job waits for its speeds before it starts.

    Parameters
    ----------
    kinds : collection of str
        Device kinds of its pool that it fits.
    known : bool
        Whether the profiler has said anything about its workload.
    """
    return job.sample is None and not job.epoch and not known and is_compared(job.spec, kinds)


def awaits_scaling(job: Job, *, known: bool) -> bool:
    """
    Return whether an elastic job waits for its first size until it is known how its workload scales.

    Parameters
    ----------
    known : bool
        Whether the profiler has said how the workload scales.
    """
    return job.spec.elastic and job.sample is None and not job.epoch and not known and is_sampled(job.spec)
