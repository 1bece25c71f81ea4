"""The pool's nodes and devices as the log has them, and which of them are free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from penstock_events import (
    Device,
    Event,
    Job,
    JobSpec,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeRemoved,
    NodeResumed,
    RoundDecided,
)
from penstock_policies.spreading import Path


class Node(msgspec.Struct, kw_only=True):
    """
    One node as the log has it so far.

    Attributes
    ----------
    joined_s : float
        When its executor last said that it is up.
    drained : bool
        It takes no new jobs; this survives a restart of the executor and ends with ``NodeResumed``.
    evicting : bool
        Drained, and its running jobs are to be moved as well.
    cpus, host_memory_bytes, held_by
        As :class:`penstock_events.NodeJoined` has them.
    gone : {"", "left", "lost"}
        Empty while its executor is up; anything else lasts until the next ``NodeJoined``.
    gone_s : float
        Since when it has been gone.
    """

    id: str
    pool: str = "default"
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    incarnation: str = ""
    joined_s: float = 0.0
    drained: bool = False
    evicting: bool = False
    cpus: float = 0.0
    host_memory_bytes: int = 0
    held_by: Literal["", "cgroup", "rlimit"] = ""
    gone: Literal["", "left", "lost"] = ""
    gone_s: float = 0.0

    @property
    def present(self) -> bool:
        """Whether its executor is up."""
        return not self.gone

    @property
    def usable(self) -> bool:
        """Whether it takes new jobs."""
        return not self.gone and not self.drained


OF_NODES: Final[frozenset[type[Event]]] = frozenset(
    {NodeJoined, NodeLeft, NodeDrained, NodeRemoved, NodeResumed, RoundDecided}
)
"""Kinds of facts that may say something of nodes."""


class Cluster(msgspec.Struct):
    """
    All nodes that joined and were not removed or forgotten since, by id.

    Examples
    --------
    >>> cluster = Cluster()
    >>> fast = Device(index=0, kind="fast", memory_bytes=8, backend="emulated")
    >>> cluster.apply(NodeJoined(at_s=0.0, node_id="n1", devices=(fast,)))
    True
    >>> [device.kind for device in cluster.free([])["n1"]]
    ['fast']
    """

    nodes: dict[str, Node] = msgspec.field(default_factory=dict)

    def apply(self, event: Event) -> bool:
        """Fold one fact in; return whether it was about a known node. Other facts change nothing."""
        if isinstance(event, RoundDecided):
            lost = [self._set(node, gone="lost", gone_s=event.at_s) for node in event.lost_nodes]
            return any([*lost, *map(self._remove, event.forgotten_nodes)])
        return type(event) in OF_NODES and self._apply(event)

    def _apply(self, event: Event) -> bool:
        match event:
            case NodeJoined():
                self.nodes[event.node_id] = _joined(event, self.nodes.get(event.node_id))
                return True
            case NodeLeft():
                return self._set(event.node_id, gone="left", gone_s=event.at_s)
            case NodeRemoved():
                return self._remove(event.node_id)
            case NodeDrained():
                return self._set(event.node_id, drained=True, evicting=event.preempt)
            case NodeResumed():
                return self._set(event.node_id, drained=False, evicting=False)
            case _:
                return False

    def pools(self) -> set[str]:
        """Return the names of all pools that have a node, present or gone."""
        return {node.pool for node in self.nodes.values()}

    def present(self, pool: str | None = None) -> Iterator[Node]:
        """Yield the nodes whose executors are up, drained ones among them."""
        return (node for node in self.nodes.values() if node.present and pool in {None, node.pool})

    def usable(self, pool: str | None = None) -> Iterator[Node]:
        """Yield the nodes that take new jobs."""
        return (node for node in self.present(pool) if not node.drained)

    def free(self, jobs: Iterable[Job], pool: str | None = None) -> dict[str, list[Device]]:
        """
        Return the free devices of every usable node, by node id, in the node's order.

        A device is taken while the lease of one of ``jobs`` has its node in ``open_nodes``. Jobs without a lease cost
        a look each, so pass those that may have one.
        """
        taken = taken_devices(jobs)
        return {
            node.id: [device for device in node.devices if (node.id, device.index) not in taken]
            for node in self.usable(pool)
        }

    def paths(self, levels: Sequence[str], pool: str | None = None) -> dict[str, Path]:
        """
        Return where the usable nodes stand, by node id: the domain of each level, outermost first.

        A node says where with labels such as ``topology.rack = r1``. A level that no node has a label of does not
        count; a node without one that others have stands in a domain of its own.
        """
        nodes = list(self.usable(pool))
        labels = [f"topology.{level}" for level in levels]
        known = [label for label in labels if any(label in node.labels for node in nodes)]
        return {node.id: tuple(node.labels.get(label, f"node {node.id}") for label in known) for node in nodes if known}

    def _remove(self, node_id: str) -> bool:
        return self.nodes.pop(node_id, None) is not None

    def _set(self, node_id: str, **fields: object) -> bool:
        node = self.nodes.get(node_id)
        if node is None:
            return False
        for name, value in fields.items():
            setattr(node, name, value)
        return True


def taken_devices(jobs: Iterable[Job]) -> set[tuple[str, int]]:
    """Return ``(node id, device index)`` of every device that a lease still holds."""
    return {
        (slot.node_id, index)
        for job in jobs
        if job.placement is not None
        for slot in job.placement.slots
        if slot.node_id in job.open_nodes
        for index in slot.devices
    }


def fits(spec: JobSpec, device: Device) -> bool:
    """
    Say whether one device is of a kind and a memory size that the job accepts.

    A job that names no kind takes every device but a bare CPU.
    """
    accepted = device.kind in spec.kinds if spec.kinds else device.backend != "cpu"
    return accepted and device.memory_bytes >= spec.memory_bytes


def _joined(event: NodeJoined, before: Node | None) -> Node:
    return Node(
        id=event.node_id,
        pool=event.pool,
        devices=event.devices,
        labels=dict(event.labels),
        incarnation=event.incarnation,
        joined_s=event.at_s,
        cpus=event.cpus,
        host_memory_bytes=event.host_memory_bytes,
        held_by=event.held_by,
        drained=before.drained if before else False,
        evicting=before.evicting if before else False,
    )
