"""The exact matching on levels, against scipy on the trimmed expanded matrix: ``bench_matching.py``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from penstock_policies.levels.state import Ints
from penstock_policies.levels.warming import compile_kernels
from penstock_policies.matching import KeptMatching, assign, assign_lsa

REPEATS = 7


def instance(jobs: int, machines: list[int], busy: float) -> tuple[Ints, list[Ints]]:
    """Return jobs of 10 minutes by a lognormal, kinds of one to four times the speed by another, and busy machines."""
    rng = np.random.default_rng(jobs)
    length = rng.lognormal(np.log(600e6), 1.5, (jobs, 1))
    speed = np.linspace(1, 4, len(machines)) * rng.lognormal(0, 0.5, (jobs, len(machines)))
    ready = [rng.exponential(1800e6, m) * (rng.random(m) < busy) for m in machines]
    return np.maximum(1, length / speed).astype(np.int64), [r.astype(np.int64) for r in ready]


def median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median of the CPU time of a call."""
    times = []
    for _ in range(repeats):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Print solves of three sizes, changes of a kept solution, and the share of scipy's time."""
    before = time.process_time()
    compile_kernels()
    print(f"kernels loaded or compiled in {time.process_time() - before:.2f} s")
    first = instance(1024, [36] * 3, 0.0)
    before = time.process_time()
    assign(*first)
    print(f"first call after that: {1e3 * (time.process_time() - before):.1f} ms")
    for jobs, machines, busy in ((1024, [36] * 3, 0.0), (10_000, [250] * 4, 0.9), (50_000, [250] * 4, 0.9)):
        p, ready = instance(jobs, machines, busy)
        took_ms, gap_us = median_ms(lambda p=p, ready=ready: assign(p, ready)), assign(p, ready).gap_us  # type: ignore[misc]
        print(f"{jobs} jobs on {machines} machines, {busy:.0%} busy: {took_ms:.1f} ms, gap {gap_us}")
    changes(*instance(10_000, [250] * 4, 0.9))
    against_scipy(*first)


def changes(p: Ints, ready: list[Ints]) -> None:
    """Print what arrivals, completions and machines cost on a kept solution, and that it stays optimal."""
    kept = KeptMatching(p, ready)
    rows = iter(instance(500, [250] * 4, 0.0)[0])
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


if __name__ == "__main__":
    main()
