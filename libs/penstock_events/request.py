"""What people ask of sweeps and nodes. Written by the gateway on ``evt.request.<id>``."""

from __future__ import annotations

from penstock_events.base import Event
from penstock_events.spec import SweepSpec


class SweepSubmitted(Event, frozen=True, kw_only=True, tag="request.sweep_submitted.v1"):
    """The gateway accepted a sweep."""

    sweep_id: str
    spec: SweepSpec


class SweepCancelled(Event, frozen=True, kw_only=True, tag="request.sweep_cancelled.v1"):
    """No further trials; the gateway cancels those that have not ended."""

    sweep_id: str
    by: str = ""


class NodeDrained(Event, frozen=True, kw_only=True, tag="request.node_drained.v1"):
    """The node takes no new jobs; with ``preempt`` its running ones are checkpointed and moved."""

    node_id: str
    by: str = ""
    reason: str = ""
    preempt: bool = False


class NodeRemoved(Event, frozen=True, kw_only=True, tag="request.node_removed.v1"):
    """The node is no longer there, and is listed no more; if its executor ever starts again, it joins as a new node."""

    node_id: str
    by: str = ""
    reason: str = ""


class NodeResumed(Event, frozen=True, kw_only=True, tag="request.node_resumed.v1"):
    """The node takes jobs again."""

    node_id: str
    by: str = ""
