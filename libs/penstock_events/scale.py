"""What a job is to have from its next run on: the one way in which whoever sizes jobs changes what they ask for."""

from __future__ import annotations

from typing import Literal

import msgspec


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
    reason : str
        In one sentence.
    """

    job_id: str
    epoch: int
    gpus: int = 1
    sharing: Literal["exclusive", "lane"] = "exclusive"
    sharers: int = 0
    reason: str = ""
