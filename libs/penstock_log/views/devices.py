"""
Answers for who looks at many devices or many waiting jobs at once: the cluster's devices, and the queue.

:class:`DevicesView` has every device once and every job on one once, so that 2,000 devices are a small message.
:class:`QueueView` has a part of the waiting jobs in the order in which they are considered, and counts of all of them.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from penstock_log.views.answers import View


class DeviceOccupation(msgspec.Struct, frozen=True, array_like=True):
    """
    One device: its number on its node, its kind, its memory in bytes, and the jobs on it.

    ``taken`` says what the jobs hold of a device that others may join; empty otherwise. ``state`` is ``failed`` or
    ``drained`` for a device that takes no jobs whatever its node does, and ``reason`` says why; empty for the others.
    """

    index: int
    kind: str
    memory_bytes: int
    job_ids: tuple[str, ...] = ()
    taken: str = ""
    state: str = ""
    reason: str = ""


class NodeDevicesView(View, frozen=True, kw_only=True):
    """
    One node with its devices.

    Attributes
    ----------
    state : {"up", "draining", "drained", "lost", "left"}
    reason : str
        Why it is drained, as who drained it said.
    rack : str
        Where it stands: its label of the innermost level of its pool's topology, else ``topology.rack`` or ``rack``.
    heard_s : float or None
        When this gateway last heard it; None where it has not, and in answers about the past.
    pilot : str
        The pilot of an allocation that it is of; empty where it is of none.
    until_s : float
        Until when it stays; 0: until somebody stops it.
    """

    id: str
    pool: str
    state: str
    devices: tuple[DeviceOccupation, ...]
    rack: str = ""
    reason: str = ""
    heard_s: Optional[float] = None
    pilot: str = ""
    until_s: float = 0.0


class HolderView(View, frozen=True, kw_only=True):
    """
    One job that has devices.

    Attributes
    ----------
    name, model : str
        Empty where the asker may not see them.
    started_s : float
        When its present run started; 0 while it is being started.
    grows_to : int
        Devices that its next run is promised, where it is resized; else 0.
    gives_to : tuple of str
        Waiting or growing jobs for which it gives up devices.
    """

    id: str
    user: str
    team: str
    state: str
    gpus: int
    sharing: str
    name: str = ""
    model: str = ""
    started_s: float = 0.0
    grows_to: int = 0
    gives_to: tuple[str, ...] = ()


class DevicesView(View, frozen=True, kw_only=True):
    """All devices by node, and the jobs that have them."""

    nodes: tuple[NodeDevicesView, ...]
    jobs: tuple[HolderView, ...]
    seq: int
    now_s: float


class QueuedJobView(View, frozen=True, kw_only=True):
    """
    One waiting job.

    Attributes
    ----------
    place : int
        Among all waiting jobs of its pool, 1 is considered first.
    queue : int or None
        The ranker's queue; None before it was ranked.
    cause, evidence, remedy : str
        Why it waits, what shows it, and what would change it; the last two are empty where the asker may not see the
        job.
    since_s : float
        Since when it waits this time.
    """

    id: str
    user: str
    team: str
    pool: str
    gpus: int
    kinds: tuple[str, ...]
    place: int
    cause: str
    submitted_s: float
    since_s: float
    queue: Optional[int] = None
    held: bool = False
    priority_class: str = ""
    name: str = ""
    model: str = ""
    parent: str = ""
    evidence: str = ""
    remedy: str = ""
    preemptions: int = 0
    own: bool = False
    """Whether the asker may act on it."""


class QueueView(View, frozen=True, kw_only=True):
    """
    A part of the waiting jobs in rank order.

    Attributes
    ----------
    total : int
        Waiting jobs that match.
    gpus : int
        Devices that these ask for.
    by_user, by_team, by_pool, by_cause : dict of str to int
        How many of them.
    """

    jobs: tuple[QueuedJobView, ...]
    total: int
    gpus: int
    by_user: dict[str, int]
    by_team: dict[str, int]
    by_pool: dict[str, int]
    by_cause: dict[str, int]
    seq: int
    now_s: float
