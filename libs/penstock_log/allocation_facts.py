"""
Facts about allocations and their pilots: nodes that Penstock has for a while from a cluster of somebody else's.

An allocation says where pilots may be submitted, how many, and for how long. A pilot is one job of that cluster, such
as Slurm's, whose processes are executors: its nodes join, run jobs, and leave again.

* The gateway writes what people ask of allocations on ``evt.alloc.<name>``.
* The allocator writes what becomes of an allocation's pilots on ``evt.pilot.<name>``, with the allocation's name.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock_log.facts import Event
from penstock_log.spec import Name

Provider = Literal["slurm", "local", "ssh"]
"""Where pilots run: jobs of a Slurm cluster, child processes of the allocator, hosts that are reached by SSH."""
PilotEnd = Literal["finished", "cancelled", "failed", "refused", "lost"]
"""
How a pilot ended. ``failed``: none of its nodes ever joined. ``refused``: it could not be submitted. ``lost``: nobody
knows of it any more.
"""
LABEL_ALLOCATION: Final = "allocation"
LABEL_PILOT: Final = "pilot"
"""Labels of a pilot's nodes."""
MOST_PILOTS: Final = 1_000
_Word = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00\n\r]*$")]
_Script = Annotated[str, Meta(max_length=20_000)]


class AllocationSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """
    What may be taken of a cluster of somebody else's, and how.

    Attributes
    ----------
    provider : {"slurm", "local", "ssh"}
        What pilots are submitted to.
    pool : str
        The pool of Penstock that their nodes join.
    max_pilots : int
        The most pilots at once, those that wait for their start among them.
    backlog : int
        The most pilots that wait for their start.
    min_pilots : int
        So many are kept whether or not a job waits.
    walltime_s : float
        After so many seconds the provider ends a pilot. Its nodes leave in time before that.
    idle_s : float
        A pilot without a run ends itself after so many seconds; 0: it stays for its walltime, as kept ones do.
    nodes : int
        Nodes of one pilot.
    devices : str
        The devices that each node offers, as ``penstock up --devices`` has them; empty: what it finds.
    kinds : tuple of str
        Kinds of its devices, where jobs name kinds before the first pilot has shown its own; empty: not known.
    gpus : int
        Devices of each node, until the first pilot has shown its own.
    options : tuple of str
        Arguments for what submits, such as ``--partition=gpu`` for ``sbatch``.
    hosts : tuple of str
        The hosts of pilots over SSH, as ``ssh`` takes them.
    setup, teardown : str
        Lines of shell before a node's executor begins, such as ``module load cuda``, and after its end.
    environment : dict of str to str
        Variables of the executors, such as ``PENSTOCK_EXECUTOR_RUN_AS``.
    """

    provider: Provider
    pool: Name = "default"
    max_pilots: Annotated[int, Meta(ge=1, le=MOST_PILOTS)] = 1
    backlog: Annotated[int, Meta(ge=1, le=100)] = 2
    min_pilots: Annotated[int, Meta(ge=0, le=MOST_PILOTS)] = 0
    walltime_s: Annotated[float, Meta(ge=20, le=366 * 86_400)] = 3600.0
    idle_s: Annotated[float, Meta(ge=0, le=366 * 86_400)] = 300.0
    nodes: Annotated[int, Meta(ge=1, le=1_000)] = 1
    devices: Annotated[str, Meta(max_length=1_000)] = ""
    kinds: tuple[Name, ...] = ()
    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    options: Annotated[tuple[_Word, ...], Meta(max_length=100)] = ()
    hosts: Annotated[tuple[_Word, ...], Meta(max_length=MOST_PILOTS)] = ()
    setup: _Script = ""
    teardown: _Script = ""
    environment: dict[str, _Word] = {}


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
