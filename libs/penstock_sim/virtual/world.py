"""A virtual cluster and its users: nodes that join and fail, jobs that arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock_events import JobCancelled, JobSubmitted, NodeJoined, NodeLeft, subjects
from penstock_sim.virtual.costs import Failures
from penstock_sim.virtual.engine import Engine
from penstock_sim.virtual.executors import Executors
from penstock_sim.virtual.script import Script


class World:
    """
    Puts on the agenda what happens from outside.

    Parameters
    ----------
    engine, executors
    script : Script
    """

    def __init__(self, engine: Engine, executors: Executors, script: Script) -> None:
        self._engine, self._executors = engine, executors
        self._tasks, self._submitted = script.tasks, script.submitted
        self._arrived = 0
        self._open(script)

    def _open(self, script: Script) -> None:
        append, at = self._engine.append, self._engine.agenda.at
        for joined in script.nodes:
            at(joined.at_s, append, subjects.node(joined.node_id), joined, f"executor/{joined.node_id}")
        for subject, fact, actor in script.facts:
            if isinstance(fact, NodeLeft):
                at(fact.at_s, self._executors.leave, fact)
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
        """Have each node fail and come back, again and again."""
        for number, joined in enumerate(nodes):
            uptimes_s = failures.uptimes_s(seed, number)
            self._engine.agenda.at(next(uptimes_s), self._fail, joined, uptimes_s, failures.repair_s)

    @property
    def waiting(self) -> int:
        """Jobs that have arrived, do not run and have not ended."""
        return self._arrived - self._executors.running - self._executors.ended

    def more(self) -> bool:
        """Say whether anything may still become of a job."""
        executors, left = self._executors, len(self._tasks) - self._executors.ended
        moves = executors.runs or executors.down_s or self._arrived < len(self._tasks)
        return left > 0 and (bool(moves) or self._engine.somebody_waits)

    def _expect(self) -> None:
        if self._arrived < len(self._tasks):
            fact = self._submitted(self._arrived)
            self._engine.agenda.at(fact.at_s, self._arrive, fact)

    def _arrive(self, fact: JobSubmitted) -> None:
        task = self._tasks[self._arrived]
        self._arrived += 1
        self._executors.tasks[task.id] = task
        self._engine.append(subjects.job(task.id), fact, "gateway/sim")
        self._expect()

    def _fail(self, joined: NodeJoined, uptimes_s: Iterator[float], repair_s: float) -> None:
        self._go_down(joined.node_id)
        self._engine.agenda.at(self._engine.now_s + repair_s, self._repair, joined, uptimes_s, repair_s)

    def _go_down(self, node_id: str, heard_s: float | None = None) -> None:
        self._executors.fail(node_id, heard_s)
        self._engine.wake()  # real ones look at heartbeats every few seconds

    def _repair(self, joined: NodeJoined, uptimes_s: Iterator[float], repair_s: float) -> None:
        now_s = self._engine.now_s
        again = msgspec.structs.replace(joined, at_s=now_s, incarnation=str(int(joined.incarnation) + 1))
        self._executors.repair(again)
        self._engine.agenda.at(now_s + next(uptimes_s), self._fail, again, uptimes_s, repair_s)
