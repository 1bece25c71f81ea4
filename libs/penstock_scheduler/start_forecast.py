"""
Forecast of when a waiting job starts.

:func:`expected_start` lets the jobs before it take devices as these become free. It knows run times that are declared
or were measured in the job's pool; :func:`start_in_s` schedules them.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np

from penstock_log import Job, JobState
from penstock_log.text import count
from penstock_policies import job_lengths
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.priority_classes import reaches
from penstock_scheduler.round_types import PreemptibleRun

FINISHED: Final = 256
"""Jobs of a pool that finished last, whose run times tell those of the others."""

Estimate = tuple[float | None, str]
"""In how many seconds, None where nothing tells; and what that rests on."""


def expected_start(pool: PoolView, job_id: str, jobs: Iterable[Job], now_s: float) -> Estimate:
    """
    Return when a job of the pool that waits for devices is expected to have them.

    Parameters
    ----------
    jobs : iterable of Job
        All jobs that are known, those that are over among them: :data:`FINISHED` of the pool tell of run times.

    Notes
    -----
    Measured run times count as they are, on whatever kind. Declared ones, and the job's own, are divided by the
    measured speed of the kind. The estimate leaves out jobs behind this one in the order, and preemption.
    """
    if job_id in pool.index.sharing.demands:
        return None, "no estimate: it shares devices, and nobody knows when there is room for it"
    before, own = _ahead(pool, job_id), pool.index.entries[job_id]
    finished = _finished(jobs, pool.name)
    measured_s = [job.executed_s for job in finished]
    held = pool.index.runs()
    runs = [run.ranked.job for run in held]
    left_s = _left_s([*runs, *before], measured_s, now_s)
    ready_s = _ready_s(pool, held, left_s[: len(runs)])
    waiting = [*before, own.ranked.job]
    queue = [_need(job, pool, left) for job, left in zip(waiting, [*left_s[len(runs) :], 0.0], strict=True)]
    start_s = start_in_s(ready_s, queue, in_order=not pool.mode.backfills)
    silent = sum(math.isinf(left) for left in left_s)
    if math.isinf(start_s):
        declares = "declares" if silent == 1 else "declare"
        why = f"{count(silent, 'job')} before it {declares} no duration, and none of pool `{pool.name}` has finished"
        return None, f"no estimate: {why}" if silent else ""
    if start_s <= 0:  # it could start as far as this goes, but the round says that it has to wait
        return None, ""
    classes = pool.index.classes
    demoted = sum(run.ranked.queue > own.key[0] and reaches(own.ranked, run.ranked.queue, classes) for run in held)
    return start_s, "; ".join(_basis([*runs, *before], len(finished), demoted))


def _ahead(pool: PoolView, job_id: str) -> list[Job]:
    """Return the waiting jobs of a pool that come before a job, without those that may not start or never fit."""
    own, index = pool.index.entries[job_id].key, pool.index
    before = takewhile(lambda key: key < own, index.waiting)
    jobs = (ranked.job for ranked in index.ranked(before) if ranked.job_id not in index.sharing.demands)
    return [
        job for job in jobs if job.startable and max(index.whole.kinds(job.spec).values(), default=0) >= job.spec.gpus
    ]


def _finished(jobs: Iterable[Job], pool: str) -> list[Job]:
    done = (job for job in jobs if job.state is JobState.COMPLETED and job.sample is None)
    return heapq.nlargest(FINISHED, (job for job in done if job.spec.pool == pool), key=lambda job: job.finished_s)


def _left_s(jobs: Sequence[Job], measured_s: Sequence[float], now_s: float) -> list[float]:
    had_s = [job.executed_by(now_s) for job in jobs]
    expected = job_lengths.remaining_s(np.array(had_s, dtype=np.float64), measured_s, math.inf)
    return [
        0.0  # a matter of seconds
        if job.sample is not None or job.stopping
        else job_lengths.declared_s(job.spec.duration_s, had)
        if job.spec.duration_s
        else float(left)
        for job, had, left in zip(jobs, had_s, expected, strict=True)
    ]


def _ready_s(pool: PoolView, running: Sequence[PreemptibleRun], left_s: Sequence[float]) -> dict[str, list[float]]:
    index = pool.index
    ready: defaultdict[str, list[float]] = defaultdict(list)
    for _, device in index.free:
        ready[device.kind].append(0.0)
    shared: dict[tuple[str, int], tuple[str, float]] = {}
    for run, left in zip(running, left_s, strict=True):
        in_s = left / _scale(pool, run.ranked.job, run.kind) / run.ranked.job.share
        for node_id, device in run.devices:
            if run.ranked.job_id in index.sharing.demands:  # free when the last is gone, if nobody joins
                last_s = max(in_s, shared.get((node_id, device.index), ("", 0.0))[1])
                shared[node_id, device.index] = device.kind, last_s
            else:
                ready[device.kind].append(in_s)
    for kind, in_s in shared.values():
        ready[kind].append(in_s)
    return ready


def _need(job: Job, pool: PoolView, left_s: float) -> QueuedNeed:
    """Return what a waiting job asks for; if devices are reserved for it, of their kind."""
    spec, kept = job.spec, pool.reservations.get(job.id)
    kinds = [kept] if kept else pool.index.whole.kinds(spec)
    return QueuedNeed(spec.gpus, {kind: left_s / _scale(pool, job, kind) for kind in kinds})


def _scale(pool: PoolView, job: Job, kind: str) -> float:
    """Return the speed by which a declared run time is divided: on a kind, relative to the job's fastest."""
    return (pool.speeds.by_key.get(pool.keys[job.id], {}).get(kind) or 1.0) if job.spec.duration_s else 1.0


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


class QueuedNeed(NamedTuple):
    """
    The devices and the run time of one waiting job.

    Attributes
    ----------
    gpus : int
        Devices that the job needs at once, all of one kind.
    run_s : mapping of str to float
        Kind that the job may run on → expected run time there, seconds; infinite where it is unknown.
    """

    gpus: int
    run_s: Mapping[str, float]


def start_in_s(ready_s: Mapping[str, Iterable[float]], queue: Sequence[QueuedNeed], *, in_order: bool = False) -> float:
    """
    Return in how many seconds the last job of a queue is expected to start.

    Parameters
    ----------
    ready_s : mapping of str to iterable of float
        Kind → in how many seconds each device is free: 0 for an idle device, infinite where it is unknown.
    queue : sequence of QueuedNeed
        The waiting jobs in order; not empty.
    in_order : bool
        Whether jobs start strictly in order.

    Returns
    -------
    float, seconds; infinite where no kind will ever have enough devices, as far as is known

    Notes
    -----
    List scheduling: each job in its turn takes the devices with which it ends first, or starts first where its run time
    is not known. O(J (T + m)) at worst, with T kinds and m devices. Preemption, which it leaves out, would only shorten
    the wait.

    Examples
    --------
    >>> ahead, own = QueuedNeed(1, {"fast": 10.0}), QueuedNeed(2, {"fast": 5.0, "slow": 8.0})
    >>> start_in_s({"fast": [0.0, 3.0], "slow": [1.0]}, [ahead, own])
    10.0
    """
    ready = {kind: sorted(times) for kind, times in ready_s.items()}
    start_s = last_s = 0.0
    for need in queue:
        starts = {kind: ready[kind][need.gpus - 1] for kind in need.run_s if len(ready.get(kind, ())) >= need.gpus}
        if not starts:
            start_s = math.inf
            continue
        kind = min(starts, key=lambda kind: (starts[kind] + need.run_s[kind], starts[kind], kind))
        start_s = last_s = max(starts[kind], last_s if in_order else 0.0)
        del ready[kind][: need.gpus]
        for _ in range(need.gpus):
            insort(ready[kind], start_s + need.run_s[kind])
    return start_s
