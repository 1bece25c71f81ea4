"""
Drivers of a search: which runs a sweep opens next, in which groups, and which trials go on.

A :class:`Driver` is a function of the specification, of the runs so far, and of the number of devices. It is called
whenever a run has ended or was opened, and returns one group of runs. Where it returns none and nothing runs, the sweep
is over. Only the first of the runs that it returned may have been opened: the next call then returns the rest again.

The drivers are, in this order: all at once and in batches; successive halving and Hyperband, rung by rung; their
asynchronous forms; population-based training, in which the worst members take over the weights of the best and
hyper-parameters near theirs; and trials that climb one by one, each stopped where one of Optuna's pruners says so.
:func:`planned` says how much a sweep has before it, where its search determines that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, assert_never

import msgspec
import numpy as np

from penstock_log.spec import Budget, Choice, Dimension, Integers, Param, SweepSpec, Uniform
from penstock_log.validation import nearest
from penstock_policies.search.runs import Params, Rung, RunHistory, WantedRun, halving, halvings, hyperband
from penstock_policies.search.space import BadSpace, points, size

if TYPE_CHECKING:
    import optuna

    from penstock_policies.search.optuna_bridge import PruningJudge


Sample = Callable[[int], list[Params]]
"""So many new points; fewer where the space has no more."""


GROUP: Final = 500
"""Trials opened in one fact, so that it stays well below a message's limit."""


BATCH: Final = 64
"""Most trials of a batch whose size the sweep leaves open: nothing is learned within one, and each is a question."""


class Driver(Protocol):
    """A function that decides which runs a sweep opens now."""

    def __call__(self, spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:
        """Return the runs to open; ``devices`` is the number of those that the sweep could use."""
        ...


def at_once(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:  # noqa: ARG001
    """Open all trials, :data:`GROUP` by :data:`GROUP`; or as many at a time as the sweep allows."""
    return _batch(spec, past, spec.concurrency, sample) if spec.concurrency else _open(spec, past, GROUP, sample)


def in_batches(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:
    """Open a batch, as many as there are devices (to :data:`BATCH`) unless the sweep says; the next when it is over."""
    return _batch(spec, past, spec.concurrency or min(max(1, devices), BATCH), sample)


def _batch(spec: SweepSpec, past: RunHistory, batch: int, sample: Sample) -> list[WantedRun]:
    return [] if past.running else _open(spec, past, min(batch, GROUP), sample)


def _open(spec: SweepSpec, past: RunHistory, most: int, sample: Sample) -> list[WantedRun]:
    left = spec.trials - past.trials if spec.trials else most
    return list(_fresh(past, sample(min(most, left)), 0, 0))


def successive_halving(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:  # noqa: ARG001
    """Open one bracket, rung by rung."""
    return _climb(spec, past, 0, one_bracket(spec), sample)


def one_bracket(spec: SweepSpec) -> list[Rung]:
    """Return the rungs of successive halving; without ``trials``, of as many as leave one at the top."""
    budget = budget_of(spec)
    return halving(limit(spec) or budget.eta ** halvings(budget), budget)


def all_brackets(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:  # noqa: ARG001
    """Open Hyperband's brackets side by side, each rung by rung: they do not learn from each other."""
    groups = (_climb(spec, past, number, rungs, sample) for number, rungs in enumerate(brackets(spec)))
    return next(filter(None, groups), [])


def bracket_by_bracket(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:  # noqa: ARG001
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
    >>> from penstock_log import JobSpec
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


def asynchronous(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:
    """
    Promote whoever is among the best of a rung as soon as there is room, else begin another trial.

    References
    ----------
    Li et al., A system for massively parallel hyperparameter tuning, MLSys 2020, algorithm 2.
    """
    budget = budget_of(spec)
    return _fill_free(spec, past, devices, sample, [_ladder(budget, 0)])


def asynchronous_brackets(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:
    """Promote as :func:`asynchronous` over all brackets of Hyperband; a new trial goes to the one furthest behind."""
    budget = budget_of(spec)
    return _fill_free(spec, past, devices, sample, [_ladder(budget, s) for s in range(halvings(budget) + 1)])


def budget_of(spec: SweepSpec) -> Budget:
    """Return the sweep's budget; :func:`.algorithms.check` sees to it that there is one."""
    if spec.budget is None:
        raise BadSpace(f"search = {spec.search!r} needs a budget; expected a table [budget] with param, least and most")
    return spec.budget


def free_runs(spec: SweepSpec, past: RunHistory, devices: int) -> int:
    """Return how many runs an asynchronous search may open now."""
    return max(0, (spec.concurrency or max(1, devices)) - past.running)


def _fresh(past: RunHistory, points: Sequence[Params], bracket: int, budget: int) -> Iterator[WantedRun]:
    for number, params in enumerate(points, past.trials):
        yield WantedRun(trial=number, params=params, bracket=bracket, budget=budget)


def _climb(spec: SweepSpec, past: RunHistory, bracket: int, rungs: list[Rung], sample: Sample) -> list[WantedRun]:
    """Return the runs that the lowest incomplete rung lacks; none while one still runs."""
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


def promoted(past: RunHistory, number: int, rung: int, budget: int) -> WantedRun:
    """Return the run with which a trial goes on to its next budget."""
    run = past.runs[number]
    return WantedRun(trial=run.trial, params=run.params, bracket=run.bracket, rung=rung, budget=budget, origin=number)


def _ladder(budget: Budget, skipped: int) -> list[int]:
    """Return the budgets of a bracket that leaves out the lowest rungs."""
    return [budget.least * budget.eta**i for i in range(skipped, halvings(budget) + 1)]


def _fill_free(
    spec: SweepSpec, past: RunHistory, devices: int, sample: Sample, ladders: list[list[int]]
) -> list[WantedRun]:
    places = free_runs(spec, past, devices)
    up = list(_promotable(spec, past, ladders))[:places]
    fresh = min(places - len(up), limit(spec) - past.trials)
    points = sample(fresh) if fresh > 0 else []
    begun = [len(past.level(b, 0)) for b in range(len(ladders))]
    shares = [_share(budget_of(spec), len(ladder)) for ladder in ladders]
    for number, params in enumerate(points, past.trials):
        bracket = min(range(len(ladders)), key=lambda b: (begun[b] / shares[b], b))
        begun[bracket] += 1
        up.append(WantedRun(trial=number, params=params, bracket=bracket, budget=ladders[bracket][0]))
    return up


def _share(budget: Budget, rungs: int) -> float:
    """Return how many trials Hyperband begins in a bracket of so many rungs, up to rounding."""
    return (halvings(budget) + 1) / rungs * float(budget.eta) ** (rungs - 1)


def _promotable(spec: SweepSpec, past: RunHistory, ladders: list[list[int]]) -> Iterator[WantedRun]:
    """Yield the runs that a rung may promote to the next, the highest rungs first."""
    for bracket, ladder in enumerate(ladders):
        for rung in range(len(ladder) - 2, -1, -1):
            level = past.level(bracket, rung)
            over = len(level) - past.unfinished(bracket, rung)
            gone = {past.runs[i].trial for i in past.level(bracket, rung + 1)}
            for i in past.ranked(level, spec.mode)[: over // budget_of(spec).eta]:
                if past.runs[i].trial not in gone:
                    yield promoted(past, i, rung + 1, ladder[rung + 1])


class SearchPlan(msgspec.Struct, frozen=True):
    """
    The work of a whole sweep, if nothing fails.

    Attributes
    ----------
    trials, runs : int
        Points, and runs of them.
    work : int
        Units of budget, each trained once; runs, where the sweep has no budget.
    """

    trials: int
    runs: int
    work: int


def planned(spec: SweepSpec) -> SearchPlan | None:
    """
    Return the work of a whole sweep; None where it depends on results, as in asynchronous searches.

    Examples
    --------
    >>> from penstock_log import Budget, JobSpec
    >>> job = JobSpec(name="j", command=("x",))
    >>> budget = Budget(least=1, most=9)
    >>> planned(SweepSpec(name="s", job=job, space={}, metric="m", search="hyperband", budget=budget))
    SearchPlan(trials=17, runs=22, work=69)
    """
    if spec.pruner or spec.search in {"asha", "bohb-async"}:
        return None
    if spec.search in {"hyperband", "bohb"}:
        return _climbing(brackets(spec))
    if spec.search == "halving":
        return _climbing([one_bracket(spec)])
    if spec.search == "pbt":
        generations = budget_of(spec).most // budget_of(spec).least
        return SearchPlan(spec.trials, spec.trials * generations, spec.trials * budget_of(spec).least * generations)
    trials = limit(spec)
    return SearchPlan(trials, trials, trials)


def _climbing(brackets: list[list[Rung]]) -> SearchPlan:
    """Add up rungs, of which each goes on where the one below ended."""
    work = 0
    for rungs in brackets:
        below = 0
        for rung in rungs:
            work, below = work + rung.trials * (rung.budget - below), rung.budget
    runs = sum(rung.trials for rungs in brackets for rung in rungs)
    return SearchPlan(sum(rungs[0].trials for rungs in brackets), runs, work)


QUANTILE: Final = 0.2
"""The part of a generation that is replaced, and the part whose members replace it."""
FACTORS: Final = (0.8, 1.2)
RESAMPLED: Final = 0.25
"""How often a hyper-parameter is drawn anew instead of moved."""


def generations(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:  # noqa: ARG001
    """
    Open a generation, each member trained ``budget.least`` further, and the next one when it is over.

    References
    ----------
    Jaderberg et al., Population based training of neural networks, arXiv 1711.09846, 2017: truncation selection,
    perturbation by 0.8 or 1.2, resampling with probability 0.25.
    """
    budget = budget_of(spec)
    last = budget.most // budget.least - 1
    now = max(0, past.rungs(0) - 1)
    if past.trials < spec.trials and not now:
        drawn = sample(spec.trials - past.trials)
        return [WantedRun(trial=past.trials + i, params=p, budget=budget.least) for i, p in enumerate(drawn)]
    level = past.level(0, now)
    before = past.level(0, now - 1)
    if now and len(level) < len(before) and past.ranked(before, spec.mode):  # opened in part only
        return _next(spec, past, before, now)[len(level) :]
    if now >= last or past.unfinished(0, now) or not past.ranked(level, spec.mode):
        return []
    return _next(spec, past, level, now + 1)


def _next(spec: SweepSpec, past: RunHistory, level: Sequence[int], rung: int) -> list[WantedRun]:
    """Return the generation after one that is over; the same however much of it has been opened."""
    budget = budget_of(spec)
    ranked = past.ranked(level, spec.mode)
    few = max(1, int(len(level) * QUANTILE))
    kept = len(level) - few if len(level) > 1 else 1
    goes_on, donors = set(ranked[:kept]), ranked[:few]
    fresh = 1 + max(past.runs[i].trial for i in level)
    wanted = []
    for i in level:
        if i in goes_on:
            wanted.append(promoted(past, i, rung, budget.least * (rung + 1)))
            continue
        rng = np.random.default_rng([spec.seed % 2**64, rung, i])
        donor = donors[int(rng.integers(len(donors)))]
        params = perturbed(spec, past.runs[donor].params, rng)
        wanted.append(WantedRun(trial=fresh, params=params, rung=rung, budget=budget.least * (rung + 1), origin=donor))
        fresh += 1
    return wanted


def perturbed(spec: SweepSpec, params: Params, rng: np.random.Generator) -> Params:
    """Return a point near another one."""
    (drawn,) = points(spec, 0, 1, rng)
    return {
        name: drawn[name] if rng.random() < RESAMPLED else _moved(dimension, params[name], rng)
        for name, dimension in sorted(spec.space.items())
    }


def _moved(dimension: Dimension, value: Param, rng: np.random.Generator) -> Param:
    factor = FACTORS[int(rng.integers(2))]
    match dimension:
        case Uniform():
            return min(max(float(value) * factor, dimension.low), dimension.high)
        case Integers():
            return min(max(round(int(value) * factor), dimension.low), dimension.high)
        case Choice():
            return value
        case _:
            assert_never(dimension)


PRUNERS: Final = ("median", "percentile", "halving")
JUDGES: Final = 16
"""Sweeps whose judges are kept between questions: forgetting one changes nothing but what the next question costs."""


_KEPT: Final[dict[int, tuple[RunHistory, SweepSpec, PruningJudge]]] = {}


def climbing(spec: SweepSpec, past: RunHistory, devices: int, sample: Sample) -> list[WantedRun]:
    """
    Let each trial train to the next budget unless it is pruned; where there is room, begin another one.

    Each run is judged once: a trial that was stopped stays stopped, whatever the others give.
    """
    budget = budget_of(spec)
    top, wanted = halvings(budget), []
    judged = max((run.after for run in past.runs), default=0)  # whoever ended before the last opening was judged then
    for number, run in enumerate(past.runs):
        if run.ended > judged and run.value is not None and run.rung < top and not _pruned(spec, past, number, top):
            wanted.append(promoted(past, number, run.rung + 1, budget.least * budget.eta ** (run.rung + 1)))
    fresh = min(free_runs(spec, past, devices) - len(wanted), limit(spec) - past.trials)
    drawn = sample(fresh) if fresh > 0 else []
    return wanted + [WantedRun(trial=past.trials + i, params=p, budget=budget.least) for i, p in enumerate(drawn)]


def check_pruner(name: str) -> None:
    """Refuse a pruner that is not known."""
    if name not in PRUNERS:
        raise BadSpace(f"pruner {name!r} is not known; expected one of {', '.join(PRUNERS)}{nearest(name, PRUNERS)}")


def _pruned(spec: SweepSpec, past: RunHistory, number: int, top: int) -> bool:
    return _judge(spec, past, top).stops(past, number)


def _judge(spec: SweepSpec, past: RunHistory, top: int) -> PruningJudge:
    """Return the judge for this past: the one that was kept, or a new one that is told all of it."""
    from penstock_policies.search.optuna_bridge import PruningJudge  # noqa: PLC0415 - an extra, and half a second

    kept = _KEPT.pop(id(past), None)
    if kept is None or kept[0] is not past or kept[1] != spec:
        kept = (past, spec, PruningJudge(spec, _made(spec), top))
    _KEPT[id(past)] = kept
    while len(_KEPT) > JUDGES:
        del _KEPT[next(iter(_KEPT))]
    return kept[2]


def _made(spec: SweepSpec) -> optuna.pruners.BasePruner:
    import optuna  # noqa: PLC0415 - an extra, and half a second

    match spec.pruner:
        case "percentile":
            return optuna.pruners.PercentilePruner(25.0, n_startup_trials=4)
        case "halving":
            budget = budget_of(spec)
            return optuna.pruners.SuccessiveHalvingPruner(budget.least, budget.eta)
        case _:
            return optuna.pruners.MedianPruner(n_startup_trials=4)
