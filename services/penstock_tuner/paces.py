"""How fast a sweep's trials are: what each run of a job shows of its trial, and of the workload."""

from __future__ import annotations

from statistics import median
from typing import Final

import msgspec

from penstock_events import Event, Job, RoundDecided, RunEnded, RunStarted, Trial
from penstock_tuner.measures import Measures

_NEAR: Final = 0.2
"""A run that has had 1.9 trials on its device on average has had 2; one that has had 1.5 says nothing of either."""
_LEAST_S: Final = 1e-9


class Watch(msgspec.Struct):
    """
    A run on its way.

    Attributes
    ----------
    forgone_s : float
        What others had had of its job's devices when it started.
    loop_s, loop_steps : float, int
        In its loop, waiting for turns included, as far as its ended processes have said; of a gang, those of one node
        say so.
    """

    started_s: float
    forgone_s: float
    loop_s: float = 0.0
    loop_steps: int = 0


class Paces(msgspec.Struct, kw_only=True):
    """
    What a sweep has seen of its trials.

    Attributes
    ----------
    watches : dict of str to Watch
        By job id.
    loop_s, done_s : dict of str to float
        Job id → seconds in its loop over its ended runs, as they were, and as they would have been on one device.
    widths : dict of str to float
        Job id → the width of its ended runs; 0 where they were of several.
    unit_s : dict of str to float
        Job id of a run that is over → seconds for one unit of its budget, on what ``widths`` says, else on one device.
    seen : dict of str to dict of str to float
        Trial → width as text → seconds of an iteration.
    asked_s : dict of str to float
        Job id → since when its run is to make way for one of another width.
    """

    measures: Measures = msgspec.field(default_factory=Measures)
    watches: dict[str, Watch] = msgspec.field(default_factory=dict)
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
        """The median of what a unit of budget takes on one device; None before any run has shown it."""
        seen = [work_s for job_id in self.unit_s if (work_s := self.work_s(job_id)) is not None]
        return median(seen) if seen else None

    def done_by(self, job_id: str, width: float, now_s: float) -> float:
        """Return how long a job would have been in its loop on one device; of a run under way, all but its start."""
        done_s, watch = self.done_s.get(job_id, 0.0), self.watches.get(job_id)
        if watch is None:
            return done_s
        under_way_s = max(0.0, now_s - watch.started_s - self.measures.start_s.value)
        return done_s + under_way_s / self.measures.factor(width)

    def follow(self, trial: Trial, job: Job, event: Event, gpus: int) -> None:
        """Follow a run of a trial's job, which had so many devices before the fact."""
        match event:
            case RoundDecided() if job.demand is not None and job.stopping:
                self.asked_s.setdefault(job.id, event.at_s)
            case RoundDecided() if job.placement is None:  # its node was lost: nobody says how long it was in its loop
                self.watches.pop(job.id, None)
            case RunStarted() if job.started_s and job.id not in self.watches:
                self.watches[job.id] = Watch(event.at_s, job.forgone_s)
                if (asked_s := self.asked_s.pop(job.id, None)) is not None:
                    self.measures.move_s.add(max(0.0, event.at_s - asked_s))
            case RunEnded():
                self._end_run(trial, job, event, gpus)
            case _:
                pass

    def end(self, trial: Trial, units: float, executed_s: float) -> None:
        """Note that a job has completed, after so many units of its budget."""
        job_id = trial.job_id
        loop_s = self.loop_s.get(job_id, 0.0) or executed_s
        if units > 0 and loop_s > 0:
            width = self.widths.setdefault(job_id, float(trial.gpus))
            took_s = loop_s if width else self.done_s.get(job_id, 0.0)
            self.unit_s[job_id] = took_s / units
            if not self.loop_s.get(job_id):  # it has told of no iterations: a unit will have to do
                self._compare(trial.number, width or 1.0, took_s / units)
        self.forget(job_id)

    def forget(self, job_id: str) -> None:
        """Drop what was kept of a job's runs."""
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
