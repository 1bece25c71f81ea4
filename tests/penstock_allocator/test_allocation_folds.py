"""What several services fold of allocations is the same, whatever the log has, and however late or often."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_cases import joined
from random_history import RandomHistory

from penstock_allocator import machine as allocator
from penstock_bus.decider import Fold
from penstock_gateway import machine as gateway
from penstock_gateway.machine import GatewaySettings
from penstock_matcher import machine as matcher
from penstock_testing import delivery


def folds() -> tuple[Fold[Any], Fold[Any], Fold[Any]]:
    of_matcher = matcher.decider(heard=dict.fromkeys)
    return Fold(allocator.decider()), Fold(gateway.decider(GatewaySettings())), Fold(of_matcher)


@pytest.mark.parametrize("seed", range(6))
def test_the_gateway_the_allocator_and_the_matcher_know_the_same_pilots_and_nodes(seed: int) -> None:
    facts = [joined("n1"), joined("n2"), *RandomHistory(seed, pilots=True).facts(400)]
    one, other, third = folds()
    decider = allocator.decider()
    ends, refused = 0, 0
    for seq, fact in enumerate(facts, 1):
        for fold in (one, other, third):
            fold.apply(delivery(seq, fact))
        found = msgspec.to_builtins(one.state.allocations)
        assert found == msgspec.to_builtins(other.state.allocations), fact
        assert one.state.cluster.nodes == other.state.cluster.nodes == third.state.cluster.nodes
        for allocation in one.state.allocations.by_name.values():
            assert not any(pilot.ended_s for pilot in allocation.pilots.values())
            assert all(pilot.ended_s for pilot in allocation.ended)
            assert sum(allocation.ends.values()) + len(allocation.pilots) <= allocation.made
            ends, refused = max(ends, len(allocation.ended)), max(refused, len(allocation.refused))
    assert ends, "no pilot ended: the history is too short to tell anything"
    for now_s in (facts[-1].at_s + 1.0, facts[-1].at_s + 1e4):  # random pilots are decided on, and no error comes of it
        decider.decide(one.state, now_s)


def test_some_history_has_users_whom_pilots_refuse() -> None:
    found = set[str]()
    for seed in range(6):
        fold = folds()[0]
        for seq, fact in enumerate([joined("n1"), *RandomHistory(seed, pilots=True).facts(400)], 1):
            fold.apply(delivery(seq, fact))
            found |= {user for one in fold.state.allocations.by_name.values() for user in one.refused}
    assert found
