"""
Facts about allocations and their pilots: nodes that Penstock has for a while from a cluster of somebody else's.

An allocation says where pilots may be submitted, how many, and for how long. A pilot is one job of that cluster, such
as Slurm's, whose processes are executors: its nodes join, run jobs, and leave again.

* The gateway writes what people ask of allocations on ``evt.alloc.<name>``.
* The allocator writes what becomes of an allocation's pilots on ``evt.pilot.<name>``, with the allocation's name.
"""

from __future__ import annotations

from typing import Literal

from penstock_log.allocation_spec import AllocationSpec
from penstock_log.facts import Event

PilotEnd = Literal["finished", "cancelled", "failed", "refused", "lost"]
"""
How a pilot ended. ``failed``: none of its nodes ever joined. ``refused``: it could not be submitted. ``lost``: nobody
knows of it any more.
"""


class AllocationAdded(Event, frozen=True, kw_only=True, tag="alloc.added.v1"):
    """From now on pilots may be submitted, where jobs wait that would run on them."""

    name: str
    spec: AllocationSpec
    by: str = ""


class AllocationRemoved(Event, frozen=True, kw_only=True, tag="alloc.removed.v1"):
    """No more pilots are submitted, and those that there are end."""

    name: str
    by: str = ""
    reason: str = ""


class AllocationPaused(Event, frozen=True, kw_only=True, tag="alloc.paused.v1"):
    """No more pilots are submitted; those that there are go on."""

    name: str
    by: str = ""
    reason: str = ""


class AllocationResumed(Event, frozen=True, kw_only=True, tag="alloc.resumed.v1"):
    """Pilots are submitted again, after a pause that somebody asked for, or that came of failures."""

    name: str
    by: str = ""
    reason: str = ""


class PilotPlanned(Event, frozen=True, kw_only=True, tag="pilot.planned.v1"):
    """
    A pilot is about to be submitted; this comes first, so that a restart in between submits none twice.

    Attributes
    ----------
    pilot_id : str
        Unique in the cluster; the names of its nodes begin with it.
    reason : str
        For which jobs, in words.
    """

    name: str
    pilot_id: str
    reason: str = ""


class PilotSubmitted(Event, frozen=True, kw_only=True, tag="pilot.submitted.v1"):
    """
    The provider has a pilot.

    Attributes
    ----------
    provider_id : str
        As the provider calls it, such as the number of Slurm's job.
    token : str
        Id of the token by which its nodes join; empty where none was needed.
    """

    name: str
    pilot_id: str
    provider_id: str
    token: str = ""


class PilotWaits(Event, frozen=True, kw_only=True, tag="pilot.waits.v1"):
    """
    The provider says why a pilot has not started yet; a later one replaces this one.

    Attributes
    ----------
    reason : str
        In the provider's words, such as Slurm's ``Resources``.
    """

    name: str
    pilot_id: str
    reason: str


class PilotWithdrawn(Event, frozen=True, kw_only=True, tag="pilot.withdrawn.v1"):
    """
    No job would run any more on a pilot that waits for its start: it is cancelled at its provider.

    It ends as cancelled once the provider has it no more. One that had started by then goes on.
    """

    name: str
    pilot_id: str
    reason: str = ""


class PilotStarted(Event, frozen=True, kw_only=True, tag="pilot.started.v1"):
    """The provider has begun to run a pilot."""

    name: str
    pilot_id: str
    hosts: tuple[str, ...] = ()


class PilotEnded(Event, frozen=True, kw_only=True, tag="pilot.ended.v1"):
    """A pilot is over, or could not be submitted."""

    name: str
    pilot_id: str
    state: PilotEnd
    reason: str = ""


class PilotsPaused(Event, frozen=True, kw_only=True, tag="pilot.paused.v1"):
    """The allocator submits no more pilots of an allocation, since too many failed one after the other."""

    name: str
    failures: int
    reason: str = ""
