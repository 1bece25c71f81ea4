"""
What is added to a cluster in a replay, as a word: ``+8xfast`` is eight more devices of a kind, ``+2x4@fast`` two nodes
of four.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock_events import Device, NodeJoined
from penstock_sim.cluster import Group, Nodes
from penstock_sim.history import History

_DEVICES: Final = re.compile(r"(\d+)x([A-Za-z][\w.-]*)")
_NODES: Final = re.compile(r"(\d+)x(\d+)@([A-Za-z][\w.-]*)")
_EXPECTED: Final = "expected what is added, such as +8xfast (devices of a kind) or +2x4@fast (nodes of so many)"
_GIB: Final = 2**30


def parse(word: str, history: History) -> Nodes:
    """
    Return the nodes that a word adds to the cluster of a history.

    Devices are like those of their kind that the cluster has, and come in nodes as large as its largest with that
    kind; what is left over makes a smaller one.

    Raises
    ------
    ValueError
        If it is no such word, or the cluster has no such kind: nothing is known of how fast jobs are on it.
    """
    if not word.startswith("+"):
        raise ValueError(f"--cluster is {word!r}; {_EXPECTED}")
    return Nodes([group for term in word[1:].split("+") for group in _groups(word, term.strip(), history.joined)])


def check_nodes(names: Sequence[str], history: History) -> None:
    """
    Check that nodes that are to be left out were there.

    Raises
    ------
    ValueError
        If one was not there, or none would be left.
    """
    known = [joined.node_id for joined in history.joined]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no node {name!r} in the log; expected one of {', '.join(sorted(known))}")
    if known and not set(known) - set(names):
        raise ValueError("no node is left to run jobs on; leave one in")


def _groups(word: str, term: str, joined: Sequence[NodeJoined]) -> list[Group]:
    if (nodes := _NODES.fullmatch(term)) is not None:
        count, gpus, kind = int(nodes[1]), int(nodes[2]), nodes[3]
        sizes = [(count, gpus)]
    elif (devices := _DEVICES.fullmatch(term)) is not None:
        kind = devices[2]
        whole, rest = divmod(int(devices[1]), max(_sizes(kind, joined), default=1))
        sizes = [(whole, max(_sizes(kind, joined), default=1)), (1, rest)]
    else:
        raise ValueError(f"--cluster {word}: {term!r} adds nothing; {_EXPECTED}")
    like = _device(word, kind, joined)
    cpus, host_bytes = _share(kind, joined)
    groups = [
        Group(
            count=count,
            gpus=gpus,
            kind=kind,
            memory_gib=like.memory_bytes / _GIB,
            speed=like.speed,
            cpus=cpus * gpus,
            host_memory_gib=host_bytes * gpus / _GIB,
        )
        for count, gpus in sizes
        if count and gpus
    ]
    if not groups:
        raise ValueError(f"--cluster {word}: {term!r} adds no device; {_EXPECTED}")
    return groups


def _sizes(kind: str, joined: Sequence[NodeJoined]) -> list[int]:
    """Return how many devices of a kind the nodes have that have any."""
    counts = [Counter(device.kind for device in one.devices)[kind] for one in joined]
    return [count for count in counts if count]


def _share(kind: str, joined: Sequence[NodeJoined]) -> tuple[float, float]:
    """Return processors and bytes of the host that come with a device of a kind, as with the last node that has any."""
    like = next(one for one in reversed(joined) if any(device.kind == kind for device in one.devices))
    return like.cpus / len(like.devices), like.host_memory_bytes / len(like.devices)


def _device(word: str, kind: str, joined: Sequence[NodeJoined]) -> Device:
    kinds = {device.kind: device for one in joined for device in one.devices}
    if kind not in kinds:
        raise ValueError(
            f"--cluster {word}: the log has no device of kind {kind!r}, so nobody knows how fast jobs are on it; "
            f"expected one of {', '.join(sorted(kinds))}"
        )
    return kinds[kind]
