"""
The root of all answers; answers to commands, stories of jobs, raw facts, what was rejected, and lists of jobs.

:class:`View` is the root. What is here needs no type of a fact, so that a command that shows it is quick to load.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypeVar

import msgspec

from penstock_log.records import compose

V = TypeVar("V", bound="View")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Root of all answers."""

    @classmethod
    def of(cls: type[V], *records: msgspec.Struct, **own: Any) -> V:
        """
        Return the view with ``own`` fields, and each other one from the first record that has a field of this name.

        Examples
        --------
        >>> line = RejectedView(reason="no JSON", origin="a", body="x", stored_s=1.0)
        >>> RejectedView.of(line, body="y").reason
        'no JSON'
        """
        return compose(cls, *records, **own)


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


class UploadView(View, frozen=True, kw_only=True):
    """
    What is missing of a folder's files.

    Attributes
    ----------
    ready : bool
        Whether all of it is here, so that jobs may name it.
    wanted : {"", "list", "files"}
        Of what ``missing`` says the parts, as indices: of the list of files, or of all files, each part counted once.
    stored : int
        Parts that this request has stored.
    """

    ready: bool = False
    wanted: Literal["", "list", "files"] = ""
    missing: tuple[int, ...] = ()
    stored: int = 0


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


class EnterAnswer(View, frozen=True, kw_only=True):
    """
    The way into a job's process.

    Attributes
    ----------
    node_id : str
        Whose executor is to be asked.
    seq : int
        Where the log has the fact by which it lets in.
    """

    id: str
    session_id: str
    node_id: str
    epoch: int
    rank: int
    seq: int = 0


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


class RejectedView(View, frozen=True, kw_only=True):
    """One thing that could not be accepted; ``body`` is its beginning, as text."""

    reason: str
    origin: str
    body: str
    stored_s: float


class RejectedListView(View, frozen=True, kw_only=True):
    """What was rejected, oldest first."""

    rejected: tuple[RejectedView, ...]


class JobView(View, frozen=True, kw_only=True):
    """
    One job, as a line of ``penstock ps``.

    Attributes
    ----------
    state : str
        Two letters, see :class:`penstock_log.JobState`.
    started_s : float or None
        When its first run started.
    wait_s, run_s : float
        Seconds that it waited and ran, over all runs, up to now. Time before its ``begin``, and in which it was blocked
        by what it waits for in ``after``, is no waiting.
    eligible_s : float or None
        When it could begin for the first time; None while it could not yet.
    jct_s : float or None
        Seconds from its submission to its end.
    devices : tuple of str
        Devices used over all runs, such as ``n1/fast0``, in order of first use.
    placed_on : tuple of str
        Devices of the grant in force.
    steps : int
        Steps done since the very beginning; for a running job, as its run last reported.
    queue : int or None
        The ranker's queue, 0 first; None before it was ranked.
    cause : str
        The cause why it waits; empty where it does not wait.
    sample : bool
        True for a profiler's sample.
    sharing : str
        Whether it has its devices to itself (``exclusive``), or shares them by turns (``lane``) or by ``fraction``.
    share : float
        The assumed part of its devices' time that its run has.
    gpus, min_gpus, max_gpus : int
        Devices that it has or asks for; between how many an elastic job may be given, both 0 where always so many.
    batch_size : int
        Its present batch over all devices; 0 where only its script knows.
    batches : tuple of int or None
        The smallest and the largest batch that it may be given; None where it never changes.
    samples : int
        Samples that its sampler handed out and that were done since the very beginning, as its run last reported.
    cpus, host_memory_bytes : float, int
        Processors and memory of the host for each of its devices; 0 where it asks for no more than their share.
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
    started_s: Optional[float]
    finished_s: Optional[float]
    wait_s: float
    run_s: float
    jct_s: Optional[float]
    devices: tuple[str, ...]
    placed_on: tuple[str, ...]
    preemptions: int
    attempts: int
    steps: int
    metrics: dict[str, float]
    reason: str
    exit_code: Optional[int]
    queue: Optional[int]
    held: bool
    cause: str
    sample: bool = False
    model: str = ""
    epoch: int = 0
    warnings: tuple[str, ...] = ()
    sharing: str = "exclusive"
    share: float = 1.0
    min_gpus: int = 0
    max_gpus: int = 0
    batch_size: int = 0
    batches: Optional[tuple[int, int]] = None
    eligible_s: Optional[float] = None
    samples: int = 0
    cpus: float = 0.0
    host_memory_bytes: int = 0
    priority_class: str = ""


class JobRow(View, frozen=True, kw_only=True, array_like=True):
    """
    What a table of jobs shows of one; the fields are those of :class:`JobView`, in JSON an array in this order.

    ``array`` is the id of the job's array, and ``array_count`` how many jobs that has; empty and 0 where it is in none.
    """

    id: str
    name: str
    user: str
    state: str
    gpus: int
    submitted_s: float
    wait_s: float
    run_s: float
    steps: int = 0
    cause: str = ""
    reason: str = ""
    held: bool = False
    placed_on: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    min_gpus: int = 0
    max_gpus: int = 0
    batch_size: int = 0
    cpus: float = 0.0
    host_memory_bytes: int = 0
    team: str = ""
    pool: str = ""
    array: str = ""
    array_count: int = 0
    priority_class: str = ""


class JobsView(View, frozen=True, kw_only=True):
    """
    Jobs by submission, oldest first.

    Attributes
    ----------
    total : int
        How many matched, before ``limit`` and ``offset`` left some out.
    rows : tuple of JobRow
        In place of ``jobs``, where the request asks for them.
    """

    jobs: tuple[JobView, ...]
    total: int
    seq: int
    rows: tuple[JobRow, ...] = ()
