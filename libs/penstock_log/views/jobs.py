"""
Answers about jobs: lines, details, sizes, causes and stories; and the root of all answers.

:class:`View` is the root. Answers to commands come first, then what happened (stories of jobs, raw facts, and what was
rejected), then jobs with their details and causes, and last the sizes of elastic jobs: what they had, how fast they
went, and why they came to others.
"""

from __future__ import annotations

from typing import Any, Optional, TypeVar

import msgspec

from penstock_log.decision_facts import Alternative, TrialsMeasured
from penstock_log.facts import KindSpeed, RunEnded, Scalability
from penstock_log.job_state import Size
from penstock_log.records import compose
from penstock_log.spec import JobSpec, MemoryNeed
from penstock_log.usage import Usage

V = TypeVar("V", bound="View")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Root of all answers."""

    @classmethod
    def of(cls: type[V], *records: msgspec.Struct, **own: Any) -> V:
        """
        Return the view with ``own`` fields, and each other one from the first record that has a field of this name.

        Examples
        --------
        >>> rank = RankView(queue=2, ahead=5)
        >>> RankView.of(rank, ahead=0)
        RankView(queue=2, ahead=0)
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
        Seconds that it waited and ran, over all runs, up to now.
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
    samples: int = 0
    cpus: float = 0.0
    host_memory_bytes: int = 0


class JobRow(View, frozen=True, kw_only=True, array_like=True):
    """What a table of jobs shows of one; the fields are those of :class:`JobView`, in JSON an array in this order."""

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
        The dominant one: one of :data:`penstock_log.decision_facts.Cause` for a waiting job, ``undecided`` where no
        round has looked at it yet, else ``running``, ``stopping`` or ``finished``.
    evidence : str
        What shows it, in figures.
    remedy : str
        What would change it; empty where nothing would.
    not_causes : tuple of str
        What one might suspect, and why it is not that.
    since_s : float
        When the present state began.
    rank : RankView or None
    alternative : Alternative or None
        The best change of the job with which it would start at once, tried on the matcher's round; None where none of
        those that were tried would.
    start_in_s : float or None
        Estimated seconds until a waiting job starts that no change would start now; None where nothing is known.
    basis : str
        What the estimate rests on, or why there is none.
    size : str
        The size that an elastic job has or asks for, and its bounds, in words.
    resized : ResizeView or None
        The last decision about its size, if there was one.
    freed : dict of str to int
        Running job → devices that it is giving up for this waiting one.
    prices : dict of str to float
        Of a waiting job's pool: what one more device of each kind would save, in seconds of completion time, by the
        last round that worked it out.
    """

    id: str
    name: str
    state: str
    cause: str
    evidence: str
    remedy: str
    not_causes: tuple[str, ...]
    since_s: float
    rank: Optional[RankView]
    alternative: Optional[Alternative] = None
    start_in_s: Optional[float] = None
    basis: str = ""
    size: str = ""
    resized: Optional[ResizeView] = None
    freed: dict[str, int] = {}
    prices: dict[str, float] = {}


class RunView(View, frozen=True, kw_only=True, omit_defaults=True):
    """
    One run of a job, from when the job began to wait for it; of a wait without a grant, the epoch is 0.

    Attributes
    ----------
    granted_s, started_s, ended_s : float or None
        Of the round that placed it, of its first process, and of its end on its last node.
    devices : tuple of str
        Such as ``n1/fast0``.
    outcome : str
        How it ended; empty where it goes on.
    begun_step, end_step : int
        The steps after which it began and ended; the last is 0 where it goes on.
    usage : Usage
        The device time that it asked for, held, and spent on what.
    """

    pending_s: float
    epoch: int = 0
    granted_s: Optional[float] = None
    started_s: Optional[float] = None
    ended_s: Optional[float] = None
    kind: str = ""
    devices: tuple[str, ...] = ()
    outcome: str = ""
    begun_step: int = 0
    end_step: int = 0
    usage: Usage = msgspec.field(default_factory=Usage)


class JobDetail(View, frozen=True, kw_only=True):
    """
    One job in full.

    Attributes
    ----------
    speeds : tuple of KindSpeed
        What the profiler knows of its workload.
    sizing : SizingView or None
        The sizes of an elastic job so far.
    run_end : RunEnded or None
        The last end of one of its runs on a node, as the log has it.
    last_seq : int
        Sequence of the last commit that changed it; 0 from an earlier gateway.
    now_s : float
        The time of the answer, or the moment that was asked about; 0 from an earlier gateway.
    runs : tuple of RunView
        The last of its runs, oldest first, with its present wait.
    left_out : int
        How many before them are not kept.
    usage : Usage or None
        The device time of all of its runs; None from an earlier gateway.
    time_limit_s : float
        How long it may run, as was set last; 0: as long as it likes.
    """

    job: JobView
    spec: JobSpec
    why: WhyView
    workload: str
    speeds: tuple[KindSpeed, ...]
    seq: int
    sizing: Optional[SizingView] = None
    run_end: Optional[RunEnded] = None
    last_seq: int = 0
    now_s: float = 0.0
    runs: tuple[RunView, ...] = ()
    left_out: int = 0
    usage: Optional[Usage] = None
    time_limit_s: float = 0.0


class ProfileView(View, frozen=True, kw_only=True):
    """
    What is known of a workload.

    Attributes
    ----------
    workload : str
        Its key.
    jobs : int
        How many jobs that the asker may see have had this workload.
    names : tuple of str
        Names of some of these jobs.
    note : str
        Why speeds are only predicted.
    need : MemoryNeed or None
        What its last measured run needed of one device's memory.
    trials : TrialsMeasured or None
        What sweeps have shown of sharing devices, scaling out and being moved.
    scaling : tuple of Scalability
        How an elastic workload's iterations go with batch size and devices, on each kind.
    """

    workload: str
    jobs: int
    names: tuple[str, ...]
    speeds: tuple[KindSpeed, ...]
    note: str
    need: Optional[MemoryNeed]
    trials: Optional[TrialsMeasured]
    seq: int
    scaling: tuple[Scalability, ...] = ()


class DryRunView(View, frozen=True, kw_only=True):
    """
    What would happen to a job if it were submitted now.

    Attributes
    ----------
    starts : bool
        True where it would start at once, on ``devices``.
    start_in_s : float or None
        Estimated seconds that it would wait for devices; None where nothing is known.
    basis : str
        What the estimate rests on, or why there is none.
    cause, evidence, remedy : str
        Why it would wait.
    alternative : Alternative or None
        The best change of it with which it would start at once.
    beside : tuple of str
        Jobs with which it would share its devices.
    size : str
        Of an elastic job: the size that was tried, and when it is decided what it gets.
    """

    starts: bool
    start_in_s: Optional[float] = None
    basis: str = ""
    kind: str = ""
    devices: tuple[str, ...] = ()
    cause: str = ""
    evidence: str = ""
    remedy: str = ""
    warnings: tuple[str, ...] = ()
    alternative: Optional[Alternative] = None
    beside: tuple[str, ...] = ()
    size: str = ""


class SizedRunView(View, frozen=True, kw_only=True):
    """
    One run of an elastic job.

    Attributes
    ----------
    end_s : float or None
        None where it goes on.
    batch_size : int
        Samples of one step over all of its devices, as the script reports; 0 without a report.
    steps, loop_s : int, float
        Iterations of this run and the seconds that they took, as it last reported.
    samples_per_s : float or None
        Over the seconds of the whole run with its start and end: what its sampler handed out, or batch size times
        steps where it has none. None where that is not known.
    outcome : str
        How it ended, ``resized`` where it made way for another size of the job; empty where it goes on.
    """

    start_s: float
    end_s: Optional[float]
    gpus: int
    batch_size: int
    kind: str
    steps: int
    loop_s: float
    samples_per_s: Optional[float]
    outcome: str


class ResizeView(View, frozen=True, kw_only=True):
    """
    A decision to give a job another size.

    Attributes
    ----------
    because : str
        As :class:`penstock_log.ScaleDecided` has it; ``unfit`` where the job went back from a size that did not do.
    before, after : Size
    kinds : tuple of str
        Device kinds for which the new size is; empty for all that it accepts.
    reason : str
        In one sentence.
    gives, takes : dict of str to int
        Job → devices that this one gives up for it; job → devices that it gives up for this one.
    done_s : float or None
        When its first run with that size began; None where none has.
    """

    at_s: float
    because: str
    before: Size
    after: Size
    kinds: tuple[str, ...] = ()
    reason: str
    gives: dict[str, int] = {}
    takes: dict[str, int] = {}
    done_s: Optional[float] = None


class SizingView(View, frozen=True, kw_only=True):
    """
    What an elastic job may have, what it has, and how it came to that.

    Attributes
    ----------
    widths : tuple of int
        The fewest and the most devices.
    batches : tuple of int
        The smallest and the largest batch; equal where it never changes.
    size : Size
        What it has, or asks for.
    lr_rule : str
        What becomes of its learning rate at another batch size.
    lr_factor : float or None
        What that makes of it at the present one; None where the script's own function says.
    samples_per_s : float or None
        Of the run that goes on.
    runs : tuple of SizedRunView
        The last of its runs, oldest first.
    left_out : int
        How many before them are not kept.
    resizes : tuple of ResizeView
        The last decisions about its size, oldest first.
    unfit : tuple of Size
        Sizes with which its run failed at once; a batch size of 0 stands for all.
    """

    widths: tuple[int, int]
    batches: tuple[int, int]
    size: Size
    lr_rule: str
    lr_factor: Optional[float]
    samples_per_s: Optional[float]
    runs: tuple[SizedRunView, ...]
    left_out: int
    resizes: tuple[ResizeView, ...]
    unfit: tuple[Size, ...]
