"""
The assigner's state, apply, decide.

The assigner folds jobs, nodes, agents, aggregators and what these measure. It decides which part of which run is on
which aggregator, and which aggregators there are: one thing at a time in each pool, as
:mod:`penstock_scheduler.aggregation.assignment_step` says.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import NamedTuple

import msgspec

from penstock_bus import UNHURRIED_S, Decider, Decision, Proposal
from penstock_cluster.nodes import OF_NODES, Cluster
from penstock_log import (
    TERMINAL,
    Event,
    JobTable,
    RunCheckpointed,
    RunMeasured,
    RunRewound,
    lifecycle,
    subjects,
)
from penstock_scheduler.aggregation.aggregation_table import OF_AGGREGATION, AggregationTable
from penstock_scheduler.aggregation.assignment_step import AssignerSettings, next_step


def decider(settings: AssignerSettings | None = None) -> Decider[AssignerState]:
    """Return the assigner as the shell and tests run it."""
    return Decider(
        name="assigner",
        state=AssignerState,
        schema="assigner.3",
        apply=apply,
        decide=partial(decide, settings=settings or AssignerSettings()),
        reads=OF_NODES | OF_AGGREGATION | lifecycle.OF_JOBS,
        ignores=frozenset({RunMeasured, RunCheckpointed, RunRewound}),
        gather_s=lambda state: 0.0 if state.table.runs else UNHURRIED_S,
    )


def apply(state: AssignerState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    pools = set()
    if type(event) in OF_NODES and state.cluster.apply(event):
        pools |= state.cluster.pools() | {agent.pool for agent in state.table.agents.values()}
    changed = state.jobs.apply(event)
    pools |= state.table.apply(event, state.jobs, changed)
    for pool in pools:
        state.changes[pool] = seq
    for job in changed:
        if job.state in TERMINAL:
            state.jobs.forget(job.id)


def decide(state: AssignerState, now_s: float, settings: AssignerSettings) -> Decision:
    """Return the next step of each pool; one that had none is looked at after a change, or when it said."""
    proposals, wake_s = [], math.inf
    for pool in state.table.pools():
        seq, rest = state.changes.get(pool, 0), state.rests.get(pool)
        if rest is not None and rest.seq == seq and now_s < rest.until_s:
            wake_s = min(wake_s, rest.until_s)
            continue
        step = next_step(state.table, state.cluster, pool, now_s, settings)
        subject = subjects.aggregation(pool)
        proposals += [Proposal(subject=subject, facts=facts, cause=seq) for facts in step.commits]
        if not step.commits:
            state.rests[pool] = AssignerRest(seq, step.again_s)
            wake_s = min(wake_s, step.again_s)
    return Decision(proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


class AssignerRest(NamedTuple):
    """A look at a pool that found nothing to do: the last change that it saw, and until when it holds."""

    seq: int
    until_s: float


class AssignerState(msgspec.Struct, dict=True):
    """
    Nodes, jobs that are not over, and what is aggregated where.

    Attributes
    ----------
    changes : dict of str to int
        Pool → sequence of the last fact that could change an assignment there.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jobs: JobTable = msgspec.field(default_factory=JobTable)
    table: AggregationTable = msgspec.field(default_factory=AggregationTable)
    changes: dict[str, int] = msgspec.field(default_factory=dict)

    @cached_property
    def rests(self) -> dict[str, AssignerRest]:
        """Pool → the last look at it, where that found nothing; never saved: another look finds the same."""
        return {}
