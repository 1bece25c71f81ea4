"""The incremental order against a rescan of all jobs, whatever happens; promotion, demotion, and changed knowledge."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_oracle import columns, rank

from penstock_policies.queue_policies import QUEUE_POLICIES, LengthKnowledge
from penstock_policies.ranking import PoolRanking, QueueLadder, RankMove
from sweeps import examples

LIMITS = (4.0, 8.0, 16.0)
SAMPLES = (1.0, 2.0, 3.0, 5.0, 6.5, 7.0, 7.5, 12.0, 15.0, 20.0, 40.0)


def ladder(name, limits=LIMITS, knob=None):
    return QueueLadder(QUEUE_POLICIES[name], limits, knob)


@dataclass
class Plain:
    """A job as a rescan sees it: what it has done, and when it entered each queue."""

    gpus: int
    submitted_s: float
    length_s: float
    runs: list[list[float]] = field(default_factory=list)

    def executed_by(self, now_s: float) -> float:
        return sum(min(end, now_s) - start for start, end in self.runs if start < now_s)

    def reached_s(self, executed_s: float) -> float:
        """When it had executed so long."""
        for start, end in self.runs:
            if executed_s <= end - start:
                return start + executed_s
            executed_s -= end - start
        return math.inf


def rescanned(name: str, jobs: dict[str, Plain], learnt: LengthKnowledge, now_s: float) -> list[str]:
    """Return the ids in order, each job's queue and position worked out from its whole history."""
    ids = sorted(jobs)
    order, plain = QUEUE_POLICIES[name], [jobs[job_id] for job_id in ids]
    executed = [job.executed_by(now_s) for job in plain]
    weights = [job.gpus if order.demotes_by == "gpu-time" else 1 for job in plain]
    limits = LIMITS if order.demotes_by != "nothing" else ()
    entered = []
    for job, done, weight in zip(plain, executed, weights, strict=True):
        crossed = [limit for limit in limits if weight * done >= limit]
        entered.append(job.reached_s(crossed[-1] / weight) if crossed else job.submitted_s)
    table = columns(
        [job.gpus for job in plain],
        [job.submitted_s for job in plain],
        executed,
        length_s=[job.length_s for job in plain],
        entered_s=entered,
    )
    return [ids[i] for i in rank(order, table, limits, learnt)[2]]


steps = st.lists(
    st.tuples(st.sampled_from(["add", "toggle", "toggle", "toggle", "wait", "remove"]), st.integers(0, 7)), max_size=40
)


@settings(deadline=None, max_examples=examples(150))
@given(st.sampled_from(sorted(QUEUE_POLICIES)), steps)
def test_whatever_happens_it_is_in_the_order_that_a_rescan_gives(name, steps):
    """Times are whole, service and thresholds too: so that a queue is entered at the same instant in both."""
    learnt = LengthKnowledge(LIMITS, SAMPLES)
    ranking, jobs, now_s = PoolRanking(ladder(name), learnt), dict[str, Plain](), 1.0
    for number, (what, pick) in enumerate(steps):
        ids = sorted(jobs)
        if what == "add" or not ids:
            job_id = f"j{pick}-{number}"
            jobs[job_id] = Plain(2 ** (pick % 3), now_s + number / 64, 32.0 + pick)
            ranking.add(job_id, gpus=2 ** (pick % 3), submitted_s=now_s + number / 64, length_s=32.0 + pick)
        elif what == "toggle":
            job_id = ids[pick % len(ids)]
            toggle(ranking, jobs[job_id], job_id, now_s)
        elif what == "remove":
            job_id = ids[pick % len(ids)]
            del jobs[job_id]
            ranking.remove(job_id)
        else:
            now_s += 1.0 + pick / 4
        ranking.settle(now_s)
        assert not ranking.due(now_s)
        for job_id, job in jobs.items():  # positions within a queue are those at which jobs last waited
            if ranking[job_id].phase == "running":
                toggle(ranking, job, job_id, now_s)
                ranking.settle(now_s)
                toggle(ranking, job, job_id, now_s)
        assert list(ranking) == rescanned(name, jobs, learnt, now_s)


def toggle(ranking: PoolRanking, job: Plain, job_id: str, now_s: float) -> None:
    if job.runs and math.isinf(job.runs[-1][1]):
        job.runs[-1][1] = now_s
        ranking.stop(job_id, now_s)
    else:
        job.runs.append([now_s, math.inf])
        ranking.start(job_id, now_s)


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.1, 9.0)), max_size=8))
def test_following_its_alarms_a_job_is_demoted_at_its_crossings_and_at_no_other_time(gpus, turns):
    ranking, now_s, attained = PoolRanking(ladder("2d-las")), 1.0, 0.0
    ranking.add("a", gpus=gpus, submitted_s=0.0)
    ranking.settle(0.0)
    for run_s, wait_s in turns:
        ranking.start("a", now_s)
        end_s = now_s + run_s
        while (next_s := ranking.next_s(now_s)) <= end_s:
            (move,) = ranking.due(next_s)
            assert move.entered_s == next_s
            assert gpus * (next_s - end_s + run_s) + attained == pytest.approx(LIMITS[move.queue - 1])
            ranking.commit(move, next_s)
            now_s = next_s
        attained += gpus * run_s
        ranking.stop("a", end_s)
        ranking.settle(end_s)
        assert ranking["a"].queue in {sum(t <= attained + slack for t in LIMITS) for slack in (-1e-6, 1e-6)}
        assert math.isinf(ranking.next_s(end_s))
        now_s = end_s + wait_s


TICK_S = 0.25
"""All that happens in the next test happens at a multiple of it."""


@dataclass
class Ticked:
    """A job looked at in every tick."""

    weight: int
    running: bool = False
    served_s: float = 0.0
    waited_s: float = 0.0
    queue: int = 0
    entered_s: float = 0.0

    def tick(self, now_s: float, knob: float) -> bool:
        """Let a tick pass; return whether the job changes its queue."""
        before = self.queue
        if self.running:
            self.served_s += TICK_S
            self.queue = max(before, sum(self.weight * self.served_s >= limit for limit in LIMITS))
        else:
            self.waited_s += TICK_S
        self.promote(now_s, knob)
        self.entered_s = now_s if self.queue != before else self.entered_s
        return self.queue != before

    def promote(self, now_s: float, knob: float) -> None:
        if self.queue and not self.running and self.waited_s >= knob * self.served_s:
            self.queue, self.entered_s, self.served_s, self.waited_s = 0, now_s, 0.0, 0.0


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(["las", "2d-las", "2d-gittins"]),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=20),
)
def test_jobs_fall_and_rise_at_the_ticks_at_which_one_who_always_looks_sees_it_and_at_no_others(name, knob, turns):
    """Rising sets both counters to zero: so the next rise counts what was waited and executed since then only."""
    ranking, now_s = PoolRanking(ladder(name, knob=knob), LengthKnowledge(LIMITS, SAMPLES)), 0.0
    jobs = {f"j{n}": Ticked(weight=1 if name == "las" else 2**n) for n in range(3)}
    for n, job_id in enumerate(jobs):
        ranking.add(job_id, gpus=2**n, submitted_s=0.0)
    ranking.settle(now_s)
    for pick, ticks in turns:
        job_id = f"j{pick}"
        (ranking.stop if jobs[job_id].running else ranking.start)(job_id, now_s)
        jobs[job_id].running = not jobs[job_id].running
        jobs[job_id].promote(now_s, knob)
        ranking.settle(now_s)
        for _ in range(ticks):
            next_s, now_s = ranking.next_s(now_s), now_s + TICK_S
            changed = [job.tick(now_s, knob) for job in jobs.values()]
            assert next_s == now_s if any(changed) else next_s > now_s
            ranking.settle(now_s)
            places = {job_id: (ranking[job_id].queue, ranking[job_id].entered_s) for job_id in jobs}
            assert places == {job_id: (job.queue, job.entered_s) for job_id, job in jobs.items()}


def test_a_promotion_comes_punctually_and_what_counts_for_the_whole_is_kept():
    ranking = PoolRanking(ladder("2d-las", knob=2.0))
    ranking.add("a", gpus=1, submitted_s=10.0)
    ranking.settle(10.0)
    ranking.start("a", 10.0)
    ranking.stop("a", 15.0)
    ranking.settle(15.0)
    assert ranking["a"].queue == 1
    assert ranking.next_s(15.0) == 25.0
    assert ranking.due(25.0) == [RankMove("a", 0, 25.0, 25.0, promoted=True)]
    ranking.settle(25.0)
    assert (ranking["a"].served_s, ranking["a"].executed_by(25.0)) == (0.0, 5.0)
    ranking.start("a", 30.0)
    assert ranking.next_s(30.0) == 34.0


def test_the_next_promotion_counts_what_was_waited_and_executed_since_the_last_one_only():
    ranking = PoolRanking(ladder("2d-las", knob=2.0))
    ranking.add("a", gpus=1, submitted_s=10.0)
    ranking.settle(10.0)
    ranking.start("a", 10.0)
    ranking.stop("a", 15.0)
    ranking.settle(15.0)
    ranking.settle(25.0)
    ranking.start("a", 30.0)
    ranking.settle(34.0)
    ranking.stop("a", 36.0)
    ranking.settle(36.0)
    waited_since_s, executed_since_s = 30.0 - 25.0, 36.0 - 30.0
    assert ranking.next_s(36.0) == 36.0 + 2.0 * executed_since_s - waited_since_s


def test_a_job_that_fell_by_several_queues_while_nobody_looked_falls_at_once():
    ranking = PoolRanking(ladder("2d-las"))
    ranking.add("a", gpus=2, submitted_s=0.0)
    ranking.start("a", 0.0)
    assert ranking.due(5.0) == [RankMove("a", 2, 4.0, 4.0)]


def test_a_starting_job_gathers_neither_service_nor_waiting():
    ranking = PoolRanking(ladder("2d-las", knob=1.0))
    ranking.add("a", gpus=1, submitted_s=0.0)
    ranking.start("a", 0.0)
    ranking.stop("a", 5.0)
    ranking.settle(5.0)
    ranking.note("a", "starting", 6.0, executed_s=5.0, waited_s=1.0)
    assert math.isinf(ranking.next_s(6.0))
    assert not ranking.due(1e9)


def test_reading_what_is_due_changes_nothing():
    ranking = PoolRanking(ladder("2d-gittins"), LengthKnowledge(LIMITS, SAMPLES))
    ranking.add("a", gpus=1, submitted_s=0.0)
    assert ranking.due(0.0) == ranking.due(0.0) == [RankMove("a", 0, -1.0, 0.0)]
    assert list(ranking) == []


def test_a_job_nearer_to_a_likely_end_overtakes_and_equal_ones_keep_the_order_of_their_entry():
    ranking = PoolRanking(ladder("2d-gittins"), LengthKnowledge(LIMITS, [3.0, 20.0]))
    for name, at_s in (("late", 2.0), ("early", 1.0), ("mid", 1.5)):
        ranking.add(name, gpus=1, submitted_s=at_s)
    ranking.start("late", 2.0)
    ranking.stop("late", 4.0)
    ranking.settle(4.0)
    assert list(ranking) == ["late", "early", "mid"]


def test_other_lengths_move_only_jobs_that_have_run():
    ranking = PoolRanking(ladder("2d-gittins"))
    for name in ("a", "b"):
        ranking.add(name, gpus=1, submitted_s=0.0)
    ranking.start("b", 0.0)
    ranking.stop("b", 2.0)
    ranking.settle(2.0)
    assert list(ranking) == ["a", "b"]
    ranking.learn(LengthKnowledge(LIMITS, [3.0, 20.0]))
    assert [move.job_id for move in ranking.due(2.0)] == ["b"]
    ranking.settle(2.0)
    assert list(ranking) == ["b", "a"]
    ranking.learn(LengthKnowledge(LIMITS, [3.0, 3.5, 20.0]))
    assert [move.job_id for move in ranking.due(2.0)] == ["b"]


def test_an_event_costs_no_more_after_a_hundred_thousand_jobs_have_got_their_places():
    def least_ns(jobs: int) -> int:
        ranking = PoolRanking(QueueLadder(QUEUE_POLICIES["2d-las"], [4.0]))
        for number in range(jobs):
            ranking.add(f"j{number}", gpus=1, submitted_s=0.0)
        ranking.settle(0.0)
        times = []
        for number in range(20):
            ranking.add(f"n{number}", gpus=1, submitted_s=1.0)
            before = time.process_time_ns()
            ranking.settle(1.0)
            times.append(time.process_time_ns() - before)
        return min(times)

    assert least_ns(100_000) < 10 * least_ns(10)
