"""A pool in which several users always have jobs waiting, run by the rounds that the matcher runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from penstock_log import (
    Device,
    Event,
    Job,
    JobSpec,
    JobSubmitted,
    JobTable,
    KindSpeed,
    NodeJoined,
    RoundDecided,
    RunEnded,
    RunStarted,
    WorkloadProfiled,
    workload,
)
from penstock_scheduler.pool.scheduler_state import SchedulerState, fold
from penstock_scheduler.round import decide_pool
from penstock_scheduler.round_types import RoundRules

SPEEDS = ({"fast": 1.0, "slow": 0.3}, {"fast": 1.0, "slow": 1.0}, {"fast": 0.6, "slow": 1.0})
"""Of three workloads: one that gains much by fast devices, one that does not, and one that is better on slow ones."""


@dataclass
class Pool:
    """Users, devices, and what happened; ``backlog`` is how many jobs of each user wait at least."""

    rules: RoundRules
    backlog: dict[str, int]
    rng: np.random.Generator
    length_s: float = 60.0
    devices: int = 4
    now_s: float = 0.0
    known: SchedulerState = field(default_factory=SchedulerState)
    jobs: JobTable = field(default_factory=JobTable)
    rounds: int = 0
    submitted: int = 0
    ends: list[tuple[float, str]] = field(default_factory=list)
    lengths_s: dict[str, float] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    started: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ("fast", "slow"):
            held = tuple(Device(index=i, kind=kind, memory_bytes=8, backend="emulated") for i in range(self.devices))
            self.tell(NodeJoined(node_id=kind, at_s=0.0, devices=held))
        for which, speeds in enumerate(SPEEDS):
            known = tuple(KindSpeed(kind=kind, iteration_s=1 / speed, speed=speed) for kind, speed in speeds.items())
            self.tell(WorkloadProfiled(key=workload.key(spec(which)), at_s=0.0, speeds=known))
        for user in self.backlog:
            self.started[user] = []
            self.fill(user)
        self.decide()

    def tell(self, fact: Event) -> None:
        fold(self.known, self.jobs, fact)

    def fill(self, user: str) -> None:
        """Submit until as many jobs of the user wait as are to."""
        while self.waiting[user] < self.backlog[user]:
            self.submitted += 1
            self.waiting[user] += 1
            job_id = f"j{self.submitted}"
            self.lengths_s[job_id] = float(self.rng.uniform(0.2, 1.0)) * self.length_s
            which = int(self.rng.integers(len(SPEEDS)))
            self.tell(JobSubmitted(job_id=job_id, at_s=self.now_s, spec=spec(which, user)))

    def decide(self) -> None:
        """Make rounds true until nothing more is to change."""
        while (found := decide_pool(self.known.pool("default", self.jobs), self.now_s, self.rules)[0]) is not None:
            self.rounds += 1
            self.tell(found)
            for job_id, node_id in placed(found):
                self.start(self.jobs[job_id], node_id)

    def start(self, job: Job, node_id: str) -> None:
        self.tell(RunStarted(job_id=job.id, epoch=job.epoch, node_id=node_id, devices=(0,), at_s=self.now_s))
        self.started[job.spec.user].append((self.now_s, self.rounds))
        self.waiting[job.spec.user] -= 1
        heappush(self.ends, (self.now_s + self.took_s(job), job.id))

    def took_s(self, job: Job) -> float:
        assert job.placement is not None
        which = int(job.spec.command[1])
        return self.lengths_s[job.id] / SPEEDS[which][job.placement.kind]

    def step(self) -> None:
        """Let the next run end, replace its job, and decide."""
        self.now_s, job_id = heappop(self.ends)
        job = self.jobs[job_id]
        assert job.placement is not None
        node_id = job.placement.slots[0].node_id
        self.tell(RunEnded(job_id=job_id, epoch=job.epoch, node_id=node_id, outcome="completed", at_s=self.now_s))
        self.jobs.forget(job_id)
        self.fill(job.spec.user)
        self.decide()

    def longest_wait(self, user: str) -> tuple[float, int]:
        """Return the most seconds and the most rounds between two starts of a user's jobs, the run's ends included."""
        marks = np.array([(0.0, 0), *self.started[user], (self.now_s, self.rounds)])
        seconds, rounds = np.diff(marks, axis=0).max(axis=0)
        return float(seconds), int(rounds)


def spec(which: int, user: str = "") -> JobSpec:
    return JobSpec(name="job", command=("train", str(which)), user=user, profile="off")


def placed(found: RoundDecided) -> Iterator[tuple[str, str]]:
    for placement in found.placements:
        yield placement.job_id, placement.slots[0].node_id
