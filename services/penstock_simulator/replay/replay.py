"""
A cluster's history once more, under the same or another policy, by the production deciders.

Every job of the log is submitted when it was, with the specification that it had, also those outside a window: they
compete with those within. Ranker, matcher and autoscaler decide anew. The work of a job is taken from its runs: each of
its runs in the replay takes the turn of one that it had (:mod:`penstock_simulator.replay.past_runs`). It takes as long
to start, is as fast, fails or is refused where that one was, and says what that one said. Nodes come and go as they
did. People set, hold, drain and cancel at the same times as they did. Services decide as long after the facts that they
go by as they did.

:class:`PastStatements` say again what the profiler and the tuner of the history said, once the replay has reached what
they went by. These two services are not asked anew: a profiler of other settings, or of a later version, would sample
other workloads, and the log does not hold what such samples would have shown. So a replay has exactly the samples that
there were. Whoever waits for an answer gets the one that there was, as long after the end of the last sample as it
came.

:func:`parse` reads nodes that a replay adds: ``+8xfast`` is eight more devices of a kind, ``+2x4@fast`` two nodes of
four.

What stays unknown, and how it is handled:

* Jobs that were cancelled while they ran, or still ran, have no true length. They are cancelled once they have run as
  long as they did, which is the least that it could be, and are marked in :attr:`Replay.censored`, as are those that
  failed in the end and fail there again: averages leave them out.
* Jobs that never ran, or waited when they were cancelled, wait in the replay, and are cancelled when they were, or with
  the log's end; :attr:`Replay.never_ran` has those that never ran.
* Whoever waits for an answer before asking again (a sweep's tuner, a person) is taken to ask when he did.
* The speed of a job on a kind, or of an elastic one with a size, that it never had is the one of its workload's
  profile.
* The speed of a job that shares a device, beside others than it had, is the one that it had.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_bus import Delivery
from penstock_gateway.dependencies import target_of
from penstock_log import (
    TERMINAL,
    AnyEvent,
    Demand,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    Job,
    JobCancelled,
    JobSpec,
    JobSubmitted,
    JobTable,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeResumed,
    PolicySet,
    ReservationMade,
    RoundDecided,
    SamplesRequested,
    TrialsScaled,
    subjects,
)
from penstock_log.spec import ContainerRuntime
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_simulator import CONFIGURED
from penstock_simulator.engine import cluster_script
from penstock_simulator.engine.cluster_script import Outage, Script
from penstock_simulator.engine.engine import DecisionDelays, EventEngine
from penstock_simulator.engine.executors import VirtualExecutors
from penstock_simulator.engine.policies import SIMULATED_POLICIES, choose, restated
from penstock_simulator.engine.simulation import SimulationOptions, play
from penstock_simulator.outcome import Outcome
from penstock_simulator.replay import past_outcome
from penstock_simulator.replay.history import ClusterHistory, LogMarkers, Moment, PastStatement, read_log
from penstock_simulator.replay.past_executors import PastExecutors
from penstock_simulator.replay.past_outcome import only
from penstock_simulator.replay.past_runs import PastRunLedger
from penstock_simulator.trace import Floats
from penstock_simulator.virtual_cluster import NodeGroup, SimulatedNodes

__all__ = ["ClusterHistory", "Replay", "SizingSettings", "read_log", "replay"]


_LONG_S: Final = 0.02
_AFTER_S: Final = 1e-3
"""A node that said something was there at that moment."""
_APART_S: Final = 5.0
"""Clocks that differ by more are not of one time."""


@dataclass(frozen=True)
class Replay:
    """
    What really happened, and what would have happened.

    Attributes
    ----------
    measured, replayed : Outcome
        Outcomes of one trace of J jobs, on the log's clock.
    censored : (J,) bool array
        Jobs without a true length.
    left_s : (J,) float array, seconds
        When each job was really over: completed, failed or cancelled; the log's end for a job that was not.
    names : tuple of str, (J,)
    never_ran : tuple of Job
        Jobs that are left out.
    """

    measured: Outcome
    replayed: Outcome
    censored: npt.NDArray[np.bool_]
    left_s: Floats
    names: tuple[str, ...]
    never_ran: tuple[Job, ...]

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Which jobs completed in both, (J,)."""
        return ~self.censored & self.measured.finished & self.replayed.finished

    def average_jct_s(self) -> tuple[float, float]:
        """Return the average completion times, measured and replayed, of the jobs that completed in both."""
        both = self.known
        submit_s = self.measured.trace.submit_s[both]
        return float((self.measured.end_s[both] - submit_s).mean()), float(
            (self.replayed.end_s[both] - submit_s).mean()
        )


def replay(
    history: ClusterHistory,
    policy: str = CONFIGURED,
    *,
    added: SimulatedNodes | None = None,
    without: Collection[str] = (),
    from_s: float = -np.inf,
    to_s: float = np.inf,
    **options: Any,
) -> Replay:
    """
    Run a cluster's history again.

    Parameters
    ----------
    history : ClusterHistory
    policy : str
        One of :data:`penstock_simulator.engine.policies.SIMULATED_POLICIES`.
    added : SimulatedNodes, optional
        Further nodes, from the beginning.
    without : collection of str
        Nodes of the history to leave out.
    from_s, to_s : float
        The window of submissions, on the log's clock, whose jobs are reported; all jobs are run again.
    **options
        Fields of :class:`penstock_simulator.engine.simulation.SimulationOptions`: ``settings`` are those that the
        cluster had in its file, for the log does not hold them. What is 0 in ``costs`` is as measured, or as most jobs
        asked for.

    Raises
    ------
    ValueError
        If no job in the window ever ran, or the policy or a setting is not known.
    """
    jobs = history.replayable()
    rows = np.array([row for row, job in enumerate(jobs) if from_s <= job.submitted_s < to_s], dtype=np.int64)
    if not rows.size:
        raise ValueError("no job of the log ran in this window; take a longer one")
    chosen = _as_configured(SimulationOptions(**options), history, policy)
    rules = choose(policy, chosen.settings).matcher
    ledger = PastRunLedger(history, jobs, rules.node_timeout_s, rules.await_profile_s)
    nodes = _nodes(history, added, without)
    script = _script(ledger, jobs, policy, nodes, rules.node_timeout_s, settings=chosen.settings)
    costs = replace(
        chosen.costs,
        stop_s=chosen.costs.stop_s or ledger.stop_s,
        checkpoint_s=chosen.costs.checkpoint_s or median(job.spec.checkpoint_s for job in jobs),
    )
    statements = PastStatements(history.statements, script.shift_s)
    chosen = replace(chosen, costs=costs, watch=statements.attach, delays=_delays(history, statements, script.shift_s))
    chosen_jobs = [jobs[row] for row in rows]
    return Replay(
        measured=only(past_outcome.measured(history, jobs, script.trace), rows),
        replayed=only(play(script, policy, chosen), rows),
        censored=past_outcome.censored(chosen_jobs),
        left_s=np.array([job.finished_s or history.last_s for job in chosen_jobs]),
        names=tuple(job.spec.name for job in chosen_jobs),
        never_ran=tuple(history.never_ran(from_s, to_s)),
    )


def _as_configured(options: SimulationOptions, history: ClusterHistory, policy: str) -> SimulationOptions:
    """Return the options with the services that the history had, and with the matcher explaining where it did."""
    elastic = any(spec.elastic for spec in history.specs.values())
    autoscaler = options.autoscaler or (SizingSettings() if elastic else None)
    if history.explained and policy == CONFIGURED:
        settings = {"max_waits": MatcherSettings().max_waits, **(options.settings or {})}
        return replace(options, autoscaler=autoscaler, settings=settings)
    return replace(options, autoscaler=autoscaler)


def _delays(history: ClusterHistory, statements: PastStatements, shift_s: float) -> dict[str, DecisionDelays]:
    """
    Return the delays of the services' decisions, and the times at which they were kept from deciding.

    A fact that took long to get into the log kept its service from deciding anew. Most decisions show the difference
    between the service's clock and that of the bus; if it is large, nobody knows which facts took long.
    """
    found = {}
    for name in {*history.lags_s, *history.underway}:
        usual_s = median(stored_s - at_s for at_s, stored_s in history.underway[name])
        stalls = [
            (at_s + shift_s, stored_s - usual_s + shift_s)
            for at_s, stored_s in history.underway[name]
            if abs(usual_s) < _APART_S and stored_s - usual_s - at_s > _LONG_S
        ]
        after_s = partial(statements.lag_s, history.lags_after_s[name])
        found[name] = DecisionDelays(median(history.lags_s[name] or [0.0]), sorted(stalls), after_s)
    return found


def _nodes(history: ClusterHistory, added: SimulatedNodes | None, without: Collection[str]) -> list[NodeJoined]:
    """Return the nodes of the replay: those of the log at their times, new ones at its beginning."""
    found = [joined for joined in history.joined if joined.node_id not in without]
    pools = {device.kind: joined.pool for joined in reversed(history.joined) for device in joined.devices}
    for joined in cluster_script.nodes(added) if added is not None else ():
        pool = pools.get(joined.devices[0].kind, joined.pool)
        found.append(msgspec.structs.replace(joined, node_id=f"added-{joined.node_id}", pool=pool, at_s=-np.inf))
    return found


def _script(
    ledger: PastRunLedger,
    jobs: list[Job],
    policy: str,
    nodes: list[NodeJoined],
    silence_s: float,
    *,
    settings: Mapping[str, Any] | None,
) -> Script:
    history = ledger.history
    trace = past_outcome.trace_of(history, jobs)
    first_s = min([*(joined.at_s for joined in history.joined), float(trace.submit_s[0])])
    shift_s = cluster_script.ORIGIN_S - first_s
    declares = SIMULATED_POLICIES[policy].declares
    kinds = sorted({device.kind for joined in nodes for device in joined.devices})

    def submitted(row: int) -> JobSubmitted:
        job, task = jobs[row], ledger.tasks[row]
        spec = _later(ledger.spec(job), history, shift_s)
        spec = msgspec.structs.replace(spec, duration_s=ledger.length_s(task, kinds)) if declares else spec
        return JobSubmitted(at_s=job.submitted_s + shift_s, job_id=job.id, spec=spec)

    known = {joined.node_id for joined in nodes}
    people = [
        (subject, restated(fact, policy, settings) if isinstance(fact, PolicySet) else fact, "gateway/sim")
        for subject, fact in history.people_facts
        if not isinstance(fact, _OF_NODES) or fact.node_id in known
    ]
    return Script(
        trace=trace,
        tasks=ledger.tasks,
        submitted=submitted,
        nodes=[_moved(joined, shift_s) for joined in nodes],
        speed=ledger.speed,
        sampled=ledger.sampled,
        shift_s=shift_s,
        facts=[
            *((subject, _moved(fact, shift_s), actor) for subject, fact, actor in people),
            *_others(history, ledger, shift_s),
            *_cancels(history, ledger, shift_s),
            *_departures(history, known, shift_s),
        ],
        outages=[
            _outage(history, departure, silence_s, shift_s)
            for departure in history.gone
            if not departure[3] and departure[1] in known
        ],
        executors=partial(PastExecutors, ledger=ledger),
        unblocks=any(spec.after for spec in history.specs.values()),
    )


def _later(spec: JobSpec, history: ClusterHistory, shift_s: float) -> JobSpec:
    """Return a job's specification with what it waits for as the replay has it: its clock, and trials for sweeps."""
    if not spec.after and not spec.begin_s:
        return spec
    after: list[str] = []
    for one in spec.after:
        target = target_of(one)
        if target in history.specs or any(
            other.array is not None and other.array.id == target for other in history.specs.values()
        ):
            after.append(one)
        else:
            after += [f"afterany:{job_id}" for job_id, other in history.specs.items() if other.parent == target]
    begin_s = max(0.0, spec.begin_s + shift_s) if spec.begin_s else 0.0
    return msgspec.structs.replace(spec, after=tuple(after), begin_s=begin_s)


def _outage(
    history: ClusterHistory, departure: tuple[float, str, NodeJoined | None, bool], silence_s: float, shift_s: float
) -> Outage:
    """Return a node's failure: its heartbeats end ``silence_s`` before it was lost, but it may have written later."""
    lost_s, node_id, back, _ = departure
    heard_s = max(0.0, lost_s - silence_s + shift_s)
    spoke_s = history.spoke_s.get((node_id, lost_s), 0.0) + shift_s
    return Outage(
        node_id, max(heard_s, spoke_s + _AFTER_S), _moved(back, shift_s) if back is not None else None, heard_s
    )


def _others(history: ClusterHistory, ledger: PastRunLedger, shift_s: float) -> list[tuple[str, AnyEvent, str]]:
    """Return the submissions of jobs that never ran: they wait in the replay as well."""
    found: list[tuple[str, AnyEvent, str]] = []
    for job_id in (task.id for task in ledger.others if task.id in history.specs):
        spec, at_s = _later(history.specs[job_id], history, shift_s), history.jobs[job_id].submitted_s + shift_s
        found.append((subjects.job(job_id), JobSubmitted(at_s=at_s, job_id=job_id, spec=spec), "gateway/sim"))
    return found


def _cancels(history: ClusterHistory, ledger: PastRunLedger, shift_s: float) -> Iterator[tuple[str, AnyEvent, str]]:
    """Yield the cancellations at times of the log: of jobs that waited then, or at the log's end."""
    for task in (*ledger.tasks, *ledger.others):
        if math.isinf(task.work_s):
            at_s = history.cancelled_s.get(task.id, history.last_s)
            yield subjects.job(task.id), JobCancelled(at_s=at_s + shift_s, job_id=task.id), "gateway/sim"


_OF_NODES: Final = (NodeDrained, NodeResumed, NodeLeaving, DeviceDrained, DeviceResumed, DeviceFailed, DeviceRecovered)


def _moved(fact: Any, shift_s: float) -> Any:
    moved = msgspec.structs.replace(fact, at_s=max(0.0, fact.at_s + shift_s))
    if not isinstance(fact, ReservationMade):
        return moved
    return msgspec.structs.replace(moved, from_s=fact.from_s + shift_s, until_s=fact.until_s + shift_s)


def _departures(history: ClusterHistory, known: Collection[str], shift_s: float) -> list[tuple[str, AnyEvent, str]]:
    found: list[tuple[str, AnyEvent, str]] = []
    for at_s, node_id, back, orderly in history.gone:
        if orderly and node_id in known:
            left = NodeLeft(at_s=at_s + shift_s, node_id=node_id)
            found.append((subjects.node(node_id), left, ""))
            if back is not None:
                found.append((subjects.node(node_id), _moved(back, shift_s), ""))
    return found


class PastStatements:
    """
    The statements of the profiler and the tuner, each made again when its time has come.

    Parameters
    ----------
    statements : sequence of PastStatement
        In the log's order.
    shift_s : float
        Virtual time less the log's.

    Attributes
    ----------
    moments : LogMarkers
        What happens in the replay.
    """

    def __init__(self, statements: Sequence[PastStatement], shift_s: float) -> None:
        self._statements, self._shift_s = statements, shift_s
        self._jobs, self.moments = JobTable(), LogMarkers()
        self._happened: set[Moment] = set()
        self._waiting: defaultdict[Moment, list[int]] = defaultdict(list)
        self._open = [set(statement.after) for statement in statements]
        self._before, self._following = _order(statements)
        self._ready: set[int] = set()
        self._made: set[int] = set()
        self._engine: EventEngine
        self._executors: VirtualExecutors

    def attach(self, engine: EventEngine, executors: VirtualExecutors) -> None:
        """Begin to follow a simulation that has not begun."""
        engine.witness(self.moments.note)
        self._engine, self._executors = engine, executors
        for at, statement in enumerate(self._statements):
            for moment in statement.after:
                self._waiting[moment].append(at)
            if not statement.after:
                engine.event_queue.at(max(0.0, statement.lag_s + self._shift_s), self._is_ready, at)
        engine.witness(self._note)

    def lag_s(self, known_s: Mapping[Moment, float]) -> float | None:
        """Return the time from what has just happened to a service's decision; None if it is not known."""
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
        """Count everything that was to happen to a job that is over as having happened."""
        for moment in [moment for moment in self._waiting if moment[1] == job_id]:
            self._happen(moment)

    def _happen(self, moment: Moment) -> None:
        for at in self._waiting.pop(moment, ()):
            self._open[at].discard(moment)
            if not self._open[at]:
                self._engine.event_queue.at(self._engine.now_s + self._statements[at].lag_s, self._is_ready, at)

    def _is_ready(self, at: int) -> None:
        self._ready.add(at)
        self._make(at)

    def _make(self, at: int) -> None:
        """Make a statement, unless it has to come after one that is still missing; then those that waited for it."""
        if at in self._made or not self._before[at] <= self._made:
            return
        statement = self._statements[at]
        for fact in statement.facts:
            now: Any = self._now(statement, fact)
            if isinstance(now, SamplesRequested):
                self._executors.expect(now)
            self._engine.append(statement.subject, now, statement.actor)
        self._made.add(at)
        for following in self._following[at]:
            if following in self._ready:
                self._make(following)

    def _now(self, statement: PastStatement, fact: AnyEvent) -> AnyEvent:
        moved: Any = msgspec.structs.replace(fact, at_s=self._engine.now_s)
        if isinstance(moved, TrialsScaled):
            demands = tuple(self._of_now(statement, demand) for demand in moved.demands)
            return msgspec.structs.replace(moved, demands=demands)
        return moved  # type: ignore[no-any-return]

    def _of_now(self, statement: PastStatement, demand: Demand) -> Demand:
        """Return a demand for the job's present epoch; void if it was void, or if the job waited then and runs now."""
        job, then = self._jobs.get(demand.job_id), statement.placed.get(demand.job_id)
        void = then is None or job is None or (not then[1] and self.moments.placed[job.id] > then[0])
        return msgspec.structs.replace(demand, epoch=-1 if void or job is None else job.epoch)


def _order(statements: Sequence[PastStatement]) -> tuple[list[set[int]], list[list[int]]]:
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


_ADDED: Final = re.compile(r"(\d+)x(?:(\d+)@)?([A-Za-z][\w.-]*)")
_EXPECTED: Final = "expected what is added, such as +8xfast (devices of a kind) or +2x4@fast (nodes of so many)"
_GIB: Final = 2**30


def parse(word: str, history: ClusterHistory) -> SimulatedNodes:
    """
    Return the nodes that a word adds to the cluster of a history.

    Devices are like those of their kind that the cluster has, and come in nodes as large as its largest with that
    kind; what is left over makes a smaller one.

    Raises
    ------
    ValueError
        If the word names no nodes, or the cluster has no such kind: nothing is known of the speed of jobs on it.
    """
    if not word.startswith("+"):
        raise ValueError(f"--cluster is {word!r}; {_EXPECTED}")
    return SimulatedNodes(
        [group for term in word[1:].split("+") for group in _groups(word, term.strip(), history.joined)]
    )


def check_nodes(names: Sequence[str], history: ClusterHistory) -> None:
    """
    Check that nodes that are to be left out were there.

    Raises
    ------
    ValueError
        If one was not there, or none would be left.
    """
    known = [joined.node_id for joined in history.joined]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no node {name!r} in the log; expected one of {', '.join(sorted(known))}")
    if known and not set(known) - set(names):
        raise ValueError("no node is left to run jobs on; leave one in")


def _groups(word: str, term: str, joined: Sequence[NodeJoined]) -> list[NodeGroup]:
    """Return the groups of a term, like the last node with devices of its kind."""
    found = _ADDED.fullmatch(term)
    if found is None:
        raise ValueError(f"--cluster {word}: {term!r} adds nothing; {_EXPECTED}")
    count, kind = int(found[1]), found[3]
    counts = [Counter(device.kind for device in one.devices) for one in joined]
    if not any(kind in one for one in counts):
        raise ValueError(
            f"--cluster {word}: the log has no device of kind {kind!r}, so nobody knows how fast jobs are on it; "
            f"expected one of {', '.join(sorted(set().union(*counts)))}"
        )
    node = next(one for one, kinds in zip(reversed(joined), reversed(counts), strict=True) if kind in kinds)
    like = next(device for device in reversed(node.devices) if device.kind == kind)
    largest = max(one[kind] for one in counts)
    sizes = [(count, int(found[2]))] if found[2] else [(count // largest, largest), (1, count % largest)]
    groups = [
        NodeGroup(
            count=number,
            gpus=gpus,
            kind=kind,
            memory_gib=like.memory_bytes / _GIB,
            speed=like.speed,
            cpus=node.cpus / len(node.devices) * gpus,
            host_memory_gib=node.host_memory_bytes / len(node.devices) * gpus / _GIB,
            containers=tuple(name for name in get_args(ContainerRuntime) if name in node.containers),
        )
        for number, gpus in sizes
        if number and gpus
    ]
    if not groups:
        raise ValueError(f"--cluster {word}: {term!r} adds no device; {_EXPECTED}")
    return groups
