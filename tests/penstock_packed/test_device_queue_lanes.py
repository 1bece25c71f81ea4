"""Members of several lanes that need other than they said: nobody waits for ever, and no lane is given twice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_packed.device_queue import DeviceQueue, PackedTurn
from penstock_packed.member import PackedMember
from penstock_sharing.lanes import TURN_POLICIES, LaneRules, MemoryNeed
from sweeps import examples


class Plan(NamedTuple):
    """What a trial declares (bytes), what it truly takes, and how many steps it does; it may keep more in each."""

    declared: tuple[int, int]
    takes: tuple[int, int]
    leak: int
    steps: int


plans = st.lists(
    st.builds(
        Plan,
        declared=st.tuples(st.integers(0, 40), st.integers(0, 30)),
        takes=st.tuples(st.integers(0, 60), st.integers(0, 50)),
        leak=st.sampled_from([0, 0, 0, 3]),
        steps=st.integers(1, 8),
    ),
    min_size=1,
    max_size=7,
)


class Workers:
    """Threads of lanes, one after the other in any order; a floor that says what they do."""

    def __init__(self, plans: list[Plan], policy: str, lanes: int, chance: np.random.Generator) -> None:
        self.queue: DeviceQueue[str] = DeviceQueue(
            100, 0, LaneRules(policy=policy, patience_s=30.0, most_lanes=lanes), 1.0
        )
        self.plans = {f"t{number}": plan for number, plan in enumerate(plans)}
        self.now_s, self._lanes, self._chance = 0.0, lanes, chance
        self.under_way: list[PackedTurn[str]] = []
        for name, plan in self.plans.items():
            need = MemoryNeed(plan.declared[0], 0, plan.declared[1])
            self.queue.join(PackedMember(name, need, plan.steps), 0.0)

    def move(self) -> None:
        """End those who have to go; then begin a turn, or end one."""
        while self.queue.endings:
            name, _ = self.queue.endings.pop()
            assert name not in {go.name for go in self.under_way}, f"{name} has to go in the middle of its turn"
            self._leave(name, "failed")
        if len(self.under_way) < self._lanes and self._chance.random() < 0.7:
            go = self.queue.next(self.now_s)
            if go is not None:
                assert go.lane not in {other.lane for other in self.under_way}
                self.under_way.append(go)
                return
        self.now_s += self._chance.uniform(0.01, 1.0)
        if self.under_way:
            self._end(self.under_way.pop(int(self._chance.integers(len(self.under_way)))))

    def _end(self, go: PackedTurn[str]) -> None:
        member, plan = self.queue.members[go.name], self.plans[go.name]
        member.done += go.what == "step"
        member.ran(0.1)
        if go.what == "setup":
            member.grew(plan.takes[0], plan.takes[0])
            member.stage = "running"
        else:
            member.grew(plan.leak, plan.leak + plan.takes[1])
        if member.done == plan.steps:
            self._leave(go.name, "finished")
        else:
            self.queue.over(go.name, self.now_s)

    def _leave(self, name: str, stage: str) -> None:
        self.queue.members[name].stage = stage
        self.queue.left(name, self.now_s)


@given(
    plans, st.sampled_from(sorted(TURN_POLICIES)), st.integers(1, 4), st.integers(0, 2**32).map(np.random.default_rng)
)
@settings(max_examples=examples(60), deadline=None)
def test_every_member_of_every_lane_comes_to_its_end_whatever_it_needs(
    plans: list[Plan], policy: str, lanes: int, chance: np.random.Generator
) -> None:
    workers = Workers(plans, policy, lanes, chance)
    for _ in range(2000):
        if all(member.over for member in workers.queue.members.values()):
            break
        workers.move()
    stages = {name: (member.stage, member.reason) for name, member in workers.queue.members.items()}
    assert all(member.over for member in workers.queue.members.values()), stages
    assert not workers.under_way
    assert workers.queue.lanes == 0
