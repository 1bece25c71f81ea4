"""One service under virtual time: its fold, and the decider that is asked as the shell would ask it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock_bus import Decider, Delivery
from penstock_bus.decider import Proposal
from penstock_bus.fold import Fold
from penstock_bus.replica import Pace

_PACE = Pace()


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
    woken : bool
        Whether it is to be asked: whoever delivers a fact of a kind that it does not ignore says so here.
    heard : list of Delivery
        Commits since it was asked last: whoever delivers puts them here, and they are folded in before it is asked.
    """

    def __init__(self, decider: Decider[Any]) -> None:
        self.actor, self.ignores = f"{decider.name}/sim", decider.ignores
        self.fold: Fold[Any] = Fold(decider)
        self.heard: list[Delivery] = []
        self.wake_at_s = math.inf
        self.woken = True
        self._decide = decider.decide

    def decide(self, now_s: float) -> Sequence[Proposal]:
        """Ask it; return its proposals."""
        apply = self.fold.apply
        for delivery in self.heard:
            apply(delivery)
        self.heard.clear()
        decision = self._decide(self.fold.state, now_s)
        self.woken = False
        wake_s = decision.wake_at_s
        if wake_s is None:
            self.wake_at_s = math.inf
        else:  # as the shell: a time that has passed is taken up after a moment
            self.wake_at_s = wake_s if wake_s > now_s else now_s + _PACE.least_wait_s
        return decision.proposals
