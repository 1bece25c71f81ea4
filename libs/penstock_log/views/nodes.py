"""
Answers about nodes, and about the whole at one glance: :class:`NodesView` and :class:`StatusView`.

What is here needs no type of a fact, so that a command that shows it is quick to load.
"""

from __future__ import annotations

from typing import Optional

from penstock_log.spec import Device
from penstock_log.views.answers import View


class DeviceView(View, frozen=True, kw_only=True):
    """
    One device of a node.

    Attributes
    ----------
    job_id : str
        The job that has it, or the first of those that share it; empty where it is idle.
    shared_by : tuple of str
        All jobs that share it.
    taken : str
        What its jobs hold of it, such as ``3 jobs hold 11.2 of 16 GiB``; empty where no other job may join.
    state : {"", "failed", "drained"}
        Why it takes no jobs, whatever its node does; empty where it takes some.
    reason : str
        Why it is in that state, as its driver or who drained it said.
    """

    name: str
    device: Device
    job_id: str
    shared_by: tuple[str, ...] = ()
    taken: str = ""
    state: str = ""
    reason: str = ""


class NodeView(View, frozen=True, kw_only=True):
    """
    One node.

    Attributes
    ----------
    state : {"up", "draining", "drained", "leaving", "lost", "left"}
        ``draining`` while a drained node still has running jobs, ``leaving`` once its executor has said that it stops.
    gone_s : float or None
        Since when it has been lost, or when it left; None while its executor is up.
    heard_s : float or None
        When this gateway last got a heartbeat; None where it got none, and in answers about the past.
    cpus, host_memory_bytes : float, int
        What its host has for jobs; 0 where it does not say.
    held_by : {"", "cgroup", "rlimit"}
        How jobs are held to their part of its memory; empty: they are not.
    containers : tuple of str
        What runs the images of jobs there; empty: nothing.
    pilot : str
        The pilot of an allocation that it is of; empty where it is of none.
    until_s : float
        Until when it stays, as nodes of pilots do; 0: until somebody stops it.
    image : str
        The image in which its executor runs, whose jobs need nothing of that; empty: none.
    """

    id: str
    pool: str
    state: str
    devices: tuple[DeviceView, ...]
    joined_s: float
    gone_s: Optional[float] = None
    heard_s: Optional[float] = None
    labels: dict[str, str] = {}
    cpus: float = 0.0
    host_memory_bytes: int = 0
    held_by: str = ""
    containers: tuple[str, ...] = ()
    pilot: str = ""
    until_s: float = 0.0
    image: str = ""


class NodeMemoryView(View, frozen=True, kw_only=True):
    """
    The memory that a node's agent lends, as it said itself within the last seconds.

    Attributes
    ----------
    id : str
        Of the node, which need not have an executor.
    offered, lent : int
        Slabs that it would have lent at most by now, and those that are lent.
    free_bytes, headroom_bytes : int
        What it has free, lent memory included, and what of that stays untouched.
    lent_to : dict of str to int
        Borrowing job, or else account, to slabs; only for those who may see everything.
    evicted : int
        Slabs that it has taken back since the agent began.
    errors : dict of str to int
        What its data port has refused since then, by name.
    """

    id: str
    slab_bytes: int
    offered: int
    lent: int
    free_bytes: int = 0
    headroom_bytes: int = 0
    lent_to: dict[str, int] = {}
    evicted: int = 0
    errors: dict[str, int] = {}
    sent_bytes: int = 0
    received_bytes: int = 0
    heard_s: Optional[float] = None


class NodesView(View, frozen=True, kw_only=True):
    """All nodes ever seen, by id, and the memory that nodes lend now; of a moment in the past, that is not known."""

    nodes: tuple[NodeView, ...]
    seq: int
    memory: tuple[NodeMemoryView, ...] = ()


class ReplicaView(View, frozen=True, kw_only=True):
    """
    One replica of a service with a recent heartbeat, and what it reported then.

    Attributes
    ----------
    elected : bool
        One replica of this service is to lead, by a lease; otherwise all decide.
    term_s : float
        For how long it has led without a gap.
    lease_s : float or None
        Seconds since it asked for the lease that was last confirmed; None where it has none.
    last_seq, decided_seq : int
        How far it has read the log, and how far it had when it last decided.
    undecided_s : float
        How long the oldest fact that matters to it has waited for a decision; 0 where none does, or others decide.
    """

    service: str
    id: str
    heard_s: float
    ready: bool = False
    elected: bool = False
    leading: bool = False
    term_s: float = 0.0
    lease_s: Optional[float] = None
    last_seq: int = 0
    decided_seq: int = 0
    undecided_s: float = 0.0


class StatusView(View, frozen=True, kw_only=True):
    """
    The whole at one glance.

    Attributes
    ----------
    jobs : dict of str to int
        Jobs by state, samples left out.
    devices : dict of str to dict of str to int
        Kind → ``{"busy", "idle", "lost", "drained", "failed"}`` → count.
    last_seq : int
        Of the log.
    backlog : int
        Messages of the log that this gateway has not folded yet.
    """

    jobs: dict[str, int]
    devices: dict[str, dict[str, int]]
    nodes: dict[str, int]
    sweeps: dict[str, int]
    services: tuple[ReplicaView, ...]
    last_seq: int
    backlog: int
    version: str = ""
