"""
The allocator's settings, state, apply, decide.

The allocator folds what rounds are decided from, and the allocations with their pilots. It decides which pilots are to
be submitted, and when an allocation is paused because its pilots fail one after the other. What is decided here is a
fact before a provider hears of it: :mod:`penstock_allocator.keeper` submits what is planned. Settings come from the
table ``[allocator]`` or from ``PENSTOCK_ALLOCATOR_…``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from penstock_allocator.demand import NO_DEMAND, PilotDemand, wanted
from penstock_bus import UNHURRIED_S, Decider, Decision, Proposal
from penstock_cluster.allocations import OF_ALLOCATIONS, Allocation, AllocationTable
from penstock_log import (
    TERMINAL,
    AllocationAdded,
    AllocationResumed,
    Event,
    JobTable,
    PilotPlanned,
    PilotsPaused,
    RunEnded,
    subjects,
)
from penstock_log.allocation_spec import LABEL_ALLOCATION
from penstock_log.codec import AnyEvent
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.pool.scheduler_state import READ, SchedulerState, fold

_LONGEST_BACKOFF_S = 600.0


class AllocatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The allocator.

    Attributes
    ----------
    data_dir : str
        Holds a folder for each pilot, with its scripts, its token and what it prints. It has to be on a file system
        that the pilots' machines share with this one.
    checkpoint_dir : str
        Holds the checkpoints of jobs that run in pilots, who are gone when a job goes on elsewhere; on such a file
        system too. Empty: ``checkpoints`` in ``data_dir``.
    look_s : float
        The least time between two looks at what waits, in seconds.
    poll_s : float
        Seconds between two looks at the pilots of an allocation at their provider.
    most_failures : int
        After so many pilots that failed one after the other, an allocation is paused until somebody resumes it.
    backoff_s : float
        Seconds before a pilot is submitted after one that failed; doubles with each further one, to ten minutes.
    join_s : float
        A pilot that has run for so many seconds, and whose nodes have not joined, is cancelled. Where some have, the
        others are expected for as long.
    kubernetes_owner : str
        What the Pods of pilots belong to, as ``Deployment/NAME`` of their namespace: when it is deleted, they go with
        it. Empty: nothing.
    """

    data_dir: str = "penstock-data/allocator"
    checkpoint_dir: str = ""
    look_s: Annotated[float, Meta(gt=0)] = 1.0
    poll_s: Annotated[float, Meta(gt=0)] = 5.0
    most_failures: Annotated[int, Meta(ge=1)] = 3
    backoff_s: Annotated[float, Meta(ge=0)] = 10.0
    join_s: Annotated[float, Meta(gt=0)] = 300.0
    kubernetes_owner: str = ""


class DemandLook(NamedTuple):
    """A look at what waits for an allocation: the last change that it saw, when it was, and what it found."""

    seq: int
    at_s: float
    found: PilotDemand


class AllocatorState(SchedulerState):
    """
    The allocator's fold.

    Attributes
    ----------
    jobs : JobTable
        Open jobs.
    allocations : AllocationTable
    refused : dict of str to dict of str to None
        Allocation → the users whose jobs a node of its pilots has refused: further pilots would refuse them as well.
    seq : int
        Sequence of the last fact that could change what is decided.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    allocations: AllocationTable = msgspec.field(default_factory=AllocationTable)
    refused: dict[str, dict[str, None]] = msgspec.field(default_factory=dict)
    seq: int = 0

    @cached_property
    def looks(self) -> dict[str, DemandLook]:
        """Allocation → the last look at its demand; never saved: another look finds the same."""
        return {}


def decider(
    settings: AllocatorSettings | None = None, matcher: MatcherSettings | None = None
) -> Decider[AllocatorState]:
    """
    Return the allocator as the shell and tests run it.

    Parameters
    ----------
    matcher : MatcherSettings, optional
        The matcher's settings, for the rounds that are tried.
    """
    return Decider(
        name="allocator",
        state=AllocatorState,
        schema="allocator.3",
        apply=apply,
        decide=partial(decide, settings=settings or AllocatorSettings(), matcher=matcher or MatcherSettings()),
        reads=READ | OF_ALLOCATIONS,
        gather_s=lambda _: UNHURRIED_S,  # a pilot takes seconds
    )


def apply(state: AllocatorState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    changed, matters = fold(state, state.jobs, event)
    for job in changed:
        if job.state in TERMINAL:
            state.jobs.forget(job.id)
    _note_refusal(state, event)
    if state.allocations.apply(event) or matters:
        state.seq = seq


def _note_refusal(state: AllocatorState, event: Event) -> None:
    """Note that a pilot's node runs no jobs of a user, until a person resumes the allocation or adds it anew."""
    match event:
        case RunEnded(refuses_user=True):
            node, job = state.cluster.nodes.get(event.node_id), state.jobs.get(event.job_id)
            name = node.labels.get(LABEL_ALLOCATION, "") if node is not None else ""
            if job is not None and name in state.allocations.by_name:
                state.refused.setdefault(name, {})[job.spec.user] = None
        case AllocationAdded() | AllocationResumed():
            state.refused.pop(event.name, None)
        case _:
            pass


def decide(state: AllocatorState, now_s: float, settings: AllocatorSettings, matcher: MatcherSettings) -> Decision:
    """
    Return the pilots to be planned, and the pauses of allocations whose pilots fail.

    Of a pool, one allocation plans at a time: the next one is asked once the log has the pilots of the first, which
    count then.
    """
    proposals, wake_s, planning = [], math.inf, set[str]()
    for allocation in state.allocations.by_name.values():
        if allocation.spec.pool in planning:
            continue
        facts, again_s = _decided(state, allocation, now_s, settings, matcher)
        wake_s = min(wake_s, again_s)
        if facts:
            planning.add(allocation.spec.pool)
            proposals.append(Proposal(subject=subjects.pilots(allocation.name), facts=facts, cause=state.seq))
    return Decision(proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _decided(
    state: AllocatorState,
    allocation: Allocation,
    now_s: float,
    settings: AllocatorSettings,
    matcher: MatcherSettings,
) -> tuple[tuple[AnyEvent, ...], float]:
    """Return the facts of one allocation, and when to look at it again although nothing happens."""
    if allocation.state != "active":
        return (), math.inf
    if allocation.failures >= settings.most_failures:
        what = f"{allocation.failures} pilots failed one after the other, the last one because: {allocation.failure}"
        fact = PilotsPaused(name=allocation.name, failures=allocation.failures, reason=what, at_s=now_s)
        return (fact,), math.inf
    ready_s = _ready_s(allocation, settings)
    if now_s < ready_s:
        return (), ready_s
    most = room(allocation)
    if most < 1:
        return (), math.inf
    kept = min(most, allocation.spec.min_pilots - len(allocation.pilots))
    if kept > 0:
        found, again_s = PilotDemand(kept, f"at least {allocation.spec.min_pilots} are kept"), math.inf
    else:
        found, again_s = _look(state, allocation, now_s, settings, matcher=matcher, most=most)
    if allocation.failures:  # one at a time, until one of them joins
        found = found._replace(pilots=min(found.pilots, 1 - len(allocation.coming)))
    return tuple(_planned(allocation, found, now_s)), again_s


def room(allocation: Allocation) -> int:
    """Return how many more pilots an allocation may have now."""
    spec, waiting = allocation.spec, sum(not pilot.started_s for pilot in allocation.coming)
    return max(0, min(spec.max_pilots - len(allocation.pilots), spec.backlog - waiting))


def _ready_s(allocation: Allocation, settings: AllocatorSettings) -> float:
    """Return when another pilot may be submitted after those that failed."""
    if not allocation.failures:
        return 0.0
    return allocation.failed_s + min(_LONGEST_BACKOFF_S, settings.backoff_s * 2.0 ** (allocation.failures - 1))


def _look(
    state: AllocatorState,
    allocation: Allocation,
    now_s: float,
    settings: AllocatorSettings,
    *,
    matcher: MatcherSettings,
    most: int,
) -> tuple[PilotDemand, float]:
    """Return the demand for an allocation's pilots, if it is time to look, and when it will be time else."""
    last = state.looks.get(allocation.name)
    if last is not None and last.seq == state.seq and now_s < last.found.again_s:
        return last.found, last.found.again_s
    if last is not None and now_s < last.at_s + settings.look_s:
        return NO_DEMAND, last.at_s + settings.look_s
    found = demand_of(state, allocation, now_s, matcher, most, join_s=settings.join_s)
    found = found._replace(again_s=max(found.again_s, now_s + settings.look_s))
    state.looks[allocation.name] = DemandLook(state.seq, now_s, found)
    return found, found.again_s


def demand_of(
    state: AllocatorState,
    allocation: Allocation,
    now_s: float,
    matcher: MatcherSettings,
    most: int,
    *,
    join_s: float,
) -> PilotDemand:
    """Return how many more pilots of an allocation the jobs that wait would run on, ``most`` at most."""
    pool = allocation.spec.pool
    others = [one for one in state.allocations.by_name.values() if one is not allocation and one.spec.pool == pool]
    rules = rules_of(state, pool, matcher)
    return wanted(
        state,
        state.jobs,
        allocation,
        others,
        refused=state.refused,
        now_s=now_s,
        join_s=join_s,
        rules=rules,
        most=most,
    )


def _planned(allocation: Allocation, found: PilotDemand, now_s: float) -> Iterator[PilotPlanned]:
    for number in range(allocation.made + 1, allocation.made + 1 + max(0, found.pilots)):
        pilot_id = f"{allocation.name}-{number}"
        yield PilotPlanned(name=allocation.name, pilot_id=pilot_id, reason=found.reason, at_s=now_s)
