"""
The allocator's settings, state, apply, decide.

The allocator folds what rounds are decided from, and the allocations with their pilots. It decides which pilots are to
be submitted, and when an allocation is paused because its pilots fail one after the other. What is decided here is a
fact before a provider hears of it: :mod:`penstock_allocator.keeper` submits what is planned. Settings come from the
table ``[allocator]`` or from ``PENSTOCK_ALLOCATOR_…``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, partial
from typing import Annotated, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from penstock_allocator.demand import NO_DEMAND, PilotDemand, spare, wanted
from penstock_allocator.withdrawal import SpareWatch
from penstock_bus import UNHURRIED_S, Decider, Decision, Proposal
from penstock_cluster.allocations import OF_ALLOCATIONS, Allocation, AllocationTable
from penstock_log import (
    TERMINAL,
    Event,
    JobTable,
    PilotPlanned,
    PilotsPaused,
    PilotWithdrawn,
    subjects,
)
from penstock_log.codec import AnyEvent
from penstock_log.text import duration
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.pool.scheduler_state import READ, SchedulerState, fold
from penstock_scheduler.round_types import RoundRules

_LONGEST_BACKOFF_S = 600.0
_SIZE_OF_LOOK = 1_000
_LEAST_LOOK = 0.1


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
        The least time between two looks at what waits, in seconds, where there are a thousand open jobs, nodes and
        pilots to come. A look costs the time of a few rounds: with fewer of them it may be sooner, down to a tenth.
    poll_s : float
        Seconds between two looks at the pilots of an allocation at their provider.
    most_failures : int
        After so many pilots that failed one after the other, an allocation is paused until somebody resumes it.
    backoff_s : float
        Seconds before a pilot is submitted after one that failed; doubles with each further one, to ten minutes.
    join_s : float
        A pilot that has run for so many seconds, and whose nodes have not joined, is cancelled. Where some have, the
        others are expected for as long.
    withdraw_s : float
        A pilot that waits for its start is withdrawn once no waiting job would run on it for so many seconds.
    kubernetes_owner : str
        What the Pods of pilots belong to, as ``Deployment/NAME`` of their namespace: when it is deleted, they go with
        it. Empty: nothing.
    kubernetes_namespace : str
        Of the Pods of allocations that name none. Empty: that of the login to Kubernetes.
    """

    data_dir: str = "penstock-data/allocator"
    checkpoint_dir: str = ""
    look_s: Annotated[float, Meta(gt=0)] = 1.0
    poll_s: Annotated[float, Meta(gt=0)] = 5.0
    most_failures: Annotated[int, Meta(ge=1)] = 3
    backoff_s: Annotated[float, Meta(ge=0)] = 10.0
    join_s: Annotated[float, Meta(gt=0)] = 300.0
    withdraw_s: Annotated[float, Meta(gt=0)] = 60.0
    kubernetes_owner: str = ""
    kubernetes_namespace: str = ""


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
    seq : int
        Sequence of the last fact that could change what is decided.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    allocations: AllocationTable = msgspec.field(default_factory=AllocationTable)
    seq: int = 0

    @cached_property
    def looks(self) -> dict[str, DemandLook]:
        """Allocation → the last look at its demand; never saved: another look finds the same."""
        return {}

    @cached_property
    def watch(self) -> SpareWatch:
        """For how long pilots have been spare; never saved: another allocator waits anew."""
        return SpareWatch()


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
        schema="allocator.4",
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
    state.allocations.note_refusal(event, state.cluster, state.jobs)
    if state.allocations.apply(event) or matters:
        state.seq = seq


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
        if not facts:
            facts, later_s = _withdrawn(state, allocation, now_s, settings, matcher)
            again_s = min(again_s, later_s)
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
    if not allocation.devices:  # no more than may fail before it is paused, until one of them joins
        found = found._replace(pilots=min(found.pilots, settings.most_failures - len(allocation.coming)))
    if allocation.failures:  # one at a time, until one of them joins
        found = found._replace(pilots=min(found.pilots, 1 - len(allocation.coming)))
    return tuple(_planned(allocation, found, now_s)), again_s


def _withdrawn(
    state: AllocatorState,
    allocation: Allocation,
    now_s: float,
    settings: AllocatorSettings,
    matcher: MatcherSettings,
) -> tuple[tuple[PilotWithdrawn, ...], float]:
    """Return which pilots are withdrawn, the last ones first, and when to look again although nothing happens."""
    waiting = [pilot for pilot in allocation.coming if not pilot.started_s]
    if not waiting or allocation.removed_s:
        state.watch.forget(allocation.name)
        return (), math.inf

    def spare_now() -> int:
        return spare(
            state,
            state.jobs,
            allocation,
            _others(state, allocation),
            **_terms(state, allocation, now_s, settings.join_s, matcher),
        )

    mark = max((pilot.withdrawn_s for pilot in allocation.pilots.values()), default=0.0)
    over, again_s = state.watch.over(allocation.name, (state.seq, now_s), settings.withdraw_s, mark, spare_now)
    why = f"no waiting job would run on it, for {duration(settings.withdraw_s)} by now"
    facts = (
        PilotWithdrawn(name=allocation.name, pilot_id=pilot.id, reason=why, at_s=now_s)
        for pilot in waiting[len(waiting) - over :]
    )
    return tuple(facts), again_s


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
    size = len(state.jobs) + len(state.cluster.nodes) + allocation.spec.max_pilots * allocation.spec.nodes
    look_s = settings.look_s * min(1.0, max(_LEAST_LOOK, size / _SIZE_OF_LOOK))
    if last is not None and now_s < last.at_s + look_s:
        return NO_DEMAND, last.at_s + look_s
    found = demand_of(state, allocation, now_s, matcher, most, join_s=settings.join_s)
    found = found._replace(again_s=max(found.again_s, now_s + look_s))
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
    terms = _terms(state, allocation, now_s, join_s, matcher)
    return wanted(state, state.jobs, allocation, _others(state, allocation), most=most, **terms)


class _Terms(TypedDict):
    """What every look at an allocation's demand is made with."""

    refused: Mapping[str, Collection[str]]
    now_s: float
    join_s: float
    rules: RoundRules


def _others(state: AllocatorState, allocation: Allocation) -> list[Allocation]:
    """Return the other allocations of an allocation's pool."""
    known = state.allocations.by_name.values()
    return [one for one in known if one is not allocation and one.spec.pool == allocation.spec.pool]


def _terms(
    state: AllocatorState, allocation: Allocation, now_s: float, join_s: float, matcher: MatcherSettings
) -> _Terms:
    return _Terms(
        refused={one.name: one.refused for one in state.allocations.by_name.values()},
        now_s=now_s,
        join_s=join_s,
        rules=rules_of(state, allocation.spec.pool, matcher),
    )


def _planned(allocation: Allocation, found: PilotDemand, now_s: float) -> Iterator[PilotPlanned]:
    for number in range(allocation.made + 1, allocation.made + 1 + max(0, found.pilots)):
        pilot_id = f"{allocation.name}-{number}"
        yield PilotPlanned(name=allocation.name, pilot_id=pilot_id, reason=found.reason, at_s=now_s)
