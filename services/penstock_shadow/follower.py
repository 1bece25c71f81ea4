"""
A cluster that follows the log of another one and goes its own way.

Up to a sequence of the log it is the real cluster. From there on the production ranker and matcher decide under the
shadow's policy. What people, nodes and the profiler say really happened is true here too; what the real ranker, matcher
and executors say is not, but it tells how fast jobs are, and how long they were.

Elastic jobs are not resized here: one has the size that it had when the shadow began, or else the first that it was
really given, and iterates for as long as it really does, whatever sizes that took.

All of this is a function of the log and the plan: whoever reads the same log again finds the same decisions, so that a
shadow needs no state of its own to go on where it was.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from penstock_bus import Decider, Delivery
from penstock_events import (
    TERMINAL,
    AnyEvent,
    Job,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobsRanked,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    PolicySet,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunStarted,
    SamplesRequested,
    ScaleDecided,
    State,
    TrialsScaled,
    WorkloadProfiled,
    subjects,
)
from penstock_matcher.machine import decider as matcher
from penstock_ranker.machine import decider as ranker
from penstock_shadow.executors import ShadowExecutors
from penstock_shadow.measured import Measured
from penstock_shadow.plan import CONFIGURED, Plan, Status
from penstock_sim.virtual.engine import Engine
from penstock_sim.virtual.log import Log
from penstock_sim.virtual.policies import choose

_REAL: Final = "log"
"""The actor of what a shadow takes from the log."""
_OWN: Final = frozenset({"rank", "round", "run"})
"""The kinds of what it says itself."""
_TRUE_HERE: Final = (
    JobSubmitted,
    JobCancelled,
    JobHeld,
    JobReleased,
    SamplesRequested,
    WorkloadProfiled,
    NodeDrained,
    NodeResumed,
)
_TRUE_THERE: Final = (RoundDecided, RunStarted, RunCheckpointed, RunRewound, RunEnded)
_PRUNE_EVERY: Final = 1_000


class Follower:
    """
    A shadow.

    Parameters
    ----------
    plan : Plan
    lengths : Measured, optional
        How long jobs turned out to be, where a later part of the log is known.
    forgets : bool
        Whether jobs that are over, here and really, are dropped.

    Attributes
    ----------
    seq : int
        The log's last sequence that was fed.
    engine : Engine
    measured : Measured
        The log so far.
    executors : ShadowExecutors
    made : list of Delivery
        What it has decided and not yet been asked for, with sequences of its own; see :meth:`take`.
    live : bool
        Whether it goes its own way already.
    over_before : set of str
        Jobs that were over when it began.
    preempted_before : dict of str to int
        How often each other job had been preempted by then.
    """

    def __init__(self, plan: Plan, lengths: Measured | None = None, *, forgets: bool = False) -> None:
        self.plan, self.seq = plan, 0
        self.made: list[Delivery] = []
        self.measured = Measured()
        self.over_before: set[str] = set()
        self.preempted_before: dict[str, int] = {}
        self.live = False
        self._forgets, self._away = forgets, set[str]()
        chosen = choose(plan.policy, plan.settings)
        deciders: list[Decider[Any]] = [ranker(chosen.ranker, chosen.ranker.priors()), matcher(chosen.matcher)]
        self.engine = Engine(deciders, Log())
        self.executors = ShadowExecutors(self.engine, self.measured, lengths)
        self.engine.follow(RoundDecided, self.executors.follow)
        self.engine.witness(self._note)

    @property
    def now_s(self) -> float:
        """Its time."""
        return self.engine.now_s

    def feed(self, delivery: Delivery) -> None:
        """Take in the next commit of the log, after all that was due before it; what is due with it comes later."""
        if delivery.seq <= self.seq:
            return
        if not self.live and delivery.seq > self.plan.from_seq:
            self._begin()
        self.seq = delivery.seq
        self.advance(math.nextafter(delivery.stored_s, 0.0))
        self.engine.now_s = max(self.engine.now_s, delivery.stored_s)
        for fact in delivery.commit.facts:
            touched = self.measured.apply(fact)
            if self._concerns(fact):
                self._hear(delivery.subject, fact, touched)
        if self._forgets and delivery.seq % _PRUNE_EVERY == 0:
            self._prune()

    def advance(self, now_s: float) -> None:
        """Let time pass; nothing that the log has before that time may be missing."""
        engine = self.engine
        if not self.live:
            engine.now_s = max(engine.now_s, now_s)
            return
        if now_s > engine.now_s:
            engine.agenda.at(now_s, _nothing)
            engine.run(lambda: engine.now_s < now_s)

    def begin(self) -> None:
        """Go its own way, if the log so far is the one that the plan begins with."""
        if not self.live and self.seq >= self.plan.from_seq:
            self._begin()

    def take(self) -> list[Delivery]:
        """Return what was decided since it was asked last."""
        made, self.made = self.made, []
        return made

    def status(self) -> Status:
        """Return what it says of itself."""
        executors = self.executors
        waiting = sum(
            job.sample is None and job.id not in executors.runs and self._goes_on(job) for job in self.measured.jobs
        )
        return Status(
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
        """Say whether a fact is of the pool that this shadow follows."""
        match fact:
            case JobSubmitted() | SamplesRequested():
                pool = fact.spec.pool
            case NodeJoined() | RoundDecided() | JobsRanked() | PolicySet() | ScaleDecided():
                pool = fact.pool
            case _:
                return True
        return self.plan.pool in {"", pool}

    def _hear(self, subject: str, fact: AnyEvent, touched: list[Job]) -> None:
        if isinstance(fact, _TRUE_HERE):
            self._append(subject, fact)
            self._follow_people(fact, touched)
        elif isinstance(fact, NodeJoined | NodeLeft):
            self._follow_node(subject, fact)
        elif isinstance(fact, PolicySet) and self.plan.policy == CONFIGURED:
            self._append(subject, fact)
        elif isinstance(fact, JobsRanked) and self.plan.policy == CONFIGURED and not self.live:
            self._append(subject, fact)  # by other rules every job gets a place anew, by its service
        elif isinstance(fact, ScaleDecided | TrialsScaled) and not self.live:
            self._append(subject, fact)
        elif isinstance(fact, ScaleDecided):
            self._size(subject, fact)
        elif isinstance(fact, _TRUE_THERE):
            self._learn(subject, fact, touched)

    def _follow_people(self, fact: AnyEvent, touched: list[Job]) -> None:
        if not self.live:
            return
        if isinstance(fact, JobSubmitted | SamplesRequested):
            for job in touched:
                self.executors.submit(job)
        elif isinstance(fact, JobCancelled):
            self.executors.stop(fact.job_id, "cancelled")

    def _follow_node(self, subject: str, fact: NodeJoined | NodeLeft) -> None:
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
        """Say whether a job has not ended here."""
        task = self.executors.tasks.get(job.id)
        if task is None or task.over:
            return False
        dropped = job.state is State.FAILED and not job.attempts
        return not (dropped or job.state is State.CANCELLED) or job.id in self.executors.runs

    def _prune(self) -> None:
        """Drop jobs that are over, here and really."""
        for job in list(self.measured.jobs):
            if job.state in TERMINAL and not self._goes_on(job):
                self.measured.forget(job.id)
                self.executors.forget(job.id)
                self.over_before.discard(job.id)


def _nothing() -> None:
    """Be an instant at which the engine stops."""
