"""The metrics of a job as series, for who draws or exports them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

from penstock_log.spec import Param
from penstock_log.views.answers import View

STEP, TIME_S, RUN = "step", "time_s", "run"
TRIAL, JOB = "trial", "job"


class SeriesView(View, frozen=True, kw_only=True):
    """
    What the runs of a job reported of its metrics: a row for each stretch of reports, by rising steps.

    Where a run went on from an earlier step than the one before had reached, the rows beyond it are left out.

    Attributes
    ----------
    steps, times_s, runs : tuple
        Of each row: the last step of its stretch, when it was reported, in seconds since the epoch, and the epoch of
        its run.
    samples : tuple of int
        Samples that were done by then; 0 where the script counts none.
    metrics : dict of str to tuple
        The values of each metric, one a row: None where it was not reported yet, or was no finite number. A metric
        that is reported seldom keeps its value until it is reported again.
    diverged : dict of str to tuple of int
        Of each metric that was no finite number: the rows, from 0.
    superseded : int
        Rows that were left out, because a later run did their steps anew.
    left_out : int
        Metrics of which no series is kept: a run has 32, those that it reports first.
    """

    id: str
    name: str
    state: str
    steps: tuple[int, ...] = ()
    times_s: tuple[float, ...] = ()
    runs: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    metrics: dict[str, tuple[Optional[float], ...]] = {}
    diverged: dict[str, tuple[int, ...]] = {}
    superseded: int = 0
    left_out: int = 0
    seq: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether anything is kept of it."""
        return bool(self.steps)

    def values(self, name: str) -> list[Optional[float]]:
        """Return the values of a metric, one a row: None where there is none yet, NaN where it was no finite number."""
        found = list(self.metrics[name])
        for row in self.diverged.get(name, ()):
            found[row] = math.nan
        return found

    def columns(self) -> dict[str, list[object]]:
        """
        Return all as columns by name, of equal length, for ``pandas.DataFrame`` and the like.

        They are ``step``, ``time_s``, ``run``, and the metrics; a metric of such a name gets a ``_`` behind it.

        Examples
        --------
        >>> view = SeriesView(
        ...     id="j1", name="mnist", state="running", steps=(1, 2), times_s=(5.0, 6.0), runs=(1, 1),
        ...     metrics={"loss": (2.5, None), "run": (0.0, 0.5)}, diverged={"loss": (1,)},
        ... )
        >>> view.columns()
        {'step': [1, 2], 'time_s': [5.0, 6.0], 'run': [1, 1], 'loss': [2.5, nan], 'run_': [0.0, 0.5]}
        """
        found: dict[str, list[object]] = {STEP: [*self.steps], TIME_S: [*self.times_s], RUN: [*self.runs]}
        for name in self.metrics:
            found[free_name(name, found)] = [*self.values(name)]
        return found


class TrialSeries(View, frozen=True, kw_only=True):
    """
    One run of a trial and its series.

    Attributes
    ----------
    trial : int
        The trial's number: the same in all rungs.
    """

    trial: int
    params: dict[str, Param]
    series: SeriesView


class SweepSeriesView(View, frozen=True, kw_only=True):
    """
    What the trials of a sweep reported.

    Attributes
    ----------
    trials : tuple of TrialSeries
        In the order of the sweep; those that were never submitted are left out.
    """

    id: str
    name: str
    trials: tuple[TrialSeries, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether anything is kept of any trial."""
        return any(one.series.has_rows for one in self.trials)

    @property
    def left_out(self) -> int:
        """Metrics of which no series is kept, of the trial that has most of them."""
        return max((one.series.left_out for one in self.trials), default=0)

    def columns(self) -> dict[str, list[object]]:
        """
        Return all trials as columns of one table, for ``pandas.DataFrame`` and the like.

        They are ``trial``, ``job``, ``step``, ``time_s``, ``run``, and the metrics: None where a trial has none.
        """
        metrics = {name: None for one in self.trials for name in one.series.metrics}
        found: dict[str, list[object]] = {name: [] for name in (TRIAL, JOB, STEP, TIME_S, RUN)}
        taken = {name: free_name(name, found) for name in metrics}
        found.update({name: [] for name in taken.values()})
        for one in self.trials:
            series, rows = one.series, len(one.series.steps)
            own: tuple[Sequence[object], ...] = (
                [one.trial] * rows,
                [series.id] * rows,
                series.steps,
                series.times_s,
                series.runs,
            )
            for name, values in zip((TRIAL, JOB, STEP, TIME_S, RUN), own):
                found[name] += values
            for name, column in taken.items():
                found[column] += series.values(name) if name in series.metrics else [None] * rows
        return found


def free_name(name: str, taken: dict[str, list[object]]) -> str:
    """Return a name, with a ``_`` behind it for each column that has it already."""
    while name in taken:
        name += "_"
    return name
