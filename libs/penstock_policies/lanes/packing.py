"""
Which jobs can share a device, for one who decides where jobs go and knows only what each needs.

Of all ways to divide jobs into lanes, one lane takes the least memory: the largest ephemeral need, once. So jobs can
share a device iff ``sum(P + F) + max E + reserve <= C``, and a :class:`penstock_policies.lanes.Board` that may merge
lanes lets them all in. More lanes than one are a matter of speed, which the device decides by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock_events import MemoryNeed


@dataclass(frozen=True, slots=True)
class Load:
    """
    What a device holds, as far as packing goes.

    Parameters
    ----------
    usable_bytes : int
        The device's memory without the reserve.
    resident_bytes : int
        ``sum(P + F)`` of its jobs.
    ephemeral_bytes : int
        The largest E of them.
    jobs : int

    Examples
    --------
    >>> load = Load.of(100, 10, [MemoryNeed(20, 0, 30), MemoryNeed(5, 5, 10)])
    >>> load.room_bytes, load.holds(MemoryNeed(30, 0, 30)), load.holds(MemoryNeed(30, 0, 31))
    (30, True, False)
    """

    usable_bytes: int
    resident_bytes: int = 0
    ephemeral_bytes: int = 0
    jobs: int = 0

    @classmethod
    def of(cls, capacity_bytes: int, reserve_bytes: int, needs: Iterable[MemoryNeed]) -> Load:
        """Return the load of a device with these jobs."""
        load = cls(capacity_bytes - reserve_bytes)
        for need in needs:
            load = load.plus(need)
        return load

    @property
    def room_bytes(self) -> int:
        """What is left for more jobs, with one lane."""
        return self.usable_bytes - self.resident_bytes - self.ephemeral_bytes

    def growth_bytes(self, need: MemoryNeed) -> int:
        """Return what one more job takes of the room."""
        return need.resident_bytes + max(0, need.ephemeral_bytes - self.ephemeral_bytes)

    def holds(self, need: MemoryNeed) -> bool:
        """Say whether one more job can share the device."""
        return self.growth_bytes(need) <= self.room_bytes

    def plus(self, need: MemoryNeed) -> Load:
        """Return the load with one more job."""
        return replace(
            self,
            resident_bytes=self.resident_bytes + need.resident_bytes,
            ephemeral_bytes=max(self.ephemeral_bytes, need.ephemeral_bytes),
            jobs=self.jobs + 1,
        )


def best_fit(loads: Sequence[Load], need: MemoryNeed, most_jobs: int | None = None) -> int | None:
    """
    Return the device on which a job goes best; None if none holds it.

    The one on which it takes the least: where a lane that is there already is large enough for it; of those, where the
    least is left over, so that large jobs find room elsewhere.

    Parameters
    ----------
    loads : sequence of Load
    need : MemoryNeed
    most_jobs : int or None
        Most jobs on one device.

    Notes
    -----
    O(devices). Equal ones go by position.

    Examples
    --------
    >>> empty, small, large = Load(100), Load(100, 10, 20, 1), Load(100, 10, 50, 1)
    >>> best_fit([empty, small, large], MemoryNeed(10, 0, 40)), best_fit([empty, small], MemoryNeed(10, 0, 80))
    (2, 1)
    """
    found = min(
        (
            (load.growth_bytes(need), load.room_bytes, at)
            for at, load in enumerate(loads)
            if load.holds(need) and (most_jobs is None or load.jobs < most_jobs)
        ),
        default=None,
    )
    return None if found is None else found[2]
