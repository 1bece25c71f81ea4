"""How a job's need of memory is known from what its iterations have shown."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from penstock_events import MemoryNeed

WARM_UP: Final = 1
"""Iterations that are not counted: optimizer state appears during the first, and looks like a peak of it."""


class Sample(NamedTuple):
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


class Estimate:
    """
    A job's need, from its last iterations.

    Each part is the most of the last ``window`` iterations, so the need rises at once and falls when the iterations
    that took more are ``window`` behind. P + E is at least every peak among them.

    Parameters
    ----------
    window : int
        Iterations that are remembered.
    headroom : float
        Share that is added to each part, for fragmentation: 0.05 is 5 %.

    Notes
    -----
    O(window) for each need, O(1) for each sample.

    Examples
    --------
    >>> estimate = Estimate()
    >>> estimate.see(Sample(allocated_bytes=300, peak_bytes=900))
    >>> estimate.need is None
    True
    >>> estimate.see(Sample(allocated_bytes=300, peak_bytes=700, framework_bytes=50))
    >>> estimate.need
    MemoryNeed(persistent_bytes=300, framework_bytes=50, ephemeral_bytes=400)
    """

    def __init__(self, window: int = 64, headroom: float = 0.0) -> None:
        if window < 1 or headroom < 0:
            raise ValueError(f"window {window} and headroom {headroom} are out of range; expected 1 or more, 0 or more")
        self._samples: deque[Sample] = deque(maxlen=window)
        self._factor = 1.0 + headroom
        self._seen = 0

    def see(self, sample: Sample) -> None:
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
            self._with_headroom(max(s.allocated_bytes for s in self._samples)),
            self._with_headroom(max(s.framework_bytes for s in self._samples)),
            self._with_headroom(max(s.peak_bytes - s.allocated_bytes for s in self._samples)),
        )

    def _with_headroom(self, size_bytes: int) -> int:
        return max(0, size_bytes if self._factor == 1.0 else round(size_bytes * self._factor))


def differs(known: MemoryNeed, measured: MemoryNeed, share: float = 0.05) -> bool:
    """
    Say whether a measured need is news: more than is known in any part, or less by more than a share of it.

    Rising by a byte is news, because a lane that is too small is not safe; falling by little is not worth a change.

    Examples
    --------
    >>> known = MemoryNeed(1000, 100, 500)
    >>> differs(known, MemoryNeed(990, 100, 480)), differs(known, MemoryNeed(1000, 100, 501))
    (False, True)
    """
    pairs = (
        (known.persistent_bytes, measured.persistent_bytes),
        (known.framework_bytes, measured.framework_bytes),
        (known.ephemeral_bytes, measured.ephemeral_bytes),
    )
    return any(now > before or now < before * (1.0 - share) for before, now in pairs)
