"""How long a model's answers took: percentiles of the last ones. Pure."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

KEPT: Final = 512
"""They are sorted to be reported; 42 times 512 take a millisecond."""


class Latency:
    """
    The last latencies of one model, in seconds, and how many of all were late, or refused because too many waited.

    Examples
    --------
    >>> latency = Latency(target_s=0.010)
    >>> for took_s in (0.002, 0.004, 0.012):
    ...     latency.see(took_s)
    >>> latency.metrics() == {"answers": 3.0, "late": 1.0, "p50_ms": 4.0, "p99_ms": 12.0}
    True
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._last_s: deque[float] = deque(maxlen=KEPT)
        self.answers = 0
        self.late = 0
        self.refused = 0

    def see(self, took_s: float) -> None:
        """Take in one answer, counted from when its request came."""
        self.answers += 1
        self.late += took_s > self._target_s
        self._last_s.append(took_s)

    def metrics(self) -> dict[str, float]:
        """Return what is reported of a model, latencies in milliseconds; O(n log n) in those that are kept."""
        counts = {"answers": float(self.answers), "late": float(self.late)}
        if self.refused:
            counts["refused"] = float(self.refused)
        if not self._last_s:
            return counts
        ordered = sorted(self._last_s)
        return counts | {"p50_ms": 1e3 * _percentile(ordered, 0.50), "p99_ms": 1e3 * _percentile(ordered, 0.99)}


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
