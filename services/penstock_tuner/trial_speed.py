"""
The speed that trials have shown.

:class:`TrialSpeeds` belongs to a sweep: what each run of a job shows of its trial. :class:`TrialMeasures` belongs to a
workload: the penalties of sharing devices and of scaling out, and the cost of a move, over all sweeps.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Final

import msgspec
import numpy as np

from penstock_log import Event, Job, RoundDecided, RunEnded, RunStarted, Trial, TrialsMeasured
from penstock_policies import waterfill

_NEAR: Final = 0.2
"""A run that has had 1.9 trials on its device on average has had 2; one that has had 1.5 says nothing of either."""
_LEAST_S: Final = 1e-9


class RunWatch(msgspec.Struct):
    """
    A run under way.

    Attributes
    ----------
    forgone_s : float
        Time that others had had of its job's devices when the run started.
    loop_s, loop_steps : float, int
        Time and steps in its loop, waits for turns included, as its ended processes report; of a gang, those of one
        node report it.
    """

    started_s: float
    forgone_s: float
    loop_s: float = 0.0
    loop_steps: int = 0


class RunningMean(msgspec.Struct):
    """A mean to which values are added."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a value."""
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        """The mean; 0 without values."""
        return self.total / self.count if self.count else 0.0


class TrialMeasures(msgspec.Struct, kw_only=True):
    """
    The penalties of one workload, each from trials that were measured both ways.

    Attributes
    ----------
    spread : dict of str to RunningMean
        Devices → logarithm of an iteration's device-time relative to one device.
    packed : dict of str to RunningMean
        Trials side by side → logarithm of an iteration's time relative to a trial alone.
    start_s : RunningMean
        Time of a run outside of iterations: starting, restoring, saving.
    saves : bool
        Whether its script has been seen to save checkpoints; before, no trial is moved, for it would lose steps.
    move_s : RunningMean
        Time from the request that a running trial stop to the start of its next run.
    """

    spread: dict[str, RunningMean] = msgspec.field(default_factory=dict)
    packed: dict[str, RunningMean] = msgspec.field(default_factory=dict)
    start_s: RunningMean = msgspec.field(default_factory=RunningMean)
    saves: bool = False
    move_s: RunningMean = msgspec.field(default_factory=RunningMean)

    @property
    def alpha(self) -> float:
        """The penalty of packing, 1 or more."""
        return _penalty(self.packed) if self.packed else UNSEEN_ALPHA

    @property
    def beta(self) -> float:
        """The penalty of scaling out, 1 or more; 1 where it has not been measured."""
        return _penalty(self.spread)

    @property
    def overhead_s(self) -> float:
        """What moving a running trial costs (ε), in seconds."""
        return self.start_s.value + (self.move_s.value if self.move_s.count else MOVING_S)

    def packing(self, most: int) -> int:
        """
        Return how many trials to put on one device, ``most`` at most (c).

        If every number that was tried has been worth it, one more is tried.
        """
        tried = max(map(int, self.packed), default=1)
        if tried == 1:
            return min(FIRST_PACKING, most)
        iteration_s = np.array([self._longer(p) for p in range(1, tried + 1)])
        worth = waterfill.packing_c(iteration_s, LEAST_GAIN)
        return min(worth + 1 if worth == tried else worth, most)

    def as_fact(self, sweep_id: str, key: str, now_s: float) -> TrialsMeasured:
        """Return the measures as a fact about a workload."""
        return TrialsMeasured(
            at_s=now_s,
            sweep_id=sweep_id,
            key=key,
            alpha=round(self.alpha, 4) if self.packed else 0.0,
            beta=round(self.beta, 4) if self.spread else 0.0,
            packing=self.packing(_MOST) if self.packed else 0,
            widest=waterfill.widest(self.beta) if self.spread and self.beta > 1.0 + _FLAT else 0,
            overhead_s=round(self.overhead_s, 3) if self.start_s.count else 0.0,
            moves=self.move_s.count,
            saves=self.saves,
        )

    def factor(self, width: float) -> float:
        """Return how long a trial takes on a width, relative to one device."""
        return waterfill.run_time_s(1.0, width, self.alpha, self.beta)

    def compare(self, width: float, over: float) -> None:
        """Note that an iteration on a width took ``over`` times as long as on one device of the same trial."""
        if over > 0 and math.isfinite(over):
            if width > 1:
                self.spread.setdefault(str(round(width)), RunningMean()).add(math.log(over * width))
            elif width < 1:
                self.packed.setdefault(str(round(1 / width)), RunningMean()).add(math.log(over))

    def _longer(self, p: int) -> float:
        """Return how much longer an iteration takes with ``p`` side by side, by the model if it was not measured."""
        found = self.packed.get(str(p))
        return math.exp(min(found.value, _STEEPEST)) if found is not None else self.alpha ** (p - 1)


class TrialSpeeds(msgspec.Struct, kw_only=True):
    """
    The speeds of a sweep's trials, as far as their runs have shown them.

    Attributes
    ----------
    watches : dict of str to RunWatch
        Job id → its run.
    loop_s, done_s : dict of str to float
        Job id → seconds in its loop over its ended runs, as they were, and as they would have been on one device.
    widths : dict of str to float
        Job id → the width of its ended runs; 0 if their widths differ.
    unit_s : dict of str to float
        Job id of an ended run → seconds for one unit of its budget, on the width in ``widths``, else on one device.
    seen : dict of str to dict of str to float
        Trial → width as text → seconds of an iteration.
    asked_s : dict of str to float
        Job id → when its run was asked to make way for one of another width.
    """

    measures: TrialMeasures = msgspec.field(default_factory=TrialMeasures)
    watches: dict[str, RunWatch] = msgspec.field(default_factory=dict)
    loop_s: dict[str, float] = msgspec.field(default_factory=dict)
    done_s: dict[str, float] = msgspec.field(default_factory=dict)
    widths: dict[str, float] = msgspec.field(default_factory=dict)
    unit_s: dict[str, float] = msgspec.field(default_factory=dict)
    seen: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    asked_s: dict[str, float] = msgspec.field(default_factory=dict)

    def work_s(self, job_id: str) -> float | None:
        """Return the seconds that one unit of a run's budget would take on one device; None where it is not known."""
        unit_s = self.unit_s.get(job_id)
        if unit_s is None:
            return None
        return unit_s / max(_LEAST_S, self.measures.factor(self.widths.get(job_id) or 1.0))

    @property
    def typical_s(self) -> float | None:
        """The median time of a unit of budget on one device; None before any run has shown it."""
        seen = [work_s for job_id in self.unit_s if (work_s := self.work_s(job_id)) is not None]
        return median(seen) if seen else None

    def done_by(self, job_id: str, width: float, now_s: float) -> float:
        """Return a job's time in its loop as if on one device; a run that lasts counts with all but its start."""
        done_s, watch = self.done_s.get(job_id, 0.0), self.watches.get(job_id)
        if watch is None:
            return done_s
        under_way_s = max(0.0, now_s - watch.started_s - self.measures.start_s.value)
        return done_s + under_way_s / self.measures.factor(width)

    def follow(self, trial: Trial, job: Job, event: Event, gpus: int) -> None:
        """Note a fact about a run of a trial's job, which had ``gpus`` devices before the fact."""
        match event:
            case RoundDecided() if job.demand is not None and job.stopping:
                self.asked_s.setdefault(job.id, event.at_s)
            case RoundDecided() if job.placement is None:  # its node was lost: nobody says how long it was in its loop
                self.watches.pop(job.id, None)
            case RunStarted() if job.started_s and job.id not in self.watches:
                self.watches[job.id] = RunWatch(event.at_s, job.forgone_s)
                if (asked_s := self.asked_s.pop(job.id, None)) is not None:
                    self.measures.move_s.add(max(0.0, event.at_s - asked_s))
            case RunEnded():
                self._end_run(trial, job, event, gpus)
            case _:
                pass

    def end(self, trial: Trial, units: float, executed_s: float) -> None:
        """Note that a job has completed, after ``units`` units of its budget."""
        job_id = trial.job_id
        loop_s = self.loop_s.get(job_id, 0.0) or executed_s
        if units > 0 and loop_s > 0:
            width = self.widths.setdefault(job_id, float(trial.gpus))
            took_s = loop_s if width else self.done_s.get(job_id, 0.0)
            self.unit_s[job_id] = took_s / units
            if not self.loop_s.get(job_id):  # it reports no iterations: a unit has to do
                self._compare(trial.number, width or 1.0, took_s / units)
        self.forget(job_id)

    def forget(self, job_id: str) -> None:
        """Drop what is remembered of a job's runs."""
        for kept in (self.watches, self.loop_s, self.done_s, self.asked_s):
            kept.pop(job_id, None)

    def _end_run(self, trial: Trial, job: Job, event: RunEnded, gpus: int) -> None:
        if event.loop_steps:
            self.measures.saves = event.saves
        watch = self.watches.get(job.id)
        if watch is None:
            return
        watch.loop_s += event.loop_s + event.waited_s
        watch.loop_steps += event.loop_steps
        if job.placement is not None:  # it goes on on other nodes
            return
        del self.watches[job.id]
        ran_s = event.at_s - watch.started_s
        width = _width(gpus, ran_s, job.forgone_s - watch.forgone_s)
        self.loop_s[job.id] = self.loop_s.get(job.id, 0.0) + watch.loop_s
        self.done_s[job.id] = self.done_s.get(job.id, 0.0) + watch.loop_s / self.measures.factor(width)
        if abs(self.widths.setdefault(job.id, width) - width) > _LEAST_S:
            self.widths[job.id] = 0.0
        if watch.loop_s > 0:
            self.measures.start_s.add(max(0.0, ran_s - watch.loop_s))
            self._compare(trial.number, width, watch.loop_s / max(1, watch.loop_steps))

    def _compare(self, number: int, width: float, iteration_s: float) -> None:
        """Compare an iteration with one of the same trial on one device, if there was or will be one."""
        beside = 1.0 / width
        if width < 1.0 and abs(beside - round(beside)) > _NEAR:
            return
        width = width if width >= 1.0 else 1.0 / round(beside)
        seen = self.seen.setdefault(str(number), {})
        if width == 1.0 and "1.0" not in seen:
            for other, took_s in seen.items():
                self.measures.compare(float(other), took_s / iteration_s)
        elif width != 1.0 and "1.0" in seen:
            self.measures.compare(width, iteration_s / seen["1.0"])
        seen[str(width)] = iteration_s


def _width(gpus: int, ran_s: float, forgone_s: float) -> float:
    """Return the devices that a run has had, on average; below one, its share of the time of one."""
    if gpus > 1 or ran_s <= 0:
        return float(gpus)
    return max(1e-3, 1.0 - max(0.0, forgone_s) / ran_s)


LEAST_GAIN: Final = 0.1
"""Of one more trial on a device (the published threshold ``O_th``)."""
UNSEEN_ALPHA: Final = 1.5
"""Penalty of packing as long as nobody has seen it: between none at all and devices that are used strictly in turns."""
FIRST_PACKING: Final = 2
"""Trials side by side as long as nobody has seen what that brings."""
MOVING_S: Final = 1.0
"""From being asked to stop to the start of the next run, as long as nobody has been moved."""
_MOST: Final = 64
_FLAT: Final = 1e-3
_STEEPEST: Final = math.log(10.0)  # of the penalties believed: what is measured of loops of microseconds is noise


def _penalty(seen: dict[str, RunningMean]) -> float:
    """Return the slope of the logarithms over the number beyond the first, by least squares."""
    xx = sum(mean.count * (int(n) - 1) ** 2 for n, mean in seen.items())
    xy = sum(mean.total * (int(n) - 1) for n, mean in seen.items())
    return math.exp(min(max(0.0, xy / xx), _STEEPEST)) if xx else 1.0
