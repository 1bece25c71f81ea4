"""Allocations, their pilots, and what a pilot would be."""

from __future__ import annotations

from typing import Optional

from penstock_log.allocation_spec import AllocationSpec
from penstock_log.views.answers import View


class PilotView(View, frozen=True, kw_only=True):
    """
    One pilot.

    Attributes
    ----------
    state : str
        ``planned``, ``waiting`` for its start at the provider, ``starting``, ``running`` once a node has joined; or how
        it ended: ``finished``, ``cancelled``, ``failed``, ``refused`` or ``lost``.
    provider_id : str
        As the provider calls it, such as the number of Slurm's job.
    nodes : tuple of str
        Its nodes that have joined.
    reason : str
        For which jobs it was planned; of one that has ended, why.
    waits : str
        Why it has not started, as its provider says.
    withdrawn_s : float or None
        Since when it is to be cancelled before it starts, as no job would run on it any more.
    """

    id: str
    state: str
    provider_id: str = ""
    nodes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    planned_s: float = 0.0
    submitted_s: Optional[float] = None
    started_s: Optional[float] = None
    joined_s: Optional[float] = None
    ended_s: Optional[float] = None
    reason: str = ""
    waits: str = ""
    withdrawn_s: Optional[float] = None


class AllocationView(View, frozen=True, kw_only=True):
    """
    One allocation.

    Attributes
    ----------
    state : str
        ``active``, ``paused``, or ``removing`` until its last pilot has ended.
    reason : str
        Why it is paused.
    made : int
        Pilots so far.
    failures : int
        Pilots that failed one after the other since the last one joined.
    failure : str
        Why the last one did.
    refused : dict of str to str
        User whose jobs its pilots refuse, and bring no other pilot until it is resumed → why.
    devices : str
        What a node of its pilots had last, such as ``4 a100``; empty before the first one joined.
    pilots : tuple of PilotView
        Those that have not ended, then the last ones that have.
    """

    name: str
    state: str
    spec: AllocationSpec
    added_s: float
    by: str = ""
    reason: str = ""
    made: int = 0
    failures: int = 0
    failure: str = ""
    refused: dict[str, str] = {}
    devices: str = ""
    pilots: tuple[PilotView, ...] = ()


class AllocationsView(View, frozen=True, kw_only=True):
    """All allocations by name."""

    allocations: tuple[AllocationView, ...]
    seq: int = 0


class PilotOutlook(View, frozen=True, kw_only=True):
    """
    What an allocation could do for a job that waits.

    Attributes
    ----------
    state : {"coming", "able", "failing", "full", "paused", "unable"}
        ``coming``: pilots that would hold it are on their way. ``able``: it may submit one. ``failing``: the last one
        failed, and it tries again. ``full``: it has as many as it may. ``unable``: its pilots could not run the job.
    pilots : int
        Its pilots now.
    text : str
        All of that in a sentence, with what to do where anything is.
    """

    name: str
    provider: str
    state: str
    pilots: int
    text: str

    @property
    def is_hopeful(self) -> bool:
        """Whether it may bring a node that holds the job, and nobody has to do anything for that."""
        return self.state not in {"paused", "unable"}


class PilotTrialView(View, frozen=True, kw_only=True):
    """
    What a pilot would be, and what its provider says of it.

    Attributes
    ----------
    accepted : bool
        Whether the provider would take it.
    said : str
        What the provider says.
    pilots : int
        How many would be submitted now.
    reason : str
        For which jobs.
    script, node_script : str
        What would be submitted, and what it runs on each machine.
    command : tuple of str
        What would be run to submit it; empty where that is no single command.
    """

    accepted: bool
    said: str
    pilots: int = 0
    reason: str = ""
    script: str = ""
    node_script: str = ""
    command: tuple[str, ...] = ()
