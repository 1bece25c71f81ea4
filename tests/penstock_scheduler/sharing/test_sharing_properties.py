"""What must hold whoever shares what with whom: random clusters, needs, measurements, ranks and ends."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from matcher_facts import Matcher, ended, job, matcher, node, rounds, started
from sharing_facts import gib, lane, measured, part

from penstock_log import (
    AnyEvent,
    DeviceFailed,
    DeviceResumed,
    Job,
    JobCancelled,
    JobRank,
    JobsRanked,
    JobState,
    MemoryNeed,
    NodeDrained,
    NodeResumed,
)
from sweeps import examples

GIB8 = 8 * 2**30
needs = st.builds(gib, st.floats(0.1, 4.0), st.floats(0.1, 4.0))
groups = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["ann", "bob"]),
        "team": st.sampled_from(["", "vision", "speech"]),
        "share_with": st.sampled_from(["user", "team", "anyone"]),
    }
)
ways = st.one_of(
    st.just({}),
    st.builds(lambda need, gpus: {"sharing": "lane", "memory": need, "gpus": gpus}, needs, st.integers(1, 2)),
    st.builds(lambda model: {"sharing": "lane", "model": model, "memory": None}, st.sampled_from(["small", "large"])),
    st.builds(lambda share: {"sharing": "fraction", "fraction": share}, st.sampled_from([0.1, 0.25, 0.5, 1.0])),
)
kinds = st.sampled_from([(), ("fast",), ("slow",)])


def lanes_hold(needs: list[MemoryNeed], reserve_share: float) -> bool:
    """The safety condition, once more."""
    resident = sum(need.persistent_bytes + need.framework_bytes for need in needs)
    return resident + max(need.ephemeral_bytes for need in needs) + reserve_share * GIB8 <= GIB8 + 1


def willing(one: Job, other: Job) -> bool:
    a, b = one.spec, other.spec
    return all(
        mine.share_with == "anyone"
        or (mine.team == its.team and (mine.user == its.user or (mine.share_with == "team" and mine.team != "")))
        for mine, its in ((a, b), (b, a))
    )


class Shared(RuleBasedStateMachine):
    """People, ranker and executors do as they like; the matcher is asked after each step."""

    RESERVE = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0
        self.matcher: Matcher = matcher(min_run_s=2.0, patience_s=6.0, lane_reserve_share=self.RESERVE, most_sharers=4)
        self.matcher.given(node("n1", fast=2, slow=1), node("n2", fast=1, slow=2)).at(self.now_s)
        self.jobs = 0
        self.known: dict[str, MemoryNeed] = {}  # what the placements were made by

    def running(self) -> list[Job]:
        return sorted((j for j in self.matcher.state.jobs if j.placement is not None), key=lambda j: j.id)

    def on(self) -> dict[tuple[str, int], list[Job]]:
        """Device → the jobs that have it."""
        found: dict[tuple[str, int], list[Job]] = {}
        for each in self.running():
            for slot in each.placement.slots if each.placement is not None else ():
                for index in slot.devices if slot.node_id in each.open_nodes else ():
                    found.setdefault((slot.node_id, index), []).append(each)
        return found

    def need(self, each: Job) -> MemoryNeed | None:
        state = self.matcher.state
        return each.need or each.spec.memory or state.needs.get(state.keys[each.id])

    def tell(self, *facts: AnyEvent) -> None:
        self.matcher.given(*facts)
        self.settle()

    def settle(self) -> None:
        for fact in rounds(self.matcher.at(self.now_s).settle(rounds=6)):
            for placement in fact.placements:
                self.check_room(placement.job_id)
                for slot in placement.slots:
                    node = self.matcher.state.cluster.nodes[slot.node_id]
                    assert not [index for index in slot.devices if node.outage(index)], "placed on an unfit device"
                self.matcher.given(*started(placement, self.now_s))

    def check_room(self, job_id: str) -> None:
        """Whoever is placed finds room: by what was known then, no device is given out beyond what it has."""
        mine = self.matcher.state.jobs[job_id]
        for jobs in self.on().values():
            if mine in jobs and mine.spec.sharing == "lane" and len(jobs) > 1:
                found = [need for each in jobs if (need := self.need(each)) is not None]
                assert len(found) == len(jobs), "somebody's need is not known, and somebody is beside him"
                assert lanes_hold(found, self.RESERVE)

    @rule(wait_s=st.floats(0.1, 4.0))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s
        self.settle()

    @rule(way=ways, group=groups, wanted=kinds, gpus=st.integers(1, 2))
    def submit(self, way: dict[str, Any], group: dict[str, Any], wanted: tuple[str, ...], gpus: int) -> None:
        self.jobs += 1
        fields = {"kinds": wanted, **group, **(way or {"gpus": gpus})}
        self.tell(job(f"j{self.jobs}", at_s=self.now_s, **fields))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), outcome=st.sampled_from(["completed", "preempted", "lost"]))
    def end(self, data: st.DataObject, outcome: str) -> None:
        each = data.draw(st.sampled_from(self.running()), label="who")
        node_id = sorted(each.open_nodes)[0]
        self.tell(ended(each.id, self.now_s, node_id=node_id, epoch=each.epoch, outcome=outcome))

    @precondition(lambda self: any(each.spec.sharing == "lane" for each in self.running()))
    @rule(data=st.data())
    def measure(self, data: st.DataObject) -> None:
        """A run turns out to need no more than it was taken to need, or tells for the first time."""
        lanes = [each for each in self.running() if each.spec.sharing == "lane"]
        each = data.draw(st.sampled_from(lanes), label="who")
        before = self.need(each)
        need = before or (gib(1, 1) if each.spec.model == "small" else gib(3, 2))
        fact = measured(each.id, need, self.now_s, epoch=each.epoch)
        node_id = sorted(each.open_nodes)[0]
        self.tell(type(fact)(**{**{f: getattr(fact, f) for f in fact.__struct_fields__}, "node_id": node_id}))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), queue=st.integers(0, 2))
    def rank(self, data: st.DataObject, queue: int) -> None:
        ranks = (JobRank(job_id=f"j{data.draw(st.integers(1, self.jobs))}", queue=queue, position=self.now_s),)
        self.tell(JobsRanked(pool="default", at_s=self.now_s, ranks=ranks))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.tell(JobCancelled(job_id=f"j{data.draw(st.integers(1, self.jobs))}", at_s=self.now_s))

    @rule(node_id=st.sampled_from(["n1", "n2"]), preempt=st.booleans())
    def drain(self, node_id: str, preempt: bool) -> None:
        self.tell(NodeDrained(node_id=node_id, at_s=self.now_s, preempt=preempt))

    @rule(node_id=st.sampled_from(["n1", "n2"]), index=st.integers(0, 1))
    def fail_a_device(self, node_id: str, index: int) -> None:
        self.tell(DeviceFailed(node_id=node_id, at_s=self.now_s, index=index, code="lost"))

    @rule(node_id=st.sampled_from(["n1", "n2"]), index=st.integers(0, 1))
    def resume_a_device(self, node_id: str, index: int) -> None:
        self.tell(DeviceResumed(node_id=node_id, at_s=self.now_s, index=index))

    @rule(node_id=st.sampled_from(["n1", "n2"]))
    def resume(self, node_id: str) -> None:
        self.tell(NodeResumed(node_id=node_id, at_s=self.now_s))

    @invariant()
    def exclusive_jobs_are_alone(self) -> None:
        for jobs in self.on().values():
            ways = {each.spec.sharing for each in jobs}
            assert len(ways) == 1
            assert ways != {"exclusive"} or len(jobs) == 1

    @invariant()
    def nobody_is_beside_jobs_that_he_does_not_share_with(self) -> None:
        for jobs in self.on().values():
            assert all(willing(one, other) for one in jobs for other in jobs)

    @invariant()
    def no_device_has_too_many_jobs_or_fractions(self) -> None:
        for jobs in self.on().values():
            assert len(jobs) <= 4
            assert sum(each.spec.fraction for each in jobs if each.spec.sharing == "fraction") <= 1.0 + 1e-9

    @invariant()
    def gangs_are_whole_and_those_of_lanes_are_of_one_node(self) -> None:
        for each in self.running():
            slots = each.placement.slots if each.placement is not None else ()
            assert sum(len(slot.devices) for slot in slots) == each.spec.gpus
            assert each.spec.sharing == "exclusive" or len(slots) == 1


TestShared = Shared.TestCase
TestShared.settings = settings(
    max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(needs, min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_everybody_who_fits_a_device_gets_one_in_the_end(wanted, seed):
    """Whoever is ahead, jobs end, and then there is room."""
    one = matcher(lane_reserve_share=0.0, patience_s=5.0, min_run_s=1.0).given(node("n1", fast=1))
    one.given(*(lane(f"j{i}", memory=need) for i, need in enumerate(wanted)))
    now_s, order = 2.0, seed
    for _ in range(len(wanted) + 1):
        for fact in rounds(one.at(now_s).settle()):
            for placement in fact.placements:
                one.given(*started(placement, now_s))
        now_s += 3.0
        running = sorted(each.id for each in one.state.jobs if each.placement is not None)
        if not running:
            break
        one.given(ended(running[order % len(running)], now_s))
        order //= 3
    assert not len(one.state.jobs)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.75]), min_size=1, max_size=12))
def test_a_fraction_waits_only_where_no_device_has_as_much_left(wanted):
    one = matcher().given(node("n1", fast=2))
    one.given(*(part(f"j{i:02}", share) for i, share in enumerate(wanted)))
    for fact in rounds(one.at(2.0).settle()):
        for placement in fact.placements:
            one.given(*started(placement, 2.0))
    used = {0: 0.0, 1: 0.0}
    for each in one.state.jobs:
        for slot in each.placement.slots if each.placement is not None else ():
            used[slot.devices[0]] += each.spec.fraction
    waiting = [each.spec.fraction for each in one.state.jobs if each.state is JobState.PENDING]
    assert all(share > 1.0 - min(used.values()) - 1e-9 for share in waiting)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(needs, groups), min_size=1, max_size=16))
def test_a_lane_job_waits_only_where_no_device_that_it_may_share_has_room(wanted):
    """What is remembered of others that found nothing never keeps anybody from room that there is."""
    one = matcher(lane_reserve_share=0.0).given(node("n1", fast=2))
    one.given(*(lane(f"j{i:02}", memory=need, **group) for i, (need, group) in enumerate(wanted)))
    for fact in rounds(one.at(2.0).settle()):
        for placement in fact.placements:
            one.given(*started(placement, 2.0))
    on: dict[int, list[Job]] = {0: [], 1: []}
    for each in one.state.jobs:
        for slot in each.placement.slots if each.placement is not None else ():
            on[slot.devices[0]].append(each)
    for each in one.state.jobs:
        for there in on.values() if each.state is JobState.PENDING else ():
            beside = [need for job in there if (need := job.spec.memory) is not None]
            suits = all(willing(each, job) for job in there)
            assert each.spec.memory is not None
            assert not (suits and lanes_hold([*beside, each.spec.memory], 0.0))
