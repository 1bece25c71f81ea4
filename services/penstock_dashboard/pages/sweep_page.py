"""The pages of sweeps: all of them; and one, with its curves, rungs, devices, and where its device time went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock_dashboard import charts
from penstock_dashboard.charts import Chart, ChartLine, ChartPoint, Mark
from penstock_dashboard.kept_series import Points, joined
from penstock_dashboard.page import STATES, TEMPLATES, PageContent, PageRequest, gpu_hours, pieces
from penstock_log import request_bodies
from penstock_log.job_state import TERMINAL, JobState
from penstock_log.text import count, duration, listed, pairs
from penstock_log.views import GoodputView, SweepsView, SweepView, TrialView

Field = tuple[str, Any]
MOST_CURVES: Final = 50
_MOST_BEST: Final = 35
"""Of the curves, those of the best; the others are of trials that run."""
_CURVE_POINTS: Final = 48
_SHOWN: Final = 500
_LISTED: Final = 100
_STATES: Final = ("running", "cancelling", "completed", "failed", "cancelled")
_CURVES: Final = "curves"
_BY_TRIAL: Final = "by trial"
_OVER: Final = frozenset(map(str, TERMINAL))
_SORTS: Final = (("value", "best first"), ("number", "by number"), ("state", "open first"))
_WHERE: Final = (
    ("useful_gpu_s", "training that went on", "useful"),
    ("stopped_gpu_s", "training that was stopped", "stopped"),
    ("overhead_gpu_s", "starting, saving and leaving", "overhead"),
    ("rescale_gpu_s", "moving and starting again", "rescale"),
    ("profile_gpu_s", "profiling", "profile"),
    ("failed_gpu_s", "thrown away by failures", "wasted"),
    ("running_gpu_s", "runs on their way", "runs"),
)
"""What became of device time: its field, what people call it, its class."""


async def sweeps_page(visit: PageRequest) -> PageContent:
    """Show the sweeps that match and that the visitor may see: the open ones, and then the others, newest first."""
    state = visit.query.get("state", "")
    own = {"at": visit.moment, "limit": _LISTED, "state": (state,) if state else ()}
    asked = visit.asked(request_bodies.SweepsRequest, **own)
    view = await visit.gateway.query(visit.visitor, "sweeps", asked, SweepsView)
    rows = [(sweep.id, {"sweep": sweep, "at": visit.at, **_progress(sweep)}) for sweep in reversed(view.sweeps)]
    none = {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=9, text="No sweep that you may see.")}
    return PageContent(
        title="Sweeps",
        template="sweeps.html",
        regions={
            "rows": pieces("pieces/sweep_row.html", rows) or none,
            "pager": visit.pager(asked.offset, _LISTED, len(rows), view.total),
        },
        values={"asked": asked, "state": state, "states": [("", "all"), *((one, one) for one in _STATES)]},
    )


def _progress(sweep: SweepView) -> dict[str, Any]:
    of = f" of {sweep.wanted}" if sweep.wanted else ""
    return {
        "done": f"{sweep.done}{of}",
        "best": charts.figure(sweep.best_value),
        "left": f"about {duration(sweep.eta_s)}" if sweep.eta_s is not None else "-",
    }


async def sweep_page(visit: PageRequest) -> PageContent:
    """Show one sweep."""
    asked = request_bodies.OneRequest(id=visit.params["id"], at=visit.moment)
    sweep = await visit.gateway.query(visit.visitor, "sweep", asked, SweepView)
    sort = visit.query.get("sort", "value")
    lines = [*await _curves(sweep, visit), *_by_trial(sweep)]
    acts = visit.visitor.signed_in and not visit.at and sweep.state == "running"
    return PageContent(
        title=f"Sweep {sweep.id} · {sweep.name}",
        template="sweep.html",
        regions={
            "head": _fields(_head(sweep, visit)),
            "actions": _actions(sweep) if acts else {},
            "charts": charts.chart_cards(_charts(lines, sweep), sweep.submitted_s),
            "points": charts.point_rows(lines, sweep.submitted_s),
            "level": _level(sweep),
            "time": _time(sweep.goodput),
            "time list": _time_list(sweep.goodput),
            "rungs": _rungs(sweep),
            "trials": _trials(sweep, sort, visit.at),
        },
        values={
            "sweep": sweep,
            "space": list(sweep.spec.space),
            "sort": sort if sort in dict(_SORTS) else "value",
            "sorts": [(name, text, visit.address(sort=name)) for name, text in _SORTS],
            "left": max(0, len(sweep.trials) - _SHOWN),
            "has_rungs": bool(sweep.rungs),
            "settings": _settings(sweep),
            "may_act": visit.visitor.signed_in and not visit.at,
        },
        now_s=sweep.submitted_s + sweep.makespan_s if visit.at else 0.0,
    )


def _fields(fields: Iterator[Field]) -> dict[str, str]:
    return pieces("pieces/field.html", [(name, {"value": value}) for name, value in fields if value not in ("", None)])


def _head(sweep: SweepView, visit: PageRequest) -> Iterator[Field]:
    yield "state", ("since", sweep.state, sweep.submitted_s) if sweep.finished_s is None else sweep.state
    yield "best so far", ("best", sweep, charts.figure(sweep.best_value), visit.at) if sweep.best_job_id else "none yet"
    yield "runs over", _progress(sweep)["done"]
    yield "trials opened", str(sweep.opened)
    if sweep.finished_s is None:
        yield "time left", _progress(sweep)["left"] if sweep.eta_s is not None else "not known yet"
    yield "user", sweep.spec.job.user or "nobody"
    yield "pool", sweep.spec.job.pool
    yield "submitted", ("moment", sweep.submitted_s)
    yield "finished", ("moment", sweep.finished_s) if sweep.finished_s else ""
    yield "took", duration(sweep.makespan_s) if sweep.finished_s is not None else ""
    if sweep.spec.target is not None:
        reached = f"after {duration(sweep.target_s)}" if sweep.target_s is not None else "not reached yet"
        yield f"{sweep.metric} of {charts.figure(sweep.spec.target)}", reached
    yield (
        "devices in use",
        f"{sweep.utilisation:.0%} of those that it could have used" if sweep.utilisation is not None else "",
    )
    yield "failed", ("failed", sweep, visit.at) if sweep.failed else ""
    yield "reason", sweep.reason


def _settings(sweep: SweepView) -> list[Field]:
    spec = sweep.spec
    budget = spec.budget
    shown = [
        ("search", spec.search),
        ("sampler", spec.sampler),
        ("pruner", spec.pruner),
        ("metric", f"{spec.metric}, {'the higher the better' if spec.mode == 'max' else 'the lower the better'}"),
        ("budget", f"{budget.least} to {budget.most} {budget.param}, one in {budget.eta} goes on" if budget else ""),
        ("devices", f"by {_FILLINGS[spec.filling]}, {spec.max_gpus} for one trial at most"),
        ("command", " ".join(spec.job.command)),
        ("its other parameters", pairs(spec.job.params) if spec.job.params else ""),
    ]
    return [(name, value) for name, value in shown if value]


_FILLINGS: Final = {"water": "water-filling", "one": "one each", "fixed": "equal parts"}


def _actions(sweep: SweepView) -> dict[str, str]:
    ask = f"sweep {sweep.id} and all of its trials"
    return {
        "cancel": TEMPLATES.render(
            "pieces/verb.html", key="cancel", verb="cancel_sweep", text="Cancel the sweep", ask=ask
        )
    }


def _sign(sweep: SweepView) -> float:
    return 1.0 if sweep.mode == "max" else -1.0


def _goodness(sweep: SweepView, trial: TrialView) -> tuple[bool, int, float]:
    """Return the key by which the best of trials is the largest."""
    return trial.value is not None, trial.budget, _sign(sweep) * (trial.value or 0.0)


def _label(trial: TrialView) -> str:
    return str(trial.number) if trial.budget else trial.job_id


async def _curves(sweep: SweepView, visit: PageRequest) -> list[ChartLine]:
    """Return the learning curves of the best trials and of those that run, each over all of its rungs."""
    runs: dict[str, list[TrialView]] = {}
    for trial in sweep.trials:
        runs.setdefault(_label(trial), []).append(trial)
    ranked = sorted(runs, key=lambda label: max(_goodness(sweep, trial) for trial in runs[label]), reverse=True)
    running = [label for label in ranked if any(trial.state == JobState.RUNNING for trial in runs[label])]
    best = next((_label(trial) for trial in sweep.trials if trial.job_id == sweep.best_job_id), "")
    chosen = list(dict.fromkeys([*ranked[:_MOST_BEST], *running, *ranked]))[:MOST_CURVES]
    lines = []
    for label in chosen:
        points = await _curve(sweep, runs[label], visit)
        if points:
            mark: Mark = "best" if label == best else "running" if label in running else ""
            lines.append(ChartLine(chart=_CURVES, name=label, points=points, mark=mark))
    return lines


async def _curve(sweep: SweepView, runs: Sequence[TrialView], visit: PageRequest) -> list[ChartPoint]:
    found: list[ChartPoint] = []
    for trial in sorted(runs, key=lambda trial: trial.budget):
        live = visit.jobs.series.of_job(trial.job_id) if not visit.at else None
        kept: Points = {}
        if trial.state:
            is_over = trial.state in _OVER
            kept = await visit.jobs.kept.of_job(visit.visitor, trial.job_id, visit.at, is_over=is_over)
        if points := joined(kept, live).get(sweep.metric):
            found += [ChartPoint(*point) for point in points]
        elif trial.value is not None and trial.budget:
            found.append(ChartPoint(trial.budget, sweep.submitted_s, trial.value))
    return charts.thinned(sorted(found), _CURVE_POINTS)


def _by_trial(sweep: SweepView) -> Iterator[ChartLine]:
    """Yield the value of each trial with the largest budget so far, and the best up to each."""
    most = max((trial.budget for trial in sweep.trials if trial.value is not None), default=0)
    valued = [
        (trial.number or number, trial.value) for number, trial in enumerate(sweep.trials) if trial.budget == most
    ]
    points = [ChartPoint(number, sweep.submitted_s, value) for number, value in sorted(valued) if value is not None]
    if len(points) < 2:
        return
    bests, best = [], points[0].value or 0.0
    for point in points:
        best = max(best, point.value or 0.0, key=lambda value: _sign(sweep) * value)
        bests.append(point._replace(value=best))
    yield ChartLine(chart=_BY_TRIAL, name="value", points=charts.thinned(points, _SHOWN), mark="running")
    yield ChartLine(chart=_BY_TRIAL, name="best so far", points=charts.thinned(bests, _SHOWN), mark="best")


def _charts(lines: Sequence[ChartLine], sweep: SweepView) -> Iterator[Chart]:
    there = {line.chart for line in lines}
    if _CURVES in there:
        title = f"{sweep.metric} by step, of the best trials and those that run"
        yield Chart(name=_CURVES, title=title, x="step")
    if _BY_TRIAL in there:
        yield Chart(name=_BY_TRIAL, title=f"{sweep.metric} by number of the trial, and the best so far", x="step")


def _level(sweep: SweepView) -> dict[str, str]:
    """Return how the present group's trials fill the devices: a column for each."""
    opened = [trial for trial in sweep.trials if trial.state not in _OVER]
    if not opened:
        text = "No trial is open." if sweep.trials else "No trial was opened yet."
        return {"none": TEMPLATES.render("pieces/note.html", key="none", text=text)}
    shown = opened[:_SHOWN]
    heights = [
        (
            "runs" if trial.state == JobState.RUNNING else "waits",
            trial.gpus / trial.packed,
            f"trial {_label(trial)}: {_devices(trial)}, {STATES_TEXT.get(trial.state, trial.state or 'not submitted')}",
        )
        for trial in shown
    ]
    running = [trial for trial in opened if trial.state == JobState.RUNNING]
    held = sum(trial.gpus / trial.packed for trial in running)
    level = held / len(running) if running else 0.0
    text = (
        f"{count(len(opened), 'open trial')} of group {max(trial.group for trial in opened)} and before; "
        f"{len(running)} run on about {held:.3g} devices, {level:.2g} each"
    )
    most = max(1.0, *(height for _, height, _ in heights))
    return {
        "text": TEMPLATES.render("pieces/note.html", key="text", text=text),
        "columns": charts.columns("columns", heights, text, most),
    }


STATES_TEXT: Final = {str(state): text for state, text in STATES.items()}


def _devices(trial: TrialView) -> str:
    return f"a device shared by {trial.packed} at most" if trial.packed > 1 else count(trial.gpus, "device")


def _time(goodput: GoodputView | None) -> dict[str, str]:
    parts = charts.shares(_amounts(goodput), gpu_hours)
    return {"bar": charts.bar("bar", parts, "; ".join(part.words for part in parts))} if parts else {}


def _time_list(goodput: GoodputView | None) -> dict[str, str]:
    parts = charts.shares(_amounts(goodput), gpu_hours)
    none = {"none": TEMPLATES.render("pieces/time_part.html", key="none", kind="", words="No device was held yet.")}
    return {
        part.name: TEMPLATES.render("pieces/time_part.html", key=part.name, kind=part.kind, words=part.words)
        for part in parts
    } or none


def _amounts(goodput: GoodputView | None) -> Iterator[tuple[str, str, float]]:
    if goodput is not None:
        for field, name, kind in _WHERE:
            yield name, kind, getattr(goodput, field)


def _rungs(sweep: SweepView) -> dict[str, str]:
    rows = [
        (f"{rung.bracket} {rung.rung}", {"rung": rung, "best": charts.figure(rung.best_value)}) for rung in sweep.rungs
    ]
    return pieces("pieces/rung_row.html", rows)


def _trials(sweep: SweepView, sort: str, at: str) -> dict[str, str]:
    trials = list(sweep.trials)
    if sort == "number":
        trials.sort(key=lambda trial: (trial.number, trial.bracket, trial.rung))
    elif sort == "state":
        trials.sort(key=lambda trial: (trial.state in _OVER, trial.state, trial.number))
    else:
        trials.sort(key=lambda trial: _goodness(sweep, trial), reverse=True)
    rows = [
        (
            trial.job_id,
            {
                "trial": trial,
                "value": charts.figure(trial.value),
                "devices": _devices(trial),
                "params": [_param(trial.params.get(name)) for name in sweep.spec.space],
                "is_best": trial.job_id == sweep.best_job_id,
                "note": _note(sweep, trial),
                "at": at,
            },
        )
        for trial in trials[:_SHOWN]
    ]
    columns = 7 + len(sweep.spec.space)
    none = {
        "none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=columns, text="No trial was opened yet.")
    }
    return pieces("pieces/trial_row.html", rows) or none


def _note(sweep: SweepView, trial: TrialView) -> str:
    problem = f"{trial.problem.replace('_', ' ')}: {trial.reason}" if trial.reason else trial.problem.replace("_", " ")
    best = "the best" if trial.job_id == sweep.best_job_id else ""
    return listed(filter(None, [best, "went on" if trial.promoted else "", problem]), nothing="")


def _param(value: Any) -> str:
    return charts.figure(value) if isinstance(value, float) else "-" if value is None else str(value)
