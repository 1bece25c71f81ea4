"""Which samples a workload still needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_events import Sample
from penstock_policies import points
from penstock_policies.points import Point, Wanted, between, missing
from penstock_policies.sampling import is_sampled
from penstock_profiler.settings import Settings
from penstock_profiler.workload import Workload


def wanted(known: Workload, devices: Mapping[str, int], elastic: Mapping[str, int]) -> list[Wanted]:
    """
    Return what is to be sampled now: nothing unless a job that is not over may have its workload sampled.

    An elastic workload is sampled at several sizes on each kind, where there is only one as well, and any other one on
    each of several kinds, to compare them.

    Parameters
    ----------
    devices, elastic : mapping of str to int
        Kind → devices of it that the last job fits whose workload may be sampled, and those that the last elastic job
        does.
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
    """Return the samples for what is wanted."""
    return points.samples(key, asked, (settings.short_iterations, settings.long_iterations))


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
