"""
The counting simulator to work with: no scan of all jobs at any event.

Events are submissions, completions, and the crossings and promotions of jobs whose alarm rings; the kernels do them. A
job's key changes only when it comes, crosses, is preempted or promoted. What a policy *is* comes from
:mod:`penstock_policies`: by what it demotes, whether it backfills and preempts, and the Gittins index.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from penstock_policies import gittins
from penstock_policies.orders import FLOOR, ORDERS, Name
from penstock_sim.counted.kernels import state
from penstock_sim.counted.kernels.loop import advance
from penstock_sim.counted.kernels.state import Queues, Rules, Sim, new_sim
from penstock_sim.counted.settings import GoOn, Settings
from penstock_sim.outcome import Outcome, Timeline
from penstock_sim.trace import Floats, Ints, Trace


@dataclass(frozen=True)
class Workload:
    """Columns of a trace, by submission."""

    submit_s: Floats
    num_gpus: Ints
    duration_s: Floats


SLICE: Final = 1 << 15
"""Scheduling points between two looks at whether to go on."""


class Thrashing(ValueError):
    """The policy stops jobs before they have made good what it costs to resume them, so that none ever ends."""


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


def simulate_events(
    trace: Trace,
    devices: int,
    policy: Name,
    settings: Settings,
    *,
    samples_gpu_s: Floats,
    overhead_s: float,
    go_on: GoOn,
    timeline: bool,
) -> Outcome:
    """Return what becomes of a trace on so many devices."""
    fit = np.flatnonzero(trace.num_gpus <= devices)
    workload = Workload(trace.submit_s[fit], trace.num_gpus[fit], trace.duration_s[fit])
    warm()
    before_s = time.process_time()
    sim = prepare(workload, devices, policy, settings, samples_gpu_s, overhead_s)
    seen = run(sim, go_on, keep=timeline)
    cpu_s = time.process_time() - before_s
    jobs, number = sim.jobs, len(trace)
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=devices,
        start_s=_spread(jobs.start_s, fit, np.full(number, np.nan)),
        end_s=_spread(jobs.end_s, fit, np.full(number, np.nan)),
        executed_s=_spread(jobs.held_s, fit, np.zeros(number)),
        preemptions=_spread(jobs.preemptions, fit, np.zeros(number, dtype=np.int64)),
        promotions=_spread(jobs.promotions, fit, np.zeros(number, dtype=np.int64)),
        events=int(sim.counters[state.EVENTS]),
        wall_s=cpu_s,
        timeline=seen if timeline else None,
    )


def run(sim: Sim, go_on: GoOn, *, keep: bool) -> Timeline:
    """
    Run a simulation to its end; return the cluster over time, empty where it is not to be kept.

    Raises
    ------
    Thrashing
        If no job came, ended or came nearer to its end in a whole slice.
    """
    progress = _Progress(sim)
    at_s, load = np.zeros(SLICE), np.zeros((SLICE, 2), dtype=np.int64)
    times, loads = [at_s[:0]], [load[:0]]
    while points := advance(sim, SLICE, at_s, load):
        if keep:
            times.append(at_s[:points].copy())
            loads.append(load[:points].copy())
        if not go_on(int(sim.counters[state.DONE]), len(sim.jobs.gpus)):
            break
        progress.look(sim)
    busy, waiting = np.concatenate(loads).T
    return Timeline(np.concatenate(times), busy, waiting)


class _Progress:
    """The least that each job was ever seen to have left."""

    def __init__(self, sim: Sim) -> None:
        self._least_s = sim.jobs.left_s.copy()
        self._moved = 0

    def look(self, sim: Sim) -> None:
        left_s, moved = sim.jobs.left_s, int(sim.counters[state.DONE] + sim.counters[state.COME])
        if moved == self._moved and not np.any(left_s < self._least_s):
            raise Thrashing(
                f"no job has come nearer to its end in {SLICE:,} scheduling points: jobs are stopped before they have "
                f"made good the {sim.rules.overhead_s:g} s that it costs to resume them; expected stints longer than "
                "that; raise promote_knob or thresholds_gpu_s, or lower --overhead-s"
            )
        np.minimum(self._least_s, left_s, out=self._least_s)
        self._moved = moved


def warm() -> None:
    """Load the kernels, or compile them, so that this is not part of what is timed."""
    if advance.signatures:  # type: ignore[attr-defined]
        return
    one = np.ones(1)
    workload = Workload(one, one.astype(np.int64), one)
    run(prepare(workload, 1, "2d-las", Settings(), one, 0.0), lambda _, __: True, keep=False)


def prepare(  # noqa: PLR0917 - what, where, how
    trace: Workload, devices: int, policy: Name, settings: Settings, samples: Floats, overhead_s: float
) -> Sim:
    """Return the simulation of jobs that all fit, before its first event."""
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
        The level with the highest index first: that of a job that has just entered it, with the way to its upper limit
        as the quantum, for there it is looked at again.
    """
    if not samples_gpu_s.size or count < 2:
        return np.zeros(0), np.zeros(1, dtype=np.int64)
    limits = np.unique(np.geomspace(samples_gpu_s.min(), samples_gpu_s.max(), count - 1))
    edges = np.concatenate(([0.0], limits))
    samples = np.sort(samples_gpu_s)
    within = [gittins.index(samples, edge, width) for edge, width in zip(edges[:-1], np.diff(edges), strict=True)]
    # Nothing is known to end in the last level.
    return limits, np.argsort(-np.array([*within, 0.0]), kind="stable").astype(np.int64)


def _set_units(queues: Queues, limits: Floats, samples: Floats) -> None:
    """Set what indices are relative to, as :class:`penstock_policies.orders.Learnt` does."""
    entries = np.concatenate(([0.0], limits))[:-1]
    for queue, (entry, limit) in enumerate(zip(entries, limits, strict=True)):
        queues.floor[queue] = FLOOR / limit
        queues.fresh[queue] = gittins.Curve(samples, limit).at(entry) + queues.floor[queue]


def _tick_s(trace: Workload, settings: Settings) -> float:
    if settings.tick_s is not None:
        return float(settings.tick_s)
    whole = all(np.array_equal(np.rint(times), times) for times in (trace.submit_s, trace.duration_s))
    return 1.0 if whole else 0.0


Column = TypeVar("Column", Floats, Ints)


def _spread(found: Column, places: Ints, rest: Column) -> Column:
    """Return a column of all jobs from one of those that fit."""
    rest[places] = found
    return rest
