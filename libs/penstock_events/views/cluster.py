"""Nodes, services, and the whole at one glance."""

from __future__ import annotations

from typing import Any

from penstock_events.policy import Setting
from penstock_events.spec import Device
from penstock_events.views.base import View


class DeviceView(View, frozen=True, kw_only=True):
    """
    One device of a node.

    Attributes
    ----------
    job_id : str
        Who has it, the first of those who share it; empty where it is idle.
    shared_by : tuple of str
        All who share it.
    taken : str
        What they hold of it, such as ``3 jobs hold 11.2 of 16 GiB``; empty where nobody else may join.
    """

    name: str
    device: Device
    job_id: str
    shared_by: tuple[str, ...] = ()
    taken: str = ""


class NodeView(View, frozen=True, kw_only=True):
    """
    One node.

    Attributes
    ----------
    state : {"up", "draining", "drained", "lost", "left"}
        ``draining`` while a drained node still has running jobs.
    heard_s : float or None
        Last heartbeat that this gateway heard; None where it heard none, and in answers about the past.
    cpus, host_memory_bytes : float, int
        What its host has for jobs; 0 where it does not say.
    held_by : {"", "cgroup", "rlimit"}
        How jobs are held to their part of its memory; empty: they are not.
    """

    id: str
    pool: str
    state: str
    devices: tuple[DeviceView, ...]
    joined_s: float
    heard_s: float | None = None
    labels: dict[str, str] = {}
    cpus: float = 0.0
    host_memory_bytes: int = 0
    held_by: str = ""


class NodesView(View, frozen=True, kw_only=True):
    """All nodes ever seen, by id."""

    nodes: tuple[NodeView, ...]
    seq: int


class ReplicaView(View, frozen=True, kw_only=True):
    """
    One replica of a service that was heard lately, with what it said of itself then.

    Attributes
    ----------
    elected : bool
        One replica of this service is to lead, by a lease; otherwise all decide.
    term_s : float
        For how long it has led without a gap.
    lease_s : float or None
        How long before it asked for the lease that was last confirmed; None where it has none.
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
    lease_s: float | None = None
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
        Kind → ``{"busy", "idle", "lost", "drained"}`` → count.
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


class PolicyView(View, frozen=True, kw_only=True):
    """
    What is set live for one pool.

    Attributes
    ----------
    settings : dict of str to Setting
        By name; all others are as the services' own settings say.
    """

    pool: str
    settings: dict[str, Setting]


class PoliciesView(View, frozen=True, kw_only=True):
    """
    What is set live, by pool.

    Attributes
    ----------
    pools : tuple of PolicyView
        All pools that have or had a node, and those for which something is set.
    defaults : dict of str to Setting
        Every setting that can be set live, and what holds where neither the file nor anybody says otherwise.
    """

    pools: tuple[PolicyView, ...]
    defaults: dict[str, Setting]
    seq: int


class SchemaView(View, frozen=True, kw_only=True):
    """The published JSON Schemas."""

    job: dict[str, Any]
    sweep: dict[str, Any]
