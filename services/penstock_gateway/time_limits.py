"""
Time limits of jobs: how long a job may run, over all of its runs, and when that is over.

Waiting does not count. A run that reaches the limit is stopped as a preempted one is: it is asked to save a checkpoint
and leave, then gets TERM, then KILL, with the job's ``grace_s`` between them. Then the job has failed, whatever retries
it has left, unless it ends well in that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock_bus import Proposal
from penstock_log import TERMINAL, Job, JobState, JobTimedOut, subjects
from penstock_log.text import duration

_SOON_S = 0.001
"""What two clocks, and sums of floats, may differ by."""


def due_s(job: Job) -> float | None:
    """Return when the time of a job is over, if it goes on as it does now; None where it has all the time."""
    if not job.limit_s or job.timed_out or job.state in TERMINAL or job.state is JobState.COMPLETING:
        return None
    if (at_s := job.runs_out_s) is not None:
        return at_s
    is_over = job.limit_s - job.executed_s <= _SOON_S
    return job.pending_since_s if is_over and job.placement is None else None


def note(due: dict[str, float], job: Job) -> None:
    """Note when the time of a job is over, after it has changed."""
    if not job.limit_s or (at_s := due_s(job)) is None:
        due.pop(job.id, None)
    else:
        due[job.id] = at_s


def proposals(
    due: Mapping[str, float], jobs: Callable[[str], Job | None], now_s: float
) -> tuple[list[Proposal], float | None]:
    """Return the ends of jobs whose time is over, and when the next one's is."""
    over = [job for job_id, at_s in due.items() if at_s <= now_s and (job := jobs(job_id)) is not None]
    facts = [
        JobTimedOut(at_s=now_s, job_id=job.id, limit_s=job.limit_s, executed_s=job.executed_by(now_s)) for job in over
    ]
    found = [Proposal(subject=subjects.job(fact.job_id), facts=(fact,)) for fact in facts]
    return found, min((at_s for at_s in due.values() if at_s > now_s), default=None)


def why_text(job: Job, now_s: float) -> str:
    """Return in words when the time of a running job is over; empty where it has no limit."""
    at_s = due_s(job)
    if at_s is None:
        return ""
    left = f"in {duration(at_s - now_s)}" if at_s > now_s else "now"
    return f"; its time limit of {duration(job.limit_s)} ends it {left}"
