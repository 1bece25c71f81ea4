"""
The cluster of a simulation: groups of equal nodes, from ``3x4`` on a command line or from a TOML file.

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
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from penstock_sim.trace import Ints

_GIB: Final = 2**30
_TERM: Final = re.compile(r"(\d+)x(\d+)(?:@([A-Za-z][\w.-]*))?")


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Equal nodes.

    Attributes
    ----------
    count : int
        Nodes.
    gpus : int
        Devices of each.
    kind : str
    memory_gib : float
        Of each device.
    speed : float
        Relative to the fastest kind.
    labels : dict of str to str
    cpus, host_memory_gib : float
        Of each node's host, for jobs; 0: nobody waits for them.
    """

    gpus: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=1)] = 1
    kind: Annotated[str, Meta(min_length=1)] = "gpu"
    memory_gib: Annotated[float, Meta(gt=0)] = 16.0
    speed: Annotated[float, Meta(gt=0)] = 1.0
    labels: dict[str, str] = {}
    cpus: Annotated[float, Meta(ge=0)] = 0.0
    host_memory_gib: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def host_memory_bytes(self) -> int:
        """Memory of each node's host, for jobs."""
        return round(self.host_memory_gib * _GIB)

    @property
    def memory_bytes(self) -> int:
        """Memory of each device."""
        return round(self.memory_gib * _GIB)


@dataclass(frozen=True)
class Nodes:
    """
    All nodes of a cluster, by groups; nodes and devices are numbered in this order.

    Examples
    --------
    >>> nodes = parse("2x4+1x8@fast")
    >>> nodes.gpus, nodes.sizes.tolist(), nodes.kinds, str(nodes)
    (16, [4, 4, 8], ('gpu', 'fast'), '2x4+1x8@fast')
    """

    groups: Sequence[Group]

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


class _File(msgspec.Struct, forbid_unknown_fields=True):
    nodes: Annotated[list[Group], Meta(min_length=1)]


def parse(text: str) -> Nodes:
    """
    Return the cluster that a word means: ``3x4`` is three nodes of four devices; ``2x8@fast+4x4@slow`` has two kinds.

    Raises
    ------
    ValueError
        If it is no such word.
    """
    terms = [_TERM.fullmatch(term.strip()) for term in text.split("+")]
    groups = [
        Group(count=int(term[1]), gpus=int(term[2]), kind=term[3] or "gpu")
        for term in terms
        if term is not None and int(term[1]) and int(term[2])
    ]
    if len(groups) < len(terms):
        raise ValueError(f"cluster is {text!r}; expected NODESxGPUS such as 3x4 or 2x8@fast+4x4@slow, or a TOML file")
    return Nodes(tuple(groups))


def read(path: Path) -> Nodes:
    """
    Return the cluster of a TOML file, as the head of this module shows it.

    Raises
    ------
    ValueError
        If it cannot be read or says something else.
    """
    try:
        return Nodes(tuple(msgspec.toml.decode(path.read_bytes(), type=_File).nodes))
    except OSError as error:
        raise ValueError(f"cluster file {path} cannot be read: {error}; name one that can, or say 3x4") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"cluster file {path}: {error}; expected tables [[nodes]] with gpus, count, kind …") from error


def load(word: str) -> Nodes:
    """Return the cluster that a command line names: the file if it ends in ``.toml``, else what the word means."""
    return read(Path(word)) if word.endswith(".toml") else parse(word)
