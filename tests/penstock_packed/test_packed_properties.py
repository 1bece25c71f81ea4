"""Whatever members need and do, a host comes to its end, and who behaves is not ended for the sake of others."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import Count, Ledger

from penstock_packed import LaneRules, MemoryNeed, PackedHost
from penstock_sharing.lanes import TURN_POLICIES
from sweeps import examples

CAPACITY = 100


class Plan(NamedTuple):
    """A trial: what it declares and truly needs, how long it is, and where it fails."""

    persistent: int
    ephemeral: int
    leak: int
    steps: int
    fails_at: int


plans = st.lists(
    st.builds(
        Plan,
        persistent=st.integers(0, 60),
        ephemeral=st.integers(0, 50),
        leak=st.sampled_from([0, 0, 0, 3]),
        steps=st.integers(1, 12),
        fails_at=st.sampled_from([-1, -1, 0, 3]),
    ),
    min_size=1,
    max_size=7,
)


class Planned(Count):
    """Takes memory as planned, and fails as planned."""

    def __init__(self, plan: Plan, device: Ledger) -> None:
        super().__init__()
        self.plan, self.device, self.held = plan, device, 0

    def take(self, size: int) -> None:
        self.held += size
        self.device.take(size)

    def setup(self) -> None:
        super().setup()
        self.take(self.plan.persistent)

    def step(self, turn: object) -> None:
        if len(self.seen) == self.plan.fails_at:
            raise ArithmeticError
        self.device.take(self.plan.ephemeral)
        self.device.take(-self.plan.ephemeral)
        self.take(self.plan.leak)
        super().step(turn)

    def teardown(self) -> None:
        super().teardown()
        self.take(-self.held)


@given(plans=plans, policy=st.sampled_from(sorted(TURN_POLICIES)))
@settings(max_examples=examples(25), deadline=None)
def test_every_member_comes_to_its_end_and_who_keeps_to_its_need_is_never_ended_for_others(
    plans: list[Plan], policy: str
) -> None:
    device = Ledger(CAPACITY)
    host = PackedHost(device, rules=LaneRules(policy=policy))
    trials = [Planned(plan, device) for plan in plans]
    for number, trial in enumerate(trials):
        need = MemoryNeed(trial.plan.persistent, 0, trial.plan.ephemeral)
        host.train(f"t{number}", trial, steps=trial.plan.steps, memory=need)
    outcomes = host.run()
    assert device.used_bytes == 0
    for number, trial in enumerate(trials):
        plan, outcome = trial.plan, outcomes[f"t{number}"]
        assert outcome.steps == trial.count
        if plan.persistent + plan.ephemeral > CAPACITY:
            assert (outcome.stage, trial.calls) == ("failed", [])
        elif 0 <= plan.fails_at < plan.steps and not plan.leak:
            assert (outcome.stage, outcome.reason) == ("failed", "ArithmeticError: ")
        elif not plan.leak:
            assert (outcome.stage, outcome.steps) == ("finished", plan.steps)


@given(plans=plans)
@settings(max_examples=examples(12), deadline=None)
def test_memory_is_never_over_capacity_while_members_keep_to_their_needs(plans: list[Plan]) -> None:
    device = Ledger(CAPACITY)
    most = 0

    class Watched(Planned):
        def step(self, turn: object) -> None:
            nonlocal most
            super().step(turn)
            most = max(most, device.most_bytes)

    host = PackedHost(device)
    for number, plan in enumerate(plans):
        tight = plan._replace(leak=0)
        host.train(f"t{number}", Watched(tight, device), memory=MemoryNeed(plan.persistent, 0, plan.ephemeral), steps=5)
    host.run()
    assert most <= CAPACITY
