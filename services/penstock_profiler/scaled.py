"""What the profiler says of how an elastic workload goes with batch size and devices, and when that is news."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from penstock_events import JobSpec, Scalability, Timing, WorkloadScaled
from penstock_policies import scaling, speedups
from penstock_policies.points import batches, most
from penstock_profiler.curve import Curve
from penstock_profiler.workload import MOVED, Workload

MOST_WORDS: Final = 400
"""Characters of a note: a workload may fail in many ways."""


def scalability(known: Workload, spec: JobSpec, kind: str, devices: int) -> Scalability:
    """
    Return the present knowledge of an elastic workload on one kind.

    Parameters
    ----------
    spec : JobSpec
        Of the elastic job submitted last.
    devices : int
        Of the kind, that there are in its pool.
    """
    curve = known.curves.get(kind, Curve())
    note = "; ".join(_notes(known, spec, kind, devices))
    shown = note if len(note) <= MOST_WORDS else note[: MOST_WORDS - 1] + "…"
    return Scalability(kind=kind, timings=tuple(curve.timings), per_gpu_cap=curve.cap, note=shown)


def scaled(known: Workload, spec: JobSpec, devices: Mapping[str, int], now_s: float) -> WorkloadScaled:
    """Return what is to be said of an elastic workload now, on all kinds that it fits or was measured on."""
    kinds = sorted({*devices, *known.curves})
    told = tuple(scalability(known, spec, kind, devices.get(kind, 0)) for kind in kinds)
    return WorkloadScaled(at_s=now_s, key=known.key, kinds=told)


def differs(said: Scalability, now: Scalability, curve: Curve) -> bool:
    """Say whether something has come up since, or a time has moved."""
    return curve.news or (said.per_gpu_cap, said.note) != (now.per_gpu_cap, now.note)


def judge(known: Workload, kind: str) -> None:
    """Note whether a time has moved, since it was said, by more than its error and more than a tenth."""
    curve, spec = known.curves.get(kind), known.elastic
    if curve is None or spec is None:
        return
    said = (known.scaled or {}).get(kind)
    before = {(each.gpus, each.local_batch): each for each in said.timings} if said is not None else {}
    curve.news = said is not None and any(
        _moved(before.get((each.gpus, each.local_batch)), each, said, spec) for each in curve.timings
    )


def _moved(before: Timing | None, now: Timing, said: Scalability, spec: JobSpec) -> bool:
    iteration_s, error_s = (before.iteration_s, before.error_s) if before is not None else _expected(now, said, spec)
    if before == now or math.isnan(iteration_s):
        return before != now
    apart_s = abs(now.iteration_s - iteration_s)
    return speedups.moved(iteration_s, now.iteration_s, MOVED) and apart_s > math.hypot(error_s, now.error_s)


def _expected(size: Timing, said: Scalability, spec: JobSpec) -> tuple[float, float]:
    """Return what was to be expected of an iteration at another size, and its error; nan where nothing was."""
    gangs = {each.gpus for each in said.timings}
    if 1 not in gangs or (size.gpus > 1 and gangs == {1}):
        return math.nan, math.nan
    batch = size.local_batch * size.gpus
    speed, error = scaling.throughput(said, spec, batch, size.gpus)
    return batch / speed, error * batch / speed**2


def _notes(known: Workload, spec: JobSpec, kind: str, devices: int) -> Iterator[str]:
    curve = known.curves.get(kind, Curve())
    if spec.widths[0] > devices > 0:
        yield f"its smallest width is {spec.widths[0]}, and the devices there are {devices}"
    limits = [limit for limit in (curve.cap, spec.batch.per_gpu_max if spec.batch is not None else 0) if limit]
    smallest, width = batches(spec)[0], most(spec, devices)
    if limits and width and width * min(limits) < smallest:
        where = f"{width} devices" if width > 1 else "one device"
        yield f"its smallest batch of {smallest} does not fit on {where} of {_samples(min(limits))} each"
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for point, reason in curve.failures.items():
        reasons[reason].append(point)
    yield from (f"{', '.join(points)}: {reason}" for reason, points in reasons.items())
    if waiting := [str(point) for point in known.open_points(kind)]:
        yield f"not measured yet: {', '.join(waiting)}"
    elif not curve.timings and not curve.failures:
        yield _unsampled(known, spec, kind)


def _unsampled(known: Workload, spec: JobSpec, kind: str) -> str:
    if spec.profile == "off":
        return "not sampled: its profile is off"
    if spec.opaque:
        return "not sampled: no file of its command line mentions penstock"
    if known.unsampleable():
        return "not sampled: samples elsewhere failed"
    return known.failures.get(kind, "not sampled")


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count > 1 else ''}"
