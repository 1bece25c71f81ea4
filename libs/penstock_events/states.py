"""One job and its states: what :mod:`penstock_events.lifecycle` folds facts into."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from penstock_events.profile import Sample
from penstock_events.round import Placement
from penstock_events.scale import Demand
from penstock_events.spec import JobSpec, MemoryNeed, Outcome


class State(StrEnum):
    """What ``penstock ps`` shows."""

    PENDING = "PD"
    RUNNING = "R"
    PREEMPTING = "PR"
    COMPLETING = "CG"
    COMPLETED = "CD"
    FAILED = "F"
    CANCELLED = "CA"


TERMINAL: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
ACTIVE: Final = frozenset({State.RUNNING, State.PREEMPTING, State.COMPLETING})

_ENDED: Final = {
    "completed": State.COMPLETED,
    "failed": State.FAILED,
    "retried": State.PENDING,
    "preempted": State.PENDING,
    "lost": State.PENDING,
    "cancelled": State.CANCELLED,
}

TRANSITIONS: Final[dict[State, dict[str, State]]] = {
    State.PENDING: {"placed": State.RUNNING, "cancel": State.CANCELLED, "dropped": State.FAILED},
    State.RUNNING: {"preempt": State.PREEMPTING, "cancel": State.COMPLETING, **_ENDED},
    State.PREEMPTING: {"cancel": State.COMPLETING, **_ENDED},
    State.COMPLETING: dict.fromkeys(_ENDED, State.CANCELLED),
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
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
        SHA-256 of its manifest; empty where nobody said.
    node_ids : tuple of str
        Nodes on which it lies: the one that wrote it, and those that have resumed from it.
    """

    generation: int
    step: int
    digest: str = ""
    node_ids: tuple[str, ...] = ()


class Job(msgspec.Struct, kw_only=True):
    """
    One job as the log has it so far.

    Attributes
    ----------
    epoch : int
        Of the last placement; 0 before the first.
    placement : Placement or None
        The lease in force.
    open_nodes : set of str
        Nodes of the lease whose run has not ended: their devices are taken.
    outcome : str
        The worst outcome among the ended nodes of the lease; a gang ends as a whole.
    started_s : float
        Start of the present run; 0 while none has started.
    pending_since_s, waited_s, executed_s : float
        Since when it waits, how long it waited before that, and how long it ran in ended runs.
    share, share_since_s : float
        Part of its devices' time that the present run is reckoned to have, and since when; 1 where it shares none.
    forgone_s : float
        Of all that it ran up to then, what others had on devices that it shared: see :mod:`penstock_events.shares`.
    accepts : tuple of str or None
        The device kinds of its specification, once it has been sized for one of them.
    before : Size or None
        Of an elastic job: the size with which a run of it has gone well last, or else that with which it was submitted;
        None before it is sized.
    unfit : tuple of Size
        Sizes with which a run failed at once or for want of memory; it went back to the one before, and is given none
        of these again. With a batch of 0 it is that many devices, with any batch.
    resumed_step : int
        The step after which the present run began, or else the last one.
    run_steps : int
        Steps that the present run has done at least, or else the last one.
    lost_steps : int
        Steps that it had done when a process of it was killed last; -1 where none has.
    samples : int
        That its sampler has handed out and that were done, over all runs.
    out_of_memory : bool
        A run of the lease in force has failed for want of memory.
    killed : bool
        A run of the lease in force has failed because one of its processes was killed.
    carried_gpu_s : float
        What runs of other widths attained beyond what the same time would have on the present one.
    need : MemoryNeed or None
        Of one device's memory, as its last run that measured it says; before that, as its placement says.
    demand : Demand or None
        What its next run is to have instead, while the present one is to make way for it.
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
        End of the back-off after a failure.
    diverged : tuple of str
        Metrics whose last value was no finite number.
    """

    id: str
    spec: JobSpec
    submitted_s: float
    state: State = State.PENDING
    sample: Sample | None = None
    profile_key: str = ""
    held: bool = False
    epoch: int = 0
    placement: Placement | None = None
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
    need: MemoryNeed | None = None
    demand: Demand | None = None
    accepts: tuple[str, ...] | None = None
    before: Size | None = None
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
    checkpoint: Checkpoint | None = None
    rewound: int = 0
    begins_anew: bool = False
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    diverged: tuple[str, ...] = ()
    reason: str = ""
    exit_code: int | None = None
    finished_s: float = 0.0

    def executed_by(self, now_s: float) -> float:
        """Return the seconds executed over all runs up to ``now_s``."""
        running_s = max(0.0, now_s - self.started_s) if self.started_s and self.placement else 0.0
        return self.executed_s + running_s

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
        """Return the seconds spent waiting up to ``now_s``."""
        return self.waited_s + (max(0.0, now_s - self.pending_since_s) if self.state is State.PENDING else 0.0)

    def may_run(self, epoch: int, node_id: str) -> bool:
        """Say whether the processes of this epoch on this node are still wanted, in whatever state they are."""
        return self.placement is not None and self.placement.epoch == epoch and node_id in self.open_nodes

    @property
    def size(self) -> Size:
        """What it has, or asks for."""
        return Size(self.spec.gpus, self.spec.batch_size)

    def is_unfit(self, size: Size) -> bool:
        """Say whether a size did not do."""
        return size in self.unfit or Size(size.gpus) in self.unfit

    @property
    def stopping(self) -> bool:
        """Whether processes that still run are to end: preempted, cancelled, or the gang has ended badly elsewhere."""
        return self.state in {State.PREEMPTING, State.COMPLETING} or self.outcome != "completed"

    def move(self, what: str) -> bool:
        """Go to the next state, if there is one for what has happened."""
        to = TRANSITIONS[self.state].get(what)
        if to is None:
            return False
        self.state = to
        return True
