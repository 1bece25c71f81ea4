"""What a run has shown that it needs of a device's memory, and when that is news. Pure."""

from __future__ import annotations

from typing import Final

from penstock_events import MemoryNeed
from penstock_policies.lanes import Estimate, Sample

NEWS: Final = 0.05
"""A part of the need that has changed by more than this share of what was told is told again."""
GRAIN_BYTES: Final = 2**20
"""Changes below this are no news: a process's resident memory wavers by as much."""
LEAST_ITERATIONS: Final = 2
"""Of which the first does not count: optimizer state appears during it."""


class Meter:
    """
    One run's need of each of its devices: the most of its processes here in each part.

    Attributes
    ----------
    iterations : int
        That the measured processes have done in this run, at least.
    told : MemoryNeed or None
        As it was told to the log.

    Examples
    --------
    >>> meter = Meter()
    >>> meter.see(0, Sample(allocated_bytes=3 << 20, peak_bytes=9 << 20), iterations=1)
    >>> meter.need is None
    True
    >>> meter.see(0, Sample(allocated_bytes=3 << 20, peak_bytes=7 << 20), iterations=2)
    >>> meter.need
    MemoryNeed(persistent_bytes=3145728, framework_bytes=0, ephemeral_bytes=4194304)
    """

    def __init__(self, told: MemoryNeed | None = None) -> None:
        self.told = told
        self._estimates: dict[int, Estimate] = {}
        self._iterations: dict[int, int] = {}

    @property
    def iterations(self) -> int:
        """What every process that has said anything has done at least."""
        return min(self._iterations.values(), default=0)

    @property
    def need(self) -> MemoryNeed | None:
        """What is known by now; None before every process has done its second iteration."""
        needs = [estimate.need for estimate in self._estimates.values()]
        known = [need for need in needs if need is not None]
        if not known or len(known) < len(needs) or self.iterations < LEAST_ITERATIONS:
            return None
        return MemoryNeed(
            max(need.persistent_bytes for need in known),
            max(need.framework_bytes for need in known),
            max(need.ephemeral_bytes for need in known),
        )

    def see(self, rank: int, sample: Sample, iterations: int) -> None:
        """Take in what one process has shown after so many iterations of this run."""
        estimate = self._estimates.setdefault(rank, Estimate())
        if iterations >= LEAST_ITERATIONS and estimate.need is None:
            estimate.see(sample)  # the first that is seen is not the first that was done
        estimate.see(sample)
        self._iterations[rank] = iterations

    def news(self) -> MemoryNeed | None:
        """Return the need if the log should know of it, and count it as told."""
        need = self.need
        if need is None or (self.told is not None and not changed(self.told, need)):
            return None
        self.told = need
        return need


def changed(told: MemoryNeed, need: MemoryNeed, share: float = NEWS) -> bool:
    """
    Say whether a need differs by more than a share from what was told, in any of its parts.

    Examples
    --------
    >>> mib = 1 << 20
    >>> changed(MemoryNeed(100 * mib), MemoryNeed(104 * mib)), changed(MemoryNeed(100 * mib), MemoryNeed(94 * mib))
    (False, True)
    """
    pairs = (
        (told.persistent_bytes, need.persistent_bytes),
        (told.framework_bytes, need.framework_bytes),
        (told.ephemeral_bytes, need.ephemeral_bytes),
    )
    return any(abs(now - before) > max(share * before, GRAIN_BYTES) for before, now in pairs)
