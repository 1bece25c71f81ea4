"""One sweep in virtual time: a search opens runs, a filling gives them devices, curves say what they reach."""

from __future__ import annotations

import heapq
import itertools

import msgspec
import numpy as np

from penstock_events.spec import SweepSpec
from penstock_policies import search
from penstock_policies.search import Past
from penstock_policies.search.spending import Account, Spent, Use, account
from penstock_policies.waterfill import Room, run_time_s
from penstock_sim.sweeps.curves import Curves
from penstock_sim.sweeps.filling import Filling, Model
from penstock_sim.sweeps.outcome import PARTS, Outcome


class Run(msgspec.Struct):
    """
    A run on its way.

    Attributes
    ----------
    h1_s : float
        What is left of it on one whole device, in seconds, as of ``since_s``; before that it starts or is being moved.
    guess_s : float
        The same as it was expected when it was opened, to find its width by.
    spent : Spent
        Up to ``since_s``.
    starts : int
        How often it was started: at first, and after each move.
    turn : int
        Of the end that counts; earlier ones are void.
    """

    number: int
    h1_s: float
    guess_s: float
    width: float = 0.0
    since_s: float = 0.0
    spent: Spent = msgspec.field(default_factory=Spent)
    starts: int = 0
    turn: int = 0


def play(spec: SweepSpec, curves: Curves, model: Model, filling: Filling) -> Outcome:
    """
    Play a sweep to its end.

    Parameters
    ----------
    spec : SweepSpec
        One that :func:`penstock_policies.search.check` lets pass.
    curves : Curves
        A trial is the recorded one that comes nearest to its point.
    model : Model
    filling : Filling

    Notes
    -----
    What is known of a trial before it runs is what the tuner knows: the pace of its own earlier rung, else the median
    of those seen, else that all are equal.
    """
    return _Sweep(spec, curves, model, filling).play()


class _Sweep:
    def __init__(self, spec: SweepSpec, curves: Curves, model: Model, filling: Filling) -> None:
        self.spec, self.curves, self.model, self.filling = spec, curves, model, filling
        self.past = Past()
        self.curve_of: dict[int, int] = {}
        self.pace_s: dict[int, float] = {}  # trial → seconds for one unit, as seen
        self.room = Room(model.gpus)
        self.waiting: list[Run] = []
        self.running: dict[int, Run] = {}
        self.ends: list[tuple[float, int, int]] = []
        self.order = itertools.count()
        self.now_s = 0.0
        self.spent: dict[int, tuple[float, Spent]] = {}
        self.resizes = 0

    def play(self) -> Outcome:
        self._open()
        while self.ends:
            now_s, turn, number = heapq.heappop(self.ends)
            run = self.running.get(number)
            if run is not None and run.turn == turn:
                self.now_s = now_s
                self._finish(run)
                self._open()
                self._resize()
        return self._outcome()

    # --- opening
    def _open(self) -> None:
        while wanted := search.next_runs(self.spec, self.past, self.model.gpus):
            fresh: list[Run] = []
            for one in wanted:
                self.past.open(one)
                if one.trial not in self.curve_of:
                    self.curve_of[one.trial] = self.curves.nearest(self.spec, one.params)
                fresh.append(self._run(len(self.past.runs) - 1))
            self._fill(fresh)
            self.waiting += fresh
        if self.filling.refills and self.waiting and self.room.idle:
            self._fill(self.waiting)
        self._start()

    def _fill(self, runs: list[Run]) -> None:
        """Give runs that wait their widths on the devices that are idle now."""
        widths = self.filling.widths(np.array([run.guess_s for run in runs]), self.room.idle, self.model)
        for run, width in zip(runs, widths.tolist(), strict=True):
            run.width = width

    def _run(self, number: int) -> Run:
        run = self.past.runs[number]
        units = self._units(number)
        unit_s = float(self.curves.unit_s[self.curve_of[run.trial]])
        typical_s = float(np.median(list(self.pace_s.values()))) if self.pace_s else 1.0
        return Run(number, units * unit_s, units * self.pace_s.get(run.trial, typical_s))

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
            if self.room.take(run.width):
                self._go(run)
            else:
                left.append(run)
        self.waiting = left

    def _go(self, run: Run) -> None:
        """Let a run go on from now, after what starting it takes."""
        run.since_s, run.turn = self.now_s, next(self.order)
        run.starts += 1
        self.running[run.number] = run
        end_s = self.now_s + self.model.overhead_s + self._takes_s(run.h1_s, run.width)
        heapq.heappush(self.ends, (end_s, run.turn, run.number))

    def _takes_s(self, h1_s: float, width: float) -> float:
        return run_time_s(h1_s, width, self.model.alpha, self.model.beta)

    # --- ending
    def _finish(self, run: Run) -> None:
        self._advance(run)
        del self.running[run.number]
        self.room.free(run.width)
        opened = self.past.runs[run.number]
        curve = self.curve_of[opened.trial]
        self.pace_s[opened.trial] = float(self.curves.unit_s[curve])
        value = self.curves.value(curve, opened.budget or float(self.curves.budgets[-1]))
        self.past.end(run.number, value)
        self.spent[run.number] = (self.now_s, run.spent)

    def _advance(self, run: Run) -> None:
        """Bring a run up to now."""
        went_s = self.now_s - run.since_s
        working_s = max(0.0, went_s - self.model.overhead_s)
        done = min(1.0, working_s / takes_s) if (takes_s := self._takes_s(run.h1_s, run.width)) else 1.0
        run.spent.add(went_s * run.width, min(working_s, takes_s) * run.width, again=run.starts > 1)
        run.h1_s *= 1.0 - done
        run.since_s = self.now_s

    # --- moving
    def _resize(self) -> None:
        """Move running trials to other widths where devices are idle for which nobody waits."""
        runs = list(self.running.values())
        if self.waiting or not runs or not self.room.idle:
            return
        left_s = np.array([self._left_s(run) for run in runs])
        widths = np.array([run.width for run in runs])
        after = self.filling.resized(left_s, widths, self.model)
        moved = [(run, float(width)) for run, width in zip(runs, after, strict=True) if width != run.width]
        for run, _ in moved:
            self._advance(run)
            self.room.free(run.width)
        for run, width in moved:
            run.width = width
            if not self.room.take(width):
                raise RuntimeError(f"run {run.number} was moved to {width} devices, of which {self.room.idle} are idle")
            self._go(run)
        self.resizes += len(moved)

    def _left_s(self, run: Run) -> float:
        working_s = max(0.0, self.now_s - run.since_s - self.model.overhead_s)
        takes_s = self._takes_s(run.h1_s, run.width)
        return max(1e-9, run.h1_s * (1.0 - working_s / takes_s)) if takes_s else 1e-9

    def _outcome(self) -> Outcome:
        uses = [self._use(number) for number in range(len(self.past.runs))]
        found = account(uses, self.spec.mode, target=self.spec.target)
        best = self.past.runs[int(found.best)].value if found.best is not None else None
        there_gpu_s = self.model.gpus * self.now_s
        shares = {name: self._share(getattr(found, f"{name}_gpu_s"), found) for name in PARTS}
        return Outcome(
            makespan_s=self.now_s,
            target_s=found.target_s,
            best=best,
            utilisation=found.allocated_gpu_s / there_gpu_s if there_gpu_s else 0.0,
            goodput=found.goodput,
            trials=self.past.trials,
            runs=len(self.past.runs),
            resizes=self.resizes,
            **shares,
        )

    def _use(self, number: int) -> Use:
        run, (ended_s, spent) = self.past.runs[number], self.spent[number]
        return Use(key=number, origin=run.origin, budget=run.budget, ended_s=ended_s, value=run.value, spent=spent)

    def _share(self, part_gpu_s: float, of: Account) -> float:
        return part_gpu_s / of.allocated_gpu_s if of.allocated_gpu_s else 0.0
