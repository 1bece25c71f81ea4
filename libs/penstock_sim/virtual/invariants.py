"""What must hold after every event of a virtual cluster, worked out from the log alone and from what work there was."""

from __future__ import annotations

import math
from typing import Final

from penstock_bus import Delivery
from penstock_events import TERMINAL, Jobs, RoundDecided, RunEnded, RunStarted
from penstock_policies.cluster import Cluster
from penstock_sim.virtual.engine import Engine
from penstock_sim.virtual.executors import Executors

_NEAR: Final = 1e-6


class Broken(AssertionError):
    """An invariant that does not hold."""


class Invariants:
    """
    Checks each commit as it comes.

    * Virtual time never goes back.
    * No device is leased twice at a time, none that its node does not have, and none of another kind.
    * A run's facts are of the epoch in force, so no executor works on a lease that is over.
    * A job neither gets lost nor ends twice: whoever was submitted waits, holds a lease or is over.

    After the end, :meth:`check_service`: the time that each job held its devices is its work, what was lost of it, and
    the time in which it did not advance.
    """

    def __init__(self, engine: Engine, executors: Executors) -> None:
        self._executors = executors
        self._jobs, self._cluster = Jobs(), Cluster()
        self._held: dict[tuple[str, int], str] = {}
        self._over: set[str] = set()
        self._now_s = 0.0
        self.checked = 0
        engine.witness(self.check)

    def check(self, delivery: Delivery) -> None:
        """Fold one commit in and check what it changes."""
        _expect(delivery.stored_s >= self._now_s, f"time goes back from {self._now_s} to {delivery.stored_s}")
        self._now_s = delivery.stored_s
        for fact in delivery.commit.facts:
            self.checked += 1
            _expect(fact.at_s <= self._now_s, f"{fact} is of the future at {self._now_s}")
            if isinstance(fact, RunStarted | RunEnded):
                job = self._jobs[fact.job_id]
                _expect(job.may_run(fact.epoch, fact.node_id), f"{fact} is of no lease in force")
            self._cluster.apply(fact)
            touched = self._jobs.apply(fact)
            if isinstance(fact, RoundDecided):
                _expect(len(touched) >= len(fact.placements), f"a placement of {fact} was refused")
            for job_id in {job.id for job in touched}:
                self._recount(job_id)

    def check_service(self) -> None:
        """Check that no service appeared or vanished, for the jobs that have ended."""
        for task in self._executors.tasks.values():
            job = self._jobs[task.id]
            _expect(task.over == (job.state in TERMINAL), f"{task.id} has ended here or there")
            _expect(_near(task.executed_s, job.executed_s), f"{task.id} executed {task.executed_s}, {job.executed_s}")
            if task.over:
                _expect(_near(task.kept_s, task.work_s), f"{task.id} ended with {task.kept_s} of {task.work_s} done")

    def _recount(self, job_id: str) -> None:
        job = self._jobs[job_id]
        for device in [device for device, holder in self._held.items() if holder == job_id]:
            del self._held[device]
        for slot in job.placement.slots if job.placement is not None else ():
            if slot.node_id not in job.open_nodes:
                continue
            kinds = {device.index: device.kind for device in self._cluster.nodes[slot.node_id].devices}
            for index in slot.devices:
                where = (slot.node_id, index)
                _expect(where not in self._held, f"{where} is given to {job_id} and {self._held.get(where)}")
                _expect(kinds.get(index) == job.placement.kind if job.placement else False, f"{where} is of no such kind")
                self._held[where] = job_id
        over = job.state in TERMINAL
        _expect(over or job_id not in self._over, f"{job_id} is back although it was over")
        _expect(job.placement is None or len(_devices(job_id, self._held)) <= job.spec.gpus, f"{job_id} holds too much")
        if over:
            self._over.add(job_id)


def _devices(job_id: str, held: dict[tuple[str, int], str]) -> list[tuple[str, int]]:
    return [device for device, holder in held.items() if holder == job_id]


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_NEAR, abs_tol=_NEAR)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
