"""
Elastic jobs on counted devices: the autoscaler's decision on the event engine, with no other decider.

A job may have fewer or more devices than it asked for, and another batch, as
:func:`penstock_scheduler.sizing.decision.decide` says. The simulation asks for this decision at each submission,
completion and crossing, about one kind of device. A policy is the decision with more or fewer choices: see
:mod:`penstock_simulator.fast.fast_settings`. A job that is resized, or resumed after a wait, holds its devices for
``overhead_s`` before it goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from sortedcontainers import SortedKeyList

from penstock_log import Size
from penstock_policies.queue_policies import DispatchMode
from penstock_scheduler.sizing.decision import decide
from penstock_scheduler.sizing.problem import SizeRequest
from penstock_simulator.engine.engine import EventEngine
from penstock_simulator.engine.tasks import OutcomeRecorder, VirtualRun, VirtualTask
from penstock_simulator.fast.fast_settings import FastSizingSettings, GoOn, JobShape
from penstock_simulator.outcome import Outcome
from penstock_simulator.trace import Trace

_LOOK_EVERY: Final = 8
_EQUAL_S: Final = 1e-9
_KIND: Final = "gpu"
_IN_ORDER: Final = DispatchMode(backfills=False, preempts="position")
"""The order binds: whoever is first runs, and behind one that does not fit nobody starts."""


class SizedJobs:
    """
    The jobs of a trace whose sizes may change: those that came, in order, and the runs of those that have devices.

    Parameters
    ----------
    trace : Trace
        J jobs.
    devices : int
    sizing : FastSizingSettings
    shapes : sequence of JobShape, (J,)
        How each job may be run, and how fast.
    overhead_s : float
        Time for which a resized or resumed job holds its devices before it goes on.
    """

    def __init__(
        self, trace: Trace, devices: int, sizing: FastSizingSettings, shapes: Sequence[JobShape], overhead_s: float
    ) -> None:
        self.engine = EventEngine()
        self.tasks = [
            VirtualTask(str(row), row, 0, "", work_s, starting_s=overhead_s, startings_s=[0.0])
            for row, work_s in enumerate(trace.duration_s.tolist())
        ]
        self.runs: dict[int, VirtualRun] = {}
        self.order: SortedKeyList[int, tuple[int, float, int]] = SortedKeyList(
            key=lambda row: (self.tasks[row].queue, self._entered_s[row], row)
        )
        self.decided: list[int] = []  # the jobs that the last decision was about, in order
        self._entered_s: list[float] = trace.submit_s.tolist()
        self._sizes: dict[int, Size] = {}
        self._devices, self._sizing, self._shapes, self._overhead_s = devices, sizing, shapes, overhead_s
        self._limits_gpu_s = (*(sizing.thresholds_gpu_s if sizing.admit == "2d-las" else ()), math.inf)
        self._arrived = self._over = self._events = 0
        self._changed = False
        self._dropped = np.zeros(len(trace), dtype=np.bool_)
        self._records = OutcomeRecorder(trace, self.tasks, {_KIND: devices}, resizes=True)

    def outcome(self, policy: str, go_on: GoOn) -> Outcome:
        """Let time pass until nothing more can happen, or it is not to go on; return what became of the jobs."""
        began_s = time.process_time()
        if self.tasks and go_on(0, len(self.tasks)):
            self._expect()
            self.engine.run(lambda: self._settle(go_on))
        for row in list(self.runs):
            self._stop(row)
        found = self._records.outcome(policy, self._events, time.process_time() - began_s)
        return replace(found, dropped=self._dropped)

    def first(self) -> list[int]:
        """Return the jobs to be decided about, in order: none behind those whose smallest widths take up all."""
        if self._sizing.drop:
            return list(self.order)
        found, left = list[int](), self._devices
        for row in self.order:
            least = self._shapes[row].least
            if least > self._devices:
                continue  # it never starts, and holds up nobody
            if least > left:
                break
            found.append(row)
            left -= least
        return found

    # --- events
    def _expect(self) -> None:
        if self._arrived < len(self.tasks):
            self.engine.event_queue.at(self._entered_s[self._arrived], self._arrive)

    def _arrive(self) -> None:
        self.order.add(self._arrived)
        self._arrived, self._changed = self._arrived + 1, True
        self._expect()

    def _cross(self, run: VirtualRun) -> None:
        row = run.task.row
        if self.runs.get(row) is run:
            self.order.remove(row)
            run.task.queue += 1
            self._entered_s[row] = self.engine.now_s
            self.order.add(row)
            self._changed = True
            self._expect_crossing(run)

    def _expect_crossing(self, run: VirtualRun) -> None:
        lacking_gpu_s = self._limits_gpu_s[run.task.queue] - run.task.held_gpu_s
        self.engine.event_queue.at(run.started_s + max(lacking_gpu_s, 0.0) / run.task.gpus, self._cross, run)

    def _end_due(self, due: VirtualRun) -> None:
        """End a run, and with it all whose ends are as good as equal."""
        now_s = self.engine.now_s
        for run in list(self.runs.values()) if self.runs.get(due.task.row) is due else ():
            task = run.task
            if self._ends_s(run) <= now_s + _EQUAL_S:
                self._stop(task.row)
                self.order.remove(task.row)
                task.end_s = now_s
                self._over, self._changed = self._over + 1, True

    @staticmethod
    def _ends_s(run: VirtualRun) -> float:
        return run.begins_s + max(run.task.work_s - run.task.kept_s, 0.0) / run.speed

    # --- sizes
    def _settle(self, go_on: GoOn) -> bool:
        """Resize the jobs after an instant at which something changed; return whether to go on."""
        if not self._changed:
            return True
        self._changed = False
        self._resize(self.first())
        self._events += 1
        busy = sum(run.task.gpus for run in self.runs.values())
        self._records.note_instant(self.engine.now_s, busy, len(self.order) - len(self.runs))
        return bool(self._events % _LOOK_EVERY) or go_on(self._over, len(self.tasks))

    def _resize(self, rows: list[int]) -> None:
        if rows == self.decided:
            return  # the same jobs in the same order, as the last decision left them: it would be the same again
        self.decided = rows
        found = decide(list(self._requests(rows)), {_KIND: self._devices}, self._sizing.rules, _IN_ORDER)
        sizes = dict.fromkeys(self.runs, Size(0))
        sizes.update(zip(rows, (each.size for each in found.jobs.values()), strict=True))
        for row, size in sizes.items():
            if size != (self._sizes[row] if row in self.runs else Size(0)):
                self._set_size(row, size)
        for row in map(int, found.dropped):
            self._dropped[row] = True
            self.order.remove(row)
            self._over += 1

    def _requests(self, rows: list[int]) -> Iterable[SizeRequest]:
        for row in rows:
            yield SizeRequest(
                job_id=str(row),
                profiles={_KIND: self._shapes[row].profile},
                widths=self._shapes[row].widths,
                now=self._sizes[row] if row in self.runs else None,
                kind=_KIND if row in self.runs else "",
                cost_s=self._overhead_s,
                fresh=not self.tasks[row].runs,
            )

    def _set_size(self, row: int, size: Size) -> None:
        task, now_s = self.tasks[row], self.engine.now_s
        if row in self.runs:
            self._stop(row)
            task.preemptions += 1
        if not size.gpus:
            return
        if not task.runs:
            task.start_s = now_s
        task.gpus, self._sizes[row] = size.gpus, size
        speed, begins_s = self._shapes[row].progress(size), now_s + task.begin()
        self.runs[row] = run = VirtualRun(task, task.runs, _KIND, speed, {}, started_s=now_s, begins_s=begins_s)
        self.engine.event_queue.at(self._ends_s(run), self._end_due, run)
        self._expect_crossing(run)

    def _stop(self, row: int) -> None:
        """Bank what a run has done, and what it held."""
        run, now_s = self.runs.pop(row), self.engine.now_s
        held_s = now_s - run.started_s
        run.task.kept_s += run.worked_s(now_s)
        run.task.executed_s += held_s
        run.task.held_gpu_s += held_s * run.task.gpus
