"""Pictures of a sweep, drawn by Optuna and tidied up: its history, its points, and its values at each budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.results import study

if TYPE_CHECKING:
    import optuna

    from penstock_events import views

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
    """Say nothing of studies that are made, nor that Optuna's pictures may change."""
    import warnings  # noqa: PLC0415 - beside what it is about

    import optuna  # noqa: PLC0415 - an extra, and half a second

    said = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            yield
    finally:
        optuna.logging.set_verbosity(said)


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
