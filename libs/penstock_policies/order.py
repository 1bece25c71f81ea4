"""What a round of matching works on: jobs in their order, runs that may be preempted, and what is expected of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from penstock_events import Job
from penstock_policies.placement import Free, Located

Speed = Callable[[Job, str], float]
"""Speed of a job on a kind of device, relative to its fastest kind."""

Remaining = Callable[[Sequence[Job]], Sequence[float]]
"""Expected remaining service of jobs, seconds at speed 1."""

Overhead = Callable[[Job], float]
"""Seconds of a job's run in which it does not advance, as measured: starting, resuming, stopping."""


class Ranked(NamedTuple):
    """A job in the order: samples (``queue`` -1) first, then by queue, and by its number in the pool."""

    queue: int
    position: float
    job_id: str
    job: Job

    @property
    def sample(self) -> bool:
        """Whether it is a profiler's sample: ahead of all others, but never a reason to preempt."""
        return self.queue < 0


class Running(NamedTuple):
    """A run, and its devices on nodes that take jobs."""

    ranked: Ranked
    kind: str
    devices: tuple[Located, ...]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """
    What bounds preemption, overtaking, and work.

    Attributes
    ----------
    min_run_s : float
        A run is not preempted for another job before it has run this long.
    overhead_share : float
        Nor before its measured overhead is at most this share of it.
    patience_s : float
        Smaller or shorter jobs overtake a waiting job no longer than this.
    window : int
        Most one-device jobs in one matching.
    """

    min_run_s: float = 5.0
    overhead_share: float = 0.2
    patience_s: float = 30.0
    window: int = 64


@dataclass(frozen=True)
class Outlook:
    """
    What a round knows of time, speed, length and overhead.

    Attributes
    ----------
    prior_s : float
        Service that a job is expected to need while nothing is known, seconds at speed 1.
    """

    now_s: float
    speed: Speed
    remaining: Remaining
    rules: Rules
    prior_s: float = 60.0
    overhead: Overhead = lambda _: 0.0


@dataclass(frozen=True)
class Supply:
    """
    The devices of a pool's nodes that take jobs.

    Attributes
    ----------
    free, coming : Free
        Free now, and held by runs that are stopping; a round takes from both.
    whole : Free
        All of them, whoever holds them.
    """

    free: Free
    coming: Free
    whole: Free
