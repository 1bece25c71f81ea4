"""
What a cluster's log says of its past: who asked for what, what each run was worth, and which devices there were.

A run's worth is told in iterations where its script counts them (``penstock.session()``), else in the time that it held
its devices. What cannot be known is said: a job that was cancelled, failed or still runs has no true length, only the
least that it could be.

What the profiler and the tuner said is kept with its causes (:class:`PastStatement`), so that a replay can say it again
once these have come about there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock_bus import Delivery
from penstock_log import (
    ACTIVE,
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
    JobTable,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeResumed,
    Outcome,
    Placement,
    PolicySet,
    ReservationCancelled,
    ReservationMade,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunUnparked,
    SamplesRequested,
    ScaleDecided,
    Size,
    Slot,
    TrialsScaled,
    WorkloadProfiled,
    WorkloadScaled,
    subjects,
    workload,
)
from penstock_policies.workload_stats import Speeds
from penstock_simulator.engine.tasks import PreservedWork
from penstock_simulator.traces import log_file

_OF_PEOPLE: Final = (
    JobHeld,
    JobReleased,
    NodeDrained,
    NodeResumed,
    NodeLeaving,
    DeviceDrained,
    DeviceResumed,
    DeviceFailed,
    DeviceRecovered,
    PolicySet,
    ReservationMade,
    ReservationCancelled,
    RunUnparked,
)
"""What comes from without, and comes again at its time in a replay: of people, devices, nodes, hosts' memory."""
_OF_RUNS: Final = (RunStarted, RunEnded, RunCheckpointed, RunMeasured, RunRewound)
_OF_SERVICES: Final = (SamplesRequested, WorkloadProfiled, WorkloadScaled, TrialsScaled)
_MOST_LAG_S: Final = 0.25
"""A decision that came later than this waited for a time, such as the end of a job's patience."""
_DECIDES: Final[dict[type[AnyEvent], str]] = {
    JobsRanked: "ranker",
    RoundDecided: "matcher",
    ScaleDecided: "autoscaler",
}

Moment = tuple[str, str, int]
"""
``submitted``, ``started`` or ``ended``; a job; the number of its placement, from 1 on, or 0 for its submission. Or
``stated``, the subject of a statement, and its number there.
"""


@dataclass(frozen=True, slots=True)
class PastStatement:
    """
    A statement of the profiler or the tuner.

    Attributes
    ----------
    after : tuple of Moment
        The moments that it went by; none if they are not known.
    lag_s : float
        Time from the last of these to the statement; the log's time if there are none.
    placed : dict of str to (int, bool)
        Jobs whose size it changes: how often each had been placed, and whether it held devices. A job that went on
        before it was said, so that it changed nothing, is not among them.
    """

    at_s: float
    subject: str
    actor: str
    facts: tuple[AnyEvent, ...]
    after: tuple[Moment, ...]
    lag_s: float
    placed: dict[str, tuple[int, bool]]


@dataclass(slots=True)
class PastRun:
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
    asks : Size
        The size that its job asked for.
    facts : list of RunCheckpointed or RunMeasured
        Facts about the run while it ran.
    ends : dict of str to RunEnded
        By node.
    refused : bool
        Its executor ended it without having started a process; ``started_s`` is then its end.
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
    asks: Size = field(default_factory=lambda: Size(1))
    facts: list[RunCheckpointed | RunMeasured] = field(default_factory=list)
    ends: dict[str, RunEnded] = field(default_factory=dict)
    refused: bool = False

    @property
    def size(self) -> Size:
        """Devices and batch."""
        return Size(sum(len(slot.devices) for slot in self.slots), self.batch_size)

    @property
    def held_s(self) -> float:
        """How long the run held its devices, from its placement on."""
        return self.ended_s - self.placed_s

    @property
    def stop_s(self) -> float:
        """Time that it took to stop when it was asked to; 0 if it was not asked, ended by itself, or was lost."""
        asked = self.asked_s and self.outcome in {"preempted", "cancelled"}
        return max(0.0, self.ended_s - self.asked_s) if asked else 0.0

    @property
    def rest_s(self) -> float:
        """Time in which it did not iterate, before it was asked to stop."""
        return max(0.0, self.held_s - self.loop_s - self.stop_s)

    def end_on(self, node_id: str, place: int) -> RunEnded | None:
        """Return the run's end on a node, or on the node in its place; None where no node wrote one."""
        ends = list(self.ends.values())
        return self.ends.get(node_id) or (ends[min(place, len(ends) - 1)] if ends else None)


@dataclass
class LoggedRuns:
    """
    The fold of a log's jobs, their runs, and the speeds of workloads.

    Attributes
    ----------
    jobs : JobTable
        All jobs that were submitted, samples among them.
    runs : dict of str to list of PastRun
        Job → its runs.
    placed : dict of str to list of PastRun
        Job → its runs, with those that an executor refused.
    cancelled_s : dict of str to float
        Job → when it was cancelled.
    speeds : Speeds
        Speeds as the profiler last published them.
    saving : PreservedWork
        Which workloads go on where they were when they are preempted.
    """

    jobs: JobTable = field(default_factory=JobTable)
    runs: defaultdict[str, list[PastRun]] = field(default_factory=lambda: defaultdict(list))
    placed: defaultdict[str, list[PastRun]] = field(default_factory=lambda: defaultdict(list))
    cancelled_s: dict[str, float] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=Speeds)
    saving: PreservedWork = field(default_factory=PreservedWork)
    _placed_s: dict[str, float] = field(default_factory=dict)

    def apply(self, fact: AnyEvent) -> list[Job]:
        """Fold one fact in; return the jobs that it touched."""
        match fact:
            case RunStarted():
                self._start(fact)
            case RunEnded():
                self._end(fact)
            case RunRewound() if (job := self.jobs.get(fact.job_id)) is not None and job.started_s:
                self.runs[job.id][-1].resumed_step = fact.step
            case RunCheckpointed() | RunMeasured():
                self._note_report(fact)
            case JobCancelled():
                self._cancel(fact)
            case WorkloadProfiled():
                self.speeds.apply(fact)
            case RoundDecided():
                self._decide(fact)
            case _:
                pass
        return self.jobs.apply(fact)

    def forget(self, job_id: str) -> None:
        """Drop a job that is over."""
        self.jobs.forget(job_id)
        for by_job in (self.runs, self.placed, self.cancelled_s, self._placed_s):
            by_job.pop(job_id, None)

    def _cancel(self, fact: JobCancelled) -> None:
        job = self.jobs.get(fact.job_id)
        if job is None or job.state in TERMINAL:
            return
        self.cancelled_s.setdefault(fact.job_id, fact.at_s)
        if job.started_s and not self.runs[job.id][-1].asked_s:
            self.runs[job.id][-1].asked_s = fact.at_s

    def _start(self, fact: RunStarted) -> None:
        job = self.jobs.get(fact.job_id)
        if job is None or not job.may_run(fact.epoch, fact.node_id) or job.started_s or job.placement is None:
            return
        run = self._place(job, job.placement, fact.at_s)
        run.resumed_step = fact.resumed_step
        if job.state is JobState.COMPLETING and job.id in self.cancelled_s:
            run.asked_s = self.cancelled_s[job.id]
        self.runs[job.id].append(run)

    def _place(self, job: Job, placement: Placement, started_s: float) -> PastRun:
        placed_s, batch = self._placed_s.get(job.id, started_s), job.spec.batch_size
        run = PastRun(placement.kind, placed_s, started_s, 0, slots=placement.slots, batch_size=batch, asks=job.size)
        self.placed[job.id].append(run)
        return run

    def _end(self, fact: RunEnded) -> None:
        job = self.jobs.get(fact.job_id)
        if job is None or not job.may_run(fact.epoch, fact.node_id):
            return
        if not job.started_s:
            self._refuse(job, fact)
            return
        run = self.runs[job.id][-1]
        run.ended_s, run.steps = fact.at_s, max(run.steps, fact.steps)
        run.batch_size, run.samples = fact.batch_size or run.batch_size, max(run.samples, fact.samples)
        run.outcome = fact.outcome if job.outcome == "completed" else job.outcome
        run.ends[fact.node_id] = fact
        if fact.loop_s >= run.loop_s:
            run.loop_s, run.loop_steps = fact.loop_s, fact.loop_steps
        if fact.outcome == "preempted":
            advanced = fact.steps - run.resumed_step
            self.saving.preempted(key_of(job), advanced=advanced, loop_steps=fact.loop_steps)

    def _refuse(self, job: Job, fact: RunEnded) -> None:
        """Note the end of a run without processes: the executor refused it, or the run was called off."""
        if len(job.open_nodes) == 1 and job.placement is not None:
            run = self._place(job, job.placement, fact.at_s)
            run.ended_s, run.outcome, run.refused = fact.at_s, fact.outcome, True
            run.ends[fact.node_id] = fact

    def _note_report(self, fact: RunCheckpointed | RunMeasured) -> None:
        job = self.jobs.get(fact.job_id)
        if job is None:
            return
        if isinstance(fact, RunCheckpointed):
            self.saving.checkpointed(key_of(job))
        if job.may_run(fact.epoch, fact.node_id) and job.started_s:
            self.runs[job.id][-1].facts.append(fact)

    def _decide(self, fact: RoundDecided) -> None:
        self._placed_s.update({placement.job_id: fact.at_s for placement in fact.placements})
        lost = set(fact.lost_nodes)
        for job in self.jobs if lost else ():
            if job.started_s and lost & job.open_nodes:
                run = self.runs[job.id][-1]
                run.ended_s, run.outcome = fact.at_s, "lost"
        for preemption in fact.preemptions:
            if runs := self.runs.get(preemption.job_id):
                runs[-1].asked_s = fact.at_s


@dataclass
class ClusterHistory(LoggedRuns):
    """
    A cluster's past; the last run of a job that still runs ends with the log.

    Attributes
    ----------
    specs : dict of str to JobSpec
        Job → its specification as submitted; the job's own one changes with its size.
    joined : list of NodeJoined
        Each node's first offer, by time.
    gone : list of (float, str, NodeJoined or None, bool)
        When a node went, its id, what it offered when it was back, and whether it had left in good order. A departure
        at the log's end does not count: the cluster was shut down.
    spoke_s : dict of (str, float) to float
        Lost node and the time at which it was declared lost → when it last wrote something of a run.
    people_facts : list of (str, fact)
        Subjects and facts of people: what they set and asked, beside jobs.
    statements : list of PastStatement
        Statements of the profiler and the tuner, in the log's order.
    lags_s : dict of str to list of float
        Service → times from what it went by to its decisions; of the matcher, only to placements.
    lags_after_s : dict of str to dict of Moment to float
        Service → moment → time from it to the decision.
    underway : dict of str to list of (float, float)
        Service → when each of its decisions was made, by its own clock, and when it was in the log, by the bus's clock.
    explained : bool
        Whether rounds said why jobs wait: such a matcher is asked more often, so that some jobs start moments sooner.
    last_s : float
        Time of the last fact.
    seqs, at_s : list
        Each commit's sequence in the log, rising, and the time of its first fact.
    """

    specs: dict[str, JobSpec] = field(default_factory=dict)
    joined: list[NodeJoined] = field(default_factory=list)
    gone: list[tuple[float, str, NodeJoined | None, bool]] = field(default_factory=list)
    spoke_s: dict[tuple[str, float], float] = field(default_factory=dict)
    people_facts: list[tuple[str, AnyEvent]] = field(default_factory=list)
    statements: list[PastStatement] = field(default_factory=list)
    lags_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lags_after_s: defaultdict[str, dict[Moment, float]] = field(default_factory=lambda: defaultdict(dict))
    underway: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    explained: bool = False
    last_s: float = 0.0
    seqs: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    def replayable(self) -> list[Job]:
        """Return the jobs that ran, in the order of their submission."""
        found = [job for job in self.jobs if job.sample is None and self.runs.get(job.id)]
        return sorted(found, key=lambda job: job.submitted_s)

    def never_ran(self, from_s: float = -np.inf, to_s: float = np.inf) -> list[Job]:
        """Return the jobs, of those submitted in a window, that never held a device."""
        found = [job for job in self.jobs if job.sample is None and not self.runs.get(job.id)]
        return [job for job in found if from_s <= job.submitted_s < to_s]

    def time_of(self, seq: int) -> float:
        """Return the time of the first commit from a sequence on; infinity if the log ends before it."""
        at = bisect_left(self.seqs, seq)
        return self.at_s[at] if at < len(self.seqs) else np.inf


def read_log(text: Iterable[str | bytes]) -> ClusterHistory:
    """
    Return the history in a log: a fact a line, as ``penstock events -f -o json`` prints and simulations write it.

    Raises
    ------
    ValueError
        If a line is no fact of a log.
    """
    return of_deliveries(log_file.decode(text))


def of_deliveries(deliveries: Iterable[Delivery]) -> ClusterHistory:
    """Return the history in a log's commits, as a bus delivers them."""
    reading = HistoryFold()
    for delivery in deliveries:
        reading.add(delivery)
    return reading.history()


def longest(runs: Sequence[PastRun]) -> Size:
    """Return the size with which devices were held for the longest time, the first of equal ones."""
    held_s: defaultdict[Size, float] = defaultdict(float)
    for run in runs:
        held_s[run.size] += run.held_s
    return max(held_s, key=lambda size: held_s[size])


def key_of(job: Job) -> str:
    """Return the key of a job's workload."""
    return job.profile_key or workload.key(job.spec)


class HistoryFold:
    """The fold of commits, in the log's order, to a history."""

    def __init__(self) -> None:
        self._found = ClusterHistory()
        self._here: dict[str, NodeJoined] = {}
        self._away: dict[str, tuple[float, bool]] = {}
        self._last_start_s = 0.0
        self._spoke_s: dict[str, float] = {}
        self._causes = _Causes()

    def add(self, delivery: Delivery) -> None:
        """Fold one commit in."""
        facts = delivery.commit.known
        if facts:
            self._found.seqs.append(delivery.seq)
            self._found.at_s.append(facts[0].at_s)
            self._measure_lag(delivery)
        sized = self._causes.sized(facts, self._found.jobs)
        for fact in facts:
            self._add(delivery.subject, fact)
        self._causes.note(delivery, self._found.jobs)
        if facts and isinstance(facts[0], _OF_SERVICES):
            self._found.statements.append(self._causes.statement(delivery, sized))

    def history(self) -> ClusterHistory:
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

    def _measure_lag(self, delivery: Delivery) -> None:
        """Note how long a service took to decide; a round that waited for a time places its jobs late."""
        fact, found = delivery.commit.known[0], self._found
        service = _DECIDES.get(type(fact))
        if service is not None:
            found.underway[service].append((fact.at_s, delivery.stored_s))
        at = bisect_left(found.seqs, delivery.commit.cause)
        known = at < len(found.seqs) and found.seqs[at] == delivery.commit.cause
        if service is None or not known:
            return
        lag_s = max(0.0, fact.at_s - found.at_s[at])
        moment = self._causes.moment(delivery.commit.cause)
        if moment is not None and lag_s < _MOST_LAG_S:
            found.lags_after_s[service].setdefault(moment, lag_s)
        if not isinstance(fact, RoundDecided) or fact.placements:
            found.lags_s[service].append(lag_s)

    def _add(self, subject: str, fact: AnyEvent) -> None:
        found = self._found
        found.last_s = max(found.last_s, fact.at_s)
        if isinstance(fact, _OF_RUNS):
            self._spoke_s[fact.node_id] = fact.at_s
        match fact:
            case JobSubmitted():
                found.specs.setdefault(fact.job_id, fact.spec)
            case RunStarted() if (job := found.jobs.get(fact.job_id)) is not None:
                if job.may_run(fact.epoch, fact.node_id) and not job.started_s:
                    self._last_start_s = max(self._last_start_s, fact.at_s)
            case NodeJoined():
                self._join(fact)
            case NodeLeft():
                self._away.setdefault(fact.node_id, (fact.at_s, True))
            case RoundDecided():
                found.explained = found.explained or bool(fact.waits)
                for node_id in fact.lost_nodes:
                    self._away.setdefault(node_id, (fact.at_s, False))
                    found.spoke_s[node_id, fact.at_s] = self._spoke_s.get(node_id, 0.0)
            case _ if isinstance(fact, _OF_PEOPLE):
                found.people_facts.append((subject, fact))
            case _:
                pass
        found.apply(fact)

    def _join(self, fact: NodeJoined) -> None:
        if fact.node_id not in self._here:
            self._found.joined.append(fact)
        elif (away := self._away.pop(fact.node_id, None)) is not None:
            self._found.gone.append((away[0], fact.node_id, fact, away[1]))
        self._here[fact.node_id] = fact


class LogMarkers:
    """
    Names for what happens in a log, in its order; other logs of the same jobs have the same names.

    Attributes
    ----------
    placed : Counter of str
        How often each job has been placed.
    last : Moment or None
        The name of the last commit; None if it has none.
    """

    def __init__(self) -> None:
        self.placed: Counter[str] = Counter()
        self.last: Moment | None = None
        self._stated: Counter[str] = Counter()

    def note(self, delivery: Delivery) -> None:
        """Name the next commit."""
        self.last = None
        for fact in delivery.commit.facts:
            match fact:
                case JobSubmitted():
                    self.last = ("submitted", fact.job_id, 0)
                case RunStarted():
                    self.last = ("started", fact.job_id, self.placed[fact.job_id])
                case RunEnded():
                    self.last = ("ended", fact.job_id, self.placed[fact.job_id])
                case RoundDecided():
                    self.placed.update(placement.job_id for placement in fact.placements)
                case _ if isinstance(fact, _OF_SERVICES):
                    self._stated[delivery.subject] += 1
                    self.last = ("stated", delivery.subject, self._stated[delivery.subject])
                case _:
                    pass


class _Causes:
    """
    The causes of each commit.

    A commit names the one that its writer went by. If that is a decision, its own causes count. The profiler answers
    once all samples of a workload have ended and names the last only: all that ended since its last answer count.
    """

    def __init__(self) -> None:
        self._names = LogMarkers()
        self._moments: dict[int, tuple[Moment, float]] = {}
        self._through: dict[int, int] = {}  # a decision's sequence → that of what it went by
        self._sampled: defaultdict[str, list[tuple[Moment, float]]] = defaultdict(list)

    def moment(self, seq: int) -> Moment | None:
        """Return the name of a commit; None where it has none."""
        return self._moments[seq][0] if seq in self._moments else None

    def note(self, delivery: Delivery, jobs: JobTable) -> None:
        """Note the name of a commit, once it is folded in."""
        self._names.note(delivery)
        if delivery.commit.cause:
            self._through[delivery.seq] = delivery.commit.cause
        if self._names.last is None:
            return
        last = self._names.last
        self._moments[delivery.seq] = last, delivery.commit.known[-1].at_s
        job = jobs.get(last[1]) if last[0] == "ended" else None
        if job is not None and job.sample is not None:
            self._sampled[subjects.profile(job.profile_key)].append(self._moments[delivery.seq])

    def sized(self, facts: Sequence[AnyEvent], jobs: JobTable) -> dict[str, tuple[int, bool]]:
        """Return the jobs whose sizes change with facts: how often each was placed, and whether it holds devices."""
        demands = [demand for fact in facts if isinstance(fact, TrialsScaled) for demand in fact.demands]
        named = [(demand, job) for demand in demands if (job := jobs.get(demand.job_id)) is not None]
        return {
            job.id: (self._names.placed[job.id], job.placement is not None)
            for demand, job in named
            if demand.epoch == job.epoch
        }

    def statement(self, delivery: Delivery, sized: dict[str, tuple[int, bool]]) -> PastStatement:
        """Return a commit of the profiler or the tuner with its causes."""
        commit = delivery.commit
        after = [*self._sampled.pop(delivery.subject, ())]
        seq = commit.cause
        while seq in self._through and (seq not in self._moments or self._moments[seq][0][0] == "stated"):
            seq = self._through[seq]
        if seq in self._moments and self._moments[seq][0][0] != "stated":
            after.append(self._moments[seq])
        at_s = commit.known[0].at_s
        return PastStatement(
            at_s=at_s,
            subject=delivery.subject,
            actor=commit.actor,
            facts=commit.known,
            after=tuple(dict.fromkeys(moment for moment, _ in after)),
            lag_s=max(0.0, at_s - max(moment_s for _, moment_s in after)) if after else at_s,
            placed=sized,
        )
