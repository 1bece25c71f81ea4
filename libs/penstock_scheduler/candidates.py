"""
The waiting jobs that a round has to look at: of those of equal demand, as many as could get anything at all.

What is free shrinks on the way down the ranks. So of each demand, no more jobs get devices than the free, the stopping
and the preemptible devices could hold, and those that others leave of the runs that they preempt; of the gangs behind
these, the first impatient ones may keep a kind each. The others would be looked at in vain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import chain, islice
from types import MappingProxyType
from typing import Final

import msgspec

from penstock_cluster.nodes import asks
from penstock_log import JobSpec
from penstock_scheduler import wait_causes
from penstock_scheduler.assignment import DeviceSupply
from penstock_scheduler.pool.pool_index import Demand, DemandGroup, Key, PoolIndex
from penstock_scheduler.round_types import RankedJob, RoundContext
from penstock_scheduler.wait_causes import PoolMoment

NOWHERE: Final[Mapping[str, frozenset[str]]] = MappingProxyType({})
"""No job is kept off any node."""
LOOKED_AT: Final = 256
"""Most waiting jobs of one demand that shares which a round looks at: if all start, the next looks at the others."""

_PASSING: Final = frozenset({"backoff", "begin", "profiling", "reservation", "class_quota"})
"""Reasons of single jobs; others hold for all jobs of a demand."""


class Candidates(msgspec.Struct, frozen=True):
    """
    What a round looks at.

    Attributes
    ----------
    ready : list of RankedJob
        In rank order, those ahead for whom devices are kept.
    wake_s : float
        When a gang that is patient still would keep what is free; infinite if none would.
    all_in : bool
        Whether ``ready`` is all that could start, and the walk goes through all of it.
    singles : callable
        Returns the first so many one-device jobs that could start, in the same order: what is matched with each other.
    """

    ready: list[RankedJob]
    wake_s: float
    all_in: bool
    singles: Callable[[int], list[RankedJob]]


def candidates(
    moment: PoolMoment,
    supply: DeviceSupply,
    context: RoundContext,
    kept_off: Mapping[str, frozenset[str]] = NOWHERE,
) -> Candidates:
    """
    Return the waiting jobs that could get devices in this round.

    Parameters
    ----------
    kept_off : mapping of str to frozenset of str
        Job → nodes on which it is not to begin now, though its demand fits there.

    Notes
    -----
    O(demands), and a walk over those that are returned and those whose time to start has not come. With fairness
    (``alpha`` below 1) or quotas it returns all jobs that could start, because it depends on who else waits.
    """
    pool, index = moment.pool, moment.pool.index
    hindered = _Hindrances(moment)
    view = _DemandView(index, supply, context, hindered.jobs)
    groups = [group for demand, group in index.groups.items() if demand not in hindered.demands]
    keys: set[Key] = set()
    wake_s = hindered.wake_s
    all_in = fair = bool(context.rules.quotas) or (pool.alpha(context.rules) < 1.0 and view.acts(groups))
    if fair:
        keys.update(*map(view.members, groups))
    else:
        all_in = context.mode.backfills
        for group in groups:
            some = view.able(group)
            all_in = all_in and some >= len(group.keys)
            keys.update(_first(view.members(group), some, kept_off))
            if group.spec.gpus > 1 and any(supply.free.kinds(group.spec)):
                keys.update(view.impatient(group, some))
                wake_s = min(wake_s, view.patient_until_s(group))
    if index.sharing.waiting:
        sharing = (group for groups in index.sharing.waiting.values() for group in groups.values())
        keys.update(key for group in sharing for key in _first(view.members(group), LOOKED_AT, kept_off))
    ahead = {key for job_id in pool.promised if (key := hindered.startable(job_id)) is not None}
    keys.update(key for job_id in pool.reservations if (key := hindered.startable(job_id)) is not None)

    def singles(most: int) -> list[RankedJob]:
        alone = (key for key in ahead if key[3] not in index.sharing.demands)
        first = sorted(key for key in alone if _is_single(index.entries[key[3]].ranked.job.spec))
        others = (key for key in view.singles(groups) if key not in ahead)
        both = (key for key in chain(first, others) if key[3] not in kept_off)  # these are not matched
        return index.ranked(islice(both, most))

    in_order = sorted(keys) if not ahead else [*sorted(ahead), *sorted(keys - ahead)]
    ready = [_kept_off(ranked, kept_off) for ranked in index.ranked(in_order)]
    return Candidates(ready, wake_s, all_in, singles)


def _first(keys: Iterable[Key], some: int, kept_off: Mapping[str, frozenset[str]]) -> Iterator[Key]:
    """Yield the first so many keys, and as many more of jobs that are kept off nodes: others may have these."""
    if not kept_off:
        yield from islice(keys, some)
        return
    left = {True: some, False: some}
    for key in keys:
        is_kept_off = key[3] in kept_off
        if left[is_kept_off] > 0:
            left[is_kept_off] -= 1
            yield key
        elif not any(left.values()):
            break


def _kept_off(ranked: RankedJob, kept_off: Mapping[str, frozenset[str]]) -> RankedJob:
    """Return a job for this round alone, in which nodes that it is kept off count as such that refuse it."""
    nodes = kept_off.get(ranked.job_id)
    if not nodes:
        return ranked
    spec = ranked.job.spec
    spec = msgspec.structs.replace(spec, refused_by=(*spec.refused_by, *sorted(nodes)))
    return ranked._replace(job=msgspec.structs.replace(ranked.job, spec=spec))


class _Hindrances:
    """The jobs that nothing could start now, and the demands that nothing ever could."""

    def __init__(self, moment: PoolMoment) -> None:
        index = self._index = moment.pool.index
        own = dict.fromkeys([*index.delayed, *moment.held_back])
        if len(index.fresh):
            fresh = index.fresh.irange((moment.now_s - moment.rules.await_profile_s, ""))
            own.update(dict.fromkeys(job_id for _, job_id in fresh))
        groups = index.groups.items()
        heads = {demand: group.keys[0][3] for demand, group in groups if demand not in index.possible}
        own.update(dict.fromkeys(heads.values()))
        self.jobs: Collection[str] = ()
        self.demands: Collection[Demand] = ()
        self.wake_s = math.inf
        if own:
            self._look_into(own, heads, moment)

    def _look_into(self, own: Iterable[str], heads: Mapping[Demand, str], moment: PoolMoment) -> None:
        """Find out about jobs that may be hindered; some of them are the heads of demands that may be impossible."""
        entries = self._index.entries
        found = wait_causes.hindered([entries[job_id].ranked for job_id in own], moment)
        self.jobs = found.reasons.keys()
        self.demands = {
            demand
            for demand, job_id in heads.items()
            if (reason := found.reasons.get(job_id)) is not None and reason.cause not in _PASSING
        }
        self._index.possible.update(heads.keys() - self.demands)
        self.wake_s = found.wake_s

    def startable(self, job_id: str) -> Key | None:
        """Return a job's key; None if it does not wait here, or could not start."""
        entry = self._index.entries.get(job_id)
        if entry is None or entry.phase != "waiting" or job_id in self.jobs or entry.demand in self.demands:
            return None
        return entry.key


class _DemandView(msgspec.Struct, frozen=True, dict=True):
    index: PoolIndex
    supply: DeviceSupply
    context: RoundContext
    hindered: Collection[str]

    def acts(self, groups: Sequence[DemandGroup]) -> bool:
        """Say whether any job could get devices at all."""
        return len(self.supply.free) > 0 or any(self.preemptible(group) for group in groups)

    def members(self, group: DemandGroup) -> Iterator[Key]:
        return (key for key in group.keys if key[3] not in self.hindered) if self.hindered else iter(group.keys)

    def able(self, group: DemandGroup) -> int:
        """Return how many jobs of a demand could get devices, one more where the first that gets none ends it."""
        free = self.supply.free.kinds(group.spec)
        some = sum([count // group.spec.gpus for count in free.values()])
        if some >= len(group.keys):  # all of them, without anybody else's devices
            return some
        coming = self.supply.coming.kinds(group.spec)
        some = sum((free.get(kind, 0) + coming.get(kind, 0)) // group.spec.gpus for kind in free.keys() | coming.keys())
        taken = self.preemptible(group) + self.left_over(group)
        if taken:  # of whatever kind they are
            some = (sum(free.values()) + sum(coming.values()) + taken) // group.spec.gpus
        return some + (not self.context.mode.backfills or asks(group.spec))  # which may keep a host in time

    def preemptible(self, group: DemandGroup) -> int:
        """Return how many devices runs hold that the first of a demand may preempt."""
        first = group.keys[0]
        if first[0] < 0 or self.context.mode.preempts == "never":
            return 0
        if self.context.mode.preempts == "position":
            return self.index.below.total()
        return sum(count for queue, count in self.index.below.items() if queue > first[0])

    def left_over(self, group: DemandGroup) -> int:
        """Return how many devices others may leave to a demand, of runs of several that they alone may preempt."""
        first = group.keys[0]
        if self.context.mode.preempts != "queue":
            return 0
        return sum(count for queue, count in self.of_several.items() if queue <= first[0] or first[0] < 0)

    @cached_property
    def of_several(self) -> Mapping[int, int]:
        """Queue → devices of its runs that have several, for runs that somebody may preempt."""
        firsts = (group.keys[0][0] for group in self.index.groups.values())
        bound = min((queue for queue in firsts if queue >= 0), default=math.inf)
        return {queue: count for queue, count in self.index.of_several.items() if queue > bound and count}

    def impatient(self, group: DemandGroup, some: int) -> Iterator[Key]:
        """Return the first jobs behind those that could get devices whose patience is over, one for each kind."""
        now_s, patience_s = self.context.now_s, self.context.rules.patience_s  # summed as for the time to wake
        if not group.since or group.since[0][0] + patience_s > now_s:
            return iter(())
        entries = self.index.entries
        behind = islice(self.members(group), some, None)
        over = (key for key in behind if entries[key[3]].since_s + patience_s <= now_s)
        return islice(over, len(self.supply.whole.kinds(group.spec)))

    def patient_until_s(self, group: DemandGroup) -> float:
        """Return when the patience of the next gang is over."""
        patience_s = self.context.rules.patience_s
        still = group.since.irange((self.context.now_s - patience_s, ""))
        waited = (since_s + patience_s for since_s, _ in still)
        return next((until_s for until_s in waited if until_s > self.context.now_s), math.inf)

    def singles(self, groups: Sequence[DemandGroup]) -> Iterator[Key]:
        """Return the one-device jobs in rank order."""
        return merge(*(self.members(group) for group in groups if _is_single(group.spec)))


def _is_single(spec: JobSpec) -> bool:
    """Say whether a job is matched: one of one device that asks for nothing of its host but the share."""
    return spec.gpus == 1 and not asks(spec)
