"""Facts about the order of jobs. Written by the ranker on ``evt.rank.<pool>``."""

from __future__ import annotations

import msgspec

from penstock_events.base import Event


class Rank(msgspec.Struct, frozen=True, kw_only=True, array_like=False):
    """
    A job's place in the order: lowest ``(queue, position)`` first.

    Attributes
    ----------
    queue : int
        0 is served first.
    position : float
        Order within the queue; by default the time at which the job entered it.
    attained_gpu_s : float
        GPU-seconds used when the rank was worked out.
    """

    job_id: str
    queue: int
    position: float
    attained_gpu_s: float = 0.0


class JobsRanked(Event, frozen=True, kw_only=True, tag="rank.jobs_ranked.v1"):
    """These jobs have a new place; all others keep theirs."""

    pool: str
    ranks: tuple[Rank, ...]
