"""What keeping jobs in order costs: 100,000 from scratch, and one event against a rescan: ``bench_rank.py``."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from penstock_bus.decider import Fold
from penstock_log import AnyEvent, JobSpec, JobSubmitted, Placement, RoundDecided, RunStarted, Slot
from penstock_policies import gittins
from penstock_policies.queue_policies import QUEUE_POLICIES, JobFigures, LengthKnowledge
from penstock_policies.ranking import PoolRanking, QueueLadder
from penstock_ranker import machine
from penstock_ranker.machine import RankerSettings
from penstock_testing import delivery

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import order_oracle

JOBS = 100_000
RUNNING = 2_000
EVENTS = 2_000
REPEATS = 9
LIMITS = (3_600.0, 36_000.0, 360_000.0)


def pool(rng: np.random.Generator) -> JobFigures:
    """Return 100,000 jobs; nine in ten have run."""
    executed_s = rng.lognormal(7.0, 2.0, JOBS) * (rng.random(JOBS) < 0.9)
    gpus = 2.0 ** rng.integers(0, 4, JOBS)
    return order_oracle.columns(
        gpus, np.sort(rng.random(JOBS)) * 1e6, executed_s, length_s=executed_s + rng.random(JOBS)
    )


def filled(name: str, jobs: JobFigures, learnt: LengthKnowledge) -> PoolRanking:
    """Return the structure with the same jobs in it, of which 2,000 run."""
    ranking = PoolRanking(QueueLadder(QUEUE_POLICIES[name], LIMITS, 4.0), learnt)
    figures = zip(jobs.gpus.tolist(), jobs.submitted_s.tolist(), jobs.executed_s.tolist(), strict=True)
    for number, (gpus, submitted_s, executed_s) in enumerate(figures):
        job_id = f"j{number}"
        ranking.add(job_id, gpus=int(gpus), submitted_s=submitted_s)
        ranking.note(job_id, "waiting", 1e6, executed_s=executed_s, waited_s=0.0)
    ranking.settle(1e6)
    for number in range(0, JOBS, JOBS // RUNNING):
        ranking.start(f"j{number}", 1e6)
    return ranking


def events(ranking: PoolRanking, rng: np.random.Generator) -> list[float]:
    """Let jobs come, start, stop, cross, and end; return the CPU time of each event with what it makes due, in µs."""
    times, now_s = [], 1e6
    running = [f"j{number}" for number in range(0, JOBS, JOBS // RUNNING)]
    for number in range(EVENTS):
        now_s += 0.1
        picked, waiting = running[int(rng.integers(len(running)))], f"j{7 + 50 * int(rng.integers(RUNNING - 1))}"
        before = time.process_time_ns()
        match number % 4:
            case 0:
                ranking.add(f"n{number}", gpus=1, submitted_s=now_s)
            case 1:
                ranking.stop(picked, now_s)
            case 2:
                ranking.start(waiting, now_s)
            case _:
                ranking.start(picked, now_s)
        ranking.settle(now_s)
        ranking.next_s(now_s)
        times.append((time.process_time_ns() - before) / 1e3)
    return times


def median_ms(work: Callable[[], object]) -> float:
    """Return the median of the CPU time of a call."""
    times = []
    for _ in range(REPEATS):
        before = time.process_time_ns()
        work()
        times.append((time.process_time_ns() - before) / 1e6)
    return statistics.median(times)


def main() -> None:
    """Print the orders from scratch, the index alone, and single events."""
    rng = np.random.default_rng(1)
    jobs, samples = pool(rng), rng.lognormal(8.0, 2.0, 1024)
    learnt = LengthKnowledge(LIMITS, samples)
    plain_ms = median_ms(lambda: sorted(zip(jobs.submitted_s.tolist(), range(JOBS), strict=True)))
    print(f"{JOBS} jobs from scratch; ratio to sorting as many pairs, {plain_ms:.1f} ms")
    for name, order in QUEUE_POLICIES.items():
        took_ms = median_ms(lambda order=order: order_oracle.rank(order, jobs, LIMITS, learnt))  # type: ignore[misc]
        print(f"  {name}: {took_ms:.1f} ms; ratio {took_ms / plain_ms:.2f}")
    attained = jobs.gpus * jobs.executed_s
    took_ms = median_ms(lambda: gittins.index(samples, attained, None))
    print(f"  the index over all quanta, {samples.size} samples: {took_ms:.1f} ms; ratio {took_ms / plain_ms:.2f}")
    for name in ("2d-las", "2d-gittins"):
        report_events(name, jobs, learnt)  # type: ignore[arg-type]
        report_service(name)  # type: ignore[arg-type]


def report_service(name: str) -> None:
    """Print what one fact costs the ranker itself: folding it in, and deciding."""
    fold = Fold(machine.decider(RankerSettings(order=name, thresholds_gpu_s=LIMITS)))
    spec = JobSpec(name="a", command=("true",), duration_s=60.0)
    for number in range(JOBS):
        tell(fold, JobSubmitted(job_id=f"j{number}", at_s=1.0 + number / 1e3, spec=spec))
    while proposals := fold.decider.decide(fold.state, 200.0).proposals:
        tell(fold, *proposals[0].facts)
    times = []
    for number in range(EVENTS):
        slot = Slot(node_id=f"n{number}", devices=(0,))
        placement = Placement(job_id=f"j{number}", epoch=1, kind="fast", slots=(slot,))
        now_s = 200.0 + number / 10
        for fact in (
            RoundDecided(pool="default", at_s=now_s, placements=(placement,)),
            RunStarted(job_id=f"j{number}", epoch=1, node_id=f"n{number}", devices=(0,), at_s=now_s),
        ):
            stored = delivery(fold.last_seq + 1, fact)
            before = time.process_time_ns()
            fold.apply(stored)
            fold.decider.decide(fold.state, now_s)
            times.append((time.process_time_ns() - before) / 1e3)
    print(f"  the service, folding a fact in and deciding: {statistics.median(times):.1f} µs")


def tell(fold: Fold[machine.RankerState], *facts: AnyEvent) -> None:
    """Fold facts in."""
    fold.apply(delivery(fold.last_seq + 1, *facts))


def report_events(name: str, jobs: JobFigures, learnt: LengthKnowledge) -> None:
    """Print what one event costs beside a rescan of all jobs."""
    before = time.process_time()
    ranking = filled(name, jobs, learnt)
    built_s = time.process_time() - before
    times = events(ranking, np.random.default_rng(2))
    scan_us = 1e3 * median_ms(lambda: order_oracle.rank(QUEUE_POLICIES[name], jobs, LIMITS, learnt))
    one_us = statistics.median(times)
    print(f"{name}, {JOBS} jobs, {RUNNING} of them running; building the structure {built_s:.2f} s")
    print(f"  one event: {one_us:.1f} µs, 99 of 100 below {sorted(times)[int(0.99 * len(times))]:.0f} µs", end="; ")
    print(f"a rescan {scan_us:.0f} µs; ratio {one_us / scan_us:.5f}")


if __name__ == "__main__":
    main()
