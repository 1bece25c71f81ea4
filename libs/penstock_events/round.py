"""Facts about matching rounds. Written by the matcher on ``evt.round.<pool>``: one event a decision."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_events.base import Event
from penstock_events.spec import MemoryNeed

Cause = Literal[
    "capacity",  # every fitting device is taken by jobs that rank higher
    "gang",  # some devices are free, but not enough at once
    "later_place",  # the matching has it wait for a better device
    "host_cpus",  # devices for it are idle, but their host has too few processors left
    "host_memory",  # devices for it are idle, but their host has too little memory left
    "order",  # devices for it are idle, but those before it come first
    "fairness",  # its user has had more than others whose jobs wait
    "profiling",  # its speeds are being measured
    "backoff",  # it failed and is waiting for its next try
    "never_fits",  # no set of present nodes could ever hold it
    "no_nodes",  # the pool has no node that takes jobs
    "held",  # its user or an operator holds it
]


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one node."""

    node_id: str
    devices: tuple[int, ...]


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A lease: the job runs on these devices under this epoch.

    Attributes
    ----------
    epoch : int
        One more than the job's last; executors and folds refuse facts of older ones.
    need : MemoryNeed or None
        For a job that takes turns on its devices: what it is reckoned to need of each, if anybody knows; until it is
        measured, its executor goes by that.
    """

    job_id: str
    epoch: int
    kind: str
    slots: tuple[Slot, ...]
    need: MemoryNeed | None = None


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """
    The job's run under this epoch is to checkpoint and stop.

    Attributes
    ----------
    for_job : str
        The waiting job that is to have its devices; empty where it makes room for nobody.
    """

    job_id: str
    epoch: int
    reason: str = ""
    for_job: str = ""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """
    A single change of a waiting job with which it starts at once: somebody has tried it on a round.

    Attributes
    ----------
    change : dict
        Names of fields of its :class:`~penstock_events.JobSpec` → the values they would have. Submitted anew with
        these, the job starts; ``hold`` false is a release of the same job.
    kind : str
        What it would start on.
    speed : float
        Its speed there relative to the fastest kind that it accepts as it is; 0 where that was not measured.
    starts : {"now"}
        When it would start.
    text : str
        The same in words.
    """

    change: dict[str, str | int | float | bool | tuple[str, ...]]
    kind: str
    speed: float = 0.0
    starts: Literal["now"] = "now"
    text: str = ""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """
    Why a job waits.

    Attributes
    ----------
    cause : Cause
        The one that dominates.
    evidence : str
        What shows it, in figures.
    remedy : str
        What would change it; empty where nothing the user does would.
    alternative : Alternative or None
        The best change that the round tried and that would have the job start; None where it tried none that would.
    """

    job_id: str
    cause: Cause
    evidence: str
    remedy: str = ""
    alternative: Alternative | None = None


class RoundDecided(Event, frozen=True, kw_only=True, tag="round.decided.v1"):
    """
    The matcher decided who runs where.

    Attributes
    ----------
    lost_nodes : tuple of str
        Nodes whose heartbeats have stopped; their leases end here.
    forgotten_nodes : tuple of str
        Nodes that left or were lost long ago; they are listed no more.
    prices : dict of str to float
        What one more device of each kind would save, in seconds of completion time.
    keeps : dict of str to str
        Gangs that have waited for their patience → the kind of which what falls free is kept for them.
    waits : tuple of Wait
        For the first waiting jobs in rank order; a later round's list replaces this one.
    """

    pool: str
    placements: tuple[Placement, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    forgotten_nodes: tuple[str, ...] = ()
    prices: dict[str, float] = {}
    keeps: dict[str, str] = {}
    waits: tuple[Wait, ...] = ()
