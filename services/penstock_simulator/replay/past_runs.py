"""
The runs of a history as work for a simulation: what they were worth and what they cost.

The work of a job is its iterations if it counts them, its samples if it counts these too, and otherwise the seconds
that it ran. Each run of the history says how long it took to start and how fast it was then; the runs of the replay
take these in turn (:class:`PastTask`). A run may have another kind, or another size, than the past run whose turn it
takes: then it is as fast as the job's other runs were there, and if there are none, as its workload's profile says.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

import msgspec

from penstock_log import (
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    Job,
    JobSpec,
    JobState,
    NodeDrained,
    NodeLeaving,
    NodeResumed,
    ProfileSample,
    SamplesRequested,
    Scalability,
    Size,
    WorkloadProfiled,
    WorkloadScaled,
)
from penstock_policies import scaling_model
from penstock_policies.sample_plan import is_sampled
from penstock_simulator.engine.tasks import VirtualTask, uncounted_work_s
from penstock_simulator.replay.history import ClusterHistory, PastRun, key_of

LEAST_S: Final = 1e-3
_MARGIN: Final = 1.1
"""A run that was stopped would have gone on for longer; by this much, if what is known of its job says otherwise."""
_KNOWN: Final = frozenset(
    {JobState.COMPLETED, JobState.FAILED}
)  # who ended otherwise may count iterations all the same
Unit = Literal["seconds", "steps", "samples"]


@dataclass(slots=True)
class PastAttempt:
    """
    One run of the history.

    Attributes
    ----------
    starting_s : float
        Time from its placement to its first iteration.
    per_s : float
        Work that it did in a second from then on; 0 if it did none.
    worked : float
        Work that it did, kept or not.
    begun, kept : float
        Work that was done and saved over all runs when it began, and when the next one began.
    failures : int
        Failures among the runs before it.
    """

    run: PastRun
    starting_s: float
    per_s: float
    worked: float
    begun: float
    kept: float
    failures: int

    @property
    def launch_s(self) -> float:
        """Time from its placement to the start of its processes."""
        return max(0.0, self.run.started_s - self.run.placed_s)


@dataclass(slots=True)
class PastTask(VirtualTask):
    """
    A task whose runs go as the runs of the history went.

    Attributes
    ----------
    unit : {"seconds", "steps", "samples"}
        The unit of its work.
    attempts : list of PastAttempt
    cut : bool
        Whether its end is unknown, because it was cancelled or still ran; it is cancelled after as much work as it did.
    failed, placed : int
        Runs that have failed so far, and placements since the last of them.
    attempt : PastAttempt or None
        The past run whose turn its present run takes.
    """

    unit: Unit = "seconds"
    attempts: list[PastAttempt] = field(default_factory=list)
    cut: bool = False
    failed: int = 0
    placed: int = 0
    attempt: PastAttempt | None = None

    def take(self) -> PastAttempt | None:
        """Begin the next run; return the past run whose turn it takes."""
        turn = [attempt for attempt in self.attempts if attempt.failures == self.failed] or self.attempts[-1:]
        self.attempt = turn[min(self.placed, len(turn) - 1)] if turn else None
        self.placed += 1
        return self.attempt

    def begin(self) -> float:
        """Begin to work; return how long it still takes to the first iteration."""
        self.runs += 1
        attempt = self.attempt
        return max(0.0, attempt.starting_s - attempt.launch_s) if attempt is not None else self.starting_s

    def steps(self, work_s: float) -> int:
        """Return how many iterations make up an amount of work; 0 for a command that counts none."""
        return 0 if self.unit == "seconds" else round(work_s / self.iteration_s)


class PastRunLedger:
    """
    The work and the costs of past runs, by the history's measurements.

    Parameters
    ----------
    history : ClusterHistory
    jobs : sequence of Job
        The jobs that ran; row by row of the replay's trace.
    silence_s : float
        Silence after which a node was declared lost.
    await_s : float
        The longest time that a job waits for samples.

    Attributes
    ----------
    tasks : list of PastTask
        Tasks of these jobs.
    others : list of PastTask
        Tasks of jobs that never ran.
    stop_s : float
        The time that most preempted runs took to stop.
    """

    def __init__(
        self, history: ClusterHistory, jobs: Sequence[Job], silence_s: float = 0.0, await_s: float = 10.0
    ) -> None:
        self.history, self._silence_s, self._await_s = history, silence_s, await_s
        self._keys = {job.id: key_of(job) for job in history.jobs}
        self._scaled = _scaled(history)
        facts = [fact for statement in history.statements for fact in statement.facts]
        self._nodes_s = sorted(_nodes_changed_s(history))
        self._asked = {self._keys.get(job_id, "") for job_id, spec in history.specs.items() if is_sampled(spec)}
        self._sampled = {fact.key for fact in facts if isinstance(fact, SamplesRequested)}
        self._answered_s: dict[str, float] = {}
        for fact in facts:
            if isinstance(fact, WorkloadProfiled):
                self._answered_s.setdefault(fact.key, fact.at_s)
        self._least_rest_s = self._rests_s()
        self._rest_s = _middle(self._least_rest_s.values())
        self._launch_s = _middle(
            run.started_s - run.placed_s for runs in history.placed.values() for run in runs if not run.refused
        )
        self.stop_s = _middle(
            run.stop_s for job in jobs for run in history.runs[job.id] if run.outcome == "preempted" and run.asked_s
        )
        self.tasks = [self._task(job, row) for row, job in enumerate(jobs)]
        ran = {job.id for job in jobs}
        self.others = [self._other(job) for job in history.jobs if job.sample is None and job.id not in ran]
        self._tasks = {task.id: task for task in (*self.tasks, *self.others)}

    def spec(self, job: Job) -> JobSpec:
        """
        Return the specification with which a job is submitted; it waits for samples if it did so in the history.

        The profiler's settings and version decide which workloads are sampled, and a replay has only the samples that
        there were: a job that waited for others would wait in vain.
        """
        spec = self.history.specs.get(job.id, job.spec)
        if spec.profile != "off" and self._waited(job):
            return msgspec.structs.replace(spec, profile="on", opaque=False)
        return msgspec.structs.replace(spec, profile="off")

    def _waited(self, job: Job) -> bool:
        """
        Return whether a job may have waited for samples.

        It did not if it was placed before their answer came, unless nodes had changed meanwhile.

        A job that is none to be sampled does not wait for what is sampled for another of its workload. Where no job of
        a sampled workload is one, an earlier version had other rules, and nobody knows which of them waited.
        """
        key, runs = self._keys[job.id], self.history.placed.get(job.id, ())
        if key not in self._sampled or (
            key in self._asked and not is_sampled(self.history.specs.get(job.id, job.spec))
        ):
            return False
        answered_s = self._answered_s.get(key, math.inf)
        if job.spec.elastic or not runs or runs[0].placed_s >= min(answered_s, job.submitted_s + self._await_s):
            return True
        return self._had_other_nodes(job.submitted_s, runs[0].placed_s)

    def _had_other_nodes(self, from_s: float, until_s: float) -> bool:
        """Return whether nodes changed in a time: where one kind is left, no job waits for speeds any more."""
        at = bisect_right(self._nodes_s, from_s)
        return at < len(self._nodes_s) and self._nodes_s[at] <= until_s

    def per_s(self, task: PastTask, kind: str, size: Size) -> float:
        """Return the work that a task's next run does in a second."""
        per_s, least_s, left = self._per_s(task, kind, size), self._least_s(task), task.next_s - task.kept_s
        return left / (_MARGIN * least_s) if per_s * least_s > left else per_s

    def _per_s(self, task: PastTask, kind: str, size: Size) -> float:
        attempt = task.attempt
        if attempt is not None and attempt.per_s and (attempt.run.kind, attempt.run.asks) == (kind, size):
            return attempt.per_s
        return self._elsewhere(task, kind, size)

    def _least_s(self, task: PastTask) -> float:
        """Return the least time that a run iterates: that of the past run, if this did not end by itself."""
        attempt = task.attempt
        if attempt is None or attempt.run.outcome not in {"preempted", "lost"}:
            return 0.0
        silence_s = self._silence_s if attempt.run.outcome == "lost" else 0.0
        return max(0.0, attempt.run.held_s - attempt.run.stop_s - attempt.starting_s - silence_s)

    def speed(self, job_id: str, kind: str) -> float:
        """Return the speed of a job's workload on a kind, relative to its fastest kind."""
        return self.history.speeds.of(self._keys.get(job_id, job_id), kind)

    def length_s(self, task: PastTask, kinds: Sequence[str]) -> float:
        """Return the time of a task on its fastest kind, if nothing stops it."""
        size = Size(task.gpus, task.attempts[-1].run.asks.batch_size) if task.attempts else Size(task.gpus)
        measured = [attempt.per_s for attempt in task.attempts if attempt.per_s]
        if not measured or math.isinf(task.work_s):
            return max(LEAST_S, task.work_s) if math.isfinite(task.work_s) else LEAST_S
        own = {attempt.run.kind for attempt in task.attempts if attempt.per_s} or set(kinds)
        return max(LEAST_S, task.work_s / max(self._elsewhere(task, kind, size) for kind in own))

    def sampled(self, asked: SamplesRequested, sample: ProfileSample) -> VirtualTask:
        """Return a sample as it ran; a sample that had not run by the log's end is over at once."""
        job = self.history.jobs.get(sample.sample_id)
        self._keys.setdefault(sample.sample_id, asked.key)
        if job is not None and self.history.placed.get(job.id):
            return self._task(job, -1)
        return PastTask(sample.sample_id, -1, sample.gpus, sample.sample_id, LEAST_S, starting_s=self._launch_s)

    def _task(self, job: Job, row: int) -> PastTask:
        runs = self.history.placed[job.id]
        spec = self.history.specs.get(job.id, job.spec)
        unit = _unit(runs, spec)
        attempts = self._attempts(job, runs, unit)
        task = PastTask(
            job.id,
            row,
            runs[-1].size.gpus if row < 0 else spec.gpus,
            job.id,
            self._work(job, runs, unit),
            iteration_s=_iteration(runs, unit),
            unit=unit,
            attempts=attempts,
            cut=job.state not in _KNOWN and runs[-1].outcome not in {"completed", "failed"},
            saves=self._saves(job, attempts, unit),
            failures=_failures(attempts, unit),
        )
        task.work_s = max([task.work_s, *(reached for reached, _ in task.failures)])
        if self._left_waiting(job):
            task.work_s = math.inf
        elif unit != "seconds" and not runs[-1].ends and runs[-1].outcome == "cancelled":
            task.work_s = max(task.work_s, self._so_far(task, attempts[-1]))
        return task

    def _left_waiting(self, job: Job) -> bool:
        """Return whether a job waited when it was cancelled or the log ended: its remaining length is not known."""
        if job.id not in self.history.cancelled_s:
            return job.state is JobState.PENDING
        return job.state not in _KNOWN and self.history.placed[job.id][-1].outcome != "cancelled"

    def _so_far(self, task: PastTask, attempt: PastAttempt) -> float:
        """Return the work of a job whose last run went on when the log ended, by how fast its earlier runs were."""
        run = attempt.run
        before = float(task.iteration_s * run.resumed_step)
        return before + max(0.0, run.held_s - attempt.starting_s) * self._elsewhere(task, run.kind, run.asks)

    def _other(self, job: Job) -> PastTask:
        """Return the task of a job that never ran: it waits, fails at once or is cancelled; a start has no end."""
        if runs := self.history.placed.get(job.id):
            attempts = self._attempts(job, runs, "seconds")
            failures = _failures(attempts, "seconds")
            return PastTask(job.id, -1, 1, job.id, LEAST_S, attempts=attempts, failures=failures, saves=False)
        spec = self.history.specs.get(job.id, job.spec)
        return PastTask(job.id, -1, spec.gpus, job.id, math.inf, starting_s=self._launch_s, saves=False)

    def _saves(self, job: Job, attempts: Sequence[PastAttempt], unit: Unit) -> bool:
        """Return whether a job goes on where it was stopped: by its own stops, else by those of its workload."""
        if unit == "seconds" and (job.state in _KNOWN or len(attempts) > 1):
            return False
        for one in reversed(attempts):
            if one.run.outcome == "preempted" and one.worked:
                return 2 * (one.kept - one.begun) >= one.worked
        return self.history.saving.of(self._keys[job.id])

    def _work(self, job: Job, runs: Sequence[PastRun], unit: Unit) -> float:
        if unit == "seconds":
            if not runs[-1].refused and runs[-1].outcome in {"completed", "failed"}:
                return max(LEAST_S, self._seconds(job, runs[-1]))
            held = [(run.kind, self._seconds(job, run) / self.speed(job.id, run.kind), run.outcome) for run in runs]
            return max(LEAST_S, uncounted_work_s(held, lambda kind: self.speed(job.id, kind)))
        done = [run.samples if unit == "samples" else run.steps for run in runs]
        return float(max([1, *done]))

    def _seconds(self, job: Job, run: PastRun) -> float:
        """Return the work of a run that counts nothing: its time, at its kind's speed."""
        return max(0.0, run.ended_s - run.started_s - run.stop_s) * self.speed(job.id, run.kind)

    def _attempts(self, job: Job, runs: Sequence[PastRun], unit: Unit) -> list[PastAttempt]:
        found, failures = list[PastAttempt](), 0
        for at, run in enumerate(runs):
            following = runs[at + 1] if at + 1 < len(runs) else None
            begun = found[-1].kept if found else 0.0
            starting_s, worked, per_s = self._pace(job, run, unit, begun)
            found.append(
                PastAttempt(
                    run=run,
                    starting_s=starting_s,
                    per_s=per_s,
                    worked=worked,
                    begun=begun,
                    kept=_kept(run, following, unit),
                    failures=failures,
                )
            )
            failures += run.outcome == "failed"
        return found

    def _pace(self, job: Job, run: PastRun, unit: Unit, begun: float) -> tuple[float, float, float]:
        """Return a run's time to start, its work, and its work in a second, 0 if unknown."""
        launch_s, active_s = run.started_s - run.placed_s, max(0.0, run.held_s - run.stop_s)
        if unit == "seconds":
            return launch_s, self._seconds(job, run), self.speed(job.id, run.kind)
        least_s = self._least_rest_s.get(self._keys[job.id], self._rest_s)
        if not run.ends:  # its node was lost, or it goes on: it did not live to say how far it came
            return max(launch_s, min(active_s, least_s)), 0.0, 0.0
        worked = _worked(run, unit, begun)
        if not worked:  # it failed, or was stopped, before its first iteration
            return active_s, 0.0, 0.0
        starting_s = max(launch_s, min(active_s - run.loop_s, least_s))
        loop_s = active_s - starting_s
        return starting_s, worked, worked / loop_s if loop_s > 0 else 0.0

    def _elsewhere(self, task: PastTask, kind: str, size: Size) -> float:
        """Return the work in a second on a kind with a size, by other runs of the same job."""
        if task.unit == "seconds":
            return self.speed(task.id, kind)
        known = [attempt for attempt in task.attempts if attempt.per_s]
        if not known:
            return 1.0
        near = (
            [one for one in known if (one.run.kind, one.run.asks) == (kind, size)]
            or [one for one in known if one.run.asks == size]
            or [one for one in known if one.run.kind == kind]
            or known
        )
        worked = sum(one.worked for one in near)
        return worked / sum(one.worked / self._scaled_to(task, one, kind, size) for one in near)

    def _scaled_to(self, task: PastTask, attempt: PastAttempt, kind: str, size: Size) -> float:
        """Return the work of a run in a second elsewhere: only its part on the device depends on the kind."""
        run = attempt.run
        whole_s = 1.0 / attempt.per_s
        device_s = min(whole_s, run.loop_s / attempt.worked) if attempt.worked else whole_s
        ratio = self.speed(task.id, run.kind) / self.speed(task.id, kind)
        if size != run.asks:
            ratio /= self._gain(task, run, size)
        return 1.0 / (whole_s - device_s + device_s * ratio)

    def _gain(self, task: PastTask, run: PastRun, size: Size) -> float:
        """Return the work that a workload does with a size, relative to the work with a run's size."""
        spec = self.history.specs.get(task.id)
        known = self._scaled.get(self._keys.get(task.id, ""), {}).get(run.kind)
        if spec is None:
            return 1.0
        before, after = run.asks, size
        if known is None or not known.timings:
            return float((after.gpus / before.gpus) ** scaling_model.EXPONENT)
        speeds = [
            scaling_model.throughput(known, spec, each.batch_size or spec.batch_size or each.gpus, each.gpus)[0]
            for each in (before, after)
        ]
        if not all(math.isfinite(speed) and speed > 0 for speed in speeds):
            return float((after.gpus / before.gpus) ** scaling_model.EXPONENT)
        gain = speeds[1] / speeds[0]
        if task.unit == "steps" and before.batch_size and after.batch_size:
            gain *= before.batch_size / after.batch_size
        return float(gain)

    def _rests_s(self) -> dict[str, float]:
        """Return the shortest time that a run of each workload took beside its loop: what starting takes."""
        found: dict[str, float] = {}
        for job_id, runs in self.history.runs.items():
            key = self._keys[job_id]
            for run in runs:
                if run.loop_steps and run.outcome in {"completed", "preempted"}:
                    found[key] = min(run.rest_s, found.get(key, math.inf))
        return found


def _unit(runs: Sequence[PastRun], spec: JobSpec) -> Unit:
    if not any(run.loop_steps and run.loop_s > 0 for run in runs):
        return "seconds"
    return "samples" if spec.elastic and any(run.samples for run in runs) else "steps"


def _worked(run: PastRun, unit: Unit, begun: float) -> float:
    """Return the work of a run, kept or not; of samples only the kept ones are known."""
    if unit == "samples":
        return max(run.samples - begun, 0.0) or float(run.loop_steps * run.batch_size)
    return float(run.loop_steps)


def _iteration(runs: Sequence[PastRun], unit: Unit) -> float:
    if unit != "samples":
        return 1.0
    steps = max(run.steps for run in runs)
    return max(run.samples for run in runs) / steps if steps else 1.0


def _kept(run: PastRun, following: PastRun | None, unit: Unit) -> float:
    if unit == "samples":
        return float(run.samples)
    return float(run.steps if following is None else following.resumed_step)


def _failures(attempts: Sequence[PastAttempt], unit: Unit) -> list[tuple[float, float]]:
    """Return the work at which runs failed, and the part of it that the next run began with."""
    found = list[tuple[float, float]]()
    for attempt in attempts:
        if attempt.run.outcome == "failed":
            reached = 0.0 if attempt.run.refused else attempt.worked if unit == "seconds" else _reached(attempt, unit)
            kept = 0.0 if unit == "seconds" else attempt.kept
            found.append((reached, min(kept, reached)))
    return found


def _reached(attempt: PastAttempt, unit: Unit) -> float:
    run = attempt.run
    return float(run.samples) if unit == "samples" else float(max(run.steps, run.resumed_step + run.loop_steps))


def _nodes_changed_s(history: ClusterHistory) -> Iterator[float]:
    """Yield when nodes came and went, and when they or their devices were drained, failed, or came back."""
    changes = (NodeDrained, NodeResumed, NodeLeaving, DeviceDrained, DeviceResumed, DeviceFailed, DeviceRecovered)
    yield from (fact.at_s for _, fact in history.people_facts if isinstance(fact, changes))
    yield from (joined.at_s for joined in history.joined)
    for at_s, _, back, _ in history.gone:
        yield at_s
        if back is not None:
            yield back.at_s


def _scaled(history: ClusterHistory) -> Mapping[str, Mapping[str, Scalability]]:
    found = dict[str, dict[str, Scalability]]()
    for statement in history.statements:
        for fact in statement.facts:
            if isinstance(fact, WorkloadScaled):
                found[fact.key] = {each.kind: each for each in fact.kinds}
    return found


def _middle(values_s: Iterable[float]) -> float:
    found = list(values_s)
    return median(found) if found else 0.0
