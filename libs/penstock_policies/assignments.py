"""
How one-device jobs get their kinds, by name: ``allox``, ``first-fit``, ``load-balance``.

``allox`` looks at how long each job takes on each kind. The other two are blind to speeds, and so are gangs beside
them: they are what ``allox`` is to be compared with, and never leave a job waiting beside an idle device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock_policies import allox
from penstock_policies.allox import Matched
from penstock_policies.machines import Busy
from penstock_policies.order import ASSIGNS, Outlook, Ranked, Supply


class Assign(Protocol):
    """Decides which one-device jobs start now, and where; takes their devices from ``supply.free``."""

    def __call__(self, singles: Sequence[Ranked], supply: Supply, busy: Busy, outlook: Outlook) -> Matched:
        """Return what starts, and what had better wait."""
        ...


@dataclass(frozen=True)
class Assignment:
    """
    One way to give out kinds.

    Attributes
    ----------
    knows_speeds : bool
        Whether it is told how fast a job is on each kind; else all are the same to it.
    """

    assign: Assign
    knows_speeds: bool = True


def first_fit(singles: Sequence[Ranked], supply: Supply, busy: Busy, outlook: Outlook) -> Matched:  # noqa: ARG001 - one form
    """Start each job in rank order on the first idle kind that it fits, by name."""
    return _in_order(singles, supply, outlook, lambda _, kinds: min(kinds))


def load_balance(singles: Sequence[Ranked], supply: Supply, busy: Busy, outlook: Outlook) -> Matched:
    """
    Start each job in rank order on the idle kind whose devices have the least left to do, on the average.

    What a run has left is its expected service, as if all kinds were equally fast.
    """
    sizes: defaultdict[str, int] = defaultdict(int)
    for like, count in supply.whole.classes().items():
        sizes[like.kind] += count
    load_s: defaultdict[str, float] = defaultdict(float)
    for like, in_s in busy().items():
        load_s[like.kind] += sum(in_s)

    def choose(ranked: Ranked, kinds: Sequence[str]) -> str:
        kind = min(kinds, key=lambda kind: (load_s[kind] / sizes[kind], kind))
        load_s[kind] += outlook.remaining([ranked.job])[0]
        return kind

    return _in_order(singles, supply, outlook, choose)


ASSIGNMENTS: Final[dict[str, Assignment]] = {
    "allox": Assignment(allox.match),
    "first-fit": Assignment(first_fit, knows_speeds=False),
    "load-balance": Assignment(load_balance, knows_speeds=False),
}
"""Every assignment that can be chosen, by the name that settings use."""

assert set(ASSIGNMENTS) == set(ASSIGNS)  # noqa: S101 - a name without an assignment would pass as a setting


def _in_order(
    singles: Sequence[Ranked], supply: Supply, outlook: Outlook, choose: Callable[[Ranked, Sequence[str]], str]
) -> Matched:
    found, futile = Matched(), set()
    for ranked in singles:
        if not len(supply.free):
            break
        spec = ranked.job.spec
        if (spec.kinds, spec.memory_bytes) in futile:
            continue
        kinds = list(supply.free.kinds(spec))
        if not kinds:
            futile.add((spec.kinds, spec.memory_bytes))
            continue
        kind = choose(ranked, kinds)
        devices = supply.free.choose(spec, kind, 1, first_fit=outlook.first_fit)
        supply.free.take(devices)
        found.starts.append((ranked, kind, devices))
    return found
