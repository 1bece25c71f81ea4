"""Who of those that share a device make way for another job there: as few and as light as will do, and never all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock_policies.order import Outlook, Ranked
from penstock_policies.sharing.devices import Shared
from penstock_policies.sharing.near import At, key_of
from penstock_policies.sharing.tenants import Tenant
from penstock_policies.sharing.tied import Sharer

Rank = tuple[float, ...]
"""Of jobs for which the same runs make way."""


class Room(NamedTuple):
    """Sharers of a device that make room for another job there."""

    loss_gpu_s: float
    number: int
    slowness: float
    at: At
    runs: tuple[Sharer, ...]


@dataclass
class _Yielding:
    """
    The sharers who make way for jobs of one rank.

    Attributes
    ----------
    on : dict of At to list of Sharer
        Those of each device, the lightest first.
    in_order : list of At
        The devices, by the lightest sharer that each had at first.
    left : dict of At to (Shared, Shared)
        A device as it was looked at, and what it would be without them.
    """

    on: dict[At, list[Sharer]]
    in_order: list[At]
    left: dict[At, tuple[Shared, Shared]] = field(default_factory=dict)


class Making:
    """
    The sharers who may be asked to make room in a round, by device.

    Parameters
    ----------
    sharers : callable
        What preempting each of those that may be preempted would cost; asked for at most once.
    stopping : collection of str
        Jobs that are asked to stop; it may grow.

    Notes
    -----
    O(S log S) for the first job of each rank for which S sharers make way, and O(1) for each device after that.
    """

    def __init__(self, sharers: Callable[[], Mapping[str, Sharer]], stopping: Collection[str]) -> None:
        self._sharers, self._stopping = sharers, stopping
        self._of_rank: dict[Rank, _Yielding] = {}

    def devices(self, ranked: Ranked, outlook: Outlook) -> list[At]:
        """Return the devices on which somebody makes way for a job, by who is lightest."""
        return self._yielding(ranked, outlook).in_order

    def could(self, ranked: Ranked, outlook: Outlook, shared: Shared, tenant: Tenant) -> bool:
        """Say whether there would be room for a job on a device without all who make way for it."""
        yielding, at = self._yielding(ranked, outlook), key_of(shared.at)
        if at not in yielding.on:
            return False
        known = yielding.left.get(at)
        if known is None or known[0] is not shared:
            gone = {*self._stopping, *(sharer.job_id for sharer in yielding.on[at])}
            known = yielding.left[at] = shared, shared.without(shared.tenants.keys() & gone)
        left = known[1]
        return left.holds(tenant) if left.tenants else len(yielding.on[at]) > 1  # some of them may be enough

    def on(self, ranked: Ranked, outlook: Outlook, at: At) -> Sequence[Sharer]:
        """Return who makes way for a job on a device, the lightest first."""
        return self._yielding(ranked, outlook).on.get(at, ())

    def stop(self, runs: Sequence[Sharer]) -> None:
        """Note that some of them have been asked to stop: they make way for nobody else."""
        gone = {sharer.job_id for sharer in runs}
        for yielding in self._of_rank.values():
            for at in {key_of(located) for sharer in runs for located in sharer.run.devices}:
                if left := [sharer for sharer in yielding.on.pop(at, ()) if sharer.job_id not in gone]:
                    yielding.on[at] = left

    def _yielding(self, ranked: Ranked, outlook: Outlook) -> _Yielding:
        rank: Rank = ranked[:1] if outlook.manner.preempts == "queue" else ranked[:2]
        found = self._of_rank.get(rank)
        if found is None:
            found = self._of_rank[rank] = _by_device(self._those(ranked, outlook))
        return found

    def _those(self, ranked: Ranked, outlook: Outlook) -> Iterator[Sharer]:
        every = self._sharers().items()
        return (
            sharer for job_id, sharer in every if job_id not in self._stopping and sharer.yields_to(ranked, outlook)
        )


def _by_device(sharers: Iterator[Sharer]) -> _Yielding:
    on: defaultdict[At, list[Sharer]] = defaultdict(list)
    for sharer in sorted(sharers, key=lambda sharer: (sharer.key, sharer.job_id)):
        for located in sharer.run.devices:
            on[key_of(located)].append(sharer)
    return _Yielding(dict(on), sorted(on, key=lambda at: (on[at][0].key, at)))


def room(shared: Shared, tenant: Tenant, yielding: Sequence[Sharer], stopping: Collection[str]) -> tuple[Sharer, ...]:
    """Return who would have to leave a device for a job; nobody if it would not do, or if nobody were left there."""
    gone, chosen = {job_id for job_id in shared.tenants if job_id in stopping}, list[Sharer]()
    for sharer in yielding:
        chosen.append(sharer)
        gone.add(sharer.job_id)
        left = shared.without(gone)
        if not left.tenants:
            return ()
        if left.holds(tenant):
            break
    else:
        return ()
    for sharer in chosen[:-1]:  # the lighter ones may have become superfluous
        if shared.without(gone - {sharer.job_id}).holds(tenant):
            gone.discard(sharer.job_id)
    return tuple(sharer for sharer in chosen if sharer.job_id in gone)
