"""
Jobs that wait for other jobs or sweeps: when they may start, and when they never can.

A specification says in ``after`` what its job waits for, in Slurm's words (:data:`penstock_log.Dependency`). The fold
of all jobs knows such a job as blocked. :class:`Dependents` has what is to be looked at again when something moves on,
and :func:`proposals` decides: a job for which all has come is unblocked, one for which something can never come is
cancelled. The gateway does so by its read model, :func:`unblocker` by a state of its own, for simulations.
What is not known any more has come: it was there when the job was accepted, and what could not come was refused.

A job can only wait for what was submitted before it, so nothing waits in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_log import (
    TERMINAL,
    Event,
    Job,
    JobCancelled,
    JobSpec,
    JobSubmitted,
    JobTable,
    JobUnblocked,
    RunCheckpointed,
    RunStarted,
    SweepFinished,
    SweepSubmitted,
    lifecycle,
    subjects,
)
from penstock_log.job_state import ENDINGS, JobState
from penstock_log.text import listed

_WANTED: Final = {
    "after": "has started",
    "afterok": "has completed",
    "afterany": "has ended",
    "afternotok": "has failed or was cancelled",
}


class DependencyProgress(NamedTuple):
    """
    How far a job or a sweep has come.

    Attributes
    ----------
    started : bool
        Whether a run of it, or of one of a sweep's trials, has ever started.
    ended : str
        ``completed``, ``failed`` or ``cancelled``; empty while it goes on.
    """

    started: bool
    ended: str = ""


ProgressOf = Callable[[str], DependencyProgress | None]
"""Gives the progress of a job, a sweep or an array; None of what is not known."""


def progress_of_job(job: Job) -> DependencyProgress:
    """Return how far a job has come."""
    return DependencyProgress(job.first_started_s > 0, ENDINGS[job.state] if job.state in TERMINAL else "")


def progress_of_array(members: Iterable[DependencyProgress]) -> DependencyProgress:
    """
    Return how far an array has come, whose jobs have come so far: it has ended once all have, and failed if one has.

    Examples
    --------
    >>> progress_of_array([DependencyProgress(True, "completed"), DependencyProgress(True, "failed")]).ended
    'failed'
    >>> progress_of_array([DependencyProgress(True, "failed"), DependencyProgress(True)]).ended
    ''
    """
    found = [*members]
    endings = {one.ended for one in found}
    ended = next(how for how in ("", "failed", "cancelled", "completed") if how in endings)
    return DependencyProgress(any(one.started for one in found), ended)


def target_of(dependency: str) -> str:
    """
    Return the job or sweep that is waited for.

    Examples
    --------
    >>> target_of("afterok:j1")
    'j1'
    """
    return dependency.partition(":")[2]


def needs(spec: JobSpec) -> list[str]:
    """
    Return the jobs and sweeps that have to be there before a job is accepted.

    Examples
    --------
    >>> needs(JobSpec(name="a", command=("true",), after=("afterok:j1",), begins_from="j2"))
    ['j1', 'j2']
    """
    return [*map(target_of, spec.after), *([spec.begins_from] if spec.begins_from else [])]


def moved(job: Job) -> Iterator[str]:
    """Yield what has come further where a job has: itself, its sweep and its array."""
    yield job.id
    if job.spec.parent:
        yield job.spec.parent
    if job.spec.array is not None:
        yield job.spec.array.id


def moves(job: Job, event: Event) -> bool:
    """Say whether a fact that has changed a job may be what others wait for: it has started, or is over."""
    return isinstance(event, RunStarted) or job.state in TERMINAL


def has_come(dependency: str, progress: DependencyProgress | None) -> bool | None:
    """
    Say whether what is waited for has come; None if it still may.

    Examples
    --------
    >>> [has_come("afterok:j1", DependencyProgress(True, ended)) for ended in ("", "completed", "failed")]
    [None, True, False]
    """
    if progress is None:
        return True
    kind = dependency.partition(":")[0]
    if kind == "after" and (progress.started or progress.ended):
        return True
    if kind == "after" or not progress.ended:
        return None
    return kind == "afterany" or (progress.ended == "completed") is (kind == "afterok")


class Verdict(msgspec.Struct, frozen=True):
    """
    What is to become of a blocked job.

    Attributes
    ----------
    seq : int
        Sequence of the commit by which that is so.
    never : str
        Why it can never start; empty: it may.
    """

    seq: int
    never: str = ""


class Dependents(msgspec.Struct):
    """
    The blocked jobs, by what they wait for.

    Attributes
    ----------
    of : dict of str to dict of str to None
        Job or sweep → the blocked jobs that wait for it.
    left : dict of str to dict of str to None
        Blocked job → what of its ``after`` has not come.
    due : dict of str to Verdict
        Blocked job → what is to become of it.
    """

    of: dict[str, dict[str, None]] = msgspec.field(default_factory=dict)
    left: dict[str, dict[str, None]] = msgspec.field(default_factory=dict)
    due: dict[str, Verdict] = msgspec.field(default_factory=dict)

    def note(self, job: Job, progress_of: ProgressOf, seq: int) -> None:
        """Note that a job has come, or waits no more."""
        waits = job.blocked and job.state is JobState.PENDING
        if waits and job.id not in self.left:
            self.left[job.id] = dict.fromkeys(job.spec.after)
            for target in map(target_of, job.spec.after):
                self.of.setdefault(target, {})[job.id] = None
            for one in job.spec.after:
                self._look(job.id, one, progress_of, seq)
        elif not waits and job.id in self.left:
            self._drop(job)

    def follow(self, target: str, progress_of: ProgressOf, seq: int) -> None:
        """Look again at the jobs that wait for something which has started or ended."""
        for job_id in self.of.get(target, ()):
            for kind in _WANTED:
                if (one := f"{kind}:{target}") in self.left[job_id]:
                    self._look(job_id, one, progress_of, seq)

    def _look(self, job_id: str, one: str, progress_of: ProgressOf, seq: int) -> None:
        """Look at one thing that a job waits for; what was decided of the job stays."""
        if job_id in self.due:
            return
        comes = has_come(one, progress_of(target_of(one)))
        if comes:
            del self.left[job_id][one]
        if comes is False or not self.left[job_id]:
            self.due[job_id] = Verdict(seq, why_never([one], progress_of) if comes is False else "")

    def _drop(self, job: Job) -> None:
        self.due.pop(job.id, None)
        del self.left[job.id]
        for target in map(target_of, job.spec.after):
            waiting = self.of.get(target, {})
            waiting.pop(job.id, None)
            if not waiting:
                self.of.pop(target, None)


def proposals(dependents: Dependents, jobs: Callable[[str], Job | None], now_s: float) -> Iterator[Proposal]:
    """Yield what becomes of the blocked jobs for which all has come, or can never come."""
    for job_id, verdict in dependents.due.items():
        if (job := jobs(job_id)) is None:
            continue
        fact: JobCancelled | JobUnblocked = JobUnblocked(at_s=now_s, job_id=job_id, met=job.spec.after)
        if verdict.never:
            fact = JobCancelled(at_s=now_s, job_id=job_id, reason=verdict.never)
        yield Proposal(subject=subjects.job(job_id), facts=(fact,), cause=verdict.seq)


def why_never(after: Iterable[str], progress_of: ProgressOf) -> str:
    """Return in words why a job can never start; empty if it may."""
    for one in after:
        progress = progress_of(target_of(one))
        if progress is not None and has_come(one, progress) is False:
            target, wanted = target_of(one), _WANTED[one.partition(":")[0]]
            return f"it was to wait until {target} {wanted}, and {target} {_ended(progress.ended)}"
    return ""


def why_text(after: Iterable[str], progress_of: ProgressOf) -> str:
    """
    Return in words what a job still waits for.

    Examples
    --------
    >>> why_text(["afterok:j1"], lambda job_id: DependencyProgress(started=True))
    'it waits until j1 has completed (it has started)'
    """
    left = [one for one in after if not has_come(one, progress_of(target_of(one)))]
    return f"it waits until {listed([_one_text(one, progress_of) for one in left], nothing='the next decision')}"


def _one_text(dependency: str, progress_of: ProgressOf) -> str:
    target, wanted = target_of(dependency), _WANTED[dependency.partition(":")[0]]
    progress = progress_of(target)
    if progress is None:
        return f"{target} {wanted}"
    now = _ended(progress.ended) if progress.ended else "has started" if progress.started else "has not started"
    return f"{target} {wanted} (it {now})"


def _ended(how: str) -> str:
    return "was cancelled" if how == "cancelled" else f"has {how}"


def begin_text(begin_s: float) -> str:
    """
    Return in words before which time a job is not to begin.

    Examples
    --------
    >>> begin_text(1790000000.0)
    'not before 2026-09-21 14:13:20 UTC'
    """
    return f"not before {datetime.fromtimestamp(begin_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


class UnblockerState(msgspec.Struct):
    """
    What is to be known to unblock jobs.

    Attributes
    ----------
    jobs : JobTable
        The jobs that are not over.
    ended : dict of str to str
        Job or sweep that is over → how it ended.
    begun : dict of str to None
        The sweeps of which a trial has started, in the order in which they did.
    sweeps : dict of str to None
        All sweeps that were submitted, in order.
    members : dict of str to list of str
        Array → its jobs.
    dependents : Dependents
        The jobs that wait for others.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    ended: dict[str, str] = msgspec.field(default_factory=dict)
    begun: dict[str, None] = msgspec.field(default_factory=dict)
    sweeps: dict[str, None] = msgspec.field(default_factory=dict)
    members: dict[str, list[str]] = msgspec.field(default_factory=dict)
    dependents: Dependents = msgspec.field(default_factory=Dependents)

    def progress_of(self, entity_id: str) -> DependencyProgress | None:
        """Return how far a job, a sweep or an array has come; None of what is not there."""
        if (job := self.jobs.get(entity_id)) is not None:
            return progress_of_job(job)
        if entity_id not in self.ended and entity_id not in self.sweeps:
            if (members := self.members.get(entity_id)) is None:
                return None
            return progress_of_array(one for job_id in members if (one := self.progress_of(job_id)) is not None)
        return DependencyProgress(entity_id in self.begun, self.ended.get(entity_id, ""))


def unblocker() -> Decider[UnblockerState]:
    """Return a decider that unblocks jobs as the gateway does."""
    return Decider(
        name="gateway",  # it writes about the gateway's entities
        state=UnblockerState,
        schema="unblocker.v5",
        apply=_apply,
        decide=_decide,
        leads=False,
        reads=lifecycle.OF_JOBS | {SweepSubmitted, SweepFinished},
        ignores=frozenset({RunCheckpointed}),
    )


def _apply(state: UnblockerState, event: Event, seq: int) -> None:
    further: list[str] = []
    if isinstance(event, SweepSubmitted):
        state.sweeps[event.sweep_id] = None
    elif isinstance(event, SweepFinished):
        state.ended[event.sweep_id] = event.state
        further.append(event.sweep_id)
    for job in state.jobs.apply(event):
        if isinstance(event, JobSubmitted) and job.spec.array is not None:
            state.members.setdefault(job.spec.array.id, []).append(job.id)
        if isinstance(event, RunStarted) and job.spec.parent:
            state.begun[job.spec.parent] = None
        if job.spec.after:
            state.dependents.note(job, state.progress_of, seq)
        if moves(job, event):
            further += moved(job)
        if job.state in TERMINAL:
            state.ended[job.id] = ENDINGS[job.state]
            state.jobs.forget(job.id)
    for target in further if state.dependents.of else ():
        state.dependents.follow(target, state.progress_of, seq)


def _decide(state: UnblockerState, now_s: float) -> Decision:
    return Decision(list(proposals(state.dependents, state.jobs.get, now_s)))
