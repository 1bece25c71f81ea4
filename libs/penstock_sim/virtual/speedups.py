"""
How fast each model is on each kind of device, relative to its fastest kind.

From a TOML or JSON file: model → kind → speed, in any unit (samples a second will do). ``"*"`` stands for models that
have no entry of their own.

```toml
["resnet-50"]
v100 = 4.1
k80 = 1.0

["*"]
v100 = 2.0
k80 = 1.0
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock_sim.cluster import Nodes

Speedups = Mapping[str, Mapping[str, float]]
"""Model → kind → speed."""

Speed = Callable[[str, str], float]
"""``speed(model, kind)``, at most 1."""

ANY: Final = "*"


def read(path: Path) -> Speedups:
    """
    Return a file's speed-ups.

    Raises
    ------
    ValueError
        If it cannot be read, or does not hold a number above 0 for each model and kind.
    """
    form = dict[str, dict[str, float]]
    try:
        body = path.read_bytes()
        found: Speedups = (
            msgspec.toml.decode(body, type=form) if path.suffix == ".toml" else msgspec.json.decode(body, type=form)
        )
    except OSError as error:
        raise ValueError(f"speed-ups {path} cannot be read: {error}; name a file that can") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"speed-ups {path}: {error}; expected a table for each model: kind = speed") from error
    for model, kinds in found.items():
        for kind, speed in kinds.items():
            if not (speed > 0 and math.isfinite(speed)):
                raise ValueError(f"speed-ups {path}: {model} on {kind} is {speed}; expected a number above 0")
    return found


def relative(speedups: Speedups | None, cluster: Nodes) -> Speed:
    """
    Return each model's speed on each kind, relative to the fastest kind that its entry names.

    A model or a kind without an entry is as fast as the cluster says that the kind is.

    Examples
    --------
    >>> from penstock_sim.cluster import parse
    >>> speed = relative({"mlp": {"fast": 8.0, "slow": 2.0}}, parse("1x1@fast+1x1@slow"))
    >>> speed("mlp", "slow"), speed("mlp", "fast"), speed("cnn", "slow")
    (0.25, 1.0, 1.0)
    """
    given = {model: {k: s / max(kinds.values()) for k, s in kinds.items()} for model, kinds in (speedups or {}).items()}
    plain = {group.kind: group.speed for group in cluster.groups}

    def speed(model: str, kind: str) -> float:
        known = given.get(model) or given.get(ANY, {})
        return known.get(kind, plain[kind])

    return speed
