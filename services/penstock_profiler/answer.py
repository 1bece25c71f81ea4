"""What the profiler says about a workload: measured speeds, predicted ones, and why those are only predicted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np

from penstock_events import KindSpeed, WorkloadProfiled
from penstock_policies import speedups
from penstock_profiler.workload import Workload

MOST_OTHERS: Final = 256
"""Workloads that a prediction looks at: a median needs no more, and there may be as many as jobs."""


def answer(workload: Workload, others: Iterable[Workload], fitting: Sequence[str], now_s: float) -> WorkloadProfiled:
    """
    Return the present knowledge of a workload.

    Parameters
    ----------
    workload : Workload
    others : iterable of Workload
        What the kinds' ratios are predicted from, :data:`MOST_OTHERS` at most; the workload itself may be among them.
    fitting : sequence of str
        Kinds of the pool that its jobs accept.
    now_s : float
    """
    kinds = sorted({*fitting, *workload.times_s, *(workload.announced or {})})
    if not kinds:
        note = f"no device of pool {workload.spec.pool} fits at present; speeds follow when one joins"
        return WorkloadProfiled(at_s=now_s, key=workload.key, speeds=(), note=note, skew=workload.skew)
    own_s = _row(workload.times_s, kinds)
    times_s = speedups.predicted_s(_ratios(others, kinds), own_s) if np.isnan(own_s).any() else own_s
    speeds = speedups.speeds(times_s)
    said = tuple(_kind_speed(workload, kind, float(speed)) for kind, speed in zip(kinds, speeds, strict=True))
    notes = [_why(workload, kind, float(t), len(kinds)) for kind, t in zip(kinds, times_s, strict=True)]
    note = "; ".join(filter(None, notes))
    return WorkloadProfiled(at_s=now_s, key=workload.key, speeds=said, note=note, skew=workload.skew)


def _ratios(workloads: Iterable[Workload], kinds: Sequence[str]) -> speedups.Floats:
    telling = (workload.iteration_s for workload in workloads if len(workload.iteration_s) > 1)
    rows = [_row(iteration_s, kinds) for iteration_s in islice(telling, MOST_OTHERS)]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(kinds))


def _row(times_s: Mapping[str, float], kinds: Sequence[str]) -> speedups.Floats:
    return np.array([times_s.get(kind, math.nan) for kind in kinds])


def _kind_speed(workload: Workload, kind: str, speed: float) -> KindSpeed:
    return KindSpeed(
        kind=kind,
        iteration_s=workload.iteration_s.get(kind, 0.0),
        speed=1.0 if math.isnan(speed) else speed,
        memory_bytes=workload.memory_bytes.get(kind, 0),
        predicted=kind not in workload.times_s,
        run_s=0.0 if workload.iteration_s else workload.run_s.get(kind, 0.0),
    )


def _why(workload: Workload, kind: str, time_s: float, kinds: int) -> str:
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
