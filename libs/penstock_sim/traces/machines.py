"""Published lists of machines as clusters."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from penstock_sim.cluster import Group, Nodes
from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Block, Table

OPENB: Final = ("sn", "gpu", "model")
PHILLY: Final = ("machineId", "number of GPUs", "single GPU mem")
_GIB: Final = {"P100": 16.0, "T4": 16.0, "A10": 24.0, "V100M16": 16.0, "V100M32": 32.0}
"""Of the kinds that are sold; openb's G1, G2 and G3 are undisclosed and count as 16."""

Alike = Counter[tuple[str, int, float]]


def read_nodes(path: str | Path) -> Nodes:
    """
    Read a list of machines as a cluster: those of equal size and kind are a group, in the order of the file.

    openb's ``openb_node_list_*.csv`` (its machines without GPUs are left out) and Philly's ``cluster_machine_list``.

    Raises
    ------
    TraceError
        If it is no such list, or lists no GPU.
    """
    source = Source(Path(path))
    names = {name.strip() for name in source.head().partition("\n")[0].split(",")}
    alike: Alike = Counter()
    if names.issuperset(OPENB):
        for block in Table(source, OPENB).blocks():
            _add_openb(block, alike)
    elif names.issuperset(PHILLY):
        for block in Table(source, PHILLY).blocks():
            _add_philly(block, alike)
    else:
        raise TraceError(
            f"{path} is no list of machines; expected the columns {', '.join(OPENB)} or {', '.join(PHILLY)}"
        )
    if not alike:
        raise TraceError(f"{path} lists no machine with a GPU; name another file")
    return Nodes([Group(count=n, gpus=gpus, kind=kind, memory_gib=gib) for (kind, gpus, gib), n in alike.items()])


def _add_openb(block: Block, alike: Alike) -> None:
    kinds = block.texts("model")
    sizes = block.whole("gpu").tolist()
    alike.update((kind or "gpu", n, _GIB.get(kind, 16.0)) for kind, n in zip(kinds, sizes, strict=True) if n)


def _add_philly(block: Block, alike: Alike) -> None:
    memories = block.texts("single GPU mem")
    sizes = block.whole("number of GPUs").tolist()
    alike.update((f"{gib:g}gb", n, gib) for gib, n in zip(map(_gib, memories), sizes, strict=True) if n)


def _gib(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+)\s*GB", text)
    if found is None:
        raise TraceError(f"{text!r} is no memory of a GPU; expected such as 12GB")
    return float(found[1])
