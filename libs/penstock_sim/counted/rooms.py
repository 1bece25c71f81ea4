"""What the published simulator allocates devices in: a number of them, or nodes filled as YARN would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock_sim.cluster import Nodes
from penstock_sim.counted.lines import Job

_CPUS: Final = 128
_MEMORY_GB: Final = 256.0


class Room(Protocol):
    """Devices that jobs take and give back."""

    def take(self, job: Job) -> bool:
        """Give a job its devices if it can have them; say whether it could."""
        ...

    def give(self, job: Job) -> None:
        """Have the devices of a job back."""
        ...

    @property
    def full(self) -> bool:
        """Whether no device is free."""
        ...


class Count:
    """So many devices, wherever they are."""

    def __init__(self, gpus: int) -> None:
        self._free = gpus

    @property
    def full(self) -> bool:
        """Whether no device is free."""
        return not self._free

    def take(self, job: Job) -> bool:
        """Give a job its devices if there are as many."""
        if job.gpus > self._free:
            return False
        self._free -= job.gpus
        return True

    def give(self, job: Job) -> None:
        """Have the devices of a job back."""
        self._free += job.gpus


@dataclass(eq=False)
class _Node:
    size: int
    free: int
    cpus: int = _CPUS
    memory_gb: float = _MEMORY_GB

    @property
    def idle(self) -> bool:
        return self.free == self.size

    def has(self, need: _Need) -> bool:
        return self.free >= need.gpus and self.cpus >= need.cpus and self.memory_gb >= need.memory_gb - 1e-9


@dataclass(frozen=True)
class _Need:
    """What a job takes of one node."""

    gpus: int
    cpus: int
    memory_gb: float


class Yarn:
    """
    Nodes on switches, with CPUs and memory, filled first fit.

    A job that fits a node goes to the first that has room. A larger one takes wholly idle nodes of one switch, and for
    the rest the first other node of it with room. Nodes with the same label ``switch`` are on one; those without one
    are on one as well.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._switches: dict[str, list[_Node]] = {}
        for group in nodes.groups:
            switch = self._switches.setdefault(group.labels.get("switch", ""), [])
            switch += [_Node(group.gpus, group.gpus) for _ in range(group.count)]
        self._nodes = [node for switch in self._switches.values() for node in switch]
        self._largest = max(node.size for node in self._nodes)
        self._held: dict[Job, Sequence[tuple[_Node, _Need]]] = {}

    @property
    def full(self) -> bool:
        """Whether no device is free."""
        return not any(node.free for node in self._nodes)

    def take(self, job: Job) -> bool:
        """Give a job its devices if nodes can be found for all of them."""
        found = self._one(job) if job.gpus <= self._largest else self._several(job)
        if not found:
            return False
        for node, need in found:
            node.free, node.cpus, node.memory_gb = (
                node.free - need.gpus,
                node.cpus - need.cpus,
                node.memory_gb - need.memory_gb,
            )
        self._held[job] = found
        return True

    def give(self, job: Job) -> None:
        """Have the devices of a job back."""
        for node, need in self._held.pop(job):
            node.free += need.gpus
            node.cpus += need.cpus
            node.memory_gb += need.memory_gb

    def _one(self, job: Job) -> Sequence[tuple[_Node, _Need]]:
        need = _Need(job.gpus, 2 if job.gpus == 1 else 6 * job.gpus, 5.0)
        return [(node, need) for node in _first(self._nodes, need)]

    def _several(self, job: Job) -> Sequence[tuple[_Node, _Need]]:
        return next((found for switch in self._switches.values() if (found := self._on(switch, job))), ())

    def _on(self, switch: Sequence[_Node], job: Job) -> Sequence[tuple[_Node, _Need]]:
        size, each_gb = self._largest, 11 + 0.1 * job.gpus
        whole, rest = divmod(job.gpus, size)
        need = _Need(size, 6 * size, each_gb * size)
        chosen = [node for node in switch if node.idle and node.has(need)][:whole]
        if len(chosen) < whole:
            return ()
        found = [(node, need) for node in chosen]
        if rest:
            need = _Need(rest, 6 * rest, each_gb * rest)
            last = _first((node for node in switch if node not in chosen), need)
            return [*found, *((node, need) for node in last)] if last else ()
        return found


def _first(nodes: Iterable[_Node], need: _Need) -> Sequence[_Node]:
    found = next((node for node in nodes if node.has(need)), None)
    return () if found is None else (found,)
