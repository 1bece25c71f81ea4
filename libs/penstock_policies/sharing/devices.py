"""One device that jobs share: what they hold of it, and whether there is room for one more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock_policies.lanes.packing import Load
from penstock_policies.placement import Located
from penstock_policies.sharing.tenants import Party, Tenant, willing
from penstock_policies.waiting import gibibytes

ROUNDING: Final = 1e-9
"""Ten tenths are a whole."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What bounds sharing in a pool.

    Attributes
    ----------
    reserve_share : float
        Of a device's memory, which lanes leave alone.
    most_jobs : int
        On one device.
    """

    reserve_share: float
    most_jobs: int


@dataclass(frozen=True, slots=True)
class Shared:
    """
    A device and the jobs on it.

    Attributes
    ----------
    load : Load
        What its lanes hold.
    fraction : float
        What its fractions add up to.
    tenants : mapping of str to Tenant
        By job; all share in one way, the ``mode``.
    parties : frozenset of Party
        Whose they are.
    alone : bool
        Whether one of them is to have nobody beside it.
    most : int
        Jobs that there may be, as they themselves say; 0 where none says.

    Examples
    --------
    >>> from penstock_events import Device, MemoryNeed
    >>> gpu = Device(index=0, kind="fast", memory_bytes=100, backend="emulated")
    >>> lane = Tenant("lane", Party("ann", "", "user"), MemoryNeed(10, 0, 30))
    >>> shared = Shared.of(("n1", gpu), {"a": lane, "b": lane}, Limits(0.25, 8))
    >>> shared.holds(lane), shared.plus("c", lane).plus("d", lane).holds(lane)
    (True, False)
    >>> shared.taken()
    '2 jobs hold 50 of 100 B'
    """

    at: Located
    limits: Limits
    load: Load
    fraction: float
    tenants: Mapping[str, Tenant]
    parties: frozenset[Party]
    mode: str
    alone: bool
    most: int

    @classmethod
    def of(cls, at: Located, tenants: Mapping[str, Tenant], limits: Limits) -> Shared:
        """Return a device with these jobs on it."""
        capacity_bytes = at[1].memory_bytes
        load = Load(capacity_bytes - int(capacity_bytes * limits.reserve_share))
        for tenant in tenants.values():
            load = load.plus(tenant.need) if tenant.mode == "lane" and tenant.need is not None else load
        fraction = math.fsum(
            tenant.fraction for tenant in tenants.values() if tenant.mode == "fraction"
        )  # in any order
        parties = frozenset(tenant.party for tenant in tenants.values())
        mode = next((tenant.mode for tenant in tenants.values()), "")
        alone = any(tenant.alone for tenant in tenants.values())
        most = min((tenant.most for tenant in tenants.values() if tenant.most), default=0)
        return cls(at, limits, load, fraction, tenants, parties, mode, alone, most)

    def holds(self, tenant: Tenant) -> bool:
        """Say whether one more job may join, and there is room for it."""
        return self._has_room(tenant) and not self.refuses(tenant)

    def refuses(self, tenant: Tenant) -> str:
        """Return what keeps a job away however much room there is: the device is …; empty if nothing does."""
        if self.mode != tenant.mode:
            return "shared in the other way"
        if tenant.alone or self.alone:
            return "with a job whose need is not known yet"
        most = min(filter(None, (self.limits.most_jobs, self.most, tenant.most)))
        if len(self.tenants) >= most:
            return f"with {most} job{'s' if most > 1 else ''}, the most"
        if not willing(tenant.party, self.parties):
            return "with jobs that it may not share with"
        return ""

    def growth_bytes(self, tenant: Tenant) -> int:
        """Return what a job takes of the memory that is left."""
        if tenant.mode == "fraction" or tenant.need is None:
            return int(tenant.fraction * self.at[1].memory_bytes)
        return self.load.growth_bytes(tenant.need)

    @property
    def room_bytes(self) -> int:
        """Memory that is left."""
        return self.load.room_bytes - int(self.fraction * self.at[1].memory_bytes)

    def plus(self, job_id: str, tenant: Tenant) -> Shared:
        """Return the device with one more job."""
        load = self.load.plus(tenant.need) if tenant.mode == "lane" and tenant.need is not None else self.load
        fraction = self.fraction + (tenant.fraction if tenant.mode == "fraction" else 0.0)
        tenants, parties = {**self.tenants, job_id: tenant}, self.parties | {tenant.party}
        most = min(filter(None, (self.most, tenant.most)), default=0)
        return replace(self, load=load, fraction=fraction, tenants=tenants, parties=parties, most=most)

    def without(self, job_ids: set[str]) -> Shared:
        """Return the device without some of its jobs."""
        left = {job_id: tenant for job_id, tenant in self.tenants.items() if job_id not in job_ids}
        return Shared.of(self.at, left, self.limits)

    def taken(self) -> str:
        """Return what its jobs hold of it, in words."""
        number = len(self.tenants)
        hold = f"{number} job{'s hold' if number > 1 else ' holds'}"
        capacity_bytes = self.at[1].memory_bytes
        if self.fraction:
            return f"{hold} {self.fraction:.0%} of it"
        if self.alone:
            return f"{hold} all of it until its need is measured"
        held_bytes = self.load.resident_bytes + self.load.ephemeral_bytes
        return f"{hold} {of_bytes(held_bytes, capacity_bytes)}"

    def _has_room(self, tenant: Tenant) -> bool:
        if tenant.mode == "fraction":
            fits = tenant.need is None or tenant.need.alone_bytes <= tenant.fraction * self.at[1].memory_bytes
            return fits and self.fraction + tenant.fraction <= 1.0 + ROUNDING
        return tenant.need is not None and self.load.holds(tenant.need)


def of_bytes(part: int, whole: int) -> str:
    """
    Return a part of a size, with the unit once.

    Examples
    --------
    >>> of_bytes(2**29, 2**31), of_bytes(3, 2**10)
    ('0.5 of 2 GiB', '0.00293 of 1 KiB')
    """
    text = gibibytes(whole)
    unit = text.split()[1]
    size = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}.get(unit, 1)
    return f"{part / size:.3g} of {text}"
