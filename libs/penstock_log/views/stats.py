"""Figures about the cluster by pool and team, without a name or an id of a job: what metrics are made of."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_log.totals import DeviceTime, PoolTotals
from penstock_log.views.answers import View

DEVICE_STATES: Final = ("busy", "idle", "drained", "failed", "leaving", "lost", "left")
"""States of a device: a job has it, or nobody, or it takes no jobs, or it is out of order, or its node is away."""

PILOT_STATES: Final = ("planned", "waiting", "starting", "running")
"""States of a pilot that has not ended: in the log alone, in its provider's queue, started, with a node."""
PILOT_ENDS: Final = ("finished", "cancelled", "failed", "refused", "lost")
"""How pilots end, as :data:`penstock_log.allocation_facts.PilotEnd` has them."""


class PoolStatsView(View, frozen=True, kw_only=True):
    """
    One pool.

    Attributes
    ----------
    jobs : dict of str to dict of str to int
        Team, empty for jobs of none → state of jobs that are not over (``pending``, ``held``, ``running``,
        ``preempting``, ``completing``) → jobs.
    waits : dict of str to int
        Cause → pending jobs, each once, as its ``why`` says: by the last round, or ``held``, ``dependency``, ``begin``,
        and ``undecided`` where no round has spoken of it.
    longest_wait_s : float
        For how long the one has waited that has waited longest, by its wait that goes on; held and blocked jobs, and
        those that are not to begin yet, are left out; 0 where none waits.
    nodes : dict of str to int
        State, as :class:`~penstock_log.views.NodeView` has it → nodes.
    devices : dict of str to dict of str to int
        Kind → each of :data:`DEVICE_STATES` → devices.
    totals : PoolTotals
        Since the log began.
    open_time : dict of str to DeviceTime
        Team → device time so far of runs that go on, as they have reported it.
    """

    pool: str
    jobs: dict[str, dict[str, int]] = {}
    waits: dict[str, int] = {}
    longest_wait_s: float = 0.0
    nodes: dict[str, int] = {}
    devices: dict[str, dict[str, int]] = {}
    totals: PoolTotals = msgspec.field(default_factory=PoolTotals)
    open_time: dict[str, DeviceTime] = {}


class AllocationStatsView(View, frozen=True, kw_only=True):
    """
    One allocation.

    Attributes
    ----------
    pilots : dict of str to int
        Each of :data:`PILOT_STATES` → pilots.
    paused : bool
        Whether no pilots are submitted until somebody resumes it.
    failures : int
        Pilots that failed one after the other since the last one joined.
    ended : dict of str to int
        Each of :data:`PILOT_ENDS` → pilots since it was added.
    """

    name: str
    pool: str
    pilots: dict[str, int] = {}
    paused: bool = False
    failures: int = 0
    ended: dict[str, int] = {}


class StatsView(View, frozen=True, kw_only=True):
    """
    The figures of all pools.

    Attributes
    ----------
    seq, last_seq : int
        How far this gateway has folded the log, and the log's last sequence.
    archived_jobs : int
        Jobs that were archived.
    allocations : tuple of AllocationStatsView
        By name.
    """

    pools: tuple[PoolStatsView, ...]
    seq: int
    last_seq: int
    archived_jobs: int = 0
    allocations: tuple[AllocationStatsView, ...] = ()
