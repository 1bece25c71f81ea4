"""
What a cluster's log says of its past: who asked for what, what each run was worth, and which devices there were.

A run's worth is told in iterations where its script counts them (``penstock.session()``), else in the time that it held
its devices. What cannot be known is said: a job that was cancelled, failed or still runs has no true length, only the
least that it could be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock_bus import Delivery
from penstock_events import (
    ACTIVE,
    AnyEvent,
    Job,
    JobHeld,
    JobReleased,
    Jobs,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    Outcome,
    PolicySet,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunStarted,
    Size,
    Slot,
    WorkloadProfiled,
    workload,
)
from penstock_policies.speeds import Speeds
from penstock_sim.saving import Saving
from penstock_sim.virtual import lines

_OF_PEOPLE: Final = (JobHeld, JobReleased, NodeDrained, NodeResumed, PolicySet)


@dataclass(slots=True)
class Ran:
    """
    One run, from its placement to its end.

    Attributes
    ----------
    placed_s, started_s, asked_s, ended_s : float
        When it got its devices, when its processes had started, when it was asked to stop (0: it was not), and its end.
    resumed_step, steps : int
        Iterations done over all runs, before it and by its end.
    loop_s, loop_steps
        As its executor measured them; 0 where the script has no loop that it could measure.
    slots : sequence of Slot
        The devices that it held.
    batch_size, samples : int
        Of a step over all devices, and those done over all runs by its end; 0 where the script does not say.
    """

    kind: str
    placed_s: float
    started_s: float
    resumed_step: int
    asked_s: float = 0.0
    ended_s: float = 0.0
    outcome: Outcome = "completed"
    steps: int = 0
    loop_s: float = 0.0
    loop_steps: int = 0
    slots: Sequence[Slot] = ()
    batch_size: int = 0
    samples: int = 0

    @property
    def size(self) -> Size:
        """Devices and batch."""
        return Size(sum(len(slot.devices) for slot in self.slots), self.batch_size)

    @property
    def held_s(self) -> float:
        """How long it held its devices, from their lease on."""
        return self.ended_s - self.placed_s

    @property
    def stop_s(self) -> float:
        """How long it took to stop when it was asked to; 0 where it was not."""
        return max(0.0, self.ended_s - self.asked_s) if self.asked_s else 0.0

    @property
    def rest_s(self) -> float:
        """How long it did not iterate, before it was asked to stop."""
        return max(0.0, self.held_s - self.loop_s - self.stop_s)


@dataclass
class History:
    """
    A cluster's past.

    Attributes
    ----------
    jobs : Jobs
        All that were submitted, samples among them.
    runs : dict of str to list of Ran
        By job; the last one of a job that still runs ends with the log.
    joined : list of NodeJoined
        Each node's first offer, by time.
    gone : list of (float, str, NodeJoined or None, bool)
        When a node went, its id, what it said when it was back, and whether it had left in good order. One with which
        the log ends is no departure: the cluster was shut down.
    said : list of (str, fact)
        What people set and asked beside jobs, and subjects.
    speeds : Speeds
        As the profiler last told them.
    saving : Saving
        Which workloads go on where they were when they are preempted.
    last_s : float
        Time of the last fact.
    seqs, at_s : list
        Each commit's sequence in the log, rising, and the time of its first fact.
    """

    jobs: Jobs = field(default_factory=Jobs)
    runs: defaultdict[str, list[Ran]] = field(default_factory=lambda: defaultdict(list))
    joined: list[NodeJoined] = field(default_factory=list)
    gone: list[tuple[float, str, NodeJoined | None, bool]] = field(default_factory=list)
    said: list[tuple[str, AnyEvent]] = field(default_factory=list)
    speeds: Speeds = field(default_factory=Speeds)
    saving: Saving = field(default_factory=Saving)
    last_s: float = 0.0
    seqs: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    def replayable(self) -> list[Job]:
        """Return the jobs that ran, in the order of their submission."""
        found = [job for job in self.jobs if job.sample is None and self.runs.get(job.id)]
        return sorted(found, key=lambda job: job.submitted_s)

    def never_ran(self, from_s: float = -np.inf, to_s: float = np.inf) -> list[Job]:
        """Return the jobs that no device was ever held for, of those submitted in a window."""
        found = [job for job in self.jobs if job.sample is None and not self.runs.get(job.id)]
        return [job for job in found if from_s <= job.submitted_s < to_s]

    def time_of(self, seq: int) -> float:
        """Return the time of the first commit from a sequence on; infinity where the log ends before it."""
        at = bisect_left(self.seqs, seq)
        return self.at_s[at] if at < len(self.seqs) else np.inf


def read_log(text: Iterable[str | bytes]) -> History:
    """
    Return the history in a log: a fact a line, as ``penstock events -f -o json`` prints and simulations write it.

    Raises
    ------
    ValueError
        If a line is no fact of a log.
    """
    return of_deliveries(lines.decode(text))


def of_deliveries(deliveries: Iterable[Delivery]) -> History:
    """Return the history in a log's commits, such as a bus gives them."""
    reading = Reading()
    for delivery in deliveries:
        reading.add(delivery)
    return reading.history()


def key_of(job: Job) -> str:
    """Return the key of a job's workload."""
    return job.profile_key or workload.key(job.spec)


class Reading:
    """Folds commits, in the log's order, to a history."""

    def __init__(self) -> None:
        self._found = History()
        self._placed_s: dict[str, float] = {}
        self._here: dict[str, NodeJoined] = {}
        self._away: dict[str, tuple[float, bool]] = {}
        self._last_start_s = 0.0

    def add(self, delivery: Delivery) -> None:
        """Fold one commit in."""
        if delivery.commit.facts:
            self._found.seqs.append(delivery.seq)
            self._found.at_s.append(delivery.commit.facts[0].at_s)
        for fact in delivery.commit.facts:
            self._add(delivery.subject, fact)

    def _add(self, subject: str, fact: AnyEvent) -> None:
        found = self._found
        found.last_s = max(found.last_s, fact.at_s)
        match fact:
            case RunStarted():
                self._start(fact)
            case RunEnded():
                self._end(fact)
            case NodeJoined():
                self._join(fact)
            case NodeLeft():
                self._away.setdefault(fact.node_id, (fact.at_s, True))
            case WorkloadProfiled():
                found.speeds.apply(fact)
            case RunCheckpointed() if (job := found.jobs.get(fact.job_id)) is not None:
                found.saving.checkpointed(key_of(job))
            case RunRewound() if (job := found.jobs.get(fact.job_id)) is not None and job.started_s:
                found.runs[job.id][-1].resumed_step = fact.step
            case RoundDecided():
                self._placed_s.update({placement.job_id: fact.at_s for placement in fact.placements})
                self._lose(fact)
                self._ask(fact)
            case _ if isinstance(fact, _OF_PEOPLE):
                found.said.append((subject, fact))
            case _:
                pass
        found.jobs.apply(fact)

    def history(self) -> History:
        """Close what is open at the log's end."""
        found = self._found
        for job in found.jobs:
            if job.state in ACTIVE and job.started_s:
                run = found.runs[job.id][-1]
                run.ended_s, run.outcome = found.last_s, "cancelled"
        found.gone += [
            (at_s, node_id, None, orderly)
            for node_id, (at_s, orderly) in self._away.items()
            if at_s < self._last_start_s
        ]
        found.gone.sort(key=lambda departure: departure[:2])
        return found

    def _start(self, fact: RunStarted) -> None:
        job = self._found.jobs.get(fact.job_id)
        if job is None or not job.may_run(fact.epoch, fact.node_id) or job.started_s or job.placement is None:
            return
        self._last_start_s = max(self._last_start_s, fact.at_s)
        placed_s = self._placed_s.get(job.id, fact.at_s)
        run = Ran(
            job.placement.kind,
            placed_s,
            fact.at_s,
            fact.resumed_step,
            slots=job.placement.slots,
            batch_size=job.spec.batch_size,
        )
        self._found.runs[job.id].append(run)

    def _end(self, fact: RunEnded) -> None:
        job = self._found.jobs.get(fact.job_id)
        if job is None or not job.may_run(fact.epoch, fact.node_id) or not job.started_s:
            return
        run = self._found.runs[job.id][-1]
        run.ended_s, run.steps = fact.at_s, max(run.steps, fact.steps)
        run.batch_size, run.samples = fact.batch_size or run.batch_size, max(run.samples, fact.samples)
        run.outcome = fact.outcome if job.outcome == "completed" else job.outcome
        if fact.loop_s >= run.loop_s:
            run.loop_s, run.loop_steps = fact.loop_s, fact.loop_steps
        if fact.outcome == "preempted":
            advanced = fact.steps - run.resumed_step
            self._found.saving.preempted(key_of(job), advanced=advanced, loop_steps=fact.loop_steps)

    def _ask(self, fact: RoundDecided) -> None:
        for preemption in fact.preemptions:
            if runs := self._found.runs.get(preemption.job_id):
                runs[-1].asked_s = fact.at_s

    def _lose(self, fact: RoundDecided) -> None:
        for node_id in fact.lost_nodes:
            self._away.setdefault(node_id, (fact.at_s, False))
            for job in self._found.jobs:
                if node_id in job.open_nodes and job.started_s:
                    run = self._found.runs[job.id][-1]
                    run.ended_s, run.outcome = fact.at_s, "lost"

    def _join(self, fact: NodeJoined) -> None:
        if fact.node_id not in self._here:
            self._found.joined.append(fact)
        elif (away := self._away.pop(fact.node_id, None)) is not None:
            self._found.gone.append((away[0], fact.node_id, fact, away[1]))
        self._here[fact.node_id] = fact
