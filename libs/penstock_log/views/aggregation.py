"""Answers about aggregation: aggregators, and the runs that have parts on them."""

from __future__ import annotations

from typing import Optional

from penstock_log.aggregation_facts import PartPlaced
from penstock_log.views.answers import View


class AggregatorUseView(View, frozen=True, kw_only=True):
    """
    One aggregator.

    Attributes
    ----------
    state : {"starting", "running", "ending", "gone"}
    since_s : float
        When it was allocated.
    parts : int
        Parts that are on it, or on their way to it.
    jobs : tuple of str
        Jobs with a part on it, of those that the caller may see; ``others`` is how many more there are.
    cycle_s, busy_s, utilisation : float
        Length of its cycle, the processor time of all runs in one as measured, and the one in the other: 0 to 1. All
        are 0 while nothing was measured.
    heard_s : float or None
        When its agent was last heard; None where it was not, and in answers about the past. What follows is as it said
        then, since the start of the aggregator.
    spent_s : float
        Processor seconds.
    received_bytes, sent_bytes : int
    refused : dict of str to int
        Frames and connections that were refused, by name.
    """

    id: str
    node_id: str
    pool: str
    state: str
    since_s: float
    parts: int = 0
    jobs: tuple[str, ...] = ()
    others: int = 0
    cycle_s: float = 0.0
    busy_s: float = 0.0
    utilisation: float = 0.0
    heard_s: Optional[float] = None
    spent_s: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0
    refused: dict[str, int] = {}


class AggregatedJobView(View, frozen=True, kw_only=True):
    """
    One job whose present run asks for aggregation.

    Attributes
    ----------
    mode : {"shared", "own", "none"}
        As its job says.
    phase : str
        ``waits``, ``refused`` or ``left`` where it has no aggregators; else why they were assigned last: ``profile``,
        ``packed``, ``own``, ``recovered`` or ``rebalanced``.
    shares : bool
        Whether it may have to share its aggregators.
    servers, parts, size_bytes : int
        Aggregators that it has as its own, and the parts and bytes of its vector.
    aggregators : tuple of str
        Those that it is on.
    alone_s, now_s : float
        Iteration time with aggregators of its own, and as measured last; 0 while unknown.
    alone_held_s, held_s : float
        What of these its aggregators have, from a step's last push to its result.
    loss, measured_loss : float
        The part of its speed that sharing costs it, as computed for its aggregators and as measured.
    generation, moves, moving : int
        Of its assignment; parts moved so far, and on their way now.
    not_finite : int
        Results that were no finite number.
    because, assigned_s : str, float
        Why its last assignment was made, and when.
    evidence : str
        What it waits for, or why it has its aggregators, in a sentence.
    placed : tuple of PartPlaced
        Where each part is; only of one job, by its name.
    """

    id: str
    name: str
    user: str
    pool: str
    epoch: int
    mode: str
    phase: str
    shares: bool
    servers: int
    parts: int
    size_bytes: int
    world_size: int
    rule: str
    aggregators: tuple[str, ...] = ()
    alone_s: float = 0.0
    now_s: float = 0.0
    alone_held_s: float = 0.0
    held_s: float = 0.0
    loss: float = 0.0
    measured_loss: float = 0.0
    generation: int = 0
    moves: int = 0
    moving: int = 0
    not_finite: int = 0
    because: str = ""
    assigned_s: Optional[float] = None
    asked_s: float = 0.0
    evidence: str = ""
    placed: tuple[PartPlaced, ...] = ()


class AggregationView(View, frozen=True, kw_only=True):
    """
    All aggregators by name, and the jobs with aggregation that the caller may see, in the order in which they asked.

    Attributes
    ----------
    most, free : dict of str to int
        Pool → aggregators that its nodes would run at most, and how many more they would now.
    """

    aggregators: tuple[AggregatorUseView, ...]
    jobs: tuple[AggregatedJobView, ...]
    seq: int
    most: dict[str, int] = {}
    free: dict[str, int] = {}
