"""
Optuna's pruners, told what became of a sweep's runs in the order in which it did.

Each run is told once and judged once, when it ends: a judge that is kept between questions is told only what is new. It
is worked out again from the log where it was not kept, to the same verdicts (ADR 9).
"""

from __future__ import annotations

import warnings

import optuna
from optuna.trial import TrialState

from penstock_events.spec import SweepSpec
from penstock_policies.search.past import Past, Tried

optuna.logging.set_verbosity(optuna.logging.WARNING)  # a study is made for each sweep: no news


class Judge:
    """
    Says which runs of a sweep are the last of their trials.

    Parameters
    ----------
    spec : SweepSpec
    pruner : optuna.pruners.BasePruner
    top : int
        The highest rung: whoever has a value there is complete, and the others are measured against those.

    Notes
    -----
    O(1) studies for a sweep; a verdict costs what the pruner makes of those complete, O(n) with n trials.
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

    def stops(self, past: Past, number: int) -> bool:
        """Say whether a trial is stopped after one of its runs, given what had ended by then."""
        if self._heard < past.ended:
            new = [(run.ended, i) for i, run in enumerate(past.runs) if run.ended > self._heard]
            with warnings.catch_warnings(action="ignore"):
                for ended, i in sorted(new):
                    self._hear(i, past.runs[i])
                    self._heard = ended
        return number in self._stopped

    def _hear(self, number: int, run: Tried) -> None:
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

    def _tell(self, run: Tried, trial: optuna.Trial, state: TrialState | None = None) -> None:
        self._over.add(run.trial)
        self._study.tell(trial, run.value if state is None else None, state=state)
