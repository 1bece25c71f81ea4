"""Facts about the order of jobs. Written by the ranker on ``evt.rank.<pool>``."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_events.base import Event


class Rank(msgspec.Struct, frozen=True, kw_only=True, array_like=False):
    """
    A job's place in the order: lowest ``(queue, position)`` first, then whoever entered the queue first.

    Attributes
    ----------
    queue : int
        0 is served first.
    position : float
        Order within the queue; what it counts depends on the order that is set, by default the time of entering it.
    since_s : float or None
        When the job entered the queue; None where ``position`` is that time.
    attained_gpu_s : float
        GPU-seconds used when the rank was worked out.
    falls_per_s : float
        How much the position falls with each second that the job executes from then on.
    """

    job_id: str
    queue: int
    position: float
    attained_gpu_s: float = 0.0
    since_s: float | None = None
    falls_per_s: float = 0.0

    @property
    def entered_s(self) -> float:
        """When the job entered the queue."""
        return self.position if self.since_s is None else self.since_s

    @property
    def key(self) -> tuple[int, float, float, str]:
        """What jobs are sorted by."""
        entered_s = self.position if self.since_s is None else self.since_s
        return self.queue, self.position, entered_s, self.job_id


class JobsRanked(Event, frozen=True, kw_only=True, tag="rank.jobs_ranked.v1"):
    """
    These jobs have a new place; all others keep theirs.

    Attributes
    ----------
    backfills : bool
        Whether, in this order, jobs behind one that does not fit may start.
    preempts : {"never", "queue", "position"}
        Which jobs a running one makes way for: none, those of a lower queue, or all that come before it.
    order : str
        Its name: it tells which place a job would get that comes now.
    """

    pool: str
    ranks: tuple[Rank, ...]
    backfills: bool = True
    preempts: Literal["never", "queue", "position"] = "queue"
    order: str = "2d-las"
