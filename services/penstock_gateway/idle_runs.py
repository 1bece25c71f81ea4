"""
Runs that hold devices and do nothing, and when they are stopped.

Executors say of each node when a run is idle there (:class:`penstock_log.RunIdle`). A run is idle once it is so on all
of its nodes. :func:`stops` decides by the rule of its pool, :func:`why_text` says what is to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock_bus import Proposal
from penstock_log import Job, JobCancelled, JobTable, RunBusyAgain, RunIdle, Setting, subjects
from penstock_log.job_state import JobState
from penstock_log.text import duration
from penstock_policies.idleness import IdleRules

_MEASURES: Final = {
    "iterations": "no iteration was done",
    "processor": "its devices were not used, and almost no processor time was",
}


class IdleRun(msgspec.Struct, kw_only=True):
    """
    A run that is idle on some of its nodes.

    Attributes
    ----------
    since_s : dict of str to float
        Node → since when.
    measure : str
        By what, as the last node said.
    """

    epoch: int
    since_s: dict[str, float] = msgspec.field(default_factory=dict)
    measure: str = "iterations"

    def is_of(self, job: Job) -> bool:
        """Say whether it is the job's present run."""
        return job.placement is not None and job.epoch == self.epoch

    def idle_since_s(self, job: Job) -> float | None:
        """Return since when the whole run has been idle; None where it works on a node."""
        if job.state is not JobState.RUNNING or not job.open_nodes or not job.open_nodes <= self.since_s.keys():
            return None
        return max(self.since_s[node_id] for node_id in job.open_nodes)


def note_idle(idle: dict[str, IdleRun], event: RunIdle) -> None:
    """Note that a run is idle on a node."""
    run = idle.get(event.job_id)
    if run is None or run.epoch != event.epoch:
        run = idle[event.job_id] = IdleRun(epoch=event.epoch)
    run.since_s[event.node_id], run.measure = event.since_s, event.measure


def note_busy(idle: dict[str, IdleRun], event: RunBusyAgain) -> None:
    """Note that a run works again on a node."""
    run = idle.get(event.job_id)
    if run is not None and run.epoch == event.epoch:
        run.since_s.pop(event.node_id, None)
        if not run.since_s:
            del idle[event.job_id]


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
        if due_s is None or since_s is None:
            continue
        if due_s > now_s:
            later.append(due_s)
            continue
        reason = f"idle for {duration(now_s - since_s)}: {_MEASURES[run.measure]}; pool {job.spec.pool} stops such runs"
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
    return f"idle on {event.node_id} for {duration(event.at_s - event.since_s)}: {_MEASURES[event.measure]}"


def why_text(run: IdleRun | None, job: Job, policies: Mapping[str, Mapping[str, Setting]], now_s: float) -> str:
    """Return in words for how long a running job has been idle and what its pool does about it; empty if it works."""
    since_s = run.idle_since_s(job) if run is not None and run.is_of(job) else None
    if run is None or since_s is None:
        return ""
    text = f"; it has been idle for {duration(max(0.0, now_s - since_s))} ({_MEASURES[run.measure]})"
    due_s = IdleRules.of(policies.get(job.spec.pool, {})).due_s(since_s)
    if due_s is None:
        return text
    return f"{text} and will be stopped {f'in {duration(due_s - now_s)}' if due_s > now_s else 'now'}"
