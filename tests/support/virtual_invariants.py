"""What must hold after every event of a virtual cluster, worked out from the log alone and from what work there was."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final, NamedTuple

from penstock_bus import Delivery
from penstock_cluster.nodes import Cluster
from penstock_log import TERMINAL, Job, JobTable, RoundDecided, RunEnded, RunStarted
from penstock_simulator.engine.engine import EventEngine
from penstock_simulator.engine.executors import VirtualExecutors

_NEAR: Final = 1e-6

Where = tuple[str, int]
"""A node's id and a device's number."""


class Broken(AssertionError):
    """An invariant that does not hold."""


class Held(NamedTuple):
    """A run as the log has it: how long it held its devices and worked, on which kind, and how it began and ended."""

    held_s: float
    worked_s: float
    kind: str
    outcome: str
    start: str


class Invariants:
    """
    Checks each commit as it comes.

    * Virtual time never goes back.
    * No device is leased twice at a time, none that its node does not have, and none of another kind.
    * A run's facts are of the epoch in force, so no executor works on a lease that is over.
    * A run goes on with a parked process only where the log says that its job is parked.
    * A job neither gets lost nor ends twice: whoever was submitted waits, holds a lease or is over.

    After the end, :meth:`check_service`: what a job worked is its work and what of it was lost, no more and no less;
    and its devices were held for that and for the costs of starting and stopping.
    """

    def __init__(self, engine: EventEngine, executors: VirtualExecutors) -> None:
        self.checked = 0
        self._executors = executors
        self._jobs, self._cluster = JobTable(), Cluster()
        self._holders: dict[Where, str] = {}
        self._holds: defaultdict[str, set[Where]] = defaultdict(set)
        self._runs: defaultdict[str, list[Held]] = defaultdict(list)
        self._over: set[str] = set()
        self._may_go_on: set[tuple[str, int]] = set()
        self._starts: dict[tuple[str, int], str] = {}
        self._now_s = 0.0
        engine.witness(self.check)

    def check(self, delivery: Delivery) -> None:
        """Fold one commit in and check what it changes."""
        _expect(delivery.stored_s >= self._now_s, f"time goes back from {self._now_s} to {delivery.stored_s}")
        self._now_s = delivery.stored_s
        for fact in delivery.commit.facts:
            self.checked += 1
            _expect(fact.at_s <= self._now_s, f"{fact} is of the future at {self._now_s}")
            if isinstance(fact, RunStarted | RunEnded):
                _expect(self._jobs[fact.job_id].may_run(fact.epoch, fact.node_id), f"{fact} is of no lease in force")
            if isinstance(fact, RunEnded):
                self._note_run(self._jobs[fact.job_id], fact)
            if isinstance(fact, RunStarted):
                self._starts[fact.job_id, fact.epoch] = fact.start
                parked = fact.start != "parked" or (fact.job_id, fact.epoch) in self._may_go_on
                _expect(parked, f"{fact} goes on where it is not parked")
            for placement in fact.placements if isinstance(fact, RoundDecided) else ():
                if self._jobs[placement.job_id].parked_on in {slot.node_id for slot in placement.slots}:
                    self._may_go_on.add((placement.job_id, placement.epoch))
            self._cluster.apply(fact)
            touched = self._jobs.apply(fact)
            for placement in fact.placements if isinstance(fact, RoundDecided) else ():
                _expect(self._jobs[placement.job_id].placement == placement, f"{placement} was refused")
            for job in touched:
                self._check_job(job)

    def check_service(self) -> None:
        """Check that no service appeared or vanished."""
        costs = self._executors.costs
        stop_s = costs.stop_s
        for task in self._executors.tasks.values():
            job, runs = self._jobs[task.id], self._runs[task.id]
            _expect(task.over == (job.state in TERMINAL), f"{task.id} is over here or there only")
            _expect(_near(task.executed_s, job.executed_by(self._now_s)) or not task.over, f"{task.id}: {task}, {job}")
            done_s = sum(run.worked_s * self._executors.speed(task.model, run.kind) for run in runs)
            if task.over and len(runs) == job.attempts:  # of runs that nodes took with them, the log has no figures
                _expect(_near(done_s, task.work_s + task.lost_s), f"{task.id} worked {done_s} s; it is {task}")
            for run in runs:
                start_s = costs.parked_start_s if run.start == "parked" else task.starting_s
                _expect(start_s is not None, f"{task.id}: {run} was parked where none is")
                costs_s = {"completed": start_s, "preempted": min(start_s, run.held_s - stop_s) + stop_s}
                if run.outcome in costs_s and not task.lost_s and not task.startings_s:
                    _expect(_near(run.held_s - run.worked_s, costs_s[run.outcome]), f"{task.id}: {run} cost too much")

    def _note_run(self, job: Job, fact: RunEnded) -> None:
        if len(job.open_nodes) == 1 and job.started_s and job.placement is not None:
            outcome = fact.outcome if job.outcome == "completed" else job.outcome
            start = self._starts.get((job.id, fact.epoch), "")
            held = Held(fact.at_s - job.started_s, fact.loop_s, job.placement.kind, outcome, start)
            self._runs[job.id].append(held)

    def _check_job(self, job: Job) -> None:
        for where in self._holds.pop(job.id, ()):
            del self._holders[where]
        for where in _leased(job):
            holder = self._holders.setdefault(where, job.id)
            _expect(holder == job.id, f"{where} is given to {job.id} and to {holder}")
            _expect(self._kind(where) == (job.placement and job.placement.kind), f"{where} is not as {job} has it")
            self._holds[job.id].add(where)
        _expect(len(self._holds[job.id]) <= job.spec.gpus, f"{job.id} holds more than it asked for")
        over = job.state in TERMINAL
        _expect(over or job.id not in self._over, f"{job.id} is back although it was over")
        if over:
            self._over.add(job.id)

    def _kind(self, where: Where) -> str:
        node_id, index = where
        return next((d.kind for d in self._cluster.nodes[node_id].devices if d.index == index), "")


def _leased(job: Job) -> list[Where]:
    slots = job.placement.slots if job.placement is not None else ()
    return [(slot.node_id, index) for slot in slots if slot.node_id in job.open_nodes for index in slot.devices]


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_NEAR, abs_tol=_NEAR)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
