"""Which policy has which colour, on every picture and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_PALETTE: Final = ("#7a828c", "#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#a89600")
"""After Okabe and Ito's colours that most colour-blind people can tell apart; readable on white and on black."""
_DASHES: Final = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_HOME: Final = {
    "fifo": 0,
    "2d-las": 1,
    "2d-gittins": 2,
    "srtf": 3,
    "fifo-backfill": 4,
    "allox+2d-gittins": 5,
    "srsf": 6,
    "las": 7,
}
"""Where a policy's colour is, if no other took it: the same policy looks the same in most reports."""


@dataclass(frozen=True)
class Look:
    """How one policy's marks are drawn."""

    colour: str
    dashes: Any


def looks(policies: Sequence[str]) -> dict[str, Look]:
    """
    Return each policy's look: no two of up to eight share a colour, and of up to 32 no two look the same.

    Examples
    --------
    >>> [look.colour for look in looks(["fifo", "mine", "srtf"]).values()]
    ['#7a828c', '#d55e00', '#e69f00']
    """
    size = len(_PALETTE)
    homes = [_HOME[policy] for policy in policies if policy in _HOME]
    free = iter([*(at for at in range(size) if at not in homes), *range(size, 4 * size + len(policies))])
    slots = [_HOME[policy] if policy in _HOME else next(free) for policy in policies]
    return {
        policy: Look(colour=_PALETTE[slot % size], dashes=_DASHES[(slot // size + at % 2) % len(_DASHES)])
        for at, (policy, slot) in enumerate(zip(policies, slots, strict=True))
    }
