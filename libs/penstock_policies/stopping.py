"""
What it costs to stop a run and to resume it later, measured for each workload from the ends of its runs.

=============  =======================================================================================================
``stop_s``     From the round that asks a run to stop until its devices are free: its last step, saving, leaving.
``resume_s``   Of a run, what was neither its loop nor its stopping: starting, loading a checkpoint; where it was not
               asked to stop, leaving as well.
``redo_s``     Of a preempted run, what was not kept and has to be done again: the steps behind what it saved, or all
               of a run without a loop.
=============  =======================================================================================================

Each is a moving average in which the last run counts half. What a workload has not shown costs nothing yet. Of a gang
on several nodes, the node of its first process tells: the others know nothing of the loop.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_events import Job, RunEnded

WORKLOADS: Final = 4096
"""Workloads whose costs are remembered."""


class Cost(msgspec.Struct, frozen=True):
    """
    What one preemption of a run of some workload costs, as measured; None where nothing has been.

    Attributes
    ----------
    saves : bool
        Asked to stop, it saves what it has done: a script with a session does, unless it has been seen not to.
    """

    stop_s: float | None = None
    resume_s: float | None = None
    redo_s: float | None = None
    saves: bool = False

    @property
    def switch_s(self) -> float:
        """Seconds in which the devices of a run that is stopped and resumed do not advance it."""
        return (self.stop_s or 0.0) + (self.resume_s or 0.0)

    @property
    def overhead_s(self) -> float:
        """The same, and what is done again."""
        return self.switch_s + (self.redo_s or 0.0)

    def lost_s(self, job: Job, now_s: float) -> float:
        """Return the seconds of the present run that stopping it now would lose: those since its last checkpoint."""
        return 0.0 if self.saves or not job.started_s else job.unsaved_by(now_s)


class Costs(msgspec.Struct):
    """
    What is known of all workloads.

    Attributes
    ----------
    by_key : dict of str to Cost
        Workload key → cost; the one measured last comes last.
    asked_s : dict of str to float
        Job → when its present run was asked to stop.
    """

    by_key: dict[str, Cost] = msgspec.field(default_factory=dict)
    asked_s: dict[str, float] = msgspec.field(default_factory=dict)

    def of(self, key: str) -> Cost:
        """Return what is known of a workload."""
        return self.by_key.get(key, _UNKNOWN)

    def ask(self, job_id: str, at_s: float) -> None:
        """Note that a run is to stop."""
        self.asked_s.setdefault(job_id, at_s)

    def end(self, job: Job, key: str, event: RunEnded) -> None:
        """Learn from the end of a run on one node; ``job`` is as it was before it."""
        preempted = event.outcome == "preempted"
        if event.outcome == "lost" or not (event.loop_steps or preempted) or not _leads(job, event.node_id):
            return
        before = self.by_key.pop(key, _UNKNOWN)
        self.by_key[key] = self._preempted(before, job, event) if preempted else _finished(before, job, event)
        if len(self.by_key) > WORKLOADS:
            del self.by_key[next(iter(self.by_key))]

    def forget(self, job_id: str) -> None:
        """Note that no run of the job is there any more."""
        self.asked_s.pop(job_id, None)

    def _preempted(self, before: Cost, job: Job, event: RunEnded) -> Cost:
        asked_s = self.asked_s.get(job.id)
        run_s = max(0.0, event.at_s - job.started_s)
        stop_s = None if asked_s is None else min(run_s, max(0.0, event.at_s - asked_s))
        if not event.loop_steps:  # nothing of it was kept; one that only started up shows nothing about saving
            return Cost(_mean(before.stop_s, stop_s), before.resume_s, _mean(before.redo_s, run_s), before.saves)
        behind = min(event.loop_steps, max(0, job.resumed_step + event.loop_steps - event.steps))
        return Cost(
            stop_s=_mean(before.stop_s, stop_s),
            resume_s=_mean(before.resume_s, max(0.0, run_s - event.loop_s - (stop_s or 0.0))),
            redo_s=_mean(before.redo_s, event.loop_s * behind / event.loop_steps),
            saves=behind == 0,
        )


def _leads(job: Job, node_id: str) -> bool:
    """Say whether the first process of a run is on this node."""
    return job.placement is not None and job.placement.slots[0].node_id == node_id


def _finished(before: Cost, job: Job, event: RunEnded) -> Cost:
    resume_s = max(0.0, event.at_s - job.started_s - event.loop_s)
    saves = before.saves or before.redo_s is None
    return Cost(before.stop_s, _mean(before.resume_s, resume_s), before.redo_s, saves)


def _mean(before_s: float | None, seen_s: float | None) -> float | None:
    if before_s is None or seen_s is None:
        return before_s if seen_s is None else seen_s
    return (before_s + seen_s) / 2


_UNKNOWN: Final = Cost()
