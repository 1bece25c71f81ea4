"""Facts about nodes. Written by each node's executor on ``evt.node.<id>``."""

from __future__ import annotations

from typing import Literal

from penstock_events.base import Event
from penstock_events.spec import Device


class NodeJoined(Event, frozen=True, kw_only=True, tag="node.joined.v2"):
    """
    A node's executor is up, has ended what no longer belongs to it, and offers these devices.

    Said at every start of the executor. ``v1`` knew only a count of devices of one kind; it is upcast.

    Attributes
    ----------
    incarnation : str
        Changes with every start of the executor.
    cpus : float
        Processors that jobs may use; 0: not known, so that nobody is kept from it for want of them.
    host_memory_bytes : int
        Memory of the host that jobs may use; 0: not known, likewise.
    held_by : {"", "cgroup", "rlimit"}
        How jobs are held to their share of it; empty: they are not.
    """

    node_id: str
    devices: tuple[Device, ...]
    pool: str = "default"
    labels: dict[str, str] = {}
    incarnation: str = ""
    cpus: float = 0.0
    host_memory_bytes: int = 0
    held_by: Literal["", "cgroup", "rlimit"] = ""


class NodeLeft(Event, frozen=True, kw_only=True, tag="node.left.v1"):
    """The executor stopped in good order and all of its runs have ended."""

    node_id: str
    reason: str = ""
