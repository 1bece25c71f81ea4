"""What must hold in every history: random clusters, jobs, ranks and ends."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from matcher_facts import Matcher, ended, job, matcher, node, rounds, started

from penstock_log import (
    AnyEvent,
    DeviceDrained,
    DeviceFailed,
    DeviceResumed,
    JobCancelled,
    JobHeld,
    JobRank,
    JobReleased,
    JobsRanked,
    JobState,
    NodeDrained,
    NodeResumed,
)
from penstock_log.decision_facts import Placement, RoundDecided
from sweeps import examples

fields = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(1, 3),
        "kinds": st.sampled_from([("fast",), ("slow",), ("fast", "slow"), ("cpu",)]),
        "duration_s": st.floats(0.5, 50.0),
        "profile": st.sampled_from(["auto", "on", "off"]),
        "retries": st.integers(0, 1),
        "nodes": st.sampled_from([("n1",), ("n2",), ("n1", "n2")]),
    },
)
in_pairs = st.fixed_dictionaries(
    {"gpus": st.sampled_from([2, 4]), "gpus_per_node": st.just(2)},
    optional={"kinds": st.sampled_from([("fast",), ("slow",), ("fast", "slow")]), "duration_s": st.floats(0.5, 50.0)},
)


class Cluster(RuleBasedStateMachine):
    """People, ranker and executors do as they like; the matcher is asked after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0
        self.matcher: Matcher = matcher(min_run_s=2.0, patience_s=6.0, await_profile_s=1.0)
        self.matcher.given(node("n1", fast=2, slow=1), node("n2", fast=1, slow=2, cpu=1)).at(self.now_s)
        self.jobs = 0
        self.epochs: set[tuple[str, int]] = set()
        self.preempted_s: dict[str, list[float]] = {}

    def running(self) -> list[tuple[str, Placement, str]]:
        """Job, placement and node of every run that has not ended."""
        return [
            (j.id, j.placement, node_id)
            for j in sorted(self.matcher.state.jobs, key=lambda j: j.id)
            if j.placement is not None
            for node_id in sorted(j.open_nodes)
        ]

    def tell(self, *facts: AnyEvent) -> None:
        self.matcher.given(*facts)
        self.settle()

    def settle(self) -> None:
        for fact in rounds(self.matcher.at(self.now_s).settle(rounds=3)):
            self.check(fact)
            for placement in fact.placements:
                self.matcher.given(*started(placement, self.now_s))

    def check(self, fact: RoundDecided) -> None:
        for placement in fact.placements:
            assert (placement.job_id, placement.epoch) not in self.epochs, "two placements of one epoch"
            self.epochs.add((placement.job_id, placement.epoch))
            for slot in placement.slots:
                node = self.matcher.state.cluster.nodes[slot.node_id]
                assert node.usable
                assert not [index for index in slot.devices if node.outage(index)], "placed on an unfit device"
        for preemption in fact.preemptions:
            self.preempted_s.setdefault(preemption.job_id, []).append(self.now_s)

    @rule(wait_s=st.floats(0.1, 4.0))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s
        self.settle()

    @rule(wanted=fields | in_pairs)
    def submit(self, wanted: dict[str, Any]) -> None:
        self.jobs += 1
        self.tell(job(f"j{self.jobs}", at_s=self.now_s, **wanted))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), outcome=st.sampled_from(["completed", "failed", "preempted", "lost"]))
    def end(self, data: st.DataObject, outcome: str) -> None:
        job_id, placement, node_id = data.draw(st.sampled_from(self.running()))
        self.tell(ended(job_id, self.now_s, node_id=node_id, epoch=placement.epoch, outcome=outcome))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), queue=st.integers(0, 2))
    def rank(self, data: st.DataObject, queue: int) -> None:
        job_id = f"j{data.draw(st.integers(1, self.jobs))}"
        ranks = (JobRank(job_id=job_id, queue=queue, position=self.now_s),)
        self.tell(JobsRanked(pool="default", at_s=self.now_s, ranks=ranks))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), fact=st.sampled_from([JobCancelled, JobHeld, JobReleased]))
    def ask(self, data: st.DataObject, fact: type) -> None:
        self.tell(fact(job_id=f"j{data.draw(st.integers(1, self.jobs))}", at_s=self.now_s))

    @rule(node_id=st.sampled_from(["n1", "n2"]), preempt=st.booleans())
    def drain(self, node_id: str, preempt: bool) -> None:
        self.tell(NodeDrained(node_id=node_id, at_s=self.now_s, preempt=preempt))

    @rule(node_id=st.sampled_from(["n1", "n2"]), index=st.integers(0, 2), data=st.data())
    def fail_or_drain_a_device(self, node_id: str, index: int, data: st.DataObject) -> None:
        failed = DeviceFailed(node_id=node_id, at_s=self.now_s, index=index, code="xid 79", reason="XID 79")
        drained = DeviceDrained(node_id=node_id, at_s=self.now_s, index=index, preempt=data.draw(st.booleans()))
        self.tell(data.draw(st.sampled_from([failed, drained])))

    @rule(node_id=st.sampled_from(["n1", "n2"]), index=st.integers(0, 2))
    def resume_a_device(self, node_id: str, index: int) -> None:
        self.tell(DeviceResumed(node_id=node_id, at_s=self.now_s, index=index))

    @rule(node_id=st.sampled_from(["n1", "n2"]))
    def resume(self, node_id: str) -> None:
        self.tell(NodeResumed(node_id=node_id, at_s=self.now_s))

    @invariant()
    def no_device_is_given_twice_and_gangs_are_whole(self) -> None:
        taken: set[tuple[str, int]] = set()
        for each in self.matcher.state.jobs:
            if each.placement is None:
                continue
            devices = [(s.node_id, index) for s in each.placement.slots for index in s.devices]
            kinds = {self.matcher.state.cluster.nodes[n].devices[index].kind for n, index in devices}
            assert len(devices) == each.spec.gpus
            assert all(len(s.devices) % max(1, each.spec.gpus_per_node) == 0 for s in each.placement.slots)
            assert all(each.spec.may_be_on(s.node_id) for s in each.placement.slots)
            assert kinds == {each.placement.kind}
            assert not each.spec.kinds or each.placement.kind in each.spec.kinds
            held = {(n, index) for n, index in devices if n in each.open_nodes}
            assert not held & taken
            taken |= held

    @invariant()
    def every_waiting_job_is_explained_within_a_second(self) -> None:
        explained = self.matcher.state.explained.get("default")
        waiting = {j.id for j in self.matcher.state.jobs if j.state is JobState.PENDING}
        wake_s = self.matcher.decision().wake_at_s
        if waiting - set(explained.causes if explained else ()):
            assert wake_s is not None
            assert wake_s <= self.now_s + 1.0

    @invariant()
    def only_jobs_that_are_not_over_are_remembered(self) -> None:
        state = self.matcher.state
        known = set(state.jobs.by_id)
        assert set(state.ranks) <= known
        assert set(state.keys) == known


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.integers(2, 6))
def test_two_jobs_do_not_preempt_each_other_in_turn(demotions, arrivals):
    """Whatever the ranker does downwards, a job is preempted at most once for each queue it can be overtaken from."""
    one = matcher(min_run_s=1.0).given(node("n1", fast=1))
    preempted, queues = 0, {}
    for i in range(arrivals):
        one.given(job(f"j{i}", at_s=float(i)))
        queues[f"j{i}"] = 0
    for step in range(60):
        now_s = 10.0 + step
        for fact in rounds(one.at(now_s).settle()):
            preempted += len(fact.preemptions)
            for placement in fact.placements:
                one.given(*started(placement, now_s))
        for each in list(one.state.jobs):
            if each.state is JobState.PREEMPTING:
                one.given(ended(each.id, now_s + 0.5, epoch=each.epoch, outcome="preempted"))
            elif each.placement is not None and demotions[step % len(demotions)] and queues[each.id] < 2:
                queues[each.id] += 1
                rank = JobRank(job_id=each.id, queue=queues[each.id], position=now_s + 0.5)
                one.given(JobsRanked(pool="default", at_s=now_s + 0.5, ranks=(rank,)))
    assert preempted <= 2 * arrivals
