"""One round of one pool: admit, match, place, explain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from penstock_events import Device, Placement, Preemption, RoundDecided, Wait
from penstock_policies import allox, fairness
from penstock_policies.admission import Admission, admit
from penstock_policies.allox import Matched
from penstock_policies.assignments import ASSIGNMENTS
from penstock_policies.machines import Busy
from penstock_policies.order import Outlook, Ranked, Rules, Running, Supply
from penstock_policies.placement import Located, slots
from penstock_policies.rounds import explain
from penstock_policies.rounds.pool import Pool, can_be_stopped
from penstock_policies.waiting import Reason, Scene

STOPPING_S: Final = 1.0
"""Expected time until a stopping run is gone."""


@dataclass(frozen=True)
class _Field:
    """What a round has to decide on, beside the jobs that wait."""

    pool: Pool
    runs: Sequence[Running]
    victims: Sequence[Running]
    supply: Supply
    outlook: Outlook


@dataclass(frozen=True)
class _Draft:
    """What the policies decided, before it is put into words."""

    admitted: Admission
    matched: Matched
    supply: Supply
    busy: Busy

    @property
    def acts(self) -> bool:
        """Whether anything starts, or will when others have stopped for it."""
        return bool(self.admitted.gangs or self.matched.starts or self.admitted.preempted)

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
    draft, left_out = _draft(_Field(pool, runs, _victims(pool, ready, runs, outlook), supply, outlook), ready)
    placements, preemptions = _placements(draft), _preemptions(pool, draft.admitted, evicted)
    started = {placement.job_id for placement in placements}
    left = [ranked for ranked in waiting if ranked.job_id not in started]
    own = {**_passed_over(left, left_out, draft, rules), **hindered.reasons}
    reasons = explain.Reasons(own, draft.matched.later, _scene_after(scene, runs, draft))
    waits = explain.waits(left, reasons, rules.max_waits)
    next_s = min(hindered.wake_s, draft.admitted.wake_s, _later_s(draft, now_s))
    keeps = draft.admitted.patient
    quiet = not placements and not preemptions and keeps == pool.staying
    if quiet and (due_s := _due_s(pool, waits, rules)) > now_s:
        return None, min(next_s, due_s)
    prices = _prices(draft, started, outlook)
    found = RoundDecided(
        at_s=now_s,
        pool=pool.name,
        placements=placements,
        preemptions=preemptions,
        prices=prices,
        keeps=keeps,
        waits=waits,
    )
    return found, next_s


def _draft(field: _Field, ready: Sequence[Ranked]) -> tuple[_Draft, Mapping[str, int]]:
    """Return the first try that starts something, and the users who were left out at first."""
    pool, supply, outlook = field.pool, field.supply, field.outlook
    alpha = outlook.rules.alpha if len(supply.free) or field.victims else 1.0  # where nothing can start, all are in
    left_out: Mapping[str, int] = {}
    for turn in fairness.turns(ready, pool.progress, {*pool.promised, *pool.staying}, alpha, outlook.now_s):
        draft = _try(field, turn.entering)
        left_out = left_out or turn.left_out
        if not turn.left_out or draft.acts:
            break
        draft.admitted.undo(supply)
    return draft, left_out


def _try(field: _Field, entering: Sequence[Ranked]) -> _Draft:
    supply, outlook = field.supply, field.outlook
    admitted = admit(entering, field.victims, supply, outlook, field.pool.staying)

    def busy() -> list[tuple[Device, float]]:
        return _busy(field.pool, field.runs, supply, admitted, outlook)

    matched = ASSIGNMENTS[outlook.rules.assign].assign(admitted.singles, supply, busy, outlook)
    return _Draft(admitted, matched, supply, busy)


def _victims(pool: Pool, ready: Sequence[Ranked], runs: Sequence[Running], outlook: Outlook) -> list[Running]:
    """Return the runs that some waiting job may preempt, and when each is expected to end."""
    first = min((ranked[:2] for ranked in ready if not ranked.sample), default=None)
    if first is None or outlook.manner.preempts == "never":
        return []
    by_queue = outlook.manner.preempts == "queue"
    found = [
        run
        for run in runs
        if run.devices and can_be_stopped(run.ranked.job) and not run.ranked.sample
        if (run.ranked.queue > first[0] if by_queue else run.ranked[:2] > first)
    ]
    ends_s = pool.ends_s(found, outlook)
    return [Running(*run[:3], in_s) for run, in_s in zip(found, ends_s, strict=True)]


def _passed_over(left: Sequence[Ranked], left_out: Mapping[str, int], draft: _Draft, rules: Rules) -> dict[str, Reason]:
    """Return why those wait that could have started, had their users had less."""
    if not left_out:
        return {}
    known = {*draft.matched.later, *draft.admitted.keeps}
    free = (r for r in left if r.job.spec.user in left_out and not r.sample and r.job_id not in known)
    return {r.job_id: _behind(left_out[r.job.spec.user], rules.alpha) for r in islice(free, rules.max_waits)}


def _behind(others: int, alpha: float) -> Reason:
    what = f"its user has had more than {others} other{'s' if others > 1 else ''} whose jobs wait"
    return Reason("fairness", f"{what}; the least-progressed {alpha:.0%} of users come first (alpha {alpha:g})")


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
