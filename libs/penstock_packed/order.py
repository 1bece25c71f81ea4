"""
Whose turn it is among the trials of one lane. Pure.

The order is the in-lane policy's (:mod:`penstock_policies.lanes.turns`). Two things are added to it: who would take too
long for a model's target is passed over meanwhile, and *patience* counts from the first time it asked, whoever was
preferred to it: trials that were passed over, or that models have kept waiting, get their turn then.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock_policies.lanes.turns import POLICIES, Asking, Name, Standing


class Order:
    """
    The trials of one lane that ask for a turn, and members of any kind that ask for their setup.

    Examples
    --------
    >>> order = Order("fifo", patience_s=30.0)
    >>> long, short = Standing("long", 0), Standing("short", 1)
    >>> order.ask(long, 0.0), order.ask(short, 0.0)
    (None, None)
    >>> order.take(1.0, lambda name: name == "short"), order.take(1.0, lambda name: True)
    ('short', 'long')
    """

    def __init__(self, policy: Name, patience_s: float | None) -> None:
        self._asking = Asking(POLICIES[policy], None)
        self._patience_s = patience_s
        self._since: dict[str, tuple[float, Standing]] = {}  # who has asked longest comes first
        self._passed: dict[str, Standing] = {}

    def ask(self, standing: Standing, now_s: float) -> None:
        """Note that a member wants a turn; one that asks already keeps its place."""
        if standing.job_id not in self._since:
            self._since[standing.job_id] = (now_s, standing)
            self._asking.ask(standing, now_s)

    def welcome(self, standing: Standing, now_s: float) -> None:
        """Take in one who comes from elsewhere; it may be asking."""
        asked_s = standing.asked_s
        self._asking.welcome(standing, now_s)
        if asked_s is not None:
            later = {name: since for name, since in self._since.items() if since[0] > asked_s}
            for name in later:
                del self._since[name]
            self._since[standing.job_id] = (asked_s, standing)
            self._since |= later

    def forget(self, standing: Standing) -> None:
        """Take out one who leaves; that it asks is kept, for its next lane."""
        asked = self._since.pop(standing.job_id, None)
        self._passed.pop(standing.job_id, None)
        self._asking.forget(standing)
        standing.asked_s = None if asked is None else asked[0]

    def impatient(self, now_s: float) -> bool:
        """Say whether somebody has asked for too long, so that no request may be preferred to it."""
        if self._patience_s is None or not self._since:
            return False
        asked_s, _ = next(iter(self._since.values()))
        return now_s - asked_s >= self._patience_s

    def take(self, now_s: float, allowed: Callable[[str], bool]) -> str | None:
        """Return who is next of those that are allowed, who then asks no more; whoever is impatient is allowed."""
        if self.impatient(now_s):
            _, standing = next(iter(self._since.values()))
            self.forget(standing)
            standing.asked_s = None
            return standing.job_id
        for standing in [s for name, s in self._passed.items() if allowed(name)]:
            del self._passed[standing.job_id]
            self._asking.ask(standing, now_s)
        while (next_one := self._asking.take(now_s)) is not None:
            if allowed(next_one.job_id):
                del self._since[next_one.job_id]
                return next_one.job_id
            self._passed[next_one.job_id] = next_one
        return None
