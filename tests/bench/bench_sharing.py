"""
How long rounds take where jobs share devices: ``bench_sharing.py``. Medians and tails of CPU time.

2,000 devices of four kinds in 250 nodes, and jobs that take turns, of 100 users in 20 teams, some thousands of them at
a time. They come and end, are ranked, and make way for each other. Against it, the same jobs with a device each.
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
from bench_round import KINDS, Bench, fill, waiting

from penstock_log import JobSpec, JobSubmitted, MemoryNeed
from penstock_policies import matching
from penstock_scheduler.pool.pool_settings import MatcherSettings

GIB = 2**30


def submit(bench: Bench, sharing: Literal["exclusive", "lane"]) -> None:
    """Let a job come."""
    bench.jobs += 1
    user = int(bench.rng.integers(100))
    persistent, ephemeral = (int(size * GIB) for size in bench.rng.uniform((0.2, 0.5), (4.0, 6.0)))
    spec = JobSpec(
        name="train",
        command=("train", str(bench.rng.integers(26))),
        profile="off",
        user=f"u{user}",
        team=f"t{user % 20}",
        sharing=sharing,
        memory=MemoryNeed(persistent, 0, ephemeral) if sharing == "lane" else None,
    )
    bench.tell(JobSubmitted(job_id=f"j{bench.jobs:06}", at_s=bench.now_s, spec=spec))
    bench.rank([f"j{bench.jobs:06}"], 0)


def measure(jobs: int, sharing: Literal["exclusive", "lane"]) -> None:
    """Measure rounds of a pool in which three jobs come and three end between rounds."""
    bench = Bench(MatcherSettings())
    bench.join(250, list(KINDS))
    bench.profile()
    for _ in range(jobs):
        submit(bench, sharing)
    before = time.process_time()
    fill(bench)
    took_s = time.process_time() - before
    print(f"{sharing}: {len(bench.running()):,} jobs run, {waiting(bench):,} wait; filling took {1e3 * took_s:.0f} ms")
    for number in range(60):
        bench.now_s += float(bench.rng.exponential(20.0))
        running = np.array(bench.running())
        for job_id in bench.rng.choice(running, size=3, replace=False):
            bench.end(str(job_id))
            submit(bench, sharing)
        if number % 4 == 0:
            bench.rank(map(str, bench.rng.choice(np.array(bench.running()), size=20, replace=False)), 1 + number % 2)
        bench.decide()
    print(f"  {bench.started} jobs started in them, {bench.preempted} were preempted", end="; ")
    bench.report("rounds")


def main() -> None:
    """Print rounds with much room, with some, and with none: a device each, there is none for most in any case."""
    matching.warm()
    for jobs in (1_500, 8_000, 12_000):
        measure(jobs, "exclusive")
        measure(jobs, "lane")


if __name__ == "__main__":
    main()
