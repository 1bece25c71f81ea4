"""When a waiting job is expected to start: an estimate, from what is declared or was measured in its pool."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np

from penstock_events import Job, JobSpec, lifecycle, workload
from penstock_gateway.machine import State
from penstock_gateway.words import count
from penstock_policies import estimates
from penstock_policies.forecast import Need, start_in_s
from penstock_policies.order import Running
from penstock_policies.rounds.pool import Pool
from penstock_policies.rounds.roster import Roster

FINISHED = 256
"""Jobs of a pool that finished last, whose run times tell those of the others."""

Estimate = tuple[float | None, str]
"""In how many seconds, None where nothing tells; and what that rests on."""


def expected_start(state: State, pool: Pool, job_id: str, now_s: float) -> Estimate:
    """
    Return when a job of the pool that has to wait for devices is expected to have them.

    Run times are taken as they were, on whatever kind; those that are declared, and the job's own, are divided by the
    measured speed of the kind. Jobs behind it in the order are left out, and so is preemption.
    """
    if job_id in pool.roster.sharing.tenants:
        return None, "no estimate: it shares devices, and nobody knows when there is room for it"
    before, spec = _ahead(pool, job_id), pool.roster.entries[job_id].ranked.job.spec
    finished = _finished(state, spec.pool)
    measured_s = [job.executed_s for job in finished]
    held = pool.roster.runs()
    runs = [run.ranked.job for run in held]
    left_s = _left_s([*runs, *before], measured_s, now_s)
    ready_s = _ready_s(state, pool.roster, held, left_s[: len(runs)])
    waiting = [*before, pool.roster.entries[job_id].ranked.job]
    queue = [_need(state, job, pool, left) for job, left in zip(waiting, [*left_s[len(runs) :], 0.0], strict=True)]
    start_s = start_in_s(ready_s, queue, in_order=not pool.manner.backfills)
    silent = sum(math.isinf(left) for left in left_s)
    if math.isinf(start_s):
        declares = "declares" if silent == 1 else "declare"
        why = f"{count(silent, 'job')} before it {declares} no duration, and none of pool `{spec.pool}` has finished"
        return None, f"no estimate: {why}" if silent else ""
    if start_s <= 0:  # it could start as far as this goes, but the round says that it has to wait
        return None, ""
    own = pool.roster.entries[job_id].key[0]
    demoted = sum(run.ranked.queue > own for run in held)
    return start_s, "; ".join(_basis([*runs, *before], len(finished), demoted))


def _ahead(pool: Pool, job_id: str) -> list[Job]:
    """Return the waiting jobs of a pool that come before one of them, those left out that are held or never fit."""
    own, roster = pool.roster.entries[job_id].key, pool.roster
    before = takewhile(lambda key: key < own, roster.waiting)
    jobs = (ranked.job for ranked in roster.ranked(before) if ranked.job_id not in roster.sharing.tenants)
    return [
        job for job in jobs if not job.held and max(roster.whole.kinds(job.spec).values(), default=0) >= job.spec.gpus
    ]


def _finished(state: State, pool: str) -> list[Job]:
    done = (job for job in state.jobs if job.state is lifecycle.State.COMPLETED and job.sample is None)
    return heapq.nlargest(FINISHED, (job for job in done if job.spec.pool == pool), key=lambda job: job.finished_s)


def _left_s(jobs: Sequence[Job], measured_s: Sequence[float], now_s: float) -> list[float]:
    had_s = [job.executed_by(now_s) for job in jobs]
    expected = estimates.remaining_s(np.array(had_s, dtype=np.float64), measured_s, math.inf)
    return [
        0.0  # a matter of seconds
        if job.sample is not None or job.stopping
        else estimates.declared_s(job.spec.duration_s, had)
        if job.spec.duration_s
        else float(left)
        for job, had, left in zip(jobs, had_s, expected, strict=True)
    ]


def _ready_s(
    state: State, roster: Roster, running: Sequence[Running], left_s: Sequence[float]
) -> dict[str, list[float]]:
    ready: defaultdict[str, list[float]] = defaultdict(list)
    for _, device in roster.free:
        ready[device.kind].append(0.0)
    shared: dict[tuple[str, int], tuple[str, float]] = {}
    for run, left in zip(running, left_s, strict=True):
        in_s = left / _scale(state, run.ranked.job.spec, run.kind) / run.ranked.job.share
        for node_id, device in run.devices:
            if run.ranked.job_id in roster.sharing.tenants:  # free when the last is gone, if nobody joins
                last_s = max(in_s, shared.get((node_id, device.index), ("", 0.0))[1])
                shared[node_id, device.index] = device.kind, last_s
            else:
                ready[device.kind].append(in_s)
    for kind, in_s in shared.values():
        ready[kind].append(in_s)
    return ready


def _need(state: State, job: Job, pool: Pool, left_s: float) -> Need:
    """Return what a waiting job asks for: of the kind that is kept for it, if one is."""
    spec, kept = job.spec, pool.staying.get(job.id)
    kinds = [kept] if kept else pool.roster.whole.kinds(spec)
    return Need(spec.gpus, {kind: left_s / _scale(state, spec, kind) for kind in kinds})


def _scale(state: State, spec: JobSpec, kind: str) -> float:
    """Return by what a declared run time is to be divided."""
    return (speed_of(state, spec, kind) or 1.0) if spec.duration_s else 1.0


def speed_of(state: State, spec: JobSpec, kind: str) -> float:
    """Return the measured speed of a job on a kind relative to its fastest; 0 where it was not measured."""
    profile = state.profiles.get(workload.key(spec))
    speeds = {speed.kind: speed.speed for speed in profile.speeds} if profile is not None else {}
    return speeds.get(kind, 0.0)


def _basis(jobs: Sequence[Job], finished: int, demoted: int) -> Iterator[str]:
    declared = sum(job.spec.duration_s > 0 for job in jobs)
    silent = sum(not job.spec.duration_s and job.sample is None for job in jobs)
    if declared:
        yield f"{count(declared, 'job')} by declared duration"
    if silent and finished:
        yield f"{count(silent, 'job')} by the run times of the last {count(finished, 'job')} that finished"
    elif silent:
        yield f"{count(silent, 'job')} of unknown duration not in its way"
    if demoted:
        yield f"sooner if it preempts one of {count(demoted, 'run')} of a later queue"
