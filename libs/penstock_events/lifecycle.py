"""
The life of a job, as a table: every service that cares about jobs folds them with this one module.

States are the two letters that people read in ``penstock ps``. The fold never refuses a fact: one that does not fit the
job's present state (an older epoch, a placement of a job that was cancelled meanwhile) changes nothing, and it changes
nothing in the same way in every service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from penstock_events import shares
from penstock_events.base import Event
from penstock_events.job import JobCancelled, JobHeld, JobReleased, JobSubmitted
from penstock_events.profile import Sample, SamplesRequested
from penstock_events.round import Placement, RoundDecided
from penstock_events.run import RunCheckpointed, RunEnded, RunMeasured, RunStarted
from penstock_events.scale import Demand
from penstock_events.spec import JobSpec, MemoryNeed, Outcome
from penstock_events.sweep import TrialsScaled


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
    State.PENDING: {"placed": State.RUNNING, "cancel": State.CANCELLED},
    State.RUNNING: {"preempt": State.PREEMPTING, "cancel": State.COMPLETING, **_ENDED},
    State.PREEMPTING: {"cancel": State.COMPLETING, **_ENDED},
    State.COMPLETING: dict.fromkeys(_ENDED, State.CANCELLED),
    State.COMPLETED: {},
    State.FAILED: {},
    State.CANCELLED: {},
}
"""State → what happened → next state; what is not listed changes nothing. ``docs/states.md`` is drawn from it."""

_SEVERITY: Final[dict[Outcome, int]] = {"completed": 0, "preempted": 1, "failed": 2, "lost": 3, "cancelled": 4}
"""``lost`` outweighs ``failed``: where a node of a gang goes down, the processes elsewhere fail for want of it."""


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
    carried_gpu_s : float
        What runs of other widths attained beyond what the same time would have on the present one.
    need : MemoryNeed or None
        Of one device's memory, as its last run that measured it says; before that, as its placement says.
    demand : Demand or None
        What its next run is to have instead, while the present one is to make way for it.
    checkpointed_s : float
        When its last checkpoint was complete; 0 before the first.
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
    not_before_s: float = 0.0
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    steps: int = 0
    checkpoint_step: int = 0
    checkpointed_s: float = 0.0
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

    def may_start(self, now_s: float) -> bool:
        """Say whether the job waits for nothing but devices."""
        return self.state is State.PENDING and not self.held and now_s >= self.not_before_s

    def may_run(self, epoch: int, node_id: str) -> bool:
        """Say whether the processes of this epoch on this node are still wanted, in whatever state they are."""
        return self.placement is not None and self.placement.epoch == epoch and node_id in self.open_nodes

    @property
    def stopping(self) -> bool:
        """Whether processes that still run are to end: preempted, cancelled, or the gang has ended badly elsewhere."""
        return self.state in {State.PREEMPTING, State.COMPLETING} or self.outcome != "completed"


class Jobs(msgspec.Struct):
    """
    All jobs by id. A service that need not remember drops the terminal ones with :meth:`forget`.

    Attributes
    ----------
    by_id : dict of str to Job
    sharers : dict of str to list of str
        Node → the jobs whose runs are under way there and share its devices.
    """

    by_id: dict[str, Job] = msgspec.field(default_factory=dict)
    sharers: shares.Sharers = msgspec.field(default_factory=dict)

    def __getitem__(self, job_id: str) -> Job:
        return self.by_id[job_id]

    def __iter__(self) -> Iterator[Job]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, job_id: str) -> Job | None:
        """Return a job, or None where the id is not known."""
        return self.by_id.get(job_id)

    def forget(self, job_id: str) -> None:
        """Drop a job; facts about it are ignored from here on."""
        self.by_id.pop(job_id, None)

    def apply(self, event: Event) -> list[Job]:
        """Fold one fact in; return the jobs it touched."""
        fold = _FOLDS.get(type(event))
        return fold(self, event) if fold is not None else []


def _submit(jobs: Jobs, job_id: str, spec: JobSpec, at_s: float) -> Job:
    job = Job(id=job_id, spec=spec, submitted_s=at_s, pending_since_s=at_s, held=spec.hold)
    return jobs.by_id.setdefault(job_id, job)


def _submit_sample(jobs: Jobs, event: SamplesRequested, sample: Sample) -> Job:
    spec = msgspec.structs.replace(
        event.spec,
        id=sample.sample_id,
        kinds=(sample.kind,),
        sharing="exclusive",
        gpus=1,
        retries=0,
        checkpoint_s=0.0,
        hold=False,
        parent="",
    )
    job = _submit(jobs, sample.sample_id, spec, event.at_s)
    if job.spec is spec:
        job.sample, job.profile_key = sample, event.key
    return job


def _apply_round(jobs: Jobs, event: RoundDecided) -> list[Job]:
    touched = []
    for node_id in event.lost_nodes:
        touched += [job for job in jobs if node_id in job.open_nodes and _leave_node(job, node_id, "lost", event.at_s)]
        _leave_sharers(jobs, touched, node_id, event.at_s)
    for preemption in event.preemptions:
        job = jobs.by_id.get(preemption.job_id)
        if job is not None and job.epoch == preemption.epoch and _move(job, "preempt"):
            job.reason = preemption.reason
            touched.append(job)
    for placement in event.placements:
        job = jobs.by_id.get(placement.job_id)
        if job is not None and _place(job, placement, event.at_s):
            touched.append(job)
    return touched


def _place(job: Job, placement: Placement, at_s: float) -> bool:
    if job.held or placement.epoch != job.epoch + 1 or not _move(job, "placed"):
        return False
    job.epoch, job.placement = placement.epoch, placement
    job.need = job.need or placement.need
    job.open_nodes = {slot.node_id for slot in placement.slots}
    job.outcome, job.reason, job.exit_code = "completed", "", None
    job.waited_s += max(0.0, at_s - job.pending_since_s)
    return True


def _start_run(job: Job, event: RunStarted) -> bool:
    if not job.may_run(event.epoch, event.node_id):
        return False
    if not job.started_s:
        job.started_s = event.at_s
        job.attempts += 1
        job.first_started_s = job.first_started_s or event.at_s
    return True


def _leave_sharers(jobs: Jobs, left: Iterable[Job], node_id: str, at_s: float) -> None:
    for job in left if jobs.sharers else ():  # whose sharing may have changed with the end of this run
        shares.leave(jobs, job, node_id, at_s)


def _measure(job: Job, event: RunMeasured) -> bool:
    if not job.may_run(event.epoch, event.node_id) or job.need == event.need:
        return False
    job.need = event.need
    return True


def _checkpoint(job: Job, event: RunCheckpointed) -> bool:
    if job.placement is None or job.placement.epoch != event.epoch:
        return False
    job.checkpoint_step = max(job.checkpoint_step, event.step)
    job.checkpointed_s = max(job.checkpointed_s, event.at_s)
    return True


def _end_run(job: Job, event: RunEnded) -> bool:
    if not job.may_run(event.epoch, event.node_id):
        return False
    job.steps = max(job.steps, event.steps)
    if event.metrics or event.diverged:
        known = {**job.metrics, **event.metrics}
        job.metrics = {name: value for name, value in known.items() if name not in event.diverged}
        job.diverged = event.diverged or job.diverged
    if _SEVERITY[event.outcome] >= _SEVERITY[job.outcome]:
        job.reason = event.reason
        job.exit_code = event.exit_code
    _leave_node(job, event.node_id, event.outcome, event.at_s)
    return True


def _leave_node(job: Job, node_id: str, outcome: Outcome, at_s: float) -> bool:
    job.open_nodes.discard(node_id)
    if _SEVERITY[outcome] > _SEVERITY[job.outcome]:
        job.outcome = outcome
    if job.open_nodes:
        return True
    if job.share != 1.0:
        job.forgone_s, job.share = job.forgone_by(at_s), 1.0
    job.executed_s = job.executed_by(at_s)
    job.placement, job.started_s = None, 0.0
    _conclude(job, at_s)
    return True


def _conclude(job: Job, at_s: float) -> None:
    what: str = job.outcome
    if what == "failed":
        job.failures += 1
        if job.failures <= job.spec.retries and job.state is not State.COMPLETING:
            what = "retried"
            job.not_before_s = at_s + job.spec.backoff_s * 2.0 ** (job.failures - 1)
    elif what == "preempted":
        job.preemptions += 1
    elif what == "lost":
        job.reason = "its node was lost"
    _move(job, what)
    if job.state is State.PENDING:
        job.pending_since_s = at_s
        if job.demand is not None:
            _become(job, job.demand)
    else:
        job.finished_s = at_s


def _cancel(job: Job, event: JobCancelled) -> bool:
    was_pending = job.state is State.PENDING
    if not _move(job, "cancel"):
        return False
    job.reason = event.reason or (f"cancelled by {event.by}" if event.by else "cancelled")
    if was_pending:
        job.waited_s += max(0.0, event.at_s - job.pending_since_s)
        job.finished_s = event.at_s
    return True


def _hold(job: Job, event: JobHeld | JobReleased) -> bool:
    held = isinstance(event, JobHeld)
    changed = job.state not in TERMINAL and job.held != held
    if changed:
        job.held = held
    return changed


def _scale(job: Job, demand: Demand) -> bool:
    """
    Note what a job is to have from its next run on.

    One that waits takes a new epoch with it, so that a placement which was decided before is void.
    """
    if demand.epoch != job.epoch or job.state in TERMINAL or job.state is State.COMPLETING:
        return False
    if job.placement is None:
        job.epoch += 1
        _become(job, demand)
    else:
        job.demand = demand
    return True


def _become(job: Job, demand: Demand) -> None:
    """Have a job ask for something else; what it has attained by now stays."""
    job.carried_gpu_s += (job.spec.gpus - demand.gpus) * (job.executed_s - job.forgone_s)
    job.spec = msgspec.structs.replace(
        job.spec, gpus=demand.gpus, sharing=demand.sharing, sharers=demand.sharers if demand.sharing == "lane" else 0
    )
    job.demand = None


def _move(job: Job, what: str) -> bool:
    to = TRANSITIONS[job.state].get(what)
    if to is None:
        return False
    job.state = to
    return True


def _on_submitted(jobs: Jobs, event: JobSubmitted) -> list[Job]:
    return [_submit(jobs, event.job_id, event.spec, event.at_s)]


def _on_samples(jobs: Jobs, event: SamplesRequested) -> list[Job]:
    return [_submit_sample(jobs, event, sample) for sample in event.samples]


def _on_started(jobs: Jobs, event: RunStarted) -> list[Job]:
    job = jobs.by_id.get(event.job_id)
    if job is None or not _start_run(job, event):
        return []
    if job.spec.sharing != "exclusive":
        shares.enter(jobs, job, event.node_id, event.at_s)
    return [job]


def _on_ended(jobs: Jobs, event: RunEnded) -> list[Job]:
    job = jobs.by_id.get(event.job_id)
    if job is None or not _end_run(job, event):
        return []
    _leave_sharers(jobs, [job], event.node_id, event.at_s)
    return [job]


def _on_scaled(jobs: Jobs, event: TrialsScaled) -> list[Job]:
    named = [(job, demand) for demand in event.demands if (job := jobs.by_id.get(demand.job_id)) is not None]
    return [job for job, demand in named if _scale(job, demand)]


def _on_one(step: Callable[[Job, Any], bool]) -> Callable[[Jobs, Any], list[Job]]:
    """Return the fold of a fact about one job, of which a step says whether it has changed."""

    def fold(jobs: Jobs, event: Any) -> list[Job]:
        job = jobs.by_id.get(event.job_id)
        return [job] if job is not None and step(job, event) else []

    return fold


_FOLDS: Final[dict[type[Event], Callable[[Jobs, Any], list[Job]]]] = {
    JobSubmitted: _on_submitted,
    SamplesRequested: _on_samples,
    RoundDecided: _apply_round,
    RunStarted: _on_started,
    RunEnded: _on_ended,
    RunCheckpointed: _on_one(_checkpoint),
    RunMeasured: _on_one(_measure),
    JobCancelled: _on_one(_cancel),
    JobHeld: _on_one(_hold),
    JobReleased: _on_one(_hold),
    TrialsScaled: _on_scaled,
}
"""Kind of fact → its fold, which returns the jobs that it touched; other kinds change nothing in a job's life."""
