"""When somebody who does not give the turn back is warned, and when it is taken from him. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

import msgspec

Verdict = Literal["go", "warn", "take"]


class LeaseRules(msgspec.Struct, frozen=True, kw_only=True):
    """
    How long an iteration may be while others wait for its end.

    Attributes
    ----------
    warn_s : float
        Then the run gets a warning.
    take_s : float
        Then its turn is taken from it.
    """

    warn_s: float = 10.0
    take_s: float = 60.0


class Turns:
    """
    Since when whoever holds a turn has been in the same iteration, while others wait.

    It is looked at now and then: an iteration is the same if its number is. Nobody is warned twice in one iteration,
    and nothing is taken without a warning the time before, however late that was looked at.

    Examples
    --------
    >>> turns = Turns(LeaseRules(warn_s=10.0, take_s=60.0))
    >>> [turns.look(("j1", 1), iteration=7, waiting=1, now_s=now) for now in (0.0, 9.0, 11.0, 12.0, 61.0)]
    ['go', 'go', 'warn', 'go', 'take']
    >>> turns.look(("j1", 1), iteration=8, waiting=1, now_s=62.0)
    'go'
    """

    def __init__(self, rules: LeaseRules) -> None:
        self.rules = rules
        self._since: dict[object, tuple[int, float]] = {}
        self._warned: set[object] = set()

    def look(self, holder: object, *, iteration: int, waiting: int, now_s: float) -> Verdict:
        """Say what is to be done about a holder: it is in its ``iteration``-th, and so many wait for its turn."""
        number, since_s = self._since.get(holder, (-1, 0.0))
        if number != iteration or not waiting:
            self._since[holder] = (iteration, now_s)
            self._warned.discard(holder)
            return "go"
        held_s, warned = now_s - since_s, holder in self._warned or self.rules.warn_s >= self.rules.take_s
        if not warned and held_s >= self.rules.warn_s:
            self._warned.add(holder)
            return "warn"
        if held_s >= self.rules.take_s:
            self.forget(holder)
            return "take"
        return "go"

    def forget(self, holder: object) -> None:
        """It holds the turn no more."""
        self._since.pop(holder, None)
        self._warned.discard(holder)

    def keep(self, holders: Collection[object]) -> None:
        """Forget all but those that hold a turn now."""
        for holder in [holder for holder in self._since if holder not in holders]:
            self.forget(holder)


WORDS: Final = {
    "warn": "has been in one iteration for {s:.3g} s while {waiting} wait for its turn",
    "take": "was in one iteration for {s:.3g} s while {waiting} waited for its turn",
}
