"""
The profiler's answers about a workload.

:func:`answer` says its speed on each kind of device: measured speeds, predicted ones, and why a speed is only
predicted. :func:`scalability` says how the speed of an elastic workload depends on batch size and devices, and
:func:`differs` whether this is news.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np

from penstock_log import JobSpec, KindSpeed, Scalability, Timing, WorkloadProfiled, WorkloadScaled
from penstock_policies import scaling_model, workload_stats
from penstock_policies.sample_plan import batches, most
from penstock_profiler.workload_record import MOVED, ScalingCurve, WorkloadRecord

MOST_OTHERS: Final = 256
"""Workloads that a prediction looks at: a median needs no more, and there may be as many as jobs."""


def answer(
    workload: WorkloadRecord, others: Iterable[WorkloadRecord], fitting: Sequence[str], now_s: float
) -> WorkloadProfiled:
    """
    Return the present knowledge of a workload.

    Parameters
    ----------
    workload : WorkloadRecord
    others : iterable of WorkloadRecord
        Workloads to predict the kinds' ratios from, :data:`MOST_OTHERS` at most; the workload may be among them.
    fitting : sequence of str
        Kinds of the pool that the workload's jobs accept.
    now_s : float
    """
    kinds = sorted({*fitting, *workload.times_s, *(workload.announced or {})})
    if not kinds:
        note = f"no device of pool {workload.spec.pool} fits at present; speeds follow when one joins"
        return WorkloadProfiled(at_s=now_s, key=workload.key, speeds=(), note=note, skew=workload.skew)
    own_s = _row(workload.times_s, kinds)
    times_s = workload_stats.predicted_s(_ratios(others, kinds), own_s) if np.isnan(own_s).any() else own_s
    speeds = workload_stats.speeds(times_s)
    found = tuple(_kind_speed(workload, kind, float(speed)) for kind, speed in zip(kinds, speeds, strict=True))
    notes = [_why(workload, kind, float(t), len(kinds)) for kind, t in zip(kinds, times_s, strict=True)]
    note = "; ".join(filter(None, notes))
    return WorkloadProfiled(at_s=now_s, key=workload.key, speeds=found, note=note, skew=workload.skew)


def _ratios(workloads: Iterable[WorkloadRecord], kinds: Sequence[str]) -> workload_stats.Floats:
    telling = (workload.iteration_s for workload in workloads if len(workload.iteration_s) > 1)
    rows = [_row(iteration_s, kinds) for iteration_s in islice(telling, MOST_OTHERS)]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(kinds))


def _row(times_s: Mapping[str, float], kinds: Sequence[str]) -> workload_stats.Floats:
    return np.array([times_s.get(kind, math.nan) for kind in kinds])


def _kind_speed(workload: WorkloadRecord, kind: str, speed: float) -> KindSpeed:
    return KindSpeed(
        kind=kind,
        iteration_s=workload.iteration_s.get(kind, 0.0),
        speed=1.0 if math.isnan(speed) else speed,
        memory_bytes=workload.memory_bytes.get(kind, 0),
        predicted=kind not in workload.times_s,
        run_s=0.0 if workload.iteration_s else workload.run_s.get(kind, 0.0),
    )


def _why(workload: WorkloadRecord, kind: str, time_s: float, kinds: int) -> str:
    if kind in workload.times_s:
        return ""
    if kinds == 1 and kind not in workload.failures:
        return f"{kind}: not measured, the only kind that fits"
    source = "taken as 1.0, no other workload to go by" if math.isnan(time_s) else "predicted from other workloads"
    if kind in workload.failures:
        return f"{kind}: {source}; its sample failed: {workload.failures[kind]}"
    if kind in workload.open_kinds():
        return f"{kind}: {source}; its samples have not ended yet"
    if workload.unsampleable():
        return f"{kind}: {source}; samples elsewhere failed"
    why_not = "its profile is off" if workload.spec.profile == "off" else "what runs there is measured"
    return f"{kind}: {source}; not sampled, {why_not}"


MOST_CHARACTERS: Final = 400
"""Characters of a note: a workload may fail in many ways."""


def scalability(known: WorkloadRecord, spec: JobSpec, kind: str, devices: int) -> Scalability:
    """
    Return the present knowledge of an elastic workload on one kind.

    Parameters
    ----------
    spec : JobSpec
        The elastic job submitted last.
    devices : int
        Devices of the kind in its pool.
    """
    curve = known.curves.get(kind, ScalingCurve())
    note = "; ".join(_notes(known, spec, kind, devices))
    shown = note if len(note) <= MOST_CHARACTERS else note[: MOST_CHARACTERS - 1] + "…"
    return Scalability(kind=kind, timings=tuple(curve.timings), per_gpu_cap=curve.cap, note=shown)


def scaled(known: WorkloadRecord, spec: JobSpec, devices: Mapping[str, int], now_s: float) -> WorkloadScaled:
    """Return the fact about an elastic workload now, on all kinds that it fits or was measured on."""
    kinds = sorted({*devices, *known.curves})
    found = tuple(scalability(known, spec, kind, devices.get(kind, 0)) for kind in kinds)
    return WorkloadScaled(at_s=now_s, key=known.key, kinds=found)


def differs(announced: Scalability, now: Scalability, curve: ScalingCurve) -> bool:
    """Return whether the present knowledge differs from the announced: something is new, or a time has changed."""
    return curve.moved or (announced.per_gpu_cap, announced.note) != (now.per_gpu_cap, now.note)


def judge(known: WorkloadRecord, kind: str) -> None:
    """Note whether a time has changed since it was announced, by more than its error and more than a tenth."""
    curve, spec = known.curves.get(kind), known.elastic
    if curve is None or spec is None:
        return
    if (announced := (known.scaled or {}).get(kind)) is None:
        curve.moved = False
        return
    before = {(each.gpus, each.local_batch): each for each in announced.timings}
    curve.moved = any(
        _moved(before.get((each.gpus, each.local_batch)), each, announced, spec) for each in curve.timings
    )


def _moved(before: Timing | None, now: Timing, announced: Scalability, spec: JobSpec) -> bool:
    iteration_s, error_s = (
        (before.iteration_s, before.error_s) if before is not None else _expected(now, announced, spec)
    )
    if before == now or math.isnan(iteration_s):
        return before != now
    apart_s = abs(now.iteration_s - iteration_s)
    return workload_stats.moved(iteration_s, now.iteration_s, MOVED) and apart_s > math.hypot(error_s, now.error_s)


def _expected(size: Timing, announced: Scalability, spec: JobSpec) -> tuple[float, float]:
    """Return the expected time of an iteration at another size, and its error; nan if nothing was expected."""
    gangs = {each.gpus for each in announced.timings}
    if 1 not in gangs or (size.gpus > 1 and gangs == {1}):
        return math.nan, math.nan
    batch = size.local_batch * size.gpus
    speed, error = scaling_model.throughput(announced, spec, batch, size.gpus)
    return batch / speed, error * batch / speed**2


def _notes(known: WorkloadRecord, spec: JobSpec, kind: str, devices: int) -> Iterator[str]:
    curve = known.curves.get(kind, ScalingCurve())
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


def _unsampled(known: WorkloadRecord, spec: JobSpec, kind: str) -> str:
    if spec.profile == "off":
        return "not sampled: its profile is off"
    if spec.opaque:
        return "not sampled: no file of its command line mentions penstock"
    if known.unsampleable():
        return "not sampled: samples elsewhere failed"
    return known.failures.get(kind, "not sampled")


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count > 1 else ''}"
