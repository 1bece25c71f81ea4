"""The fold of an agent, and the orders that an aggregator is owed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fact_factories import ended, placed, submitted
from hypothesis import given
from hypothesis import strategies as st

from penstock_aggregator.machine import (
    AggregatorSettings,
    AggregatorState,
    AggregatorView,
    CopyOwed,
    apply,
    decider,
    owed_orders,
)
from penstock_log import (
    AggregationAsked,
    AggregationAssigned,
    AggregationLeft,
    AggregatorEnded,
    AggregatorsAllocated,
    AggregatorsOffered,
    AggregatorsRecycled,
    AnyEvent,
    PartPlaced,
)
from penstock_log.aggregation_messages import CloseRun

NAMES = ("n1/0", "n1/1", "n2/0")
NODE = {"at_s": 2.0, "node_id": "n1"}


class Folding:
    """An agent's fold, and a view of each of three aggregators."""

    def __init__(self, *facts: AnyEvent) -> None:
        self.state, self.seq = AggregatorState(), 0
        self.views = {name: AggregatorView(name=name) for name in NAMES}
        self.fold(*facts)

    def fold(self, *facts: AnyEvent) -> None:
        for fact in facts:
            self.seq += 1
            apply("n1", self.state, fact, self.seq)

    def orders(self, name: str = "n1/0") -> list[str]:
        """Give an aggregator its orders, and return them in short."""
        view, found = self.views[name], []
        for order in owed_orders(self.state, view):
            view.note(order)
            kind = type(order).__name__
            found.append(f"{kind} {getattr(order, 'part', '')} {getattr(order, 'generation', '')}".strip())
        return found


def asked(job_id: str = "j1", epoch: int = 1, **more: Any) -> AggregationAsked:
    about = {"pool": "default", "world_size": 1, "parts": (8, 8), "nodes": ("n1",)}
    return AggregationAsked(**NODE, job_id=job_id, epoch=epoch, **{**about, **more})


def assigned(generation: int, *parts: PartPlaced, job_id: str = "j1", epoch: int = 1) -> AggregationAssigned:
    about = {"pool": "default", "job_id": job_id, "epoch": epoch, "phase": "profile"}
    return AggregationAssigned(at_s=3.0, generation=generation, placed=parts, **about)  # type: ignore[arg-type]


def at(name: str, part: int = 0, generation: int = 1, before: str = "") -> PartPlaced:
    return PartPlaced(
        part=part, aggregator=name, generation=generation, how="copy" if before else "join", before=before
    )


def running(**more: Any) -> Folding:
    """A run on the first node that asks for aggregation."""
    return Folding(submitted("j1"), placed("j1"), asked(**more))


def test_ports_of_all_aggregators_have_to_be_ports() -> None:
    assert AggregatorSettings(port=65_532).most == 4
    with pytest.raises(ValueError, match="too few ports behind it"):
        AggregatorSettings(port=65_535)


def test_what_is_allocated_here_is_to_run_until_it_is_recycled_or_has_ended() -> None:
    folding = Folding(AggregatorsAllocated(at_s=1.0, pool="default", aggregators=("n1/0", "n2/0", "n1/1")))
    assert folding.state.allocated == {"n1/0": 1, "n1/1": 1}
    folding.fold(
        AggregatorsRecycled(at_s=1.0, pool="default", aggregators=("n1/0",)),
        AggregatorsAllocated(at_s=1.0, pool="default", aggregators=("n1/0",)),
        AggregatorEnded(**NODE, aggregator="n1/0", why="recycled"),  # of the first one
        AggregatorEnded(**NODE, aggregator="n1/1", why="killed"),
    )
    assert folding.state.allocated == {"n1/0": 3}
    folding.fold(AggregatorsOffered(**NODE, pool="default", most=1, incarnation="b"))
    assert (folding.state.allocated, folding.state.incarnation) == ({}, "b")


def test_parts_are_opened_once_and_again_in_another_generation_only() -> None:
    folding = running()
    assert folding.orders() == []
    folding.fold(assigned(1, at("n1/0"), at("n1/0", 1)))
    assert folding.orders() == ["OpenPart 0 1", "OpenPart 1 1"]
    assert folding.orders() == []
    folding.fold(assigned(2, at("n1/0"), at("n1/0", 1, generation=2)))
    assert folding.orders() == ["OpenPart 1 2"]


def test_a_part_that_is_copied_elsewhere_is_owed_a_copy_once_and_its_results_stay() -> None:
    folding = running()
    folding.fold(assigned(1, at("n1/0")))
    folding.orders()
    folding.fold(assigned(2, at("n2/0", generation=2, before="n1/0")))
    assert folding.orders() == ["CopyOwed 0 2"]
    assert folding.orders() == []
    assert folding.orders("n2/0") == ["OpenPart 0 2"]
    folding.fold(assigned(3, at("n1/1", generation=3, before="n2/0")))
    assert (folding.orders(), folding.orders("n2/0")) == ([], ["CopyOwed 0 3"])
    folding.fold(assigned(4, at("n1/1", generation=4)))  # joined: what others held of it is no use
    assert (folding.orders(), folding.orders("n2/0")) == (["DropPart 0 1"], ["DropPart 0 2"])


def test_a_copy_from_an_aggregator_that_does_not_hold_the_part_is_known_as_such() -> None:
    folding = running()
    folding.fold(assigned(1, at("n1/1", before="n1/0")))
    (owed,) = owed_orders(folding.state, folding.views["n1/0"])
    assert owed == CopyOwed(job_id="j1", epoch=1, part=0, generation=1, to="n1/1", held=False)


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (AggregationLeft(**NODE, job_id="j1", epoch=1), "run 1 of job j1 needs no aggregation any more"),
        (ended("j1"), "job j1 has ended: it is completed"),
        (ended("j1", outcome="preempted"), "run 1 of job j1 is over; the last one is 1"),
    ],
)
def test_a_run_that_is_over_is_closed_with_the_reason(fact: AnyEvent, reason: str) -> None:
    folding = running()
    folding.fold(assigned(1, at("n1/0")))
    folding.orders()
    folding.fold(fact)
    assert list(owed_orders(folding.state, folding.views["n1/0"])) == [CloseRun(job_id="j1", epoch=1, reason=reason)]
    assert folding.orders() == ["CloseRun"]
    assert folding.orders() == []


def test_what_is_said_of_a_run_that_does_not_ask_or_is_over_changes_nothing() -> None:
    folding = Folding(submitted("j1"), placed("j1"), assigned(1, at("n1/0")), asked(epoch=2), asked("j9"))
    assert folding.state.runs == {}
    folding.fold(asked(), assigned(1, at("n1/0"), epoch=2))
    assert folding.state.runs["j1"].generation == 0


def test_where_the_parts_of_runs_are_that_have_nothing_to_do_with_this_node_is_not_kept() -> None:
    folding = running(nodes=("n3",))
    folding.fold(assigned(1, at("n2/0")))
    assert folding.state.runs["j1"].placed == ()
    folding.fold(assigned(2, at("n1/0", generation=2)))
    assert folding.orders() == ["OpenPart 0 2"]
    folding.fold(assigned(3, at("n2/0", generation=3)))
    assert folding.orders() == ["DropPart 0 2"]


PLACES = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=2, max_size=2)


@given(st.lists(PLACES, max_size=12), st.integers(1, 3))
def test_an_aggregator_holds_the_parts_that_are_assigned_to_it_however_many_assignments_it_sees_at_once(
    moves: list[list[tuple[str, bool]]], every: int
) -> None:
    folding, where = running(), [at("n1/0", part, 0) for part in range(2)]
    for generation, places in enumerate(moves, 1):
        for part, (name, copies) in enumerate(places):
            if where[part].aggregator != name or generation == 1:
                before = where[part].aggregator if copies and generation > 1 else ""
                where[part] = at(name, part, generation, before)
        folding.fold(assigned(generation, *where))
        if generation % every == 0:
            for name in NAMES:
                folding.orders(name)
    for name, view in folding.views.items():
        folding.orders(name)
        assert folding.orders(name) == []
        if moves:
            expected = {part.part: part.generation for part in where if part.aggregator == name}
            held = {key[2]: generation for key, generation in view.opened.items() if key not in view.sent}
            assert {part: held.get(part) for part in expected} == expected


def test_a_snapshot_of_the_fold_is_the_fold() -> None:
    folding = running()
    folding.fold(assigned(1, at("n1/0"), at("n2/0", 1)))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(folding.state), type=AggregatorState)
    assert again == folding.state
    assert decider("n1").schema != decider("n2").schema
