"""
Facts that deciders write: the order of jobs, rounds, sizes, and sweeps.

* The ranker writes the order of a pool's jobs on ``evt.rank.<pool>`` (:class:`JobsRanked`).
* The matcher writes each round on ``evt.round.<pool>``, one fact a decision (:class:`RoundDecided`).
* The autoscaler writes the sizes of elastic jobs on ``evt.scale.<pool>`` (:class:`ScaleDecided`).
* The tuner writes sweeps, and the sizes of their trials, on ``evt.sweep.<id>``.

A :class:`Demand` is what a job is to have from its next run on. It is the one way in which the autoscaler and the tuner
change what a job asks for.
"""

from __future__ import annotations

from typing import Final, Literal, Optional, Union

import msgspec

from penstock_log.facts import Event
from penstock_log.spec import MemoryNeed, Param


class JobRank(msgspec.Struct, frozen=True, kw_only=True, array_like=False):
    """
    A job's place in the order: lowest ``(queue, position)`` first, then whoever entered the queue first.

    Attributes
    ----------
    queue : int
        0 is served first.
    position : float
        Order within the queue; what it counts depends on the order that is set, by default the time of entering it.
    since_s : float or None
        When the job entered the queue; None where ``position`` is that time.
    attained_gpu_s : float
        GPU-seconds used when the rank was worked out.
    falls_per_s : float
        How much the position falls with each second that the job executes from then on.
    """

    job_id: str
    queue: int
    position: float
    attained_gpu_s: float = 0.0
    since_s: Optional[float] = None
    falls_per_s: float = 0.0

    @property
    def entered_s(self) -> float:
        """When the job entered the queue."""
        return self.position if self.since_s is None else self.since_s

    @property
    def key(self) -> tuple[int, float, float, str]:
        """The key by which jobs are sorted."""
        entered_s = self.position if self.since_s is None else self.since_s
        return self.queue, self.position, entered_s, self.job_id


class JobsRanked(Event, frozen=True, kw_only=True, tag="rank.jobs_ranked.v1"):
    """
    These jobs have a new place; all others keep theirs.

    Attributes
    ----------
    backfills : bool
        Whether, in this order, jobs behind one that does not fit may start.
    preempts : {"never", "queue", "position"}
        For which jobs a running one makes way: none, those of a lower queue, or all that come before it.
    order : str
        The order's name: it determines the place that a new job would get.
    """

    pool: str
    ranks: tuple[JobRank, ...]
    backfills: bool = True
    preempts: Literal["never", "queue", "position"] = "queue"
    order: str = "2d-las"


Cause = Literal[
    "capacity",  # every fitting device is taken by jobs that rank higher
    "gang",  # some devices are free, but not enough at once
    "later_place",  # the matching has it wait for a better device
    "host_cpus",  # devices for it are idle, but their host has too few processors left
    "host_memory",  # devices for it are idle, but their host has too little memory left
    "image",  # devices for it are idle, but on nodes that cannot run its image
    "order",  # devices for it are idle, but those before it come first
    "fairness",  # its user has had more than others whose jobs wait
    "profiling",  # its speeds are being measured
    "backoff",  # it failed and is waiting for its next try
    "node_down",  # nodes that would hold it have left or are lost, and may come back
    "never_fits",  # no set of present nodes could ever hold it
    "no_nodes",  # the pool has no node that takes jobs
    "held",  # its user or an operator holds it
    "dependency",  # it waits for other jobs or sweeps, as its specification says
    "array",  # as many jobs of its array run as may at a time
    "reservation",  # it could not save, and would run into a reservation on the last devices that this needs
    "class_quota",  # its user's jobs of its class hold as many devices as one user's may
    "begin",  # its specification says that it is not to begin yet
]
FOR_DEVICES: Final = frozenset(
    {"capacity", "gang", "host_cpus", "host_memory", "image", "later_place", "order", "fairness"}
)
"""Causes of jobs that wait for devices, and for nothing else."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one node."""

    node_id: str
    devices: tuple[int, ...]


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A grant: the job runs on these devices under this epoch.

    Attributes
    ----------
    epoch : int
        One more than the job's last; executors and folds refuse facts of older ones.
    need : MemoryNeed or None
        For a job that takes turns on its devices: its assumed need of each, where known. Its executor uses it until the
        need is measured.
    patience_s : float
        The least time of silence after which a node of this grant is lost. The run is stopped there before; 0: it is
        not, because the matcher was of a version that answers no heartbeats.
    """

    job_id: str
    epoch: int
    kind: str
    slots: tuple[Slot, ...]
    need: Optional[MemoryNeed] = None
    patience_s: float = 0.0


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """
    The job's run under this epoch is to checkpoint and stop.

    Attributes
    ----------
    for_job : str
        The waiting job that is to have its devices; empty where there is none.
    """

    job_id: str
    epoch: int
    reason: str = ""
    for_job: str = ""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """
    A single change of a waiting job with which it starts at once, as a tried round has shown.

    Attributes
    ----------
    change : dict
        Names of fields of its :class:`~penstock_log.JobSpec` → the values they would have. Submitted anew with
        these, the job starts; ``hold`` false is a release of the same job.
    kind : str
        What it would start on.
    speed : float
        Its speed there relative to the fastest kind that it accepts as it is; 0 where that was not measured.
    starts : {"now"}
        When it would start.
    text : str
        The same in a sentence.
    """

    change: dict[str, Union[str, int, float, bool, tuple[str, ...]]]
    kind: str
    speed: float = 0.0
    starts: Literal["now"] = "now"
    text: str = ""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """
    Why a job waits.

    Attributes
    ----------
    cause : Cause
        The one that dominates.
    evidence : str
        What shows it, in figures.
    remedy : str
        What would change it; empty where nothing the user does would.
    alternative : Alternative or None
        The best change that the round tried and that would have the job start; None where it tried none that would.
    """

    job_id: str
    cause: Cause
    evidence: str
    remedy: str = ""
    alternative: Optional[Alternative] = None


class RoundDecided(Event, frozen=True, kw_only=True, tag="round.decided.v1"):
    """
    The matcher decided who runs where.

    Attributes
    ----------
    lost_nodes : tuple of str
        Nodes whose heartbeats have stopped; their grants end here.
    forgotten_nodes : tuple of str
        Nodes that left or were lost long ago; they are no longer listed.
    prices : dict of str to float
        What one more device of each kind would save, in seconds of completion time.
    keeps : dict of str to str
        Gangs that have waited for too long → the kind of the devices that are kept for them as they fall free.
    waits : tuple of Wait
        For the first waiting jobs in rank order; the list of a later round that explains replaces this one.
    explains : bool
        Whether it says why jobs wait, and names prices. Rounds of a burst do not: what was said before them holds on
        for the jobs that do not start, until one that explains, a second later at most.
    """

    pool: str
    placements: tuple[Placement, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    lost_nodes: tuple[str, ...] = ()
    forgotten_nodes: tuple[str, ...] = ()
    prices: dict[str, float] = {}
    keeps: dict[str, str] = {}
    waits: tuple[Wait, ...] = ()
    explains: bool = True


class Demand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The size that one job is to have instead of what it has, or asks for.

    A job that waits asks for it from now on. A running job is preempted for it: its run saves a checkpoint and stops,
    and its next run has the new size.

    Attributes
    ----------
    epoch : int
        The job's last epoch when this was decided; the demand is void if the job has been placed since.
    gpus, sharing, sharers
        As in its specification.
    batch_size : int
        Over all devices; 0: as it was.
    kinds : tuple of str
        The device kinds for which this size is; empty: any that the job accepts.
    gives : dict of str to int
        Job → devices that this one gives up for it; devices that no other job gains are left out.
    reason : str
        Why, in one sentence.
    """

    job_id: str
    epoch: int
    gpus: int = 1
    sharing: Literal["exclusive", "lane"] = "exclusive"
    sharers: int = 0
    batch_size: int = 0
    kinds: tuple[str, ...] = ()
    gives: dict[str, int] = {}
    reason: str = ""


class ScaleDecided(Event, frozen=True, kw_only=True, tag="scale.decided.v1"):
    """
    These elastic jobs are to have other sizes from their next runs on; all others keep theirs.

    A new job is sized once before it starts, even where that is the size that it asks for.

    Attributes
    ----------
    because : {"arrival", "completion", "nodes", "order", "profile", "interval"}
        What led to it.
    dropped : tuple of str
        Jobs that have never run and for which there is no room; they end, where the pool is set to drop them.
    scaling : float
        Sum over the pool's elastic jobs of their throughput relative to that at their smallest widths.
    """

    pool: str
    demands: tuple[Demand, ...]
    because: Literal["arrival", "completion", "nodes", "order", "profile", "interval"] = "interval"
    dropped: tuple[str, ...] = ()
    scaling: float = 0.0


Problem = Literal["", "crashed", "diverged", "no_report", "refused", "memory"]
"""Why a trial gave no value."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """
    One run of a point of the space; it runs as the job ``job_id``.

    Attributes
    ----------
    gpus : int
    packed : int
        Trials on its device at most, itself among them; where there may be others, it takes turns with them.
    number : int
        Of the point; a trial that is promoted runs again under the same number, as another job.
    bracket, rung : int
        Where it stands, in a search that stops early; the generations of population-based training are rungs.
    budget : int
        Up to which it trains, counted from its very beginning; 0 where the sweep has no budget.
    origin : str
        The job whose last checkpoint it goes on from; empty where it starts afresh.
    """

    job_id: str
    params: dict[str, Param]
    gpus: int = 1
    packed: int = 1
    number: int = 0
    bracket: int = 0
    rung: int = 0
    budget: int = 0
    origin: str = ""


class TrialGroupOpened(Event, frozen=True, kw_only=True, tag="sweep.group_opened.v1"):
    """
    The tuner chose these trials and their widths. It submits each as a job, again if need be, under the same id.

    A group is a batch, a rung, a generation, or the trials for which an asynchronous search has room.
    """

    sweep_id: str
    group: int
    trials: tuple[Trial, ...]


class TrialsScaled(Event, frozen=True, kw_only=True, tag="sweep.scaled.v1"):
    """
    These trials get another width with their next runs; no step is lost, and other trials keep theirs.

    A trial that is over, or is being cancelled, has no next run: its demand is void.
    """

    sweep_id: str
    demands: tuple[Demand, ...]


class TrialRetried(Event, frozen=True, kw_only=True, tag="sweep.trial_retried.v1"):
    """
    A trial's job has exceeded its memory beside others; it runs once more, as another job with a device to itself.

    Attributes
    ----------
    job_id : str
        Of the job that is over; the search hears only of the new one.
    trial : Trial
        The same trial, as the new job.
    reason : str
        What it asked for and what it used.
    """

    sweep_id: str
    job_id: str
    trial: Trial
    reason: str


class TrialsMeasured(Event, frozen=True, kw_only=True, tag="sweep.measured.v1"):
    """
    What the trials of a sweep, and of those before it, have shown of their workload; a later one replaces it.

    Attributes
    ----------
    key : str
        Of the workload.
    alpha, beta : float
        Penalties of packing and of scaling out, 1 or more; 0 where not measured.
    packing, widest : int
        Most trials on one device, and most devices for one trial, that are worth it as far as is known; 0: no limit.
    overhead_s : float
        What moving a running trial costs (ε), in seconds; 0 where not measured.
    saves : bool
        Whether its script saves checkpoints: trials of one that does not are never moved.
    moves : int
        How many moves that was measured on; where none, it is what starting takes, and a guess for stopping.
    """

    sweep_id: str
    key: str
    alpha: float = 0.0
    beta: float = 0.0
    packing: int = 0
    widest: int = 0
    overhead_s: float = 0.0
    moves: int = 0
    saves: bool = False


class TrialFinished(Event, frozen=True, kw_only=True, tag="sweep.trial_finished.v1"):
    """
    A trial's job is over, or never came about.

    Attributes
    ----------
    value : float or None
        Its metric; None where it reported none.
    problem : str
        Why there is no value: it crashed, it exceeded its memory, its metric was no number in the end (``diverged``),
        it reported nothing, or the gateway refused it. Empty where there is one, or it was cancelled.
    reason : str
        The same in a sentence, where there is more to say.
    """

    sweep_id: str
    job_id: str
    state: Literal["completed", "failed", "cancelled"]
    value: Optional[float] = None
    reason: str = ""
    problem: Problem = ""


class SweepFinished(Event, frozen=True, kw_only=True, tag="sweep.finished.v1"):
    """All trials are over. ``best_job_id`` is empty where no trial gave a value."""

    sweep_id: str
    state: Literal["completed", "failed", "cancelled"]
    best_job_id: str = ""
    best_value: Optional[float] = None
    reason: str = ""
