"""
The matcher's pure part: the fold of nodes, jobs, ranks and speeds, and one round a pool.

A round is one fact, so all of its placements become true together. The matcher owns the leases: a device is taken from
its placement until the run's end on that node is in the log, or the node is declared lost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_events import (
    TERMINAL,
    Event,
    Job,
    Jobs,
    JobsRanked,
    Rank,
    RoundDecided,
    RunEnded,
    WorkloadProfiled,
    subjects,
    workload,
)
from penstock_events import State as JobState
from penstock_matcher.settings import Settings
from penstock_policies.cluster import Cluster, Node
from penstock_policies.rounds.decide import decide_pool
from penstock_policies.rounds.pool import Pool
from penstock_policies.speeds import Speeds

REMEMBERED: Final = 256
"""Finished jobs of a pool whose service is remembered."""

WORKLOADS: Final = 4096
"""Workloads whose overhead is remembered."""


class Explained(msgspec.Struct, frozen=True):
    """What the last round of a pool said: when, and each waiting job's cause."""

    at_s: float
    causes: dict[str, str]


class State(msgspec.Struct):
    """
    What the matcher knows.

    Attributes
    ----------
    jobs : Jobs
        Those that are not over.
    ranks : dict of str to Rank
    keys : dict of str to str
        Job → workload key.
    finished_s : dict of str to list of float
        Pool → service that its last finished jobs needed, seconds at speed 1.
    overhead_s : dict of str to float
        Workload key → seconds of a run in which it does not advance, a moving average.
    promised : set of str
        Waiting jobs for which others were preempted, until they start.
    explained : dict of str to Explained
        Pool → what its last round said.
    seq : int
        Last fact that could change a round.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jobs: Jobs = msgspec.field(default_factory=Jobs)
    ranks: dict[str, Rank] = msgspec.field(default_factory=dict)
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    speeds: Speeds = msgspec.field(default_factory=Speeds)
    finished_s: dict[str, list[float]] = msgspec.field(default_factory=dict)
    overhead_s: dict[str, float] = msgspec.field(default_factory=dict)
    promised: set[str] = msgspec.field(default_factory=set)
    explained: dict[str, Explained] = msgspec.field(default_factory=dict)
    seq: int = 0


Heard = Callable[[Iterable[str], float], Mapping[str, float]]
"""``heard(nodes, now_s)``: when each was last heard of, as :class:`penstock_matcher.liveness.Liveness` tells it."""


def decider(settings: Settings | None = None, heard: Heard | None = None) -> Decider[State]:
    """
    Return the matcher as the shell, the simulator and tests run it.

    Without ``heard``, no node is ever declared lost: a simulation or a replay says itself when nodes are.
    """
    chosen = settings or Settings()

    def decide_now(state: State, now_s: float) -> Decision:
        return decide(state, now_s, heard(state.cluster.nodes, now_s) if heard else {}, chosen)

    return Decider(name="matcher", state=State, schema="matcher.3", apply=apply, decide=decide_now)


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in."""
    known = state.cluster.apply(event)
    match event:
        case WorkloadProfiled():
            state.speeds.apply(event)
            known = True
        case JobsRanked():
            state.ranks.update({rank.job_id: rank for rank in event.ranks if rank.job_id in state.jobs.by_id})
            known = True
        case RoundDecided():
            state.explained[event.pool] = Explained(event.at_s, {wait.job_id: wait.cause for wait in event.waits})
            state.promised.update(p.for_job for p in event.preemptions if p.for_job in state.jobs.by_id)
        case RunEnded():
            _learn_overhead(state, event)
        case _:
            pass
    kind = _kind_of_run(state, event)
    for job in state.jobs.apply(event):
        known = True
        _sort_in(state, job, kind)
    if known:
        state.seq = seq


def decide(state: State, now_s: float, heard: Mapping[str, float], settings: Settings) -> Decision:
    """
    Return a round for each pool in which something is to change.

    Parameters
    ----------
    heard : mapping of str to float
        When each node was last heard of, on the clock of ``now_s``; nodes that are missing are taken to be well.
    """
    by_pool: defaultdict[str, list[Job]] = defaultdict(list)
    for job in state.jobs:
        by_pool[job.spec.pool].append(job)
    proposals, wake_s = [], math.inf
    for name in sorted(state.cluster.pools() | by_pool.keys()):
        silent_s = _silent_s(state, by_pool[name], name, heard)
        lost = tuple(sorted(node for node, since_s in silent_s.items() if since_s + settings.node_timeout_s <= now_s))
        next_s = min((since_s + settings.node_timeout_s for since_s in silent_s.values()), default=math.inf)
        if lost:  # in a round of their own: the next one places their jobs again, from a fold that knows it
            found: RoundDecided | None = RoundDecided(at_s=now_s, pool=name, lost_nodes=lost)
        else:
            found, pool_s = decide_pool(_pool(state, name, by_pool[name]), now_s, settings)
            next_s = min(next_s, pool_s)
        wake_s = min(wake_s, next_s)
        if found is not None:
            proposals.append(Proposal(subject=subjects.round_(name), facts=(found,), cause=state.seq))
    return Decision(proposals=proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _pool(state: State, name: str, jobs: list[Job]) -> Pool:
    explained = state.explained.get(name)
    return Pool(
        name=name,
        cluster=state.cluster,
        jobs=jobs,
        ranks=state.ranks,
        keys=state.keys,
        speeds=state.speeds,
        finished_s=state.finished_s.get(name, []),
        overhead_s=state.overhead_s,
        promised=state.promised,
        explained_s=explained.at_s if explained else -math.inf,
        explained=explained.causes if explained else {},
    )


def _silent_s(state: State, jobs: list[Job], pool: str, heard: Mapping[str, float]) -> dict[str, float]:
    """Return since when each of the pool's nodes has not been heard, for those whose silence means anything."""
    leased = {node_id for job in jobs for node_id in job.open_nodes}
    return {
        node.id: heard[node.id]
        for node in state.cluster.nodes.values()
        if node.pool == pool and node.id in heard and _matters(node, leased)
    }


def _matters(node: Node, leased: set[str]) -> bool:
    """Say whether its silence means anything: it is up, or has left although a lease on it is open."""
    return node.present or (node.gone == "left" and node.id in leased)


def _kind_of_run(state: State, event: Event) -> str:
    """Return the kind of device of a run that is about to end; the fold drops the placement."""
    job = state.jobs.get(event.job_id) if isinstance(event, RunEnded) else None
    return job.placement.kind if job is not None and job.placement is not None else ""


def _learn_overhead(state: State, event: RunEnded) -> None:
    """Note what of a run was no loop; of a preempted run without a loop nothing was kept, so that is all of it."""
    job = state.jobs.get(event.job_id)
    if job is None or not job.started_s or not job.may_run(event.epoch, event.node_id):
        return
    if event.outcome == "lost" or not (event.loop_steps or event.outcome == "preempted"):
        return
    seen_s = max(0.0, event.at_s - job.started_s - event.loop_s)
    key = state.keys[job.id]
    state.overhead_s[key] = (state.overhead_s.pop(key, seen_s) + seen_s) / 2
    if len(state.overhead_s) > WORKLOADS:
        del state.overhead_s[next(iter(state.overhead_s))]


def _sort_in(state: State, job: Job, kind: str) -> None:
    if job.state is not JobState.PENDING or job.held:
        state.promised.discard(job.id)
    if job.state not in TERMINAL:
        if job.id not in state.keys:
            state.keys[job.id] = job.profile_key or workload.key(job.spec)
        return
    if job.state is JobState.COMPLETED and job.sample is None and kind:
        service_s = job.executed_s * state.speeds.of(state.keys[job.id], kind)
        samples = state.finished_s.setdefault(job.spec.pool, [])
        samples.append(service_s)
        del samples[:-REMEMBERED]
    state.jobs.forget(job.id)
    state.ranks.pop(job.id, None)
    state.keys.pop(job.id, None)
