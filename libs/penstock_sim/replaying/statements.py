"""
What the profiler and the tuner of a history said, said again in a replay once it has come to what they went by.

They are not asked anew: a profiler of other settings, or of a later version, would sample other workloads, and the log
does not hold what these would have shown. So a replay has exactly the samples that there were, whoever waits for an
answer gets the one that there was, and it comes as long after the end of the last sample as it did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock_bus import Delivery
from penstock_events import (
    TERMINAL,
    AnyEvent,
    Demand,
    Jobs,
    RoundDecided,
    SamplesRequested,
    TrialsScaled,
)
from penstock_sim.history import Moment, Moments, Statement
from penstock_sim.virtual.engine import Engine
from penstock_sim.virtual.executors import Executors


class Statements:
    """
    Makes statements when their time has come.

    Parameters
    ----------
    statements : sequence of Statement
        In the log's order.
    shift_s : float
        Virtual time less the log's.

    Attributes
    ----------
    moments : Moments
        What happens in the replay.
    """

    def __init__(self, statements: Sequence[Statement], shift_s: float) -> None:
        self._statements, self._shift_s = statements, shift_s
        self._jobs, self.moments = Jobs(), Moments()
        self._happened: set[Moment] = set()
        self._waiting: defaultdict[Moment, list[int]] = defaultdict(list)
        self._open = [set(statement.after) for statement in statements]
        self._before, self._following = _order(statements)
        self._ready: set[int] = set()
        self._said: set[int] = set()
        self._engine: Engine
        self._executors: Executors

    def attach(self, engine: Engine, executors: Executors) -> None:
        """Begin to follow a simulation that has not begun."""
        engine.witness(self.moments.note)
        self._engine, self._executors = engine, executors
        for at, statement in enumerate(self._statements):
            for moment in statement.after:
                self._waiting[moment].append(at)
            if not statement.after:
                engine.agenda.at(max(0.0, statement.lag_s + self._shift_s), self._is_ready, at)
        engine.witness(self._note)

    def lag_s(self, known_s: Mapping[Moment, float]) -> float | None:
        """Return how long after what has just happened somebody decided; None where that is not known."""
        return known_s.get(self.moments.last) if self.moments.last is not None else None

    def _note(self, delivery: Delivery) -> None:
        for fact in delivery.commit.facts:
            touched = self._jobs.apply(fact)
            if isinstance(fact, RoundDecided):
                for job in touched if fact.lost_nodes else ():
                    self._happen(("ended", job.id, self.moments.placed[job.id]))
            for job in touched:
                if job.state in TERMINAL:
                    self._end(job.id)
        if self.moments.last is not None:
            self._happen(self.moments.last)

    def _end(self, job_id: str) -> None:
        """Take all that was to become of a job that is over for having happened."""
        for moment in [moment for moment in self._waiting if moment[1] == job_id]:
            self._happen(moment)

    def _happen(self, moment: Moment) -> None:
        for at in self._waiting.pop(moment, ()):
            self._open[at].discard(moment)
            if not self._open[at]:
                self._engine.agenda.at(self._engine.now_s + self._statements[at].lag_s, self._is_ready, at)

    def _is_ready(self, at: int) -> None:
        self._ready.add(at)
        self._say(at)

    def _say(self, at: int) -> None:
        """Make a statement, unless one before which it cannot be is still to come; then those that waited for it."""
        if at in self._said or not self._before[at] <= self._said:
            return
        statement = self._statements[at]
        for fact in statement.facts:
            now: Any = self._now(statement, fact)
            if isinstance(now, SamplesRequested):
                self._executors.expect(now)
            self._engine.append(statement.subject, now, statement.actor)
        self._said.add(at)
        for following in self._following[at]:
            if following in self._ready:
                self._say(following)

    def _now(self, statement: Statement, fact: AnyEvent) -> AnyEvent:
        moved: Any = msgspec.structs.replace(fact, at_s=self._engine.now_s)
        if isinstance(moved, TrialsScaled):
            demands = tuple(self._of_now(statement, demand) for demand in moved.demands)
            return msgspec.structs.replace(moved, demands=demands)
        return moved  # type: ignore[no-any-return]

    def _of_now(self, statement: Statement, demand: Demand) -> Demand:
        """Return a demand for the job's present epoch; void if it was, or if the job waited then and runs now."""
        job, then = self._jobs.get(demand.job_id), statement.placed.get(demand.job_id)
        void = then is None or job is None or (not then[1] and self.moments.placed[job.id] > then[0])
        return msgspec.structs.replace(demand, epoch=-1 if void or job is None else job.epoch)


def _order(statements: Sequence[Statement]) -> tuple[list[set[int]], list[list[int]]]:
    """Return which statements each one comes after: the last on its subject, and the last of the same instant."""
    before: list[set[int]] = [set() for _ in statements]
    following: list[list[int]] = [[] for _ in statements]
    last: dict[str, int] = {}
    for at, statement in enumerate(statements):
        if statement.subject in last:
            before[at].add(last[statement.subject])
        if at and statements[at - 1].at_s == statement.at_s:
            before[at].add(at - 1)
        for earlier in before[at]:
            following[earlier].append(at)
        last[statement.subject] = at
    return before, following
