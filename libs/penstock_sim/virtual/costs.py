"""What a run costs beside its work, and when nodes fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Costs:
    """
    What a run costs beside its work; all in seconds.

    Attributes
    ----------
    start_s : float
        At the beginning of every run: the devices are held, and nothing advances.
    stop_s : float
        From a preemption until the devices are free. What was done before is kept.
    checkpoint_s : float
        Time of work between two checkpoints: after the loss of a node a job resumes from the last one. 0: there are
        none but those of preemptions.
    iteration_s : float
        Of an iteration on the fastest kind: what steps count.
    """

    start_s: float = 0.0
    stop_s: float = 0.0
    checkpoint_s: float = 0.0
    iteration_s: float = 1.0


@dataclass(frozen=True)
class Failures:
    """
    When nodes fail: each by itself, at exponential intervals, as the seed has it.

    Attributes
    ----------
    mtbf_s : float
        Mean time of a node between two failures, seconds.
    repair_s : float
        Until its executor is back, seconds.
    """

    mtbf_s: float
    repair_s: float = 600.0

    def __post_init__(self) -> None:
        if not (self.mtbf_s > 0 and self.repair_s >= 0):
            raise ValueError(f"mtbf_s is {self.mtbf_s}, repair_s is {self.repair_s}; expected above 0, and at least 0")

    def uptimes_s(self, seed: int, node: int) -> Iterator[float]:
        """Yield how long a node is up until its next failure; other nodes make no difference."""
        rng = np.random.default_rng((seed, node))
        while True:
            yield float(rng.exponential(self.mtbf_s))
