"""
The cluster of a simulation, whole and in virtual clusters.

A cluster is a sequence of groups of equal nodes (:class:`SimulatedNodes`). A command line names it as a word such as
``3x4`` (:func:`parse`), or as a TOML file (:func:`read_cluster`):

```toml
[[nodes]]
count = 8                  # default 1
gpus = 4
kind = "fast"              # default "gpu"
memory_gib = 80            # of one device; default 16
speed = 1.0                # relative to the fastest kind; default 1
labels = { rack = "a" }
cpus = 32                  # of one node, for jobs; default 0: nobody is kept from it for want of them
host_memory_gib = 256      # likewise
```

A virtual cluster is a group of users with devices of its own. A second TOML file says how many GPUs each has
(:func:`read_quotas`):

```toml
borrow = false          # whether what is idle is lent; default false

[gpus]
vision = 64
speech = 32
```

Virtual clusters that the file does not name share the devices that it leaves. Without borrowing each virtual cluster is
a cluster by itself: :func:`divide` cuts nodes and trace into parts, and :func:`merged` makes one outcome of the parts'
outcomes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import Meta

from penstock_log.spec import ContainerRuntime
from penstock_simulator.outcome import UNTOUCHED, ClusterTimeline, Outcome
from penstock_simulator.trace import Ints, Trace

_GIB: Final = 2**30
Form = TypeVar("Form")
_TERM: Final = re.compile(r"(\d+)x(\d+)(?:@([A-Za-z][\w.-]*))?")


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Equal nodes.

    Attributes
    ----------
    count : int
        The number of nodes.
    gpus : int
        Devices of each node.
    kind : str
    memory_gib : float
        Memory of each device.
    speed : float
        Speed relative to the fastest kind.
    labels : dict of str to str
    cpus, host_memory_gib : float
        CPUs and memory of each node's host, for jobs; with 0 no job waits for them.
    containers : tuple of str
        What runs the images of jobs on each node; by default whatever a job needs.
    """

    gpus: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=1)] = 1
    kind: Annotated[str, Meta(min_length=1)] = "gpu"
    memory_gib: Annotated[float, Meta(gt=0)] = 16.0
    speed: Annotated[float, Meta(gt=0)] = 1.0
    labels: dict[str, str] = {}
    cpus: Annotated[float, Meta(ge=0)] = 0.0
    host_memory_gib: Annotated[float, Meta(ge=0)] = 0.0
    containers: tuple[ContainerRuntime, ...] = get_args(ContainerRuntime)

    @property
    def host_memory_bytes(self) -> int:
        """Memory of each node's host, for jobs."""
        return round(self.host_memory_gib * _GIB)

    @property
    def memory_bytes(self) -> int:
        """Memory of each device."""
        return round(self.memory_gib * _GIB)


@dataclass(frozen=True)
class SimulatedNodes:
    """
    All nodes of a cluster, by groups; nodes and devices are numbered in this order.

    Examples
    --------
    >>> nodes = parse("2x4+1x8@fast")
    >>> nodes.gpus, nodes.sizes.tolist(), nodes.kinds, str(nodes)
    (16, [4, 4, 8], ('gpu', 'fast'), '2x4+1x8@fast')
    """

    groups: Sequence[NodeGroup]

    @cached_property
    def sizes(self) -> Ints:
        """Devices of each node."""
        return np.repeat([group.gpus for group in self.groups], [group.count for group in self.groups]).astype(np.int64)

    @cached_property
    def gpus(self) -> int:
        """All devices."""
        return sum(group.count * group.gpus for group in self.groups)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of devices, each once, in the order of the groups."""
        return tuple(dict.fromkeys(group.kind for group in self.groups))

    def of_kind(self, kind: str) -> int:
        """Return the number of devices of a kind."""
        return sum(group.count * group.gpus for group in self.groups if group.kind == kind)

    def __str__(self) -> str:
        return "+".join(
            f"{group.count}x{group.gpus}" + (f"@{group.kind}" if group.kind != "gpu" else "") for group in self.groups
        )


def read_table(
    path: Path, form: type[Form], what: str, expected: str, *, strict: bool = True, toml: bool = False
) -> Form:
    """
    Return what a file holds: TOML where its name ends so or ``toml`` says so, else JSON.

    Raises
    ------
    ValueError
        If it cannot be read or does not have the form; it names ``what`` there is, and what was ``expected``.
    """
    decode = msgspec.toml.decode if toml or path.suffix == ".toml" else msgspec.json.decode
    try:
        return decode(path.read_bytes(), type=form, strict=strict)
    except OSError as error:
        raise ValueError(f"{what} {path} cannot be read: {error.strerror}; name a file that can") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"{what} {path}: {error}; {expected}") from error


class _File(msgspec.Struct, forbid_unknown_fields=True):
    nodes: Annotated[list[NodeGroup], Meta(min_length=1)]


def parse(text: str) -> SimulatedNodes:
    """
    Return the cluster that a word describes: ``3x4`` is three nodes of four; ``2x8@fast+4x4@slow`` has two kinds.

    Raises
    ------
    ValueError
        If the word describes no cluster.
    """
    terms = [_TERM.fullmatch(term.strip()) for term in text.split("+")]
    groups = [
        NodeGroup(count=int(term[1]), gpus=int(term[2]), kind=term[3] or "gpu")
        for term in terms
        if term is not None and int(term[1]) and int(term[2])
    ]
    if len(groups) < len(terms):
        raise ValueError(f"cluster is {text!r}; expected NODESxGPUS such as 3x4 or 2x8@fast+4x4@slow, or a TOML file")
    return SimulatedNodes(tuple(groups))


def read_cluster(path: Path) -> SimulatedNodes:
    """
    Return the cluster of a TOML file, in the form that the docstring of this module shows.

    Raises
    ------
    ValueError
        If it cannot be read or says something else.
    """
    expected = "expected tables [[nodes]] with gpus, count, kind …, or in place of a file NODESxGPUS such as 3x4"
    return SimulatedNodes(tuple(read_table(path, _File, "cluster file", expected, toml=True).nodes))


def load(word: str) -> SimulatedNodes:
    """Return the cluster that a command line names: the file if it ends in ``.toml``, else what the word means."""
    return read_cluster(Path(word)) if word.endswith(".toml") else parse(word)


OTHERS: Final = "others"
"""What the virtual clusters that a file does not name are together."""


class VirtualClusterQuotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The quotas of virtual clusters.

    Attributes
    ----------
    gpus : dict of str to int
        Virtual cluster → devices of its own. With 0 devices and without borrowing, none of its jobs starts.
    borrow : bool
        Whether a virtual cluster may use devices that others leave idle, until the others want them.
    """

    gpus: Annotated[dict[str, Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    borrow: bool = False


@dataclass(frozen=True)
class VirtualClusterPart:
    """
    A virtual cluster that is a cluster by itself.

    Attributes
    ----------
    rows : (J,) int array
        Its jobs in the trace.
    nodes : SimulatedNodes
        Its nodes; no group where its quota is 0.
    """

    name: str
    rows: Ints
    nodes: SimulatedNodes


def read_quotas(path: Path) -> VirtualClusterQuotas:
    """
    Return the quotas of a file.

    Raises
    ------
    ValueError
        If it cannot be read or says something else.
    """
    expected = "expected a table [gpus] with virtual cluster = number of GPUs, and borrow"
    return read_table(path, VirtualClusterQuotas, "quota file", expected, toml=True)


def check(quotas: VirtualClusterQuotas, trace: Trace, nodes: SimulatedNodes) -> None:
    """
    Check quotas against a trace and a cluster.

    Raises
    ------
    ValueError
        If the trace has no virtual clusters, the quotas exceed the cluster, or some jobs have no devices at all.
    """
    if not trace.vcs:
        raise ValueError(f"trace {trace.name} names no virtual clusters, so it has no quotas; expected a column vc")
    promised = sum(quotas.gpus.values())
    if promised > nodes.gpus:
        raise ValueError(
            f"quotas add up to {promised:,} GPUs and the cluster has {nodes.gpus:,}; "
            "lower some, or give a larger cluster"
        )
    others = sorted(set(map(str, trace.vcs)) - quotas.gpus.keys())
    if others and not quotas.borrow and promised == nodes.gpus:
        raise ValueError(
            f"virtual cluster {', '.join(others[:5])} has no quota, and those of the others leave no GPU; "
            "give it one, or 0 to leave its jobs unstarted"
        )


def divide(quotas: VirtualClusterQuotas, trace: Trace, nodes: SimulatedNodes) -> list[VirtualClusterPart]:
    """
    Return each virtual cluster with jobs as a cluster by itself, in the file's order; unnamed ones share the last part.

    Nodes are dealt out in their order; a node with more devices than a virtual cluster still lacks is split.

    Examples
    --------
    >>> from penstock_simulator.virtual_cluster import parse
    >>> [(str(nodes), name) for name, nodes in _dealt({"a": 6, "b": 4}, parse("3x4"))]
    [('1x4+1x2', 'a'), ('2x2', 'b'), ('1x2', 'others')]
    """
    vcs = np.array([str(vc) for vc in trace.vcs], dtype=object)
    known = np.isin(vcs, list(quotas.gpus))
    found = []
    for name, dealt in _dealt(quotas.gpus, nodes):
        rows = np.flatnonzero(vcs == name) if name in quotas.gpus else np.flatnonzero(~known)
        if rows.size:
            found.append(VirtualClusterPart(name, rows.astype(np.int64), dealt))
    return found


def _dealt(gpus: Mapping[str, int], nodes: SimulatedNodes) -> Iterator[tuple[str, SimulatedNodes]]:
    left = [_one_of(group, group.gpus) for group in nodes.groups for _ in range(group.count)]
    for name, quota in gpus.items():
        taken: list[NodeGroup] = []
        lacking = quota
        while lacking:
            node = left.pop(0)
            taken.append(_one_of(node, min(node.gpus, lacking)))
            if node.gpus > lacking:
                left.insert(0, _one_of(node, node.gpus - lacking))
            lacking -= taken[-1].gpus
        yield name, SimulatedNodes(_grouped(taken))
    others = OTHERS if OTHERS not in gpus else f"all {OTHERS}"
    yield others, SimulatedNodes(_grouped(left))


def _one_of(node: NodeGroup, gpus: int) -> NodeGroup:
    """Return a single node like one of a group, with so many devices."""
    return msgspec.structs.replace(node, count=1, gpus=gpus)


def _grouped(nodes: Sequence[NodeGroup]) -> tuple[NodeGroup, ...]:
    """Return nodes as groups of equal neighbours."""
    return tuple(msgspec.structs.replace(node, count=len(list(same))) for node, same in groupby(nodes))


_OPTIONAL: Final = {"held_gpu_s", "dropped"}
"""Columns that are None where no part has them."""


def merged(trace: Trace, policy: str, gpus: int, parts: Sequence[tuple[Ints, Outcome]]) -> Outcome:
    """
    Return the outcome of a whole trace from those of its parts; jobs of no part never start.

    Parameters
    ----------
    gpus : int
        Devices of the whole cluster, including those of no part.
    parts : sequence of ((J,) int array, Outcome)
        The rows of each part, and what became of them.
    """

    columns: dict[str, Any] = {}
    for name, fill in UNTOUCHED.items():
        known = [(rows, values) for rows, outcome in parts if (values := getattr(outcome, name)) is not None]
        columns[name] = np.full(len(trace), fill)
        for rows, values in known:
            columns[name][rows] = values
        if not known and name in _OPTIONAL:
            columns[name] = None
    lines = [outcome.timeline for _, outcome in parts if outcome.timeline is not None]
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=gpus,
        events=sum(outcome.events for _, outcome in parts),
        wall_s=sum(outcome.wall_s for _, outcome in parts),
        timeline=together(lines) if lines else None,
        **columns,
    )


def together(lines: Sequence[ClusterTimeline]) -> ClusterTimeline:
    """
    Return the sum of timelines, each of which is 0 before it begins.

    Examples
    --------
    >>> one = ClusterTimeline(np.array([0.0, 4.0]), np.array([2, 1]), np.array([0, 0]))
    >>> other = ClusterTimeline(np.array([2.0]), np.array([3]), np.array([5]))
    >>> both = together([one, other])
    >>> both.at_s.tolist(), both.busy_gpus.tolist(), both.waiting_jobs.tolist()
    ([0.0, 2.0, 4.0], [2, 5, 4], [0, 5, 5])
    """
    at_s = np.unique(np.concatenate([line.at_s for line in lines]))
    busy, waiting = (np.zeros(at_s.size, dtype=np.int64) for _ in range(2))
    for line in lines:
        step = np.searchsorted(line.at_s, at_s, side="right")
        busy += np.concatenate(([0], line.busy_gpus))[step]
        waiting += np.concatenate(([0], line.waiting_jobs))[step]
    return ClusterTimeline(at_s, busy, waiting)
