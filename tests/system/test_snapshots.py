"""State is the fold of the log: snapshots, and the lack of them, change nothing; for every service that decides."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_clusters import facts, log

from penstock_bus import Append, Decider
from penstock_bus.decider import Fold
from penstock_bus.follower import FoldFollower
from penstock_bus.memory import MemoryBus
from penstock_bus.nats import NatsBus
from penstock_log import AnyEvent
from penstock_log.services import CORE, ISSUER, WRITERS
from penstock_testing import check_replay
from sweeps import examples

FOLDING = [service for service in CORE if find_spec(f"penstock_{service}.machine") is not None]
"""Services that decide by a fold of the log; one that only answers has no machine."""


def decider_of(service: str) -> Decider[Any]:
    machine = import_module(f"penstock_{service}.machine")
    arguments = {"gateway": lambda: [machine.GatewaySettings()], "memory": lambda: ["n1"], "aggregator": lambda: ["n1"]}
    found = machine.decider(*arguments.get(service, list)())
    assert isinstance(found, Decider)
    return found


def test_all_that_write_facts_are_among_those_that_decide() -> None:
    assert {WRITERS[kind] for kind in WRITERS} <= {*FOLDING, ISSUER}


def test_the_recorded_history_has_every_kind_of_fact() -> None:
    assert {type(fact) for fact in facts()} == set(get_args(AnyEvent))


@pytest.mark.parametrize("service", FOLDING)
def test_a_snapshot_anywhere_in_the_history_changes_nothing(service: str) -> None:
    decider, history = decider_of(service), log()
    whole = Fold(decider)
    for delivery in history:
        whole.apply(delivery)
    for cut in range(len(history) + 1):
        before, after = Fold(decider), Fold(decider)
        for delivery in history[:cut]:
            before.apply(delivery)
        assert after.restore(before.snapshot())
        for delivery in history:
            after.apply(delivery)
        assert after.encoded() == whole.encoded(), f"a snapshot after {cut} commits changes the state"


@pytest.mark.parametrize("service", FOLDING)
@settings(max_examples=examples(30), deadline=None)
@given(history=st.permutations(facts()))
def test_no_order_of_facts_is_refused_and_all_replay_alike(service: str, history: list[AnyEvent]) -> None:
    check_replay(decider_of(service), log(history))


@pytest.mark.parametrize("service", FOLDING)
async def test_deleting_all_snapshots_and_restarting_gives_the_same_state(
    service: str, nats_bus: NatsBus, memory_bus: MemoryBus
) -> None:
    for bus in (nats_bus, memory_bus):
        decider, half = decider_of(service), len(log()) // 2
        for delivery in log()[:half]:
            await bus.append(Append(subject=delivery.subject, commit=delivery.commit, expected=None))
        async with FoldFollower(bus, decider) as live:
            await live.caught_up()
            assert await live.save_snapshot()
            for delivery in log()[half:]:
                await bus.append(Append(subject=delivery.subject, commit=delivery.commit, expected=None))
            await live.caught_up()
            lived = live.fold.encoded()
        async with FoldFollower(bus, decider) as resumed:
            assert resumed.last_seq >= half, "it did not start from the snapshot"
            await resumed.caught_up()
            assert resumed.fold.encoded() == lived
        await bus.delete_snapshots()
        async with FoldFollower(bus, decider) as rebuilt:
            await rebuilt.caught_up()
            assert rebuilt.fold.encoded() == lived
