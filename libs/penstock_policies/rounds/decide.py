"""One round of one pool: admit, match, place, explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock_events import Device, Placement, Preemption, RoundDecided, Wait
from penstock_policies import allox
from penstock_policies.admission import Admission, admit
from penstock_policies.allox import Matched
from penstock_policies.assignments import ASSIGNMENTS
from penstock_policies.machines import Busy
from penstock_policies.order import Outlook, Ranked, Rules, Running, Supply
from penstock_policies.placement import Located, slots
from penstock_policies.rounds import explain
from penstock_policies.rounds.pool import Pool, can_be_stopped
from penstock_policies.waiting import Scene

STOPPING_S: Final = 1.0
"""Expected time until a stopping run is gone."""


@dataclass(frozen=True)
class _Draft:
    """What the policies decided, before it is put into words."""

    admitted: Admission
    matched: Matched
    supply: Supply
    busy: Busy

    @property
    def started(self) -> list[tuple[Ranked, str, list[Located]]]:
        return sorted([*self.admitted.gangs, *self.matched.starts])


def decide_pool(pool: Pool, now_s: float, rules: Rules) -> tuple[RoundDecided | None, float]:
    """
    Return the pool's round, None if nothing is to change, and when to decide again although nothing happens.

    Notes
    -----
    O(J log J) in the pool's J jobs that are not over, and a bounded number of small matchings.
    """
    order = pool.order()
    waiting = pool.waiting(order)
    runs = pool.runs(order)
    evicted = [run for run in runs if pool.is_evicted(run.ranked.job)]
    if not waiting and not evicted:
        return None, math.inf
    outlook = pool.outlook(now_s, rules)
    supply = pool.supply([run for run in runs if run.ranked.job.stopping], rules.topology)
    scene = Scene(pool=pool.name, nodes=pool.nodes(), whole=supply.whole, idle=supply.free)
    hindered = explain.hindered(waiting, explain.Moment(pool, scene, now_s, rules))
    ready = [ranked for ranked in waiting if ranked.job_id not in hindered.reasons]
    draft = _draft(pool, ready, runs, supply, outlook)
    placements, preemptions = _placements(draft), _preemptions(pool, draft.admitted, evicted)
    started = {placement.job_id for placement in placements}
    left = [ranked for ranked in waiting if ranked.job_id not in started]
    reasons = explain.Reasons(hindered.reasons, draft.matched.later, _scene_after(scene, runs, draft))
    waits = explain.waits(left, reasons, rules.max_waits)
    next_s = min(hindered.wake_s, draft.admitted.wake_s, _later_s(draft, now_s))
    if not placements and not preemptions and (due_s := _due_s(pool, waits, rules)) > now_s:
        return None, min(next_s, due_s)
    prices = _prices(draft, started, outlook)
    found = RoundDecided(
        at_s=now_s, pool=pool.name, placements=placements, preemptions=preemptions, prices=prices, waits=waits
    )
    return found, next_s


def _draft(pool: Pool, ready: Sequence[Ranked], runs: Sequence[Running], supply: Supply, outlook: Outlook) -> _Draft:
    admitted = admit(ready, _victims(runs), supply, outlook)

    def busy() -> list[tuple[Device, float]]:
        return _busy(pool, runs, supply, admitted, outlook)

    matched = ASSIGNMENTS[outlook.rules.assign].assign(admitted.singles, supply, busy, outlook)
    return _Draft(admitted, matched, supply, busy)


def _victims(runs: Sequence[Running]) -> list[Running]:
    return [run for run in runs if run.devices and not run.ranked.sample and can_be_stopped(run.ranked.job)]


def _busy(
    pool: Pool, runs: Sequence[Running], supply: Supply, admitted: Admission, outlook: Outlook
) -> list[tuple[Device, float]]:
    """Return the devices that nobody keeps and that will be free some time, and in how many seconds."""
    preempted = {victim.ranked.job_id for victim, _ in admitted.preempted}
    going_on = [run for run in runs if not run.ranked.job.stopping and run.ranked.job_id not in preempted]
    ends_s = pool.ends_s(going_on, outlook)
    busy = [(device, in_s) for run, in_s in zip(going_on, ends_s, strict=True) for _, device in run.devices]
    return busy + [(device, STOPPING_S) for _, device in supply.coming]


def _placements(draft: _Draft) -> tuple[Placement, ...]:
    return tuple(
        Placement(job_id=ranked.job_id, epoch=ranked.job.epoch + 1, kind=kind, slots=slots(devices))
        for ranked, kind, devices in draft.started
    )


def _preemptions(pool: Pool, admitted: Admission, evicted: Sequence[Running]) -> tuple[Preemption, ...]:
    reasons = {run.ranked.job_id: (run, _eviction(pool, run), "") for run in evicted}
    for victim, ranked in admitted.preempted:
        because = f"for job {ranked.job_id} of queue {ranked.queue}; this one is of queue {victim.ranked.queue}"
        reasons.setdefault(victim.ranked.job_id, (victim, because, ranked.job_id))
    return tuple(
        Preemption(job_id=job_id, epoch=run.ranked.job.epoch, reason=reason, for_job=for_job)
        for job_id, (run, reason, for_job) in sorted(reasons.items())
    )


def _eviction(pool: Pool, run: Running) -> str:
    node_id = min(node_id for node_id in run.ranked.job.open_nodes if pool.cluster.nodes[node_id].evicting)
    return f"node {node_id} is drained"


def _scene_after(scene: Scene, runs: Sequence[Running], draft: _Draft) -> Scene:
    new = [Running(ranked, kind, tuple(devices)) for ranked, kind, devices in draft.started]
    return replace(
        scene,
        idle=draft.supply.free,
        running=[*(run for run in runs if run.devices), *new],
        kept=draft.admitted.keeps,
    )


def _prices(draft: _Draft, started: set[str], outlook: Outlook) -> dict[str, float]:
    singles, free = draft.admitted.singles, draft.supply.free
    if not outlook.rules.max_waits or all(ranked.job_id in started for ranked in singles):
        return {}
    given = [device for _, _, devices in draft.matched.starts for device in devices]
    free.give(given)  # as it was before the matching
    prices = allox.prices_s(singles, draft.supply, draft.busy, outlook)
    free.take(given)
    return prices


def _later_s(draft: _Draft, now_s: float) -> float:
    """Return when a device that somebody waits for beside an idle one should be there; if it is not, think again."""
    if not draft.matched.later or not len(draft.supply.free):
        return math.inf
    return now_s + max(1.0, min(later.start_s for later in draft.matched.later.values()))


def _due_s(pool: Pool, waits: Sequence[Wait], rules: Rules) -> float:
    """Return when a round that only explains is due: at once after a quiet time, never if it would say the same."""
    if all(pool.explained.get(wait.job_id) == wait.cause for wait in waits):
        return math.inf
    return pool.explained_s + rules.explain_every_s
