"""The index says what the fold says; and a round that looks at few jobs decides as one that looks at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matcher_facts import ended, job, matcher, node, queued, rounds, run_all, slot, started
from msgspec.structs import replace

from penstock_bus.decider import Fold
from penstock_log import (
    AnyEvent,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    JobCancelled,
    JobHeld,
    JobRank,
    JobReleased,
    JobsRanked,
    NodeDrained,
    NodeLeaving,
    NodeLeft,
    NodeResumed,
    Placement,
    Preemption,
    RoundDecided,
    RunCheckpointed,
    Slot,
)
from penstock_matcher import machine
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_scheduler.pool.pool_index import PoolIndex
from penstock_scheduler.pool.pool_view import PoolView, can_be_stopped
from penstock_scheduler.pool.run_columns import shape_of
from penstock_scheduler.round_types import PreemptibleRun, RoundRules
from penstock_testing import delivery
from sweeps import examples

SEATS = ((0, 1), (0, 1), (3, 4))
"""Where runs of two devices are, on the nodes in turn."""

NODES, JOBS = ("n1", "n2"), ("a", "b", "c", "d", "e")


def ranks(name: str, at_s: float) -> st.SearchStrategy[JobRank]:
    return st.builds(
        JobRank,
        job_id=st.just(name),
        queue=st.integers(0, 2),
        position=st.just(at_s),
        falls_per_s=st.sampled_from([0.0, 1.0]),
    )


@st.composite
def facts(draw: st.DrawFn) -> AnyEvent:
    """Anything that may be in a log, whether it fits what came before or not."""
    at_s, name, node_id = draw(st.floats(1.0, 50.0)), draw(st.sampled_from(JOBS)), draw(st.sampled_from(NODES))
    epoch, gpus = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    placement = Placement(
        job_id=name,
        epoch=epoch,
        kind="fast",
        slots=(Slot(node_id=node_id, devices=tuple(draw(st.sets(st.integers(0, 2), min_size=1, max_size=2)))),),
    )
    choices: list[AnyEvent] = [
        job(
            name,
            at_s,
            gpus=gpus,
            hold=draw(st.booleans()),
            retries=1,
            profile=draw(st.sampled_from(["auto", "on", "off"])),
        ),
        RoundDecided(pool="default", at_s=at_s, placements=(placement,)),
        RoundDecided(pool="default", at_s=at_s, preemptions=(Preemption(job_id=name, epoch=epoch),)),
        RoundDecided(pool="default", at_s=at_s, lost_nodes=(node_id,)),
        *started(placement, at_s),
        RunCheckpointed(job_id=name, at_s=at_s, node_id=node_id, epoch=epoch, step=3),
        ended(name, at_s, node_id, epoch, draw(st.sampled_from(["completed", "failed", "preempted"]))),
        JobsRanked(pool="default", at_s=at_s, ranks=(draw(ranks(name, at_s)),)),
        draw(st.sampled_from([JobHeld, JobReleased, JobCancelled]))(job_id=name, at_s=at_s),
        node(node_id, at_s, fast=2, slow=1),
        NodeLeaving(node_id=node_id, at_s=at_s),
        NodeLeft(node_id=node_id, at_s=at_s),
        NodeDrained(node_id=node_id, at_s=at_s, preempt=draw(st.booleans())),
        NodeResumed(node_id=node_id, at_s=at_s),
        DeviceFailed(node_id=node_id, at_s=at_s, index=draw(st.integers(0, 2)), code="xid 79"),
        DeviceDrained(node_id=node_id, at_s=at_s, index=draw(st.integers(0, 2)), preempt=draw(st.booleans())),
        draw(st.sampled_from([DeviceRecovered, DeviceResumed]))(
            node_id=node_id, at_s=at_s, index=draw(st.integers(0, 2))
        ),
    ]
    return draw(st.sampled_from(choices))


def said(index: PoolIndex) -> dict[str, Any]:
    """All that an index says."""
    return {
        "entries": index.entries,
        "nodes": index.nodes,
        "away": index.away,
        "free": index.free.by_node(),
        "whole": index.whole.by_node(),
        "waiting": list(index.waiting),
        "granted": list(index.granted),
        "groups": {d: (list(g.keys), list(g.since)) for d, g in index.groups.items()},
        "held": index.held,
        "fresh": list(index.fresh),
        "delayed": index.delayed,
        "stopping": index.stopping,
        "below": +index.below,
        "evicting": index.evicting,
    }


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(facts(), max_size=40), st.lists(st.integers(0, 39), max_size=3))
def test_a_roster_that_followed_is_one_that_is_built_anew(history, asked_at):
    fold = Fold(machine.decider())
    for number, fact in enumerate([node("n1", fast=2, slow=1), node("n2", fast=2, slow=1), *history]):
        fold.apply(delivery(number + 1, fact))
        state = fold.state
        followed = state.pool("default", state.jobs).index
        if number in asked_at:  # a round takes devices while it lasts, and gives them back
            fold.decider.decide(state, 60.0)
        anew = PoolIndex("default", state.cluster, state.ranks, state.jobs_of("default", state.jobs))
        assert said(followed) == said(anew)
        _nothing_is_free_that_somebody_holds(state, followed)
    followed, built = state.pool("default", state.jobs), replace(state.pool("default", state.jobs), index=anew)
    assert reckoned(followed) == reckoned(built) == {run.ranked.job_id: plain(run, built) for run in anew.runs()}


def test_what_happens_to_a_run_counts_at_once():
    """A checkpoint, or a position that falls, changes neither the order nor who holds what."""
    fold, rank = Fold(machine.decider()), JobRank(job_id="a", queue=0, position=1.0, falls_per_s=1.0)
    placement = Placement(job_id="a", epoch=1, kind="fast", slots=(slot("n1", 0),))
    before = [node("n1", fast=2), job("a"), RoundDecided(pool="default", at_s=2.0, placements=(placement,))]
    later = [
        *started(placement, 2.0),
        RunCheckpointed(job_id="a", at_s=40.0, node_id="n1", epoch=1, step=3),
        JobsRanked(pool="default", at_s=41.0, ranks=(rank,)),
        RoundDecided(pool="default", at_s=42.0, preemptions=(Preemption(job_id="a", epoch=1),)),
    ]
    for number, fact in enumerate([*before, *later]):
        fold.apply(delivery(number + 1, fact))
        pool = fold.state.pool("default", fold.state.jobs)
        assert reckoned(pool) == {run.ranked.job_id: plain(run, pool) for run in pool.index.runs()}
    assert reckoned(pool)["a"][4] == 40.0


def reckoned(pool: PoolView) -> dict[str, Any]:
    """What columns say of each lease."""
    found, stoppable = pool.index.grants.runs(pool.terms(pool.context(60.0, RoundRules())))
    columns = zip(found.started_s, found.saved_s, found.overhead_s, found.switch_s, found.saves, stoppable, strict=True)
    places = zip(found.queue, found.position, found.devices, strict=True)
    shapes = [found.shapes[at] for at in found.group]
    return {
        found.name(i): (*place, *rest, shapes[i]) for i, (place, rest) in enumerate(zip(places, columns, strict=True))
    }


def plain(run: PreemptibleRun, pool: PoolView) -> tuple[Any, ...]:
    """The same of one lease, from the job."""
    job, cost = run.ranked.job, pool.context(60.0, RoundRules()).cost(run.ranked.job)
    queue, position = pool.ranked_by(run.ranked, 60.0)[:2]
    saved_s, stoppable = (
        60.0 - job.unsaved_by(60.0) if job.started_s else 0.0,
        can_be_stopped(job) and bool(run.devices),
    )
    figures = job.started_s, pytest.approx(max(saved_s, job.checkpointed_s)), cost.overhead_s, cost.switch_s, cost.saves
    return queue, position, len(run.devices), *figures, stoppable, (run.kind, shape_of(run))


def _nothing_is_free_that_somebody_holds(state: machine.MatcherState, index: PoolIndex) -> None:
    free = {(node_id, device.index) for node_id, device in index.free}
    whole = {(node_id, device.index) for node_id, device in index.whole}
    held = {
        (slot.node_id, index)
        for each in state.jobs
        if each.placement is not None
        for slot in each.placement.slots
        if slot.node_id in each.open_nodes
        for index in slot.devices
    }
    assert free == whole - held


many = st.fixed_dictionaries(
    {"gpus": st.sampled_from([1, 1, 2, 3])},
    optional={"kinds": st.sampled_from([("fast",), ("slow",)]), "duration_s": st.floats(1.0, 90.0)},
)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(many, st.integers(0, 2), st.floats(0.0, 50.0)), min_size=1, max_size=14),
    st.integers(0, 3),
    st.sampled_from(["2d-las", "fifo", "fifo-backfill", "fewest-gpus"]),
)
def test_a_round_that_looks_at_few_decides_as_one_that_looks_at_all(specs, running, order):
    few, every = (
        matcher(min_run_s=1.0, patience_s=20.0, alpha=alpha).given(*_history(specs, running, order)).at(60.0)
        for alpha in (1.0, 0.999)  # of two users both come in either way, but fairness looks at all that wait
    )
    assert few.facts() == every.facts()


def test_what_one_job_leaves_of_a_run_that_it_preempts_is_kept_for_one_that_could_preempt_nobody():
    found = []
    for alpha in (1.0, 0.999):
        one = matcher(min_run_s=1.0, alpha=alpha).given(node("n1", slow=2), job("old", 0.6, gpus=2, user="ann"))
        run_all(one, 1.0)
        one.given(job("new", 50.0, kinds=("slow",), user="bob"), job("last", 2.0, user="ann"))
        found += rounds(one.given(queued(50.0, old=2, last=2)).at(60.0).settle())
    few, every = found
    assert [preemption.job_id for preemption in few.preemptions] == ["old"]
    assert few.waits == every.waits


def _history(specs: list[tuple[dict[str, Any], int, float]], running: int, order: str) -> Iterator[AnyEvent]:
    yield from (node("n1", fast=3, slow=2), node("n2", fast=2, slow=2))
    for i in range(running):
        yield job(f"r{i}", 0.6, gpus=2)
        placement = Placement(
            job_id=f"r{i}", epoch=1, kind="fast" if i < 2 else "slow", slots=(slot(f"n{i % 2 + 1}", *SEATS[i]),)
        )
        yield RoundDecided(pool="default", at_s=1.0, placements=(placement,))
        yield from started(placement, 1.0)
    mode = QUEUE_POLICIES[order].mode
    for i, (fields, queue, at_s) in enumerate(specs):
        yield job(f"j{i}", at_s + 1.0, user="ann" if i % 2 else "bob", **fields)
        rank = JobRank(job_id=f"j{i}", queue=0 if mode.positions_bind else queue, position=at_s)
        yield JobsRanked(pool="default", at_s=at_s, ranks=(rank,), backfills=mode.backfills, preempts=mode.preempts)
    ranks = tuple(
        JobRank(job_id=f"r{i}", queue=0 if mode.positions_bind else 1 + i % 2, position=30.0) for i in range(running)
    )
    yield JobsRanked(pool="default", at_s=50.0, ranks=ranks, backfills=mode.backfills, preempts=mode.preempts)
