"""How facts of older tags become facts of today: from the decoded JSON object to the next version's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Json = dict[str, Any]


def _node_joined_v1(old: Json) -> Json:
    """``v1`` gave ``gpus``, ``kind`` and ``memory_bytes`` of a node with devices of one kind."""
    count, kind, memory = old.pop("gpus"), old.pop("kind"), old.pop("memory_bytes", 0)
    device = {"kind": kind, "memory_bytes": memory, "backend": "cuda"}
    return {**old, "type": "node.joined.v2", "devices": [{**device, "index": i} for i in range(count)]}


UPCASTS: Final[dict[str, Callable[[Json], Json]]] = {"node.joined.v1": _node_joined_v1}


def upcast(fact: Json) -> Json:
    """Return the fact under today's tag; one that is of today comes back as it is."""
    while (step := UPCASTS.get(fact.get("type", ""))) is not None:
        fact = step(dict(fact))
    return fact
