"""Sizes of elastic jobs: the programme, against a plain triple loop, and whole decisions: ``bench_elastic.py``."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from penstock_policies.elastic import Floats, allocate
from penstock_scheduler.sizing import kind_search
from penstock_scheduler.sizing.decision import decide
from penstock_scheduler.sizing.kind_search import table_of as tables
from penstock_scheduler.sizing.problem import SizeRequest, SizingRules

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
# Beside the tests, which try every choice of kinds too.
from sizing_cases import best_kinds, score, some_curves, some_requests, table_of

REPEATS = 5


def curves(jobs: int, widest: int) -> Floats:
    """Return scaling that goes with a power of the devices, 0.3 to 1, and some noise."""
    rng = np.random.default_rng(jobs)
    found = np.arange(1.0, widest + 1) ** rng.uniform(0.3, 1.0, (jobs, 1)) * rng.lognormal(0, 0.03, (jobs, widest))
    return np.asarray(found / found[:, :1], dtype=np.float64)


def median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median of the CPU time of a call."""
    times = []
    for _ in range(repeats):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return 1e3 * statistics.median(times)


def triple_loop(scaling: list[list[float]], gpus: int) -> float:
    """Return the best sum by the recurrence as it is written down."""
    best = [0.0] * (gpus + 1)
    for row in scaling:
        best = [
            max((best[k - g] + row[g - 1] for g in range(1, min(k, len(row)) + 1)), default=-np.inf)
            for k in range(gpus + 1)
        ]
    return best[gpus]


def main() -> None:
    """Print what the programme takes, what decisions do, and how good the choice of kinds is."""
    programme()
    for jobs, gpus in ((200, 1000), (1000, 4000)):
        decisions(jobs, gpus)
    several_kinds()
    gaps()


def programme() -> None:
    """Print times of two sizes, and the ratio to the plain loop on a slice of the first."""
    for jobs, gpus, most_ms in ((200, 1000, 100), (500, 4000, 500)):
        took_ms = median_ms(lambda jobs=jobs, gpus=gpus: allocate(curves(jobs, 64), gpus))  # type: ignore[misc]
        print(f"{jobs} jobs up to 64 wide on {gpus} devices: {took_ms:.0f} ms, at most {most_ms}")
    rows = curves(200, 64)[:10]
    plain_ms = median_ms(lambda: triple_loop(rows.tolist(), 1000), 1)
    ours_ms = median_ms(lambda: allocate(rows, 1000))
    total = sum(row[width - 1] for row, width in zip(rows, allocate(rows, 1000), strict=True))
    same = abs(total - triple_loop(rows.tolist(), 1000)) < 1e-6
    print(f"  10 of these jobs: {ours_ms:.2f} ms, a plain triple loop {plain_ms:.0f} ms, ratio", end=" ")
    print(f"{plain_ms / ours_ms:.0f}, equal: {same}")


def decisions(jobs: int, gpus: int) -> None:
    """Print whole decisions of one kind: with nothing known, with profiles seen before, and once all is as decided."""
    order = some_requests(1, jobs)
    first_ms = median_ms(lambda: (tables.cache_clear(), decide(order, {"x": gpus}, SizingRules())), 3)
    known_ms = median_ms(lambda: decide(order, {"x": gpus}, SizingRules()), 3)
    after, again = settled(order, {"x": gpus})
    changed = sum(each.changed for each in decide(after, {"x": gpus}, SizingRules()).jobs.values())
    print(f"decide {jobs} jobs of 100 workloads on {gpus} devices: {first_ms:.0f} ms at first,", end=" ")
    print(f"{known_ms:.0f} ms then, {again:.0f} ms once decided, {changed} changed by that")


def settled(order: list[SizeRequest], devices: dict[str, int]) -> tuple[list[SizeRequest], float]:
    """Return jobs as they are once they have what is decided, and what deciding again takes, milliseconds."""
    found = decide(order, devices, SizingRules())
    after = []
    for request in order:
        each = found.jobs[request.job_id]
        after.append(msgspec.structs.replace(request, now=each.size if each.gpus else None, kind=each.kind))
    return after, median_ms(lambda: decide(after, devices, SizingRules()), 3)


def several_kinds() -> None:
    """Print whole decisions of three kinds."""
    for jobs, gpus in ((50, 64), (200, 300), (1000, 1300)):
        devices = dict.fromkeys("xyz", gpus)
        order = some_requests(2, jobs, kinds="xyz")
        decide(order, devices, SizingRules())
        took_ms = median_ms(lambda order=order, devices=devices: decide(order, devices, SizingRules()), 1)  # type: ignore[misc]
        print(
            f"decide {jobs} jobs on three kinds of {gpus}: {took_ms:.0f} ms, {settled(order, devices)[1]:.0f} ms again"
        )


def gaps() -> None:
    """Print how far chosen kinds are below the best of all choices."""
    cases: tuple[tuple[int, dict[str, int]], ...] = (
        (6, {"x": 8, "y": 4}),
        (9, {"x": 8, "y": 8}),
        (6, {"x": 4, "y": 4, "z": 3}),
    )
    for jobs, capacity in cases:
        found = []
        names = [f"j{at}" for at in range(jobs)]
        for seed in range(100):
            case = some_curves(seed, jobs, len(capacity), 8)
            best, _, first = best_kinds(case, capacity)
            if first:
                chosen = kind_search.chosen(names, table_of(case), dict(zip(names, first, strict=True)), capacity)
                found.append(100 * (1 - score(case, [chosen[name] for name in names], capacity) / best))
        print(
            f"{len(found)} times {jobs} jobs on {list(capacity.values())}: below the best choice of kinds by", end=" "
        )
        print(
            f"{np.mean(found):.2f} % in the mean, p95 {np.percentile(found, 95):.2f} %, most {max(found):.2f} %;",
            end=" ",
        )
        print(f"{np.mean(np.array(found) < 1e-6):.0%} are optimal")


if __name__ == "__main__":
    main()
