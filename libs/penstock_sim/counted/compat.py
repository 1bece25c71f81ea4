"""A trace through the published simulator, and its outcome."""

from __future__ import annotations

import time
from typing import cast

import numpy as np

from penstock_policies.orders import Name
from penstock_sim.cluster import Nodes
from penstock_sim.counted import published
from penstock_sim.counted.lines import Job, Rules
from penstock_sim.counted.rooms import Count, Room, Yarn
from penstock_sim.counted.settings import GoOn, Settings
from penstock_sim.outcome import Outcome, Timeline
from penstock_sim.trace import Floats, Trace


def simulate_published(
    trace: Trace,
    cluster: Nodes,
    policy: Name,
    settings: Settings,
    *,
    placement: str,
    samples_gpu_s: Floats,
    go_on: GoOn,
) -> Outcome:
    """
    Return what the published simulator makes of a trace.

    Raises
    ------
    ValueError
        If a time is not in whole seconds, or the placement is none of ``count`` and ``yarn``.
    """
    if placement not in {"count", "yarn"}:
        raise ValueError(f"placement is {placement!r}; tiresias-2019 knows count and yarn: leave compat out for others")
    rules = Rules(
        policy,
        _whole("threshold", np.asarray(settings.thresholds_gpu_s)),
        settings.promote_knob,
        _whole("GPU-time", samples_gpu_s),
    )
    jobs = _jobs(trace, cluster.gpus)
    room: Room = Yarn(cluster) if placement == "yarn" else Count(cluster.gpus)
    before_s = time.process_time()
    found = published.run(jobs, room, rules, lambda _, come: go_on(come, len(jobs)))
    return _outcome(trace, cluster.gpus, policy, found, time.process_time() - before_s)


def _jobs(trace: Trace, devices: int) -> list[Job]:
    columns = zip(
        trace.num_gpus.tolist(),
        _whole("submission", trace.submit_s),
        _whole("duration", trace.duration_s),
        strict=True,
    )
    jobs = [Job(number, gpus, submit_s, duration_s) for number, (gpus, submit_s, duration_s) in enumerate(columns)]
    return [job for job in jobs if job.gpus <= devices]


def _whole(what: str, values: Floats) -> list[int]:
    rounded = np.rint(values).astype(np.int64)
    if np.any(rounded != values):
        odd = values[np.flatnonzero(rounded != values)[0]]
        raise ValueError(f"a {what} is {odd} s; tiresias-2019 knows whole seconds only: round it, or leave compat out")
    return cast("list[int]", rounded.tolist())


def _outcome(trace: Trace, devices: int, policy: Name, found: published.Run, cpu_s: float) -> Outcome:
    times, counts = np.full((3, len(trace)), np.nan), np.zeros((2, len(trace)), dtype=np.int64)
    times[2] = 0.0
    for job in found.jobs:
        start_s, end_s = (np.nan if at_s is None else at_s for at_s in (job.start_s, job.end_s))
        times[:, job.number] = start_s, end_s, job.executed_s
        counts[:, job.number] = job.preemptions, job.promotions
    at_s, busy, waiting = np.array(found.points, dtype=np.int64).reshape(-1, 3).T
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=devices,
        start_s=times[0],
        end_s=times[1],
        executed_s=times[2],
        preemptions=counts[0],
        promotions=counts[1],
        events=len(found.points),
        wall_s=cpu_s,
        timeline=Timeline(at_s.astype(np.float64), busy, waiting),
    )
