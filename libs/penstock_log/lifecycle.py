"""
The fold of all jobs: every service that follows jobs folds their facts with this one module.

:class:`JobTable` has all jobs. Its :meth:`~JobTable.apply` never refuses a fact. A fact that does not fit the job's
present state (an older epoch, a placement of a job that was cancelled meanwhile) changes nothing, and it changes
nothing in the same way in every service. States are the two letters that people read in ``penstock ps``.

The service of a job that shares its devices is less than its run time. Of ``k`` jobs that take turns on a device, each
counts as having ``1 / k`` of its time while, by the log, so many runs are under way there, whatever the turns really
were. A gang takes its turns on all of its devices together, so it counts as having its part of the fullest one. A job
with a fraction of a device has this fraction of its time. All of it follows from ``run.started`` and ``run.ended``
facts and from lost nodes: each changes the shares of the jobs beside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock_log import job_state
from penstock_log.decision_facts import Placement, RoundDecided, ScaleDecided, TrialsScaled
from penstock_log.facts import (
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    JobTimedOut,
    JobTimeSet,
    JobUnblocked,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    ProfileSample,
    RunCheckpointed,
    RunEnded,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunUnparked,
    SamplesRequested,
)
from penstock_log.job_state import ACTIVE, SEVERITY, TERMINAL, TRANSITIONS, Checkpoint, Job, JobState, Parked
from penstock_log.spec import JobSpec, Outcome
from penstock_log.text import duration

__all__ = ["ACTIVE", "TERMINAL", "TRANSITIONS", "Checkpoint", "Job", "JobState", "JobTable", "last_checkpoint"]


SharingJobs = dict[str, list[str]]
"""Node → the sharing jobs whose runs are under way there."""


REFUSED_S: Final = 600.0
"""So long after a node has refused a user's job, it gets no new ones of this user."""


class ArrayWindow(msgspec.Struct):
    """
    The jobs of an array of which so many run at a time.

    Attributes
    ----------
    most : int
        How many, as the first of them says.
    places : dict of str to int
        Job that is not over → its place in the order of submission.
    open : dict of str to None
        Jobs that may start, or have: ``most`` at most.
    line : list of (int, str)
        Those that wait for one of them to be over, by their places. A job that is held, or waits for other jobs, is in
        neither: else it could keep out the one that it waits for.
    begun : int
        How many jobs have come: the place of the next.
    """

    most: int
    places: dict[str, int] = msgspec.field(default_factory=dict)
    open: dict[str, None] = msgspec.field(default_factory=dict)
    line: list[tuple[int, str]] = msgspec.field(default_factory=list)
    begun: int = 0

    def enter(self, job: Job) -> None:
        """Give a new job its place."""
        self.places[job.id] = self.begun
        self.begun += 1
        job.in_line = True
        self.settle(job)

    def settle(self, job: Job) -> None:
        """Have a job that may have changed wait in line, or keep what it has, or have neither."""
        if job.state in TERMINAL:
            self.leave(job.id)
            job.in_line = False
        elif (job.held or job.blocked) and job.state is JobState.PENDING:
            self._go(job.id)
            job.in_line = True
        elif job.in_line:
            entry = self.places[job.id], job.id
            at = bisect_left(self.line, entry)
            if self.line[at : at + 1] != [entry]:
                self.line.insert(at, entry)

    def leave(self, job_id: str) -> None:
        """Forget a job."""
        self._go(job_id)
        self.places.pop(job_id, None)

    def next(self) -> list[str]:
        """Let the first jobs in line start, as far as there is room for them, and return their ids."""
        room = max(self.most - len(self.open), 0)
        found = [job_id for _, job_id in self.line[:room]]
        del self.line[:room]
        self.open.update(dict.fromkeys(found))
        return found

    def swap(self, job_id: str, for_id: str) -> None:
        """Let a job in line start in the place of one that has not, which waits in line from the next look on."""
        self._go(job_id)
        del self.open[for_id]
        self.open[job_id] = None

    def _go(self, job_id: str) -> None:
        self.open.pop(job_id, None)
        entry = self.places.get(job_id, -1), job_id
        at = bisect_left(self.line, entry)
        if self.line[at : at + 1] == [entry]:
            del self.line[at]


class JobTable(msgspec.Struct):
    """
    All jobs by id. A service that need not remember drops the terminal ones with :meth:`forget`.

    Attributes
    ----------
    by_id : dict of str to Job
    sharers : dict of str to list of str
        Node → the jobs whose runs are under way there and share its devices.
    arrays : dict of str to ArrayWindow
        The arrays of which only so many jobs run at a time, while any of their jobs is not over: by id and user, as
        what one user submits is not to keep the jobs of another.
    parked : dict of str to list of str
        Node → jobs whose processes are parked there.
    refusals : dict of str to dict of str to float
        User → the nodes that have refused the user's jobs since they joined, and when each did last.
    """

    by_id: dict[str, Job] = msgspec.field(default_factory=dict)
    sharers: SharingJobs = msgspec.field(default_factory=dict)
    arrays: dict[str, ArrayWindow] = msgspec.field(default_factory=dict)
    parked: dict[str, list[str]] = msgspec.field(default_factory=dict)
    refusals: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)

    def __getitem__(self, job_id: str) -> Job:
        return self.by_id[job_id]

    def __iter__(self) -> Iterator[Job]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, job_id: str) -> Job | None:
        """Return a job, or None where the id is not known."""
        return self.by_id.get(job_id)

    def not_over(self) -> Iterator[Job]:
        """Yield the jobs that are not over, in order of submission: no other holds a device."""
        return (job for job in self.by_id.values() if job.state not in TERMINAL)

    def with_refusals(self, spec: JobSpec, at_s: float) -> JobSpec:
        """
        Return a job's specification with the nodes that refuse its user.

        What is older than :data:`REFUSED_S` is left out: the node may know the user by now, and is tried again.
        """
        known = self.refusals.get(spec.user)
        if not known:
            return spec
        nodes = (node_id for node_id, refused_s in known.items() if at_s < refused_s + REFUSED_S)
        return msgspec.structs.replace(spec, refused_by=tuple(nodes))

    def forget(self, job_id: str) -> None:
        """Drop a job, with what it shares; facts about it are ignored from here on."""
        job = self.by_id.pop(job_id, None)
        if job is None:
            return
        unpark(self, job)
        if (window := self.arrays.get(_window_id(job.spec))) is not None:
            window.leave(job_id)
            if not window.places:
                del self.arrays[_window_id(job.spec)]
        if self.sharers:
            for node_id in [node_id for node_id, there in self.sharers.items() if job_id in there]:
                leave(self, job, node_id, max(job.finished_s, job.share_since_s))

    def apply(self, event: Event) -> list[Job]:
        """Fold one fact in; return the jobs it touched."""
        fold = _FOLDS.get(type(event))
        touched = fold(self, event) if fold is not None else []
        if self.parked:
            for job in touched:
                if job.state in TERMINAL or job.placement is not None:
                    unpark(self, job)
        return _with_line(self, touched, event.at_s) if self.arrays else touched


def _with_line(jobs: JobTable, touched: list[Job], at_s: float) -> list[Job]:
    """Let jobs of arrays start in the place of those that are over or cannot; return these and what was touched."""
    windows = {}
    for job in touched:
        window = jobs.arrays.get(_window_id(job.spec))
        if window is None or job.id not in window.places:
            continue
        windows[id(window)] = window
        window.settle(job)
        if not window.places:
            del jobs.arrays[_window_id(job.spec)]
    let_in = [job for window in windows.values() for job in _let_in(jobs, window, at_s)]
    return [*touched, *(job for job in let_in if job not in touched)] if let_in else touched


def _let_in(jobs: JobTable, window: ArrayWindow, at_s: float) -> list[Job]:
    """Let the first jobs in line start, as far as the window has room for them."""
    found = [jobs.by_id[job_id] for job_id in window.next()]
    for job in found:
        _leave_line(job, at_s)
    return found


def _leave_line(job: Job, at_s: float) -> None:
    job.in_line = False
    if at_s > job.submitted_s:
        job.unblocked_s = at_s


def _window_id(spec: JobSpec) -> str:
    """Return under what the window of a job's array is kept; an array's id has no slash."""
    return f"{spec.array.id}/{spec.user}" if spec.array is not None else ""


def _enter_line(jobs: JobTable, job: Job) -> None:
    """Have a new job of an array wait for its turn, which may be at once, if only so many run at a time."""
    array = job.spec.array
    if array is None or not array.most or job.sample is not None:
        return
    jobs.arrays.setdefault(_window_id(job.spec), ArrayWindow(array.most)).enter(job)


def endings(job: Job, at_s: float) -> Iterator[Event]:
    """
    Yield facts that end a job as cancelled, in whatever state it is; none for one that is over.

    They serve a fold that was away while a job ended and was archived: it takes the job for one that goes on.
    """
    if job.state in TERMINAL:
        return
    epoch, nodes = job.epoch, sorted(job.open_nodes)
    yield JobCancelled(job_id=job.id, at_s=at_s, reason="it ended long ago, and is archived")
    for node_id in nodes:
        yield RunEnded(job_id=job.id, at_s=at_s, epoch=epoch, node_id=node_id, outcome="cancelled")


def _submit(jobs: JobTable, job_id: str, spec: JobSpec, at_s: float) -> Job:
    spec = jobs.with_refusals(spec, at_s)
    job = Job(id=job_id, spec=spec, submitted_s=at_s, pending_since_s=at_s, held=spec.hold)
    job.blocked, job.not_before_s, job.limit_s = bool(spec.after), spec.begin_s, spec.time_limit_s
    known = jobs.by_id.setdefault(job_id, job)
    if known is job:
        _enter_line(jobs, job)
    return known


def _submit_sample(jobs: JobTable, event: SamplesRequested, sample: ProfileSample) -> Job:
    spec = msgspec.structs.replace(
        event.spec,
        id=sample.sample_id,
        kinds=(sample.kind,),
        sharing="exclusive",
        gpus=sample.gpus,
        min_gpus=0,
        max_gpus=0,
        batch_size=sample.batch_size or event.spec.batch_size,
        batch=None,
        retries=0,
        checkpoint_s=0.0,
        hold=False,
        time_limit_s=0.0,
        begin_s=0.0,
        after=(),
        array=None,
        parent="",
    )
    is_new = sample.sample_id not in jobs.by_id
    job = _submit(jobs, sample.sample_id, spec, event.at_s)
    if is_new:
        job.sample, job.profile_key = sample, event.key
    return job


def _apply_round(jobs: JobTable, event: RoundDecided) -> list[Job]:
    touched = []
    for node_id in event.lost_nodes:
        touched += _unpark_all(jobs, node_id)
        held = [job for job in jobs.not_over() if node_id in job.open_nodes]
        touched += [job for job in held if _leave_node(job, node_id, "lost", event.at_s)]
        _leave_shared(jobs, touched, node_id, event.at_s)
    for preemption in event.preemptions:
        job = jobs.by_id.get(preemption.job_id)
        if job is not None and job.epoch == preemption.epoch and job.move("preempt"):
            job.reason = preemption.reason
            touched.append(job)
    for placement in event.placements:
        job = jobs.by_id.get(placement.job_id)
        if job is None:
            continue
        if job.in_line and placement.epoch == job.epoch + 1:
            touched += _swapped(jobs, job, event.at_s)
        if _place(job, placement, event.at_s):
            touched.append(job)
    return touched


def _swapped(jobs: JobTable, job: Job, at_s: float) -> list[Job]:
    """
    Have a job that was placed start in the place of another of its array, if one has not started; return that one.

    Whoever placed it counted the jobs of the array in another way: earlier versions had those that wait for other jobs
    among them.
    """
    window = jobs.arrays.get(_window_id(job.spec))
    if window is None or job.held or job.blocked or job.state is not JobState.PENDING:
        return []
    waiting = [one for one in window.open if jobs.by_id[one].state is JobState.PENDING]
    if not waiting:
        return []
    last = max(waiting, key=window.places.__getitem__)
    window.swap(job.id, last)
    jobs.by_id[last].in_line = True
    _leave_line(job, at_s)
    return [jobs.by_id[last]]


def _place(job: Job, placement: Placement, at_s: float) -> bool:
    if not job.startable or placement.epoch != job.epoch + 1 or not job.move("placed"):
        return False
    job.epoch, job.placement = placement.epoch, placement
    job.need = job.need or placement.need
    job.open_nodes = {slot.node_id for slot in placement.slots}
    job.outcome, job.reason, job.exit_code = "completed", "", None
    job.run_steps, job.out_of_memory, job.killed = 0, False, False
    job.waited_s += max(0.0, at_s - job.pending_since_s)
    return True


def _start_run(job: Job, event: RunStarted) -> bool:
    if not job.may_run(event.epoch, event.node_id):
        return False
    if not job.started_s:
        job.started_s = event.at_s
        job.attempts += 1
        job.first_started_s = job.first_started_s or event.at_s
        # those behind its last checkpoint are done again, and counted again
        job.steps = job.resumed_step = event.resumed_step
    job.checkpoint = _lies_here_too(job.checkpoint, event)
    return True


def leave(jobs: JobTable, job: Job, node_id: str, at_s: float) -> None:
    """Note that a sharing job's run on a node is over."""
    there = jobs.sharers.get(node_id, [])
    if job.id not in there:
        return
    there.remove(job.id)
    if there:
        _divide(jobs, node_id, at_s)
    else:
        del jobs.sharers[node_id]


def _leave_shared(jobs: JobTable, left: Iterable[Job], node_id: str, at_s: float) -> None:
    for job in left if jobs.sharers else ():  # whose sharing may have changed with the end of this run
        leave(jobs, job, node_id, at_s)


def _measure(job: Job, event: RunMeasured) -> bool:
    if not job.may_run(event.epoch, event.node_id) or job.need == event.need:
        return False
    job.need = event.need
    return True


def _checkpoint(job: Job, event: RunCheckpointed) -> bool:
    if job.checkpoint is not None and _is_behind(job.checkpoint, event):
        job.checkpoint = _on_disk_too(job.checkpoint, event)
        return True
    if job.placement is None or job.placement.epoch != event.epoch:
        return False
    if not event.generation:
        job.run_steps = max(job.run_steps, event.step - job.checkpoint_step)
    if event.step >= job.checkpoint_step:
        job.checkpoint = _written(event)
    job.checkpoint_step = max(job.checkpoint_step, event.step)
    job.steps = max(job.steps, event.step)
    job.checkpointed_s = max(job.checkpointed_s, event.at_s)
    return True


def _rewind(job: Job, event: RunRewound) -> bool:
    """Go back to an earlier step, unless the checkpoint was given up already: a gang's first such fact counts."""
    if not job.may_run(event.epoch, event.node_id) or not _gives_up(job.checkpoint, event):
        return False
    job.checkpoint = _instead(event)
    job.checkpoint_step = job.checkpoint.step if job.checkpoint is not None else 0
    job.steps = job.resumed_step = event.step
    job.samples, job.run_steps = event.samples, 0
    job.rewound, job.begins_anew = event.epoch, event.step == 0
    return True


def last_checkpoint(facts: Iterable[Event]) -> Checkpoint | None:
    """
    Return a job's last checkpoint by the facts about its runs alone, in order; others are left out.

    It serves a caller whose fold has forgotten the job.
    """
    last, epoch = None, 0
    for fact in facts:
        if not isinstance(fact, (RunStarted, RunCheckpointed, RunRewound)):
            continue
        if fact.epoch < epoch and not (last is not None and _is_behind(last, fact)):
            continue
        epoch = max(epoch, fact.epoch)
        if isinstance(fact, RunStarted):
            last = _lies_here_too(last, fact)
        elif isinstance(fact, RunCheckpointed):
            if last is not None and _is_behind(last, fact):
                last = _on_disk_too(last, fact)
            elif last is None or fact.step >= last.step:
                last = _written(fact)
        elif _gives_up(last, fact):
            last = _instead(fact)
    return last


def _written(event: RunCheckpointed) -> Checkpoint:
    generation, node_ids = event.generation or event.epoch, (event.node_id,)
    return Checkpoint(
        generation=generation,
        step=event.step,
        digest=event.digest,
        node_ids=node_ids,
        tier=event.tier,
        peers=event.peers,
    )


def _is_behind(last: Checkpoint, event: Event) -> bool:
    """Return whether a fact says that the last checkpoint, which was in memory, is on the disk too; at any time."""
    if not isinstance(event, RunCheckpointed) or last.tier != "memory" or event.tier != "disk":
        return False
    return (event.step, event.digest, event.generation) == (last.step, last.digest, last.generation)


def _on_disk_too(last: Checkpoint, event: RunCheckpointed) -> Checkpoint:
    elsewhere = tuple(node_id for node_id in last.node_ids if node_id != event.node_id)
    return msgspec.structs.replace(last, tier="disk", node_ids=(event.node_id, *elsewhere))


def _lies_here_too(last: Checkpoint | None, event: RunStarted) -> Checkpoint | None:
    if last is None or event.begun_from or (event.resumed_step, event.resumed_digest) != (last.step, last.digest):
        return last
    elsewhere = tuple(node_id for node_id in last.node_ids if node_id != event.node_id)
    return msgspec.structs.replace(last, node_ids=(*elsewhere, event.node_id))


def _gives_up(last: Checkpoint | None, event: RunRewound) -> bool:
    return last is None or (event.lost_step, event.lost_generation) == (last.step, last.generation)


def _instead(event: RunRewound) -> Checkpoint | None:
    if not event.generation:
        return None
    node_ids = (event.node_id,)
    return Checkpoint(generation=event.generation, step=event.step, digest=event.digest, node_ids=node_ids)


def _end_run(job: Job, event: RunEnded) -> bool:
    if not job.may_run(event.epoch, event.node_id):
        return False
    job.steps, job.run_steps = max(job.steps, event.steps), max(job.run_steps, event.loop_steps)
    job.samples = max(job.samples, event.samples)
    job.out_of_memory |= event.out_of_memory
    if event.metrics or event.diverged:
        known = {**job.metrics, **event.metrics}
        job.metrics = {name: value for name, value in known.items() if name not in event.diverged}
        job.diverged = event.diverged or job.diverged
    worse = SEVERITY[event.outcome] - SEVERITY[job.outcome]
    if worse > 0 or (worse == 0 and (event.killed or not job.killed)):  # the others failed for want of the killed one
        job.reason = event.reason
        job.exit_code = event.exit_code
    job.killed |= event.killed
    _leave_node(job, event.node_id, event.outcome, event.at_s)
    return True


def _leave_node(job: Job, node_id: str, outcome: Outcome, at_s: float) -> bool:
    job.open_nodes.discard(node_id)
    if SEVERITY[outcome] > SEVERITY[job.outcome]:
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
    job_state.prove(job)
    if job.timed_out and what != "completed" and job.state is JobState.PREEMPTING:
        what, job.reason = "timed_out", _time_is_over(job)
    elif what == "failed" and (spared := job_state.spared(job)):
        what = spared
    elif what == "failed":
        job.failures += 1
        if job.failures <= job.spec.retries and job.state is not JobState.COMPLETING:
            what = "retried"
            job.not_before_s = at_s + job.spec.backoff_s * 2.0 ** (job.failures - 1)
    elif what == "preempted":
        job.preemptions += 1
    elif what == "lost":
        job.reason = "its node was lost"
    job.move(what)
    if job.state is JobState.PENDING:
        job.pending_since_s = at_s
        if job.demand is not None:
            job_state.become(job, job.demand)
    else:
        job.finished_s, job.demand = at_s, None


def _cancel(job: Job, event: JobCancelled) -> bool:
    was_pending = job.state is JobState.PENDING
    if not job.move("cancel"):
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


def _unblock(job: Job, event: JobUnblocked) -> bool:
    if not job.blocked:
        return False
    job.blocked, job.unblocked_s = False, event.at_s
    return True


def _time_out(job: Job, event: JobTimedOut) -> bool:
    if job.timed_out or job.state in TERMINAL or job.state is JobState.COMPLETING:
        return False
    was_pending, job.timed_out = job.state is JobState.PENDING, True
    job.reason = _time_is_over(job)
    if was_pending:
        job.move("timed_out")
        job.waited_s += max(0.0, event.at_s - job.pending_since_s)
        job.finished_s = event.at_s
    else:
        job.move("preempt")  # one that is preempted for others already does not go on either
    return True


def _time_is_over(job: Job) -> str:
    return f"its time limit of {duration(job.limit_s)} is over"


def _set_time(job: Job, event: JobTimeSet) -> bool:
    changed = job.state not in TERMINAL and not job.timed_out and job.limit_s != event.limit_s
    if changed:
        job.limit_s = event.limit_s
    return changed


def _on_submitted(jobs: JobTable, event: JobSubmitted) -> list[Job]:
    return [_submit(jobs, event.job_id, event.spec, event.at_s)]


def _on_samples(jobs: JobTable, event: SamplesRequested) -> list[Job]:
    return [_submit_sample(jobs, event, sample) for sample in event.samples]


def enter(jobs: JobTable, job: Job, node_id: str, at_s: float) -> None:
    """Note that a sharing job's run is under way on a node."""
    there = jobs.sharers.setdefault(node_id, [])
    if job.id not in there:
        there.append(job.id)
        _divide(jobs, node_id, at_s)


def _on_started(jobs: JobTable, event: RunStarted) -> list[Job]:
    job = jobs.by_id.get(event.job_id)
    if job is None or not _start_run(job, event):
        return []
    if job.spec.sharing != "exclusive":
        enter(jobs, job, event.node_id, event.at_s)
    return [job]


def _on_ended(jobs: JobTable, event: RunEnded) -> list[Job]:
    job = jobs.by_id.get(event.job_id)
    if job is None or not _end_run(job, event):
        return []
    _leave_shared(jobs, [job], event.node_id, event.at_s)
    if event.parked and job.state is JobState.PENDING:
        job.parked = Parked(node_id=event.node_id, epoch=event.epoch, held_bytes=event.parked_bytes, since_s=event.at_s)
        jobs.parked.setdefault(event.node_id, []).append(job.id)
    return [job, *_refuse(jobs, job, event)] if event.refuses_user else [job]


def unpark(jobs: JobTable, job: Job) -> bool:
    """Note that no process of a job is parked any more; return whether one was."""
    if job.parked is None:
        return False
    there = jobs.parked[job.parked.node_id]
    there.remove(job.id)
    if not there:
        del jobs.parked[job.parked.node_id]
    job.parked = None
    return True


def _unpark_all(jobs: JobTable, node_id: str) -> list[Job]:
    """Note that no process is parked on a node any more: its executor has begun anew, or is gone."""
    return [job for job_id in list(jobs.parked.get(node_id, ())) if unpark(jobs, job := jobs.by_id[job_id])]


def _on_joined(jobs: JobTable, event: NodeJoined) -> list[Job]:
    """Fold a node's joining: it has another executor and other settings."""
    return [*_unpark_all(jobs, event.node_id), *_on_node(jobs, event)]


def _on_unparked(jobs: JobTable, event: RunUnparked) -> list[Job]:
    job = jobs.by_id.get(event.job_id)
    if job is None or job.parked is None or (job.parked.node_id, job.parked.epoch) != (event.node_id, event.epoch):
        return []
    unpark(jobs, job)
    return [job]


def _refuse(jobs: JobTable, job: Job, event: RunEnded) -> list[Job]:
    """Note that a node runs no jobs of a user; return the other jobs to which that matters."""
    jobs.refusals.setdefault(job.spec.user, {})[event.node_id] = event.at_s
    told = [
        one
        for one in jobs.not_over()
        if one.spec.user == job.spec.user and one.placement is None and event.node_id not in one.spec.refused_by
    ]
    for one in {id(each): each for each in (job, *told)}.values():
        if event.node_id not in one.spec.refused_by:
            one.spec = msgspec.structs.replace(one.spec, refused_by=(*one.spec.refused_by, event.node_id))
    return [one for one in told if one is not job]


def _on_node(jobs: JobTable, event: NodeJoined | NodeResumed) -> list[Job]:
    """Take back that a node refuses users: it has other settings now, or somebody says that it may be tried again."""
    node_id, touched = event.node_id, []
    users = {user for user, nodes in jobs.refusals.items() if nodes.pop(node_id, None) is not None}
    for job in jobs.not_over() if users else ():
        if node_id in job.spec.refused_by:
            left = tuple(one for one in job.spec.refused_by if one != node_id)
            job.spec = msgspec.structs.replace(job.spec, refused_by=left)
            touched.append(job)
    for user in users:
        if not jobs.refusals[user]:
            del jobs.refusals[user]
    return touched


def _on_scaled(jobs: JobTable, event: TrialsScaled | ScaleDecided) -> list[Job]:
    named = [(job, demand) for demand in event.demands if (job := jobs.by_id.get(demand.job_id)) is not None]
    return [job for job, demand in named if job_state.scale(job, demand)]


def _on_sized(jobs: JobTable, event: ScaleDecided) -> list[Job]:
    named = [job for job_id in event.dropped if (job := jobs.by_id.get(job_id)) is not None]
    return [*_on_scaled(jobs, event), *(job for job in named if job_state.drop(job, event.at_s))]


def _on_one(step: Callable[[Job, Any], bool]) -> Callable[[JobTable, Any], list[Job]]:
    """Return the fold of a fact about one job, of which a step says whether it has changed."""

    def fold(jobs: JobTable, event: Any) -> list[Job]:
        job = jobs.by_id.get(event.job_id)
        return [job] if job is not None and step(job, event) else []

    return fold


def _divide(jobs: JobTable, node_id: str, at_s: float) -> None:
    """Give each job with a run on a node its share, from now on."""
    there = [jobs[job_id] for job_id in jobs.sharers[node_id]]
    turns = Counter(at for job in there if job.spec.sharing == "lane" for at in _devices(job))
    for job in there:
        share = _share(job, turns, node_id)
        if share != job.share:
            job.forgone_s, job.share, job.share_since_s = job.forgone_by(at_s), share, at_s


def _share(job: Job, turns: Mapping[tuple[str, int], int], node_id: str) -> float:
    if job.spec.sharing == "fraction":
        return job.spec.fraction
    most = max((turns[at] for at in _devices(job) if at[0] == node_id), default=1)
    return 1.0 / max(1, most)


def _devices(job: Job) -> Iterable[tuple[str, int]]:
    slots = job.placement.slots if job.placement is not None else ()
    return ((slot.node_id, index) for slot in slots for index in slot.devices)


_FOLDS: Final[dict[type[Event], Callable[[JobTable, Any], list[Job]]]] = {
    JobSubmitted: _on_submitted,
    SamplesRequested: _on_samples,
    RoundDecided: _apply_round,
    RunStarted: _on_started,
    RunEnded: _on_ended,
    RunCheckpointed: _on_one(_checkpoint),
    RunRewound: _on_one(_rewind),
    RunUnparked: _on_unparked,
    NodeLeft: lambda jobs, event: _unpark_all(jobs, event.node_id),
    RunMeasured: _on_one(_measure),
    JobCancelled: _on_one(_cancel),
    JobHeld: _on_one(_hold),
    JobReleased: _on_one(_hold),
    JobUnblocked: _on_one(_unblock),
    JobTimedOut: _on_one(_time_out),
    JobTimeSet: _on_one(_set_time),
    TrialsScaled: _on_scaled,
    ScaleDecided: _on_sized,
    NodeJoined: _on_joined,
    NodeResumed: _on_node,
}
"""Kind of fact → its fold, which returns the jobs that it touched; other kinds change nothing in a job's life."""

OF_JOBS: Final[frozenset[type[Event]]] = frozenset(_FOLDS)
"""Kinds of facts that may change a job."""


def beside(jobs: JobTable, event: Event) -> list[Job]:
    """Return the jobs whose shares a folded fact has changed, by the start or the end of another job's run."""
    if not jobs.sharers or not isinstance(event, (RunStarted, RunEnded)):
        return []
    there = (jobs[job_id] for job_id in jobs.sharers.get(event.node_id, ()) if job_id != event.job_id)
    return [job for job in there if job.share_since_s == event.at_s]
