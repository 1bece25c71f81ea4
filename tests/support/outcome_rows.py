"""A fake simulator for tests of reports: list scheduling without preemption, in any order of the waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from penstock_simulator.outcome import ClusterTimeline, DeviceSpells, Outcome
from penstock_simulator.trace import Trace

Job = tuple[float, int, float]
"""Submission, devices, duration."""


def trace_of(jobs: Sequence[Job], name: str = "tiny.csv", **more: object) -> Trace:
    submit_s, num_gpus, duration_s = zip(*jobs, strict=True)
    return Trace(
        name=name,
        job_ids=tuple(f"j{at}" for at in range(len(jobs))),
        submit_s=np.array(submit_s, dtype=np.float64),
        num_gpus=np.array(num_gpus, dtype=np.int64),
        duration_s=np.array(duration_s, dtype=np.float64),
        **more,  # type: ignore[arg-type] # any field of a trace
    )


def random_trace(count: int, seed: int, most_gpus: int = 8) -> Trace:
    rng = np.random.default_rng(seed)
    submit_s = np.cumsum(rng.exponential(200.0, count)).round()
    gpus = np.minimum(2 ** rng.geometric(0.55, count) // 2, most_gpus)
    duration_s = np.maximum(rng.lognormal(6.5, 1.9, count), 1.0).round()
    jobs = list(zip(submit_s.tolist(), gpus.tolist(), duration_s.tolist(), strict=True))
    return trace_of(jobs, dropped={"without an end time": 7, "of zero GPUs": 2})


def outcome_of(
    trace: Trace, gpus: int, policy: str = "fifo", key: Callable[[int], float] = float, until_s: float = np.inf
) -> Outcome:
    """Start waiting jobs by rising ``key`` of their row; what would end after ``until_s`` never does."""
    held_by = np.full(gpus, -1)
    running: dict[int, float] = {}
    waiting: list[int] = []
    start_s, end_s = np.full(len(trace), np.nan), np.full(len(trace), np.nan)
    spells: list[tuple[int, int, float, float]] = []
    steps: list[tuple[float, int, int]] = []
    times = sorted(set(trace.submit_s.tolist()))
    arrived = 0
    while times and (now_s := times.pop(0)) <= until_s:
        for job in [job for job, at_s in running.items() if at_s <= now_s]:
            end_s[job] = running.pop(job)
            spells += [(job, int(at), start_s[job], now_s) for at in np.flatnonzero(held_by == job)]
            held_by[held_by == job] = -1
        while arrived < len(trace) and trace.submit_s[arrived] <= now_s:
            waiting.append(arrived)
            arrived += 1
        for job in sorted(waiting, key=key):
            free = np.flatnonzero(held_by < 0)[: trace.num_gpus[job]]
            if free.size == trace.num_gpus[job]:
                held_by[free], start_s[job] = job, now_s
                running[job] = now_s + float(trace.duration_s[job])
                waiting.remove(job)
                times = sorted({*times, running[job]})
        steps.append((now_s, int((held_by >= 0).sum()), len(waiting)))
    columns = [np.array(column) for column in zip(*steps, strict=True)]
    by_start = [np.array(column) for column in zip(*sorted(spells, key=lambda s: (s[2], s[1])), strict=True)]
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=gpus,
        start_s=start_s,
        end_s=end_s,
        executed_s=np.where(np.isfinite(end_s), trace.duration_s, 0.0),
        preemptions=np.zeros(len(trace), dtype=np.int64),
        promotions=np.zeros(len(trace), dtype=np.int64),
        events=len(steps),
        wall_s=0.25,
        timeline=ClusterTimeline(at_s=columns[0], busy_gpus=columns[1], waiting_jobs=columns[2]),
        spells=DeviceSpells(*by_start) if by_start else None,
    )
