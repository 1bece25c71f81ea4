"""
Which devices: whole gangs on one kind; few nodes near each other for skewed models, best fit for all others.

A gang that one node can hold goes on one node, whatever its model: the one with the least left over. What has to be
spread goes by :mod:`penstock_cluster.nodes`.

That is ``best-fit``. A pool may be set to ``consolidate``, which spreads every gang over as few nodes as possible,
whatever its model; or to ``first-fit``, which takes nodes in order of their ids and looks at nothing else: what the
others are to be compared with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Final

from penstock_cluster.nodes import (
    NOTHING,
    HostAmount,
    HostUsage,
    Node,
    Path,
    asks,
    asks_of_nodes,
    fewest,
    fits,
    holes,
    whole_parts,
)
from penstock_log import Device, JobSpec, Slot
from penstock_log.workload import consolidates

PLACEMENTS: Final = ("best-fit", "consolidate", "first-fit")
"""Every way to choose nodes, by the name that settings use."""

_ASKING_NOTHING: Final = JobSpec(name="any", command=("any",))
_NO_LIMITS: Final[Mapping[str, int]] = {}
_SMALLEST: Final = attrgetter("memory_bytes", "index")

Located = tuple[str, Device]
"""A node's id and one of its devices."""

Shape = tuple[tuple[Device, int], ...]
"""How many devices of each class."""


class FreeDevices:
    """
    The free devices of a pool, to be taken and given back.

    Kept by classes of equal devices (kind, memory, backend), and of these by how many a node has, so that asking
    whether and where a job fits looks neither at every device nor, for a job that one node can hold, at every node.

    Parameters
    ----------
    devices : mapping of str to sequence of Device
        Node id → its free devices.
    paths : mapping of str to tuple of str
        Where the nodes stand, as :meth:`penstock_cluster.nodes.Cluster.paths` tells.
    hosts : iterable of Node
        The nodes whose processors and memory count: jobs that ask for them get devices only where there are enough,
        and so do all others while such jobs take more than the shares of their devices. None: they do not count.

    Examples
    --------
    >>> gpus = [Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in range(2)]
    >>> free = FreeDevices({"n1": gpus})
    >>> spec = JobSpec(name="a", command=("true",), gpus=2)
    >>> free.count(spec, "fast"), free.count(spec, "slow")
    (2, 0)
    >>> [(node, device.index) for node, device in free.choose(spec, "fast", 2)]
    [('n1', 0), ('n1', 1)]
    """

    def __init__(
        self,
        devices: Mapping[str, Sequence[Device]],
        paths: Mapping[str, Path] | None = None,
        hosts: Iterable[Node] | None = None,
    ) -> None:
        self.hosts = HostUsage(hosts) if hosts is not None else None
        self._limits: dict[tuple[object, ...], dict[str, int]] = {}  # until anything is taken or given
        self._classes: dict[Device, int] | None = None  # likewise
        self._buckets: dict[Device, _Bucket] = {}  # by class
        self._size = 0
        self._paths = paths or {}
        self._standing: defaultdict[Path, int] = defaultdict(int)  # by domain
        if devices:
            self.give((node_id, device) for node_id, held in devices.items() for device in held)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Located]:
        return ((node_id, device) for node_id, held in self.by_node().items() for device in held)

    def by_node(self) -> dict[str, list[Device]]:
        """Return the devices by node id, both in order: what another ``FreeDevices`` is made of."""
        found: defaultdict[str, list[Device]] = defaultdict(list)
        for bucket in self._buckets.values():
            for node_id, held in bucket.held.items():
                found[node_id] += held.values()
        return {node_id: sorted(found[node_id], key=lambda device: device.index) for node_id in sorted(found)}

    def kinds(self, spec: JobSpec) -> dict[str, int]:
        """Return kind → how many free devices of it the job fits, for kinds with any."""
        found = self.kinds_without_hosts(spec)
        if found and self.is_tight(spec):
            return {kind: count for kind in found if (count := self._available(self._fitting(spec, kind), spec))}
        return found

    def kinds_without_hosts(self, spec: JobSpec) -> dict[str, int]:
        """Return kind → how many free devices of it the job would fit if hosts had room for all."""
        found: dict[str, int] = {}
        for like, bucket in self._buckets.items():
            if bucket.count and fits(spec, like):
                found[like.kind] = found.get(like.kind, 0) + bucket.count
        return dict(sorted(found.items())) if len(found) > 1 else found

    def classes(self) -> Mapping[Device, int]:
        """Return class → how many free devices are of it, for classes with any, in order of kind and memory."""
        if self._classes is None:
            held = {like: bucket.count for like, bucket in self._buckets.items() if bucket.count}
            if self.hosts is not None and self.hosts.beyond:
                held = {like: count for like in held if (count := self._available([self._buckets[like]]))}
            self._classes = dict(in_order(held))
        return self._classes

    def count(self, spec: JobSpec, kind: str) -> int:
        """Return how many free devices of one kind the job fits."""
        buckets = self._fitting(spec, kind)
        return self._available(buckets, spec) if self.is_tight(spec) else sum([bucket.count for bucket in buckets])

    def standing(self, spec: JobSpec, kind: str) -> dict[str, list[Device]]:
        """Return the free devices of one kind that the job fits, by node: the smallest memory that will do first."""
        found = self.standing_without_hosts(spec, kind)
        limits = self._limits_of(self._fitting(spec, kind), spec) if self.is_tight(spec) else _NO_LIMITS
        some = {node_id: held[: limits.get(node_id)] for node_id, held in found.items()}
        return {node_id: held for node_id, held in some.items() if held}

    def standing_without_hosts(self, spec: JobSpec, kind: str) -> dict[str, list[Device]]:
        """Return the same as if hosts had room for all, and on whichever nodes."""
        found: defaultdict[str, list[Device]] = defaultdict(list)
        for bucket in self._fitting(spec, kind):
            for node_id, held in bucket.held.items():
                found[node_id] += held.values()
        return {node_id: sorted(held, key=_SMALLEST) for node_id, held in found.items()}

    def number_on(self, spec: JobSpec, kind: str) -> dict[str, int]:
        """Return node → how many of its free devices of one kind the job would fit if hosts had room for all."""
        found: dict[str, int] = {}
        for bucket in self._fitting(spec, kind):
            for node_id, held in bucket.held.items():
                found[node_id] = found.get(node_id, 0) + len(held)
        return found

    def nodes(self, spec: JobSpec, kind: str) -> frozenset[str]:
        """Return the nodes that have any free device of one kind for the job."""
        buckets = self._fitting(spec, kind)
        limits = self._limits_of(buckets, spec) if self.is_tight(spec) else _NO_LIMITS
        return frozenset(node_id for bucket in buckets for node_id in bucket.held if limits.get(node_id, 1))

    def choose(
        self,
        spec: JobSpec,
        kind: str,
        count: int,
        *,
        together: bool | None = None,
        first_fit: bool = False,
        near: str = "",
    ) -> list[Located]:
        """
        Return ``count`` devices of one kind, not taken yet; fewer if there are fewer.

        Parameters
        ----------
        together : bool, optional
            Where no node has enough: on the fewest nodes, near each other; else in the smallest holes. By default,
            as the model's skew in ``spec`` asks for.
        first_fit : bool
            On the first node that has enough, else on the first nodes that have, by id.
        near : str
            A node that is taken where none is better, since the job would begin sooner there; empty: none.

        Notes
        -----
        One node with just enough is best; of those the one that is ``near``, or else the one in the domains with the
        fewest free devices. Within a node, the smallest memory that will do comes first. Equal choices go by node id
        and device number.
        """
        if count < 1 or not (buckets := self._fitting(spec, kind)):
            return []
        nodes_by_free, limits = buckets[0].nodes_by_free if len(buckets) == 1 else _merged(buckets), _NO_LIMITS
        if self.is_tight(spec):
            limits = self._limits_of(buckets, spec)
            nodes_by_free = _by_free(limits) if asks(spec) else _with(nodes_by_free, limits)
        enough = min([free for free in nodes_by_free if free >= count], default=0)
        if first_fit:
            nodes = _first_nodes(nodes_by_free, count)
        elif enough:
            nodes = [near if near in nodes_by_free[enough] else self._tightest(nodes_by_free[enough])]
        else:
            spread = consolidates(spec.skew) if together is None else together
            by_node = {node_id: free for free, held in nodes_by_free.items() for node_id in held}
            nodes = (fewest if spread else holes)(by_node, count, self._paths)
        return _first(buckets, nodes, count, limits)

    def choose_like(self, like: Device, *, first_fit: bool = False, near: str = "") -> list[Located]:
        """
        Return one device of a class, on the node with the fewest of them (or the first): what is whole stays so.

        Of equal nodes, the one that is ``near`` is taken.
        """
        bucket = self._buckets.get(like)
        if bucket is None or not bucket.count:
            return []
        nodes_by_free = bucket.nodes_by_free
        if self.hosts is not None and self.hosts.beyond:
            nodes_by_free = _with(nodes_by_free, self._limits_of([bucket]))
            if not nodes_by_free:
                return []
        fewest_free = nodes_by_free[min(nodes_by_free)]
        if first_fit:
            node_id = min(map(min, nodes_by_free.values()))
        else:
            node_id = near if near in fewest_free else self._tightest(fewest_free)
        held = bucket.held[node_id]
        return [(node_id, held[min(held)])]

    def take(self, devices: Iterable[Located], spec: JobSpec | None = None) -> None:
        """Take devices; each must be free. ``spec`` is that of the job that has them, where it asks for more."""
        before: dict[tuple[str, _Bucket], int] = {}
        if spec is not None and asks(spec):
            devices = list(devices)
            self.charge(devices, spec)
        for node_id, device in devices:
            bucket = self._buckets[device_class(device)]
            held = bucket.held[node_id]
            before.setdefault((node_id, bucket), len(held))
            del held[device.index]
        self._move(before)

    def give(self, devices: Iterable[Located]) -> None:
        """Give devices back; each must be taken."""
        before: dict[tuple[str, _Bucket], int] = {}
        if self.hosts is not None and self.hosts.beyond:
            devices = list(devices)
            self.hosts.release((node_id, device.index) for node_id, device in devices)
        for node_id, device in devices:
            like = device_class(device)
            bucket = self._buckets.get(like)
            if bucket is None:
                bucket = self._buckets[like] = _Bucket()
            held = bucket.held.get(node_id)
            if held is None:
                held = bucket.held[node_id] = {}
            before.setdefault((node_id, bucket), len(held))
            held[device.index] = device
        self._move(before)

    def charge(self, devices: Iterable[Located], spec: JobSpec) -> None:
        """Note what a job asks for of the hosts of its devices, which are not free."""
        if self.hosts is not None:
            self._limits.clear()
            self._classes = None
            self.hosts.charge(((node_id, device.index) for node_id, device in devices), spec)

    def is_tight(self, spec: JobSpec) -> bool:
        """Say whether hosts could have less room for a job than devices: it, or a run, asks for more than shares."""
        hosts = self.hosts
        return asks_of_nodes(spec) or (hosts is not None and (asks(spec) or bool(hosts.beyond)))

    def left_of(self, node_id: str) -> HostAmount:
        """Return what is left of a node's processors and memory."""
        return self.hosts.left(node_id, self.free_on(node_id)) if self.hosts is not None else NOTHING

    def roomiest(self, spec: JobSpec, whole: FreeDevices) -> list[Located]:
        """
        Return the free devices of the node with the most host memory left, of those that could hold the job.

        Of one that asks for several devices of a node at a time: of as many nodes as it needs, those with most of it.
        """
        able = {node_id for kind in whole.kinds(spec) for node_id in whole.standing(spec, kind)}
        held = {node_id: devices for node_id, devices in self.by_node().items() if node_id in able}
        if not held:
            return []
        if spec.gpus_per_node > 1:
            return self._gathered(spec, held, whole)
        node_id = max(held, key=lambda node_id: (self.left_of(node_id)[::-1], node_id))
        return [(node_id, device) for device in held[node_id]]

    def _gathered(self, spec: JobSpec, held: Mapping[str, Sequence[Device]], whole: FreeDevices) -> list[Located]:
        """Return the free devices of nodes that could hold a job together: of the kind of which most is free there."""
        found: list[Located] = []
        for kind in sorted(whole.kinds(spec)):
            room = {node_id: len(devices) for node_id, devices in whole.standing(spec, kind).items()}
            if sum(room.values()) < spec.gpus:
                continue
            free = {node_id: [one for one in held.get(node_id, ()) if one.kind == kind] for node_id in room}
            gathered, left = [], spec.gpus
            for node_id in sorted(room, key=lambda node_id: (room[node_id] - len(free[node_id]), node_id)):
                if left > 0:
                    gathered += [(node_id, device) for device in free[node_id]]
                    left -= room[node_id]
            found = max(found, gathered, key=len)
        return found

    def free_on(self, node_id: str) -> int:
        """Return how many devices of a node are free, of whatever kind."""
        return sum(len(bucket.held.get(node_id, ())) for bucket in self._buckets.values())

    def _limits_of(self, buckets: Sequence[_Bucket], spec: JobSpec | None = None) -> dict[str, int]:
        """
        Return node → how many of its free devices the job can have: of one that asks for something all nodes with any
        such device, else those on which others have left less room than devices.
        """
        hosts = self.hosts
        if hosts is None and (spec is None or not asks_of_nodes(spec)):
            return {}
        asking = spec is not None and asks(spec)
        key = (*map(id, buckets), spec.host_demand if spec else ())
        if (known := self._limits.get(key)) is not None:
            return known
        beyond = {} if hosts is None else hosts.beyond
        nodes = dict.fromkeys(node_id for bucket in buckets for node_id in bucket.held) if asking else beyond
        limits: dict[str, int] = {}
        for node_id in nodes:
            count = sum(len(bucket.held.get(node_id, ())) for bucket in buckets)
            free = self._room_on(node_id, count, spec or _ASKING_NOTHING) if count else 0
            if asking or free < count:
                limits[node_id] = free
        self._limits[key] = limits
        return limits

    def _room_on(self, node_id: str, count: int, spec: JobSpec) -> int:
        """Return how many of so many free devices of a node a job can have."""
        if self.hosts is not None:
            count = min(count, self.hosts.fitting(node_id, self.free_on(node_id), spec))
        elif not spec.may_be_on(node_id):
            return 0
        return whole_parts(spec, count)

    def _available(self, buckets: Sequence[_Bucket], spec: JobSpec | None = None) -> int:
        """Return how many free devices a job, or any that asks for nothing, can have as far as hosts have room."""
        limits = self._limits_of(buckets, spec)
        if spec is not None and asks(spec):
            return sum(limits.values())
        held = sum(len(bucket.held.get(node_id, ())) for node_id in limits for bucket in buckets)
        return sum(bucket.count for bucket in buckets) - held + sum(limits.values())

    def _move(self, before: Mapping[tuple[str, _Bucket], int]) -> None:
        """Note that nodes have another number of devices of a class than before."""
        if self._limits:
            self._limits.clear()
        self._classes = None
        for (node_id, bucket), had in before.items():
            more = bucket.move(node_id, had)
            self._size += more
            if self._paths:
                path = self._paths.get(node_id, ())
                for level in range(len(path)):
                    self._standing[path[: level + 1]] += more

    def _fitting(self, spec: JobSpec, kind: str) -> list[_Bucket]:
        buckets = self._buckets.items()
        return [bucket for like, bucket in buckets if bucket.count and like.kind == kind and fits(spec, like)]

    def _tightest(self, nodes: Collection[str]) -> str:
        """Return the node whose domains have the fewest free devices, inner ones first."""
        if not self._paths:
            return min(nodes)
        return min(nodes, key=lambda node_id: (*self._around(node_id), node_id))

    def _around(self, node_id: str) -> Iterator[int]:
        path = self._paths.get(node_id, ())
        return (self._standing[path[:level]] for level in range(len(path), 0, -1))


class _Bucket:
    """
    The free devices of one class.

    Attributes
    ----------
    held : dict of str to dict of int to Device
        Node → number, for nodes with any.
    nodes_by_free : dict of int to set of str
        How many → nodes.
    """

    __slots__ = ("count", "held", "nodes_by_free")

    def __init__(self) -> None:
        self.held: dict[str, dict[int, Device]] = {}
        self.nodes_by_free: dict[int, set[str]] = {}
        self.count = 0

    def move(self, node_id: str, before: int) -> int:
        """Note that a node had another number of devices; return how many more there are now."""
        nodes_by_free, after = self.nodes_by_free, len(self.held[node_id])
        if before:
            nodes = nodes_by_free[before]
            nodes.remove(node_id)
            if not nodes:
                del nodes_by_free[before]
        if not after:
            del self.held[node_id]
        elif after in nodes_by_free:
            nodes_by_free[after].add(node_id)
        else:
            nodes_by_free[after] = {node_id}
        self.count += after - before
        return after - before


def _merged(buckets: Iterable[_Bucket]) -> dict[int, set[str]]:
    """Return how many devices nodes have in several buckets together → nodes."""
    by_node: Counter[str] = Counter()
    for bucket in buckets:
        for free, nodes in bucket.nodes_by_free.items():
            for node_id in nodes:
                by_node[node_id] += free
    return _by_free(by_node)


def _with(nodes_by_free: Mapping[int, set[str]], limits: Mapping[str, int]) -> dict[int, set[str]]:
    """Return the same with those nodes moved that can give less than they have."""
    if not limits:
        return dict(nodes_by_free)
    found = {free: nodes - limits.keys() for free, nodes in nodes_by_free.items()}
    for free, nodes in _by_free(limits).items():
        found[free] = found.get(free, set()) | nodes
    return {free: nodes for free, nodes in found.items() if nodes}


def _by_free(by_node: Mapping[str, int]) -> dict[int, set[str]]:
    """Return how many devices nodes have → nodes, of those that have any."""
    nodes_by_free: dict[int, set[str]] = {}
    for node_id, free in by_node.items():
        if free:
            nodes_by_free.setdefault(free, set()).add(node_id)
    return nodes_by_free


def _first(
    buckets: Sequence[_Bucket], nodes: Iterable[str], count: int, limits: Mapping[str, int] = _NO_LIMITS
) -> list[Located]:
    """Return so many devices of some nodes, the smallest of each first; no more of one than its limit."""
    chosen: list[Located] = []
    for node_id in nodes:
        devices = [device for bucket in buckets for device in bucket.held.get(node_id, {}).values()]
        devices.sort(key=_SMALLEST)
        some = min(count - len(chosen), limits.get(node_id, len(devices)))
        chosen += [(node_id, device) for device in devices[:some]]
    return chosen


def _first_nodes(nodes_by_free: Mapping[int, Collection[str]], count: int) -> list[str]:
    """Return the first node that has enough devices, else the first ones that have enough together."""
    enough = [min(nodes) for free, nodes in nodes_by_free.items() if free >= count]
    if enough:
        return [min(enough)]
    in_order = sorted((node_id, free) for free, nodes in nodes_by_free.items() for node_id in nodes)
    before = accumulate((free for _, free in in_order), initial=0)
    return [node_id for (node_id, _), have in zip(in_order, before, strict=False) if have < count]


@lru_cache(maxsize=4096)  # asked at every device that is taken or given
def device_class(device: Device) -> Device:
    """Return what equal devices have in common: kind, memory and backend."""
    return Device(index=0, kind=device.kind, memory_bytes=device.memory_bytes, backend=device.backend)


def in_order(counts: Mapping[Device, int]) -> Shape:
    """Return how many devices of each class there are, in the order of kind, memory and backend."""
    if len(counts) < 2:
        return tuple(counts.items())
    return tuple(sorted(counts.items(), key=lambda each: (each[0].kind, each[0].memory_bytes, each[0].backend)))


def slots(devices: Iterable[Located]) -> tuple[Slot, ...]:
    """
    Return devices as a placement names them: nodes in order of their ids, device numbers rising.

    Examples
    --------
    >>> gpu = Device(index=3, kind="fast", memory_bytes=8, backend="cuda")
    >>> slots([("n1", gpu)])
    (Slot(node_id='n1', devices=(3,)),)
    """
    by_node: dict[str, list[int]] = {}
    for node_id, device in devices:
        by_node.setdefault(node_id, []).append(device.index)
    return tuple([Slot(node_id=node_id, devices=tuple(sorted(held))) for node_id, held in sorted(by_node.items())])
