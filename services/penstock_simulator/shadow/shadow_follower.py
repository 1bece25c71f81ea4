"""
A cluster that follows the log of another one and decides for itself.

Up to a sequence of the log it is the real cluster. From there on the production ranker and matcher decide under the
shadow's policy. What people, nodes and the profiler say really happened, and is true in the shadow too. What the real
ranker, matcher and executors say is not true there; it only tells how fast jobs are, and how long they were.

A shadow does not resize elastic jobs. Such a job has the size that it had when the shadow began, or else the first that
it was really given, and iterates for as long as it really does, whatever sizes that took.

All of this is a function of the log and the plan: whoever reads the same log again finds the same decisions, so a
shadow stores no state of its own to go on where it was.

In :class:`ShadowExecutors` runs advance as the log measures. The shadow learns a job's length from the job's real end;
until then the job's run in the shadow goes on. A run that would have ended earlier ends when the length is known, and
:attr:`ShadowExecutors.ahead` counts it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import msgspec

from penstock_bus import Decider, Delivery
from penstock_log import (
    TERMINAL,
    AnyEvent,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    Job,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSpec,
    JobsRanked,
    JobState,
    JobSubmitted,
    JobTimeSet,
    JobUnblocked,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeResumed,
    PolicySet,
    ProfileSample,
    ReservationCancelled,
    ReservationMade,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunStarted,
    RunUnparked,
    SamplesRequested,
    ScaleDecided,
    Setting,
    TrialsScaled,
    WorkloadProfiled,
    subjects,
)
from penstock_matcher.machine import decider as matcher
from penstock_ranker.machine import decider as ranker
from penstock_simulator import CONFIGURED
from penstock_simulator.engine.cluster_script import RunCosts
from penstock_simulator.engine.engine import EventEngine, VirtualLog
from penstock_simulator.engine.executors import VirtualExecutors
from penstock_simulator.engine.policies import choose, restated
from penstock_simulator.engine.tasks import VirtualRun, VirtualTask
from penstock_simulator.shadow.live_work import LiveWork
from penstock_simulator.shadow.plan import ShadowPlan, ShadowStatus

_REAL: Final = "log"
"""The actor of what a shadow takes from the log."""
_OWN: Final = frozenset({"rank", "round", "run"})
"""The kinds of what it says itself."""
_ALSO_HERE: Final = (
    JobSubmitted,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobUnblocked,
    JobTimeSet,
    SamplesRequested,
    WorkloadProfiled,
    NodeDrained,
    NodeResumed,
    NodeLeaving,
    DeviceDrained,
    DeviceResumed,
    DeviceFailed,
    DeviceRecovered,
    ReservationMade,
    ReservationCancelled,
)
_ONLY_THERE: Final = (RoundDecided, RunStarted, RunCheckpointed, RunRewound, RunEnded)
_PRUNE_EVERY: Final = 1_000


class ShadowFollower:
    """
    The cluster of a shadow.

    Parameters
    ----------
    plan : ShadowPlan
    lengths : LiveWork, optional
        The lengths of jobs, if a later part of the log is known.
    forgets : bool
        Whether to drop jobs that are over, both here and really.

    Attributes
    ----------
    seq : int
        The last sequence of the log that was fed.
    engine : EventEngine
    measured : LiveWork
        The log so far.
    executors : ShadowExecutors
    made : list of Delivery
        Decisions that nobody has taken yet, with sequences of the shadow's own; see :meth:`take`.
    live : bool
        Whether it already decides for itself.
    over_before : set of str
        Jobs that were over when it began.
    preempted_before : dict of str to int
        Other job → how often it had been preempted by then.
    """

    def __init__(self, plan: ShadowPlan, lengths: LiveWork | None = None, *, forgets: bool = False) -> None:
        self.plan, self.seq = plan, 0
        self.made: list[Delivery] = []
        self.measured = LiveWork()
        self.over_before: set[str] = set()
        self.preempted_before: dict[str, int] = {}
        self.live = False
        self._forgets, self._away = forgets, set[str]()
        self._live_settings: dict[str, dict[str, Setting]] = {}
        chosen = choose(plan.policy, plan.settings)
        deciders: list[Decider[Any]] = [ranker(chosen.ranker, chosen.ranker.priors()), matcher(chosen.matcher)]
        self.engine = EventEngine(deciders, VirtualLog())
        self.executors = ShadowExecutors(self.engine, self.measured, lengths)
        self.engine.follow(RoundDecided, self.executors.follow)
        self.engine.witness(self._note)

    @property
    def now_s(self) -> float:
        """The shadow's time."""
        return self.engine.now_s

    def feed(self, delivery: Delivery) -> None:
        """Fold in the next commit of the log after everything due before it; what is due with it comes later."""
        if delivery.seq <= self.seq:
            return
        if not self.live and delivery.seq > self.plan.from_seq:
            self._begin()
        self.seq = delivery.seq
        self.advance(math.nextafter(delivery.stored_s, 0.0))
        self.engine.now_s = max(self.engine.now_s, delivery.stored_s)
        for fact in delivery.commit.known:
            touched = self.measured.apply(fact)
            if self._concerns(fact):
                self._apply_real(delivery.subject, fact, touched)
        if self._forgets and delivery.seq % _PRUNE_EVERY == 0:
            self._prune()

    def advance(self, now_s: float) -> None:
        """Let time pass up to ``now_s``; everything that the log has before must have been fed."""
        engine = self.engine
        if not self.live:
            engine.now_s = max(engine.now_s, now_s)
            return
        if now_s > engine.now_s:
            engine.event_queue.at(now_s, lambda: None)  # an instant at which the engine stops
            engine.run(lambda: engine.now_s < now_s)

    def begin(self) -> None:
        """Begin to decide for itself, if the log so far is the one that the plan begins with."""
        if not self.live and self.seq >= self.plan.from_seq:
            self._begin()

    def take(self) -> list[Delivery]:
        """Return the decisions since the last call."""
        made, self.made = self.made, []
        return made

    def status(self) -> ShadowStatus:
        """Return the shadow's status."""
        executors = self.executors
        waiting = sum(
            job.sample is None and job.id not in executors.runs and self._goes_on(job) for job in self.measured.jobs
        )
        return ShadowStatus(
            plan=self.plan,
            seq=self.seq,
            at_s=self.now_s,
            waiting=waiting,
            running=executors.running,
            ahead=executors.ahead,
            ahead_gpu_s=executors.ahead_gpu_s,
        )

    def _begin(self) -> None:
        self.live = True
        self.engine.now_s = max(self.engine.now_s, self.plan.from_s)
        for job in self.measured.jobs:
            if job.state in TERMINAL:
                self.over_before.add(job.id)
            elif self._is_mine(job):
                self.preempted_before[job.id] = job.preemptions
                self.executors.adopt(job)
        self.engine.wake()

    def _is_mine(self, job: Job) -> bool:
        return not self.plan.pool or job.spec.pool == self.plan.pool

    def _concerns(self, fact: AnyEvent) -> bool:
        """Return whether a fact concerns the pool that this shadow follows."""
        match fact:
            case JobSubmitted() | SamplesRequested():
                pool = fact.spec.pool
            case NodeJoined() | RoundDecided() | JobsRanked() | PolicySet() | ScaleDecided():
                pool = fact.pool
            case ReservationMade() | ReservationCancelled():
                pool = fact.pool
            case _:
                return True
        return self.plan.pool in {"", pool}

    def _apply_real(self, subject: str, fact: AnyEvent, touched: list[Job]) -> None:
        if self.live and isinstance(fact, NodeLeaving):
            self.executors.begin_leaving(fact)
        elif isinstance(fact, _ALSO_HERE):
            self._append(subject, fact)
            self._apply_people(fact, touched)
        elif isinstance(fact, NodeJoined | NodeLeft):
            self._apply_node(subject, fact)
        elif isinstance(fact, PolicySet):
            self._set_policy(subject, restated(fact, self.plan.policy, self.plan.settings))
        elif isinstance(fact, JobsRanked) and self.plan.policy == CONFIGURED and not self.live:
            self._append(subject, fact)  # by other rules every job gets a place anew, by its service
        elif isinstance(fact, ScaleDecided | TrialsScaled | RunUnparked) and not self.live:
            self._append(subject, fact)
        elif isinstance(fact, ScaleDecided):
            self._size(subject, fact)
        elif isinstance(fact, _ONLY_THERE):
            self._learn(subject, fact, touched)

    def _set_policy(self, subject: str, fact: PolicySet) -> None:
        """Set live what counts here of what somebody has set; by other rules most of it changes nothing."""
        if self.plan.policy == CONFIGURED or fact.settings != self._live_settings.get(fact.pool, {}):
            self._live_settings[fact.pool] = fact.settings
            self._append(subject, fact)

    def _apply_people(self, fact: AnyEvent, touched: list[Job]) -> None:
        if not self.live:
            return
        if isinstance(fact, JobSubmitted | SamplesRequested):
            for job in touched:
                self.executors.submit(job)
        elif isinstance(fact, JobCancelled):
            self.executors.stop(fact.job_id, "cancelled")

    def _apply_node(self, subject: str, fact: NodeJoined | NodeLeft) -> None:
        back = isinstance(fact, NodeJoined) and fact.node_id in self._away
        if isinstance(fact, NodeLeft):
            self._away.add(fact.node_id)
        else:
            self._away.discard(fact.node_id)
        if self.live and isinstance(fact, NodeLeft):
            self.executors.leave(fact)
        elif self.live and isinstance(fact, NodeJoined) and back:
            self.executors.repair(fact)
        else:  # an executor that was started again finds its processes
            self._append(subject, fact)

    def _learn(self, subject: str, fact: AnyEvent, touched: list[Job]) -> None:
        lost = fact.lost_nodes if isinstance(fact, RoundDecided) else ()
        self._away.update(lost)
        if not self.live:
            self._append(subject, fact)
            return
        if isinstance(fact, RoundDecided) and lost:
            self._append(subject, RoundDecided(at_s=fact.at_s, pool=fact.pool, lost_nodes=lost))
            self.executors.lose(lost)
        for job in touched:
            if job.placement is None:
                self.executors.learn(job)

    def _size(self, subject: str, fact: ScaleDecided) -> None:
        """Give new elastic jobs their first sizes; the others keep theirs."""
        first = tuple(demand for demand in fact.demands if not demand.epoch)
        if first or fact.dropped:
            self._append(subject, msgspec.structs.replace(fact, demands=first))

    def _append(self, subject: str, fact: AnyEvent) -> None:
        self.engine.append(subject, fact, _REAL)

    def _note(self, delivery: Delivery) -> None:
        if self.live and delivery.commit.actor != _REAL and subjects.entity_of(delivery.subject)[0] in _OWN:
            self.made.append(delivery)

    def _goes_on(self, job: Job) -> bool:
        """Return whether a job has not ended here."""
        task = self.executors.tasks.get(job.id)
        if task is None or task.over:
            return False
        dropped = job.state is JobState.FAILED and not job.attempts
        return not (dropped or job.state is JobState.CANCELLED) or job.id in self.executors.runs

    def _prune(self) -> None:
        """Drop jobs that are over, both here and really."""
        for job in list(self.measured.jobs):
            if job.state in TERMINAL and not self._goes_on(job):
                self.measured.forget(job.id)
                self.executors.forget(job.id)
                self.over_before.discard(job.id)


_CHECKPOINT_S: Final = JobSpec(name="any", command=("any",)).checkpoint_s
_A_SAMPLE: Final = -1
_NEAR_S: Final = 1.0
"""What is late by less than this is not counted as having waited."""


class ShadowExecutors(VirtualExecutors):
    """
    Executors whose tasks have no known length at first.

    Parameters
    ----------
    measured : LiveWork
        The log so far.
    lengths : LiveWork, optional
        The log up to a later time, where that is known: jobs that ended by then have their length from the beginning.

    Attributes
    ----------
    ahead : int
        Jobs that held their devices after their end, for more than a second.
    ahead_gpu_s : float
        Time for which all of them did, in GPU-seconds.
    ready_s : dict of str to float
        Such a job → when it had done all of its work.
    """

    def __init__(self, engine: EventEngine, measured: LiveWork, lengths: LiveWork | None = None) -> None:
        self._known = lengths or measured
        costs = RunCosts(checkpoint_s=_CHECKPOINT_S)
        super().__init__(engine, speed=self._known.speed, costs=costs, sampled=_never_asked)
        self._measured = measured
        self.ahead, self.ahead_gpu_s = 0, 0.0
        self.ready_s: dict[str, float] = {}

    def submit(self, job: Job) -> VirtualTask:
        """Add a job."""
        self._set_stop_cost()
        row = _A_SAMPLE if job.sample is not None else len(self.tasks)
        task = VirtualTask(job.id, row, job.spec.gpus, job.id, math.inf, iteration_s=self._known.iteration_s(job.id))
        self.tasks[job.id] = task
        self._set_work(task)
        return task

    def adopt(self, job: Job) -> None:
        """Take over a real job as it is: waiting, running or stopping."""
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
        run = VirtualRun(task, placement.epoch, placement.kind, self.speed(task.id, placement.kind), slots)
        self._hold(run)
        if job.started_s:
            run.started_s, run.begins_s = job.started_s, job.started_s + task.starting_s
            self._expect_end(run)
        else:
            run.missing = set(slots)
            self._event_queue.at(now_s, self._start, run)
        if job.stopping:
            self.stop(job.id, job.reason, self._measured.asked_s(job.id) or now_s)

    def stop(self, job_id: str, reason: str, asked_s: float | None = None) -> None:
        """Stop a run that is not wanted any more, by default from now on."""
        run = self.runs.get(job_id)
        if run is None or run.asked:
            return
        run.asked, now_s = True, self._engine.now_s
        if not run.halted:
            self._halt(run, asked_s or now_s, saved=True)
        self._event_queue.at(max(now_s, (asked_s or now_s) + self.costs.stop_s), self._end_all, run, reason)

    def lose(self, node_ids: tuple[str, ...]) -> None:
        """End what runs on nodes that are lost."""
        for node_id in node_ids:
            self._lose(node_id)

    def learn(self, job: Job) -> None:
        """Learn from a real run, or from the end of a whole job."""
        self._set_stop_cost()
        task = self.tasks.get(job.id)
        if (
            task is None
            or task.over
            or job.state not in {JobState.COMPLETED, JobState.FAILED}
            or math.isfinite(task.work_s)
        ):
            return
        self._set_work(task)
        run = self.runs.get(job.id)
        if run is not None and not run.halted and math.isfinite(run.begins_s):
            run.speed, run.begins_s = self.speed(job.id, run.kind), run.started_s + task.starting_s
            self._expect_end(run)

    def forget(self, job_id: str) -> None:
        """Drop a job that is over."""
        self.tasks.pop(job_id, None)
        self.ready_s.pop(job_id, None)

    def _halt(self, run: VirtualRun, now_s: float, *, saved: bool) -> None:
        run.task.saves = self._known.saves(run.task.id)
        super()._halt(run, now_s, saved=saved)

    def _set_stop_cost(self) -> None:
        """Set the time to stop a run to that of real runs."""
        if self.costs.stop_s != self._known.stop_s:
            self.costs = replace(self.costs, stop_s=self._known.stop_s)

    def _set_work(self, task: VirtualTask) -> None:
        task.starting_s = self._known.rest_s(task.id)
        work_s = self._known.work_s(task.id)
        if work_s is not None:
            task.work_s = work_s
            task.kept_s = min(task.kept_s, work_s)

    def _expect_end(self, run: VirtualRun) -> None:
        """End a run when its work is done; at once if that was before now."""
        task, now_s = run.task, self._engine.now_s
        if math.isinf(task.work_s):
            return
        end_s = run.begins_s + (task.work_s - task.kept_s) / run.speed
        if end_s < now_s:
            self.ahead += end_s < now_s - _NEAR_S
            self.ahead_gpu_s += (now_s - end_s) * task.gpus
            self.ready_s[task.id] = end_s
        self._event_queue.at(max(now_s, end_s), self._complete, run)


def _never_asked(_asked: SamplesRequested, _sample: ProfileSample) -> VirtualTask:
    raise RuntimeError("the real profiler asks for samples, and no other; a shadow has none")
