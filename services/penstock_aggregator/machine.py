"""
Settings of an aggregation agent, and what its aggregators are to do, decided from the log. Pure: no clock, no socket.

:class:`AggregatorState` is the fold. :class:`AggregatorView` is what an aggregator was ordered so far, and
:func:`owed_orders` says which orders it is still owed for the one to agree with the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta

from penstock_bus import UNHURRIED_S, Decider, Decision
from penstock_log import (
    TERMINAL,
    AggregationAsked,
    AggregationAssigned,
    AggregationLeft,
    AggregationMeasured,
    AggregationRefused,
    AggregatorEnded,
    AggregatorsAllocated,
    AggregatorsOffered,
    AggregatorsRecycled,
    Event,
    Job,
    JobTable,
    PartPlaced,
    lifecycle,
)
from penstock_log.aggregation_facts import node_of
from penstock_log.aggregation_messages import (
    CloseRun,
    DropPart,
    GrantLease,
    OpenPart,
    RunSlots,
    SendPart,
    UpdateRule,
)
from penstock_log.job_state import ENDINGS

REMEMBERED: Final = 1000
"""Ended runs whose reason is still known."""
_GOOD: Final = frozenset({"completed", "preempted"})
_OfRun = AggregationAsked | AggregationAssigned | AggregationRefused | AggregationMeasured | AggregationLeft
_FOLDED: Final[frozenset[type[Event]]] = frozenset(
    {AggregatorsOffered, AggregatorsAllocated, AggregatorsRecycled, AggregatorEnded, *get_args(_OfRun)}
)
_ITEMSIZE: Final = {"f4": 4, "f8": 8}


class AggregatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    One node's aggregation agent: ``[aggregator]`` in the settings file or ``PENSTOCK_AGGREGATOR_*``.

    Attributes
    ----------
    data_dir : str
        Holds the socket for this node's clients and those of its aggregators, and the secret that the node's executor
        gives jobs tokens by; the agent's alone but for that.
    node_id : str
        The node's name, as its executor has it; empty takes the host's name.
    pool : str
        The pool for whose jobs it runs aggregators, as its executor has it.
    most : int
        The most aggregators that run here at a time, each of which is counted as a processor; 0: none. They begin when
        a job needs them. One is enough for jobs that are packed; while a job is measured, or where packing would slow
        it down, it has aggregators of its own beside those that others share, and waits where these cannot be had.
    run_bytes : int
        The most memory that aggregators may hold of one run of this node: its ranks' pushes, parameters and the
        optimizer's state; 0: a quarter of the node's memory. It is not counted as the job's own, and an aggregator that
        is killed for want of memory takes other jobs' parts along.
    host, port : str, int
        Where aggregators listen: empty is every address. 0 takes free ports; otherwise the first one takes this port,
        and the others those behind it.
    address : str
        Where the other nodes reach this one, as in ``[executor]``: a name, an address, or a network such as
        ``10.0.0.0/8``. Empty: the address of the network interface that leads to the bus.
    """

    data_dir: str = "penstock-data/aggregator"
    node_id: str = ""
    pool: Annotated[str, Meta(min_length=1, max_length=64)] = "default"
    most: Annotated[int, Meta(ge=0, le=64)] = 4
    run_bytes: Annotated[int, Meta(ge=0)] = 0
    host: str = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    address: str = ""

    def __post_init__(self) -> None:
        """Refuse a first port behind which there are too few."""
        if self.port and self.port + self.most > 65_536:
            raise ValueError(
                f"port is {self.port}, and there are too few ports behind it for {self.most} aggregators; expected "
                f"{65_536 - self.most} at most"
            )


class AggregatedRun(msgspec.Struct, kw_only=True):
    """
    A run that asks for aggregation.

    Attributes
    ----------
    is_here : bool
        Whether it has ranks on this node, or has, or had, parts here: otherwise where its parts are is not kept.
    generation, iteration_s, placed
        Of its last assignment; 0 and empty before the first.
    costs_s : dict of str to float
        Part, by its number → processor seconds of one step, as measured last.
    """

    asked: AggregationAsked
    is_here: bool = False
    generation: int = 0
    iteration_s: float = 0.0
    placed: tuple[PartPlaced, ...] = ()
    costs_s: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The job's epoch."""
        return self.asked.epoch

    @property
    def name(self) -> str:
        """The run's name, ``JOB/EPOCH``."""
        return run_name(self.asked.job_id, self.asked.epoch)

    def aggregators(self) -> tuple[str, ...]:
        """Return the aggregators that it has parts on, each once, in the order of the parts."""
        return tuple(dict.fromkeys(part.aggregator for part in self.placed))

    def uses(self, aggregator: str) -> bool:
        """Return whether it has parts on an aggregator, or parts that come from there."""
        return any(aggregator in (part.aggregator, part.before) for part in self.placed)

    @property
    def rule(self) -> UpdateRule:
        """What aggregators do with the mean of its pushes."""
        return rule_of(self.asked)


class AggregatorState(msgspec.Struct):
    """
    The fold of the log that an agent follows.

    Attributes
    ----------
    changes : int
        Rises with each fact that may matter to an aggregator here, or to a client.
    incarnation : str
        The last life of this node's agent that has offered.
    allocated : dict of str to int
        Aggregator that is to run here → sequence of the commit that allocated it.
    recycled : set of str
        Aggregators here that are to end and have not yet.
    runs : dict of str to AggregatedRun
        Job → its present run, where that asks for aggregation.
    refused : dict of str to str
        Job → why its present run was given no aggregators.
    ended : dict of str to str
        ``JOB/EPOCH`` of the last runs that ended → why.
    """

    changes: int = 0
    jobs: JobTable = msgspec.field(default_factory=JobTable)
    incarnation: str = ""
    allocated: dict[str, int] = msgspec.field(default_factory=dict)
    recycled: set[str] = msgspec.field(default_factory=set)
    runs: dict[str, AggregatedRun] = msgspec.field(default_factory=dict)
    refused: dict[str, str] = msgspec.field(default_factory=dict)
    ended: dict[str, str] = msgspec.field(default_factory=dict)

    def run(self, job_id: str, epoch: int) -> AggregatedRun | None:
        """Return a run that asks for aggregation; None where it does not, or is over."""
        found = self.runs.get(job_id)
        return found if found is not None and found.epoch == epoch else None

    def why_over(self, job_id: str, epoch: int) -> str:
        """Return why a run of a job is no run any more; empty where it is one."""
        return why_over(self.jobs.get(job_id), job_id, epoch)


def run_name(job_id: str, epoch: int) -> str:
    """Return a run's name, ``JOB/EPOCH``."""
    return f"{job_id}/{epoch}"


def rule_of(asked: AggregationAsked) -> UpdateRule:
    """Return the rule of a run, from the fact by which it asked."""
    known = {name: value for name, value in asked.rule_values.items() if name in _RULE_VALUES}
    return UpdateRule(name=asked.rule, **known)


_RULE_VALUES: Final = frozenset(UpdateRule.__struct_fields__) - {"name"}


def values_of(rule: UpdateRule) -> dict[str, float]:
    """Return a rule's numbers by name, as the fact has them."""
    return {name: getattr(rule, name) for name in sorted(_RULE_VALUES)}


def why_over(job: Job | None, job_id: str, epoch: int) -> str:
    """
    Return why a run of a job is no run any more; empty where it is one.

    One that is to be preempted goes on: its processes finish their step and save a checkpoint.
    """
    if job is None:
        return f"there is no job {job_id}, or it is over"
    if job.state in TERMINAL:
        return f"job {job_id} has ended: it is {ENDINGS[job.state]}"
    if job.placement is None or job.placement.epoch != epoch:
        return f"run {epoch} of job {job_id} is over; the last one is {job.epoch}"
    if job.outcome not in _GOOD:
        return f"a process of run {epoch} of job {job_id} was {job.outcome}, and with it the run ends"
    return ""


# --- the fold


def decider(node_id: str) -> Decider[AggregatorState]:
    """Return the fold of a node's agent; it proposes nothing, since its facts say what processes and clients do."""
    return Decider(
        name="aggregator",
        state=AggregatorState,
        schema=f"aggregator.v3 {node_id}",
        apply=partial(apply, node_id),
        decide=lambda state, now_s: Decision(),  # noqa: ARG005 - what a decider is called with
        leads=False,
        reads=lifecycle.OF_JOBS | _FOLDED,
        gather_s=lambda state: 0.0 if state.runs else UNHURRIED_S,
    )


def apply(node_id: str, state: AggregatorState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    for job in state.jobs.apply(event):
        _note_job(state, job)
        if job.state in TERMINAL:
            state.jobs.forget(job.id)
    if type(event) in _FOLDED:
        state.changes += 1
    if isinstance(event, _OfRun):
        _apply_to_run(node_id, state, event)
    else:
        _apply_to_aggregators(node_id, state, event, seq)


def _apply_to_aggregators(node_id: str, state: AggregatorState, event: Event, seq: int) -> None:
    match event:
        case AggregatorsOffered() if event.node_id == node_id:
            state.incarnation = event.incarnation
            state.allocated.clear()
            state.recycled.clear()
        case AggregatorsAllocated():
            state.allocated |= {name: seq for name in event.aggregators if node_of(name) == node_id}
        case AggregatorsRecycled():
            for name in event.aggregators:
                if state.allocated.pop(name, 0):
                    state.recycled.add(name)
        case AggregatorEnded() if event.node_id == node_id:
            if event.aggregator in state.recycled:  # it may be allocated again already
                state.recycled.discard(event.aggregator)
            else:
                state.allocated.pop(event.aggregator, None)
        case _:
            pass


def _apply_to_run(node_id: str, state: AggregatorState, event: _OfRun) -> None:
    if isinstance(event, AggregationAsked):
        if not state.why_over(event.job_id, event.epoch) and state.run(event.job_id, event.epoch) is None:
            state.runs[event.job_id] = AggregatedRun(asked=event, is_here=node_id in event.nodes)
            state.refused.pop(event.job_id, None)
        return
    run = state.run(event.job_id, event.epoch)
    if run is None:
        return
    match event:
        case AggregationAssigned():
            run.generation, run.iteration_s = event.generation, event.iteration_s
            run.is_here = run.is_here or any(node_of(part.aggregator) == node_id for part in event.placed)
            run.placed = event.placed if run.is_here else ()
        case AggregationRefused():
            state.refused[event.job_id] = event.reason
            _end_run(state, event.job_id, event.reason)
        case AggregationMeasured():
            run.costs_s |= {str(part): cost_s for part, cost_s in event.costs_s.items()}
        case AggregationLeft():
            _end_run(state, event.job_id, f"run {event.epoch} of job {event.job_id} needs no aggregation any more")


def _note_job(state: AggregatorState, job: Job) -> None:
    run = state.runs.get(job.id)
    if run is not None and (why := why_over(job, job.id, run.epoch)):
        _end_run(state, job.id, why)
    if why_over(job, job.id, job.epoch):  # clients may wait for a run that has not asked yet
        state.changes += 1
    if job.placement is None:
        state.refused.pop(job.id, None)


def _end_run(state: AggregatorState, job_id: str, why: str) -> None:
    name = state.runs.pop(job_id).name
    state.ended.pop(name, None)
    state.ended[name] = why
    while len(state.ended) > REMEMBERED:
        del state.ended[next(iter(state.ended))]


# --- what aggregators are to do

PartKey = tuple[str, int, int]
"""Job, epoch, part."""
RankKey = tuple[str, int, int]
"""Job, epoch, rank."""


class CopyOwed(msgspec.Struct, frozen=True, kw_only=True):
    """
    A part is to be sent from an aggregator to another one, for which a lease is needed first.

    Attributes
    ----------
    generation : int
        Of the part on the other one, which is ``to``.
    held : bool
        Whether the aggregator holds the part; where it does not, there is nothing to send.
    """

    job_id: str
    epoch: int
    part: int
    generation: int
    to: str
    held: bool = True


Order = OpenPart | DropPart | CloseRun | RunSlots
Ordered = Order | SendPart | GrantLease


class AggregatorView(msgspec.Struct, kw_only=True):
    """
    What an aggregator was ordered so far.

    Attributes
    ----------
    opened : dict of tuple to int
        Part that it was told to hold → its generation; also one that it has sent elsewhere since, whose results of
        earlier steps it still has.
    sent : dict of tuple to int
        Part that it was to send elsewhere → the generation there.
    leases : dict of tuple to GrantLease
    slots : RunSlots
        As told last.
    """

    name: str
    opened: dict[PartKey, int] = msgspec.field(default_factory=dict)
    sent: dict[PartKey, int] = msgspec.field(default_factory=dict)
    leases: dict[RankKey, GrantLease] = msgspec.field(default_factory=dict)
    slots: RunSlots = msgspec.field(default_factory=lambda: RunSlots(iteration_s={}, cost_s={}))

    def note(self, order: Ordered | CopyOwed) -> None:
        """Note what the aggregator is told now."""
        match order:
            case OpenPart():
                key = (order.job_id, order.epoch, order.part)
                self.opened[key] = order.generation
                self.sent.pop(key, None)
            case CopyOwed():
                self.sent[order.job_id, order.epoch, order.part] = order.generation
            case DropPart():
                key = (order.job_id, order.epoch, order.part)
                self.opened.pop(key, None)
                self.sent.pop(key, None)
            case CloseRun():
                of_run = (order.job_id, order.epoch)
                for table in (self.opened, self.sent, self.leases):
                    for key in [key for key in table if key[:2] == of_run]:
                        del table[key]
            case GrantLease():
                self.leases[order.job_id, order.epoch, order.rank] = order
            case RunSlots():
                self.slots = order
            case SendPart():  # noted when it was owed
                pass

    def runs(self) -> set[tuple[str, int]]:
        """Return the runs that it knows of."""
        return {key[:2] for table in (self.opened, self.sent, self.leases) for key in table}


def owed_orders(state: AggregatorState, view: AggregatorView) -> Iterator[Order | CopyOwed]:
    """
    Yield what an aggregator is still to be told, in this order; note each one before the next.

    Runs that are over are closed first, since a job's next run may have parts of the same number.
    """
    for job_id, epoch in sorted(view.runs()):
        if state.run(job_id, epoch) is None:
            over = state.ended.get(run_name(job_id, epoch)) or state.why_over(job_id, epoch)
            yield CloseRun(job_id=job_id, epoch=epoch, reason=over or f"run {epoch} of job {job_id} has left")
    for run in state.runs.values():
        yield from _owed_of_run(run, view)
    slots = slots_of(state, view.name)
    if slots != view.slots:
        yield slots


def _owed_of_run(run: AggregatedRun, view: AggregatorView) -> Iterator[Order | CopyOwed]:
    job_id, epoch = run.asked.job_id, run.epoch
    for placed in run.placed:
        key = (job_id, epoch, placed.part)
        held, sent = view.opened.get(key), view.sent.get(key, 0)
        if placed.aggregator == view.name:
            if held == placed.generation or not 0 <= placed.part < len(run.asked.parts):
                continue
            yield OpenPart(
                job_id=job_id,
                epoch=epoch,
                part=placed.part,
                generation=placed.generation,
                elements=run.asked.parts[placed.part] // _ITEMSIZE[run.asked.dtype],
                dtype=run.asked.dtype,
                world_size=run.asked.world_size,
                rule=run.rule,
                how=placed.how,
            )
        elif placed.how == "copy":
            if placed.before == view.name and sent != placed.generation:
                yield CopyOwed(
                    job_id=job_id,
                    epoch=epoch,
                    part=placed.part,
                    generation=placed.generation,
                    to=placed.aggregator,
                    held=held is not None,
                )
        elif held is not None and placed.generation > max(held, sent):
            yield DropPart(job_id=job_id, epoch=epoch, part=placed.part, generation=held)


def slots_of(state: AggregatorState, aggregator: str) -> RunSlots:
    """
    Return how an aggregator divides its cycle.

    Runs whose cost or iteration time is not known are left out, and so is one that is left alone by that: it would be
    held back for nobody.
    """
    costs: defaultdict[str, float] = defaultdict(float)
    iterations: dict[str, float] = {}
    for run in state.runs.values():
        for placed in run.placed:
            if placed.aggregator == aggregator:
                costs[run.name] += run.costs_s.get(str(placed.part), 0.0)
                iterations[run.name] = run.iteration_s
    known = [name for name in sorted(iterations) if costs[name] > 0 and iterations[name] > 0]
    if len(known) < 2:
        known = []
    return RunSlots(
        iteration_s={name: iterations[name] for name in known}, cost_s={name: costs[name] for name in known}
    )
