"""What is known of one member of a host. Pure: no clock, no device."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

from penstock_events import MemoryNeed
from penstock_policies.lanes import Estimate, Sample
from penstock_policies.lanes.turns import Standing

Stage = Literal["new", "running", "finished", "failed"]
NOTHING: Final = MemoryNeed(0, 0, 0)
MOST_WAITING: Final = 1024
"""By default; the last of them waits for a thousand answers, and there is no end to memory without a bound."""
REMEMBERED: Final = 9
"""Turns whose median is taken for the length of the next: one that the host's system held up does not count."""


@dataclass(slots=True, eq=False)
class Member:
    """
    One member.

    Attributes
    ----------
    name : str
    steps : int or None
        After which a trial is finished; None: when it says so.
    target_s : float or None
        In which a model answers; None for a trial.
    batch : int
        Most requests of one step of a model.
    most_waiting : int
        Most requests that wait for a model; more are refused.
    declared : MemoryNeed
        What the user knows of its need; measured parts that are larger count instead.
    stage : {"new", "running", "finished", "failed"}
        New until its setup is done in this process.
    done : int
        Steps of a trial since its very beginning.
    lane : int or None
        None while it has no place on the device.
    reason : str
        Why it waits, is parked, or has failed.
    held_bytes : int
        What it holds of the device between its turns, as measured.
    """

    name: str
    standing: Standing
    declared: MemoryNeed
    steps: int | None = None
    target_s: float | None = None
    batch: int = 1
    most_waiting: int = MOST_WAITING
    stage: Stage = "new"
    done: int = 0
    lane: int | None = None
    reason: str = ""
    held_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    estimate: Estimate = field(default_factory=Estimate)
    _lengths_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def trains(self) -> bool:
        """Whether it is a trial."""
        return self.target_s is None

    @property
    def over(self) -> bool:
        """Whether it gets no turn any more."""
        return self.stage in ("finished", "failed")

    @property
    def turn_s(self) -> float:
        """How long its next turn may be expected to take; 0 before its first step."""
        return median(self._lengths_s) if self._lengths_s else 0.0

    @property
    def need(self) -> MemoryNeed:
        """What it needs as far as is known: of each part, the larger one of what was declared and what was measured."""
        measured = self.estimate.need or NOTHING
        return MemoryNeed(
            max(self.declared.persistent_bytes, measured.persistent_bytes, self.held_bytes),
            max(self.declared.framework_bytes, measured.framework_bytes),
            max(self.declared.ephemeral_bytes, measured.ephemeral_bytes),
        )

    def ran(self, took_s: float) -> None:
        """Count a turn as service."""
        standing = self.standing
        standing.service_s += took_s
        standing.lane_s += took_s
        if self.stage == "running":
            self._lengths_s.append(took_s)
        standing.remaining_s = math.inf if self.steps is None else (self.steps - self.done) * self.turn_s

    def grew(self, by_bytes: int, peak_bytes: int | None) -> None:
        """
        Take in what a turn has shown.

        Parameters
        ----------
        by_bytes : int
            By which what it holds is more than before.
        peak_bytes : int or None
            The most that was held during the turn, beyond what was held before it; None: not measured.
        """
        before_bytes = self.held_bytes
        self.held_bytes = max(0, before_bytes + by_bytes)
        if self.stage == "running" and peak_bytes is not None:
            self.estimate.see(Sample(self.held_bytes, max(self.held_bytes, before_bytes + peak_bytes)))
