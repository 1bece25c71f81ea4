"""
What the gateway does about runs that hold devices and do nothing.

Executors say of each node when a run is idle there (:class:`penstock_log.RunIdle`). A run is idle once it is so on all
of its nodes. :func:`stops` decides by the rule of its pool, :func:`why_text` says what is to come.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock_bus import Proposal
from penstock_log import Job, JobCancelled, JobTable, RunIdle, Setting, subjects
from penstock_log.text import count, duration
from penstock_policies.idleness import MEASURES, IdleRules, IdleRun


def stops(
    idle: Mapping[str, IdleRun], jobs: JobTable, policies: Mapping[str, Mapping[str, Setting]], now_s: float
) -> tuple[list[Proposal], float | None]:
    """Return the cancellations that are due by the rules of the pools, and when the next one is."""
    proposals: list[Proposal] = []
    later: list[float] = []
    for job_id, run in idle.items():
        job = jobs[job_id]
        rules = IdleRules.of(policies.get(job.spec.pool, {}))
        since_s = run.idle_since_s(job)
        due_s = rules.due_s(since_s) if since_s is not None else None
        if due_s is None or since_s is None or rules.idle_action != "stop":
            continue
        if due_s > now_s:
            later.append(due_s)
            continue
        reason = f"{run.found(now_s - since_s)}; pool {job.spec.pool} stops such runs"
        fact = JobCancelled(at_s=now_s, job_id=job_id, reason=reason)
        proposals.append(Proposal(subject=subjects.job(job_id), facts=(fact,)))
    return proposals, min(later, default=None)


def measured(event: RunIdle) -> str:
    """
    Return what a node measured, in a sentence.

    Examples
    --------
    >>> measured(RunIdle(at_s=130.0, job_id="j", epoch=1, node_id="n1", since_s=10.0))
    'idle on n1 for 2 min 0 s: no iteration was done'
    """
    return f"idle on {event.node_id} for {duration(event.at_s - event.since_s)}: {MEASURES[event.measure]}"


def why_text(run: IdleRun | None, job: Job, policies: Mapping[str, Mapping[str, Setting]], now_s: float) -> str:
    """Return in words for how long a running job has been idle and what its pool does about it; empty if it works."""
    since_s = run.idle_since_s(job) if run is not None and run.is_of(job) else None
    if run is None or since_s is None:
        return ""
    text = f"; it has been idle for {duration(max(0.0, now_s - since_s))} ({MEASURES[run.measure]})"
    rules = IdleRules.of(policies.get(job.spec.pool, {}))
    due_s = rules.due_s(since_s)
    if due_s is None:
        return text
    if rules.idle_action == "shrink":
        return f"{text}{_shrinks(job, due_s - now_s)}"
    return f"{text} and will be stopped {f'in {duration(due_s - now_s)}' if due_s > now_s else 'now'}"


def _shrinks(job: Job, left_s: float) -> str:
    """Return in words what a pool that takes devices from idle runs does about one."""
    least = job.spec.least_gpus
    if job.spec.max_gpus <= 0 or job.sample is not None:
        return "; its pool takes devices from such runs, and leaves it alone: it is not elastic"
    if job.spec.gpus <= least:
        return (
            f"; its pool takes devices from such runs, and leaves it {count(least, 'device')}, the fewest it may have"
        )
    when = f"in {duration(left_s)}" if left_s > 0 else "as soon as it can be resized"
    return f" and will shrink from {job.spec.gpus} to {count(least, 'device')} {when}"
