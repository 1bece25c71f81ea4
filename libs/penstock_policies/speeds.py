"""How fast each workload is on each kind of device, as the profiler has told, and a guess where it has not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from penstock_events import WorkloadProfiled


class Speeds(msgspec.Struct):
    """
    What is known of all workloads.

    Attributes
    ----------
    by_key : dict of str to dict of str to float
        Workload key → device kind → speed relative to its fastest kind, in (0, 1].
    predicted_by_key : dict of str to list of str
        Workload key → the kinds among these on which nobody has measured it yet.
    skew_by_key : dict of str to float
        Workload key → share of the largest tensor in its model, where a script has described it.

    Examples
    --------
    >>> from penstock_events import KindSpeed
    >>> speeds = Speeds()
    >>> fast, slow = KindSpeed(kind="fast", iteration_s=1, speed=1), KindSpeed(kind="slow", iteration_s=4, speed=0.25)
    >>> speeds.apply(WorkloadProfiled(at_s=0.0, key="mlp", speeds=(fast, slow)))
    >>> speeds.of("mlp", "slow"), speeds.of("unseen", "slow"), speeds.of("unseen", "cpu")
    (0.25, 0.25, 1.0)
    """

    by_key: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    predicted_by_key: dict[str, list[str]] = msgspec.field(default_factory=dict)
    skew_by_key: dict[str, float] = msgspec.field(default_factory=dict)

    def apply(self, event: WorkloadProfiled) -> None:
        """Fold the profiler's present knowledge of one workload in; it replaces what was known of it."""
        self.by_key[event.key] = {speed.kind: speed.speed for speed in event.speeds if speed.speed > 0}
        self.predicted_by_key.pop(event.key, None)
        if predicted := [speed.kind for speed in event.speeds if speed.predicted]:
            self.predicted_by_key[event.key] = predicted
        if event.skew > 0:
            self.skew_by_key[event.key] = event.skew

    def skew(self, key: str) -> float:
        """Return the share of the largest tensor in the workload's model; 0 where nobody has described it."""
        return self.skew_by_key.get(key, 0.0)

    def knows(self, key: str) -> bool:
        """Say whether the profiler has said anything about the workload."""
        return key in self.by_key

    def predicted(self, key: str) -> Sequence[str]:
        """Return the kinds on which the workload's speed is only predicted."""
        return self.predicted_by_key.get(key, ())

    def of(self, key: str, kind: str) -> float:
        """
        Return the workload's speed on a kind; where unknown, the median of all other workloads; 1 without any.

        A guess costs a look at every workload: callers that ask often keep the answer for the length of a round.
        """
        known = self.by_key.get(key, {}).get(kind)
        return self.guess(kind) if known is None else known

    def guess(self, kind: str) -> float:
        """Return how fast a workload that nobody has measured is taken to be on a kind."""
        others = [speeds[kind] for speeds in self.by_key.values() if kind in speeds]
        return median(others) if others else 1.0
