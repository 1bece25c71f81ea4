"""Which samples a workload still needs, and what they are called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock_events import Sample
from penstock_policies.sampling import is_sampled
from penstock_profiler.points import Point, between, missing
from penstock_profiler.settings import Settings
from penstock_profiler.workload import Workload

_NAME: Final = 30
"""Characters for a kind within a sample's id, which is at most 63 characters long."""

Wanted = tuple[str, Point | None]
"""A kind, and the size at which an elastic workload is to be sampled there; None: to be compared with other kinds."""


def wanted(known: Workload, devices: Mapping[str, int], elastic: Mapping[str, int]) -> list[Wanted]:
    """
    Return what is to be sampled now: nothing unless a job that is not over may have its workload sampled.

    An elastic workload is sampled at several sizes on each kind, where there is only one as well, and any other one on
    each of several kinds, to compare them.

    Parameters
    ----------
    devices, elastic : mapping of str to int
        Kind → devices of it that the workload's last job fits, and those that its last elastic job does.
    """
    if not known.sampled_active or known.unsampleable():
        return []
    found: list[Wanted] = []
    for kind in sorted({*devices, *elastic}):
        sizes = _sizes(known, kind, elastic.get(kind, 0))
        found += [(kind, size) for size in sizes]
        compared = sizes or kind not in devices or len(devices) == 1 or _was_compared(known, kind)
        if not compared:
            found.append((kind, None))
    return found


def samples(key: str, asked: Iterable[Wanted], settings: Settings) -> tuple[Sample, ...]:
    """Return the samples for what is wanted: one for each size, and two of different length to compare kinds."""
    return tuple(sample for kind, size in asked for sample in _samples(key, kind, size, settings))


def _sizes(known: Workload, kind: str, devices: int) -> list[Point]:
    spec, asked = known.elastic, known.asked_points(kind)
    if spec is None or not known.elastic_active or not is_sampled(spec):
        return []
    fits, too_large = known.room(kind)
    beyond = [size for size in missing(spec, devices, asked) if not too_large or size.local_batch < too_large]
    if not beyond and not known.open_points(kind):
        beyond = between(fits, too_large, asked)
    return [size for size in beyond if size not in asked]


def _was_compared(known: Workload, kind: str) -> bool:
    return (kind in known.iteration_s and known.gpus <= 1) or kind in known.sampled_kinds()


def _samples(key: str, kind: str, size: Point | None, settings: Settings) -> Iterator[Sample]:
    if size is not None:
        name = _id(key, kind, f"{size.gpus}x{size.batch_size}")
        iterations = settings.long_iterations
        yield Sample(sample_id=name, kind=kind, iterations=iterations, gpus=size.gpus, batch_size=size.batch_size)
        return
    lengths = (settings.short_iterations, settings.long_iterations)
    for number, iterations in enumerate(lengths, start=1):
        yield Sample(sample_id=_id(key, kind, str(number)), kind=kind, iterations=iterations)


def _id(key: str, kind: str, which: str) -> str:
    """Return a sample's id: lower case, and another one for each kind, also where two differ in what has no place."""
    name = re.sub(r"[^a-z0-9_-]+", "-", kind.lower())[:_NAME]
    mark = "" if name == kind else f"-{hashlib.sha256(kind.encode()).hexdigest()[:4]}"
    return f"s-{key[:8]}-{name}{mark}-{which}"
