"""
Simulation of a sweep over recorded learning curves, in virtual time.

A simulation shows what each way of filling devices makes of the same sweep. The search opens runs, a
:class:`FillingMethod` gives them devices, and :class:`LearningCurves` say what each run reaches and how long its
training takes. The searches are those of :mod:`penstock_policies.search` and the widths those of
:mod:`penstock_policies.waterfill`, as the tuner uses them. The methods are water-filling with its mechanisms and two
baselines. How long a trial takes on a width is the published model, with the penalties of :class:`TrialModel`.

Start at :func:`play`, which returns a :class:`SweepOutcome`; the curves, the model and the methods follow it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_log.spec import Choice, Param, SweepSpec, Uniform
from penstock_policies import search
from penstock_policies.search import RunHistory
from penstock_policies.search.runs import RunSpending, TrialUse, account
from penstock_policies.waterfill import IdleDevices, Mechanisms, fill, resized, run_time_s, widest
from penstock_simulator.engine.engine import EventEngine

__all__ = ["FILLINGS", "BadCurves", "FillingMethod", "LearningCurves", "SweepOutcome", "TrialModel", "play", "read"]


class SimulatedTrialRun(msgspec.Struct):
    """
    One run of a trial, from its opening to its end.

    Attributes
    ----------
    h1_s : float
        Seconds on one whole device that are left, as of ``since_s``; before ``since_s`` the run starts or is moved.
    guess_s : float
        The same as expected when the run was opened; it decides the run's width.
    spent : RunSpending
        What the run spent up to ``since_s``.
    starts : int
        How often the run was started: at first, and after each move.
    """

    number: int
    h1_s: float
    guess_s: float
    width: float = 0.0
    since_s: float = 0.0
    spent: RunSpending = msgspec.field(default_factory=RunSpending)
    starts: int = 0


def play(spec: SweepSpec, curves: LearningCurves, model: TrialModel, filling: FillingMethod) -> SweepOutcome:
    """
    Play a sweep to its end.

    Parameters
    ----------
    spec : SweepSpec
        A specification that :func:`penstock_policies.search.check` accepts.
    curves : LearningCurves
        A trial learns as the recorded curve whose point is nearest to its own.
    model : TrialModel
    filling : FillingMethod

    Notes
    -----
    A trial's speed before it runs is what the tuner would assume: the pace of the trial's own earlier rung, else the
    median of the paces seen, else the same pace for all.
    """
    return _Sweep(spec, curves, model, filling).play()


class _Sweep:
    def __init__(self, spec: SweepSpec, curves: LearningCurves, model: TrialModel, filling: FillingMethod) -> None:
        self.spec, self.curves, self.model, self.filling = spec, curves, model, filling
        self.past = RunHistory()
        self.curve_of: dict[int, int] = {}
        self.pace_s: dict[int, float] = {}  # trial → seconds for one unit, as seen
        self.devices = IdleDevices(model.gpus)
        self.waiting: list[SimulatedTrialRun] = []
        self.running: dict[int, SimulatedTrialRun] = {}
        self.engine = EventEngine()
        self.spent: dict[int, tuple[float, RunSpending]] = {}
        self.resizes = 0

    def play(self) -> SweepOutcome:
        self._open()
        self.engine.run(lambda: bool(self.running))
        return self._outcome()

    # --- opening
    def _open(self) -> None:
        while wanted := search.next_runs(self.spec, self.past, self.model.gpus):
            fresh: list[SimulatedTrialRun] = []
            for one in wanted:
                self.past.open(one)
                if one.trial not in self.curve_of:
                    self.curve_of[one.trial] = self.curves.nearest(self.spec, one.params)
                fresh.append(self._run(len(self.past.runs) - 1))
            self._fill(fresh)
            self.waiting += fresh
        if self.filling.refills and self.waiting and self.devices.idle:
            self._fill(self.waiting)
        self._start()

    def _fill(self, runs: list[SimulatedTrialRun]) -> None:
        """Give runs that wait their widths on the devices that are idle now."""
        widths = self.filling.widths(np.array([run.guess_s for run in runs]), self.devices.idle, self.model)
        for run, width in zip(runs, widths.tolist(), strict=True):
            run.width = width

    def _run(self, number: int) -> SimulatedTrialRun:
        run = self.past.runs[number]
        units = self._units(number)
        unit_s = float(self.curves.unit_s[self.curve_of[run.trial]])
        typical_s = float(np.median(list(self.pace_s.values()))) if self.pace_s else 1.0
        return SimulatedTrialRun(number, units * unit_s, units * self.pace_s.get(run.trial, typical_s))

    def _units(self, number: int) -> float:
        """Return what a run adds to what its trial was trained before."""
        run = self.past.runs[number]
        full = run.budget or float(self.curves.budgets[-1])
        return full - (self.past.runs[run.origin].budget if run.origin >= 0 else 0)

    def _start(self) -> None:
        if self.filling.longest_first:
            self.waiting.sort(key=lambda run: -self._takes_s(run.guess_s, run.width))
        left = []
        for run in self.waiting:
            if self.devices.take(run.width):
                self._go(run)
            else:
                left.append(run)
        self.waiting = left

    def _go(self, run: SimulatedTrialRun) -> None:
        """Let a run go on from now, after what starting it takes."""
        run.since_s = now_s = self.engine.now_s
        run.starts += 1
        self.running[run.number] = run
        end_s = now_s + self.model.overhead_s + self._takes_s(run.h1_s, run.width)
        self.engine.event_queue.at(end_s, self._end, run, run.starts)

    def _takes_s(self, h1_s: float, width: float) -> float:
        return run_time_s(h1_s, width, self.model.alpha, self.model.beta)

    # --- ending
    def _end(self, run: SimulatedTrialRun, start: int) -> None:
        """End a run, unless it was moved since this start; then open others, and move those that run."""
        if run.starts == start:
            self._finish(run)
            self._open()
            self._resize()

    def _finish(self, run: SimulatedTrialRun) -> None:
        self._advance(run)
        del self.running[run.number]
        self.devices.free(run.width)
        opened = self.past.runs[run.number]
        curve = self.curve_of[opened.trial]
        self.pace_s[opened.trial] = float(self.curves.unit_s[curve])
        value = self.curves.value(curve, opened.budget or float(self.curves.budgets[-1]))
        self.past.end(run.number, value)
        self.spent[run.number] = (self.engine.now_s, run.spent)

    def _advance(self, run: SimulatedTrialRun) -> None:
        """Bring a run up to now."""
        went_s = self.engine.now_s - run.since_s
        working_s = max(0.0, went_s - self.model.overhead_s)
        done = min(1.0, working_s / takes_s) if (takes_s := self._takes_s(run.h1_s, run.width)) else 1.0
        run.spent.add(went_s * run.width, min(working_s, takes_s) * run.width, again=run.starts > 1)
        run.h1_s *= 1.0 - done
        run.since_s = self.engine.now_s

    # --- moving
    def _resize(self) -> None:
        """Move running trials to other widths where devices are idle for which nobody waits."""
        runs = list(self.running.values())
        if self.waiting or not runs or not self.devices.idle:
            return
        left_s = np.array([self._left_s(run) for run in runs])
        widths = np.array([run.width for run in runs])
        after = self.filling.resized(left_s, widths, self.model)
        moved = [(run, float(width)) for run, width in zip(runs, after, strict=True) if width != run.width]
        for run, _ in moved:
            self._advance(run)
            self.devices.free(run.width)
        for run, width in moved:
            run.width = width
            if not self.devices.take(width):
                raise RuntimeError(
                    f"run {run.number} was moved to {width} devices, of which {self.devices.idle} are idle"
                )
            self._go(run)
        self.resizes += len(moved)

    def _left_s(self, run: SimulatedTrialRun) -> float:
        working_s = max(0.0, self.engine.now_s - run.since_s - self.model.overhead_s)
        takes_s = self._takes_s(run.h1_s, run.width)
        return max(1e-9, run.h1_s * (1.0 - working_s / takes_s)) if takes_s else 1e-9

    def _outcome(self) -> SweepOutcome:
        uses = [self._use(number) for number in range(len(self.past.runs))]
        found = account(uses, self.spec.mode, target=self.spec.target)
        best = self.past.runs[int(found.best)].value if found.best is not None else None
        there_gpu_s = self.model.gpus * self.engine.now_s
        shares = {name: getattr(found, f"{name}_gpu_s") / (found.allocated_gpu_s or 1.0) for name in PARTS}
        return SweepOutcome(
            makespan_s=self.engine.now_s,
            target_s=found.target_s,
            best=best,
            utilisation=found.allocated_gpu_s / there_gpu_s if there_gpu_s else 0.0,
            goodput=found.goodput,
            trials=self.past.trials,
            runs=len(self.past.runs),
            resizes=self.resizes,
            **shares,
        )

    def _use(self, number: int) -> TrialUse:
        run, (ended_s, spent) = self.past.runs[number], self.spent[number]
        return TrialUse(key=number, origin=run.origin, budget=run.budget, ended_s=ended_s, value=run.value, spent=spent)


Floats = npt.NDArray[np.float64]
UNIT: Final = "unit_s"


class BadCurves(ValueError):
    """A file of curves that cannot be used; the message says where it is wrong, what was expected and what to do."""


class LearningCurves(msgspec.Struct, frozen=True):
    """
    C curves over B budgets.

    Attributes
    ----------
    points : list of dict
        The hyper-parameters of each curve, as text.
    unit_s : (C,) float array, seconds
        Time of one unit of budget on one device.
    budgets : (B,) float array
        Ascending.
    values : (C, B) float array
        NaN where a trial had diverged.
    """

    points: list[dict[str, str]]
    unit_s: Floats
    budgets: Floats
    values: Floats

    def value(self, curve: int, budget: float) -> float | None:
        """Return what a curve has reached at a budget, between two records on the line between them."""
        found = float(np.interp(budget, self.budgets, self.values[curve]))
        return found if math.isfinite(found) else None

    def nearest(self, spec: SweepSpec, params: dict[str, Param]) -> int:
        """Return the curve whose point is nearest in the sweep's space; different choices have the distance 1."""
        away = np.zeros(len(self.points))
        for name in spec.space:
            away += self._distances(spec, name, params[name])
        return int(np.argmin(away))

    def _distances(self, spec: SweepSpec, name: str, value: Param) -> Floats:
        dimension, column = spec.space[name], [point[name] for point in self.points]
        if isinstance(dimension, Choice):
            return np.array([text != str(value) for text in column], dtype=np.float64)
        scale = np.log if isinstance(dimension, Uniform) and dimension.log else np.asarray
        span = scale(float(dimension.high)) - scale(float(dimension.low))
        where = (scale(np.array(column, dtype=np.float64)) - scale(float(value))) / span
        return np.asarray(where**2, dtype=np.float64)


def read(lines: Iterable[str], name: str, spec: SweepSpec) -> LearningCurves:
    """
    Read curves from CSV: a column for each hyper-parameter, ``unit_s``, and one for each budget.

    Raises
    ------
    BadCurves
        If a hyper-parameter of the sweep has no column, or a cell holds no number where one is expected.
    """
    rows = list(csv.DictReader(lines))
    columns = list(rows[0]) if rows else []
    if missing := [column for column in (*sorted(spec.space), UNIT) if column not in columns]:
        raise BadCurves(f"{name} has no column {', '.join(missing)}; expected one for each dimension, and {UNIT}")
    budgets = [column for column in columns if column.replace(".", "", 1).isdigit()]
    if not budgets:
        raise BadCurves(f"{name} has no column that is a number; expected one for each budget, with the value there")
    try:
        curves = LearningCurves(
            points=[{column: row[column] for column in spec.space} for row in rows],
            unit_s=np.array([float(row[UNIT]) for row in rows]),
            budgets=np.array([float(budget) for budget in budgets]),
            values=np.array([[float(row[budget] or "nan") for budget in budgets] for row in rows]),
        )
        _check(curves, name, spec)
    except (TypeError, ValueError) as error:
        if isinstance(error, BadCurves):
            raise
        raise BadCurves(
            f"{name} has a cell that is no number ({error}); expected numbers in {UNIT}, budgets and dimensions"
        ) from error
    return curves


def _check(curves: LearningCurves, name: str, spec: SweepSpec) -> None:
    """Refuse numbers that a simulation would make nonsense of."""
    if not np.all(np.isfinite(curves.unit_s) & (curves.unit_s > 0)):
        raise BadCurves(f"{name} has a {UNIT} that is not above 0; expected seconds for one unit of budget")
    if np.any(np.diff(curves.budgets) <= 0):
        raise BadCurves(f"{name} has budgets that do not ascend; expected their columns from the least to the most")
    for dimension, kind in spec.space.items():
        if isinstance(kind, Choice):
            continue
        least = 0.0 if isinstance(kind, Uniform) and kind.log else -math.inf
        found = np.array([point[dimension] for point in curves.points], dtype=np.float64)
        if not np.all(np.isfinite(found) & (found > least)):
            expected = "numbers above 0, as its scale is logarithmic" if least == 0.0 else "finite numbers"
            raise BadCurves(f"{name} has a {dimension} out of range; expected {expected}")


class TrialModel(msgspec.Struct, frozen=True, kw_only=True):
    """
    How trials behave on devices, and how many there are.

    Attributes
    ----------
    gpus : int
    max_gpus_d, packing_c : int
        Most devices for one trial, most trials on one device.
    alpha, beta : float
        Penalties of packing and of scaling out.
    overhead_s : float
        What starting, or stopping and resuming, takes on a trial's devices (ε).
    """

    gpus: int
    max_gpus_d: int = 4
    packing_c: int = 2
    alpha: float = 1.3
    beta: float = 1.05
    overhead_s: float = 0.0


class FillingMethod(msgspec.Struct, frozen=True, kw_only=True):
    """
    A way of giving devices to trials: water-filling, or one of two baselines.

    Attributes
    ----------
    kind : {"water", "one", "fixed"}
    longest_first : bool
        Whether the longest waiting run comes first; otherwise runs come in the order in which they were opened.
    refills : bool
        Whether waiting runs get new widths when devices become idle; in the published form they keep their widths.
    """

    kind: Literal["water", "one", "fixed"] = "water"
    mechanisms: Mechanisms = Mechanisms()
    longest_first: bool = True
    refills: bool = True

    def widths(self, h1_s: Floats, idle: int, model: TrialModel) -> Floats:
        """Return the widths of a group of trials that is opened while so many devices are idle."""
        match self.kind:
            case "water":
                return fill(
                    h1_s,
                    idle,
                    model.packing_c,
                    _widest(model),
                    alpha=model.alpha,
                    beta=model.beta,
                    mechanisms=self.mechanisms,
                )
            case "fixed":
                return np.full(h1_s.size, self._part(h1_s.size, model))
            case "one":
                return np.ones(h1_s.size)

    def resized(self, h1_left_s: Floats, widths: Floats, model: TrialModel) -> Floats:
        """Return the widths of running trials after devices became idle for which nobody waits."""
        if self.kind != "water":
            return widths
        return resized(
            h1_left_s,
            widths,
            model.gpus,
            model.packing_c,
            _widest(model),
            overhead_s=model.overhead_s,
            alpha=model.alpha,
            beta=model.beta,
            mechanisms=self.mechanisms,
        )

    def _part(self, trials: int, model: TrialModel) -> float:
        """Return an equal part of all devices, within bounds."""
        if trials <= model.gpus:
            return float(min(model.max_gpus_d, model.gpus // trials))
        return 1.0 / min(model.packing_c, -(-trials // model.gpus))


def _widest(model: TrialModel) -> int:
    """Return the most devices that water-filling gives a trial; as in the tuner, never more than make it faster."""
    return min(model.max_gpus_d, model.gpus, widest(model.beta))


FILLINGS: Final = {
    "one": FillingMethod(kind="one", longest_first=False, refills=False),
    "fixed": FillingMethod(kind="fixed", longest_first=False, refills=False),
    "spread": FillingMethod(mechanisms=Mechanisms(intra=False, dynamic=False), longest_first=False, refills=False),
    "water": FillingMethod(),
    "water+leftover": FillingMethod(mechanisms=Mechanisms(leftover=True)),
    "water-intra": FillingMethod(mechanisms=Mechanisms(intra=False)),
    "water-inter": FillingMethod(mechanisms=Mechanisms(inter=False)),
    "water-dynamic": FillingMethod(mechanisms=Mechanisms(dynamic=False)),
}
"""By the names that people write. ``spread`` only spreads, and keeps the widths that it gave."""

PARTS: Final = ("stopped", "failed", "rescale", "overhead")
"""Of the device-seconds held, what was not goodput; as in :class:`penstock_policies.search.runs.SweepGoodput`."""


class SweepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    One sweep under one way of filling devices.

    Attributes
    ----------
    makespan_s : float
    target_s : float or None
        When a trial first reached the target; None where none did, or there is none.
    best : float or None
        Best value of the runs with the largest budget.
    utilisation : float
        Device-seconds held over device-seconds available, 0 to 1.
    goodput : float
        Device-seconds of iterations of promoted and best runs over those held.
    stopped, failed, rescale, overhead : float
        The other shares of the device-seconds held: iterations of other runs, diverged runs, moves, and starts.
    trials, runs, resizes : int
        Points tried, runs of them, and how often a running one was moved to another width.
    """

    makespan_s: float
    target_s: float | None
    best: float | None
    utilisation: float
    goodput: float
    trials: int
    runs: int
    resizes: int
    stopped: float = 0.0
    failed: float = 0.0
    rescale: float = 0.0
    overhead: float = 0.0
