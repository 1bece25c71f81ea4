"""
Runs of a sweep: those tried and those wanted, the rungs that they climb, and its goodput.

:class:`RunHistory` has a sweep's runs (:class:`TriedRun`) in the order in which they were opened; a driver returns
:class:`WantedRun` values. :func:`halving` and :func:`hyperband` say how many trials run for how long: successive
halving, and Hyperband's brackets of it.

:func:`account` says what became of the devices that a sweep held, and how long the sweep took to its target. It is the
same for live and simulated sweeps: the caller gives for each run what it held and how much of that was iterations
(:class:`RunSpending`), and its place and value (:class:`TrialUse`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from penstock_log.spec import Budget, Param

Params = dict[str, Param]


class TriedRun(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    One run of a trial: a point of the space, trained up to one budget.

    Attributes
    ----------
    trial : int
        Number of the point, from 0. A trial that is promoted runs again under the same number.
    budget : int
        The budget up to which it trains, counted from its very beginning; 0 where the sweep has none.
    bracket, rung : int
        Its group in a search that stops early; generations are rungs.
    origin : int
        Number of the run whose checkpoint it goes on from; -1 where it starts afresh.
    after : int
        How many runs had ended when it was opened.
    ended : int
        Its number in the order of ends, from 1; 0 as long as it runs.
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


class WantedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be opened; fields as in :class:`TriedRun`."""

    trial: int
    params: Params
    budget: int = 0
    bracket: int = 0
    rung: int = 0
    origin: int = -1


class RungRuns(msgspec.Struct):
    """The runs of one rung of one bracket, and how many of them are not over."""

    numbers: list[int] = []
    running: int = 0


class RunHistory(msgspec.Struct, kw_only=True):
    """
    A sweep's runs in the order in which they were opened.

    Attributes
    ----------
    runs : list of TriedRun
        Empty where the search does not look back (:attr:`Algorithm.looks_back`).
    trials, running, ended : int
        The number of points opened, of runs under way, and of runs that are over.
    levels : dict of str to dict of str to RungRuns
        Bracket → rung → its runs; the keys are digits for the snapshot. A long sweep has hundreds of levels, and they
        are looked up after every fact.
    """

    runs: list[TriedRun] = msgspec.field(default_factory=list)
    levels: dict[str, dict[str, RungRuns]] = msgspec.field(default_factory=dict)
    trials: int = 0
    running: int = 0
    ended: int = 0

    def open(self, wanted: WantedRun) -> None:
        """Note a run that was opened."""
        fields = {name: getattr(wanted, name) for name in WantedRun.__struct_fields__}
        self._note(wanted, len(self.runs))
        self.runs.append(TriedRun(**fields, after=self.ended))
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

    def _note(self, wanted: WantedRun, number: int) -> None:
        level = self.levels.setdefault(str(wanted.bracket), {}).setdefault(str(wanted.rung), RungRuns())
        level.numbers.append(number)
        level.running += 1


class Rung(msgspec.Struct, frozen=True):
    """A number of trials, trained up to one budget."""

    trials: int
    budget: int


def halvings(budget: Budget) -> int:
    """
    Return how often a budget can be multiplied by eta from least to most.

    Examples
    --------
    >>> halvings(Budget(least=1, most=81)), halvings(Budget(least=1, most=80)), halvings(Budget(least=5, most=5))
    (4, 3, 0)
    """
    times, reached = 0, budget.least
    while reached * budget.eta <= budget.most:
        times, reached = times + 1, reached * budget.eta
    return times


def halving(trials: int, budget: Budget) -> list[Rung]:
    """
    Return the rungs of successive halving: of each, one trial in eta goes on, rounded up.

    References
    ----------
    Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, AISTATS 2016;
    rounded as in Yu et al., Fluid, MLSys 2021.

    Examples
    --------
    >>> [(rung.trials, rung.budget) for rung in halving(10, Budget(least=1, most=9))]
    [(10, 1), (4, 3), (2, 9)]
    """
    rungs, reached = [], budget.least
    for _ in range(halvings(budget) + 1):
        rungs.append(Rung(trials, reached))
        trials, reached = -(-trials // budget.eta), reached * budget.eta
    return rungs


def hyperband(budget: Budget) -> list[list[Rung]]:
    """
    Return Hyperband's brackets, the one with the most trials first.

    Notes
    -----
    Bracket s begins with ``ceil((s_max + 1) / (s + 1) · eta^s)`` trials of ``most / eta^s`` each; rung i keeps
    ``floor(n / eta^i)`` of them. Each bracket costs about the same.

    References
    ----------
    Li et al., Hyperband: a novel bandit-based approach to hyperparameter optimization, JMLR 18(185), 2018.

    Examples
    --------
    >>> [[(rung.trials, rung.budget) for rung in bracket] for bracket in hyperband(Budget(least=1, most=9))]
    [[(9, 1), (3, 3), (1, 9)], [(5, 3), (1, 9)], [(3, 9)]]
    """
    eta, most = budget.eta, halvings(budget)
    return [_bracket(-(-(most + 1) * eta**s // (s + 1)), s, budget) for s in range(most, -1, -1)]


def _bracket(trials: int, s: int, budget: Budget) -> list[Rung]:
    eta = budget.eta
    return [Rung(trials // eta**i, max(1, round(budget.most / eta ** (s - i)))) for i in range(s + 1)]


class RunSpending(msgspec.Struct, kw_only=True):
    """
    What one run of a trial held, in device-seconds; a share of a device that others use too counts as that share.

    Attributes
    ----------
    held_gpu_s : float
        All that the run held.
    loop_gpu_s : float
        The part of it in iterations.
    moved_gpu_s : float
        The part of the rest that stopping and going on cost: whatever was no iteration once it was started again.
    """

    held_gpu_s: float = 0.0
    loop_gpu_s: float = 0.0
    moved_gpu_s: float = 0.0

    def add(self, held_gpu_s: float, loop_gpu_s: float, *, again: bool) -> None:
        """
        Add a stretch from a start to its end; ``again`` where the run had been started before.

        Examples
        --------
        >>> spent = RunSpending()
        >>> spent.add(5.0, 4.0, again=False)
        >>> spent.add(3.0, 1.0, again=True)
        >>> spent
        RunSpending(held_gpu_s=8.0, loop_gpu_s=5.0, moved_gpu_s=2.0)
        """
        loop_gpu_s = min(loop_gpu_s, held_gpu_s)
        self.held_gpu_s += held_gpu_s
        self.loop_gpu_s += loop_gpu_s
        if again:
            self.moved_gpu_s += held_gpu_s - loop_gpu_s


class TrialUse(msgspec.Struct, frozen=True, kw_only=True):
    """
    One run of a trial, as it counts.

    Attributes
    ----------
    key : str or int
        The run's name; ``origin`` is the key of the run whose checkpoint it goes on from.
    budget : int
        The budget up to which it trained; 0 where the sweep has none.
    ended_s : float or None
        When it ended; None as long as it runs.
    value : float or None
        The value that it gave to the search.
    """

    key: str | int
    origin: str | int = ""
    budget: int = 0
    ended_s: float | None = None
    value: float | None = None
    spent: RunSpending = msgspec.field(default_factory=RunSpending)


class SweepGoodput(msgspec.Struct, frozen=True, kw_only=True):
    """
    What became of a sweep's device-seconds; all but ``running_gpu_s`` are of runs that are over.

    Attributes
    ----------
    useful_gpu_s : float
        Iterations of runs from which another went on, or which are the best.
    stopped_gpu_s : float
        Iterations of the other runs that gave a value: what it cost to tell them apart.
    failed_gpu_s : float
        Runs without a value: crashed, diverged, killed; iterations and all.
    rescale_gpu_s : float
        Stopping and going on, after a move, a preemption or a crash.
    overhead_gpu_s : float
        The rest of what was no iteration: starting, loading, saving, leaving.
    profile_gpu_s : float
        Samples that were taken to know the workload.
    allocated_gpu_s : float
        All of these.
    running_gpu_s : float
        Held so far by runs under way; not part of what is allocated, because their use is not known yet.
    best : str, int or None
        The run with the best value among those with the largest budget; of equal ones the first.
    target_s : float or None
        When a run first gave a value as good as the target.
    """

    useful_gpu_s: float
    stopped_gpu_s: float
    failed_gpu_s: float
    rescale_gpu_s: float
    overhead_gpu_s: float
    profile_gpu_s: float
    allocated_gpu_s: float
    running_gpu_s: float
    best: str | int | None
    target_s: float | None

    @property
    def goodput(self) -> float:
        """The useful part of what was allocated, from 0 to 1."""
        return self.useful_gpu_s / self.allocated_gpu_s if self.allocated_gpu_s else 0.0


def account(
    uses: Sequence[TrialUse],
    mode: Literal["max", "min"],
    *,
    target: float | None = None,
    profile_gpu_s: float = 0.0,
) -> SweepGoodput:
    """
    Return what became of the device-seconds of a sweep's runs.

    Examples
    --------
    >>> begun = TrialUse(key="a", ended_s=5.0, value=0.5, budget=1, spent=RunSpending(held_gpu_s=5.0, loop_gpu_s=4.0))
    >>> other = TrialUse(key="b", ended_s=6.0, value=0.4, budget=1, spent=RunSpending(held_gpu_s=6.0, loop_gpu_s=4.0))
    >>> promoted = TrialUse(key="a1", origin="a", ended_s=9.0, value=0.9, budget=3, spent=RunSpending(held_gpu_s=3.0))
    >>> found = account([begun, other, promoted], "max", target=0.8)
    >>> found.useful_gpu_s, found.stopped_gpu_s, found.overhead_gpu_s, found.best, found.target_s
    (4.0, 4.0, 6.0, 'a1', 9.0)
    """
    over = [use for use in uses if use.ended_s is not None]
    found = best(uses, mode)
    wanted = {use.origin for use in uses} | {found}
    valued = [use for use in over if use.value is not None]
    failed_gpu_s = sum(use.spent.held_gpu_s for use in over if use.value is None)
    idle_gpu_s = sum(use.spent.held_gpu_s - use.spent.loop_gpu_s for use in valued)
    rescale_gpu_s = sum(use.spent.moved_gpu_s for use in valued)
    return SweepGoodput(
        useful_gpu_s=sum(use.spent.loop_gpu_s for use in valued if use.key in wanted),
        stopped_gpu_s=sum(use.spent.loop_gpu_s for use in valued if use.key not in wanted),
        failed_gpu_s=failed_gpu_s,
        rescale_gpu_s=rescale_gpu_s,
        overhead_gpu_s=max(0.0, idle_gpu_s - rescale_gpu_s),
        profile_gpu_s=profile_gpu_s,
        allocated_gpu_s=profile_gpu_s + sum(use.spent.held_gpu_s for use in over),
        running_gpu_s=sum(use.spent.held_gpu_s for use in uses if use.ended_s is None),
        best=found,
        target_s=_reached_s(valued, mode, target),
    )


def best(uses: Sequence[TrialUse], mode: Literal["max", "min"]) -> str | int | None:
    """Return the key of the best run: of those with the largest budget, the first with the best value."""
    sign = 1.0 if mode == "max" else -1.0
    valued = [(use.budget, sign * use.value, use.key) for use in uses if use.value is not None]
    return max(valued, key=lambda found: found[:2])[2] if valued else None


def _reached_s(valued: Sequence[TrialUse], mode: Literal["max", "min"], target: float | None) -> float | None:
    if target is None:
        return None
    sign = 1.0 if mode == "max" else -1.0
    reached = (use.ended_s for use in valued if sign * (use.value or 0.0) >= sign * target and use.ended_s is not None)
    return min(reached, default=None)
