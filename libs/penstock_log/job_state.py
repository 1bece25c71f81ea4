"""
One job: its states, size and checkpoint, into which :mod:`penstock_log.lifecycle` folds facts.

:class:`JobState` and its table of transitions say which states there are. :class:`Job` is one job as the log has it.

The functions below say how a job comes to another size, and back: what a :class:`~penstock_log.Demand` makes of it, and
what becomes of a run that ended for a new size. An elastic job does not fail by the autoscaler's choice. A run that
fails at once with a new size goes back to the last size that worked, and so does a run that fails for want of memory;
the failed size is not tried again. A gang of which a process is killed is treated as if its node was lost: it goes on
from its last checkpoint, at whatever width there is room for. Neither goes on for ever: the number of sizes is limited,
and a gang must get on between its losses.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final, Literal, Optional

import msgspec

from penstock_log.decision_facts import Demand, Placement
from penstock_log.facts import ProfileSample
from penstock_log.spec import CheckpointTier, JobSpec, MemoryNeed, Outcome


class JobState(str, Enum):
    """What ``penstock ps`` shows."""

    __str__ = str.__str__

    PENDING = "PD"
    RUNNING = "R"
    PREEMPTING = "PR"
    COMPLETING = "CG"
    COMPLETED = "CD"
    FAILED = "F"
    CANCELLED = "CA"


TERMINAL: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
ENDINGS: Final[dict[JobState, Literal["completed", "failed", "cancelled"]]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
ACTIVE: Final = frozenset({JobState.RUNNING, JobState.PREEMPTING, JobState.COMPLETING})
_STOPPING: Final = frozenset({JobState.PREEMPTING, JobState.COMPLETING})

_ENDED: Final = {
    "completed": JobState.COMPLETED,
    "failed": JobState.FAILED,
    "retried": JobState.PENDING,
    "preempted": JobState.PENDING,
    "lost": JobState.PENDING,
    "cancelled": JobState.CANCELLED,
}

TRANSITIONS: Final[dict[JobState, dict[str, JobState]]] = {
    JobState.PENDING: {
        "placed": JobState.RUNNING,
        "cancel": JobState.CANCELLED,
        "dropped": JobState.FAILED,
        "timed_out": JobState.FAILED,
    },
    JobState.RUNNING: {"preempt": JobState.PREEMPTING, "cancel": JobState.COMPLETING, **_ENDED},
    JobState.PREEMPTING: {"cancel": JobState.COMPLETING, "timed_out": JobState.FAILED, **_ENDED},
    JobState.COMPLETING: dict.fromkeys(_ENDED, JobState.CANCELLED),
    JobState.COMPLETED: {},
    JobState.FAILED: {},
    JobState.CANCELLED: {},
}
"""State → what happened → next state; what is not listed changes nothing. ``docs/states.md`` is drawn from it."""

SEVERITY: Final[dict[Outcome, int]] = {"completed": 0, "preempted": 1, "failed": 2, "lost": 3, "cancelled": 4}
"""``lost`` outweighs ``failed``: where a node of a gang goes down, the processes elsewhere fail for want of it."""


class Size(msgspec.Struct, frozen=True, order=True):
    """Devices, and the batch size over all of them; 0 where the script chooses that."""

    gpus: int
    batch_size: int = 0


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job's last checkpoint, as far as the log knows.

    Attributes
    ----------
    generation : int
        Epoch of the run that wrote it.
    step : int
    digest : str
        SHA-256 of its manifest; empty where it is not known.
    node_ids : tuple of str
        Nodes on which it lies: the one that wrote it, and those that have resumed from it.
    tier : {"disk", "memory"}
        Where the node that wrote it has it: ``memory`` until it is on the disk too.
    peers : tuple of str
        Nodes whose memory was given a copy each.
    """

    generation: int
    step: int
    digest: str = ""
    node_ids: tuple[str, ...] = ()
    tier: CheckpointTier = "disk"
    peers: tuple[str, ...] = ()


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where a job's process stays in memory, stopped, since its last run was preempted.

    Attributes
    ----------
    node_id, epoch : str, int
        Of that run.
    held_bytes : int
        Memory of the host that it holds.
    since_s : float
    """

    node_id: str
    epoch: int
    held_bytes: int = 0
    since_s: float = 0.0


class Job(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    One job as the log has it so far.

    Attributes
    ----------
    blocked : bool
        It waits for other jobs or sweeps (``after`` of its specification), which have not come that far.
    in_line : bool
        As many jobs of its array as may run at a time come before it: it is not to start before one of them is over.
        One that is held or blocked has no place before others, and is in line too.
    unblocked_s : float
        When these had come; 0 before, and where it waits for none.
    limit_s : float
        How long it may run, over all of its runs; 0: as long as it likes.
    timed_out : bool
        It has run for that long.
    epoch : int
        Of the last placement; 0 before the first.
    placement : Placement or None
        The grant in force.
    open_nodes : set of str
        Nodes of the grant whose run has not ended: their devices are taken.
    outcome : str
        The worst outcome among the ended nodes of the grant; a gang ends as a whole.
    started_s : float
        Start of the present run; 0 while none has started.
    pending_since_s, waited_s, executed_s : float
        Since when it is pending, how long it was before that, and how long it ran in ended runs. The time before it
        could begin is in them: jobs are ranked by their submission. What counts as waiting is :meth:`queued_by`.
    share, share_since_s : float
        The assumed part of its devices' time that the present run has, and since when; 1 where it shares none.
    forgone_s : float
        The part of its run time up to then that others had on shared devices: see :mod:`penstock_log.lifecycle`.
    accepts : tuple of str or None
        The device kinds of its specification, once it has been sized for one of them.
    before : Size or None
        Of an elastic job: the size with which a run last went well, else the size with which it was submitted; None
        before it is sized.
    unfit : tuple of Size
        Sizes with which a run failed at once or for want of memory; the job is given none of these again. A size with
        a batch of 0 stands for that number of devices with any batch.
    resumed_step : int
        The step after which the present run began, or else the last one.
    run_steps : int
        Steps that the present run has done at least, or else the last one.
    lost_steps : int
        Steps that it had done when one of its processes was last killed; -1 where none was.
    samples : int
        Samples that its sampler handed out and that were done, over all runs.
    out_of_memory : bool
        Whether a run of the grant in force failed for want of memory.
    killed : bool
        Whether a run of the grant in force failed because one of its processes was killed.
    carried_gpu_s : float
        Service that runs of other widths attained beyond what the same time would give on the present width.
    need : MemoryNeed or None
        Of one device's memory, as its last run that measured it says; before that, as its placement says.
    demand : Demand or None
        The demand that its next run fulfils, while the present run is to stop for it.
    checkpointed_s : float
        When its last checkpoint was complete; 0 before the first.
    checkpoint : Checkpoint or None
        The last one; None before the first, and once it was found to be lost with no other behind it.
    rewound : int
        Epoch of the last run that had to go on from before the last checkpoint; 0 where none had. Checkpoints of
        earlier runs, but for the one that it went on from, no longer count.
    begins_anew : bool
        That run had to begin from step 0: the job with whose checkpoint it was to begin does not count either.
    not_before_s : float
        End of the back-off after a failure; before the first run, the time before which it is not to begin.
    diverged : tuple of str
        Metrics whose last value was no finite number.
    parked : Parked or None
        Where its process stays, to go on without a load; None where none does.
    """

    id: str
    spec: JobSpec
    submitted_s: float
    state: JobState = JobState.PENDING
    sample: Optional[ProfileSample] = None
    profile_key: str = ""
    held: bool = False
    blocked: bool = False
    in_line: bool = False
    unblocked_s: float = 0.0
    limit_s: float = 0.0
    timed_out: bool = False
    epoch: int = 0
    placement: Optional[Placement] = None
    open_nodes: set[str] = msgspec.field(default_factory=set)
    outcome: Outcome = "completed"
    started_s: float = 0.0
    first_started_s: float = 0.0
    pending_since_s: float = 0.0
    waited_s: float = 0.0
    executed_s: float = 0.0
    share: float = 1.0
    share_since_s: float = 0.0
    forgone_s: float = 0.0
    carried_gpu_s: float = 0.0
    need: Optional[MemoryNeed] = None
    demand: Optional[Demand] = None
    accepts: Optional[tuple[str, ...]] = None
    before: Optional[Size] = None
    unfit: tuple[Size, ...] = ()
    run_steps: int = 0
    lost_steps: int = -1
    samples: int = 0
    out_of_memory: bool = False
    killed: bool = False
    not_before_s: float = 0.0
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    steps: int = 0
    resumed_step: int = 0
    checkpoint_step: int = 0
    checkpointed_s: float = 0.0
    checkpoint: Optional[Checkpoint] = None
    rewound: int = 0
    begins_anew: bool = False
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    diverged: tuple[str, ...] = ()
    reason: str = ""
    exit_code: Optional[int] = None
    finished_s: float = 0.0
    parked: Optional[Parked] = None

    def executed_by(self, now_s: float) -> float:
        """Return the seconds executed over all runs up to ``now_s``."""
        running_s = max(0.0, now_s - self.started_s) if self.started_s and self.placement else 0.0
        return self.executed_s + running_s

    @property
    def runs_out_s(self) -> Optional[float]:
        """When the time of a running job is over, in seconds since the epoch; None without a limit, or a run."""
        if not self.limit_s or self.placement is None or not self.started_s:
            return None
        return self.started_s + self.limit_s - self.executed_s

    def unsaved_by(self, now_s: float) -> float:
        """Return the seconds of the present run since its last checkpoint up to ``now_s``; 0 where none has started."""
        return max(0.0, now_s - max(self.started_s, self.checkpointed_s)) if self.started_s else 0.0

    def forgone_by(self, now_s: float) -> float:
        """Return the seconds that others have had of the devices that it shared, up to ``now_s``."""
        if self.share == 1.0:
            return self.forgone_s
        return self.forgone_s + (1.0 - self.share) * max(0.0, now_s - self.share_since_s)

    def served_by(self, now_s: float) -> float:
        """Return the seconds executed over all runs up to ``now_s``, with its share only where it shared devices."""
        return self.executed_by(now_s) - self.forgone_by(now_s)

    def attained_gpu_s(self, now_s: float) -> float:
        """Return the two-dimensional attained service up to ``now_s``, in GPU-seconds."""
        return self.carried_gpu_s + self.spec.gpus * self.served_by(now_s)

    def waited_by(self, now_s: float) -> float:
        """Return the seconds spent pending up to ``now_s``, whether or not it could begin."""
        return self.waited_s + (max(0.0, now_s - self.pending_since_s) if self.state is JobState.PENDING else 0.0)

    @property
    def eligible_s(self) -> float:
        """When it could begin for the first time, by its submission, its ``begin`` and what it waits for, if ever."""
        return math.inf if self.blocked or self.in_line else max(self.submitted_s, self.spec.begin_s, self.unblocked_s)

    @property
    def queued_since_s(self) -> float:
        """Since when it waits for devices and for nothing else."""
        return max(self.pending_since_s, self.eligible_s)

    def queued_by(self, now_s: float) -> float:
        """Return the seconds spent waiting up to ``now_s``, from when it could begin."""
        return max(0.0, self.waited_by(now_s) - (self.eligible_s - self.submitted_s))

    @property
    def run_outcome(self) -> str:
        """How the last run ended; ``timed_out`` where it was stopped for the time limit, as one is for others."""
        return "timed_out" if self.timed_out and self.outcome == "preempted" else self.outcome

    def may_run(self, epoch: int, node_id: str) -> bool:
        """Say whether the processes of this epoch on this node are still wanted, in whatever state they are."""
        return self.placement is not None and self.placement.epoch == epoch and node_id in self.open_nodes

    @property
    def parked_on(self) -> str:
        """The node on which its process is parked; empty where none is."""
        return self.parked.node_id if self.parked is not None else ""

    @property
    def startable(self) -> bool:
        """Whether neither a person nor another job, or its array, keeps it from being started."""
        return not (self.held or self.blocked or self.in_line)

    @property
    def size(self) -> Size:
        """The size that it has, or asks for."""
        return Size(self.spec.gpus, self.spec.batch_size)

    def is_unfit(self, size: Size) -> bool:
        """Say whether a size is known to fail."""
        return size in self.unfit or Size(size.gpus) in self.unfit

    @property
    def stopping(self) -> bool:
        """Whether processes that still run are to end: preempted, cancelled, or the gang has ended badly elsewhere."""
        return self.state in _STOPPING or self.outcome != "completed"

    def move(self, what: str) -> bool:
        """Go to the next state, if there is one for what has happened."""
        to = TRANSITIONS[self.state].get(what)
        if to is None:
            return False
        self.state = to
        return True


EARLY_STEPS: Final = 2
"""A run that has failed after so many steps, or fewer, has failed at once."""


def scale(job: Job, demand: Demand) -> bool:
    """
    Note the size that a job is to have from its next run on.

    One that waits takes a new epoch with it, so that a placement which was decided before is void.
    """
    if (
        demand.epoch != job.epoch
        or job.state in TERMINAL
        or job.state is JobState.COMPLETING
        or not _may_have(job, demand)
    ):
        return False
    if job.placement is None:
        job.epoch += 1
        become(job, demand)
    else:
        job.demand = demand
    return True


def _may_have(job: Job, demand: Demand) -> bool:
    """Say whether an elastic job allows this size and has not failed with it; other jobs take any size but none."""
    spec, batch = job.spec, job.spec.batch
    if not spec.elastic:
        return demand.gpus > 0
    size = _asked(job, demand)
    kept = size.batch_size == spec.batch_size
    batch_fits = kept or (batch is not None and batch.min <= size.batch_size <= batch.max)
    return size.gpus in spec.widths and batch_fits and not job.is_unfit(size)


def become(job: Job, demand: Demand) -> None:
    """Have a job ask for another size; its attained service stays."""
    job.demand = None
    if not _may_have(job, demand):
        return  # its run has just failed with that size
    if job.spec.elastic and job.before is None:
        job.before = job.size
    if demand.kinds and job.accepts is None:
        job.accepts = job.spec.kinds
    _set(job, _asked(job, demand))
    job.spec = msgspec.structs.replace(
        job.spec,
        sharing=demand.sharing,
        sharers=demand.sharers if demand.sharing == "lane" else 0,
        kinds=demand.kinds or (job.spec.kinds if job.accepts is None else job.accepts),
    )


def drop(job: Job, at_s: float) -> bool:
    """End a job that has never run, for want of room."""
    if job.attempts or job.placement is not None or not job.move("dropped"):
        return False
    job.reason = "dropped: its smallest size found no room, and its pool drops such jobs"
    job.waited_s += max(0.0, at_s - job.pending_since_s)
    job.finished_s = at_s
    return True


def prove(job: Job) -> None:
    """Note the size with which a run has just gone well: it made progress and did not end by its own failure."""
    if job.spec.elastic and job.outcome != "failed" and job.run_steps > EARLY_STEPS:
        job.before = job.size


def spared(job: Job) -> str:
    """
    Return how an elastic job's failed run counts, where it does not count as a failure.

    Returns
    -------
    str
        ``lost`` where a process was killed; ``retried`` for a size that did not do; empty where it has failed.
    """
    if not job.spec.elastic or job.state is JobState.COMPLETING:
        return ""
    if job.killed and job.spec.gpus > 1 and job.steps > job.lost_steps and not job.out_of_memory:
        job.lost_steps = job.steps
        job.reason = f"one of its processes was killed ({job.reason})"
        return "lost"
    early = job.attempts > 1 and job.run_steps <= EARLY_STEPS
    if job.before is not None and job.before != job.size and (early or job.out_of_memory):
        _go_back(job, job.before)
        return "retried"
    return ""


def _go_back(job: Job, size: Size) -> None:
    any_batch = size.gpus != job.spec.gpus and not job.out_of_memory  # such as a checkpoint of another width
    job.unfit = (*job.unfit, Size(job.spec.gpus, 0 if any_batch else job.spec.batch_size))
    job.reason = f"it did not run on {size_text(job.size)}, and goes back to {size_text(size)}: {job.reason}"
    _set(job, size)
    if job.accepts is not None:
        job.spec = msgspec.structs.replace(job.spec, kinds=job.accepts)


def _asked(job: Job, demand: Demand) -> Size:
    return Size(demand.gpus, demand.batch_size or job.spec.batch_size)


def _set(job: Job, size: Size) -> None:
    job.carried_gpu_s += (job.spec.gpus - size.gpus) * (job.executed_s - job.forgone_s)
    job.spec = msgspec.structs.replace(job.spec, gpus=size.gpus, batch_size=size.batch_size)


def size_text(size: Size) -> str:
    """Return a size in words."""
    batch = f" with a batch of {size.batch_size}" if size.batch_size else ""
    return f"{size.gpus} device{'s' if size.gpus > 1 else ''}{batch}"
