"""
What jobs take of their hosts beside devices: processors and memory.

A device comes with its share of its node: the node's processors and memory for jobs, divided by its devices. A job that
asks for nothing has the shares of its devices, so that where nobody asks there is always room, and nothing is counted.
One that asks for more takes of the shares of the node's other devices, and one that asks for less leaves some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock_events import JobSpec
from penstock_policies.cluster import Node

PLENTY: Final = 1 << 40
"""Devices that a node has room for which says nothing of its host."""


class Amount(NamedTuple):
    """Thousandths of processors, and bytes."""

    cpus: int
    memory_bytes: int

    def plus(self, more: Amount) -> Amount:
        """Return the sum."""
        return Amount(self.cpus + more.cpus, self.memory_bytes + more.memory_bytes)

    def times(self, factor: int) -> Amount:
        """Return so many times as much."""
        return Amount(self.cpus * factor, self.memory_bytes * factor)

    def holds(self, need: Amount) -> int:
        """Return how many of a need there is room for; an amount of 0 needs no room."""
        counts = [have // each for have, each in zip(self, need, strict=True) if each > 0]
        return max(0, min(counts, default=PLENTY))


NOTHING: Final = Amount(0, 0)


def asks(spec: JobSpec) -> bool:
    """Say whether a job asks for anything but the shares of its devices."""
    return spec.cpus > 0 or spec.host_memory_bytes > 0


def of_node(node: Node) -> Amount:
    """Return what a node has for jobs; 0 of what it does not tell."""
    return Amount(round(node.cpus * 1000), node.host_memory_bytes)


def share_of(node: Node) -> Amount:
    """
    Return the share of each of a node's devices.

    Examples
    --------
    >>> from penstock_events import Device
    >>> devices = [Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in range(4)]
    >>> share_of(Node(id="n1", devices=tuple(devices), cpus=6.0, host_memory_bytes=1000))
    Amount(cpus=1500, memory_bytes=250)
    """
    each = max(1, len(node.devices))
    whole = of_node(node)
    return Amount(whole.cpus // each, whole.memory_bytes // each)


def need_of(spec: JobSpec, share: Amount) -> Amount:
    """Return what a job takes for each of its devices where they come with a share; nothing of what no node tells."""
    cpus = round(spec.cpus * 1000) or share.cpus
    memory_bytes = spec.host_memory_bytes or share.memory_bytes
    return Amount(cpus if share.cpus else 0, memory_bytes if share.memory_bytes else 0)


class Hosts:
    """
    What is taken of the hosts of a pool beyond the shares of the devices in use, or left of them.

    Parameters
    ----------
    nodes : iterable of Node

    Attributes
    ----------
    beyond : dict of str to Amount
        Node → what runs that ask take beyond the shares of their devices, for nodes with such runs.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.shares: Mapping[str, Amount] = {node.id: share_of(node) for node in nodes}
        self.beyond: dict[str, Amount] = {}
        self._charged: dict[tuple[str, int], Amount] = {}

    def room(self, node_id: str, free: int, spec: JobSpec) -> int:
        """Return for how many devices of a job a node has room, so many of whose devices are free."""
        share = self.shares.get(node_id, NOTHING)
        need = need_of(spec, share)
        return min(free, self.left(node_id, free).holds(need))

    def left(self, node_id: str, free: int) -> Amount:
        """Return what is left of a node so many of whose devices are free."""
        beyond = self.beyond.get(node_id, NOTHING)
        return self.shares.get(node_id, NOTHING).times(free).plus(beyond.times(-1))

    def within_shares(self, spec: JobSpec) -> bool:
        """Say whether a job asks for no more than the share of any device."""
        return all(share.holds(need_of(spec, share)) for share in self.shares.values())

    def charge(self, devices: Iterable[tuple[str, int]], spec: JobSpec) -> None:
        """Note that a job which asks has these devices: nodes and numbers."""
        for node_id, index in devices:
            share = self.shares.get(node_id, NOTHING)
            more = need_of(spec, share).plus(share.times(-1))
            if more != NOTHING and (node_id, index) not in self._charged:
                self._charged[node_id, index] = more
                self.beyond[node_id] = self.beyond.get(node_id, NOTHING).plus(more)

    def release(self, devices: Iterable[tuple[str, int]]) -> None:
        """Note that these devices are free again, whoever had them."""
        if not self._charged:
            return
        for at in devices:
            more = self._charged.pop(at, None)
            if more is not None:
                left = self.beyond.pop(at[0]).plus(more.times(-1))
                if left != NOTHING or any(node_id == at[0] for node_id, _ in self._charged):
                    self.beyond[at[0]] = left
