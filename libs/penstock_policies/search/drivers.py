"""
Which runs a search opens next, in which groups, and who goes on.

A driver is a function of the specification, of what was tried, and of how many devices there are. It is asked whenever
something has ended or was opened, and answers with one group; where it wants nothing and nothing runs, the sweep is
over. Only the first of what it wanted may have been opened: it then wants the rest again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from penstock_events.spec import Budget, SweepSpec
from penstock_policies.search.past import Params, Past, Wanted
from penstock_policies.search.rungs import Rung, halving, halvings, hyperband
from penstock_policies.search.space import BadSpace, size

Sample = Callable[[int], list[Params]]
"""So many new points; fewer where the space has no more."""


GROUP: Final = 500
"""Trials opened in one fact, so that it stays well below a message's limit."""


BATCH: Final = 64
"""Most trials of a batch whose size the sweep leaves open: nothing is learned within one, and each is a question."""


class Driver(Protocol):
    """Says which runs are opened now."""

    def __call__(self, spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:
        """Return them; ``devices`` are those that the sweep could use."""
        ...


def at_once(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:  # noqa: ARG001
    """Open all trials, :data:`GROUP` by :data:`GROUP`; or as many at a time as the sweep allows."""
    return _batch(spec, past, spec.concurrency, sample) if spec.concurrency else _open(spec, past, GROUP, sample)


def in_batches(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:
    """Open a batch, as many as there are devices (to :data:`BATCH`) unless the sweep says; the next when it is over."""
    return _batch(spec, past, spec.concurrency or min(max(1, devices), BATCH), sample)


def _batch(spec: SweepSpec, past: Past, batch: int, sample: Sample) -> list[Wanted]:
    return [] if past.running else _open(spec, past, min(batch, GROUP), sample)


def _open(spec: SweepSpec, past: Past, most: int, sample: Sample) -> list[Wanted]:
    left = spec.trials - past.trials if spec.trials else most
    return list(_fresh(past, sample(min(most, left)), 0, 0))


def successive_halving(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:  # noqa: ARG001
    """Open one bracket, rung by rung."""
    return _climb(spec, past, 0, one_bracket(spec), sample)


def one_bracket(spec: SweepSpec) -> list[Rung]:
    """Return the rungs of successive halving; without ``trials``, of as many as leave one at the top."""
    budget = budget_of(spec)
    return halving(limit(spec) or budget.eta ** halvings(budget), budget)


def all_brackets(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:  # noqa: ARG001
    """Open Hyperband's brackets side by side, each rung by rung: they do not learn from each other."""
    groups = (_climb(spec, past, number, rungs, sample) for number, rungs in enumerate(brackets(spec)))
    return next(filter(None, groups), [])


def bracket_by_bracket(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:  # noqa: ARG001
    """Open Hyperband's brackets one after the other, so that each learns from those before: synchronous BOHB."""
    for number, rungs in enumerate(brackets(spec)):
        wanted = _climb(spec, past, number, rungs, sample)
        if wanted or past.unfinished(number):
            return wanted
    return []


def brackets(spec: SweepSpec) -> list[list[Rung]]:
    """
    Return the brackets of a sweep: Hyperband's once, or over and over until there are ``trials``, the last cut short.

    Examples
    --------
    >>> from penstock_events import JobSpec
    >>> job = JobSpec(name="j", command=("x",))
    >>> spec = SweepSpec(name="s", job=job, space={}, metric="m", budget=Budget(least=1, most=3), trials=6)
    >>> [[(rung.trials, rung.budget) for rung in bracket] for bracket in brackets(spec)]
    [[(3, 1), (1, 3)], [(2, 3)], [(1, 1), (1, 3)]]
    """
    round_ = hyperband(budget_of(spec))
    if not limit(spec):
        return round_
    cut: list[list[Rung]] = []
    left = limit(spec)
    while left > 0:
        rungs = round_[len(cut) % len(round_)]
        cut.append([Rung(min(rung.trials, left), rung.budget) for rung in rungs])
        left -= cut[-1][0].trials
    return cut


def limit(spec: SweepSpec) -> int:
    """Return how many trials there can be; 0 where the search is free to choose."""
    return size(spec) if (spec.sampler or spec.search) == "grid" else spec.trials


def asynchronous(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:
    """
    Promote whoever is among the best of a rung as soon as there is room, else begin another trial.

    References
    ----------
    Li et al., A system for massively parallel hyperparameter tuning, MLSys 2020, algorithm 2.
    """
    budget = budget_of(spec)
    return _fill_room(spec, past, devices, sample, [_ladder(budget, 0)])


def asynchronous_brackets(spec: SweepSpec, past: Past, devices: int, sample: Sample) -> list[Wanted]:
    """The same over all of Hyperband's brackets; a new trial goes to the one furthest behind its share."""
    budget = budget_of(spec)
    return _fill_room(spec, past, devices, sample, [_ladder(budget, s) for s in range(halvings(budget) + 1)])


def budget_of(spec: SweepSpec) -> Budget:
    """Return the sweep's budget; :func:`.algorithms.check` sees to it that there is one."""
    if spec.budget is None:
        raise BadSpace(f"search = {spec.search!r} needs a budget; expected a table [budget] with param, least and most")
    return spec.budget


def room(spec: SweepSpec, past: Past, devices: int) -> int:
    """Return how many runs an asynchronous search may open now."""
    return max(0, (spec.concurrency or max(1, devices)) - past.running)


def _fresh(past: Past, points: Sequence[Params], bracket: int, budget: int) -> Iterator[Wanted]:
    for number, params in enumerate(points, past.trials):
        yield Wanted(trial=number, params=params, bracket=bracket, budget=budget)


def _climb(spec: SweepSpec, past: Past, bracket: int, rungs: list[Rung], sample: Sample) -> list[Wanted]:
    """Return what the lowest rung that is not complete lacks; nothing while one still runs."""
    below = past.level(bracket, 0)
    lacking = rungs[0].trials - len(below)
    if lacking and (points := sample(min(lacking, GROUP))):
        return list(_fresh(past, points, bracket, rungs[0].budget))
    for number, rung in enumerate(rungs[1:], 1):
        if past.unfinished(bracket, number - 1):
            return []
        best = past.ranked(below, spec.mode)[: rung.trials]
        below = past.level(bracket, number)
        there = {past.runs[i].trial for i in below}
        if wanted := [promoted(past, i, number, rung.budget) for i in best if past.runs[i].trial not in there]:
            return wanted
    return []


def promoted(past: Past, number: int, rung: int, budget: int) -> Wanted:
    """Return the run by which a trial goes on."""
    run = past.runs[number]
    return Wanted(trial=run.trial, params=run.params, bracket=run.bracket, rung=rung, budget=budget, origin=number)


def _ladder(budget: Budget, skipped: int) -> list[int]:
    """Return the budgets of a bracket that leaves out the lowest rungs."""
    return [budget.least * budget.eta**i for i in range(skipped, halvings(budget) + 1)]


def _fill_room(spec: SweepSpec, past: Past, devices: int, sample: Sample, ladders: list[list[int]]) -> list[Wanted]:
    places = room(spec, past, devices)
    up = list(_promotable(spec, past, ladders))[:places]
    fresh = min(places - len(up), limit(spec) - past.trials)
    points = sample(fresh) if fresh > 0 else []
    begun = [len(past.level(b, 0)) for b in range(len(ladders))]
    shares = [_share(budget_of(spec), len(ladder)) for ladder in ladders]
    for number, params in enumerate(points, past.trials):
        bracket = min(range(len(ladders)), key=lambda b: (begun[b] / shares[b], b))
        begun[bracket] += 1
        up.append(Wanted(trial=number, params=params, bracket=bracket, budget=ladders[bracket][0]))
    return up


def _share(budget: Budget, rungs: int) -> float:
    """Return how many trials Hyperband begins in a bracket of so many rungs, up to rounding."""
    return (halvings(budget) + 1) / rungs * float(budget.eta) ** (rungs - 1)


def _promotable(spec: SweepSpec, past: Past, ladders: list[list[int]]) -> Iterator[Wanted]:
    """Yield whom a rung has to give up to the next, the highest rungs first."""
    for bracket, ladder in enumerate(ladders):
        for rung in range(len(ladder) - 2, -1, -1):
            level = past.level(bracket, rung)
            over = len(level) - past.unfinished(bracket, rung)
            gone = {past.runs[i].trial for i in past.level(bracket, rung + 1)}
            for i in past.ranked(level, spec.mode)[: over // budget_of(spec).eta]:
                if past.runs[i].trial not in gone:
                    yield promoted(past, i, rung + 1, ladder[rung + 1])
