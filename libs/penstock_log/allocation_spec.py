"""
What is asked of an allocation: nodes that Penstock takes for a while of a cluster of somebody else's.

It stands apart from the facts about allocations, since every command loads the requests that carry it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Optional

import msgspec
from msgspec import Meta

from penstock_log.spec import Name

Provider = Literal["slurm", "kubernetes", "local", "ssh"]
"""Where pilots run: jobs of Slurm, Pods of Kubernetes, child processes of the allocator, hosts that SSH reaches."""
LABEL_ALLOCATION: Final = "allocation"
LABEL_PILOT: Final = "pilot"
"""Labels of a pilot's nodes."""
MOST_PILOTS: Final = 1_000
_Word = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00\n\r]*$(?!\n)")]
_Script = Annotated[str, Meta(max_length=20_000)]


class PodOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """
    What the Pods of an allocation are like.

    Attributes
    ----------
    image : str
        The image in which their executors and jobs run; it has the programs ``penstock`` and ``bash``. Jobs that ask
        for an image run there if it is this one.
    namespace : str
        The namespace of the Pods; empty: that of the allocator's own login.
    gpu_resource : str
        The name of the resource of which each Pod gets as many as the allocation's ``gpus``; empty: it asks for none.
    claim : str
        The PersistentVolumeClaim that holds the jobs' checkpoints; empty: they are in the Pod, and go with it.
    template : dict
        A part of a Pod, with ``metadata`` and ``spec``, that is laid over the allocator's own.
    """

    image: Annotated[str, Meta(max_length=512, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$(?!\n)")]
    namespace: Annotated[str, Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$(?!\n)")] = ""
    gpu_resource: Annotated[str, Meta(max_length=253, pattern=r"^[A-Za-z0-9./_-]*$(?!\n)")] = "nvidia.com/gpu"
    claim: Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9.-]*$(?!\n)")] = ""
    template: dict[str, Any] = {}


class AllocationSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """
    What may be taken of a cluster of somebody else's, and how.

    Attributes
    ----------
    provider : {"slurm", "kubernetes", "local", "ssh"}
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
    runs : int
        A pilot's node takes no more once so many runs have ended there, and leaves; 0: it takes one after the other.
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
    pod : PodOptions, optional
        What Pods are like; of Kubernetes' pilots.
    """

    provider: Provider
    pool: Name = "default"
    max_pilots: Annotated[int, Meta(ge=1, le=MOST_PILOTS)] = 1
    backlog: Annotated[int, Meta(ge=1, le=100)] = 2
    min_pilots: Annotated[int, Meta(ge=0, le=MOST_PILOTS)] = 0
    walltime_s: Annotated[float, Meta(ge=20, le=366 * 86_400)] = 3600.0
    idle_s: Annotated[float, Meta(ge=0, le=366 * 86_400)] = 300.0
    runs: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
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
    pod: Optional[PodOptions] = None
