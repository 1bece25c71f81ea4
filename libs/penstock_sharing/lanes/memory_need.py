"""
What a job needs, and which jobs fit beside each other.

:class:`MemoryEstimate` learns a job's need from what its iterations show. :class:`DeviceLoad` says which jobs can share
a device, for a matcher that knows only what each needs.

Of all ways to divide jobs into lanes, one lane takes the least memory: the largest ephemeral need, once. So jobs can
share a device iff ``sum(P + F) + max E + reserve <= C``, and :class:`penstock_sharing.lanes.DeviceLanes` that may merge
lanes let them all in. More lanes than one are a matter of speed, which the device decides by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from msgspec.structs import astuple

from penstock_log import MemoryNeed

WARM_UP: Final = 1
"""Iterations that are not counted: optimizer state appears during the first, and looks like a peak of it."""


class MemoryReading(NamedTuple):
    """
    What a job says of its memory at the end of an iteration, in bytes.

    Attributes
    ----------
    allocated_bytes
        What the framework's allocator has given out, now that the iteration is over.
    peak_bytes
        The most that it had given out since the boundary before.
    framework_bytes
        What the process holds of the device beyond what the allocator has reserved.
    """

    allocated_bytes: int
    peak_bytes: int
    framework_bytes: int = 0


class MemoryEstimate:
    """
    A job's need, from its last iterations.

    Each part is the most of the last ``window`` iterations, so the need rises at once and falls when the iterations
    that took more are ``window`` behind. P + E is at least every peak among them.

    Parameters
    ----------
    window : int
        Iterations that are remembered.

    Notes
    -----
    O(window) for each need, O(1) for each sample.

    Examples
    --------
    >>> estimate = MemoryEstimate()
    >>> estimate.see(MemoryReading(allocated_bytes=300, peak_bytes=900))
    >>> estimate.need is None
    True
    >>> estimate.see(MemoryReading(allocated_bytes=300, peak_bytes=700, framework_bytes=50))
    >>> estimate.need
    MemoryNeed(persistent_bytes=300, framework_bytes=50, ephemeral_bytes=400)
    """

    def __init__(self, window: int = 64) -> None:
        if window < 1:
            raise ValueError(f"window {window} is out of range; expected 1 or more")
        self._samples: deque[MemoryReading] = deque(maxlen=window)
        self._seen = 0

    def see(self, sample: MemoryReading) -> None:
        """Take in what one more iteration has shown."""
        self._seen += 1
        if self._seen > WARM_UP:
            self._samples.append(sample)

    @property
    def need(self) -> MemoryNeed | None:
        """What the job needs; None before its second iteration."""
        if not self._samples:
            return None
        return MemoryNeed(
            max(0, *(sample.allocated_bytes for sample in self._samples)),
            max(0, *(sample.framework_bytes for sample in self._samples)),
            max(0, *(sample.peak_bytes - sample.allocated_bytes for sample in self._samples)),
        )


def differs(known: MemoryNeed, measured: MemoryNeed, share: float = 0.05) -> bool:
    """
    Return whether a measured need has to count: more than is known in any part, or less by more than a share of it.

    A rise by a byte counts, because a lane that is too small is not safe; a small fall is not worth a change.

    Examples
    --------
    >>> known = MemoryNeed(1000, 100, 500)
    >>> differs(known, MemoryNeed(990, 100, 480)), differs(known, MemoryNeed(1000, 100, 501))
    (False, True)
    """
    pairs = zip(astuple(known), astuple(measured), strict=True)
    return any(now > before or now < before * (1.0 - share) for before, now in pairs)


@dataclass(frozen=True, slots=True)
class DeviceLoad:
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
    >>> load = DeviceLoad.of(100, 10, [MemoryNeed(20, 0, 30), MemoryNeed(5, 5, 10)])
    >>> load.free_bytes, load.holds(MemoryNeed(30, 0, 30)), load.holds(MemoryNeed(30, 0, 31))
    (30, True, False)
    """

    usable_bytes: int
    resident_bytes: int = 0
    ephemeral_bytes: int = 0
    jobs: int = 0

    @classmethod
    def of(cls, capacity_bytes: int, reserve_bytes: int, needs: Iterable[MemoryNeed]) -> DeviceLoad:
        """Return the load of a device with these jobs."""
        load = cls(capacity_bytes - reserve_bytes)
        for need in needs:
            load = load.plus(need)
        return load

    @property
    def free_bytes(self) -> int:
        """What is left for more jobs, with one lane."""
        return self.usable_bytes - self.resident_bytes - self.ephemeral_bytes

    def growth_bytes(self, need: MemoryNeed) -> int:
        """Return what one more job takes of the room."""
        return need.resident_bytes + max(0, need.ephemeral_bytes - self.ephemeral_bytes)

    def holds(self, need: MemoryNeed) -> bool:
        """Say whether one more job can share the device."""
        return self.growth_bytes(need) <= self.free_bytes

    def plus(self, need: MemoryNeed) -> DeviceLoad:
        """Return the load with one more job."""
        return replace(
            self,
            resident_bytes=self.resident_bytes + need.resident_bytes,
            ephemeral_bytes=max(self.ephemeral_bytes, need.ephemeral_bytes),
            jobs=self.jobs + 1,
        )
