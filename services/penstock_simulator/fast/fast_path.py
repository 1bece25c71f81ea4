"""
A trace in, an outcome out.

:func:`simulate` is the way in to all counting simulators: it chooses between the events below, elastic jobs
(:mod:`penstock_simulator.engine.elastic_sizing`) and the published simulator
(:mod:`penstock_simulator.fast.tiresias_2019`).

:func:`simulate_events` scans no job list at any event. Events are submissions, completions, and the crossings and
promotions of jobs whose alarm rings; the kernels carry them out. A job's key changes only when it comes, crosses, is
preempted or promoted. What a policy *is* comes from :mod:`penstock_policies`: by what it demotes, whether it backfills
and preempts, and the Gittins index.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from penstock_policies import gittins
from penstock_policies.queue_policies import BY_ENTRY, FLOOR, QUEUE_POLICIES, QueueKey
from penstock_simulator.engine.elastic_sizing import SizedJobs
from penstock_simulator.fast import kernel_state
from penstock_simulator.fast.fast_settings import (
    SIZED_POLICIES,
    Curves,
    FastSettings,
    FastSizingSettings,
    GoOn,
    Profiles,
    shapes,
)
from penstock_simulator.fast.kernel_events import advance
from penstock_simulator.fast.kernel_state import JobColumns, KernelRules, KernelState, QueueColumns, new_sim
from penstock_simulator.fast.tiresias_2019 import simulate_published
from penstock_simulator.outcome import ClusterTimeline, Outcome
from penstock_simulator.trace import Floats, Ints, Trace, taken
from penstock_simulator.virtual_cluster import SimulatedNodes, VirtualClusterQuotas, check, divide, merged

FAST_POLICIES: Final[tuple[str, ...]] = tuple(name for name, order in QUEUE_POLICIES.items() if not order.not_counted)
"""Every policy that can be counted, by the name that the ranker's setting uses."""

PLACEMENTS: Final = ("count", "yarn")
"""How devices are chosen; ``yarn`` with ``tiresias-2019`` only."""

COMPATS: Final = ("tiresias-2019",)
"""Published simulators whose rules can be followed to the second."""


def simulate(
    trace: Trace,
    cluster: SimulatedNodes,
    policy: str,
    *,
    settings: Mapping[str, object] | None = None,
    placement: str = "count",
    compat: str | None = None,
    gpu_time_samples: Floats | None = None,
    scaling: Curves | None = None,
    profiles: Profiles | None = None,
    overhead_s: float = 0.0,
    timeline: bool = False,
    quotas: VirtualClusterQuotas | None = None,
    go_on: GoOn = lambda _, __: True,
) -> Outcome:
    """
    Return what becomes of a trace on a cluster under one policy.

    A job that asks for more devices than there are never starts.

    Parameters
    ----------
    trace : Trace
    cluster : SimulatedNodes
        All devices count as equal, whatever their kind and speed.
    policy : one of FAST_POLICIES or SIZED_POLICIES
    settings : mapping or None
        Fields of :class:`penstock_simulator.fast.fast_settings.FastSettings`, or for policies of SIZED_POLICIES of
        :class:`penstock_simulator.fast.fast_settings.FastSizingSettings`; a value may also be the text of a command
        line.
    placement : one of PLACEMENTS
    compat : one of COMPATS or None
    gpu_time_samples : (N,) float array or None, GPU-seconds
        Lengths that ``2d-gittins`` knows; None: those of the trace itself, which nobody knows beforehand.
    scaling : mapping or None
        Scaling curves for policies of SIZED_POLICIES, of models whose batch stays: see
        :mod:`penstock_simulator.fast.fast_settings`.
    profiles : mapping or None
        Profiles instead, of models whose batch may change: see :mod:`penstock_simulator.fast.fast_settings`.
    overhead_s : float
        Time for which a preempted job holds its devices on each resumption (or resize) before it goes on.
    timeline : bool
        Whether to record the cluster over time.
    quotas : VirtualClusterQuotas or None
        Quotas of virtual clusters that lend nothing: each is simulated as a cluster by itself.
    go_on : callable
        Called now and then with the number of ended jobs (with ``compat``: of submitted ones) and of all jobs; False
        ends the simulation with the outcome so far.

    Raises
    ------
    ValueError
        If a name or a value is not among those expected; if a job asks for a size that its model's profile or curve
        does not have; or, with ``compat``, if a time is not in whole seconds.
    """
    _check("policy", policy, (*FAST_POLICIES, *SIZED_POLICIES))
    _check("placement", placement, PLACEMENTS)
    one = partial(
        simulate,
        policy=policy,
        settings=settings or {},
        placement=placement,
        compat=compat,
        gpu_time_samples=gpu_time_samples,
        scaling=scaling,
        profiles=profiles,
        overhead_s=overhead_s,
        timeline=timeline,
    )
    if quotas is not None:
        return merged(trace, policy, cluster.gpus, list(_by_parts(one, trace, cluster, quotas, go_on)))
    if policy in SIZED_POLICIES:
        if compat is not None or placement != "count":
            raise ValueError(
                f"{policy} is no part of what was published and knows no nodes; leave compat, placement out"
            )
        sizing = FastSizingSettings.of(settings or {})
        how = shapes(trace, policy, sizing, scaling, profiles)
        found = SizedJobs(trace, cluster.gpus, sizing, how, overhead_s).outcome(policy, go_on)
        return found if timeline else replace(found, timeline=None)
    samples = trace.num_gpus * trace.duration_s if gpu_time_samples is None else gpu_time_samples
    chosen, fit = FastSettings.of(settings or {}), np.flatnonzero(trace.num_gpus <= cluster.gpus)
    jobs = taken(trace, fit) if fit.size < len(trace) else trace
    if compat is not None:
        _check("compat", compat, COMPATS)
        if overhead_s:
            raise ValueError(f"overhead_s is {overhead_s}; {compat} knows none: leave it out, or leave compat out")
        found = simulate_published(
            jobs, cluster, policy, chosen, placement=placement, samples_gpu_s=samples, go_on=go_on
        )
    elif placement == "yarn":
        raise ValueError("placement yarn is part of what was published; add compat tiresias-2019, or count")
    else:
        samples = samples[samples > 0]
        found = simulate_events(
            jobs,
            cluster.gpus,
            policy,
            chosen,
            samples_gpu_s=samples,
            overhead_s=overhead_s,
            go_on=go_on,
            timeline=timeline,
        )
    line = found.timeline if timeline else None
    return replace(found if jobs is trace else merged(trace, policy, cluster.gpus, [(fit, found)]), timeline=line)


def _by_parts(
    one: Callable[..., Outcome],
    trace: Trace,
    cluster: SimulatedNodes,
    given: VirtualClusterQuotas,
    go_on: GoOn,
) -> Iterator[tuple[Ints, Outcome]]:
    """Yield what becomes of each virtual cluster, one after the other, until ``go_on`` says no."""
    if given.borrow:
        raise ValueError("counting knows no borrowing; have the deciders simulate it, or set borrow = false")
    check(given, trace, cluster)
    before = 0

    def report(ended: int, _jobs: int) -> bool:
        return go_on(before + ended, len(trace))

    for part in divide(given, trace, cluster):
        if part.nodes.gpus and report(0, 0):
            yield part.rows, one(taken(trace, part.rows), part.nodes, go_on=report)
        before += len(part.rows)


def _check(what: str, value: str, expected: tuple[str, ...]) -> None:
    if value not in expected:
        raise ValueError(f"{what} is {value!r}; expected one of {', '.join(expected)}")


SLICE: Final = 1 << 15
"""Scheduling points between two looks at whether to go on."""


class Thrashing(ValueError):
    """The policy stops jobs before they have regained the cost of resuming them, so that none ever ends."""


def simulate_events(
    trace: Trace,
    devices: int,
    policy: str,
    settings: FastSettings,
    *,
    samples_gpu_s: Floats,
    overhead_s: float,
    go_on: GoOn,
    timeline: bool,
) -> Outcome:
    """Return what becomes of a trace on a number of devices, each of whose jobs fits on them."""
    warm()
    before_s = time.process_time()
    sim = prepare(trace, devices, policy, settings, samples_gpu_s, overhead_s)
    seen = run(sim, go_on, keep=timeline)
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=devices,
        start_s=sim.jobs.start_s.copy(),
        end_s=sim.jobs.end_s.copy(),
        executed_s=sim.jobs.held_s.copy(),
        preemptions=sim.jobs.preemptions.copy(),
        promotions=sim.jobs.promotions.copy(),
        events=int(sim.counters[kernel_state.EVENTS]),
        wall_s=time.process_time() - before_s,
        timeline=seen if timeline else None,
    )


def run(sim: KernelState, go_on: GoOn, *, keep: bool) -> ClusterTimeline:
    """
    Run a simulation to its end; return the cluster over time, empty unless ``keep``.

    Raises
    ------
    Thrashing
        If no job came, ended or came nearer to its end in a whole slice.
    """
    least_s, before, moved = sim.jobs.left_s.copy(), 0, 0
    at_s, load = np.zeros(SLICE), np.zeros((SLICE, 2), dtype=np.int64)
    times, loads = [at_s[:0]], [load[:0]]
    while points := advance(sim, SLICE, at_s, load):
        if keep:
            times.append(at_s[:points].copy())
            loads.append(load[:points].copy())
        if not go_on(int(sim.counters[kernel_state.ENDED]), len(sim.jobs.gpus)):
            break
        left_s, before, moved = (
            sim.jobs.left_s,
            moved,
            int(sim.counters[kernel_state.ENDED] + sim.counters[kernel_state.SUBMITTED]),
        )
        if moved == before and not np.any(left_s < least_s):
            raise Thrashing(
                f"no job has come nearer to its end in {SLICE:,} scheduling points: jobs are stopped before they have "
                f"made good the {sim.rules.overhead_s:g} s that it costs to resume them; expected stints longer than "
                "that; raise promote_knob or thresholds_gpu_s, or lower --overhead-s"
            )
        np.minimum(least_s, left_s, out=least_s)
    busy, waiting = np.concatenate(loads).T
    return ClusterTimeline(np.concatenate(times), busy, waiting)


def warm() -> None:
    """Load or compile the kernels before anything is timed."""
    if advance.signatures:  # type: ignore[attr-defined]
        return
    one = np.ones(1)
    run(
        prepare(Trace("warm", ["j"], one, one.astype(np.int64), one), 1, "2d-las", FastSettings(), one, 0.0),
        lambda _, __: True,
        keep=False,
    )


def prepare(  # noqa: PLR0917 - what, where, how
    trace: Trace, devices: int, policy: str, settings: FastSettings, samples: Floats, overhead_s: float
) -> KernelState:
    """Return a simulation before its first event; all of its jobs fit on the devices."""
    order = QUEUE_POLICIES[policy]
    key = order.key if isinstance(order.key, QueueKey) else BY_ENTRY
    demotes = order.demotes_by != "nothing"
    limits = np.asarray(settings.thresholds_gpu_s if demotes else (), dtype=np.float64)
    turn = np.arange(len(limits) + 1)
    by = kernel_state.BY_KEY
    if key.left:
        by = kernel_state.BY_OVERTAKING_KEY if key.times_devices else kernel_state.BY_FALLING_KEY
    if order.learns and settings.levels:
        by, limits, turn = kernel_state.BY_START, *levels(samples, settings.levels)
    elif order.learns:
        by = kernel_state.BY_INDEX
    elif demotes and key == BY_ENTRY and settings.within == "start":
        by = kernel_state.BY_START
    rules = KernelRules(
        by=by,
        strict=not order.backfills,
        preempts=order.preempts and (demotes or order.within_queue),
        devices=devices,
        overhead_s=float(overhead_s),
        tick_s=_tick_s(trace, settings),
        knob=math.inf if settings.promote_knob is None else float(settings.promote_knob),
    )
    weight = order.weight(trace.num_gpus.astype(np.float64))
    jobs = kernel_state.new_jobs(trace.submit_s, trace.num_gpus, trace.duration_s, weight, np.unique(trace.num_gpus))
    _set_keys(jobs, key, trace)
    queues = kernel_state.new_queues(limits, turn)
    if by == kernel_state.BY_INDEX:
        _set_units(queues, limits, samples)
    return new_sim(rules, jobs, queues, kernel_state.new_samples(samples))


def _set_keys(jobs: JobColumns, key: QueueKey, trace: Trace) -> None:
    """Set what the keys of jobs are made of, as :meth:`penstock_policies.queue_policies.QueueKey.evaluator` does."""
    devices = trace.num_gpus.astype(np.float64)
    times = devices if key.times_devices else np.ones(len(devices))
    jobs.key_fixed[:] = times * (key.submitted * trace.submit_s + key.devices * devices + key.length * trace.duration_s)
    jobs.key_entered[:] = times * key.entered
    jobs.key_left[:] = times * key.left


def levels(samples_gpu_s: Floats, count: int) -> tuple[Floats, Ints]:
    """
    Return the discretised Gittins order: levels of attained service, and the order in which they are served.

    Parameters
    ----------
    samples_gpu_s : (N,) float array, GPU-seconds
    count : int
        Levels, evenly spaced over the logarithm of the samples; fewer if that is not possible.

    Returns
    -------
    limits : (K - 1,) float array, GPU-seconds, rising
    turn : (K,) int array
        Levels by index, the highest first. A level's index is that of a job that has just entered it, with the way to
        the level's upper limit as the quantum, since the job's index is computed again there.
    """
    if not samples_gpu_s.size or count < 2:
        return np.zeros(0), np.zeros(1, dtype=np.int64)
    limits = np.unique(np.geomspace(samples_gpu_s.min(), samples_gpu_s.max(), count - 1))
    edges = np.concatenate(([0.0], limits))
    samples = np.sort(samples_gpu_s)
    within = [gittins.index(samples, edge, width) for edge, width in zip(edges[:-1], np.diff(edges), strict=True)]
    # Nothing is known to end in the last level.
    return limits, np.argsort(-np.array([*within, 0.0]), kind="stable").astype(np.int64)


def _set_units(queues: QueueColumns, limits: Floats, samples: Floats) -> None:
    """Set what indices are relative to, as :class:`penstock_policies.queue_policies.LengthKnowledge` does."""
    entries = np.concatenate(([0.0], limits))[:-1]
    for queue, (entry, limit) in enumerate(zip(entries, limits, strict=True)):
        queues.floor[queue] = FLOOR / limit
        queues.fresh[queue] = gittins.GittinsCurve(samples, limit).at(entry) + queues.floor[queue]


def _tick_s(trace: Trace, settings: FastSettings) -> float:
    if settings.tick_s is not None:
        return float(settings.tick_s)
    whole = all(np.array_equal(np.rint(times), times) for times in (trace.submit_s, trace.duration_s))
    return 1.0 if whole else 0.0
