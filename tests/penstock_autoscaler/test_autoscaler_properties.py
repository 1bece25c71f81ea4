"""What holds whatever comes, goes and fails: nothing is promised twice, and decisions come to rest."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_facts import (
    Autoscaler,
    autoscaler,
    batched,
    decisions,
    elastic,
    ended,
    fixed,
    job,
    node,
    ranked,
    scaled,
    spread,
)

from penstock_bus import Decision
from penstock_log import (
    AnyEvent,
    Job,
    JobCancelled,
    JobSpec,
    JobState,
    NodeDrained,
    NodeResumed,
    Preemption,
    RoundDecided,
    RunCheckpointed,
    ScaleDecided,
)
from sweeps import examples

KINDS: dict[str, JobSpec] = {
    "any": elastic(),
    "some": elastic(2, 5, command=("python", "some.py")),
    "batched": batched(64, 256, command=("python", "batched.py")),
    "unseen": elastic(1, 3, command=("python", "unseen.py")),
    "one": fixed(),
    "gang": fixed(3),
}
SEEN = ("any", "some", "batched")
NODES = ("n1", "n2")

acts = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(list(KINDS))),
        st.tuples(st.just("submit"), st.sampled_from(SEEN)),
        st.tuples(st.sampled_from(["end", "fail", "kill", "cancel", "raise"]), st.integers(0, 5)),
        st.tuples(st.sampled_from(["lose", "drain", "resume", "join"]), st.sampled_from(NODES)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 20.0, 200.0])),
    ),
    min_size=4,
    max_size=12,
)


class World:
    """A pool under the autoscaler, and a matcher that gives jobs what they ask for as long as it is there."""

    def __init__(self) -> None:
        self.it: Autoscaler = autoscaler(interval_s=100.0, min_run_s=0.5).given(*map(self.node, NODES))
        self.it.given(*(scaled(KINDS[name], 0.6) for name in SEEN)).at(1.0)
        self.now_s, self.names = 1.0, 0

    @staticmethod
    def node(node_id: str, at_s: float = 0.5) -> Any:
        return node(node_id, at_s, fast=4)

    @property
    def jobs(self) -> list[Job]:
        return list(self.it.state.jobs)

    def act(self, what: str, which: Any) -> None:
        self.now_s += which if what == "wait" else 1.0
        it, at_s = self.it.at(self.now_s), self.now_s
        found = self.jobs[which % len(self.jobs)] if isinstance(which, int) and self.jobs else None
        match what:
            case "submit":
                self.names += 1
                it.given(job(f"j{self.names}", KINDS[which], at_s))
            case "lose":
                it.given(RoundDecided(at_s=at_s, pool="default", lost_nodes=(which,)))
            case "drain":
                it.given(NodeDrained(at_s=at_s, node_id=which))
            case "resume":
                it.given(NodeResumed(at_s=at_s, node_id=which))
            case "join" if not it.state.cluster.nodes[which].present:
                it.given(self.node(which, at_s))
            case "raise" if found is not None:
                it.given(ranked(at_s, **{found.id: -at_s}))
            case "cancel" if found is not None:
                it.given(JobCancelled(at_s=at_s, job_id=found.id))
            case "end" | "fail" | "kill" if found is not None and found.placement is not None:
                self._end(found, what)
            case _:
                pass

    def _end(self, found: Job, what: str) -> None:
        outcome = {"end": "completed", "fail": "failed", "kill": "failed"}[what]
        how: dict[str, Any] = {"loop_steps": 1, "out_of_memory": True} if what == "kill" else {}
        self._ended(found, outcome, **how)

    def _ended(self, found: Job, outcome: str, **how: Any) -> None:
        for node_id in sorted(found.open_nodes):
            self.it.given(ended(self.it, found.id, self.now_s, outcome, node_id=node_id, **how))

    def settle(self) -> list[ScaleDecided]:
        """Make true what is decided; without the checks of :meth:`Scenario.settle`, which come at the end."""
        found: list[AnyEvent] = []
        while facts := [fact for one in self._decision().proposals for fact in one.facts]:
            self.it.given(*facts)
            found += facts
            assert len(found) <= 1, "it decided twice about the same"
        return decisions(found)

    def _decision(self) -> Decision:
        return self.it.decider.decide(self.it.state, self.now_s)

    def match(self) -> None:
        """Stop who is to have another size or is cancelled, and start who finds room."""
        it = self.it
        for each in self.jobs:
            if each.placement is not None and each.state is JobState.COMPLETING:
                self._ended(each, "cancelled")
            elif each.placement is not None and each.demand is not None:
                asked = Preemption(job_id=each.id, epoch=each.epoch)
                it.given(RoundDecided(at_s=self.now_s, pool="default", preemptions=(asked,)))
                self._ended(each, "preempted")
        self.settle()
        for each in sorted(self.jobs, key=lambda each: each.submitted_s):
            if each.placement is None and (not each.spec.elastic or each.epoch):
                self._place(each)

    def _place(self, each: Job) -> None:
        left, held = each.spec.gpus, {}
        for node_id, devices in self.it.state.cluster.free(self.jobs).items():
            if some := tuple(device.index for device in devices[:left]):
                held[node_id] = some
                left -= len(some)
        if not left:
            self.it.given(*spread(self.it, each.id, self.now_s, held))
            first = each.placement.slots[0].node_id if each.placement is not None else ""
            saved = {"job_id": each.id, "epoch": each.epoch, "node_id": first, "step": each.checkpoint_step + 10}
            self.it.given(RunCheckpointed(at_s=self.now_s, **saved))

    def check(self) -> None:
        state = self.it.state
        there = {(one.id, device.index) for one in state.cluster.usable() for device in one.devices}
        promised = 0
        for each in self.jobs:
            gpus = each.demand.gpus if each.demand is not None else each.spec.gpus
            assert not each.spec.elastic or gpus in each.spec.widths
            slots = each.placement.slots if each.placement is not None else ()
            held = [(slot.node_id, index) for slot in slots for index in slot.devices]
            if held and there.issuperset(held) and not (each.stopping and each.demand is None):
                promised += gpus
        assert promised <= len(there)


@settings(max_examples=examples(40), deadline=None)
@given(acts)
def test_no_device_is_promised_twice_and_each_decision_is_made_once(history: list[tuple[str, Any]]) -> None:
    world = World()
    for what, which in history:
        world.act(what, which)
        world.settle()
        if what not in {"lose", "drain"}:  # what was promised before may have gone with the node
            world.check()
        world.match()
        world.settle()
        world.check()
    world.it.decision()


@settings(max_examples=examples(20), deadline=None)
@given(acts)
def test_a_cluster_to_which_nothing_happens_any_more_comes_to_rest(history: list[tuple[str, Any]]) -> None:
    world = World()
    for what, which in history:
        world.act(what, which)
        world.settle()
    for _ in range(8):
        world.act("wait", 200.0)
        world.settle()
        world.match()
    world.act("wait", 200.0)
    assert not world.settle()
    assert not any(each.demand for each in world.jobs)
    world.it.decision()
