"""
What the gateway answers: one Struct for each kind of answer, shared by the gateway and its clients.

Times are seconds since the Unix epoch (``_s`` after a verb in the past) or durations in seconds; None where it has not
happened. Fields are only ever added.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_events.profile import KindSpeed
from penstock_events.spec import Device, JobSpec, Param, SweepSpec


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Root of all answers."""


# --- answers to commands


class SubmitAnswer(View, frozen=True, kw_only=True):
    """
    The job or sweep is in the log.

    Attributes
    ----------
    seq : int
        Stream sequence of the submission; a query with ``at`` this or later knows the job.
    created : bool
        False where the same id with equal content was there before.
    warnings : tuple of str
        What does not prevent it from being accepted, but will keep it waiting.
    """

    id: str
    seq: int
    created: bool
    warnings: tuple[str, ...] = ()


class ActAnswer(View, frozen=True, kw_only=True):
    """
    What became of a cancel, hold, release, drain, resume or cancel_sweep.

    Attributes
    ----------
    id : str
        The whole id, also where a prefix was given.
    changed : bool
        False where it was so before.
    state : str
        Of the job (two letters), sweep or node afterwards.
    message : str
        One sentence for people.
    """

    id: str
    changed: bool
    state: str
    message: str
    seq: int = 0


# --- answers to queries


class JobView(View, frozen=True, kw_only=True):
    """
    One job, as a line of ``penstock ps``.

    Attributes
    ----------
    state : str
        Two letters, see :class:`penstock_events.lifecycle.State`.
    started_s : float or None
        First start.
    wait_s, run_s : float
        Spent waiting and running, over all runs, up to now.
    jct_s : float or None
        From submission to end.
    devices : tuple of str
        Devices used over all runs, such as ``n1/fast0``, in order of first use.
    placed_on : tuple of str
        Devices of the lease in force.
    steps : int
        Done since the very beginning; of a running job, the last that it told.
    queue : int or None
        The ranker's queue, 0 first; None before it was ranked.
    cause : str
        Why it waits, one word; empty where it does not wait.
    sample : bool
        True for a profiler's sample.
    """

    id: str
    name: str
    state: str
    user: str
    team: str
    parent: str
    pool: str
    gpus: int
    kinds: tuple[str, ...]
    submitted_s: float
    started_s: float | None
    finished_s: float | None
    wait_s: float
    run_s: float
    jct_s: float | None
    devices: tuple[str, ...]
    placed_on: tuple[str, ...]
    preemptions: int
    attempts: int
    steps: int
    metrics: dict[str, float]
    reason: str
    exit_code: int | None
    queue: int | None
    held: bool
    cause: str
    sample: bool = False
    model: str = ""
    epoch: int = 0
    warnings: tuple[str, ...] = ()


class JobsView(View, frozen=True, kw_only=True):
    """Jobs by submission, oldest first; ``total`` counts those that matched before ``limit`` left the oldest out."""

    jobs: tuple[JobView, ...]
    total: int
    seq: int


class RankView(View, frozen=True, kw_only=True):
    """A waiting job's place: its queue and how many waiting jobs of its pool stand before it."""

    queue: int
    ahead: int


class WhyView(View, frozen=True, kw_only=True):
    """
    Why a job is where it is.

    Attributes
    ----------
    cause : str
        The dominant one: one of :data:`penstock_events.round.Cause` for a waiting job, ``undecided`` where no round has
        looked at it yet, else ``running``, ``stopping`` or ``finished``.
    evidence : str
        What shows it, in figures.
    remedy : str
        What would change it; empty where nothing would.
    not_causes : tuple of str
        What one might suspect, and why it is not that.
    since_s : float
        When the present state began.
    rank : RankView or None
    """

    id: str
    name: str
    state: str
    cause: str
    evidence: str
    remedy: str
    not_causes: tuple[str, ...]
    since_s: float
    rank: RankView | None


class JobDetail(View, frozen=True, kw_only=True):
    """One job in full; ``speeds`` is what the profiler knows of its workload."""

    job: JobView
    spec: JobSpec
    why: WhyView
    workload: str
    speeds: tuple[KindSpeed, ...]
    seq: int


class DeviceView(View, frozen=True, kw_only=True):
    """One device of a node; ``job_id`` is empty where it is idle."""

    name: str
    device: Device
    job_id: str


class NodeView(View, frozen=True, kw_only=True):
    """
    One node.

    Attributes
    ----------
    state : {"up", "draining", "drained", "lost", "left"}
        ``draining`` while a drained node still has running jobs.
    heard_s : float or None
        Last heartbeat that this gateway heard; None where it heard none, and in answers about the past.
    """

    id: str
    pool: str
    state: str
    devices: tuple[DeviceView, ...]
    joined_s: float
    heard_s: float | None = None
    labels: dict[str, str] = {}


class NodesView(View, frozen=True, kw_only=True):
    """All nodes ever seen, by id."""

    nodes: tuple[NodeView, ...]
    seq: int


class TrialView(View, frozen=True, kw_only=True):
    """One trial of a sweep; ``state`` is that of its job (empty before it is submitted)."""

    job_id: str
    params: dict[str, Param]
    gpus: int
    group: int
    state: str
    value: float | None


class SweepView(View, frozen=True, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    state : {"running", "cancelling", "completed", "failed", "cancelled"}
    trials : tuple of TrialView
        Opened so far.
    done : int
        Trials that are over.
    wanted : int
        Trials that the specification asks for; 0 where the search decides (a whole grid).
    """

    id: str
    name: str
    state: str
    metric: str
    mode: str
    submitted_s: float
    finished_s: float | None
    wanted: int
    done: int
    best_job_id: str
    best_value: float | None
    reason: str
    trials: tuple[TrialView, ...]
    spec: SweepSpec


class SweepsView(View, frozen=True, kw_only=True):
    """All sweeps, by submission; their trials are left out (``sweep`` has them)."""

    sweeps: tuple[SweepView, ...]
    seq: int


class StoryLine(View, frozen=True, kw_only=True):
    """
    One sentence of a job's life.

    Attributes
    ----------
    after_s : float
        Seconds since the job's submission.
    seq, cause : int
        Stream sequence of the commit, and of the commit that led to it (0: a person did).
    """

    at_s: float
    after_s: float
    text: str
    seq: int
    cause: int
    actor: str


class StoryView(View, frozen=True, kw_only=True):
    """One job's life."""

    id: str
    name: str
    lines: tuple[StoryLine, ...]


class EventView(View, frozen=True, kw_only=True):
    """One fact as the log holds it; ``fact`` is its JSON object without ``type`` and ``at_s``."""

    seq: int
    stored_s: float
    subject: str
    actor: str
    cause: int
    type: str
    at_s: float
    fact: dict[str, Any]


class EventsView(View, frozen=True, kw_only=True):
    """Facts in the order of the log; ask again with ``after`` = ``seq`` for those behind them."""

    events: tuple[EventView, ...]
    seq: int


class DryRunView(View, frozen=True, kw_only=True):
    """
    What would happen to a job if it were submitted now.

    Attributes
    ----------
    starts : bool
        True where it would start at once, on ``devices``.
    start_in_s : float or None
        Where it would wait for devices, an estimate of how long; None where nothing tells.
    basis : str
        What the estimate rests on, or why there is none.
    cause, evidence, remedy : str
        Why it would wait.
    """

    starts: bool
    start_in_s: float | None = None
    basis: str = ""
    kind: str = ""
    devices: tuple[str, ...] = ()
    cause: str = ""
    evidence: str = ""
    remedy: str = ""
    warnings: tuple[str, ...] = ()


class RejectedView(View, frozen=True, kw_only=True):
    """One thing that could not be accepted; ``body`` is its beginning, as text."""

    reason: str
    origin: str
    body: str
    stored_s: float


class RejectedListView(View, frozen=True, kw_only=True):
    """What was rejected, oldest first."""

    rejected: tuple[RejectedView, ...]


class ReplicaView(View, frozen=True, kw_only=True):
    """One replica of a service that was heard lately."""

    service: str
    id: str
    heard_s: float


class StatusView(View, frozen=True, kw_only=True):
    """
    The whole at one glance.

    Attributes
    ----------
    jobs : dict of str to int
        Jobs by state, samples left out.
    devices : dict of str to dict of str to int
        Kind → ``{"busy", "idle", "lost", "drained"}`` → count.
    last_seq : int
        Of the log.
    backlog : int
        Messages of the log that this gateway has not folded yet.
    """

    jobs: dict[str, int]
    devices: dict[str, dict[str, int]]
    nodes: dict[str, int]
    sweeps: dict[str, int]
    services: tuple[ReplicaView, ...]
    last_seq: int
    backlog: int
    version: str = ""


class SchemaView(View, frozen=True, kw_only=True):
    """The published JSON Schemas."""

    job: dict[str, Any]
    sweep: dict[str, Any]
