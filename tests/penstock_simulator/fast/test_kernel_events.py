"""At every event, those run who would run by a walk through the production order that admits whoever fits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import order_oracle
from fast_path_cases import trace_of, traces
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_policies.queue_policies import QUEUE_POLICIES, LengthKnowledge
from penstock_policies.ranking import PoolRanking, QueueLadder
from penstock_simulator.fast.fast_path import prepare
from penstock_simulator.fast.fast_settings import FastSettings
from penstock_simulator.fast.kernel_events import advance
from penstock_simulator.fast.kernel_state import RUNNING
from sweeps import examples

DEVICES = 4
LENGTHS = np.array([2.0, 3.0, 6.0, 6.0, 11.0, 30.0])
BY_RANKING = ("fifo", "fifo-backfill", "las", "2d-las", "2d-gittins")


@dataclass
class Walked:
    """A slow simulation on the ranker's own structure."""

    trace: object
    policy: str
    chosen: FastSettings
    now_s: float = 0.0
    come: int = 0
    left_s: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = self.chosen.thresholds_gpu_s
        learnt = LengthKnowledge(limits, LENGTHS if QUEUE_POLICIES[self.policy].learns else ())
        self.ranking = PoolRanking(QueueLadder(QUEUE_POLICIES[self.policy], limits, self.chosen.promote_knob), learnt)
        self.gpus = dict(zip(self.trace.job_ids, self.trace.num_gpus.tolist(), strict=True))

    def steps(self) -> Iterator[tuple[float, frozenset[str]]]:
        """Yield each event's time and who runs from then on."""
        while self.come < len(self.trace) or self.left_s:
            self.now_s = self.next_s()
            self.complete()
            self.submit()
            self.ranking.settle(self.now_s)
            self.admit()
            yield self.now_s, frozenset(self.running)

    def next_s(self) -> float:
        if any(move.promoted for move in self.ranking.due(self.now_s)):
            return self.now_s
        coming_s = self.trace.submit_s[self.come] if self.come < len(self.trace) else math.inf
        ends_s = [since_s + self.left_s[job_id] for job_id, since_s in self.running.items()]
        return min(coming_s, *ends_s, self.ranking.next_s(self.now_s), math.inf)

    def complete(self) -> None:
        for job_id in [j for j, since_s in self.running.items() if since_s + self.left_s[j] <= self.now_s]:
            del self.running[job_id], self.left_s[job_id]
            self.ranking.remove(job_id)

    def submit(self) -> None:
        while self.come < len(self.trace) and self.trace.submit_s[self.come] <= self.now_s:
            job_id, lasts_s = self.trace.job_ids[self.come], float(self.trace.duration_s[self.come])
            self.ranking.add(job_id, gpus=self.gpus[job_id], submitted_s=self.now_s, length_s=lasts_s)
            self.left_s[job_id] = lasts_s
            self.come += 1

    def admit(self) -> None:
        order = QUEUE_POLICIES[self.policy]
        chosen = [] if order.preempts else list(self.running)
        free = DEVICES - sum(self.gpus[job_id] for job_id in chosen)
        for job_id in self.order():
            if job_id in chosen:
                continue
            if self.gpus[job_id] <= free:
                chosen.append(job_id)
                free -= self.gpus[job_id]
            elif not order.backfills:
                break
        self.change_to(chosen)

    def order(self) -> list[str]:
        if self.policy in BY_RANKING:
            return list(self.ranking)
        ids = list(self.left_s)
        entries = [self.ranking[job_id] for job_id in ids]
        jobs = order_oracle.columns(
            [self.gpus[job_id] for job_id in ids],
            [entry.submitted_s for entry in entries],
            [entry.executed_by(self.now_s) for entry in entries],
            length_s=[entry.length_s for entry in entries],
        )
        return [ids[place] for place in order_oracle.rank(QUEUE_POLICIES[self.policy], jobs)[2]]

    def change_to(self, chosen: list[str]) -> None:
        for job_id in [j for j in self.running if j not in chosen]:
            self.left_s[job_id] -= self.now_s - self.running.pop(job_id)
            self.ranking.stop(job_id, self.now_s)
        for job_id in chosen:
            if job_id not in self.running:
                self.running[job_id] = self.now_s
                self.ranking.start(job_id, self.now_s)
        for move in self.ranking.due(self.now_s):
            if not move.promoted:  # the index of one that was preempted; a promotion is an event of its own
                self.ranking.commit(move, self.now_s)


def counted(trace, policy: str, chosen: FastSettings) -> Iterator[tuple[float, frozenset[str]]]:
    """Yield the same of the counting simulator."""
    sim = prepare(trace, DEVICES, policy, chosen, LENGTHS, 0.0)
    at_s, load = np.zeros(1), np.zeros((1, 2), dtype=np.int64)
    while advance(sim, 1, at_s, load):
        yield float(at_s[0]), frozenset(trace.job_ids[job] for job in np.flatnonzero(sim.jobs.phase == RUNNING))


@settings(max_examples=examples(80), deadline=None)
@given(
    traces(),
    st.sampled_from(sorted(QUEUE_POLICIES)),
    st.sampled_from([(), (4.0,), (4.0, 16.0), (2.0, 5.0, 12.0)]),
    st.sampled_from([None, 0.5, 2.0]),
)
@example(  # a running job that falls ahead of others in the queue below
    trace_of([(0.0, 1, 10.0), (0.0, 1, 10.0), (6.0, 2, 4.0), (8.0, 4, 1.0), (10.0, 1, 1.0)]),
    "2d-gittins",
    (2.0, 5.0, 12.0),
    None,
)
def test_at_every_event_those_run_whom_the_production_order_admits(trace, policy, limits, knob):
    chosen = FastSettings(thresholds_gpu_s=limits, promote_knob=knob, levels=0, within="entry", tick_s=0.0)
    expected = list(Walked(trace, policy, chosen).steps())
    assert list(counted(trace, policy, chosen)) == expected
