"""The exact matching on levels, against scipy on the trimmed expanded matrix: ``bench_matching.py``."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from penstock_policies.matching import warm
from penstock_policies.matching.flow import Ints
from penstock_policies.matching.solver import KeptMatching, assign

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
# Beside the tests, which try every schedule too.
from gang_cases import gang_instance, least_total
from gang_rounds import total_of_rounds
from matching_oracle import assign_lsa

REPEATS = 7
LARGE = [250] * 4

FIRST_ROUND = """
import time
began = time.process_time()
from penstock_policies.matching import assign, warm
imported = time.process_time()
warm()
warmed = time.process_time()
import numpy as np
p = np.random.default_rng(0).integers(1, 10**9, (1024, 3))
times = []
for _ in range(2):
    before = time.process_time()
    assert assign(p, [np.zeros(36, np.int64)] * 3).gap_us == 0
    times.append(1e3 * (time.process_time() - before))
print(f"import {imported - began:.2f} s, warm {warmed - imported:.2f} s,", end=" ")
print(f"first {times[0]:.1f} ms, second {times[1]:.1f} ms")
"""


def instance(jobs: int, machines: list[int], busy: float) -> tuple[Ints, list[Ints]]:
    """Return jobs of 10 minutes by a lognormal, kinds of one to four times the speed by another, and busy machines."""
    rng = np.random.default_rng(jobs)
    length = rng.lognormal(np.log(600e6), 1.5, (jobs, 1))
    speed = np.linspace(1, 4, len(machines)) * rng.lognormal(0, 0.5, (jobs, len(machines)))
    ready = [rng.exponential(1800e6, m) * (rng.random(m) < busy) for m in machines]
    return np.maximum(1, length / speed).astype(np.int64), [r.astype(np.int64) for r in ready]


def alike(workloads: int, lengths: int, jobs: int = 10_000) -> tuple[Ints, list[Ints]]:
    """Return jobs of a few workloads, each with its speeds, and a few lengths, on large busy kinds."""
    rng = np.random.default_rng(3)
    speed = np.linspace(1, 4, 4) * rng.lognormal(0, 0.5, (workloads, 4))
    length = rng.lognormal(np.log(600e6), 1.5, lengths)[rng.integers(0, lengths, jobs), None]
    ready = [(rng.exponential(1800e6, m) * (rng.random(m) < 0.9)).astype(np.int64) for m in LARGE]
    return np.maximum(1, length / speed[rng.integers(0, workloads, jobs)]).astype(np.int64), ready


def median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median of the CPU time of a call."""
    times = []
    for _ in range(repeats):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Print first rounds, solves of three sizes, of jobs alike, changes of a kept solution, scipy's time and gangs."""
    first_rounds()
    warm()
    for jobs, machines, busy in ((1024, [36] * 3, 0.0), (10_000, LARGE, 0.9), (50_000, LARGE, 0.9)):
        p, ready = instance(jobs, machines, busy)
        took_ms, gap_us = median_ms(lambda p=p, ready=ready: assign(p, ready)), assign(p, ready).gap_us  # type: ignore[misc]
        print(f"{jobs} jobs on {machines} machines, {busy:.0%} busy: {took_ms:.1f} ms, gap {gap_us}")
    for workloads, lengths in ((1, 1), (10, 1), (100, 1), (1000, 1), (10, 10), (1, 10_000), (10, 10_000)):
        p, ready = alike(workloads, lengths)
        took_ms, gap_us = median_ms(lambda p=p, ready=ready: assign(p, ready), 5), assign(p, ready).gap_us  # type: ignore[misc]
        print(f"10000 jobs of {workloads} workloads and {lengths} lengths: {took_ms:.1f} ms, gap {gap_us}")
    changes(*instance(10_000, LARGE, 0.9))
    against_scipy(*instance(1024, [36] * 3, 0.0))
    gangs()


def first_rounds() -> None:
    """Print what a new process needs for its first round: with the kernels kept, and with none."""
    with tempfile.TemporaryDirectory() as empty:
        for what, more in (("kept", {}), ("none kept", {"NUMBA_CACHE_DIR": empty})):
            done = subprocess.run(
                [sys.executable, "-c", FIRST_ROUND],
                env={**os.environ, **more},
                capture_output=True,
                text=True,
                check=True,
            )
            print(f"new process, kernels {what}: {done.stdout.strip()}")


def changes(p: Ints, ready: list[Ints]) -> None:
    """Print what arrivals, completions and machines cost on a kept solution, and that it stays optimal."""
    kept = KeptMatching(p, ready)
    rows = iter(instance(500, LARGE, 0.0)[0])
    jobs, times = iter(range(0, len(p), 7)), iter(range(10**9, 10**10, 10**7))
    added = median_ms(lambda: kept.add(next(rows)), 101)
    removed = median_ms(lambda: kept.remove(next(jobs)), 101)
    changed = median_ms(lambda: kept.set_ready(1, 7, next(times)), 101)
    print(f"kept 10000: arrival {added:.2f} ms, completion {removed:.2f} ms, a ready time {changed:.2f} ms")
    print(f"  gap after 303 changes: {kept.assignment().gap_us}; read off {median_ms(kept.assignment):.1f} ms")


def against_scipy(p: Ints, ready: list[Ints]) -> None:
    """Print the ratio to scipy on the matrix expanded to as many places as the optimum has."""
    found = assign(p, ready)
    depth = int(found.place.max()) + 1
    oracle_ms, level_ms = median_ms(lambda: assign_lsa(p, ready, depth), 1), median_ms(lambda: assign(p, ready))
    same = assign_lsa(p, ready, depth).total_us == found.total_us
    print(
        f"{len(p)} jobs, scipy on {depth} places: {oracle_ms:.0f} ms, ratio {oracle_ms / level_ms:.0f}, equal: {same}"
    )


def gangs(instances: int = 300) -> None:
    """Print how far the sums of completion times of gangs in rounds are above the least of all schedules."""
    ratios = []
    for seed in range(instances):
        p, gpus, ready = gang_instance(seed)
        ratios.append(total_of_rounds(p, gpus, ready, unit_s=60.0) / least_total(p, gpus, ready))
    mean, p95, most = 100 * (np.mean(ratios) - 1), 100 * (np.percentile(ratios, 95) - 1), 100 * (max(ratios) - 1)
    optimal = np.mean(np.array(ratios) < 1 + 1e-9)
    print(f"{instances} times 5 gangs on 2 kinds, above the best of all: mean {mean:.1f} %, p95 {p95:.1f} %,", end=" ")
    print(f"most {most:.1f} %; {optimal:.0%} are optimal")


if __name__ == "__main__":
    main()
