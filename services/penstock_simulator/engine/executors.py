"""
Virtual executors and the environment.

:class:`VirtualExecutors` are the executors of all nodes of a virtual cluster: they answer rounds with the facts that
real executors would write. The :class:`Environment` is the cluster's outside: nodes join and fail, jobs arrive.

A run holds its devices from its placement. Nothing advances for ``start_s``; then work is done at the speed of the
kind, and the run ends when none is left. A preempted run keeps what it has done and is gone after ``stop_s``. When a
node fails, its runs stand still, gangs on all their nodes, and keep what the last checkpoint has. Nobody hears of the
failure until the matcher misses the node's heartbeats, or until the node's executor is back and finds the processes
gone. A task that does not save keeps nothing after a preemption or a failure.

Where ``parked_start_s`` is given, a preempted run of one device whose task saves is parked on its node, and the next
one goes on in that time if it is placed there, on a device of that kind. It is parked until the job is placed, or has
ended, until its node is gone, or until others need the room.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from penstock_bus import Delivery
from penstock_log import (
    JobCancelled,
    JobSubmitted,
    JobTable,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    Outcome,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    RunUnparked,
    SamplesRequested,
    subjects,
)
from penstock_simulator.engine.cluster_script import Failures, RunCosts, Sampled, Script, Speed
from penstock_simulator.engine.engine import EventEngine
from penstock_simulator.engine.tasks import VirtualRun, VirtualTask

Ended = Callable[[VirtualRun, str, tuple[int, ...], float], None]
"""Is told when a run's part on a node ends: the run, the node, its devices, and the time."""


class VirtualExecutors:
    """
    The executors of all nodes: they run tasks as rounds say.

    Parameters
    ----------
    engine : EventEngine
    speed : Speed
    costs : RunCosts
        Costs of stopping and of checkpoints; each task has its own costs of starting and of iterations.
    sampled : Sampled
    on_ended : callable, optional

    Attributes
    ----------
    tasks : dict of str to VirtualTask
        All tasks that were submitted.
    runs : dict of str to VirtualRun
        Job → the run that holds its devices.
    down_s : dict of str to float
        Failed node → when it was last heard of.
    busy : int
        Devices that runs hold.
    running, ended : int
        Jobs that hold devices, and jobs that have ended; samples are left out.
    """

    def __init__(
        self,
        engine: EventEngine,
        *,
        speed: Speed,
        costs: RunCosts,
        sampled: Sampled,
        on_ended: Ended | None = None,
    ) -> None:
        self.tasks: dict[str, VirtualTask] = {}
        self.runs: dict[str, VirtualRun] = {}
        self.down_s: dict[str, float] = {}
        self.busy = self.running = self.ended = 0
        self._here: defaultdict[str, dict[str, VirtualRun]] = defaultdict(dict)  # node → job → run
        self._parked: defaultdict[str, dict[str, VirtualRun]] = defaultdict(dict)  # the same; the longest parked first
        self._parked_on: dict[str, str] = {}
        self._engine, self._event_queue, self._append = engine, engine.event_queue, engine.append
        self.speed, self.costs, self._sampled, self._on_ended = speed, costs, sampled, on_ended

    def expect(self, fact: SamplesRequested) -> None:
        """Add the tasks of samples, which a later round will place."""
        self.tasks.update({sample.sample_id: self._sampled(fact, sample) for sample in fact.samples})

    def follow(self, fact: RoundDecided) -> None:
        """Carry out a round's placements and preemptions."""
        for node_id in fact.lost_nodes:
            self._lose(node_id)
        for preemption in fact.preemptions:
            self._preempt(preemption)
        for placement in fact.placements:
            self._place(placement)

    def fail(self, node_id: str, heard_s: float | None = None) -> None:
        """Take a node down; it was last heard of at ``heard_s``, by default now."""
        now_s = self._engine.now_s
        self._parked.pop(node_id, None)
        self.down_s[node_id] = now_s if heard_s is None else heard_s
        for run in self._here[node_id].values():
            if not run.halted:
                self._halt(run, now_s, saved=False)

    def repair(self, joined: NodeJoined) -> None:
        """Bring a node back: runs that still hold devices there are lost, then the node offers its devices."""
        node_id, now_s = joined.node_id, self._engine.now_s
        self.down_s.pop(node_id, None)
        for run in list(self._here[node_id].values()):
            if node_id not in run.missing:
                self._end(run, node_id, "lost", "its processes vanished without an exit status")
                self._event_queue.at(now_s, self._end_all, run, "ended because its gang ended on another node")
            elif run.halted:
                self._end(run, node_id, "preempted", "it is not wanted any more")
        self._append(subjects.node(node_id), joined, f"executor/{node_id}")
        for run in list(self._here[node_id].values()):
            self._event_queue.at(now_s, self._start, run)

    def begin_leaving(self, leaving: NodeLeaving) -> None:
        """Say that a node leaves, and have its runs save: they end as preempted runs do, before the node has left."""
        self._append(subjects.node(leaving.node_id), leaving, f"executor/{leaving.node_id}")
        now_s = self._engine.now_s
        for run in self._stopped_on(leaving.node_id):
            self._event_queue.at(now_s + self._stop_s(run), self._end_all, run, _shutting_down(leaving.node_id))

    def leave(self, left: NodeLeft) -> None:
        """Shut a node down in good order: its runs are preempted, then the node leaves."""
        for run in self._stopped_on(left.node_id):
            self._end_all(run, _shutting_down(left.node_id))
        self._append(subjects.node(left.node_id), left, f"executor/{left.node_id}")

    def _stopped_on(self, node_id: str) -> list[VirtualRun]:
        """Have the runs of a node stop and save; nothing is kept on a node that leaves. Return them."""
        self._parked.pop(node_id, None)
        found = list(self._here[node_id].values())
        for run in found:
            run.asked, run.parks = True, False
            if not run.halted:
                self._halt(run, self._engine.now_s, saved=True)
        return found

    def cancel(self, fact: JobCancelled) -> None:
        """Cancel a job; if it runs, its run stops."""
        task, now_s = self.tasks.get(fact.job_id), self._engine.now_s
        if task is None or task.over or task.cancelled:
            return
        task.cancelled = True
        self._unpark(task.id)
        run = self.runs.get(task.id)
        self._append(subjects.job(task.id), msgspec.structs.replace(fact, at_s=now_s), "gateway/sim")
        if run is None:
            self._note_over(task)
        elif not run.asked:
            run.asked = True
            if not run.halted:
                self._halt(run, now_s, saved=True)
            self._event_queue.at(now_s + self._stop_s(run), self._end_cancelled, run)

    # --- the beginning of a run
    def _place(self, placement: Placement) -> None:
        task, kind = self.tasks[placement.job_id], placement.kind
        slots = {slot.node_id: slot.devices for slot in placement.slots}
        task.gpus = sum(map(len, slots.values()))
        run = VirtualRun(task, placement.epoch, kind, self._pace(task, kind), slots, set(slots))
        node_id, parked = self._unpark(task.id)
        run.goes_on = parked is not None and parked.kind == kind and node_id in slots and task.gpus == 1
        self._hold(run)
        self._event_queue.at(self._engine.now_s + self._launch_s(run), self._start, run)

    def _hold(self, run: VirtualRun) -> None:
        """Count a run's devices as held."""
        self.runs[run.task.id] = run
        self.busy += sum(map(len, run.open.values()))
        self.running += run.task.row >= 0
        for node_id in run.open:
            self._here[node_id][run.task.id] = run

    def _launch_s(self, _run: VirtualRun) -> float:
        """Return the time from a placement to the start of its processes."""
        return 0.0

    def _pace(self, task: VirtualTask, kind: str) -> float:
        """Return how much work a run of a task does in a second."""
        return self.speed(task.model, kind)

    def _start(self, run: VirtualRun) -> None:
        """Start what has not started, on the nodes that are up; work begins when the gang is complete."""
        now_s = self._engine.now_s
        if not self._is_on(run) or run.asked:
            return
        for node_id in [node_id for node_id in run.open if node_id in run.missing and node_id not in self.down_s]:
            run.missing.discard(node_id)
            self._report_start(run, node_id, now_s)
        if not run.missing and not run.halted:
            start_s, parked_start_s = run.task.begin(), self.costs.parked_start_s
            run.begins_s = now_s + (parked_start_s if run.goes_on and parked_start_s is not None else start_s)
            left_s = run.task.next_s - run.task.kept_s
            self._event_queue.at(run.begins_s + left_s / run.speed, self._complete, run)

    def _report_start(self, run: VirtualRun, node_id: str, now_s: float) -> None:
        task = run.task
        if math.isnan(run.started_s):
            run.started_s = now_s
        if math.isnan(task.start_s):
            task.start_s = now_s
        started = RunStarted(
            at_s=now_s,
            job_id=task.id,
            epoch=run.epoch,
            node_id=node_id,
            devices=run.open[node_id],
            resumed_step=task.steps(task.kept_s),
            start="parked" if run.goes_on else "",
        )
        self._append(subjects.run(task.id), started, f"executor/{node_id}")

    # --- its end
    def _complete(self, run: VirtualRun) -> None:
        if not self._is_on(run) or run.halted:
            return
        task = run.task
        run.done_s = task.next_s - task.kept_s
        outcome: Outcome = "failed" if task.failures else "completed"
        if task.failures:
            reached_s, kept_s = task.failures.pop(0)
            task.lost_s += reached_s - kept_s
            task.kept_s = kept_s
        else:
            task.kept_s = task.work_s
        for node_id in list(run.open):
            self._end(run, node_id, outcome)

    def _preempt(self, preemption: Preemption) -> None:
        run = self.runs.get(preemption.job_id)
        if run is None or run.epoch != preemption.epoch or run.asked:
            return
        run.asked, now_s = True, self._engine.now_s
        works = not run.halted and now_s >= run.begins_s  # or its script has not come to its loop
        parks = self.costs.parked_start_s is not None and self.costs.most_parked > 0
        run.parks = parks and works and run.task.saves and run.task.gpus == 1
        if not run.halted:
            self._halt(run, now_s, saved=True)
        self._event_queue.at(now_s + self._stop_s(run), self._end_all, run, preemption.reason)

    def _stop_s(self, _run: VirtualRun) -> float:
        """Return how long a run that is asked to stop still holds its devices."""
        return self.costs.stop_s

    def _halt(self, run: VirtualRun, now_s: float, *, saved: bool) -> None:
        """Bring a run to a stop; it keeps all its work or what its last checkpoint has; nothing if it saves none."""
        run.done_s = done_s = run.worked_s(now_s)
        if not run.task.saves:
            done_s = 0.0
        elif not saved:
            step_s = self.costs.checkpoint_s * run.speed
            done_s = math.floor(done_s / step_s) * step_s if step_s else 0.0
        run.task.kept_s += done_s
        run.task.lost_s += run.done_s - done_s

    def _lose(self, node_id: str) -> None:
        now_s = self._engine.now_s
        for run in list(self._here[node_id].values()):
            self._leave(run, node_id, "lost")
            if not run.halted:
                self._halt(run, now_s, saved=False)
            if run.open:
                self._event_queue.at(now_s, self._end_all, run, "ended because its gang ended on another node")

    def _end_all(self, run: VirtualRun, reason: str) -> None:
        """End what is left of a run that has come to a stop, on the nodes that are up."""
        if not run.halted:
            self._halt(run, self._engine.now_s, saved=False)
        for node_id in [node_id for node_id in run.open if node_id not in self.down_s]:
            self._end(run, node_id, "preempted", reason)

    def _end_cancelled(self, run: VirtualRun) -> None:
        for node_id in [node_id for node_id in run.open if node_id not in self.down_s]:
            self._end(run, node_id, "cancelled", "cancelled")

    def _end(self, run: VirtualRun, node_id: str, outcome: Outcome, reason: str = "") -> None:
        ended = self._ended(run, node_id, outcome, reason)
        if run.parks and outcome == "preempted" and not run.task.cancelled:
            self._park(run, node_id)
            ended = msgspec.structs.replace(ended, parked=True)
        self._append(subjects.run(run.task.id), ended, f"executor/{node_id}")
        self._leave(run, node_id, outcome)

    def _park(self, run: VirtualRun, node_id: str) -> None:
        """Keep a run's process on its node; the longest parked one there makes room."""
        there = self._parked[node_id]
        if len(there) >= self.costs.most_parked:
            job_id, first = next(iter(there.items()))
            del there[job_id]
            why, now_s = "another run was parked in its place", self._engine.now_s
            gone = RunUnparked(job_id=job_id, epoch=first.epoch, node_id=node_id, reason=why, at_s=now_s)
            self._append(subjects.run(job_id), gone, f"executor/{node_id}")
        there[run.task.id], self._parked_on[run.task.id] = run, node_id

    def _unpark(self, job_id: str) -> tuple[str, VirtualRun | None]:
        """Return the node on which a job was parked, and the run that was; it is parked no more."""
        node_id = self._parked_on.pop(job_id, "")
        return node_id, self._parked[node_id].pop(job_id, None) if node_id else None

    def _ended(self, run: VirtualRun, node_id: str, outcome: Outcome, reason: str) -> RunEnded:
        """Return what a node says at the end of its part of a run."""
        task = run.task
        return RunEnded(
            at_s=self._engine.now_s,
            job_id=task.id,
            epoch=run.epoch,
            node_id=node_id,
            outcome=outcome,
            exit_code={"completed": 0, "failed": 1}.get(outcome),
            reason=reason,
            steps=task.steps(task.kept_s),
            loop_steps=task.steps(run.done_s),
            loop_s=run.done_s / run.speed,
            **self._report(run),
        )

    def _report(self, _run: VirtualRun) -> dict[str, Any]:
        """Return what a run says of itself at its end, beside its steps."""
        return {}

    def _leave(self, run: VirtualRun, node_id: str, outcome: Outcome) -> None:
        run.worsen(outcome)
        devices = run.open.pop(node_id)
        del self._here[node_id][run.task.id]
        self.busy -= len(devices)
        if not math.isnan(run.started_s):
            run.task.held_gpu_s += (self._engine.now_s - run.started_s) * len(devices)
        if self._on_ended is not None:
            self._on_ended(run, node_id, devices, self._engine.now_s)
        if not run.open:
            self._conclude(run, self._engine.now_s)

    def _conclude(self, run: VirtualRun, now_s: float) -> None:
        task = run.task
        del self.runs[task.id]
        self.running -= task.row >= 0
        if not math.isnan(run.started_s):
            held_s = now_s - run.started_s
            task.executed_s += held_s
            task.idle_s += held_s - run.done_s / run.speed
        if run.outcome == "completed" or task.cancelled:
            self._note_over(task)
        elif run.outcome == "preempted":
            task.preemptions += 1

    def _note_over(self, task: VirtualTask) -> None:
        task.end_s = self._engine.now_s
        self.ended += task.row >= 0

    def _is_on(self, run: VirtualRun) -> bool:
        return self.runs.get(run.task.id) is run


def followed_jobs(engine: EventEngine) -> JobTable:
    """Return a table of the jobs in an engine's log, which takes in every commit from now on."""
    jobs = JobTable()

    def note(delivery: Delivery) -> None:
        for fact in delivery.commit.facts:
            jobs.apply(fact)

    engine.witness(note)
    return jobs


class Environment:
    """The outside of a cluster: it queues submissions, outages and everything else that a script says."""

    def __init__(self, engine: EventEngine, executors: VirtualExecutors, script: Script) -> None:
        self._engine, self._executors = engine, executors
        self._tasks, self._submitted = script.tasks, script.submitted
        self._arrived = 0
        self._open(script)

    def _open(self, script: Script) -> None:
        append, at = self._engine.append, self._engine.event_queue.at
        for joined in script.nodes:
            at(joined.at_s, append, subjects.node(joined.node_id), joined, f"executor/{joined.node_id}")
        for subject, fact, actor in script.facts:
            if isinstance(fact, NodeLeft):
                at(fact.at_s, self._executors.leave, fact)
            elif isinstance(fact, NodeLeaving):
                at(fact.at_s, self._executors.begin_leaving, fact)
            elif isinstance(fact, NodeJoined):
                at(fact.at_s, self._executors.repair, fact)
            elif isinstance(fact, JobCancelled):
                at(fact.at_s, self._executors.cancel, fact)
            else:
                at(fact.at_s, append, subject, fact, actor)
        for outage in script.outages:
            at(outage.at_s, self._go_down, outage.node_id, outage.heard_s)
            if outage.back is not None:
                at(outage.back.at_s, self._executors.repair, outage.back)
        self._expect()

    def fail(self, nodes: Sequence[NodeJoined], failures: Failures, seed: int) -> None:
        """Let each node fail and come back, again and again."""
        for number, joined in enumerate(nodes):
            uptimes_s = failures.uptimes_s(seed, number)
            self._engine.event_queue.at(next(uptimes_s), self._fail, joined, uptimes_s, failures.repair_s)

    @property
    def waiting(self) -> int:
        """Jobs that have arrived, do not run and have not ended."""
        return self._arrived - self._executors.running - self._executors.ended

    def more(self) -> bool:
        """Return whether any job may still start or end."""
        executors, left = self._executors, len(self._tasks) - self._executors.ended
        moves = executors.runs or executors.down_s or self._arrived < len(self._tasks)
        return left > 0 and (bool(moves) or self._engine.somebody_waits)

    def _expect(self) -> None:
        if self._arrived < len(self._tasks):
            fact = self._submitted(self._arrived)
            self._engine.event_queue.at(fact.at_s, self._arrive, fact)

    def _arrive(self, fact: JobSubmitted) -> None:
        task = self._tasks[self._arrived]
        self._arrived += 1
        self._executors.tasks[task.id] = task
        self._engine.append(subjects.job(task.id), fact, "gateway/sim")
        self._expect()

    def _fail(self, joined: NodeJoined, uptimes_s: Iterator[float], repair_s: float) -> None:
        self._go_down(joined.node_id)
        self._engine.event_queue.at(self._engine.now_s + repair_s, self._repair, joined, uptimes_s, repair_s)

    def _go_down(self, node_id: str, heard_s: float | None = None) -> None:
        self._executors.fail(node_id, heard_s)
        self._engine.wake()  # real ones look at heartbeats every few seconds

    def _repair(self, joined: NodeJoined, uptimes_s: Iterator[float], repair_s: float) -> None:
        now_s = self._engine.now_s
        again = msgspec.structs.replace(joined, at_s=now_s, incarnation=str(int(joined.incarnation) + 1))
        self._executors.repair(again)
        self._engine.event_queue.at(now_s + next(uptimes_s), self._fail, again, uptimes_s, repair_s)


def _shutting_down(node_id: str) -> str:
    return f"node {node_id} is shutting down"
