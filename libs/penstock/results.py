"""
Results of a sweep's trials: as a stream, as a study that Optuna can plot, and as pictures.

:func:`results` yields each run when it is over. :func:`study` makes an Optuna study of a sweep. :func:`draw` draws a
sweep by Optuna and tidies the pictures up: its history, its points, and its values at each budget.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock_bus import LogReader
from penstock_bus.compat import assert_never
from penstock_log import (
    Choice,
    Dimension,
    Integers,
    SweepFinished,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    Uniform,
    subjects,
    views,
)

if TYPE_CHECKING:
    import optuna


class SubmittedSweep:
    """
    A sweep that is being submitted: awaited, it gives the gateway's answer; iterated over, its results as they come.

    It is submitted once, however often it is awaited.
    """

    def __init__(
        self,
        submitting: Coroutine[Any, Any, views.SubmitAnswer],
        results: Callable[[str], AsyncIterator[views.TrialView]],
    ) -> None:
        self._submitting, self._results = submitting, results
        self._answer: views.SubmitAnswer | None = None

    def __await__(self) -> Generator[Any, Any, views.SubmitAnswer]:
        if self._answer is None:
            self._answer = yield from self._submitting.__await__()
        return self._answer

    async def __aiter__(self) -> AsyncIterator[views.TrialView]:
        answer = await self
        async for result in self._results(answer.id):
            yield result


async def results(bus: LogReader, sweep_id: str) -> AsyncIterator[views.TrialView]:
    """Yield each run of a sweep's trials when it is over, from the sweep's beginning to its end."""
    opened: dict[str, tuple[int, Trial]] = {}
    async for delivery in bus.follow(subjects=[subjects.sweep(sweep_id)]):
        for fact in delivery.commit.facts:
            if isinstance(fact, TrialGroupOpened):
                opened.update({trial.job_id: (fact.group, trial) for trial in fact.trials})
            elif isinstance(fact, TrialRetried) and fact.job_id in opened:
                opened[fact.trial.job_id] = (opened[fact.job_id][0], fact.trial)
            elif isinstance(fact, TrialFinished) and fact.job_id in opened:
                yield _view(*opened[fact.job_id], fact)
            elif isinstance(fact, SweepFinished):
                return


def study(
    sweep: views.SweepView, *, stopped: Literal["pruned", "complete"] = "pruned", storage: Any = None
) -> optuna.Study:
    """
    Return an Optuna study of a sweep's trials, each with its last value and those on the way there.

    The study draws no points. Trials that ended without a value, or were cancelled, have failed in it; what they
    reported on the way is no result.

    Parameters
    ----------
    stopped : {"pruned", "complete"}
        The state in Optuna of trials that were stopped below the largest budget. Its ``best_trial`` and its samplers do
        not compare pruned trials with the others; its pictures leave them out.
    storage : str or optuna.storages.BaseStorage, optional
        Where the study is kept, under the sweep's name and id; in memory, where it is left out.

    Raises
    ------
    ImportError
        If Optuna is not installed: ``pip install 'penstock[optuna]'``.
    optuna.exceptions.DuplicatedStudyError
        If the storage has it already.
    """
    import optuna  # noqa: PLC0415 - an extra, and half a second

    made = optuna.create_study(
        study_name=f"{sweep.name}-{sweep.id}",
        direction="maximize" if sweep.mode == "max" else "minimize",
        storage=storage,
    )
    space = {name: _distribution(dimension) for name, dimension in sweep.spec.space.items()}
    below = max((run.budget for run in sweep.trials if _gave(run)), default=0) if stopped == "pruned" else 0
    made.add_trials(_trials(sweep, space, below))
    return made


def _trials(sweep: views.SweepView, space: dict[str, Any], below: int) -> Iterator[optuna.trial.FrozenTrial]:
    from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - an extra

    runs_of: dict[int, list[views.TrialView]] = {}
    for run in sweep.trials:
        runs_of.setdefault(run.number, []).append(run)
    for runs in runs_of.values():
        last = runs[-1]
        if _gave(last):
            state = TrialState.PRUNED if last.budget < below else TrialState.COMPLETE
        else:
            over = last.state in {"CD", "F", "CA"} or last.problem
            state = TrialState.FAIL if over else TrialState.RUNNING
        yield create_trial(
            state=state,
            value=last.value if _gave(last) else None,
            params={name: runs[0].params[name] for name in space},
            distributions=space,
            intermediate_values={run.budget: run.value for run in runs if run.value is not None and _gave(run)},
            user_attrs={"job_ids": [run.job_id for run in runs], "gpus": [run.gpus for run in runs]},
        )


def _gave(run: views.TrialView) -> bool:
    """Return whether a run gave a value to the search."""
    return run.value is not None and run.state == "CD"


def _view(group: int, trial: Trial, end: TrialFinished) -> views.TrialView:
    state = {"completed": "CD", "failed": "F", "cancelled": "CA"}[end.state]
    return views.TrialView.of(trial, group=group, state=state, value=end.value, problem=end.problem)


def _distribution(dimension: Dimension) -> Any:  # noqa: RET503 - the last call does not return
    from optuna.distributions import (  # noqa: PLC0415 - an extra
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(dimension, Choice):
        return CategoricalDistribution(dimension.values)
    if isinstance(dimension, Integers):
        return IntDistribution(dimension.low, dimension.high)
    if isinstance(dimension, Uniform):
        return FloatDistribution(dimension.low, dimension.high, log=dimension.log)
    assert_never(dimension)


Format = Literal["png", "svg"]
Plot = Callable[["optuna.Study", "views.SweepView"], Any]
INK: Final = "#2b3a4a"
FAINT: Final = "#dfe5ea"
REST: Final = "#9fb1c1"
BEST: Final = "#c2410c"
_FIGURE: Final[Any] = {"figure.figsize": (8.0, 4.8), "figure.constrained_layout.use": True}


def draw(sweep: views.SweepView, folder: Path, format_: Format = "png") -> list[Path]:
    """
    Write ``history``, ``parallel`` and, of a search that stops early, ``budgets``; return their paths.

    Raises
    ------
    ImportError
        If Optuna or matplotlib is not installed: ``pip install 'penstock[optuna,plot]'``.
    ValueError
        If no trial has given a value yet.
    """
    plots: dict[str, Plot] = {"history": _history, "parallel": _parallel}
    if sweep.rungs:
        plots["budgets"] = _budgets
    written = []
    with _quietly():
        shown = study(sweep, stopped="complete")
        if not any(trial.value is not None for trial in shown.trials):
            raise ValueError(f"no trial of sweep {sweep.id} has given a value yet: there is nothing to draw")
        folder.mkdir(parents=True, exist_ok=True)
        for name, plot in plots.items():
            written.append(folder / f"{name}.{format_}")
            with _drawing():
                plot(shown, sweep).figure.savefig(written[-1], dpi=144, facecolor="white")
    return written


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence Optuna's log, and its warning that its pictures may change."""
    import warnings  # noqa: PLC0415 - beside what it is about

    import optuna  # noqa: PLC0415 - an extra, and half a second

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw one picture without a window, and leave neither it nor a style behind."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and half a second
    import matplotlib.pyplot as plt  # noqa: PLC0415

    backend = mpl.get_backend()
    plt.switch_backend("agg")
    try:
        with plt.rc_context(_FIGURE):
            yield
    finally:
        plt.close("all")
        plt.switch_backend(backend)


def _history(shown: optuna.Study, sweep: views.SweepView) -> Any:
    """Show each trial's last value, and the best up to it."""
    from optuna.visualization.matplotlib import plot_optimization_history  # noqa: PLC0415 - an extra

    axes = plot_optimization_history(shown, target_name=sweep.metric)
    _tidy(axes, f"{sweep.name}: each trial's last value")
    axes.collections[0].set(facecolor=REST, edgecolor="none")
    axes.lines[0].set(color=BEST, drawstyle="steps-post", alpha=1.0, label="best up to this trial")
    axes.set(xlabel="trial, in the order in which they were begun", ylabel=sweep.metric)
    axes.legend([axes.lines[0]], ["best up to this trial"], frameon=False, loc="best")
    return axes


def _parallel(shown: optuna.Study, sweep: views.SweepView) -> Any:
    """Show each trial as a line through its hyper-parameters, the better the darker and the further in front."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra
    import numpy as np  # noqa: PLC0415 - it comes with the extra
    from matplotlib.collections import LineCollection  # noqa: PLC0415
    from matplotlib.colors import ListedColormap  # noqa: PLC0415
    from optuna.visualization.matplotlib import plot_parallel_coordinate  # noqa: PLC0415

    axes = plot_parallel_coordinate(shown, target_name=sweep.metric)
    visible = mpl.colormaps["Blues"](np.linspace(0.25, 1.0, 256))
    colours = ListedColormap(visible if sweep.mode == "max" else visible[::-1])
    lines = next(found for found in axes.collections if isinstance(found, LineCollection))
    values = np.asarray(lines.get_array())
    order = np.argsort(values if sweep.mode == "max" else -values, kind="stable")
    segments = lines.get_segments()
    lines.set_segments([segments[i] for i in order])
    lines.set(array=values[order], cmap=colours)
    _title(axes, f"{sweep.name}: the points, and what they gave")
    for label in axes.get_xticklabels():
        label.set(rotation=0, ha="center")
    figure = axes.get_figure(root=True)
    for beside in figure.axes if figure is not None else ():
        for label in beside.get_yticklabels(which="both"):
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5})
    if figure is not None:
        figure.set_size_inches(max(8.0, 1.7 * (len(sweep.spec.space) + 2)), 4.8)
    return axes


def _budgets(shown: optuna.Study, sweep: views.SweepView) -> Any:
    """Show how each trial's value went from budget to budget, and the best one in front."""
    from optuna.visualization.matplotlib import plot_intermediate_values  # noqa: PLC0415 - an extra

    axes = plot_intermediate_values(shown)
    _tidy(axes, f"{sweep.name}: values at each budget")
    if (legend := axes.get_legend()) is not None:
        legend.remove()
    best = next(trial.number for trial in sweep.trials if trial.job_id == sweep.best_job_id)
    for line in axes.lines:
        front = line.get_label() == f"Trial{best}"
        line.set(color=BEST if front else REST, alpha=1.0 if front else 0.8, zorder=3 if front else 2, marker="o", ms=4)
    budgets = sorted({rung.budget for rung in sweep.rungs})
    axes.set_xscale("log")
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.minorticks_off()
    label = sweep.spec.budget.param if sweep.spec.budget is not None else "budget"
    axes.set(xlabel=f"{label}; in front the best, trial {best}", ylabel=sweep.metric)
    return axes


def _tidy(axes: Any, title: str) -> None:
    """Take the grey ground and the wide legend away."""
    axes.set_facecolor("white")
    axes.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    _title(axes, title)
    for side in ("left", "bottom"):
        axes.spines[side].set(visible=True, color=REST)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def _title(axes: Any, title: str) -> None:
    axes.set_title("")
    axes.set_title(title, loc="left", fontsize=11, color=INK)
