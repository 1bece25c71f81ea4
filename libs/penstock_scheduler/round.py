"""One round of one pool: admit, match, place, explain."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Final

import msgspec
import numpy as np

from penstock_log import Device, Placement, Preemption, RoundDecided, Wait
from penstock_scheduler import assignment, fairness, quotas, reservations, wait_causes
from penstock_scheduler.admission import Admission, admit
from penstock_scheduler.assignment import ASSIGNMENTS, Busy, DeviceSupply, MatchedJobs
from penstock_scheduler.candidates import NOWHERE, Candidates, candidates
from penstock_scheduler.fairness import FairnessTry
from penstock_scheduler.placement import FreeDevices, Located, Shape, slots
from penstock_scheduler.pool import pool_view, run_columns
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.pool.run_columns import RunColumns
from penstock_scheduler.priority_classes import any_preempts, called, crosses
from penstock_scheduler.quotas import NO_QUOTAS, QuotaCoverage
from penstock_scheduler.round_types import BORROWED, PreemptibleRun, RankedJob, RoundContext, RoundRules
from penstock_scheduler.sharing import co_preemption
from penstock_scheduler.wait_causes import PoolMoment, RoundAftermath, WaitCause

_ALL: Final = 1 << 30
"""Devices: a quota that covers everything."""

TRIED_JOBS: Final = 2_000
"""Bounds what a round spends on the truth about who is kept back: its tries, times the jobs of its pool."""

_WORK_AND_SWITCH: Final = 2.0
"""A run on a node that leaves is to work at least as long as its start and its checkpoint take: twice these in all."""
STOPPING_S: Final = 1.0
"""Expected time until a stopping run is gone."""


class _RoundInput(msgspec.Struct, frozen=True, dict=True):
    """
    The input of a round's decision.

    Attributes
    ----------
    ready : list of RankedJob
        The waiting jobs that are looked at, in rank order, borrowers last; those ahead for whom devices are kept.
    closing : frozenset of str
        The nodes that leave by themselves too soon for a job to begin there.
    kept_off : mapping of str to frozenset of str
        Job → nodes that leave by themselves too soon for this job to begin there.
    """

    moment: PoolMoment
    looked_at: Candidates
    supply: DeviceSupply
    context: RoundContext
    covered: QuotaCoverage
    ready: list[RankedJob]
    closing: frozenset[str] = frozenset()
    kept_off: Mapping[str, frozenset[str]] = NOWHERE

    @property
    def pool(self) -> PoolView:
        """The pool."""
        return self.moment.pool

    @cached_property
    def victims(self) -> RunColumns:
        """The runs that some waiting job may preempt, and when each is expected to end."""
        first, index, context, borrowers = self.first, self.pool.index, self.context, self.covered.borrowers
        if first is None or context.mode.preempts == "never":
            return run_columns.NONE
        if not borrowers and not index.has_below(first[0], context.mode):
            return run_columns.NONE
        every, stoppable = index.grants.runs(self.pool.terms(context))
        if borrowers:
            every = every.borrowing(index.grants.rows_of(list(borrowers)))
        if index.sharing.runs:
            every, stoppable = co_preemption.beside(every, stoppable, index.sharing.ties, self.sharing.behind)
        below = every.queue > first[0]
        if context.mode.preempts == "position":
            below |= (every.queue == first[0]) & (every.position > first[1])
        return self._staying(every.only(below & stoppable))

    def _staying(self, runs: RunColumns) -> RunColumns:
        """Return the runs without those on nodes that leave too soon: nobody could begin in their place."""
        if not self.closing or not len(runs):
            return runs
        nodes = (runs.all[int(row)].devices for row in runs.rows)
        return runs.only(np.array([self.closing.isdisjoint(node_id for node_id, _ in devices) for devices in nodes]))

    @cached_property
    def ends(self) -> list[tuple[str, Shape, float]]:
        """The runs that go on: their jobs, their devices, and in how many seconds they are expected to end."""
        index = self.pool.index
        granted = (index.entries[key[3]] for key in index.granted)
        going_on = [entry for entry in granted if not entry.stopping and entry.sharing is None]
        terms = self.pool.terms(self.context)
        ends_s = index.grants.ends_s([entry.ranked.job_id for entry in going_on], terms)
        found = [(entry.ranked.job_id, entry.shape, in_s) for entry, in_s in zip(going_on, ends_s, strict=True)]
        return [*found, *self.sharing.ends()]

    @cached_property
    def first(self) -> pool_view.Place | None:
        """The place in the order of the first job that may preempt others."""
        return min((ranked[:2] for ranked in self.ready if not ranked.sample), default=None)

    @cached_property
    def sharing(self) -> pool_view.SharingForecast:
        """The forecast of the runs that share devices."""
        return pool_view.SharingForecast(
            self.pool, self.context, self.covered.borrowers, self.first, closing=self.closing
        )


class _Draft(msgspec.Struct, frozen=True):
    """What the policies decided, before it becomes a fact."""

    admitted: Admission
    matched: MatchedJobs
    supply: DeviceSupply
    context: RoundContext
    busy: Busy

    def undo(self) -> None:
        """Give back all free devices that the draft took: only the log makes it true."""
        started = [located for _, _, devices in (*self.admitted.gangs, *self.matched.starts) for located in devices]
        self.supply.free.give([*started, *self.admitted.opened, *self.admitted.kept])

    def redo(self) -> None:
        """Take the same devices again, with what the jobs that start ask of their hosts."""
        for ranked, _, devices in (*self.admitted.gangs, *self.matched.starts):
            self.supply.free.take(devices, ranked.job.spec)
        self.supply.free.take((*self.admitted.opened, *self.admitted.kept))

    @property
    def served(self) -> set[str]:
        """The jobs that start now, or once others have stopped."""
        found = self.admitted
        keeping = found.keeps.keys() - found.reserved.keys()
        return {ranked.job_id for ranked, _, _ in self.started} | {job.job_id for _, job in found.preempted} | keeping

    @property
    def acts(self) -> bool:
        """Whether any job starts now, or once others have stopped for it."""
        found = self.admitted
        return bool(found.gangs or found.joined or self.matched.starts or found.preempted)

    @property
    def started(self) -> list[tuple[RankedJob, str, list[Located]]]:
        return sorted([*self.admitted.gangs, *self.admitted.joined, *self.matched.starts])


def decide_pool(
    pool: PoolView, now_s: float, rules: RoundRules, *, only: str = ""
) -> tuple[RoundDecided | None, float]:
    """
    Return the pool's round, None if nothing is to change, and when to decide again although nothing happens.

    Parameters
    ----------
    only : str
        Say only of this job why it waits, and name no prices; empty: of the first ones, with prices.

    Notes
    -----
    Looks at the jobs that could get devices, at those whose time to start has not come, and at those that it explains.
    A matching where a device is idle and jobs wait; a look at every run where one may be preempted.
    """
    evicted = pool.evicted()
    if not len(pool.index.waiting) and not evicted:
        return None, math.inf
    nodes = _closing(pool, now_s, rules)
    closing = _of_nodes(pool.index.free, nodes)
    pool.index.free.take(closing)
    try:
        given = _input(pool, now_s, rules, nodes)
        draft, left_out = _draft(given)
        try:
            return _decided(given, draft, left_out, evicted, only)
        finally:
            draft.undo()
    finally:
        pool.index.free.give(closing)


def _closing(pool: PoolView, now_s: float, rules: RoundRules) -> frozenset[str]:
    """Return the nodes that leave by themselves too soon for a job to begin there."""
    nodes = pool.cluster.nodes.values()
    soon_s = now_s + rules.least_left_s
    return frozenset(node.id for node in nodes if 0 < node.until_s < soon_s and not node.gone)


def _kept_off(pool: PoolView, now_s: float, closing: Collection[str]) -> Mapping[str, frozenset[str]]:
    """
    Return the jobs that are not to begin on certain nodes, and these nodes: they leave by themselves too soon for them.

    A run there would spend more time on its start and its checkpoint, as measured for its workload, than on its work.
    But whatever these take, the first half of a node's stay is for everybody: else a job might never begin on short
    ones.
    """
    lent = (node for node in pool.cluster.nodes.values() if node.until_s and not node.gone and node.pool == pool.name)
    late = [node for node in lent if node.until_s - now_s < (node.until_s - node.joined_s) / 2]
    left_s = {node.id: node.until_s - now_s for node in late if node.id not in closing}
    costs = pool.history.costs.by_key
    if not left_s or not costs:
        return NOWHERE
    found, soonest_s = dict[str, frozenset[str]](), min(left_s.values())
    for key, cost in costs.items():
        least_s = cost.switch_s * _WORK_AND_SWITCH
        if least_s > soonest_s:
            found[key] = frozenset(node_id for node_id, until_s in left_s.items() if until_s < least_s)
    if not found:
        return NOWHERE
    waiting = (key[3] for key in pool.index.waiting)
    return {job_id: nodes for job_id in waiting if (nodes := found.get(pool.keys.get(job_id, ""), frozenset()))}


def _of_nodes(devices: FreeDevices, nodes: Collection[str]) -> list[Located]:
    return [located for located in devices if located[0] in nodes] if nodes else []


def borrowers_of(pool: PoolView, now_s: float, rules: RoundRules) -> Collection[str]:
    """Return the jobs of a pool that no quota covers, without those that nothing could start."""
    return _input(pool, now_s, rules).covered.borrowers


def _input(pool: PoolView, now_s: float, rules: RoundRules, closing: frozenset[str] = frozenset()) -> _RoundInput:
    rules = reservations.rules_at(rules, pool.team_reservations, now_s)
    context, supply, covered = pool.context(now_s, rules), pool.supply(), NO_QUOTAS
    supply.coming.take(_of_nodes(supply.coming, closing))
    if any_preempts(rules.classes):
        context = quotas.reclaiming(context)
    index = pool.index
    before = RoundAftermath(
        pool.name, index.nodes, supply.whole, supply.free, away=index.away, backfills=pool.mode.backfills
    )
    moment = PoolMoment(pool, before, now_s, rules)
    kept_off = _kept_off(pool, now_s, closing)
    looked_at = candidates(moment, supply, context, kept_off)
    if rules.quotas:
        covered, context = quotas.of_pool(pool, looked_at.ready, context), quotas.reclaiming(context)
    ready = _ready(pool, looked_at.ready, covered)
    return _RoundInput(moment, looked_at, supply, context, covered, ready, closing, kept_off)


def _ready(pool: PoolView, ready: list[RankedJob], covered: QuotaCoverage) -> list[RankedJob]:
    """Return waiting jobs in rank order, borrowers last."""
    borrowers = covered.borrowers
    if not borrowers:
        return ready
    own = [ranked for ranked in ready if ranked.job_id not in borrowers or ranked.job_id in pool.promised]
    known = {ranked.job_id for ranked in own}
    return [covered.ranked(r) for r in (*own, *(r for r in ready if r.job_id not in known))]


def _decided(
    given: _RoundInput, draft: _Draft, left_out: Mapping[str, int], evicted: Sequence[PreemptibleRun], only: str
) -> tuple[RoundDecided | None, float]:
    moment, looked_at = given.moment, given.looked_at
    pool, now_s, rules = moment.pool, moment.now_s, moment.rules
    placements, preemptions = _placements(given.pool, draft), _preemptions(given, draft.admitted, evicted)
    changes_s = reservations.next_change_s(pool.team_reservations, now_s)
    next_s = min(looked_at.wake_s, draft.admitted.wake_s, _later_s(draft, now_s), changes_s)
    keeps = draft.admitted.reserved
    quiet = not placements and not preemptions and keeps == pool.reservations
    again_s = pool.explained_s + rules.explain_every_s
    explains = again_s <= now_s or not rules.max_waits
    in_burst = pool.decided_s > pool.explained_s
    waits = _waits(given, draft, left_out, only) if explains or (quiet and not in_burst) else ()
    if quiet and (not explains or not _has_news(pool, waits)):
        is_due = not explains and (in_burst or _has_news(pool, waits))
        return None, min(next_s, again_s) if is_due else next_s
    priced = explains and rules.max_waits and not only
    prices = _prices(draft, looked_at.singles(assignment.PRICED) if priced else ())
    found = RoundDecided(
        at_s=now_s,
        pool=pool.name,
        placements=placements,
        preemptions=preemptions,
        prices=prices,
        keeps=keeps,
        waits=waits,
        explains=explains,
    )
    return found, next_s


def _draft(given: _RoundInput, *, by_class: bool = True) -> tuple[_Draft, Mapping[str, int]]:
    """
    Return the first try that starts something, and the users who were left out of it.

    Without ``by_class`` the jobs of all classes enter at once, which shows what this round and the next ones would do.
    """
    pool, supply, context = given.pool, given.supply, given.context
    alpha = pool.alpha(context.rules)
    left_out: Mapping[str, int] = {}
    if alpha < 1.0 and not (len(supply.free) > 0 or pool.index.sharing.waiting or len(given.victims) > 0):
        alpha = 1.0  # where nothing can start, all are in
    if alpha >= 1.0 and not given.covered.borrowers:
        return _try(given, given.ready), left_out
    for turn in _turns(given, alpha, by_class=by_class and alpha < 1.0):  # else the order sees to it
        draft = _try(given, turn.entering)
        left_out = turn.left_out
        if draft.acts or len(turn.entering) == len(given.ready):
            break
        draft.admitted.undo(supply)
    return draft, left_out


def _turns(given: _RoundInput, alpha: float, *, by_class: bool) -> Iterator[FairnessTry]:
    """
    Yield the tries: the jobs that quotas cover, the least-progressed users' first; borrowers only after them.

    With ``by_class``, the jobs of higher classes come first of both: fairness between users holds within a class.
    """
    pool, now_s = given.pool, given.context.now_s
    exempt = {*pool.promised, *pool.reservations}
    places = {r.job_id: (r.borrows and r.job_id not in exempt, r.level * by_class) for r in given.ready}
    for place in sorted(set(places.values())) or [(False, 0)]:
        upto = [ranked for ranked in given.ready if places[ranked.job_id] <= place]
        before = {job_id for job_id, other in places.items() if other[0] == place[0] and other[1] < place[1]}
        yield from fairness.turns(upto, pool.progress, exempt | before, alpha, now_s)


def _try(given: _RoundInput, entering: Sequence[RankedJob]) -> _Draft:
    context = given.context
    supply = given.supply
    if given.pool.index.sharing:
        supply = given.sharing.supply(supply)
    admitted = admit(entering, lambda: given.victims, supply, context, given.pool.reservations)

    def busy() -> dict[Device, list[float]]:
        return _busy(given, admitted)

    matched = ASSIGNMENTS[context.rules.assign].assign(_rivals(given, admitted), supply, busy, context)
    return _Draft(admitted, matched, supply, context, busy)


def _rivals(given: _RoundInput, admitted: Admission) -> Sequence[RankedJob]:
    """Return the jobs that are matched with each other: those that could start now, and the first that wait."""
    if not len(given.supply.free) or given.looked_at.all_in or given.context.mode.positions_bind:
        return admitted.singles
    first = given.looked_at.singles(assignment.LOOKED_AT)
    known = {ranked.job_id for ranked in first}
    return first + [ranked for ranked in admitted.singles if ranked.job_id not in known]


def _waits(given: _RoundInput, draft: _Draft, left_out: Mapping[str, int], only: str) -> tuple[Wait, ...]:
    """Return why the first of the jobs that do not start wait, or why one of them does."""
    moment, pool, rules = given.moment, given.pool, given.moment.rules
    if not rules.max_waits:
        return ()
    left = list(_left(pool, {ranked.job_id for ranked, _, _ in draft.started}, rules.max_waits))
    if not left:
        return ()
    hindered = wait_causes.hindered(left, moment)
    own = {**_kept_back(given, draft, left, left_out), **hindered.reasons}
    after = _aftermath(moment.aftermath, pool.index.runs(), draft)
    late = _late(given, left, after)
    return wait_causes.waits(left, own, draft.matched.later, after, rules.max_waits, late=late, only=only)


def _late(given: _RoundInput, left: Sequence[RankedJob], after: RoundAftermath) -> Mapping[str, WaitCause]:
    """Return why jobs wait beside idle devices of nodes that leave by themselves too soon for them."""
    pool, now_s, found = given.pool, given.moment.now_s, dict[str, WaitCause]()
    for ranked in left if given.kept_off else ():
        if nodes := given.kept_off.get(ranked.job_id):
            switch_s = pool.history.costs.of(pool.keys.get(ranked.job_id, "")).switch_s
            reason = wait_causes.late_cause(ranked.job.spec, nodes, after, now_s=now_s, switch_s=switch_s)
            if reason is not None:
                found[ranked.job_id] = reason
    return found


def _left(pool: PoolView, started: Collection[str], most: int) -> Iterator[RankedJob]:
    """Yield the first waiting jobs that do not start: those for whom others were preempted, the others, held ones."""
    index = pool.index
    ahead = [key for job_id in pool.promised if (key := index.key_of_waiting(job_id)) is not None]
    known = {key[3] for key in ahead}
    others = chain(sorted(ahead), (key for key in index.waiting if key[3] not in known))
    open_to = list(islice((k for k in others if k[3] not in started and k[3] not in index.held), most))
    held = islice((key for key in index.waiting if key[3] in index.held), most - len(open_to)) if index.held else ()
    yield from index.ranked(chain(open_to, held))


def _kept_back(
    given: _RoundInput, draft: _Draft, left: Sequence[RankedJob], left_out: Mapping[str, int]
) -> dict[str, WaitCause]:
    """
    Return why each job waits that would be served without fairness, or with a larger quota of its team.

    Notes
    -----
    The round is tried once more for fairness, and once for each team whose jobs wait beyond its quota, where a larger
    quota could help it at all. In a large pool (:data:`TRIED_JOBS`) no try is made, and these jobs count as kept back.
    """
    left = [ranked for ranked in left if not ranked.sample and ranked.job_id not in draft.served]
    behind = [r for r in left if r.job.spec.user in left_out and r.job_id not in draft.matched.later]
    beyond = [ranked for ranked in left if ranked.job_id in given.covered.borrowers]
    teams = [team for team in dict.fromkeys(ranked.job.spec.team for ranked in beyond) if _helps(given, team)]
    beyond = [ranked for ranked in beyond if ranked.job.spec.team in teams]
    if len(given.pool.index) * (bool(behind) + len(teams)) <= TRIED_JOBS:
        behind, beyond = _tried(given, draft, behind, beyond)
    alpha = given.context.rules.alpha
    return {
        **{ranked.job_id: _behind(left_out[ranked.job.spec.user], alpha) for ranked in behind},
        **quotas.reasons(beyond, given.covered),
    }


def _tried(
    given: _RoundInput, draft: _Draft, behind: Sequence[RankedJob], beyond: Sequence[RankedJob]
) -> tuple[list[RankedJob], list[RankedJob]]:
    """Return the jobs that would be served if all users' jobs entered, and those that would with a larger quota."""
    draft.undo()
    try:
        entered = _served(msgspec.structs.replace(given, supply=given.pool.supply()), given.ready) if behind else set()
        covered = {
            team: _served(_with_quota(given, team), None)
            for team in dict.fromkeys(ranked.job.spec.team for ranked in beyond)
        }
    finally:
        draft.redo()
    return (
        [ranked for ranked in behind if ranked.job_id in entered],
        [ranked for ranked in beyond if ranked.job_id in covered[ranked.job.spec.team]],
    )


def _served(given: _RoundInput, entering: Sequence[RankedJob] | None) -> set[str]:
    """Return the jobs that a tried round serves; with None for ``entering``, jobs enter by turns."""
    draft = _try(given, entering) if entering is not None else _draft(given, by_class=False)[0]
    draft.undo()
    return draft.served


def _helps(given: _RoundInput, team: str) -> bool:
    """Say whether a team could get any device with a larger quota: idle, borrowed, or of a run that makes way."""
    if given.pool.mode.preempts != "never" or any_preempts(given.context.rules.classes):
        return True
    index, borrowers = given.pool.index, given.covered.borrowers
    lent = (index.entries[key[3]].ranked for key in index.granted if key[3] in borrowers)
    return len(index.free) > 0 or any(ranked.job.spec.team != team for ranked in lent)


def _with_quota(given: _RoundInput, team: str) -> _RoundInput:
    """Return a round with a quota that covers all jobs of a team."""
    pool, context = given.pool, given.context
    rules = msgspec.structs.replace(context.rules, quotas={**context.rules.quotas, team: _ALL})
    context = msgspec.structs.replace(context, rules=rules)
    covered = quotas.of_pool(pool, given.looked_at.ready, context)
    ready = _ready(pool, given.looked_at.ready, covered)
    return _RoundInput(given.moment, given.looked_at, pool.supply(), context, covered, ready)


def _behind(others: int, alpha: float) -> WaitCause:
    what = f"its user has had more than {others} other{'s' if others > 1 else ''} whose jobs wait"
    return WaitCause("fairness", f"{what}; the least-progressed {alpha:.0%} of users come first (alpha {alpha:g})")


def _busy(given: _RoundInput, admitted: Admission) -> dict[Device, list[float]]:
    """Return, by class, in how many seconds each busy device that nobody keeps will be free, where it ever will."""
    preempted = {victim.ranked.job_id for victim, _ in admitted.preempted}
    busy: defaultdict[Device, list[float]] = defaultdict(list)
    for job_id, shape, in_s in given.ends:
        if job_id not in preempted:
            for like, count in shape:
                busy[like] += [in_s] * count
    for like, count in given.supply.coming.classes().items():
        busy[like] += [STOPPING_S] * count
    return busy


def _placements(pool: PoolView, draft: _Draft) -> tuple[Placement, ...]:
    demands = pool.index.sharing.demands
    return tuple(
        [
            Placement(
                job_id=ranked.job_id,
                epoch=ranked.job.epoch + 1,
                kind=kind,
                slots=slots(devices),
                need=demands[ranked.job_id].need if ranked.job_id in demands else None,
            )
            for ranked, kind, devices in draft.started
        ]
    )


def _preemptions(given: _RoundInput, admitted: Admission, evicted: Sequence[PreemptibleRun]) -> tuple[Preemption, ...]:
    if not evicted and not admitted.preempted:  # as mostly
        return ()
    reasons = {run.ranked.job_id: (run, _eviction(given.pool, run), "") for run in evicted}
    for victim, ranked in admitted.preempted:
        because = f"for job {ranked.job_id} of queue {ranked.own_queue}; this one is of queue {victim.ranked.own_queue}"
        if crosses(ranked, victim.ranked.queue):
            classes = called(ranked.job.spec), called(victim.ranked.job.spec)
            because = f"for job {ranked.job_id} of {classes[0]}; this one is of {classes[1]}"
        if victim.ranked.borrows and not ranked.borrows:
            team = victim.ranked.job.spec.team
            because = f"for job {ranked.job_id}, whom a quota covers; {given.covered.in_use(team)}"
        for run in given.pool.index.sharing.stood_for(victim):
            reasons.setdefault(run.ranked.job_id, (run, because, ranked.job_id))
    return tuple(
        Preemption(job_id=job_id, epoch=run.ranked.job.epoch, reason=reason, for_job=for_job)
        for job_id, (run, reason, for_job) in sorted(reasons.items())
    )


def _eviction(pool: PoolView, run: PreemptibleRun) -> str:
    emptied, demand = pool.emptied(run.ranked.job), run.ranked.job.demand
    if emptied or demand is None:
        return emptied
    return demand.reason or f"it is to go on on {demand.gpus} device{'s' if demand.gpus > 1 else ''}"


def _aftermath(aftermath: RoundAftermath, runs: Sequence[PreemptibleRun], draft: _Draft) -> RoundAftermath:
    new = [
        PreemptibleRun(ranked._replace(queue=ranked.queue - BORROWED * ranked.borrows), kind, tuple(devices))
        for ranked, kind, devices in draft.started
    ]
    return msgspec.structs.replace(
        aftermath,
        idle=draft.supply.free,
        running=[*(run for run in runs if run.devices), *new],
        kept=draft.admitted.keeps,
        sharing=draft.supply.sharing,
    )


def _prices(draft: _Draft, singles: Sequence[RankedJob]) -> dict[str, float]:
    supply, started = draft.supply, {ranked.job_id for ranked, _, _ in draft.matched.starts}
    if all(ranked.job_id in started for ranked in singles):
        return {}
    given = [device for _, _, devices in draft.matched.starts for device in devices]
    supply.free.give(given)  # as it was before the matching
    prices = assignment.prices_s(singles, supply, draft.busy, draft.context)
    supply.free.take(given)
    return prices


def _later_s(draft: _Draft, now_s: float) -> float:
    """Return when a device should be free for which a job waits beside an idle one; the pool is decided anew then."""
    if not draft.matched.later or not len(draft.supply.free):
        return math.inf
    return now_s + max(1.0, min(later.start_s for later in draft.matched.later.values()))


def _has_news(pool: PoolView, waits: Sequence[Wait]) -> bool:
    """Say whether jobs wait for another cause than was said, or rounds were decided since that said none."""
    since = bool(waits) and pool.decided_s > pool.explained_s
    return since or any(pool.explained.get(wait.job_id) != wait.cause for wait in waits)
