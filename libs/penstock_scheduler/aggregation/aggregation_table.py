"""
The fold of aggregation: agents, aggregators, and the runs that have parts on them.

The assigner decides on it, and the gateway answers from it. :class:`AggregationTable` never refuses a fact. A fact that
does not fit (an older epoch, another generation, a number that cannot be) changes nothing.

An aggregator is there from ``aggregation.allocated.v1`` until its process is known to be gone: by
``aggregator.ended.v1``, by its agent's next life, or by the loss of its node. Its name is never given again, so that a
late word about it cannot be taken for one about another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from penstock_log import (
    AggregationAsked,
    AggregationAssigned,
    AggregationLeft,
    AggregationMeasured,
    AggregationRefused,
    AggregatorEnded,
    AggregatorsAllocated,
    AggregatorsOffered,
    AggregatorsRecycled,
    AggregatorStarted,
    AggregatorUnreachable,
    Event,
    Job,
    JobTable,
    NodeLeft,
    NodeRemoved,
    PartMoved,
    PartPlaced,
    RoundDecided,
)
from penstock_log.aggregation_facts import Phase, RuleName, node_of
from penstock_log.aggregation_messages import MOST_PARTS, PART_BYTES, WATCH_STEPS
from penstock_log.spec import AggregationMode

CHANGE: Final = 0.05
"""Times that differ by less than this share of them from those measured before are taken for the same."""
PROFILE_S: Final = 1.0
WATCH_S: Final = 5.0
"""
Least seconds of the first measurement, and of each later one by which something is decided: what the agents measure is
over so many steps, which may be over before the machine's other work has come and gone.
"""
UNKNOWN: Final = -1.0
LEAST_S: Final = 1e-7
MOST_S: Final = 1e7
"""Iteration times between which a measurement is believed."""
START_S: Final = 30.0
"""An aggregator that does not run so long after it was allocated is given up: its agent may be gone."""
MOST_BACKOFF_S: Final = 60.0
"""A node whose aggregators fail to start gets no new one for so long at most."""

Stage = Literal["profile", "packed", "own"]
"""Whether a run has aggregators of its own to be measured, shares some, or has its own for good."""


class AgentRecord(msgspec.Struct):
    """
    A node's agent.

    Attributes
    ----------
    most : int
        Aggregators that it would run at most; 0 while it is not there.
    next_number : int
        Number of its next aggregator.
    failures, until_s : int, float
        Aggregators that ended before they had started, since the last one that did; no new one is wanted until then.
    """

    pool: str
    most: int
    incarnation: str = ""
    next_number: int = 0
    failures: int = 0
    until_s: float = 0.0

    def note_failure(self, at_s: float) -> None:
        """Note that an aggregator has not started."""
        self.failures = min(self.failures + 1, 32)
        self.until_s = at_s + min(MOST_BACKOFF_S, 2.0 ** (self.failures - 1))

    def skip_number(self, name: str, node_id: str) -> None:
        """Give no aggregator of this node the number of this one, or a lower one."""
        number = name.rpartition("/")[2]
        if node_of(name) == node_id and number.isascii() and number.isdigit() and len(number) < 16:
            self.next_number = max(self.next_number, int(number) + 1)


class AggregatorRecord(msgspec.Struct):
    """
    An aggregator that was allocated.

    Attributes
    ----------
    since_s, started_s : float
        When it was allocated, and when its process ran; 0 while it does not.
    recycled : bool
        It is to end, and takes its place until it has.
    gone : str
        Why it is not there any more; empty while it is.
    ended : bool
        Its process is known to be gone, or its agent will end it unasked.
    """

    pool: str
    since_s: float = 0.0
    started_s: float = 0.0
    recycled: bool = False
    gone: str = ""
    ended: bool = False

    @property
    def serves(self) -> bool:
        """Whether it can have parts."""
        return not self.gone and not self.recycled

    @property
    def due_s(self) -> float:
        """Until when it has to run; infinite where it does, or need not."""
        return math.inf if self.started_s or not self.serves else self.since_s + START_S

    def is_overdue(self, now_s: float) -> bool:
        """Return whether it should run by now and does not."""
        return now_s >= self.due_s


class AggregatorSample(msgspec.Struct, frozen=True):
    """What an aggregator has last measured of a run in its present generation: the mean of some measurements."""

    steps: int
    iteration_s: float
    at_s: float
    held_s: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it was measured for."""
        return self.steps * self.iteration_s

    def with_more(self, event: AggregationMeasured) -> AggregatorSample:
        """Return the mean of this and the next measurement."""
        steps = self.steps + event.steps
        iteration_s = (self.seconds + event.steps * event.iteration_s) / steps
        held_s = (self.steps * self.held_s + event.steps * event.held_s) / steps
        return AggregatorSample(steps, iteration_s, event.at_s, held_s)


class AggregationRun(msgspec.Struct, kw_only=True):
    """
    A run that has asked for aggregation, and is not over.

    Attributes
    ----------
    parts : tuple of int
        Bytes of each.
    mode : {"shared", "own", "none"}
        As its job says; ``own`` also where its script does.
    generation, phase, placed, loss, because, assigned_s
        Of its last assignment; 0 and empty while it has none.
    sources : list of str
        The aggregator that each part is on its way from; empty where it has come.
    alone_s, now_s : float
        Iteration time with aggregators of its own, and as last measured; 0 while unknown.
    alone_held_s, held_s : float
        What of these its aggregators have: from a step's last push to its result.
    costs_s : list of float
        Processor seconds of each part's steps; -1 while unknown.
    samples : dict of str to AggregatorSample
        Aggregator → what it has measured last since this generation began.
    refused : str
        Why it is given none.
    closed : bool
        It needs no aggregation any more, and has no part.
    avoids : dict of str to str
        Aggregators that a rank cannot reach → why.
    uncopied : dict of str to str
        Part on its way, by its number, that cannot be copied → why.
    moves, not_finite : int
        Parts that were moved, and results that were no finite number.
    """

    job_id: str
    epoch: int
    pool: str
    world_size: int
    parts: tuple[int, ...]
    servers: int
    mode: AggregationMode
    rule: RuleName
    nodes: tuple[str, ...]
    asked_s: float
    generation: int = 0
    phase: Phase = "profile"
    stage: Stage = "profile"
    placed: tuple[PartPlaced, ...] = ()
    loss: float = 0.0
    because: str = ""
    assigned_s: float = 0.0
    sources: list[str] = msgspec.field(default_factory=list)
    alone_s: float = 0.0
    now_s: float = 0.0
    alone_held_s: float = 0.0
    held_s: float = 0.0
    costs_s: list[float] = msgspec.field(default_factory=list)
    samples: dict[str, AggregatorSample] = msgspec.field(default_factory=dict)
    refused: str = ""
    closed: bool = False
    avoids: dict[str, str] = msgspec.field(default_factory=dict)
    uncopied: dict[str, str] = msgspec.field(default_factory=dict)
    moves: int = 0
    not_finite: int = 0

    @property
    def waits(self) -> bool:
        """Whether it has neither aggregators nor a refusal."""
        return not self.placed and not self.refused and not self.closed

    @property
    def open(self) -> bool:
        """Whether it has parts."""
        return bool(self.placed) and not self.closed

    @property
    def aggregators(self) -> tuple[str, ...]:
        """The aggregators that its parts are on, in the order of its parts."""
        return tuple(dict.fromkeys(one.aggregator for one in self.placed)) if not self.closed else ()

    @property
    def measured(self) -> bool:
        """Whether all aggregators of this generation have measured it, and each part's cost is known."""
        names = self.aggregators
        return bool(names) and all(name in self.samples for name in names) and UNKNOWN not in self.costs_s

    @property
    def moving(self) -> bool:
        """Whether a part is on its way."""
        return any(self.sources)

    def cost_s(self, part: int) -> float:
        """Return a part's cost; 0 while unknown."""
        return max(0.0, self.costs_s[part])

    @property
    def steps(self) -> int:
        """Steps that the shortest of its measurements is over."""
        return min((sample.steps for sample in self.samples.values()), default=0)

    @property
    def is_profiled(self) -> bool:
        """Whether it was measured for long enough to be packed."""
        return self.measured and all(sample.seconds >= PROFILE_S for sample in self.samples.values())

    @property
    def is_watched(self) -> bool:
        """Whether it was measured for long enough to say what it has lost."""
        long = all(sample.seconds >= WATCH_S for sample in self.samples.values())
        return self.measured and self.steps >= WATCH_STEPS and long


class AggregationTable(msgspec.Struct):
    """
    Agents, aggregators and runs.

    Attributes
    ----------
    agents : dict of str to AgentRecord
        By node.
    aggregators : dict of str to AggregatorRecord
    runs : dict of str to AggregationRun
        By job, in the order in which they asked.
    moved_s : dict of str to float
        Pool → when parts were last moved there by choice.
    """

    agents: dict[str, AgentRecord] = msgspec.field(default_factory=dict)
    aggregators: dict[str, AggregatorRecord] = msgspec.field(default_factory=dict)
    runs: dict[str, AggregationRun] = msgspec.field(default_factory=dict)
    moved_s: dict[str, float] = msgspec.field(default_factory=dict)

    def apply(self, event: Event, jobs: JobTable, changed: Iterable[Job] = ()) -> set[str]:
        """
        Fold one fact in, after it was folded into the jobs; return the pools that it says something of.

        Parameters
        ----------
        event : Event
        jobs : JobTable
        changed : iterable of Job
            The jobs that the fact has changed.
        """
        pools = {job.spec.pool for job in changed if self._end_run(job)}
        if (pool := self._apply(event, jobs)) is not None:
            pools |= pool
        if pools:
            self._sweep()
        return pools

    def runs_in(self, pool: str) -> Iterator[AggregationRun]:
        """Yield the runs of a pool, in the order in which they asked."""
        return (run for run in self.runs.values() if run.pool == pool)

    def pools(self) -> list[str]:
        """Return the pools that have an agent, an aggregator or a run, sorted."""
        agents = {agent.pool for agent in self.agents.values()}
        aggregators = {one.pool for one in self.aggregators.values()}
        return sorted(agents | aggregators | {run.pool for run in self.runs.values()})

    def used(self, node_id: str) -> int:
        """Return how many places of a node's agent are taken."""
        return sum(not one.gone for name, one in self.aggregators.items() if node_of(name) == node_id)

    def serves(self, name: str) -> bool:
        """Say whether an aggregator is there and can have parts."""
        found = self.aggregators.get(name)
        return found is not None and found.serves

    def sources(self) -> set[str]:
        """Return the aggregators that a part is on its way from."""
        return {name for run in self.runs.values() for name in run.sources if name}

    def holders(self) -> dict[str, list[str]]:
        """Return the jobs with a part on each aggregator, or on the way to it."""
        found: dict[str, list[str]] = {}
        for run in self.runs.values():
            for name in run.aggregators:
                found.setdefault(name, []).append(run.job_id)
        return found

    def has_its_own(self, run: AggregationRun) -> bool:
        """Say whether a run is alone on as many aggregators as it asked for."""
        names = set(run.aggregators)
        if len(names) < min(run.servers, len(run.parts)):
            return False
        return all(other is run or names.isdisjoint(other.aggregators) for other in self.runs.values())

    def _apply(self, event: Event, jobs: JobTable) -> set[str] | None:
        """Fold a fact into agents, aggregators and runs; return its pools, None where it changes nothing."""
        if (fold := _FOLDS.get(type(event))) is not None:
            return fold(self, event)
        if isinstance(event, AggregationAsked):
            return self._ask(event, jobs)
        fold_run = _FOLDS_OF_RUNS.get(type(event))
        if fold_run is None:
            return None
        run = self._run(event.job_id, event.epoch)  # type: ignore[attr-defined]  # all of these kinds have both
        return {run.pool} if run is not None and fold_run(self, run, event) else None

    # --- agents and aggregators

    def _offer(self, event: AggregatorsOffered) -> set[str]:
        agent = self.agents.get(event.node_id)
        pools = {event.pool} if agent is None else {event.pool, agent.pool}
        if agent is None:
            agent = self.agents[event.node_id] = AgentRecord(pool=event.pool, most=0)
            for name in self.aggregators:  # of a node that was removed
                agent.skip_number(name, event.node_id)
        if agent.incarnation != event.incarnation or not event.most:
            self._lose(
                event.node_id, "went when its agent began anew" if event.most else "ended with its agent", ended=True
            )
            agent.failures, agent.until_s = 0, 0.0
        agent.pool, agent.most, agent.incarnation = event.pool, max(0, event.most), event.incarnation
        return pools

    def _start(self, event: AggregatorStarted) -> set[str] | None:
        found = self.aggregators.get(event.aggregator)
        if found is None or found.gone:
            return None
        found.started_s = found.started_s or event.at_s
        if (agent := self.agents.get(node_of(event.aggregator))) is not None:
            agent.failures, agent.until_s = 0, 0.0
        return {found.pool}

    def _end(self, event: AggregatorEnded) -> set[str] | None:
        found = self.aggregators.get(event.aggregator)
        if found is None:
            return None
        agent = self.agents.get(node_of(event.aggregator))
        if agent is not None and not found.started_s and not found.recycled:
            agent.note_failure(event.at_s)
        found.gone, found.ended = f"ended ({event.why or 'nobody says why'})", True
        return {found.pool}

    def _allocate(self, event: AggregatorsAllocated) -> set[str]:
        for name in event.aggregators:
            self.aggregators.setdefault(name, AggregatorRecord(pool=event.pool, since_s=event.at_s))
            if (agent := self.agents.get(node_of(name))) is not None:
                agent.skip_number(name, node_of(name))
        return {event.pool}

    def _recycle(self, event: AggregatorsRecycled) -> set[str]:
        for name in event.aggregators:
            if (found := self.aggregators.get(name)) is None:
                continue
            agent = self.agents.get(node_of(name))
            if agent is not None and found.is_overdue(event.at_s):
                agent.note_failure(event.at_s)
            found.recycled = True
            found.ended = found.ended or bool(found.gone)
        return {event.pool}

    def _leave_node(self, event: NodeLeft) -> set[str]:
        return self._lose_nodes((event.node_id,), "has left")

    def _remove_node(self, event: NodeRemoved) -> set[str]:
        return self._forget_nodes((event.node_id,))

    def _apply_round(self, event: RoundDecided) -> set[str] | None:
        if not event.lost_nodes and not event.forgotten_nodes:
            return None
        return self._lose_nodes(event.lost_nodes, "is lost") | self._forget_nodes(event.forgotten_nodes)

    def _lose_nodes(self, node_ids: Iterable[str], how: str) -> set[str]:
        return {
            pool
            for node_id in node_ids
            for pool in self._lose(node_id, f"was on node {node_id}, which {how}", ended=False)
        }

    def _forget_nodes(self, node_ids: Iterable[str]) -> set[str]:
        pools: set[str] = set()
        for node_id in node_ids:
            pools |= self._lose(node_id, f"was on node {node_id}, which was removed", ended=True)
            if (agent := self.agents.pop(node_id, None)) is not None:
                pools.add(agent.pool)
        return pools

    def _lose(self, node_id: str, why: str, *, ended: bool) -> set[str]:
        """Note that the aggregators of a node are gone, and return their pools."""
        pools = set()
        for name, one in self.aggregators.items():
            if node_of(name) == node_id:
                one.gone, one.ended = one.gone or why, one.ended or ended
                pools.add(one.pool)
        return pools

    def _sweep(self) -> None:
        """Forget aggregators that are gone, and that no part is on or on its way from."""
        over = [name for name, one in self.aggregators.items() if one.gone and one.ended]
        if over:
            named = self.holders().keys() | self.sources()
            for name in over:
                if name not in named:
                    del self.aggregators[name]
            for run in self.runs.values():
                run.avoids = {name: why for name, why in run.avoids.items() if name in self.aggregators}

    # --- runs

    def _run(self, job_id: str, epoch: int) -> AggregationRun | None:
        run = self.runs.get(job_id)
        return run if run is not None and run.epoch == epoch else None

    def _end_run(self, job: Job) -> bool:
        """Forget a job's run if it is over, and return whether there was one."""
        run = self.runs.get(job.id)
        if run is None or (job.placement is not None and job.placement.epoch == run.epoch):
            return False
        del self.runs[job.id]
        return True

    def _ask(self, event: AggregationAsked, jobs: JobTable) -> set[str] | None:
        job = jobs.get(event.job_id)
        if job is None or job.placement is None or job.placement.epoch != event.epoch:
            return None
        before = self._run(event.job_id, event.epoch)
        if before is not None and not before.closed and not before.refused:
            before.nodes = tuple(dict.fromkeys((*before.nodes, *event.nodes, event.node_id)))
            return {before.pool}
        self.runs.pop(event.job_id, None)
        self.runs[event.job_id] = AggregationRun(
            job_id=event.job_id,
            epoch=event.epoch,
            pool=job.spec.pool,
            world_size=event.world_size,
            parts=event.parts,
            servers=event.servers,
            mode=job.spec.aggregation if job.spec.aggregation != "shared" else event.mode,
            rule=event.rule,
            nodes=tuple(dict.fromkeys((*event.nodes, event.node_id))),
            asked_s=event.at_s,
            generation=before.generation if before is not None else 0,
            sources=[""] * len(event.parts),
            costs_s=[UNKNOWN] * len(event.parts),
        )
        return {job.spec.pool}


def _avoid(_: AggregationTable, run: AggregationRun, event: AggregatorUnreachable) -> bool:
    """Note that a copy to an aggregator fails; or that a rank cannot reach it, where no part is on its way there."""
    known = [one for one in run.placed if one.generation <= event.generation]
    here = [one for one in known if one.aggregator == event.aggregator]
    why = f"cannot be reached from node {event.node_id}"
    why = f"{why}: {event.reason}" if event.reason else why
    if coming := [one for one in here if run.sources[one.part]]:
        run.uncopied |= {str(one.part): why for one in coming}
    elif here or event.aggregator in run.sources:
        run.avoids[event.aggregator] = why
    return bool(here) or event.aggregator in run.sources


def _measure(table: AggregationTable, run: AggregationRun, event: AggregationMeasured) -> bool:
    """Take over what an aggregator has measured since its newest part came: it knows no later generation."""
    run.not_finite += max(0, event.not_finite)
    newest = max((one.generation for one in run.placed if one.aggregator == event.aggregator), default=0)
    if not newest <= event.generation <= run.generation or not _is_believable(event) or not newest:
        return False
    for part, cost_s in event.costs_s.items():
        if 0 <= part < len(run.parts) and not abs(cost_s - run.costs_s[part]) <= CHANGE * run.costs_s[part]:
            run.costs_s[part] = cost_s
    run.samples[event.aggregator] = _sample(run, event)
    if run.measured:
        samples = [run.samples[name] for name in run.aggregators]
        run.now_s, run.held_s = (max(getattr(one, name) for one in samples) for name in ("iteration_s", "held_s"))
        if _is_telling(table, run):
            faster = run.stage == "packed" and run.now_s < run.alone_s
            run.alone_held_s = min(run.alone_held_s, run.held_s) if faster else run.held_s
            run.alone_s = run.now_s
    return True


def _sample(run: AggregationRun, event: AggregationMeasured) -> AggregatorSample:
    """Return a measurement with those before it; a long one begins anew, and so does one that begins with a move."""
    before = run.samples.get(event.aggregator)
    began_moving = before is not None and run.stage == "packed" and before.steps < WATCH_STEPS
    if before is None or before.seconds >= WATCH_S or began_moving:
        return AggregatorSample(event.steps, event.iteration_s, event.at_s, event.held_s)
    return before.with_more(event)


def _is_telling(table: AggregationTable, run: AggregationRun) -> bool:
    """Return whether a run's iteration time is now that with aggregators of its own: it has them, or it is faster."""
    if not run.alone_s or run.stage == "profile":
        return True
    if not run.is_watched or abs(run.now_s - run.alone_s) <= CHANGE * run.alone_s:
        return False
    return run.stage == "own" or run.now_s < run.alone_s or table.has_its_own(run)


def _is_believable(event: AggregationMeasured) -> bool:
    """Return whether a measurement's numbers can be."""
    return (
        LEAST_S <= event.iteration_s <= MOST_S
        and event.steps > 0
        and all(0 <= cost_s <= MOST_S for cost_s in event.costs_s.values())
    )


def _move(_: AggregationTable, run: AggregationRun, event: PartMoved) -> bool:
    placed = run.placed[event.part] if 0 <= event.part < len(run.placed) else None
    if placed is None or placed.generation != event.generation or not run.sources[event.part]:
        return False
    run.sources[event.part] = ""
    return True


def _leave(_: AggregationTable, run: AggregationRun, event: AggregationLeft) -> bool:  # noqa: ARG001 - as the others
    run.closed, run.placed, run.sources, run.uncopied = True, (), [""] * len(run.parts), {}
    return True


def _assign(table: AggregationTable, run: AggregationRun, event: AggregationAssigned) -> bool:
    parts = tuple(one.part for one in event.placed)
    if event.generation <= run.generation or parts != tuple(range(len(run.parts))):
        return False
    for one in event.placed:
        if one.generation == event.generation:
            run.sources[one.part] = one.before if one.how == "copy" else ""
            run.moves += one.how == "copy"
    run.generation, run.phase, run.placed, run.samples = event.generation, event.phase, event.placed, {}
    run.uncopied = {}
    run.loss, run.because, run.assigned_s = event.loss, event.because, event.at_s
    if event.phase in {"packed", "rebalanced", "own"}:
        table.moved_s[run.pool] = max(table.moved_s.get(run.pool, 0.0), event.at_s)
    if event.phase == "packed" and not run.alone_s:
        run.stage = "own"  # what was never measured cannot be shared by measure
    elif event.phase in {"profile", "packed", "own"}:
        run.stage = event.phase
    return True


def _refuse(_: AggregationTable, run: AggregationRun, event: AggregationRefused) -> bool:
    run.refused = event.reason or "refused"
    return True


_FOLDS: Final[dict[type[Event], Callable[[AggregationTable, Any], set[str] | None]]] = {
    AggregatorsOffered: AggregationTable._offer,
    AggregatorStarted: AggregationTable._start,
    AggregatorEnded: AggregationTable._end,
    AggregatorsAllocated: AggregationTable._allocate,
    AggregatorsRecycled: AggregationTable._recycle,
    NodeLeft: AggregationTable._leave_node,
    NodeRemoved: AggregationTable._remove_node,
    RoundDecided: AggregationTable._apply_round,
}
_FOLDS_OF_RUNS: Final[dict[type[Event], Callable[[AggregationTable, AggregationRun, Any], bool]]] = {
    AggregatorUnreachable: _avoid,
    AggregationMeasured: _measure,
    PartMoved: _move,
    AggregationLeft: _leave,
    AggregationAssigned: _assign,
    AggregationRefused: _refuse,
}
OF_AGGREGATION: Final[frozenset[type[Event]]] = frozenset({*_FOLDS, *_FOLDS_OF_RUNS, AggregationAsked})
"""Kinds of facts that the table folds, beside those about jobs."""


def refusal_of(run: AggregationRun) -> str:
    """Return why a run can never be given aggregators for what it asks; empty where it can."""
    parts = run.parts
    if run.mode == "none":
        return 'its job says aggregation = "none"; submit it with --aggregation shared or own'
    if not 1 <= len(parts) <= MOST_PARTS:
        return f"its vector has {len(parts)} parts; expected 1 to {MOST_PARTS}"
    if not all(0 < size <= PART_BYTES * 8 for size in parts):
        return "one of its parts is empty or too long; expected 1 byte to 32 MiB"
    if run.servers < 1 or run.world_size < 1:
        return f"it asks {run.servers} aggregators for {run.world_size} ranks; expected 1 of each at least"
    return ""
