"""
Quotas of teams: which jobs a team's quota covers, and which only borrow what others leave idle.

A team's quota is a number of a pool's devices. It covers the team's jobs in the order in which they would be served, as
long as they fit in. A job that does not fit is passed over, and smaller ones behind it may be covered, unless the order
forbids backfill. Where an order has running jobs make way for those of a lower queue, running jobs are covered before
those that wait in the same queue; where nobody makes way, before all that wait. A team without a quota has one of 0.

Jobs that no quota covers *borrow*. They enter a round only once no covered job could start, and their runs are the
first to be preempted when a covered job lacks devices, whatever the order. So no device is left idle for the sake of
quotas. Where the quotas together are no more than the devices there are, a team gets its own back as soon as the bounds
of preemption (``min_run_s``, ``overhead_share``) allow. Among the covered jobs, and among those that borrow, the order
of the pool holds.

A run that shares its devices counts as its part of them, whoever the others are, so a device counts once; a job with a
fraction counts as this fraction. A lane job that waits counts as whole devices: it may have to open them.

What is reserved for a team of one kind (:mod:`penstock_scheduler.reservations`) covers its runs on that kind, and of
its waiting jobs those that could run on no other.

A partition that never lends is a pool of its own.

:func:`coverage` decides who borrows, :func:`of_pool` asks it for a pool, and :func:`reasons` says why borrowers wait.
When borrowers enter a round is told in :mod:`penstock_scheduler.round`, and quotas are settings of
:class:`penstock_scheduler.round_types.RoundRules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from penstock_log import Job, JobSpec
from penstock_policies.queue_policies import DispatchMode
from penstock_scheduler.pool.pool_view import PoolView, can_be_stopped
from penstock_scheduler.priority_classes import NO_CLASSES, Classes, crosses, reaches
from penstock_scheduler.reservations import reserved_kinds
from penstock_scheduler.round_types import BORROWED, RankedJob, RoundContext
from penstock_scheduler.wait_causes import WaitCause

ROUNDING: Final = 1e-9
"""Three thirds of a device are a device."""

OfKinds = Mapping[str, Mapping[str, int]]
"""Team → kind → devices of this kind that are the team's own beside its quota."""
_NO_KINDS: Final[OfKinds] = MappingProxyType({})
_WHOLE: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True)
class QuotaCoverage:
    """
    The quota coverage of a pool's jobs at one moment.

    Attributes
    ----------
    borrowers : frozenset of str
        Jobs that no quota covers.
    quotas : mapping of str to int
    held : mapping of str to float
        Team → devices of its runs that are not stopping.
    covered : mapping of str to float
        Team → devices of its quota that its jobs have or are to have.
    """

    borrowers: frozenset[str] = frozenset()
    quotas: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    covered: Mapping[str, float] = field(default_factory=dict)

    def ranked(self, ranked: RankedJob) -> RankedJob:
        """Return a job with its place in the order under quotas: borrowers come behind all others."""
        return ranked._replace(queue=ranked.queue + BORROWED) if ranked.job_id in self.borrowers else ranked

    def in_use(self, team: str) -> str:
        """Return how much of its quota a team uses, in words."""
        held = self.held.get(team, 0)
        in_use = f"{_number(held)} device{'' if held == 1 else 's'} in use"
        return f"{_whose(team)}: {in_use}, {self.quotas.get(team, 0)} of its own"

    def taken(self, team: str) -> str:
        """Return why nothing of a team's quota is left for another of its jobs, in words."""
        quota, covered = self.quotas.get(team, 0), self.covered.get(team, 0)
        own = f"{quota} device of its own goes" if quota == 1 else f"{quota} devices of its own go"
        return f"{_whose(team)}: {_number(covered)} of {own} to jobs before this one"


def _whose(team: str) -> str:
    return f"team `{team}`" if team else "jobs without a team"


def _number(devices: float) -> str:
    return f"{devices:.3g}" if devices % 1.0 else f"{devices:.0f}"


NO_QUOTAS = QuotaCoverage()


def coverage(
    waiting: Sequence[RankedJob],
    running: Sequence[RankedJob],
    quotas: Mapping[str, int],
    mode: DispatchMode,
    parts: Mapping[str, float] = _WHOLE,
    *,
    classes: Classes = NO_CLASSES,
    of_kinds: OfKinds = _NO_KINDS,
    kind_of: Callable[[Job], str] = lambda _: "",
) -> QuotaCoverage:
    """
    Return which of a pool's jobs borrow.

    Parameters
    ----------
    waiting : sequence of RankedJob
        Jobs that could start.
    running : sequence of RankedJob
        Runs that are not stopping.
    quotas : mapping of str to int
        Team → devices.
    mode : DispatchMode
        How the pool's order is walked.
    parts : mapping of str to float
        Job that shares → the number of devices that it counts as.
    classes : mapping of str to PriorityClass
        The pool's priority classes.
    of_kinds : mapping of str to mapping of str to int
        Team → kind → devices of this kind that are the team's own beside its quota.
    kind_of : callable
        Returns the kind on which a job runs, or the only one on which it could; empty where there are several.

    Notes
    -----
    O(J log J). Samples never borrow: they are of use to all teams.

    Examples
    --------
    >>> from penstock_log import Job, JobSpec
    >>> def job(name, gpus):
    ...     return Job(id=name, spec=JobSpec(name=name, command=("true",), team="a", gpus=gpus), submitted_s=0.0)
    >>> jobs = [RankedJob(0, float(at), f"j{at}", job(f"j{at}", gpus)) for at, gpus in enumerate((3, 2, 1), start=1)]
    >>> sorted(coverage(jobs, [], {"a": 4}, DispatchMode()).borrowers)
    ['j2']
    """
    left, closed, borrowers = {team: float(quota) for team, quota in quotas.items()}, set[str](), list[str]()
    left_of = {(team, kind): float(count) for team, kinds in of_kinds.items() for kind, count in kinds.items()}
    all_of = {team: sum(kinds.values()) for team, kinds in of_kinds.items()}
    for ranked, runs in _in_turn(waiting, running, mode, classes):
        team, gpus = ranked.job.spec.team, parts.get(ranked.job_id, ranked.job.spec.gpus)
        if ranked.sample:
            continue
        place = team, kind_of(ranked.job) if team in all_of else ""
        there = min(gpus, left_of.get(place, 0.0))
        if gpus - there <= left.get(team, 0.0) + ROUNDING and (runs or team not in closed):
            if there:
                left_of[place] -= there
            left[team] -= gpus - there
        else:
            borrowers.append(ranked.job_id)
            if not runs and not mode.backfills:
                closed.add(team)
    held: defaultdict[str, float] = defaultdict(float)
    for ranked in running:
        held[ranked.job.spec.team] += parts.get(ranked.job_id, ranked.job.spec.gpus)
    for (team, _), unused in left_of.items():
        left[team] = left.get(team, 0.0) + unused
    total = {team: quota + all_of.get(team, 0) for team, quota in quotas.items()}
    covered = {team: total[team] - unused for team, unused in left.items()}
    return QuotaCoverage(frozenset(borrowers), total, held, covered)


def reclaiming(context: RoundContext) -> RoundContext:
    """Return a context in which borrowers and lower classes make way, although in the pool's order nobody does."""
    if context.mode.preempts != "never":
        return context
    return msgspec.structs.replace(context, mode=DispatchMode(context.mode.backfills, "queue", in_order=True))


def _in_turn(
    waiting: Iterable[RankedJob], running: Iterable[RankedJob], mode: DispatchMode, classes: Classes
) -> Iterable[tuple[RankedJob, bool]]:
    """Return all jobs in the order in which quotas cover them, and whether each runs."""
    if classes and mode.preempts != "never":
        return _merged(sorted(waiting), sorted(running), mode, classes)
    both = [*((ranked, True) for ranked in running), *((ranked, False) for ranked in waiting)]
    match mode.preempts:
        case "position":
            return sorted(both, key=lambda each: (each[0][:3], not each[1]))
        case "queue" if not mode.in_order:
            return sorted(both, key=lambda each: (each[0].queue, not each[1], each[0][1:3]))
        case _:
            return sorted(both, key=lambda each: (not each[1], each[0][:3]))


def _merged(
    waiting: Sequence[RankedJob], running: Sequence[RankedJob], mode: DispatchMode, classes: Classes
) -> Iterator[tuple[RankedJob, bool]]:
    """Yield the waiting jobs in order, each behind the runs that do not make way for it."""
    at = 0
    for ranked in waiting:
        while at < len(running) and not _comes_before(ranked, running[at], mode, classes):
            yield running[at], True
            at += 1
        yield ranked, False
    yield from ((run, True) for run in running[at:])


def _comes_before(ranked: RankedJob, run: RankedJob, mode: DispatchMode, classes: Classes) -> bool:
    if not reaches(ranked, run.queue, classes):
        return False
    if mode.preempts == "position":
        return ranked[:2] < run[:2]
    return crosses(ranked, run.queue) if mode.in_order else ranked.queue < run.queue


def of_pool(pool: PoolView, ready: Sequence[RankedJob], context: RoundContext) -> QuotaCoverage:
    """Return the quota coverage of the pool's jobs."""
    going_on = [run.ranked for run in pool.index.runs() if can_be_stopped(run.ranked.job)]
    ranked = [pool.ranked_by(one, context.now_s) for one in going_on]
    return coverage(
        ready,
        ranked,
        context.rules.quotas,
        context.mode,
        pool.index.sharing.parts(),
        classes=context.rules.classes,
        of_kinds=reserved_kinds(pool.team_reservations, context.now_s),
        kind_of=lambda job: only_kind(job, pool.index.whole.kinds),
    )


def only_kind(job: Job, kinds: Callable[[JobSpec], Iterable[str]]) -> str:
    """Return the kind on which a job runs, or the only one of which there are devices for it; else an empty name."""
    if job.placement is not None:
        return job.placement.kind
    able = [*kinds(job.spec)]
    return able[0] if len(able) == 1 else ""


def reasons(left: Sequence[RankedJob], covered: QuotaCoverage) -> dict[str, WaitCause]:
    """Return why each job waits that no quota covers."""
    rule = "more goes to it only while nobody whom a quota covers wants it"
    remedy = "raise its team's quota, or wait for devices that nobody else claims"
    return {
        ranked.job_id: WaitCause("fairness", f"{covered.taken(ranked.job.spec.team)}; {rule}", remedy)
        for ranked in left
        if ranked.job_id in covered.borrowers
    }
