"""One sweep as the log has it so far: trials opened, accepted, over and reported, and the best."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from penstock_events import Job, State, SweepFinished, SweepSpec, Trial, TrialFinished, TrialGroupOpened

Ending = Literal["completed", "failed", "cancelled"]
ENDINGS: Final[dict[State, Ending]] = {
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


class Ended(msgspec.Struct, frozen=True):
    """How a trial's job ended, before it is reported."""

    state: Ending
    value: float | None = None


class Sweep(msgspec.Struct, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    groups : int
        How many have been opened.
    opened : int
        Trials in them.
    running : dict of str to Trial
        Opened trials that are not over, by job id.
    ended : dict of str to Ended
        Trials that are over but not reported.
    reported : dict of str to int
        Reported trials by how they ended.
    seen_metrics : set of str
        What completed trials reported, for the message where none reported the right one.
    refusal : str
        The last trial that the gateway refused, and why.
    cause : int
        Sequence of the last fact that mattered.
    """

    id: str
    spec: SweepSpec
    groups: int = 0
    opened: int = 0
    running: dict[str, Trial] = msgspec.field(default_factory=dict)
    ended: dict[str, Ended] = msgspec.field(default_factory=dict)
    reported: dict[str, int] = msgspec.field(default_factory=dict)
    seen_metrics: set[str] = msgspec.field(default_factory=set)
    refusal: str = ""
    best_job_id: str = ""
    best_value: float | None = None
    cancelled: bool = False
    cause: int = 0

    def open(self, event: TrialGroupOpened) -> list[str]:
        """Note a group's trials; return the ids of those that are new."""
        if event.group != self.groups:
            return []
        self.groups += 1
        self.opened += len(event.trials)
        self.running.update({trial.job_id: trial for trial in event.trials})
        return [trial.job_id for trial in event.trials]

    def end(self, job: Job) -> None:
        """Note that a trial's job is over."""
        value = job.metrics.get(self.spec.metric)
        usable = value is not None and math.isfinite(value)
        self.drop(job.id, Ended(ENDINGS[job.state], value if usable else None))
        if job.state is State.COMPLETED:
            self.seen_metrics.update(job.metrics)

    def drop(self, job_id: str, ended: Ended) -> None:
        """Note that a trial is over in this way."""
        if self.running.pop(job_id, None) is not None:
            self.ended[job_id] = ended

    def report(self, event: TrialFinished) -> None:
        """Note that a trial's end was reported; only completed ones can be the best, the first of equal ones is."""
        self.running.pop(event.job_id, None)
        self.ended.pop(event.job_id, None)
        self.reported[event.state] = self.reported.get(event.state, 0) + 1
        if event.reason:
            self.refusal = f"; {event.job_id}: {event.reason}"
        if event.state == "completed" and event.value is not None and self._beats(event.value):
            self.best_job_id, self.best_value = event.job_id, event.value

    def finish(self, now_s: float) -> SweepFinished:
        """Return the end of a sweep all of whose trials are reported."""
        state: Ending = "completed"
        if self.cancelled:
            state = "cancelled"
        elif self.best_value is None:
            state = "failed"
        return SweepFinished(
            at_s=now_s,
            sweep_id=self.id,
            state=state,
            best_job_id=self.best_job_id,
            best_value=self.best_value,
            reason=self._why_no_best() if state == "failed" else "",
        )

    def _beats(self, value: float) -> bool:
        if self.best_value is None:
            return True
        return value > self.best_value if self.spec.mode == "max" else value < self.best_value

    def _why_no_best(self) -> str:
        ends = ", ".join(f"{count} {state}" for state, count in sorted(self.reported.items()))
        instead = f"; completed trials reported {', '.join(sorted(self.seen_metrics))}" if self.seen_metrics else ""
        return f"no completed trial reported {self.spec.metric!r} ({ends}){instead}{self.refusal}"
