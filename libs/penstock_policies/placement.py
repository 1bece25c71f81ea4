"""Which devices: whole gangs on one kind, on the fewest nodes, best fit first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from penstock_events import Device, JobSpec, Slot
from penstock_policies.cluster import fits

Located = tuple[str, Device]
"""A node's id and one of its devices."""


class Free:
    """
    The free devices of a pool, to be taken and given back.

    Kept by classes of equal devices (kind, memory, backend), so that asking whether and where a job fits does not look
    at every device.

    Examples
    --------
    >>> gpus = [Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in range(2)]
    >>> free = Free({"n1": gpus})
    >>> spec = JobSpec(name="a", command=("true",), gpus=2)
    >>> free.count(spec, "fast"), free.count(spec, "slow")
    (2, 0)
    >>> [(node, device.index) for node, device in free.choose(spec, "fast", 2)]
    [('n1', 0), ('n1', 1)]
    """

    def __init__(self, devices: Mapping[str, Sequence[Device]]) -> None:
        self._held: defaultdict[Device, dict[str, dict[int, Device]]] = defaultdict(dict)  # class → node → number
        self._sizes: Counter[str] = Counter()  # by node
        self._counts: Counter[Device] = Counter()  # by class
        self.give((node_id, device) for node_id, held in devices.items() for device in held)

    def __len__(self) -> int:
        return self._sizes.total()

    def __iter__(self) -> Iterator[Located]:
        return ((node_id, device) for node_id, held in self.by_node().items() for device in held)

    def by_node(self) -> dict[str, list[Device]]:
        """Return the devices by node id, both in order: what another ``Free`` is made of."""
        found: dict[str, list[Device]] = {node_id: [] for node_id in sorted(+self._sizes)}
        for nodes in self._held.values():
            for node_id, held in nodes.items():
                found[node_id] += held.values()
        for devices in found.values():
            devices.sort(key=lambda device: device.index)
        return found

    def kinds(self, spec: JobSpec) -> dict[str, int]:
        """Return kind → how many free devices of it the job fits, for kinds with any."""
        found: Counter[str] = Counter()
        for like, count in self._counts.items():
            if count and fits(spec, like):
                found[like.kind] += count
        return dict(sorted(found.items()))

    def count(self, spec: JobSpec, kind: str) -> int:
        """Return how many free devices of one kind the job fits."""
        return sum(self._counts[like] for like in self._fitting(spec, kind))

    def choose(self, spec: JobSpec, kind: str, count: int) -> list[Located]:
        """
        Return ``count`` devices of one kind on the fewest nodes, not taken yet; fewer if there are fewer.

        One node with just enough is best; else the fullest nodes first, and the rest where it fits best. Within a node,
        the smallest memory that will do comes first. Equal choices go by node id and device number.
        """
        classes = self._fitting(spec, kind)
        left: dict[str, int] = {}
        for like in classes:
            for node_id, held in self._held[like].items():
                left[node_id] = left.get(node_id, 0) + len(held)
        chosen: list[Located] = []
        while left and len(chosen) < count:
            node_id = self._best_fit(left, count - len(chosen))
            del left[node_id]
            missing = count - len(chosen)
            devices = [d for like in classes for d in self._held[like].get(node_id, {}).values()]
            devices.sort(key=lambda device: (device.memory_bytes, device.index))
            chosen += [(node_id, device) for device in devices[:missing]]
        return chosen

    def choose_like(self, like: Device) -> list[Located]:
        """Return one device of a class, on the node with the fewest free devices: what is whole stays whole."""
        nodes = self._held[like]
        if not nodes:
            return []
        node_id = min(nodes, key=lambda n: (self._sizes[n], n))
        return [(node_id, nodes[node_id][min(nodes[node_id])])]

    def take(self, devices: Iterable[Located]) -> None:
        """Take devices; each must be free."""
        for node_id, device in devices:
            like = device_class(device)
            nodes = self._held[like]
            del nodes[node_id][device.index]
            if not nodes[node_id]:
                del nodes[node_id]
            self._sizes[node_id] -= 1
            self._counts[like] -= 1

    def give(self, devices: Iterable[Located]) -> None:
        """Give devices back."""
        for node_id, device in devices:
            like = device_class(device)
            self._held[like].setdefault(node_id, {})[device.index] = device
            self._sizes[node_id] += 1
            self._counts[like] += 1

    def _fitting(self, spec: JobSpec, kind: str) -> list[Device]:
        return [like for like in self._held if like.kind == kind and fits(spec, like)]

    def _best_fit(self, left: Mapping[str, int], missing: int) -> str:
        """Return the node with enough and the least left over; where none has enough, the one with the most."""
        enough = [found for found in left.values() if found >= missing]
        best = min(enough) if enough else max(left.values())
        nodes = [node_id for node_id, found in left.items() if found == best]
        return min(nodes, key=lambda n: (self._sizes[n], n))


def device_class(device: Device) -> Device:
    """Return what equal devices have in common: kind, memory and backend."""
    return Device(index=0, kind=device.kind, memory_bytes=device.memory_bytes, backend=device.backend)


def slots(devices: Iterable[Located]) -> tuple[Slot, ...]:
    """
    Return devices as a placement names them: nodes in order of their ids, device numbers rising.

    Examples
    --------
    >>> gpu = Device(index=3, kind="fast", memory_bytes=8, backend="cuda")
    >>> slots([("n1", gpu)])
    (Slot(node_id='n1', devices=(3,)),)
    """
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for node_id, device in devices:
        by_node[node_id].append(device.index)
    return tuple(Slot(node_id=node_id, devices=tuple(sorted(by_node[node_id]))) for node_id in sorted(by_node))
