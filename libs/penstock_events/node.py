"""Facts about nodes. Written by each node's executor on ``evt.node.<id>``."""

from __future__ import annotations

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
    """

    node_id: str
    devices: tuple[Device, ...]
    pool: str = "default"
    labels: dict[str, str] = {}
    incarnation: str = ""


class NodeLeft(Event, frozen=True, kw_only=True, tag="node.left.v1"):
    """The executor stopped in good order and all of its runs have ended."""

    node_id: str
    reason: str = ""
