"""
Answers about one job or workload: details, causes, what is known of it, and sizes.

Jobs with their details and causes come first, and last the sizes of elastic jobs: what they had, how fast they went,
and why they came to others.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from penstock_log.decision_facts import Alternative, TrialsMeasured
from penstock_log.facts import KindSpeed, RunEnded, Scalability
from penstock_log.job_state import Parked, Size
from penstock_log.spec import JobSpec, MemoryNeed
from penstock_log.usage import Usage
from penstock_log.views.allocations import PilotOutlook
from penstock_log.views.answers import JobView, View


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
        The dominant one: one of :data:`penstock_log.decision_facts.Cause` for a waiting job, ``pilot`` where no present
        node holds it and an allocation may bring one, ``undecided`` where no round has looked at it yet, else
        ``running``, ``stopping`` or ``finished``.
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
    allocations : tuple of PilotOutlook
        Of a waiting job: what each allocation of its pool could do for it, those that may bring something first.
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
    allocations: tuple[PilotOutlook, ...] = ()


class RunView(View, frozen=True, kw_only=True, omit_defaults=True):
    """
    One run of a job, from when the job began to wait for it; of a wait without a grant, the epoch is 0.

    Attributes
    ----------
    pending_s : float
        Since when the job waited for it: not before it could begin.
    granted_s, started_s, ended_s : float or None
        Of the round that placed it, of its first process, and of its end on its last node.
    devices : tuple of str
        Such as ``n1/fast0``.
    outcome : str
        How it ended, ``timed_out`` where it was stopped for the job's time limit; empty where it goes on.
    start : str
        ``parked`` where it went on with the process of the run before, which was parked; ``warm``, or ``cold: `` with
        the reason where its job asked in vain that it begins warm; empty otherwise.
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
    start: str = ""
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
    parked : Parked or None
        Where its process stays in memory while it waits; None where none does.
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
    parked: Optional[Parked] = None


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
    allocations : tuple of PilotOutlook
        Where it would wait: what each allocation of its pool could do for it.
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
    allocations: tuple[PilotOutlook, ...] = ()


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
