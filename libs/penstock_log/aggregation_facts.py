"""
Facts about aggregation: what agents offer, which aggregators run, what jobs ask and show, and what is assigned.

The aggregation agent of a node writes on ``evt.aggregator.<node>`` what happens there; the assigner writes on
``evt.aggregation.<pool>`` what is to be. An aggregator's name is its node's and a number, as :func:`aggregator_name`
gives it. A *part* is a range of a job's flat vector, by its number from 0.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock_log.facts import Event

Phase = Literal["profile", "packed", "own", "recovered", "rebalanced"]
"""Why an assignment is made: to measure, to pack, to give servers of its own for good, after a loss, for balance."""
OpenHow = Literal["join", "copy"]
"""How a part begins on its aggregator: ranks bring what they have, or the aggregator before sends a copy."""
RuleName = Literal["mean", "sgd", "momentum", "adamw"]
Dtype = Literal["f4", "f8"]
Name = Annotated[str, Meta(max_length=300)]


def aggregator_name(node_id: str, number: int) -> str:
    """
    Return the name of a node's aggregator.

    Examples
    --------
    >>> aggregator_name("n1", 0), node_of("n1/0")
    ('n1/0', 'n1')
    """
    return f"{node_id}/{number}"


def node_of(aggregator: str) -> str:
    """Return the node of an aggregator, by its name."""
    return aggregator.rpartition("/")[0]


# --- of agents, on evt.aggregator.<node>


class AggregatorsOffered(Event, frozen=True, kw_only=True, tag="aggregator.offered.v1"):
    """
    An agent has started, or ends: it would run so many aggregators at most, and runs none yet.

    Attributes
    ----------
    most : int
        0 where it ends.
    incarnation : str
        Of this life of the agent. Aggregators of an earlier one are gone.
    """

    node_id: str
    pool: str
    most: int
    incarnation: str = ""


class AggregatorStarted(Event, frozen=True, kw_only=True, tag="aggregator.started.v1"):
    """The process of an aggregator that was allocated runs, under this number of the agent's life."""

    node_id: str
    aggregator: Name
    incarnation: str = ""


class AggregatorEnded(Event, frozen=True, kw_only=True, tag="aggregator.ended.v1"):
    """
    The process of an aggregator is gone, and with it what it held; ``why`` says how: recycled, killed, hung, failed.
    """

    node_id: str
    aggregator: Name
    why: str = ""


class AggregatorUnreachable(Event, frozen=True, kw_only=True, tag="aggregator.unreachable.v1"):
    """A rank on this node cannot reach an aggregator, whose process may still run."""

    node_id: str
    aggregator: Name
    job_id: str
    epoch: int
    generation: int
    reason: str = ""


class AggregationAsked(Event, frozen=True, kw_only=True, tag="aggregator.asked.v1"):
    """
    A run's first rank asks for aggregation.

    Attributes
    ----------
    pool, world_size, servers : str, int, int
        The job's pool, its ranks, and the aggregators that it would have of its own.
    parts : tuple of int
        Bytes of each part.
    mode : {"shared", "own"}
    rule : {"mean", "sgd", "momentum", "adamw"}
    rule_values : dict of str to float
        The rule's numbers by name, as in :class:`~penstock_log.aggregation_messages.UpdateRule`.
    dtype : {"f4", "f8"}
        Type of the vector's elements.
    values : str
        Digest of the names and shapes of the vector's values; the same on all ranks.
    nodes : tuple of str
        Nodes that its ranks are on, as far as the agent knows.
    """

    node_id: str
    job_id: str
    epoch: int
    pool: str
    world_size: int
    parts: tuple[int, ...]
    servers: int = 1
    mode: Literal["shared", "own"] = "shared"
    rule: RuleName = "mean"
    rule_values: dict[str, float] = {}
    dtype: Dtype = "f4"
    values: str = ""
    nodes: tuple[str, ...] = ()


class AggregationMeasured(Event, frozen=True, kw_only=True, tag="aggregator.measured.v1"):
    """
    An aggregator has measured a run over some steps.

    Attributes
    ----------
    generation : int
        Of the job's assignment, all over these steps.
    steps : int
        Steps that were measured.
    iteration_s : float
        Median of the seconds from one step's completion to the next.
    costs_s : dict of int to float
        Part → processor seconds of one step, receiving and sending included.
    not_finite : int
        Values among these steps' results that were no finite number; they were passed on.
    held_s : float
        Median of the seconds from when a step's last push begins to come until its result is there: what the
        aggregator, and the way to it, have of an iteration.
    """

    node_id: str
    aggregator: Name
    job_id: str
    epoch: int
    generation: int
    steps: int
    iteration_s: float
    costs_s: dict[int, float]
    not_finite: int = 0
    held_s: float = 0.0


class PartMoved(Event, frozen=True, kw_only=True, tag="aggregator.moved.v1"):
    """
    A part's copy is whole on its new aggregator.

    Attributes
    ----------
    pause_s : float
        From when the old aggregator refused the first push, or else began to copy, until the copy was whole.
    """

    node_id: str
    aggregator: Name
    before: Name
    job_id: str
    epoch: int
    part: int
    generation: int
    step: int
    copied_bytes: int
    pause_s: float


class AggregationLeft(Event, frozen=True, kw_only=True, tag="aggregator.left.v1"):
    """A run needs no aggregation any more."""

    node_id: str
    job_id: str
    epoch: int


# --- of the assigner, on evt.aggregation.<pool>


class PartPlaced(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a part is, from which generation on, and how it began there."""

    part: int
    aggregator: Name
    generation: int
    how: OpenHow = "join"
    before: Name = ""


class AggregatorsAllocated(Event, frozen=True, kw_only=True, tag="aggregation.allocated.v1"):
    """Their nodes' agents are to run these aggregators; ``job_id`` is the job that needs them."""

    pool: str
    aggregators: tuple[Name, ...]
    job_id: str = ""


class AggregatorsRecycled(Event, frozen=True, kw_only=True, tag="aggregation.recycled.v1"):
    """These aggregators have no part any more, and are to end."""

    pool: str
    aggregators: tuple[Name, ...]


class AggregationAssigned(Event, frozen=True, kw_only=True, tag="aggregation.assigned.v1"):
    """
    The parts of a run are on these aggregators from now on.

    Attributes
    ----------
    placed : tuple of PartPlaced
        All parts, in their order. Those that stay have the generation with which they came.
    generation : int
        Of this assignment, from 1; one more each time.
    iteration_s : float
        The run's measured iteration time with aggregators of its own; 0 while it is not known.
    loss : float
        The part of its speed that the packing is computed to cost.
    because : str
        In words, for people.
    """

    pool: str
    job_id: str
    epoch: int
    generation: int
    phase: Phase
    placed: tuple[PartPlaced, ...]
    iteration_s: float = 0.0
    loss: float = 0.0
    because: str = ""


class AggregationRefused(Event, frozen=True, kw_only=True, tag="aggregation.refused.v1"):
    """A run is given no aggregators, and is told why."""

    pool: str
    job_id: str
    epoch: int
    reason: str
