"""
What a job is to have from its next run on: the one way in which whoever sizes jobs changes what they ask for.

The tuner sizes the trials of its sweeps and says so in facts of its own; the autoscaler sizes elastic jobs and writes
:class:`ScaleDecided` on ``evt.scale.<pool>``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_events.base import Event


class Demand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What one job is to have instead of what it has, or asks for.

    A job that waits asks for it from now on. A run that goes on is preempted for it: it saves a checkpoint and stops,
    and the job's next run has it.

    Attributes
    ----------
    epoch : int
        The job's last when this was decided; void if the job has been placed since.
    gpus, sharing, sharers
        As in its specification.
    batch_size : int
        Over all devices; 0: as it was.
    kinds : tuple of str
        The device kinds for which this size is; empty: any that the job accepts.
    gives : dict of str to int
        Job → devices that this one gives up for it; what it gives up for nobody in particular is left out.
    reason : str
        In one sentence.
    """

    job_id: str
    epoch: int
    gpus: int = 1
    sharing: Literal["exclusive", "lane"] = "exclusive"
    sharers: int = 0
    batch_size: int = 0
    kinds: tuple[str, ...] = ()
    gives: dict[str, int] = {}
    reason: str = ""


class ScaleDecided(Event, frozen=True, kw_only=True, tag="scale.decided.v1"):
    """
    These elastic jobs are to have other sizes from their next runs on; all others keep theirs.

    A new job is sized once before it starts, even where that is the size that it asks for.

    Attributes
    ----------
    because : {"arrival", "completion", "nodes", "order", "profile", "interval"}
        What led to it.
    dropped : tuple of str
        Jobs that have never run and for which there is no room: they are over, where the pool is set to drop them.
    scaling : float
        Sum over the pool's elastic jobs of their throughput relative to that at their smallest widths.
    """

    pool: str
    demands: tuple[Demand, ...]
    because: Literal["arrival", "completion", "nodes", "order", "profile", "interval"] = "interval"
    dropped: tuple[str, ...] = ()
    scaling: float = 0.0
