"""One service under virtual time: its fold, and the decider that is asked as the shell would ask it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_bus import Decider, Delivery
from penstock_bus.decider import Proposal
from penstock_bus.fold import Fold
from penstock_bus.replica import Pace

_PACE = Pace()
_AT_ONCE_S = 1e-4


@dataclass(frozen=True)
class Delays:
    """
    What keeps a service from deciding at once.

    Attributes
    ----------
    lag_s : float
        From what it heeds to its decision.
    stalls : sequence of (float, float)
        Times from which and until which it decided nothing, for its host or its bus were busy; rising, apart.
    now_s : callable, optional
        Returns the same as ``lag_s`` for what has just happened; None where that is as always.

    Examples
    --------
    >>> Delays(0.5, ((10.0, 12.0),)).end_s(9.0), Delays(0.5, ((10.0, 12.0),)).end_s(9.75)
    (9.5, 12.0)
    """

    lag_s: float = 0.0
    stalls: Sequence[tuple[float, float]] = ()
    now_s: Callable[[], float | None] | None = None

    def end_s(self, now_s: float) -> float:
        """Return when it decides on what it hears now."""
        lag_s = self.now_s() if self.now_s is not None else None
        at_s = now_s + (self.lag_s if lag_s is None else lag_s)
        following = bisect_left(self.stalls, (at_s - _AT_ONCE_S, 0.0))  # one that begins with this decision is its own
        return max(at_s, self.stalls[following - 1][1]) if following else at_s


_NONE = Delays()


class Station:
    """
    A decider, its fold of the log, and when it is to be asked again.

    Attributes
    ----------
    actor : str
        As whom it writes.
    ignores : frozenset of type
        Kinds of facts after which it need not be asked.
    wake_at_s : float
        When it asked to be asked again; infinite where it did not.
    delays : Delays
        How long after what it heeds it is asked.
    woken_s : float
        When it is to be asked for what it has heard; infinite where it has heard nothing that it heeds.
    heard : list of Delivery
        Commits since it was asked last: whoever delivers puts them here, and they are folded in before it is asked.
    """

    def __init__(self, decider: Decider[Any], delays: Delays | None = None) -> None:
        self.actor, self.ignores = f"{decider.name}/sim", decider.ignores
        self.fold: Fold[Any] = Fold(decider)
        self.heard: list[Delivery] = []
        self.wake_at_s = math.inf
        self.delays, self.woken_s = delays or _NONE, 0.0
        self._wakes: list[tuple[float, int]] = []  # when it is asked, and how many of those heard it goes by then
        self._decide = decider.decide

    @property
    def next_s(self) -> float:
        """When it is to be asked."""
        return min(self.woken_s, self.wake_at_s)

    def wake(self, now_s: float) -> None:
        """Have it asked, as long after now as it takes; it goes by what it has heard up to now."""
        at_s = self.delays.end_s(now_s)
        self.woken_s = min(self.woken_s, at_s)
        if self.delays is not _NONE:
            self._wakes.append((at_s, len(self.heard)))

    def decide(self, now_s: float) -> Sequence[Proposal]:
        """Ask it; return its proposals."""
        apply, known = self.fold.apply, self._known(now_s)
        for delivery in self.heard[:known]:
            apply(delivery)
        del self.heard[:known]
        self._wakes = [(at_s, count - known) for at_s, count in self._wakes if count > known]
        decision = self._decide(self.fold.state, now_s)
        self.woken_s = min((max(at_s, now_s) for at_s, _ in self._wakes), default=math.inf)
        wake_s = decision.wake_at_s
        if wake_s is None:
            self.wake_at_s = math.inf
        else:  # as the shell: a time that has passed is taken up after a moment
            self.wake_at_s = wake_s if wake_s > now_s else now_s + _PACE.least_wait_s
        return decision.proposals

    def _known(self, now_s: float) -> int:
        """Return how many of the commits heard a decision goes by: what came while it was made is for the next one."""
        if self.delays is _NONE or self.wake_at_s <= now_s:
            return len(self.heard)
        asked = max((count for at_s, count in self._wakes if at_s <= now_s), default=len(self.heard))
        own = max((at + 1 for at, one in enumerate(self.heard) if one.commit.actor == self.actor), default=0)
        return max(asked, own)
