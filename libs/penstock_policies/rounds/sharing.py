"""What jobs that share devices make of a round: who is on which, what they are expected to do, who goes with whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from penstock_policies.order import BORROWED, Outlook, Ranked, Running, Supply
from penstock_policies.rounds.pool import Pool
from penstock_policies.rounds.roster import Group, Key
from penstock_policies.runs import Shape, shape_of
from penstock_policies.sharing import tied
from penstock_policies.sharing.choice import Sharing
from penstock_policies.sharing.devices import Limits
from penstock_policies.sharing.tied import Expected, Sharer

LOOKED_AT: Final = 256
"""Most waiting jobs of one demand that a round looks at: if all of them start, the next round looks at the others."""

Place = tuple[int, float]
"""Queue and position."""


class Tell:
    """
    Tells of the runs that share devices; worked out once, when somebody asks.

    Parameters
    ----------
    first : (int, float) or None
        Where in the order the first job stands that others might make way for; None if there is none.
    """

    def __init__(self, pool: Pool, outlook: Outlook, borrowers: Collection[str], first: Place | None) -> None:
        self._pool, self._outlook, self._borrowers, self._first = pool, outlook, borrowers, first
        self._every: Mapping[str, Sharer] | None = None
        self._behind: Mapping[str, Sharer] | None = None

    def every(self) -> Mapping[str, Sharer]:
        """Return all of them, by job."""
        if self._every is None:
            self._every = self._of(list(self._pool.roster.sharing.runs.values()))
        return self._every

    def behind(self) -> Mapping[str, Sharer]:
        """Return those that some waiting job comes before, as far as preemption goes."""
        if self._behind is None:
            runs = self._pool.roster.sharing.runs.values()
            self._behind = self._of([run for run in runs if self._is_behind(run.ranked)])
        return self._behind

    def _is_behind(self, ranked: Ranked) -> bool:
        if self._first is None:
            return False
        queue = ranked.queue + BORROWED * (ranked.job_id in self._borrowers)
        by_position = self._outlook.manner.preempts == "position"
        return (queue, ranked.position) > self._first if by_position else queue > self._first[0]

    def _of(self, runs: Sequence[Running]) -> Mapping[str, Sharer]:
        jobs, outlook = [run.ranked.job for run in runs], self._outlook
        expected = Expected(
            outlook.now_s,
            [outlook.speed(job, run.kind) for job, run in zip(jobs, runs, strict=True)],
            [outlook.cost(job) for job in jobs],
            self._pool.finished_s,
            outlook.prior_s,
        )
        return tied.sharers(runs, expected, self._borrowers)


def supply(pool: Pool, plain: Supply, outlook: Outlook, tell: Tell) -> Supply:
    """Return what a try of a round works on where jobs of the pool share devices: with these as they are now."""
    index = pool.roster.sharing
    limits = Limits(outlook.rules.lane_reserve_share, outlook.rules.most_sharers)
    sharing = Sharing(
        index.shared(limits),
        index.tenants,
        stopping=index.stopping,
        sharers=tell.behind,
        speed=outlook.speed,
        limits=limits,
    )
    return msgspec.structs.replace(plain, sharing=sharing)


def ends(pool: Pool, tell: Tell) -> Iterator[tuple[str, Shape, float]]:
    """Yield what is tied to each other, which devices that is, and in how many seconds the last of them should end."""
    for name, jobs in pool.roster.sharing.ties.items():
        run = tied.as_one(name, [tell.every()[job_id] for job_id in jobs])
        yield name, shape_of(run), run.left_s


def each(pool: Pool, victim: Running) -> list[Running]:
    """Return the runs that a preempted one stands for."""
    index = pool.roster.sharing
    jobs = index.ties.get(victim.ranked.job_id) if index else None
    return [index.runs[job_id] for job_id in jobs] if jobs is not None else [victim]


def waiting(pool: Pool, members: Callable[[Group], Iterator[Key]]) -> Iterator[Key]:
    """Yield the first jobs of each demand among those that share."""
    for groups in pool.roster.sharing.waiting.values():
        for group in groups.values():
            yield from islice(members(group), LOOKED_AT)
