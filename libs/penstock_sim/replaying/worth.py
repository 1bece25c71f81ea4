"""What the runs of a history were worth and what they cost, as work for a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import mean, median
from typing import Final

from penstock_events import Job, Sample, SamplesRequested, State, workload
from penstock_sim.history import History, Ran, key_of
from penstock_sim.replaying.sized import equal
from penstock_sim.saving import uncounted_work_s
from penstock_sim.virtual.tasks import Task

_LEAST_S: Final = 1e-3
_KNOWN: Final = frozenset({State.COMPLETED, State.FAILED})  # who ended otherwise may count iterations all the same


class Book:
    """What runs were worth and what they cost, by the history's measurements."""

    def __init__(self, history: History, jobs: list[Job]) -> None:
        self.history = history
        self._speeds: dict[str, Mapping[str, float]] = {}
        self._runs = {job.id: runs_of(history, job) for job in jobs}
        self._keys = {job.id: key_of(job) for job in history.jobs}
        self._known_as = {workload.key(job.spec): self._keys[job.id] for job in jobs}  # gangs that were elastic
        rests_s = [run.rest_s for job in jobs for run in history.runs[job.id] if _whole(run)]
        self._rest_s = median(rests_s) if rests_s else 0.0
        self.tasks = [self._task(job, row) for row, job in enumerate(jobs)]
        stops_s = [run.stop_s for job in jobs for run in history.runs[job.id] if run.outcome == "preempted"]
        self.stop_s = median(stops_s) if stops_s else 0.0

    def speed(self, name: str, kind: str) -> float:
        """Return how fast a task is on a kind: measured where it ran there, else by its workload's profile."""
        own = self._speeds.get(name, {})
        if kind in own:
            return own[kind]
        key = self._keys.get(name, name)
        told = self.history.speeds.of(key, kind)
        known = [(own[k] / self.history.speeds.of(key, k)) for k in own]
        return told * (mean(known) if known else 1.0)

    def sampled(self, asked: SamplesRequested, sample: Sample) -> Task:
        """Return a sample as it ran; one that did not, as the profile says that it would have."""
        runs = [run for run in self.history.runs.get(sample.sample_id, ()) if run.loop_steps]
        if runs:
            run = runs[-1]
            self._speeds[sample.sample_id] = {sample.kind: 1.0}
            return self._sample(sample, run.loop_s / run.loop_steps, run.rest_s)
        self._keys[sample.sample_id] = self._known_as.get(asked.key, asked.key)
        return self._sample(sample, _LEAST_S, self._rest_s)

    def _sample(self, sample: Sample, iteration_s: float, rest_s: float) -> Task:
        work_s = sample.iterations * iteration_s
        return Task(
            sample.sample_id, -1, 1, sample.sample_id, work_s, starting_s=rest_s, iteration_s=max(iteration_s, 1e-9)
        )

    def _task(self, job: Job, row: int) -> Task:
        runs = self._runs[job.id]
        rests_s = [run.rest_s for run in runs if run.loop_steps]
        iteration_s = _iterations_s(runs)
        if not iteration_s:  # it counts none, or its first run goes on: whatever it held its devices for is work
            work_s = uncounted_work_s(runs, lambda kind: self.speed(job.id, kind))
            saves = job.state not in _KNOWN and self.history.saving.of(self._keys[job.id])
            return Task(job.id, row, job.spec.gpus, job.id, max(work_s, _LEAST_S), saves=saves)
        fastest_s = min(iteration_s.values())
        self._speeds[job.id] = {kind: fastest_s / each_s for kind, each_s in iteration_s.items()}
        return Task(
            job.id,
            row,
            job.spec.gpus,
            job.id,
            max(max(run.steps for run in runs) * fastest_s, _LEAST_S),
            starting_s=median(rests_s),
            startings_s=[run.rest_s if run.loop_steps else median(rests_s) for run in runs],
            iteration_s=fastest_s,
            saves=self.history.saving.of(self._keys[job.id]),
            failures=[(reached * fastest_s, kept * fastest_s) for reached, kept in _failures(runs)],
        )


def runs_of(history: History, job: Job) -> list[Ran]:
    """Return a job's runs, those of an elastic one as if they had been of one size."""
    was = history.jobs.get(job.id)
    runs = history.runs[job.id]
    return equal(runs) if was is not None and was.spec.elastic else runs


def _whole(run: Ran) -> bool:
    return run.outcome == "completed" and run.loop_steps > 0


def _iterations_s(runs: list[Ran]) -> dict[str, float]:
    """Return the time of an iteration on each kind that the runs measured it on."""
    kinds = {run.kind for run in runs if run.loop_steps and run.loop_s > 0}
    return {
        kind: sum(run.loop_s for run in runs if run.kind == kind)
        / sum(run.loop_steps for run in runs if run.kind == kind)
        for kind in sorted(kinds)
    }


def _failures(runs: list[Ran]) -> list[tuple[int, int]]:
    """Return the steps at which runs failed and were tried again, and the steps that the next run began with."""
    return [
        (run.steps, following.resumed_step)
        for run, following in pairwise(runs)
        if run.outcome == "failed" and run.loop_steps
    ]
