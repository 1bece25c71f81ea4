"""
Bridge to Optuna: its samplers and pruners behind the ports of this package; the only module that loads it.

The log is the only truth. A sampler makes a study for each question, tells it what was tried, asks it for points, and
throws it away. Chance comes from the sweep's seed and the number of trials so far, so that the same past gives the same
points to everybody.

:class:`PruningJudge` asks a pruner. It tells the pruner what became of a sweep's runs in the order in which they ended;
each run is told once and judged once, when it ends. A judge that is kept between questions is told only what is new. A
judge that was not kept is made again from the log, with the same verdicts (ADR 9).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Final, assert_never

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from penstock_log.spec import Choice, Dimension, Integers, Param, SweepSpec, Uniform
from penstock_policies.search.runs import Params, RunHistory, TriedRun
from penstock_policies.search.space import point_of

RANDOM_SHARE: Final = 1 / 3
"""Of the points that a model-based search draws at random all the same (Falkner et al., BOHB, ICML 2018)."""

optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study is made for each question: no news


def tpe(spec: SweepSpec, past: RunHistory, count: int) -> list[Params]:
    """
    Draw points by a tree-structured Parzen estimator; running trials count as bad ones, so that points differ.

    References
    ----------
    Bergstra et al., Algorithms for hyper-parameter optimization, NeurIPS 2011.
    """
    return _ask(_study(spec, past, _reported(spec, past), startup=10), spec, count)


def model(spec: SweepSpec, past: RunHistory, count: int) -> list[Params]:
    """
    Draw points by the same estimator, of the runs with the largest budget that has enough; one in three at random.

    References
    ----------
    Falkner, Klein and Hutter, BOHB: robust and efficient hyperparameter optimization at scale, ICML 2018, section 3.2.
    """
    reported = _reported(spec, past)
    study = _study(spec, past, reported, startup=0) if any(run.over for run in reported) else None
    drawn = []
    for trial in range(past.trials, past.trials + count):
        lucky = np.random.default_rng([spec.seed % 2**64, trial, 1]).random() < RANDOM_SHARE
        drawn.append(point_of(spec, trial) if study is None or lucky else _ask(study, spec, 1)[0])
    return drawn


def cmaes(spec: SweepSpec, past: RunHistory, count: int) -> list[Params]:
    """
    Draw points by CMA-ES; choices, which have no distance, are drawn independently.

    The strategy's state is worked out again by asking for each past trial and telling what became of it, in the order
    in which that happened. Should another version of the library draw other points, the strategy starts over from them.

    References
    ----------
    Hansen, The CMA evolution strategy: a tutorial, arXiv 1604.00772, 2016.
    """
    with warnings.catch_warnings(action="ignore"):
        sampler = optuna.samplers.CmaEsSampler(seed=spec.seed % 2**32, warn_independent_sampling=False)
        study = optuna.create_study(direction=_direction(spec), sampler=sampler)
        ends = sorted((run.ended, i) for i, run in enumerate(past.runs) if run.over)
        asked: list[optuna.Trial] = []
        for after in [*(run.after for run in past.runs), past.ended]:
            while ends and ends[0][0] <= after:
                _, i = ends.pop(0)
                _tell(study, spec, past.runs[i], asked[i])
            if len(asked) < len(past.runs):
                asked.append(study.ask(distributions(spec)))
        return _ask(study, spec, count)


def _tell(study: optuna.Study, spec: SweepSpec, run: TriedRun, asked: optuna.Trial) -> None:
    same = asked.params == _encoded(spec, run.params)
    study.tell(asked, run.value if same else None, state=_state(run) if same else TrialState.FAIL)
    if not same:
        study.add_trial(_trial(spec, run))


def distributions(spec: SweepSpec) -> dict[str, BaseDistribution]:
    """Return a space as Optuna writes it; choices by their places, since 1, 1.0 and True are equal to Python."""
    return {name: _distribution(dimension) for name, dimension in sorted(spec.space.items())}


def _distribution(dimension: Dimension) -> BaseDistribution:
    match dimension:
        case Choice():
            return CategoricalDistribution(tuple(range(len(dimension.values))))
        case Integers():
            return IntDistribution(dimension.low, dimension.high)
        case Uniform():
            return FloatDistribution(dimension.low, dimension.high, log=dimension.log)
        case _:
            assert_never(dimension)


def _reported(spec: SweepSpec, past: RunHistory) -> list[TriedRun]:
    """Return the runs that a model is made of: those at the largest budget with enough values, and those under way."""
    for budget in sorted({run.budget for run in past.runs}, reverse=True):
        reported = [run for run in past.runs if run.budget == budget and run.over]
        if not budget or sum(run.value is not None for run in reported) >= len(spec.space) + 2:
            done = {run.trial for run in reported}
            return reported + [run for run in past.runs if not run.over and run.trial not in done]
    return []


def _study(spec: SweepSpec, past: RunHistory, reported: Iterable[TriedRun], startup: int) -> optuna.Study:
    with warnings.catch_warnings(action="ignore"):
        study = optuna.create_study(direction=_direction(spec), sampler=_sampler(spec, past, startup))
        for run in reported:
            study.add_trial(_trial(spec, run))
    return study


def _sampler(spec: SweepSpec, past: RunHistory, startup: int) -> optuna.samplers.TPESampler:
    seed = int(np.random.default_rng([spec.seed % 2**64, past.trials]).integers(2**32))
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, multivariate=True, constant_liar=True)


def _trial(spec: SweepSpec, run: TriedRun) -> FrozenTrial:
    params = _encoded(spec, run.params)
    return create_trial(state=_state(run), value=run.value, params=params, distributions=distributions(spec))


def _state(run: TriedRun) -> TrialState:
    if not run.over:
        return TrialState.RUNNING
    return TrialState.FAIL if run.value is None else TrialState.COMPLETE


def _ask(study: optuna.Study, spec: SweepSpec, count: int) -> list[Params]:
    with warnings.catch_warnings(action="ignore"):
        return [_decoded(spec, study.ask(distributions(spec)).params) for _ in range(count)]


def _direction(spec: SweepSpec) -> StudyDirection:
    return StudyDirection.MAXIMIZE if spec.mode == "max" else StudyDirection.MINIMIZE


def _encoded(spec: SweepSpec, params: Params) -> Params:
    return {name: _place(dimension, params[name]) for name, dimension in sorted(spec.space.items())}


def _place(dimension: Dimension, value: Param) -> Param:
    if not isinstance(dimension, Choice):
        return value
    same = (i for i, one in enumerate(dimension.values) if type(one) is type(value) and one == value)
    return next(same, dimension.values.index(value))


def _decoded(spec: SweepSpec, params: dict[str, Param]) -> Params:
    return {name: _value(dimension, params[name]) for name, dimension in sorted(spec.space.items())}


def _value(dimension: Dimension, drawn: Param) -> Param:
    match dimension:
        case Choice():
            return dimension.values[int(drawn)]
        case Integers():
            return int(drawn)
        case Uniform():
            return float(drawn)
        case _:
            assert_never(dimension)


optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study is made for each sweep: no news


class PruningJudge:
    """
    The judge of a sweep's runs: it decides which of them are the last of their trials.

    Parameters
    ----------
    spec : SweepSpec
    pruner : optuna.pruners.BasePruner
    top : int
        The highest rung: trials with a value there are complete, and the others are measured against them.

    Notes
    -----
    O(1) studies for a sweep; a verdict costs what the pruner does with the complete trials, O(n) with n trials.
    """

    def __init__(self, spec: SweepSpec, pruner: optuna.pruners.BasePruner, top: int) -> None:
        self._top = top
        self._heard = 0
        self._trials: dict[int, optuna.Trial] = {}
        self._stopped: set[int] = set()
        self._over: set[int] = set()
        with warnings.catch_warnings(action="ignore"):
            direction = optuna.study.StudyDirection.MAXIMIZE if spec.mode == "max" else None
            sampler = optuna.samplers.RandomSampler(seed=0)  # it is asked for no point
            self._study = optuna.create_study(direction=direction, sampler=sampler, pruner=pruner)

    def stops(self, past: RunHistory, number: int) -> bool:
        """Say whether a trial is stopped after one of its runs, given what had ended by then."""
        if self._heard < past.ended:
            new = [(run.ended, i) for i, run in enumerate(past.runs) if run.ended > self._heard]
            with warnings.catch_warnings(action="ignore"):
                for ended, i in sorted(new):
                    self._hear(i, past.runs[i])
                    self._heard = ended
        return number in self._stopped

    def _hear(self, number: int, run: TriedRun) -> None:
        if run.trial in self._over:  # another version let it go on; Optuna hears nothing more of such a trial
            return
        trial = self._trials.get(run.trial) or self._trials.setdefault(run.trial, self._study.ask())
        if run.value is None:
            self._tell(run, trial, TrialState.FAIL)
            return
        trial.report(run.value, run.budget)
        if run.rung >= self._top:
            self._tell(run, trial)
        elif trial.should_prune():
            self._stopped.add(number)
            self._tell(run, trial, TrialState.PRUNED)

    def _tell(self, run: TriedRun, trial: optuna.Trial, state: TrialState | None = None) -> None:
        self._over.add(run.trial)
        self._study.tell(trial, run.value if state is None else None, state=state)
