"""
The matcher's settings, state, apply, decide; a round is ``penstock_scheduler.round``.

The matcher folds nodes, jobs, ranks and speeds, and decides one round for each pool. A round is one fact, so all of its
placements become true together. The matcher owns the grants: a device is taken from its placement until the run's end
on that node is in the log, or the node is declared lost. Settings come from the table ``[matcher]`` or from
``PENSTOCK_MATCHER_…``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_log import TERMINAL, Event, JobTable, RoundDecided, subjects
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.pool.scheduler_state import READ, SchedulerState, fold
from penstock_scheduler.round import decide_pool
from penstock_scheduler.what_if import named


class MatcherState(SchedulerState):
    """
    The matcher's fold.

    Attributes
    ----------
    jobs : JobTable
        Open jobs.
    seq : int
        Sequence of the last fact that could change a round.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    seq: int = 0


Heard = Callable[[Iterable[str], float], Mapping[str, float]]
"""``heard(nodes, now_s)``: when each was last heard of, as :class:`penstock_matcher.liveness.Liveness` tells it."""


def decider(settings: MatcherSettings | None = None, heard: Heard | None = None) -> Decider[MatcherState]:
    """
    Return the matcher as the shell, the simulator and tests run it.

    Without ``heard`` no node is ever declared lost: a simulation or a replay itself says when a node is lost. Nobody
    answers heartbeats there, so its grants name no patience.
    """
    chosen = settings or MatcherSettings()

    def decide_now(state: MatcherState, now_s: float) -> Decision:
        return decide(state, now_s, heard(state.cluster.nodes, now_s) if heard else {}, chosen)

    return Decider(
        name="matcher",
        state=MatcherState,
        schema="matcher.22",
        apply=apply,
        decide=decide_now,
        reads=READ,
    )


def apply(state: MatcherState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    changed, matters = fold(state, state.jobs, event)
    for job in changed:
        if job.state in TERMINAL:
            state.jobs.forget(job.id)
    if matters:
        state.seq = seq


def decide(state: MatcherState, now_s: float, heard: Mapping[str, float], settings: MatcherSettings) -> Decision:
    """
    Return a round for each pool in which something is to change.

    Parameters
    ----------
    heard : mapping of str to float
        When each node was last heard of, on the clock of ``now_s``; nodes that are missing are taken to be well.
    """
    proposals, wake_s = [], math.inf
    for name in state.pools():
        found, next_s = _gone(state, name, now_s, heard, settings) if heard else (None, math.inf)
        if found is None and not state.at_rest(name):  # else the next round places their jobs, from a fold that knows
            found, pool_s = _round(state, name, now_s, settings)
            found = found and _fenced(found, settings.node_timeout_s if heard else 0.0)
            next_s = min(next_s, pool_s)
        wake_s = min(wake_s, next_s)
        if found is not None:
            proposals.append(Proposal(subject=subjects.round_(name), facts=(found,), cause=state.seq))
    return Decision(proposals=proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _round(
    state: MatcherState, name: str, now_s: float, settings: MatcherSettings
) -> tuple[RoundDecided | None, float]:
    rules = rules_of(state, name, settings)
    pool = state.pool(name, state.jobs, rules.topology, rules.classes)
    found, next_s = decide_pool(pool, now_s, rules)
    return (found and named(pool, found, now_s, rules)), next_s


def _fenced(found: RoundDecided, patience_s: float) -> RoundDecided:
    """Return a round whose grants say how long their nodes may be silent."""
    if not patience_s or not found.placements:
        return found
    fenced = (msgspec.structs.replace(placement, patience_s=patience_s) for placement in found.placements)
    return msgspec.structs.replace(found, placements=tuple(fenced))


def _gone(
    state: MatcherState, name: str, now_s: float, heard: Mapping[str, float], settings: MatcherSettings
) -> tuple[RoundDecided | None, float]:
    """Return a round that says which nodes of a pool are lost or forgotten, if any, and when the next one would be."""
    mine = [node for node in state.cluster.nodes.values() if node.pool == name]
    granted: set[str] = set()
    if any(node.gone for node in mine):
        granted = {node_id for job in state.jobs_of(name, state.jobs) for node_id in job.open_nodes}
    lost_s, forgotten_s = dict[str, float](), dict[str, float]()
    for node in mine:  # one that has left is waited for while a grant on it is open
        if node.id in heard and (node.present or (node.gone == "left" and node.id in granted)):
            lost_s[node.id] = heard[node.id] + settings.node_timeout_s
            if lost_s[node.id] <= now_s:  # seldom, and only then its grants are looked through
                lost_s[node.id] = heard[node.id] + _patience_s(state, name, node.id, settings)
        known_otherwise = node.drained or node.outages or node.id in granted
        if settings.forget_node_s and node.gone and not known_otherwise:
            forgotten_s[node.id] = node.gone_s + settings.forget_node_s
    lost, forgotten = (
        tuple(sorted(node for node, due_s in when.items() if due_s <= now_s)) for when in (lost_s, forgotten_s)
    )
    next_s = min(*lost_s.values(), *forgotten_s.values(), math.inf, math.inf)
    if not lost and not forgotten:
        return None, next_s
    return RoundDecided(at_s=now_s, pool=name, lost_nodes=lost, forgotten_nodes=forgotten), next_s


def _patience_s(state: MatcherState, pool: str, node_id: str, settings: MatcherSettings) -> float:
    """Return how long a node may be silent: its runs go by what their grants say, though the setting be less now."""
    jobs = (job for job in state.jobs_of(pool, state.jobs) if node_id in job.open_nodes)
    promised_s = (job.placement.patience_s for job in jobs if job.placement is not None)
    return max(settings.node_timeout_s, *promised_s, 0.0)
