"""
Nodes and their hosts as the log has them, and the nodes that a gang is spread over.

:class:`Cluster` has a cluster's nodes and devices; :func:`taken_devices` says which of them are not free.

:class:`HostUsage` has what jobs take of their hosts beside devices: processors and memory. A device comes with its
share of its node: the node's processors and memory for jobs, divided by its devices. A job that asks for nothing has
the shares of its devices, so where nobody asks there is always room, and nothing is counted. A job that asks for more
takes of the shares of the node's other devices; a job that asks for less leaves some.

:func:`fewest` and :func:`holes` choose the nodes for a gang where no single node has enough: few nodes near each other,
or the smallest holes. Their ``free`` is how many devices each node has for the gang; ``paths`` is where a node stands,
outermost domain first, such as ``("zone-1", "rack-7")``. Nodes without a path stand anywhere. All paths are of one
length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal, NamedTuple

import msgspec

from penstock_cluster.device_backend import CAPABILITIES
from penstock_log import (
    Device,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    Event,
    Job,
    JobSpec,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeRemoved,
    NodeResumed,
    RoundDecided,
)
from penstock_log.records import compose
from penstock_log.spec import runtimes_of


class DeviceOutage(msgspec.Struct, kw_only=True):
    """
    Why a device takes no new jobs: it failed, an operator drained it, or both.

    Attributes
    ----------
    failed : bool
        Its node's executor found it unfit, and has not found it well since.
    code, failure, boot : str
        As :class:`penstock_log.DeviceFailed` has them.
    drained : bool
        An operator drained it; this survives a restart of the executor.
    moves : bool
        Drained, and its running jobs are to be moved as well.
    drain_reason : str
        Why, as who drained it said.
    since_s : float
        Since when it has taken no jobs.
    """

    failed: bool = False
    code: str = ""
    failure: str = ""
    boot: str = ""
    drained: bool = False
    moves: bool = False
    drain_reason: str = ""
    since_s: float = 0.0

    @property
    def state(self) -> Literal["failed", "drained"]:
        """The state in one word; a failure counts for more."""
        return "failed" if self.failed else "drained"

    @property
    def reason(self) -> str:
        """Why, in the words of who said so."""
        return "; ".join(filter(None, (self.failure, self.drain_reason)))

    @property
    def evicting(self) -> bool:
        """Whether the jobs that run on it are to be moved."""
        return self.failed or self.moves


class Node(msgspec.Struct, kw_only=True):
    """
    One node as the log has it so far.

    Attributes
    ----------
    joined_s : float
        When its executor last joined.
    drained : bool
        It takes no new jobs; this survives a restart of the executor and ends with ``NodeResumed``.
    evicting : bool
        Drained, and its running jobs are to be moved as well.
    drain_reason : str
        Why, as who drained it said.
    outages : dict of str to DeviceOutage
        Its devices that take no new jobs, by :func:`device_key`. Those that are not among its devices now are kept
        for the day when they come back.
    cpus, host_memory_bytes, held_by, containers, image, until_s
        As :class:`penstock_log.NodeJoined` has them.
    leaving : bool
        Its executor has said that it stops: it takes no new jobs until the next ``NodeJoined``.
    gone : {"", "left", "lost"}
        Empty while its executor is up; anything else lasts until the next ``NodeJoined``.
    gone_s : float
        Since when it has been gone; 0 where it is not.
    """

    id: str
    pool: str = "default"
    devices: tuple[Device, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    incarnation: str = ""
    joined_s: float = 0.0
    drained: bool = False
    evicting: bool = False
    drain_reason: str = ""
    outages: dict[str, DeviceOutage] = msgspec.field(default_factory=dict)
    cpus: float = 0.0
    host_memory_bytes: int = 0
    held_by: Literal["", "cgroup", "rlimit"] = ""
    containers: tuple[str, ...] = ()
    image: str = ""
    until_s: float = 0.0
    leaving: bool = False
    gone: Literal["", "left", "lost"] = ""
    gone_s: float = 0.0

    @property
    def present(self) -> bool:
        """Whether its executor is up."""
        return not self.gone

    @property
    def staying(self) -> bool:
        """Whether its executor is up, and has not said that it stops."""
        return not self.gone and not self.leaving

    @property
    def usable(self) -> bool:
        """Whether it takes new jobs."""
        return self.staying and not self.drained

    @property
    def schedulable(self) -> tuple[Device, ...]:
        """Its devices but those that failed or were drained; whether the node takes jobs at all is not asked."""
        if not self.outages:
            return self.devices
        return tuple(device for device in self.devices if device_key(device) not in self.outages)

    def device(self, index: int) -> Device | None:
        """Return the device of a number; None where there is none."""
        return next((device for device in self.devices if device.index == index), None)

    def outage(self, index: int) -> DeviceOutage | None:
        """Return why a device takes no jobs; None for one that does."""
        if not self.outages or (device := self.device(index)) is None:
            return None
        return self.outages.get(device_key(device))

    def emptied_devices(self) -> Iterator[tuple[Device, DeviceOutage]]:
        """Yield the devices whose running jobs are to be moved, and why; the node itself is not asked."""
        if self.outages:
            found = ((device, self.outages.get(device_key(device))) for device in self.devices)
            yield from ((device, outage) for device, outage in found if outage is not None and outage.evicting)


def device_key(device: Device) -> str:
    """
    Return what a device is known by over restarts of its executor: its UUID; its number where it has none.

    Where a device is missing after a restart, those behind it have other numbers.

    Examples
    --------
    >>> fast = Device(index=3, kind="fast", memory_bytes=8, backend="emulated")
    >>> device_key(fast), device_key(msgspec.structs.replace(fast, uuid="GPU-7"))
    ('3', 'GPU-7')
    """
    return device.uuid or str(device.index)


OF_NODES: Final[frozenset[type[Event]]] = frozenset(
    {
        NodeJoined,
        NodeLeaving,
        NodeLeft,
        NodeDrained,
        NodeRemoved,
        NodeResumed,
        DeviceFailed,
        DeviceRecovered,
        DeviceDrained,
        DeviceResumed,
        RoundDecided,
    }
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
            if not event.lost_nodes and not event.forgotten_nodes:
                return False
            lost = [self._lose(node_id, "lost", event.at_s) for node_id in event.lost_nodes]
            return any([*lost, *map(self._remove, event.forgotten_nodes)])
        return type(event) in OF_NODES and self._apply(event)

    def _apply(self, event: Event) -> bool:  # noqa: PLR0911 - a case for each kind of fact
        match event:
            case NodeJoined():
                self.nodes[event.node_id] = _joined(event, self.nodes.get(event.node_id))
                return True
            case DeviceFailed() | DeviceRecovered() | DeviceDrained() | DeviceResumed():
                return self._apply_device(event)
            case NodeLeaving():
                return self._leave(event.node_id)
            case NodeLeft():
                return self._lose(event.node_id, "left", event.at_s)
            case NodeRemoved():
                return self._remove(event.node_id)
            case NodeDrained():
                return self._drain(event.node_id, True, event.preempt, event.reason)
            case NodeResumed():
                return self._drain(event.node_id, False, False, "")
            case _:
                return False

    def pools(self) -> set[str]:
        """Return the names of all pools that have a node, present or gone."""
        return {node.pool for node in self.nodes.values()}

    def present(self, pool: str | None = None) -> Iterator[Node]:
        """Yield the nodes whose executors are up, drained and leaving ones among them."""
        return (node for node in self.nodes.values() if node.present and pool in {None, node.pool})

    def staying(self, pool: str | None = None) -> Iterator[Node]:
        """Yield the nodes whose executors are up and have not said that they stop, drained ones among them."""
        return (node for node in self.present(pool) if node.staying)

    def away(self, pool: str | None = None) -> Iterator[Node]:
        """Yield the nodes that left, were lost or are leaving, and may come back."""
        return (node for node in self.nodes.values() if not node.staying and pool in {None, node.pool})

    def usable(self, pool: str | None = None) -> Iterator[Node]:
        """Yield the nodes that take new jobs."""
        return (node for node in self.present(pool) if node.usable)

    def free(self, jobs: Iterable[Job], pool: str | None = None) -> dict[str, list[Device]]:
        """
        Return the free devices that take jobs, by usable node's id, in the node's order.

        A device is taken while the grant of one of ``jobs`` has its node in ``open_nodes``. Jobs without a grant cost
        a look each, so pass those that may have one.
        """
        taken = taken_devices(jobs)
        return {
            node.id: [device for device in node.schedulable if (node.id, device.index) not in taken]
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

    def _leave(self, node_id: str) -> bool:
        if (node := self.nodes.get(node_id)) is not None:
            node.leaving = True
        return node is not None

    def _lose(self, node_id: str, gone: Literal["left", "lost"], at_s: float) -> bool:
        if (node := self.nodes.get(node_id)) is not None:
            node.gone, node.gone_s = gone, at_s
        return node is not None

    def _apply_device(self, event: DeviceFailed | DeviceRecovered | DeviceDrained | DeviceResumed) -> bool:
        node = self.nodes.get(event.node_id)
        device = node.device(event.index) if node is not None else None
        if node is None or device is None:
            return False
        key = device_key(device)
        before = node.outages.get(key)
        after = _changed(before or DeviceOutage(since_s=event.at_s), event)
        outages = {name: outage for name, outage in node.outages.items() if name != key}
        node.outages = outages if after is None else {**outages, key: after}
        return after != before

    def _drain(self, node_id: str, drained: bool, evicting: bool, reason: str) -> bool:
        if (node := self.nodes.get(node_id)) is not None:
            node.drained, node.evicting, node.drain_reason = drained, evicting, reason
        return node is not None


def _changed(
    outage: DeviceOutage, event: DeviceFailed | DeviceRecovered | DeviceDrained | DeviceResumed
) -> DeviceOutage | None:
    """Return a device's outage after a fact about it; None where it takes jobs then."""
    match event:
        case DeviceFailed():
            return msgspec.structs.replace(outage, failed=True, code=event.code, failure=event.reason, boot=event.boot)
        case DeviceDrained():
            return msgspec.structs.replace(outage, drained=True, moves=event.preempt, drain_reason=event.reason)
        case DeviceRecovered() if outage.drained:
            return msgspec.structs.replace(outage, failed=False, code="", failure="", boot="")
        case _:
            return None


def taken_devices(jobs: Iterable[Job]) -> set[tuple[str, int]]:
    """Return ``(node id, device index)`` of every device that a grant still holds."""
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
    accepted = device.kind in spec.kinds if spec.kinds else CAPABILITIES[device.backend].unnamed
    return accepted and device.memory_bytes >= spec.memory_bytes


def _joined(event: NodeJoined, before: Node | None) -> Node:
    own = {"labels": dict(event.labels), "joined_s": event.at_s}
    if before is not None:
        own |= {"drained": before.drained, "evicting": before.evicting, "drain_reason": before.drain_reason}
        own |= {"outages": before.outages}
    return compose(Node, event, id=event.node_id, **own)


PLENTY: Final = 1 << 40
"""Devices that a node has room for which says nothing of its host."""


class HostAmount(NamedTuple):
    """Thousandths of processors, and bytes."""

    cpus: int
    memory_bytes: int

    def plus(self, more: HostAmount) -> HostAmount:
        """Return the sum."""
        return HostAmount(self.cpus + more.cpus, self.memory_bytes + more.memory_bytes)

    def times(self, factor: int) -> HostAmount:
        """Return so many times as much."""
        return HostAmount(self.cpus * factor, self.memory_bytes * factor)

    def holds(self, need: HostAmount) -> int:
        """Return how many of a need there is room for; an amount of 0 needs no room."""
        counts = [have // each for have, each in zip(self, need, strict=True) if each > 0]
        return max(0, min(counts, default=PLENTY))


NOTHING: Final = HostAmount(0, 0)
_NO_CONTAINERS: Final = frozenset[str]()


def asks(spec: JobSpec) -> bool:
    """Say whether a job cannot have any devices: it asks for something of hosts or nodes, or some refuse its user."""
    return asks_of_host(spec) or asks_of_nodes(spec) or bool(spec.refused_by)


def asks_of_nodes(spec: JobSpec) -> bool:
    """Say whether a job asks for certain nodes, or for more than one device at a time of a node."""
    return spec.gpus_per_node > 1 or bool(spec.nodes or spec.exclude)


def whole_parts(spec: JobSpec, count: int) -> int:
    """
    Return how many of so many devices of a node a job can use, which may ask for several at a time.

    Examples
    --------
    >>> whole_parts(JobSpec(name="a", command=("true",), gpus=4, gpus_per_node=2), 3)
    2
    """
    return count - count % spec.gpus_per_node if spec.gpus_per_node > 1 else count


def asks_of_host(spec: JobSpec) -> bool:
    """Say whether a job asks for anything but the shares of its devices: more or less of a host, or its image."""
    return spec.cpus > 0 or spec.host_memory_bytes > 0 or spec.least_host_bytes > 0 or bool(spec.image)


def runs(spec: JobSpec, node: Node) -> bool:
    """Say whether a node has what runs a job's image, which any has where there is none, and takes its user's jobs."""
    has_image = spec.image in {"", node.image} or not {*runtimes_of(spec.image)}.isdisjoint(node.containers)
    return has_image and node.id not in spec.refused_by and spec.may_be_on(node.id)


def of_node(node: Node) -> HostAmount:
    """Return what a node has for jobs; 0 of what it does not tell."""
    return HostAmount(round(node.cpus * 1000), node.host_memory_bytes)


def share_of(node: Node) -> HostAmount:
    """
    Return the share of each of a node's devices.

    Examples
    --------
    >>> from penstock_log import Device
    >>> devices = [Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in range(4)]
    >>> share_of(Node(id="n1", devices=tuple(devices), cpus=6.0, host_memory_bytes=1000))
    HostAmount(cpus=1500, memory_bytes=250)
    """
    each = max(1, len(node.devices))
    whole = of_node(node)
    return HostAmount(whole.cpus // each, whole.memory_bytes // each)


def need_of(spec: JobSpec, share: HostAmount) -> HostAmount:
    """
    Return what a job takes for each of its devices where they come with a share; nothing of what no node tells.

    What its files of borrowed memory keep on the host (``local_memory_bytes``) is memory of the host like any other,
    and a job is never worse off for saying so: it takes a share, and more only where that holds them not.
    """
    cpus = round(spec.cpus * 1000) or share.cpus
    memory_bytes = spec.host_memory_bytes or max(share.memory_bytes, spec.least_host_bytes)
    return HostAmount(cpus if share.cpus else 0, memory_bytes if share.memory_bytes else 0)


class HostUsage:
    """
    What is taken of the hosts of a pool beyond the shares of the devices in use, or left of them.

    Parameters
    ----------
    nodes : iterable of Node

    Attributes
    ----------
    beyond : dict of str to HostAmount
        Node → what runs that ask take beyond the shares of their devices, for nodes with such runs.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        nodes = list(nodes)
        self.shares: Mapping[str, HostAmount] = {node.id: share_of(node) for node in nodes}
        self._containers = {node.id: frozenset(node.containers) for node in nodes}
        self._images = {node.id: node.image for node in nodes if node.image}
        self.beyond: dict[str, HostAmount] = {}
        self._charged: dict[tuple[str, int], HostAmount] = {}

    def fitting(self, node_id: str, free: int, spec: JobSpec, released: Iterable[int] = ()) -> int:
        """
        Return for how many devices of a job a node has room, so many of whose devices are free.

        ``released`` are the numbers of devices among them that somebody has still, and is going to leave.
        """
        if not self.runs(spec, node_id):
            return 0
        share = self.shares.get(node_id, NOTHING)
        need, left = need_of(spec, share), self.left(node_id, free)
        if self._charged:
            for index in released:
                left = left.plus(self._charged.get((node_id, index), NOTHING))
        return whole_parts(spec, min(free, left.holds(need)))

    def runs(self, spec: JobSpec, node_id: str) -> bool:
        """Say whether a node has what runs a job's image, and takes its user's jobs: as :func:`runs`."""
        if node_id in spec.refused_by or not spec.may_be_on(node_id):
            return False
        if not spec.image or spec.image == self._images.get(node_id):
            return True
        return not self._containers.get(node_id, _NO_CONTAINERS).isdisjoint(runtimes_of(spec.image))

    def all_run(self, spec: JobSpec) -> bool:
        """Say whether any devices of a kind will do for a job, on whichever nodes they are."""
        if not spec.image and not spec.refused_by and not asks_of_nodes(spec):
            return True
        if spec.gpus_per_node > 1:  # devices that fall free on several nodes are none
            return False
        return all(self.runs(spec, node_id) for node_id in self._containers)

    def left(self, node_id: str, free: int) -> HostAmount:
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


Path = tuple[str, ...]
"""The domains a node stands in, outermost first."""

FreeDevices = Mapping[str, int]
"""Node → how many devices it has."""


def fewest(free: FreeDevices, count: int, paths: Mapping[str, Path]) -> list[str]:
    """
    Return the fewest nodes that have ``count`` devices, fullest first; all nodes if all have fewer.

    Among as few nodes, one innermost domain if one will do, the one with the least left over; else one of the next
    level, and so on outwards. Within a domain that is wider than need be, or where none holds the gang, as few of the
    next inner domains as a greedy choice finds. The last node is the one where the rest fits best.

    Notes
    -----
    O(N log N) in N nodes, and for R domains that are combined O(R² k log k) for k nodes. The number of nodes is the
    least; the number of domains is the least where one is enough, and not proved where several are.

    Examples
    --------
    >>> fewest({"a": 4, "b": 4, "c": 2, "d": 3}, 6, {})
    ['a', 'c']
    >>> fewest({"a": 4, "b": 4, "c": 4}, 8, {"a": ("r1",), "b": ("r2",), "c": ("r2",)})
    ['b', 'c']
    """
    most = _least_index(sorted(free.values(), reverse=True), count)

    def enough(nodes: Iterable[str]) -> bool:
        return _most_of(most, (free[node] for node in nodes)) >= count

    near, depth = _near(free, paths, enough)
    for level in range(depth + 1, _depth(paths) + 1):
        near = _few_domains(near, level, most, count, paths)
    return _fill(near, count)


def holes(free: FreeDevices, count: int, paths: Mapping[str, Path]) -> list[str]:
    """
    Return nodes that have ``count`` devices, those with the fewest first, so that what is whole stays whole.

    What the last one made superfluous is left out, the largest first. They stand in one innermost domain if one has
    enough, the one with the least left over; else in one of the next level, and so on outwards. In a wider domain, the
    inner domains with the fewest devices go first.

    Examples
    --------
    >>> holes({"a": 4, "b": 1, "c": 2}, 5, {})
    ['b', 'a']
    """
    near, _ = _near(free, paths, lambda nodes: sum(free[node] for node in nodes) >= count)
    totals: defaultdict[Path, int] = defaultdict(int)
    for node, devices in near.items():
        for level in range(1, len(paths.get(node, ())) + 1):
            totals[paths[node][:level]] += devices
    order = sorted(near, key=lambda node: (_sizes(paths.get(node, ()), totals), near[node], node))
    return _needed(order[: _least_index([near[node] for node in order], count)], near, count)


def _near(
    free: FreeDevices, paths: Mapping[str, Path], enough: Callable[[Iterable[str]], bool]
) -> tuple[FreeDevices, int]:
    """Return the nodes of the innermost domain that is enough, the one with the least left over, and its level."""
    for level in range(_depth(paths), 0, -1):
        groups = [nodes for nodes in _groups(free, level, paths) if enough(nodes)]
        if groups:
            return min(groups, key=lambda nodes: (sum(nodes.values()), min(nodes))), level
    return free, 0


def _few_domains(free: FreeDevices, level: int, most: int, count: int, paths: Mapping[str, Path]) -> FreeDevices:
    """Add domains, each time the one that helps most, until ``most`` nodes of them have ``count`` devices."""
    groups, chosen = _groups(free, level, paths), {}
    tops = [sorted(group.values(), reverse=True)[:most] for group in groups]
    have: list[int] = []
    while sum(have) < count and groups:
        found = [_most_of(most, (*have, *top)) for top in tops]
        best = found.index(max(found))
        have = sorted((*have, *tops.pop(best)), reverse=True)[:most]
        chosen.update(groups.pop(best))
    return chosen


def _fill(free: FreeDevices, count: int) -> list[str]:
    """Return the fullest nodes, and last the one where the rest fits best."""
    left = sorted(free, key=lambda node: (-free[node], node))
    chosen: list[str] = []
    while left and count > 0:
        fitting = [node for node in left if free[node] >= count]
        node = min(fitting, key=lambda node: (free[node], node)) if fitting else left[0]
        left.remove(node)
        chosen.append(node)
        count -= free[node]
    return chosen


def _needed(nodes: Sequence[str], free: FreeDevices, count: int) -> list[str]:
    needed, over = list(nodes), sum(free[node] for node in nodes) - count
    for node in sorted(nodes, key=lambda node: -free[node]):
        if free[node] <= over:
            needed.remove(node)
            over -= free[node]
    return needed


def _groups(free: FreeDevices, level: int, paths: Mapping[str, Path]) -> list[dict[str, int]]:
    groups: defaultdict[Path, dict[str, int]] = defaultdict(dict)
    for node, devices in free.items():
        groups[paths[node][:level] if node in paths else (node,)][node] = devices
    return [groups[path] for path in sorted(groups)]


def _sizes(path: Path, totals: Mapping[Path, int]) -> Sequence[tuple[int, Path]]:
    return [(totals[path[:level]], path[:level]) for level in range(1, len(path) + 1)]


def _least_index(sizes: Sequence[int], count: int) -> int:
    """Return how many of the sizes, from the first on, make up a count; all of them if they do not."""
    return next((i for i, total in enumerate(accumulate(sizes), start=1) if total >= count), len(sizes))


def _most_of(number: int, sizes: Iterable[int]) -> int:
    return sum(sorted(sizes, reverse=True)[:number])


def _depth(paths: Mapping[str, Path]) -> int:
    return max(map(len, paths.values()), default=0)
