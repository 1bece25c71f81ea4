"""
The work that the live log tells of: how fast each job really was on each kind of device, and how much work it had.

Work is counted in seconds on the fastest kind of the job's workload. A job's speed on a kind that it ran on is what its
iterations took there, and on other kinds what the profiler says. Nobody knows how much work there is before the job has
ended.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import mean, median
from typing import Final

from penstock_log import Job, JobState, RunCheckpointed, RunEnded, RunMeasured
from penstock_simulator.engine.tasks import uncounted_work_s
from penstock_simulator.replay.history import LoggedRuns, PastRun, key_of

LEAST_S: Final = 1e-3
_REMEMBERED: Final = 101
_KNOWN: Final = frozenset({JobState.COMPLETED, JobState.FAILED})


class LiveWork(LoggedRuns):
    """The runs of the live cluster so far, with what they say of their jobs' speeds, lengths and costs."""

    def __init__(self) -> None:
        super().__init__()
        self._rests_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._stops_s: deque[float] = deque(maxlen=_REMEMBERED)

    def speed(self, job_id: str, kind: str) -> float:
        """Return the work that a job does in a second on a kind."""
        job, own = self.jobs.get(job_id), self._iterations_s(job_id)
        key = key_of(job) if job is not None else job_id
        if kind not in own:
            return self.speeds.of(key, kind)
        return self._unit_s(key, own) / own[kind]

    def work_s(self, job_id: str) -> float | None:
        """Return the work of a whole job; None if it has not ended or was cancelled, since then it is unknown."""
        job = self.jobs.get(job_id)
        if job is None or job.state not in _KNOWN:
            return None
        runs, own = self.runs[job_id], self._iterations_s(job_id)
        if not own:  # a command that counts no iterations: whatever it held its devices for is work
            held = [(run.kind, run.held_s, run.outcome) for run in runs]
            return max(uncounted_work_s(held, lambda kind: self.speed(job_id, kind)), LEAST_S)
        steps = max(run.steps for run in runs) + sum(_repeated(run, following) for run, following in pairwise(runs))
        return max(steps * self._unit_s(key_of(job), own), LEAST_S)

    def iteration_s(self, job_id: str) -> float:
        """Return the work of one iteration of a job; 1 if none was measured."""
        job, own = self.jobs.get(job_id), self._iterations_s(job_id)
        return self._unit_s(key_of(job), own) if job is not None and own else 1.0

    def kept_s(self, job: Job) -> float:
        """Return the work that earlier runs of a running job have done and saved."""
        own = self._iterations_s(job.id)
        if not own:
            return 0.0
        kept = self.runs[job.id][-1].resumed_step if job.started_s else job.steps
        return kept * self._unit_s(key_of(job), own)

    def rest_s(self, job_id: str) -> float:
        """Return how long a run holds its devices before it advances, by its job's runs, else by other jobs' runs."""
        rests_s: Iterable[float] = [run.rest_s for run in self.runs[job_id] if run.loop_steps] or self._rests_s
        job = self.jobs.get(job_id)
        if job is not None and job.state in _KNOWN and not self._iterations_s(job_id):
            return 0.0  # what it did not iterate is in its work
        return median(rests_s) if rests_s else 0.0

    def saves(self, job_id: str) -> bool:
        """
        Return whether a preempted job goes on where it was: as its workload did the last time, else as most did.

        A workload counts as saving until a run shows otherwise; a command that counts no iterations starts anew.
        """
        job = self.jobs.get(job_id)
        if job is None or (job.state in _KNOWN and not self._iterations_s(job_id)):
            return False
        return self.saving.of(key_of(job))

    def asked_s(self, job_id: str) -> float:
        """Return when a job's present run was asked to stop; 0 if it was not."""
        runs = self.runs.get(job_id)
        return runs[-1].asked_s if runs and not runs[-1].ended_s else 0.0

    @property
    def stop_s(self) -> float:
        """The time that a preempted run takes to stop."""
        return median(self._stops_s) if self._stops_s else 0.0

    def _iterations_s(self, job_id: str) -> dict[str, float]:
        """Return the time of an iteration of a job on each kind that its runs measured it on."""
        runs = [run for run in self.runs.get(job_id, ()) if run.loop_steps and run.loop_s > 0]
        totals: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for run in runs:
            totals[run.kind][0] += run.loop_s
            totals[run.kind][1] += run.loop_steps
        return {kind: loop_s / steps for kind, (loop_s, steps) in totals.items()}

    def _unit_s(self, key: str, own: dict[str, float]) -> float:
        """Return the work of one iteration."""
        return mean(each_s * self.speeds.of(key, kind) for kind, each_s in own.items())

    def _note_report(self, fact: RunCheckpointed | RunMeasured) -> None:
        """Note that a workload saves its work; reports are not kept: a job may run for months and save each minute."""
        job = self.jobs.get(fact.job_id)
        if job is not None and isinstance(fact, RunCheckpointed):
            self.saving.checkpointed(key_of(job))

    def _end(self, fact: RunEnded) -> None:
        super()._end(fact)
        job = self.jobs.get(fact.job_id)
        if job is None or not job.started_s or not job.may_run(fact.epoch, fact.node_id) or len(job.open_nodes) > 1:
            return
        run = self.runs[job.id][-1]
        if run.loop_steps and run.outcome in {"completed", "preempted"}:
            self._rests_s.append(run.rest_s)
        if run.outcome == "preempted":
            self._stops_s.append(run.stop_s)


def _repeated(run: PastRun, following: PastRun) -> int:
    """Return the steps of a run that failed by itself and that the next run did once more."""
    return max(0, run.steps - following.resumed_step) if run.outcome == "failed" and run.loop_steps else 0
