"""Where jobs that share go, in the course of one round: onto devices that others share already, best fit."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec

from penstock_events import Device, JobSpec
from penstock_policies.cluster import fits
from penstock_policies.order import Outlook, Ranked, Speed
from penstock_policies.placement import Free, Located, device_class
from penstock_policies.sharing import keeping
from penstock_policies.sharing.devices import Limits, Shared
from penstock_policies.sharing.futile import Futile, Misses
from penstock_policies.sharing.making import Making, Room, room
from penstock_policies.sharing.near import At, Near, key_of
from penstock_policies.sharing.survey import Survey, survey
from penstock_policies.sharing.tenants import Tenant, asking
from penstock_policies.sharing.tied import Sharer

LOOKED_AT: Final = 64
"""Most devices of which a round considers to preempt some of those who share it, for one job."""

MOST_ACTS: Final = 2_000
"""Runs that share and start or make way in a round: about 400 kB of its fact. Others follow in the next."""


class Sharing:
    """
    The shared devices of a pool while a round decides.

    Parameters
    ----------
    devices : mapping of At to Shared
        With all jobs that are on them, but for devices that all of their jobs are leaving.
    tenants : mapping of str to Tenant
        Of the jobs that wait and of those that are on devices.
    stopping : collection of str
        Jobs on devices that are asked to stop.
    sharers : callable
        What preempting each of the jobs on devices would cost that some waiting job may preempt.
    speed : callable
        Of a job on a kind.
    limits : Limits

    Notes
    -----
    A look costs O(shared devices of its team). Who needs no less than another who found nothing does not look again,
    nor does who needs more than any device of its team has left.
    """

    def __init__(
        self,
        devices: Mapping[At, Shared],
        tenants: Mapping[str, Tenant],
        *,
        stopping: Iterable[str],
        sharers: Callable[[], Mapping[str, Sharer]],
        speed: Speed,
        limits: Limits,
    ) -> None:
        self.tenants, self.limits = tenants, limits
        self._near, self._sharers, self._speed = Near(devices), sharers, speed
        self._stopping = set(stopping)
        self._making = Making(sharers, self._stopping)
        self._closed: set[At] = set()
        self._kept: set[str] = set()  # kinds
        self._futile, self._incomplete, self._no_room = Futile(), Futile(), Futile()
        self._misses = Misses()
        self._acts = 0
        self._surveys: dict[tuple[object, ...], Survey] = {}

    def __len__(self) -> int:
        return len(self._near)

    def survey(self, spec: JobSpec, tenant: Tenant) -> Survey:
        """Return how things stand for a job; worked out once for all that may share with the same."""
        of = spec.kinds, spec.memory_bytes, tenant.mode, tenant.party, tenant.alone, tenant.most
        if of not in self._surveys:
            number = sum(count for like, count in self._classes.items() if fits(spec, like))
            there = (shared for shared in self._near.to(tenant.party) if fits(spec, shared.at[1]))
            self._surveys[of] = survey(there, tenant, number)
        return self._surveys[of]

    @cached_property
    def _classes(self) -> Counter[Device]:
        return Counter(device_class(shared.at[1]) for shared in self._near)

    @property
    def full(self) -> bool:
        """Whether as many start or make way as one round may say."""
        return self._acts >= MOST_ACTS

    def asking(self, ranked: Ranked) -> Ranked:
        """Return a job as one that asks for devices to itself, with enough memory for all that it needs."""
        job, tenant = ranked.job, self.tenants[ranked.job_id]
        spec = asking(job.spec, tenant, self.limits.reserve_share)
        return ranked if spec is job.spec else ranked._replace(job=msgspec.structs.replace(job, spec=spec))

    def join(self, ranked: Ranked) -> list[Located]:
        """Return shared devices that have room for a job, which has them from now on; none if too few have."""
        tenant, seen = self.tenants[ranked.job_id], len(self._near.opened) + 1
        if tenant.alone or not self._near.could(tenant):
            return []
        since = self._futile.seen(ranked, tenant)
        if since == seen:
            return []
        open_to = [shared for shared in self._open_to(ranked, since * (tenant.gpus == 1)) if shared.holds(tenant)]
        chosen = self._together(ranked, open_to) if tenant.gpus > 1 else self._best(ranked, open_to)
        if not chosen:
            self._futile.note(ranked, tenant, seen)
        self._acts += bool(chosen)
        for shared in chosen:
            self._put(ranked, shared)
        return [shared.at for shared in chosen]

    def complete(self, ranked: Ranked, free: Free) -> tuple[list[Located], list[Located]]:
        """
        Return devices of one node for a gang of lanes: shared ones as far as there are any, and free ones for the rest.

        Nothing where no node has enough. The shared ones it has from now on; the free ones are to be taken.
        """
        tenant, spec = self.tenants[ranked.job_id], ranked.job.spec
        if not any(free.kinds(spec).values()) or self._incomplete.seen(ranked, tenant):
            return [], []
        shared: defaultdict[tuple[str, str], list[Shared]] = defaultdict(list)
        for one in self._open_to(ranked) if not tenant.alone else ():
            if one.holds(tenant):
                shared[one.at[1].kind, one.at[0]].append(one)
        options = []
        for kind in free.kinds(spec):
            for node_id, devices in free.standing(spec, kind).items():
                lacking = tenant.gpus - len(shared[kind, node_id])
                if 0 < lacking <= len(devices):
                    options.append((-self._speed(ranked.job, kind), lacking, len(devices), node_id, kind))
        if not options:
            self._incomplete.note(ranked, tenant)
            return [], []
        _, lacking, _, node_id, kind = min(options)
        for one in shared[kind, node_id]:
            self._put(ranked, one)
        opened = [(node_id, device) for device in free.standing(spec, kind)[node_id][:lacking]]
        self.open(ranked, opened)
        return [one.at for one in shared[kind, node_id]], opened

    def open(self, ranked: Ranked, devices: Iterable[Located]) -> None:
        """Note that a job has devices that nobody had; others may join it."""
        self._acts += 1
        self._surveys.clear()
        for located in devices:
            self._near.put(Shared.of(located, {ranked.job_id: self.tenants[ranked.job_id]}, self.limits))

    def hopeless(self, ranked: Ranked) -> bool:
        """Say whether nobody needs to be asked who could make way for a job: enough of those before it have asked."""
        return self._misses.enough(ranked)

    def miss(self, ranked: Ranked) -> None:
        """Note that nobody makes way for a job."""
        self._misses.note(ranked)

    def awaits(self, ranked: Ranked) -> bool:
        """Keep room for a job where there will be enough once those have stopped that are asked to; say if there is."""
        tenant = self.tenants[ranked.job_id]
        if not self._leaving or tenant.alone or tenant.gpus > 1 or self._in_vain(ranked):
            return False
        later = []
        for at in self._leaving:
            shared = self._near[at]
            left = shared.without(self._stopping)
            if left.tenants and left.holds(tenant) and self._is_open(ranked, shared):
                later.append(shared)
        for shared in self._best(ranked, later):
            self._put(ranked, shared)
            return True
        return False

    def make_room(self, ranked: Ranked, outlook: Outlook) -> tuple[Sharer, ...]:
        """
        Return the sharers of one device that make room for a job with the least loss; from now on it is kept for it.

        Notes
        -----
        Looks at the :data:`LOOKED_AT` devices that have the lightest sharers to lose, of those that could do.
        """
        tenant = self.tenants[ranked.job_id]
        if tenant.alone or tenant.gpus > 1 or self._in_vain(ranked):
            return ()
        best = min(self._rooms(ranked, outlook), key=lambda room: room[:4], default=None)
        if best is None:
            self._no_room.note(ranked, tenant, rank=ranked.queue)
            return ()
        self._no_room.clear()
        self._stopping.update(sharer.job_id for sharer in best.runs)
        self._leaving.update((key_of(at), None) for sharer in best.runs for at in sharer.run.devices)
        self._making.stop(best.runs)
        self._acts += len(best.runs)
        self._put(ranked, self._near[best.at])
        return best.runs

    def _rooms(self, ranked: Ranked, outlook: Outlook) -> Iterator[Room]:
        tenant = self.tenants[ranked.job_id]
        there = (self._near[at] for at in self._making.devices(ranked, outlook) if at in self._near)
        able = (
            shared
            for shared in there
            if self._making.could(ranked, outlook, shared, tenant) and self._is_open(ranked, shared)
        )
        for shared in islice(able, LOOKED_AT):
            at = key_of(shared.at)
            if gone := room(shared, tenant, self._making.on(ranked, outlook, at), self._stopping):
                slowness = -self._speed(ranked.job, shared.at[1].kind)
                yield Room(sum(sharer.loss_gpu_s for sharer in gone), len(gone), slowness, at, gone)

    def ripe_s(self, ranked: Ranked, outlook: Outlook) -> float:
        """Return when the next sharer that may have to make way for a job will have run long enough for that."""
        if self.tenants[ranked.job_id].gpus > 1:
            return math.inf
        after = (sharer for sharer in self._sharers().values() if sharer.comes_after(ranked, outlook))
        return min((ripe_s for sharer in after if (ripe_s := sharer.ripe_s(outlook)) > outlook.now_s), default=math.inf)

    def keep(self, ranked: Ranked, free: Free) -> Sequence[Located]:
        """
        Let nobody else onto devices that have most room for a job that has lost its patience: for one of each kind.

        Returns
        -------
        Free devices that are to be kept for it too, if it is a gang.
        """
        tenant = self.tenants[ranked.job_id]
        if tenant.alone or self._kept >= {like.kind for like in self._classes}:
            return ()
        open_to = (
            shared
            for shared in self._open_to(ranked)
            if not shared.refuses(tenant) and shared.at[1].kind not in self._kept
        )
        kept = keeping.node(ranked, tenant, open_to, free) if tenant.gpus > 1 else keeping.device(open_to)
        if kept is None:
            return ()
        self._closed.update(key_of(shared.at) for shared in kept.shared)
        self._kept.add(kept.kind)
        return kept.free

    def close(self, devices: Iterable[Located]) -> None:
        """Let nobody onto devices that have been promised to others."""
        keys = [key_of(located) for located in devices]
        self._closed.update(keys)
        self._acts += sum(len(self._near[at].tenants) for at in keys if at in self._near)

    def touched(self, devices: Iterable[Located]) -> bool:
        """Say whether any of these devices has been given or promised to somebody in this round."""
        return any(self._near.changed(key_of(located)) for located in devices)

    def _open_to(self, ranked: Ranked, since: int = 0) -> Iterator[Shared]:
        spec, party = ranked.job.spec, self.tenants[ranked.job_id].party
        near = self._near.to(party, since)
        return (shared for shared in near if key_of(shared.at) not in self._closed and fits(spec, shared.at[1]))

    def _is_open(self, ranked: Ranked, shared: Shared) -> bool:
        return key_of(shared.at) not in self._closed and fits(ranked.job.spec, shared.at[1])

    @cached_property
    def _leaving(self) -> dict[At, None]:
        """The devices that some of their jobs are leaving."""
        if not self._stopping:
            return {}
        found = (shared for shared in self._near if not self._stopping.isdisjoint(shared.tenants))
        return {key_of(shared.at): None for shared in found}

    def _best(self, ranked: Ranked, open_to: Sequence[Shared]) -> list[Shared]:
        """Return the fastest device, then that on which the job takes least, then that with least left over."""
        tenant = self.tenants[ranked.job_id]

        def key(shared: Shared) -> tuple[float, int, int, At]:
            speed = self._speed(ranked.job, shared.at[1].kind)
            return -speed, shared.growth_bytes(tenant), shared.room_bytes, key_of(shared.at)

        return [min(open_to, key=key)] if open_to else []

    def _together(self, ranked: Ranked, open_to: Sequence[Shared]) -> list[Shared]:
        """Return devices of one node and kind, of as few sets of jobs as possible; none if no node has enough."""
        count = self.tenants[ranked.job_id].gpus
        places: defaultdict[tuple[str, str], list[Shared]] = defaultdict(list)
        for shared in open_to:
            places[shared.at[0], shared.at[1].kind].append(shared)
        options = []
        for (node_id, kind), found in places.items():
            if len(found) >= count:
                chosen, sets = _fewest_sets(found, count)
                options.append((-self._speed(ranked.job, kind), sets, len(found), node_id, kind, chosen))
        return min(options, key=lambda option: option[:5])[5] if options else []

    def _in_vain(self, ranked: Ranked) -> bool:
        """Say whether a job that needs no more has found that nobody leaves room for it."""
        return self._no_room.seen(ranked, self.tenants[ranked.job_id], rank=ranked.queue) > 0

    def _put(self, ranked: Ranked, shared: Shared) -> None:
        self._surveys.clear()
        self._near.put(shared.plus(ranked.job_id, self.tenants[ranked.job_id]))


def _fewest_sets(found: Sequence[Shared], count: int) -> tuple[list[Shared], int]:
    """Return so many devices, those with the same jobs together, and how many sets of jobs they have."""
    by_set: defaultdict[frozenset[str], list[Shared]] = defaultdict(list)
    for shared in sorted(found, key=lambda shared: key_of(shared.at)):
        by_set[frozenset(shared.tenants)].append(shared)
    enough = [same for same in by_set.values() if len(same) >= count]
    if enough:
        return min(enough, key=len)[:count], 1
    chosen: list[Shared] = []
    sets = 0
    for same in sorted(by_set.values(), key=len, reverse=True):
        if len(chosen) < count:
            chosen, sets = [*chosen, *same][:count], sets + 1
    return chosen, sets
