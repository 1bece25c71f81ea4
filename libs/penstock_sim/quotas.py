"""
How many GPUs each virtual cluster has of its own, from a TOML file.

```toml
borrow = false          # whether what is idle is lent; default false

[gpus]
vision = 64
speech = 32
```

Without borrowing each virtual cluster is a cluster by itself. Those that the file does not name share what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from penstock_sim.cluster import Group, Nodes
from penstock_sim.trace import Ints, Trace

OTHERS: Final = "others"
"""What the virtual clusters that a file does not name are together."""


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The quotas of virtual clusters.

    Attributes
    ----------
    gpus : dict of str to int
        Virtual cluster → devices of its own; with 0, and without borrowing, none of its jobs starts.
    borrow : bool
        Whether a virtual cluster may use what others leave idle, until they want it.
    """

    gpus: Annotated[dict[str, Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    borrow: bool = False


@dataclass(frozen=True)
class Part:
    """
    A virtual cluster that is a cluster by itself.

    Attributes
    ----------
    rows : (J,) int array
        Its jobs in the trace.
    nodes : Nodes
        Without a group where its quota is 0.
    """

    name: str
    rows: Ints
    nodes: Nodes


def read(path: Path) -> Quotas:
    """
    Return the quotas of a file.

    Raises
    ------
    ValueError
        If it cannot be read or says something else.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Quotas)
    except OSError as error:
        raise ValueError(f"quota file {path} cannot be read: {error.strerror}; name a file that can") from error
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"quota file {path}: {error}; expected a table [gpus] with virtual cluster = number of GPUs, and borrow"
        ) from error


def check(quotas: Quotas, trace: Trace, nodes: Nodes) -> None:
    """
    Check quotas against a trace and a cluster.

    Raises
    ------
    ValueError
        If the trace has no virtual clusters, more is promised than there is, or jobs are left with nothing.
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


def divide(quotas: Quotas, trace: Trace, nodes: Nodes) -> list[Part]:
    """
    Return each virtual cluster with jobs as a cluster by itself, in the file's order; those that it does not name last.

    Nodes are dealt out in their order; one that is more than a virtual cluster still lacks is split.

    Examples
    --------
    >>> from penstock_sim.cluster import parse
    >>> [(str(nodes), name) for name, nodes in _dealt({"a": 6, "b": 4}, parse("3x4"))]
    [('1x4+1x2', 'a'), ('2x2', 'b'), ('1x2', 'others')]
    """
    vcs = np.array([str(vc) for vc in trace.vcs], dtype=object)
    known = np.isin(vcs, list(quotas.gpus))
    found = []
    for name, dealt in _dealt(quotas.gpus, nodes):
        rows = np.flatnonzero(vcs == name) if name in quotas.gpus else np.flatnonzero(~known)
        if rows.size:
            found.append(Part(name, rows.astype(np.int64), dealt))
    return found


def _dealt(gpus: Mapping[str, int], nodes: Nodes) -> Iterator[tuple[str, Nodes]]:
    left = [_one_of(group, group.gpus) for group in nodes.groups for _ in range(group.count)]
    for name, quota in gpus.items():
        taken: list[Group] = []
        lacking = quota
        while lacking:
            node = left.pop(0)
            taken.append(_one_of(node, min(node.gpus, lacking)))
            if node.gpus > lacking:
                left.insert(0, _one_of(node, node.gpus - lacking))
            lacking -= taken[-1].gpus
        yield name, Nodes(_grouped(taken))
    others = OTHERS if OTHERS not in gpus else f"all {OTHERS}"
    yield others, Nodes(_grouped(left))


def _one_of(node: Group, gpus: int) -> Group:
    """Return a single node like one of a group, with so many devices."""
    return msgspec.structs.replace(node, count=1, gpus=gpus)


def _grouped(nodes: Sequence[Group]) -> tuple[Group, ...]:
    """Return nodes as groups of equal neighbours."""
    groups: list[Group] = []
    for node in nodes:
        if groups and msgspec.structs.replace(groups[-1], count=1) == node:
            groups[-1] = msgspec.structs.replace(groups[-1], count=groups[-1].count + 1)
        else:
            groups.append(node)
    return tuple(groups)
