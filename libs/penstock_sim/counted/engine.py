"""
The counting simulator to work with: no scan of all jobs at any event.

Events are submissions, completions, and the crossings and promotions of jobs whose alarm rings; the kernels do them. A
job's key changes only when it comes, crosses, is preempted or promoted. What a policy *is* comes from
:mod:`penstock_policies`: by what it demotes, whether it backfills and preempts, and the Gittins index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock_policies import gittins
from penstock_policies.orders import FLOOR, ORDERS, Name
from penstock_sim.counted.kernels import state
from penstock_sim.counted.kernels.loop import advance
from penstock_sim.counted.kernels.state import Queues, Rules, Sim, new_sim
from penstock_sim.counted.settings import Settings
from penstock_sim.trace import Floats, Ints, Trace

SLICE: Final = 1 << 15
"""Scheduling points between two looks at whether to go on."""

_BY: Final[dict[Name, int]] = {
    "fifo": state.BY_SUBMISSION,
    "fifo-backfill": state.BY_SUBMISSION,
    "fewest-gpus": state.BY_DEVICES,
    "srtf": state.BY_TIME_LEFT,
    "srsf": state.BY_SERVICE_LEFT,
    "las": state.BY_START,
    "2d-las": state.BY_START,
    "2d-gittins": state.BY_INDEX,
}

GoOn = Callable[[int, int], bool]
"""Told now and then how many jobs are over and how many there are; the simulation ends where it says no."""


@dataclass(frozen=True)
class Points:
    """Scheduling points: time, and devices in use and jobs that wait from then on."""

    at_s: Floats
    load: Ints


def run(sim: Sim, go_on: GoOn, *, keep: bool) -> Points:
    """Run a simulation to its end; return its scheduling points if they are to be kept."""
    at_s, load = np.zeros(SLICE), np.zeros((SLICE, 2), dtype=np.int64)
    times, loads = [at_s[:0]], [load[:0]]
    while (points := advance(sim, SLICE, at_s, load)) and go_on(int(sim.counters[state.DONE]), len(sim.jobs.gpus)):
        if keep:
            times.append(at_s[:points].copy())
            loads.append(load[:points].copy())
    return Points(np.concatenate(times), np.concatenate(loads))


def prepare(trace: Trace, devices: int, policy: Name, settings: Settings, samples: Floats, overhead_s: float) -> Sim:
    """Return the simulation of a trace, of which every job fits, before its first event."""
    order = ORDERS[policy]
    by = _BY[policy]
    limits = np.asarray(settings.thresholds_gpu_s if order.demotes_by != "nothing" else (), dtype=np.float64)
    turn = np.arange(len(limits) + 1)
    if order.learns and settings.levels:
        by, limits, turn = state.BY_START, *levels(samples, settings.levels)
    elif by == state.BY_START and settings.within == "entry":
        by = state.BY_ENTRY
    rules = Rules(
        by=by,
        strict=not order.backfills,
        preempts=order.preempts,
        devices=devices,
        overhead_s=float(overhead_s),
        tick_s=_tick_s(trace, settings),
        knob=math.inf if settings.promote_knob is None else float(settings.promote_knob),
    )
    weight = order.weight(trace.num_gpus.astype(np.float64))
    jobs = state.new_jobs(trace.submit_s, trace.num_gpus, trace.duration_s, weight, np.unique(trace.num_gpus))
    queues = state.new_queues(limits, turn)
    if by == state.BY_INDEX:
        _set_units(queues, limits, samples)
    return new_sim(rules, jobs, queues, state.new_samples(samples))


def levels(samples_gpu_s: Floats, count: int) -> tuple[Floats, Ints]:
    """
    Return the discretised Gittins order: levels of attained service, and in which turn they are served.

    Parameters
    ----------
    samples_gpu_s : (N,) float array, GPU-seconds
    count : int
        Levels, evenly spaced over the logarithm of the samples; fewer if that is not possible.

    Returns
    -------
    limits : (K - 1,) float array, GPU-seconds, rising
    turn : (K,) int array
        The level with the highest index, at its lower limit, first.
    """
    if not samples_gpu_s.size or count < 2:
        return np.zeros(0), np.zeros(1, dtype=np.int64)
    limits = np.unique(np.geomspace(samples_gpu_s.min(), samples_gpu_s.max(), count - 1))
    index = gittins.index(samples_gpu_s, np.concatenate(([0.0], limits)), None)
    return limits, np.argsort(-index, kind="stable").astype(np.int64)


def _set_units(queues: Queues, limits: Floats, samples: Floats) -> None:
    """Set what indices are relative to, as :class:`penstock_policies.orders.Learnt` does."""
    entries = np.concatenate(([0.0], limits[:-1]))
    for queue, (entry, limit) in enumerate(zip(entries, limits, strict=True)):
        queues.floor[queue] = FLOOR / limit
        queues.fresh[queue] = gittins.Curve(samples, limit).at(entry) + queues.floor[queue]


def _tick_s(trace: Trace, settings: Settings) -> float:
    if settings.tick_s is not None:
        return float(settings.tick_s)
    whole = all(np.array_equal(np.rint(times), times) for times in (trace.submit_s, trace.duration_s))
    return 1.0 if whole else 0.0
