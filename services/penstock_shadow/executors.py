"""
The executors of a shadow's cluster: runs advance as the log measures, and end when the log has told how long they are.

A job's length is learnt from its real end. Until then its run in the shadow goes on; where it turns out that it would
have ended before, it ends when that is known, and :attr:`ShadowExecutors.ahead` counts it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from penstock_events import Job, JobSpec, Sample, SamplesRequested, State
from penstock_shadow.measured import Measured
from penstock_sim.virtual.costs import Costs
from penstock_sim.virtual.engine import Engine
from penstock_sim.virtual.executors import Executors
from penstock_sim.virtual.tasks import Run, Task

_CHECKPOINT_S: Final = JobSpec(name="any", command=("any",)).checkpoint_s
_A_SAMPLE: Final = -1
_NEAR_S: Final = 1.0
"""What is late by less than this is not counted as having waited."""


class ShadowExecutors(Executors):
    """
    Executors whose tasks have no known length at first.

    Parameters
    ----------
    engine : Engine
    measured : Measured
        The log so far.
    lengths : Measured, optional
        The log up to a later time, where that is known: jobs that ended by then have their length from the beginning.

    Attributes
    ----------
    ahead : int
        Jobs that held their devices after their end, for more than a second.
    ahead_gpu_s : float
        For how long all did, in GPU-seconds.
    ready_s : dict of str to float
        When such a job had done all of its work.
    """

    def __init__(self, engine: Engine, measured: Measured, lengths: Measured | None = None) -> None:
        self._known = lengths or measured
        costs = Costs(checkpoint_s=_CHECKPOINT_S)
        super().__init__(engine, speed=self._known.speed, costs=costs, sampled=_never_asked)
        self._measured = measured
        self.ahead, self.ahead_gpu_s = 0, 0.0
        self.ready_s: dict[str, float] = {}

    def submit(self, job: Job) -> Task:
        """Take a job in."""
        self._reckon()
        row = _A_SAMPLE if job.sample is not None else len(self.tasks)
        task = Task(job.id, row, job.spec.gpus, job.id, math.inf, iteration_s=self._known.iteration_s(job.id))
        self.tasks[job.id] = task
        self._inform(task)
        return task

    def adopt(self, job: Job) -> None:
        """Take a real job over as it is: waiting, running or being stopped."""
        task, now_s = self.submit(job), self._engine.now_s
        task.kept_s, task.executed_s = min(self._measured.kept_s(job), task.work_s), job.executed_s
        if job.steps and task.kept_s:  # the matcher has counted these, and goes on counting
            task.iteration_s = task.kept_s / job.steps
        task.start_s = job.first_started_s or math.nan
        task.runs = job.attempts
        placement = job.placement
        if placement is None:
            return
        slots = {slot.node_id: slot.devices for slot in placement.slots if slot.node_id in job.open_nodes}
        run = Run(task, placement.epoch, placement.kind, self.speed(task.id, placement.kind), slots)
        self.runs[task.id] = run
        self.busy += task.gpus
        self.running += task.row >= 0
        for node_id in slots:
            self._here[node_id][task.id] = run
        if job.started_s:
            run.started_s, run.begins_s = job.started_s, job.started_s + task.starting_s
            self._expect_end(run)
        else:
            run.missing = set(slots)
            self._agenda.at(now_s, self._start, run)
        if job.stopping:
            self.stop(job.id, job.reason, self._measured.asked_s(job.id) or now_s)

    def stop(self, job_id: str, reason: str, asked_s: float | None = None) -> None:
        """Have a run end that is not wanted any more, by default from now on."""
        run = self.runs.get(job_id)
        if run is None or run.asked:
            return
        run.asked, now_s = True, self._engine.now_s
        if not run.stands:
            self._stand(run, asked_s or now_s, saved=True)
        self._agenda.at(max(now_s, (asked_s or now_s) + self.costs.stop_s), self._end_all, run, reason)

    def lose(self, node_ids: tuple[str, ...]) -> None:
        """End what runs on nodes that are lost."""
        for node_id in node_ids:
            self._lose(node_id)

    def learn(self, job: Job) -> None:
        """Take in how a real run, or a whole job, went."""
        self._reckon()
        task = self.tasks.get(job.id)
        if task is None or task.over or job.state not in {State.COMPLETED, State.FAILED} or math.isfinite(task.work_s):
            return
        self._inform(task)
        run = self.runs.get(job.id)
        if run is not None and not run.stands and math.isfinite(run.begins_s):
            run.speed, run.begins_s = self.speed(job.id, run.kind), run.started_s + task.starting_s
            self._expect_end(run)

    def forget(self, job_id: str) -> None:
        """Drop a job that is over."""
        self.tasks.pop(job_id, None)
        self.ready_s.pop(job_id, None)

    def _stand(self, run: Run, now_s: float, *, saved: bool) -> None:
        run.task.saves = self._known.saves(run.task.id)
        super()._stand(run, now_s, saved=saved)

    def _reckon(self) -> None:
        """Have runs take as long to stop as real ones take."""
        if self.costs.stop_s != self._known.stop_s:
            self.costs = replace(self.costs, stop_s=self._known.stop_s)

    def _inform(self, task: Task) -> None:
        task.starting_s = self._known.rest_s(task.id)
        work_s = self._known.work_s(task.id)
        if work_s is not None:
            task.work_s = work_s
            task.kept_s = min(task.kept_s, work_s)

    def _expect_end(self, run: Run) -> None:
        """Have a run end when its work is done; at once where that was before now."""
        task, now_s = run.task, self._engine.now_s
        if math.isinf(task.work_s):
            return
        end_s = run.begins_s + (task.work_s - task.kept_s) / run.speed
        if end_s < now_s:
            self.ahead += end_s < now_s - _NEAR_S
            self.ahead_gpu_s += (now_s - end_s) * task.gpus
            self.ready_s[task.id] = end_s
        self._agenda.at(max(now_s, end_s), self._complete, run)


def _never_asked(_asked: SamplesRequested, _sample: Sample) -> Task:
    raise RuntimeError("the real profiler asks for samples, and no other; a shadow has none")
