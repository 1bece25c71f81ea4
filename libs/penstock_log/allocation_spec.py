"""
What is asked of an allocation: nodes that Penstock takes for a while of a cluster of somebody else's.

It stands apart from the facts about allocations, since every command loads the requests that carry it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock_log.spec import Name

Provider = Literal["slurm", "local", "ssh"]
"""Where pilots run: jobs of a Slurm cluster, child processes of the allocator, hosts that are reached by SSH."""
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
    agents : bool
        Whether a memory agent and an aggregation agent run beside each executor: jobs of several processes that
        aggregate need one.
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
    agents: bool = False
