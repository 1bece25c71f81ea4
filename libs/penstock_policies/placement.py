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

    Keeps a count for each class of equal devices (kind, memory, backend), so that asking whether a job fits does not
    look at every device.

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
        self._nodes: dict[str, dict[int, Device]] = {
            node_id: {device.index: device for device in held} for node_id, held in sorted(devices.items()) if held
        }
        self._counts: Counter[Device] = Counter(device_class(d) for held in self._nodes.values() for d in held.values())

    def __len__(self) -> int:
        return self._counts.total()

    def __iter__(self) -> Iterator[Located]:
        return ((node_id, held[index]) for node_id, held in self._nodes.items() for index in sorted(held))

    def by_node(self) -> dict[str, list[Device]]:
        """Return the devices by node id: what another ``Free`` is made of."""
        return {node_id: [held[index] for index in sorted(held)] for node_id, held in self._nodes.items()}

    def kinds(self, spec: JobSpec) -> dict[str, int]:
        """Return kind → how many free devices of it the job fits, for kinds with any."""
        found: Counter[str] = Counter()
        for like, count in self._counts.items():
            if count and fits(spec, like):
                found[like.kind] += count
        return dict(sorted(found.items()))

    def count(self, spec: JobSpec, kind: str) -> int:
        """Return how many free devices of one kind the job fits."""
        return sum(count for like, count in self._counts.items() if like.kind == kind and fits(spec, like))

    def choose(self, spec: JobSpec, kind: str, count: int) -> list[Located]:
        """
        Return ``count`` devices of one kind on the fewest nodes, not taken yet; fewer if there are fewer.

        One node with just enough is best; else the fullest nodes first, and the rest where it fits best. Within a node,
        the smallest memory that will do comes first. Equal choices go by node id and device number.
        """
        fitting = {
            node_id: found
            for node_id, held in self._nodes.items()
            if (found := [device for device in held.values() if device.kind == kind and fits(spec, device)])
        }
        chosen: list[Located] = []
        while fitting and len(chosen) < count:
            missing = count - len(chosen)
            enough = [node_id for node_id, found in fitting.items() if len(found) >= missing]
            node_id = min(
                enough or fitting, key=lambda n: (self._fit(len(fitting[n]), missing), len(self._nodes[n]), n)
            )
            devices = sorted(fitting.pop(node_id), key=lambda device: (device.memory_bytes, device.index))
            chosen += [(node_id, device) for device in devices[:missing]]
        return chosen

    def choose_like(self, like: Device) -> list[Located]:
        """Return one device of a class, on the node with the fewest free devices: what is whole stays whole."""
        fitting = (
            (len(held), node_id, device.index, device)
            for node_id, held in self._nodes.items()
            for device in held.values()
            if device_class(device) == like
        )
        best = min(fitting, key=lambda found: found[:3], default=None)
        return [(best[1], best[3])] if best else []

    def take(self, devices: Iterable[Located]) -> None:
        """Take devices; each must be free."""
        for node_id, device in devices:
            del self._nodes[node_id][device.index]
            self._counts[device_class(device)] -= 1

    def give(self, devices: Iterable[Located]) -> None:
        """Give devices back."""
        for node_id, device in devices:
            self._nodes.setdefault(node_id, {})[device.index] = device
            self._counts[device_class(device)] += 1

    @staticmethod
    def _fit(found: int, missing: int) -> int:
        """Rank a node: with enough, the least left over; without, the most."""
        return found - missing if found >= missing else missing - found


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
