"""What a sweep has tried so far, and what it wants to try next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from penstock_events.spec import Param

Params = dict[str, Param]


class Tried(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    One run of a trial: a point of the space, trained up to one budget.

    Attributes
    ----------
    trial : int
        Number of the point, from 0. A trial that is promoted runs again under the same number.
    budget : int
        Up to which it trains, counted from its very beginning; 0 where the sweep has no budget.
    bracket, rung : int
        Where it stands among the groups of a search that stops early; generations are rungs.
    origin : int
        Number of the run whose checkpoint it goes on from; -1 where it starts afresh.
    after : int
        How many runs had ended when it was opened.
    ended : int
        The how-manieth to end, from 1; 0 as long as it runs.
    value : float or None
        Its metric; None as long as it runs, and where it gave none: it failed, diverged, or did not report.
    """

    trial: int
    params: Params
    budget: int = 0
    bracket: int = 0
    rung: int = 0
    origin: int = -1
    after: int = 0
    ended: int = 0
    value: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self.ended > 0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be opened; fields as in :class:`Tried`."""

    trial: int
    params: Params
    budget: int = 0
    bracket: int = 0
    rung: int = 0
    origin: int = -1


class Level(msgspec.Struct):
    """The runs of one rung of one bracket, and how many of them are not over."""

    numbers: list[int] = []
    running: int = 0


class Past(msgspec.Struct, kw_only=True):
    """
    A sweep's runs in the order in which they were opened.

    Attributes
    ----------
    runs : list of Tried
        Empty where the search does not look back (:attr:`Algorithm.looks_back`).
    trials, running, ended : int
        How many points were opened, how many runs are not over, and how many are.
    levels : dict of str to dict of str to Level
        By bracket and rung, in digits for the snapshot: looked up after every fact, and a long sweep has hundreds of
        them.
    """

    runs: list[Tried] = msgspec.field(default_factory=list)
    levels: dict[str, dict[str, Level]] = msgspec.field(default_factory=dict)
    trials: int = 0
    running: int = 0
    ended: int = 0

    def open(self, wanted: Wanted) -> None:
        """Note a run that was opened."""
        fields = {name: getattr(wanted, name) for name in Wanted.__struct_fields__}
        self._note(wanted, len(self.runs))
        self.runs.append(Tried(**fields, after=self.ended))
        self.trials = max(self.trials, wanted.trial + 1)
        self.running += 1

    def count(self) -> None:
        """Note that a run was opened of a search that does not look back: each is another trial."""
        self.trials += 1
        self.running += 1

    def end(self, number: int, value: float | None) -> None:
        """Note that a run ended; its number is -1 where the search does not look back."""
        self.ended += 1
        self.running -= 1
        if number >= 0:
            run = self.runs[number]
            self.levels[str(run.bracket)][str(run.rung)].running -= 1
            run.ended, run.value = self.ended, value

    def level(self, bracket: int, rung: int) -> Sequence[int]:
        """Return the numbers of the runs of one rung, in the order in which they were opened."""
        found = self.levels.get(str(bracket), {}).get(str(rung))
        return found.numbers if found is not None else ()

    def rungs(self, bracket: int) -> int:
        """Return how many rungs of a bracket have been begun."""
        return len(self.levels.get(str(bracket), {}))

    def unfinished(self, bracket: int, rung: int | None = None) -> int:
        """Return how many runs of a rung, or of a whole bracket, are not over."""
        rungs = self.levels.get(str(bracket), {})
        return sum(level.running for number, level in rungs.items() if rung is None or number == str(rung))

    def ranked(self, numbers: Iterable[int], mode: Literal["max", "min"]) -> list[int]:
        """Return those of the runs that gave a value, the best first; of equal ones the first."""
        sign = -1.0 if mode == "max" else 1.0
        valued = [(sign * value, i) for i in numbers if (value := self.runs[i].value) is not None]
        return [i for _, i in sorted(valued)]

    def _note(self, wanted: Wanted, number: int) -> None:
        level = self.levels.setdefault(str(wanted.bracket), {}).setdefault(str(wanted.rung), Level())
        level.numbers.append(number)
        level.running += 1
