"""A job's place in the order, as the log has it."""

from __future__ import annotations

import msgspec

from penstock_events import Job, Rank
from penstock_policies.orders import Order
from penstock_policies.ranking import Move


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job's published place.

    Attributes
    ----------
    entered_s : float
        When it entered its queue.
    executed_before_s, waited_before_s : float
        How much it had executed and waited when it was last promoted.
    """

    queue: int
    position: float
    entered_s: float
    executed_before_s: float = 0.0
    waited_before_s: float = 0.0


def published(rank: Rank, at_s: float, job: Job, before: Place | None) -> Place:
    """Return the place that a rank gives to a job: one that rises to a lower queue starts again from nothing."""
    executed_s = before.executed_before_s if before is not None else 0.0
    waited_s = before.waited_before_s if before is not None else 0.0
    if before is not None and rank.queue < before.queue:
        executed_s, waited_s = rank.attained_gpu_s / job.spec.gpus, job.waited_by(at_s)
    return Place(
        queue=rank.queue,
        position=rank.position,
        entered_s=rank.entered_s,
        executed_before_s=executed_s,
        waited_before_s=waited_s,
    )


def rank_of(move: Move, job: Job, now_s: float, order: Order) -> Rank:
    """Return a move as the log tells it."""
    return Rank(
        job_id=job.id,
        queue=move.queue,
        position=move.position,
        since_s=None if move.entered_s == move.position else move.entered_s,
        attained_gpu_s=job.attained_gpu_s(now_s),
        falls_per_s=order.falls_per_s(job.spec.gpus, job.spec.widths[0]),
    )
