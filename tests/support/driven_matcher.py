"""The production matcher, driven through time: runs start at once, take as long as they are to, and stop when asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from matcher_facts import node, spec, started

from penstock_bus.decider import Fold
from penstock_log import AnyEvent, Job, JobRank, JobsRanked, JobState, JobSubmitted, Placement, RoundDecided, RunEnded
from penstock_matcher import machine
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import delivery


@dataclass
class Driven:
    """
    One pool of one node, and what is to come.

    Attributes
    ----------
    stop_s, resume_s : float
        What each run needs to stop and to start; in between its loop advances it, and all of that is saved.
    thresholds_s : tuple of float
        Seconds of execution after which a job is in queue 1, 2, …
    """

    kinds: dict[str, int]
    settings: MatcherSettings
    stop_s: float = 0.0
    resume_s: float = 0.0
    thresholds_s: tuple[float, ...] = ()
    now_s: float = 1.0
    fold: Fold[machine.MatcherState] = field(init=False)
    left_s: dict[str, float] = field(default_factory=dict)
    preempted_s: dict[str, list[float]] = field(default_factory=dict)
    executed_s: dict[str, float] = field(default_factory=dict)
    first_start_s: dict[str, float] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.fold = Fold(machine.decider(self.settings))
        self._tell(node("n1", **self.kinds))

    def submit(self, at_s: float, job_id: str, length_s: float, **fields: Any) -> None:
        """Submit a job at some time."""

        def arrive() -> None:
            self.left_s[job_id] = length_s
            self._tell(JobSubmitted(job_id=job_id, at_s=self.now_s, spec=spec(**fields)))

        self._at(at_s, arrive)

    def run(self, until_s: float) -> None:
        """Let everything happen that is due by then."""
        while self._due and self._due[0][0] <= until_s:
            self.now_s = max(self.now_s, self._due[0][0])
            while self._due and self._due[0][0] <= self.now_s:
                heappop(self._due)[2]()
            self._decide()
        self.now_s = until_s

    def _decide(self) -> None:
        for _ in range(100):
            decision = self.fold.decider.decide(self.fold.state, self.now_s)
            if not decision.proposals:
                if decision.wake_at_s is not None and decision.wake_at_s > self.now_s:
                    self._at(decision.wake_at_s, lambda: None)
                return
            for proposal in decision.proposals:
                for fact in proposal.facts:
                    assert isinstance(fact, RoundDecided)
                    self._make_true(fact)
        raise AssertionError("the matcher does not come to rest")

    def _make_true(self, fact: RoundDecided) -> None:
        self._tell(fact)
        for preemption in fact.preemptions:
            self.ends_s.pop(preemption.job_id)
            self._at(self.now_s + self.stop_s, self._ending(preemption.job_id, preemption.epoch, "preempted"))
        for placement in fact.placements:
            self._start(placement)

    def _start(self, placement: Placement) -> None:
        job_id, epoch = placement.job_id, placement.epoch
        for fact in started(placement, self.now_s):
            self._tell(fact)
        self.first_start_s.setdefault(job_id, self.now_s)
        end_s = self.now_s + self.resume_s + self.left_s[job_id]
        self.ends_s[job_id] = end_s
        self._at(end_s, self._ending(job_id, epoch, "completed"))
        had_s = self.executed_s.get(job_id, 0.0)
        for queue, threshold_s in enumerate(self.thresholds_s, start=1):
            if had_s < threshold_s:
                self._at(self.now_s + threshold_s - had_s, self._falling(job_id, epoch, queue))

    def _falling(self, job_id: str, epoch: int, queue: int) -> Callable[[], None]:
        def fall() -> None:
            job = self.fold.state.jobs.get(job_id)
            if job is not None and job.epoch == epoch and job.placement is not None:
                rank = JobRank(job_id=job_id, queue=queue, position=self.now_s)
                self._tell(JobsRanked(pool="default", at_s=self.now_s, ranks=(rank,)))

        return fall

    def _ending(self, job_id: str, epoch: int, outcome: str) -> Callable[[], None]:
        def end() -> None:
            job = self.fold.state.jobs.get(job_id)
            wanted = JobState.PREEMPTING if outcome == "preempted" else JobState.RUNNING
            if job is not None and job.epoch == epoch and job.state is wanted:
                self._end(job, outcome)

        return end

    def _end(self, job: Job, outcome: str) -> None:
        run_s = self.now_s - job.started_s
        loop_s = max(0.0, run_s - self.resume_s - (self.stop_s if outcome == "preempted" else 0.0))
        self.left_s[job.id] -= loop_s
        self.executed_s[job.id] = self.executed_s.get(job.id, 0.0) + run_s
        self.ends_s.pop(job.id, None)
        if outcome == "preempted":
            self.preempted_s.setdefault(job.id, []).append(run_s)
        steps = math.ceil(10 * loop_s)
        fact = RunEnded(
            job_id=job.id,
            epoch=job.epoch,
            node_id="n1",
            outcome=outcome,  # type: ignore[arg-type]
            at_s=self.now_s,
            steps=job.steps + steps,
            loop_steps=steps,
            loop_s=loop_s,
        )
        self._tell(fact)

    def _at(self, at_s: float, do: Callable[[], None]) -> None:
        heappush(self._due, (at_s, next(self._number), do))

    def _tell(self, fact: AnyEvent) -> None:
        self.fold.apply(delivery(self.fold.last_seq + 1, fact))
