"""
That a job has ended, in words for the world: what the gateway announces, and nothing else of what it knows.

The gateway's own fold decides by it, and so does whoever wants these facts without the read model, such as a simulation
that writes a log.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_events import (
    TERMINAL,
    Event,
    Job,
    JobFinished,
    Jobs,
    JobsRanked,
    JobSubmitted,
    RunCheckpointed,
    RunStarted,
    RunWarned,
    lifecycle,
    subjects,
)

_ENDED: Final[dict[lifecycle.State, Literal["completed", "failed", "cancelled"]]] = {
    lifecycle.State.COMPLETED: "completed",
    lifecycle.State.FAILED: "failed",
    lifecycle.State.CANCELLED: "cancelled",
}


class State(msgspec.Struct):
    """
    The jobs whose end is not announced yet.

    Attributes
    ----------
    to_announce : dict of str to int
        Job id → sequence of the commit that ended it.
    """

    jobs: Jobs = msgspec.field(default_factory=Jobs)
    to_announce: dict[str, int] = msgspec.field(default_factory=dict)


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in."""
    if isinstance(event, JobFinished):
        state.to_announce.pop(event.job_id, None)
        state.jobs.forget(event.job_id)
        return
    for job in state.jobs.apply(event):
        if job.state not in TERMINAL:
            continue
        if job.sample is None:
            state.to_announce.setdefault(job.id, seq)
        else:
            state.jobs.forget(job.id)


def decide(state: State, now_s: float) -> Decision:  # noqa: ARG001 - all deciders are asked alike
    """Announce what has ended."""
    if not state.to_announce:
        return Decision()
    return Decision([announcement(state.jobs[job_id], seq) for job_id, seq in state.to_announce.items()])


def announcer() -> Decider[State]:
    """Return a decider that announces what the gateway would, as long as no sweep is cancelled."""
    return Decider(
        name="gateway",
        state=State,
        schema="announcer.v2",
        apply=apply,
        decide=decide,
        leads=False,
        ignores=frozenset({JobSubmitted, JobsRanked, RunStarted, RunCheckpointed, RunWarned, JobFinished}),
    )


def announcement(job: Job, cause: int) -> Proposal:
    """Return the announcement of a job's end, caused by a commit."""
    fact = JobFinished(
        at_s=job.finished_s,
        job_id=job.id,
        name=job.spec.name,
        state=_ENDED[job.state],
        submitted_s=job.submitted_s,
        reason=job.reason,
        exit_code=job.exit_code,
        run_s=job.executed_s,
        gpu_s=job.attained_gpu_s(job.finished_s),
        preemptions=job.preemptions,
        attempts=job.attempts,
        steps=job.steps,
        metrics=job.metrics,
        user=job.spec.user,
        parent=job.spec.parent,
    )
    return Proposal(subject=subjects.job(job.id), facts=(fact,), cause=cause)
