"""
How long rounds take: ``bench_round.py``. Medians and tails of CPU time, and of wall time.

The full one: 2,000 devices of four kinds in 250 nodes; 10,000 jobs of 1 to 16 devices, not over, of 1,000 users.
They come and end, are ranked, and make way for each other; each round is decided from the fold and comes true. Against
it, first-fit over all waiting jobs, which looks at each of them once. Then the small ones: one arrival or one end in a
pool with 1,000 runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock_bus.decider import Fold
from penstock_log import (
    AnyEvent,
    Device,
    JobRank,
    JobSpec,
    JobsRanked,
    JobState,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    Outcome,
    RoundDecided,
    RunEnded,
    RunStarted,
    WorkloadProfiled,
    workload,
)
from penstock_matcher import machine
from penstock_policies import matching
from penstock_scheduler.placement import FreeDevices
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import delivery

KINDS = {"a100": 1.0, "v100": 0.6, "p100": 0.35, "k80": 0.15}
SIZES, SHARES = (1, 2, 4, 8, 16), (0.7, 0.1, 0.1, 0.07, 0.03)
MODELS = 26


@dataclass
class Bench:
    """A matcher's fold, and the times of the rounds that it decided."""

    settings: MatcherSettings
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    now_s: float = 1.0
    jobs: int = 0
    times_s: list[float] = field(default_factory=list)
    walls_s: list[float] = field(default_factory=list)
    folds_s: list[float] = field(default_factory=list)
    started: int = 0
    preempted: int = 0

    def __post_init__(self) -> None:
        self.fold = Fold(machine.decider(self.settings))

    @property
    def state(self) -> machine.MatcherState:
        return self.fold.state

    def tell(self, *facts: AnyEvent) -> None:
        """Fold facts in."""
        for fact in facts:
            self.fold.apply(delivery(self.fold.last_seq + 1, fact))

    def join(self, nodes: int, kinds: Sequence[str], gpus: int = 8) -> None:
        """Let nodes join, each with devices of one kind."""
        for n in range(nodes):
            kind = kinds[n % len(kinds)]
            devices = tuple(Device(index=i, kind=kind, memory_bytes=2**34, backend="emulated") for i in range(gpus))
            self.tell(NodeJoined(node_id=f"n{n:03}", at_s=0.5, devices=devices))

    def profile(self) -> None:
        """Tell how fast each model is: the slower kinds cost some of them more than others."""
        for model in range(MODELS):
            bend = self.rng.uniform(0.4, 1.6)
            speeds = tuple(KindSpeed(kind=kind, iteration_s=1.0, speed=speed**bend) for kind, speed in KINDS.items())
            self.tell(WorkloadProfiled(key=workload.key(spec_of(model, 1, "", 0.0)), at_s=0.5, speeds=speeds))

    def submit(self, users: int, gpus: int | None = None) -> None:
        """Let a job come; half of them declare how long they are."""
        self.jobs += 1
        length_s = float(self.rng.lognormal(7.0, 1.5)) if self.rng.random() < 0.5 else 0.0
        gpus = int(self.rng.choice(SIZES, p=SHARES)) if gpus is None else gpus
        spec = spec_of(int(self.rng.integers(MODELS)), gpus, f"u{self.rng.integers(users)}", length_s)
        self.tell(JobSubmitted(job_id=f"j{self.jobs:06}", at_s=self.now_s, spec=spec))
        self.rank([f"j{self.jobs:06}"], 0)

    def rank(self, job_ids: Iterable[str], queue: int) -> None:
        """Put jobs into a queue."""
        ranks = tuple(JobRank(job_id=job_id, queue=queue, position=self.now_s) for job_id in job_ids)
        self.tell(JobsRanked(pool="default", at_s=self.now_s, ranks=ranks))

    def decide(self, measured: bool = True) -> RoundDecided | None:
        """Decide a round, and make it true: what it starts runs, what it preempts stops."""
        before, wall = time.process_time(), time.perf_counter()
        proposals = self.fold.decider.decide(self.state, self.now_s).proposals
        if measured:
            self.times_s.append(time.process_time() - before)
            self.walls_s.append(time.perf_counter() - wall)
        if not proposals:
            return None
        fact = proposals[0].facts[0]
        assert isinstance(fact, RoundDecided)
        before = time.process_time()
        self.tell(fact)
        if measured:
            self.folds_s.append(time.process_time() - before)
            self.started += len(fact.placements)
            self.preempted += len(fact.preemptions)
        for placement in fact.placements:
            for slot in placement.slots:
                self.tell(
                    RunStarted(
                        job_id=placement.job_id,
                        epoch=placement.epoch,
                        node_id=slot.node_id,
                        devices=slot.devices,
                        at_s=self.now_s,
                    )
                )
        for preemption in fact.preemptions:
            self.end(preemption.job_id, "preempted")
        return fact

    def end(self, job_id: str, outcome: Outcome = "completed") -> None:
        """Let a run end on all of its nodes."""
        job = self.state.jobs[job_id]
        for node_id in sorted(job.open_nodes):
            self.tell(
                RunEnded(
                    job_id=job_id,
                    epoch=job.epoch,
                    node_id=node_id,
                    outcome=outcome,
                    at_s=self.now_s,
                    loop_steps=9,
                    steps=9,
                    loop_s=1.0,
                )
            )

    def running(self) -> list[str]:
        """Return the jobs that run."""
        return [job.id for job in self.state.jobs if job.state is JobState.RUNNING]

    def report(self, what: str) -> None:
        """Print what the rounds took, and forget it."""
        half, most, worst = np.percentile(1e3 * np.array(self.times_s), [50, 99, 100])
        text = f"  {what}: {len(self.times_s)} rounds, p50 {half:.2f} ms, p99 {most:.2f} ms, worst {worst:.2f} ms"
        if self.walls_s:
            text += f" (wall: p99 {1e3 * np.percentile(self.walls_s, 99):.2f} ms)"
        print(text, flush=True)
        self.times_s.clear()
        self.walls_s.clear()


def spec_of(model: int, gpus: int, user: str, duration_s: float) -> JobSpec:
    """Return a job's specification."""
    return JobSpec(
        name="train", command=("train", str(model)), profile="off", gpus=gpus, user=user, duration_s=duration_s
    )


def full(rounds: int, settings: MatcherSettings, what: str) -> None:
    """Measure rounds of a pool in which there is much to do."""
    bench = Bench(settings)
    bench.join(250, list(KINDS))
    bench.profile()
    for _ in range(10_000):
        bench.submit(1_000)
    before = time.process_time()
    fill(bench)
    print(
        f"{what}: 2,000 devices, {len(bench.state.jobs):,} jobs, {len(bench.running()):,} of them run; "
        f"filling took {1e3 * (time.process_time() - before):.0f} ms"
    )
    for number in range(rounds):
        bench.now_s += float(bench.rng.exponential(20.0))
        running = bench.running()
        gone = bench.rng.choice(running, size=3, replace=False)
        for job_id in gone:
            bench.end(str(job_id))
        for _ in range(3):
            bench.submit(1_000)
        if number % 4 == 0:  # queues: some who have run enough make way
            bench.rank(
                (str(job_id) for job_id in bench.rng.choice(running, size=20) if job_id not in gone), 1 + number % 2
            )
        bench.decide()
    print(f"  {bench.started} jobs started in them, {bench.preempted} were preempted", end="; ")
    print(f"folding a round in: p99 {1e3 * np.percentile(bench.folds_s, 99):.2f} ms")
    bench.report("full round")
    for _ in range(15):
        before = time.process_time()
        first_fit(bench)
        bench.times_s.append(time.process_time() - before)
    bench.report("first-fit over all that wait")


def fill(bench: Bench) -> None:
    """Make rounds true until nothing more starts."""
    while (fact := bench.decide(measured=False)) is not None and fact.placements:
        pass


def waiting(bench: Bench) -> int:
    """Return how many jobs wait."""
    return len(bench.state.jobs) - len(bench.running())


def small(kinds: Sequence[str], settings: MatcherSettings, what: str) -> None:
    """Measure rounds in which one job has come or gone."""
    bench = Bench(settings)
    bench.join(250, kinds)
    bench.profile()
    for _ in range(400):
        bench.submit(50, gpus=1)
    fill(bench)
    print(f"{what}: 2,000 devices, {len(bench.running()):,} jobs run, {waiting(bench):,} wait")
    for _ in range(60):
        bench.now_s += 10.0
        bench.submit(50, gpus=1)
        bench.decide()
    bench.report("one arrival, a fastest device is idle")
    for _ in range(600):
        bench.submit(50, gpus=1)
    fill(bench)
    print(f"  now {len(bench.running()):,} jobs run, {waiting(bench):,} wait")
    for _ in range(200):
        bench.now_s += 10.0
        bench.submit(50)
        bench.decide()
    bench.report("one arrival, some devices are idle")
    for job_id in bench.running()[:200]:
        bench.now_s += 10.0
        bench.end(job_id)
        bench.decide()
    bench.report("one end, some devices are idle")
    for _ in range(4_000):
        bench.submit(50, gpus=1)
        if bench.jobs % 100 == 0:
            bench.decide(measured=False)
    fill(bench)
    print(f"  now all devices are busy, and {waiting(bench):,} jobs wait")
    for _ in range(100):
        bench.now_s += 10.0
        bench.submit(50)
        bench.decide()
    bench.report("one arrival, nothing is idle")
    for job_id in bench.running()[:200]:
        bench.now_s += 10.0
        bench.end(job_id)
        bench.decide()
    bench.report("one end, many wait")


def first_fit(bench: Bench) -> None:
    """Place the waiting jobs in the order of their submission, wherever they fit first."""
    free = FreeDevices(bench.state.cluster.free(bench.state.jobs))
    for job in sorted(bench.state.jobs, key=lambda job: job.submitted_s):
        kind = next((k for k, count in free.kinds(job.spec).items() if count >= job.spec.gpus), None)
        if kind is not None and job.placement is None:
            free.take(free.choose(job.spec, kind, job.spec.gpus))


def main() -> None:
    """Print rounds of a busy pool and of a quiet one."""
    before = time.process_time()
    matching.warm()
    print(f"kernels ready after {time.process_time() - before:.2f} s")
    full(300, MatcherSettings(), "full")
    small(list(KINDS), MatcherSettings(), "small, four kinds")
    small(["a100"], MatcherSettings(max_waits=0, alpha=1.0), "small, one kind, nothing explained, no fairness")


if __name__ == "__main__":
    main()
