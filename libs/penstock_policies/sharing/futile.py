"""What has been looked for in vain in a round: whoever needs as much finds nothing either, and need not look."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import Final

from penstock_policies.order import Ranked
from penstock_policies.sharing.tenants import Tenant

MOST_MISSES: Final = 16
"""Jobs of one team and choice of kinds for whom a round asks in vain who could make way for them."""


class Futile:
    """
    Demands that found nothing, and what there was then.

    Room only shrinks in the course of a round, but for devices that are opened: so a job that accepts the same devices
    and needs as much of the memory, or more, finds nothing among those that were looked at.

    Examples
    --------
    >>> from penstock_events import Job, JobSpec, MemoryNeed
    >>> from penstock_policies.sharing.tenants import Party
    >>> ranked = Ranked(0, 0.0, "a", Job(id="a", spec=JobSpec(name="a", command=("true",)), submitted_s=0.0))
    >>> def lane(resident, ephemeral):
    ...     return Tenant("lane", Party("ann", "", "user"), MemoryNeed(resident, 0, ephemeral))
    >>> futile = Futile()
    >>> futile.note(ranked, lane(2, 5), seen=1)
    >>> futile.seen(ranked, lane(3, 5)), futile.seen(ranked, lane(3, 4))
    (1, 0)
    """

    def __init__(self) -> None:
        self._found: defaultdict[Hashable, list[tuple[int, int, int]]] = defaultdict(list)

    def note(self, ranked: Ranked, tenant: Tenant, seen: int = 1, rank: Hashable = ()) -> None:
        """Note that a job has found nothing among the first ``seen``; with ``rank``, for jobs of this rank."""
        self._found[_class(ranked, tenant, rank)].append((*_size(tenant), seen))

    def seen(self, ranked: Ranked, tenant: Tenant, rank: Hashable = ()) -> int:
        """Return among how many a job would look in vain; 0 where nobody has looked for as little."""
        misses = self._found.get(_class(ranked, tenant, rank))
        if not misses:
            return 0
        resident, ephemeral = _size(tenant)
        return max((seen for r, e, seen in misses if r <= resident and e <= ephemeral), default=0)

    def clear(self) -> None:
        """Forget all: somebody may make way now who did not."""
        self._found.clear()


class Misses:
    """How often a round has asked who could make way: for jobs of each team, choice of kinds and queue."""

    def __init__(self) -> None:
        self._number: Counter[Hashable] = Counter()

    def enough(self, ranked: Ranked) -> bool:
        """Say whether it was in vain so often that nobody needs to be asked for a job behind those."""
        return self._number[_like(ranked)] >= MOST_MISSES

    def note(self, ranked: Ranked) -> None:
        """Note that it was in vain once more."""
        self._number[_like(ranked)] += 1


def _like(ranked: Ranked) -> Hashable:
    spec = ranked.job.spec
    return spec.kinds, spec.team, ranked.queue


def _class(ranked: Ranked, tenant: Tenant, rank: Hashable) -> Hashable:
    spec = ranked.job.spec
    one_size = tenant if tenant.mode == "fraction" or tenant.need is None else tenant.party
    return rank, spec.kinds, spec.memory_bytes, tenant.gpus, tenant.most, one_size


def _size(tenant: Tenant) -> tuple[int, int]:
    if tenant.mode == "fraction" or tenant.need is None:
        return 0, 0
    return tenant.need.resident_bytes, tenant.need.ephemeral_bytes
