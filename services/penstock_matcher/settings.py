"""What can be set about the matcher: table ``[matcher]`` or ``PENSTOCK_MATCHER_…``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock_policies.order import Rules

Seconds = Annotated[float, Meta(ge=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The rounds' parameters.

    Attributes
    ----------
    node_timeout_s : float
        A node whose heartbeats have stopped for this long is lost, and its jobs are placed again.
    min_run_s : float
        A run is not preempted for another job before it has run this long.
    overhead_share : float
        Nor before what its workload needs to start, resume and stop, as measured, is at most this share of it.
    patience_s : float
        A waiting job is overtaken by smaller or shorter ones of its queue no longer than this.
    await_profile_s : float
        An unseen workload waits this long after submission for its speeds, where it could run on several kinds.
    prior_service_s : float
        Expected length of a job that declares none, until the pool has finished one.
    window : int
        Most one-device jobs in one matching.
    max_waits : int
        Jobs whose waiting a round explains.
    explain_every_s : float
        Least time between two rounds that only explain.
    """

    node_timeout_s: Seconds = 5.0
    min_run_s: Seconds = 5.0
    overhead_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    patience_s: Seconds = 30.0
    await_profile_s: Seconds = 10.0
    prior_service_s: Annotated[float, Meta(gt=0)] = 60.0
    window: Annotated[int, Meta(ge=1, le=512)] = 64
    max_waits: Annotated[int, Meta(ge=0, le=1000)] = 50
    explain_every_s: Seconds = 1.0

    @property
    def rules(self) -> Rules:
        """The part that the policies need."""
        return Rules(
            min_run_s=self.min_run_s,
            overhead_share=self.overhead_share,
            patience_s=self.patience_s,
            window=self.window,
        )
