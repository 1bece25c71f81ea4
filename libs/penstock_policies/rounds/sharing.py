"""What jobs that share devices make of a round: who is on which, what they are expected to do, who goes with whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from penstock_policies.order import Outlook, Running, Supply
from penstock_policies.rounds.pool import Pool
from penstock_policies.rounds.roster import Group, Key
from penstock_policies.runs import Shape, shape_of
from penstock_policies.sharing import tied
from penstock_policies.sharing.choice import Sharing
from penstock_policies.sharing.devices import Limits
from penstock_policies.sharing.tied import Expected, Sharer

LOOKED_AT: Final = 256
"""Most waiting jobs of one demand that a round looks at: if all of them start, the next round looks at the others."""

Known = Callable[[], Mapping[str, Sharer]]


def known(pool: Pool, outlook: Outlook, borrowers: Collection[str]) -> Known:
    """Return what will tell of the runs that share devices, by job; worked out once, when somebody asks."""

    kept: list[Mapping[str, Sharer]] = []

    def found() -> Mapping[str, Sharer]:
        if not kept:
            kept.append(worked_out())
        return kept[0]

    def worked_out() -> Mapping[str, Sharer]:
        runs = list(pool.roster.sharing.runs.values())
        jobs = [run.ranked.job for run in runs]
        expected = Expected(
            outlook.now_s,
            [outlook.speed(job, run.kind) for job, run in zip(jobs, runs, strict=True)],
            [outlook.cost(job) for job in jobs],
            pool.finished_s,
            outlook.prior_s,
        )
        return tied.sharers(runs, expected, borrowers)

    return found


def supply(pool: Pool, plain: Supply, outlook: Outlook, sharers: Known) -> Supply:
    """Return what a try of a round works on: with the shared devices as they are now, if jobs of the pool share any."""
    index = pool.roster.sharing
    if not index:
        return plain
    limits = Limits(outlook.rules.lane_reserve_share, outlook.rules.most_sharers)
    sharing = Sharing(
        index.shared(limits),
        index.tenants,
        stopping=index.stopping,
        sharers=sharers,
        speed=outlook.speed,
        limits=limits,
    )
    return msgspec.structs.replace(plain, sharing=sharing)


def ends(pool: Pool, sharers: Known) -> Iterator[tuple[str, Shape, float]]:
    """Yield what is tied to each other, which devices that is, and in how many seconds the last of them should end."""
    for name, jobs in pool.roster.sharing.ties.items():
        run = tied.as_one(name, [sharers()[job_id] for job_id in jobs])
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
