"""
Reservations of a pool's devices for a team and a time: quotas that begin and end.

While it lasts, a reservation adds to its team's quota (:mod:`penstock_scheduler.quotas`). So what the team does not
claim is lent, and runs of others make way when the team's jobs come. Before it, everybody runs on all devices.

Runs that can save lose nothing when they make way. For those that cannot, there is a rule like the backfill of batch
systems: shortly before a reservation begins, a job of others that could not save is not started on the last devices
that the reservation needs, unless its time is over by then. :func:`held_back` says which jobs wait for this reason.

:func:`rules_at` gives the rules with the quotas in force, :func:`next_change_s` the time of the next begin or end, and
:func:`most_reserved` what is promised at most within a time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock_log import Job, ReservationMade
from penstock_log.text import duration
from penstock_policies.workload_stats import PreemptionCost
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.round_types import RoundRules


def rules_at(rules: RoundRules, reservations: Sequence[ReservationMade], now_s: float) -> RoundRules:
    """
    Return the rules of a round, with what is reserved at a time in the quotas of the teams.

    What is reserved of one kind is no part of these (:func:`reserved_kinds`): its teams have a quota, of 0 at least.

    Examples
    --------
    >>> one = ReservationMade(at_s=0, pool="lab", reservation_id="a-1", team="a", gpus=2, from_s=5, until_s=9)
    >>> [rules_at(RoundRules(quotas={"a": 1}), [one], now_s).quotas for now_s in (4.0, 5.0, 9.0)]
    [{'a': 1}, {'a': 3}, {'a': 1}]
    """
    own = reserved_at((one for one in reservations if not one.kind), now_s)
    own |= {team: own.get(team, 0) for team in reserved_kinds(reservations, now_s)}
    if not own:
        return rules
    quotas = {team: rules.quotas.get(team, 0) + own.get(team, 0) for team in (*rules.quotas, *own)}
    return msgspec.structs.replace(rules, quotas=quotas)


def reserved_at(reservations: Iterable[ReservationMade], at_s: float) -> dict[str, int]:
    """Return how many devices are reserved for each team at a time."""
    found: defaultdict[str, int] = defaultdict(int)
    for one in reservations:
        if one.from_s <= at_s < one.until_s:
            found[one.team] += one.gpus
    return dict(found)


def reserved_kinds(reservations: Iterable[ReservationMade], at_s: float) -> dict[str, dict[str, int]]:
    """
    Return how many devices of one kind are reserved for each team at a time: team → kind → devices.

    Examples
    --------
    >>> one = ReservationMade(
    ...     at_s=0, pool="lab", reservation_id="a-1", team="a", gpus=2, from_s=5, until_s=9, kind="fast")
    >>> reserved_kinds([one], 5.0), reserved_kinds([one], 9.0), rules_at(RoundRules(), [one], 5.0).quotas
    ({'a': {'fast': 2}}, {}, {'a': 0})
    """
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for one in reservations:
        if one.kind and one.from_s <= at_s < one.until_s:
            found[one.team][one.kind] = found[one.team].get(one.kind, 0) + one.gpus
    return dict(found)


def next_change_s(reservations: Iterable[ReservationMade], now_s: float) -> float:
    """Return when the next reservation begins or ends; infinite where none does."""
    times = (at_s for one in reservations for at_s in (one.from_s, one.until_s))
    return min((at_s for at_s in times if at_s > now_s), default=math.inf)


def most_reserved(reservations: Sequence[ReservationMade], from_s: float, until_s: float, kind: str = "") -> int:
    """
    Return the most devices that are reserved at any moment of a time, or so many of one kind.

    Examples
    --------
    >>> def one(gpus, from_s, until_s):
    ...     return ReservationMade(
    ...         at_s=0, pool="lab", reservation_id="a", team="a", gpus=gpus, from_s=from_s, until_s=until_s)
    >>> most_reserved([one(2, 0, 5), one(3, 4, 9), one(4, 5, 6)], 0, 5), most_reserved([one(2, 0, 5)], 5, 9)
    (5, 0)
    """
    those = [one for one in reservations if not kind or one.kind == kind]
    begins = (one.from_s for one in those if from_s < one.from_s < until_s)
    return max(sum(reserved_at(those, at_s).values()) for at_s in (from_s, *begins))


def held_back(pool: PoolView, devices: Mapping[str, int], now_s: float, ahead_s: float) -> dict[str, str]:
    """
    Return the waiting jobs that are not started because a reservation is to begin, each with the reason in words.

    Such a job could not save what it does, is expected to run beyond the begin, and would leave the reservations fewer
    devices than they need: the runs of this sort and the waiting jobs before it have the others.

    Parameters
    ----------
    devices : mapping of str to int
        Kind → the pool's devices of it on nodes that take jobs.
    ahead_s : float
        How long a job is taken to run that has neither a time limit nor a declared length.

    Notes
    -----
    O(B R + B W) for B begins, R runs and W waiting jobs; O(1) where no reservation is to begin. Jobs that wait count in
    the order of the pool, whether or not there are devices for them now. A team's own jobs count only as far as they
    are more than what is reserved for it. For a reservation of one kind, the jobs that could have devices of it count.
    """
    begins = sorted({one.from_s for one in pool.team_reservations if one.from_s > now_s})
    if not begins:
        return {}
    index, found = pool.index, dict[str, str]()
    runs = [run.ranked.job for run in index.runs() if not run.ranked.job.stopping]
    waiting = [ranked.job for ranked in index.ranked(index.waiting) if ranked.job.startable and not ranked.sample]
    running = [(job, _end_s(job, now_s, math.inf)) for job in runs if not _saves(job, pool)]
    coming = [(job, _end_s(job, now_s, now_s + ahead_s)) for job in waiting if not _saves(job, pool)]
    for begin_s in begins:
        there = [one for one in pool.team_reservations if one.from_s <= begin_s < one.until_s]
        for kind in ("", *sorted({one.kind for one in there if one.kind})):
            own = reserved_at((one for one in there if kind in {"", one.kind}), begin_s)
            reserved = _Reserved(own, devices.get(kind, 0) if kind else sum(devices.values()))
            for job, end_s in running:
                if end_s > begin_s and _could_have(job, kind, pool):
                    reserved.take(job)
            for job, end_s in coming:
                if end_s > begin_s and job.id not in found and _could_have(job, kind, pool):
                    if reserved.has_room(job):
                        reserved.take(job)
                    else:
                        found[job.id] = _evidence(job, begin_s - now_s, reserved.gpus, kind)
    return found


def _could_have(job: Job, kind: str, pool: PoolView) -> bool:
    """Say whether a job has devices of a kind, or could get some; without a kind, of any."""
    if job.placement is not None:
        return kind in {"", job.placement.kind}
    return not kind or kind in pool.index.whole.kinds(job.spec)


class _Reserved:
    """The devices that reservations need at a moment, and those that runs of which no work is saved will have then."""

    def __init__(self, own: Mapping[str, int], devices: int) -> None:
        self._own, self._held = own, defaultdict[str, int](int)
        self._others = devices - sum(own.values())
        self._beyond = 0

    @property
    def gpus(self) -> int:
        """All devices that are reserved."""
        return sum(self._own.values())

    def has_room(self, job: Job) -> bool:
        """Say whether a job leaves what is reserved for other teams."""
        more = self._more(job)
        return not more or self._beyond + more <= self._others

    def take(self, job: Job) -> None:
        """Count a job's devices."""
        self._beyond += self._more(job)
        self._held[job.spec.team] += job.spec.gpus

    def _more(self, job: Job) -> int:
        """Return how many more devices its team would have beyond what is reserved for it."""
        team, held = job.spec.team, self._held[job.spec.team]
        own = self._own.get(team, 0)
        return max(0, held + job.spec.gpus - own) - max(0, held - own)


def _saves(job: Job, pool: PoolView) -> bool:
    """Say whether a run of a job would save its work when it makes way, as far as anybody knows."""
    cost: PreemptionCost = pool.history.costs.of(pool.keys[job.id])
    return job.checkpoint is not None or cost.saves or (not job.spec.opaque and cost.redo_s is None)


def _end_s(job: Job, now_s: float, unknown_s: float) -> float:
    """Return when a job is over, if it runs from now on: by its time limit, or else as it declares."""
    had_s = job.executed_by(now_s)
    if job.limit_s:
        return now_s + max(0.0, job.limit_s - had_s)
    return now_s + job.spec.duration_s - had_s if job.spec.duration_s > had_s else unknown_s


def _evidence(job: Job, in_s: float, gpus: int, kind: str) -> str:
    some = f"{gpus}{f' {kind}' if kind else ''} {'device' if gpus == 1 else 'devices'}"
    until = "may run beyond that" if job.limit_s else "is expected to run beyond that" if job.spec.duration_s else ""
    runs = until or "says nothing of its length"
    return f"{some} of the pool are reserved in {duration(in_s)}; it saves no checkpoint and {runs}"
