"""One sweep, as the tuner decides on it: trials opened, accepted, over and reported, and the best."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from penstock_log import (
    Job,
    JobState,
    RunEnded,
    SweepFinished,
    SweepSpec,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    TrialsMeasured,
    workload,
)
from penstock_log.decision_facts import Problem
from penstock_log.job_state import ENDINGS
from penstock_log.records import compose
from penstock_log.text import gibibytes
from penstock_policies import search
from penstock_policies.search import RunHistory, WantedRun
from penstock_tuner.trial_speed import TrialMeasures, TrialSpeeds

Ending = Literal["completed", "failed", "cancelled"]

_ENDS: Final[dict[Problem, str]] = {
    "crashed": "crashed",
    "diverged": "diverged",
    "no_report": "without a report of it",
    "refused": "refused",
}


_MEASURED: Final = ("alpha", "beta", "packing", "widest", "overhead_s")
_NEWS: Final = 0.05


class EndedTrial(msgspec.Struct, frozen=True):
    """How a trial's job ended, before it is reported."""

    trial: Trial
    state: Ending
    value: float | None = None
    problem: Problem = ""
    reason: str = ""


class SweepState(msgspec.Struct, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    groups : int
        The number of groups that have been opened.
    past : RunHistory
        The runs that the search has tried.
    job_ids : list of str
        Job ids of the runs in ``past``, in its order.
    numbers : dict of str to int
        Job id → position in ``job_ids``.
    running : dict of str to Trial
        Job id → trial, of opened trials that are not over.
    ended : dict of str to EndedTrial
        Trials that are over but not reported.
    to_retry : dict of str to str
        Job id → reason, of trials that have exceeded their memory beside others and run once more.
    exceeded : dict of str to str
        Job id of a trial whose run has failed for want of memory → what it asked for and what it used.
    speeds : TrialSpeeds
        The speeds that its trials have shown.
    last_report : TrialsMeasured or None
        The last fact about these speeds.
    reported : dict of str to int
        How trials ended, in words → number of reported trials.
    seen_metrics : set of str
        Metrics of completed trials, for the message if no trial reported the right one.
    refusal : str
        The last trial that never ran, or gave no value, with the reason.
    best_budget : int
        Budget of the best trial: a trial that trained longer is preferred.
    cause : int
        Sequence of the last fact that mattered.
    """

    id: str
    spec: SweepSpec
    groups: int = 0
    past: RunHistory = msgspec.field(default_factory=RunHistory)
    job_ids: list[str] = msgspec.field(default_factory=list)
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    running: dict[str, Trial] = msgspec.field(default_factory=dict)
    ended: dict[str, EndedTrial] = msgspec.field(default_factory=dict)
    to_retry: dict[str, str] = msgspec.field(default_factory=dict)
    exceeded: dict[str, str] = msgspec.field(default_factory=dict)
    speeds: TrialSpeeds = msgspec.field(default_factory=TrialSpeeds)
    last_report: TrialsMeasured | None = None
    reported: dict[str, int] = msgspec.field(default_factory=dict)
    seen_metrics: set[str] = msgspec.field(default_factory=set)
    refusal: str = ""
    best_job_id: str = ""
    best_value: float | None = None
    best_budget: int = 0
    cancelled: bool = False
    cause: int = 0

    @property
    def measures(self) -> TrialMeasures:
        """What the trials of this sweep and of earlier ones have shown of their workload."""
        return self.speeds.measures

    def units(self, trial: Trial) -> float:
        """Return what a run adds to its trial's training, in units of the budget; 1 if the sweep has no budget."""
        origin = self.numbers.get(trial.origin, -1)
        before = self.past.runs[origin].budget if origin >= 0 else 0
        return float(max(0, trial.budget - before)) if self.spec.budget is not None else 1.0

    def new_measures(self, now_s: float) -> tuple[TrialsMeasured, ...]:
        """Return what the trials have shown, if it differs from the last report by more than a few per cent."""
        fresh = self.measures.as_fact(self.id, workload.key(self.spec.job), now_s)
        before = self.last_report
        pairs = [(getattr(fresh, name), getattr(before, name, 0)) for name in _MEASURED]
        return () if all(math.isclose(now, then, rel_tol=_NEWS) for now, then in pairs) else (fresh,)

    def open(self, event: TrialGroupOpened) -> list[str]:
        """Note a group's trials; return the ids of those that are new."""
        if event.group != self.groups:
            return []
        self.groups += 1
        for trial in event.trials:
            self._open(trial)
        return [trial.job_id for trial in event.trials]

    def end(self, job: Job) -> None:
        """Note that a trial's job is over."""
        trial = self.running.get(job.id)
        if trial is None:
            return
        exceeded = self.exceeded.pop(job.id, "") if job.state is JobState.FAILED else ""
        shared = job.spec.sharing != "exclusive"
        if exceeded and shared and self.spec.on_memory == "retry" and not self.cancelled:
            self.to_retry[job.id] = exceeded
        else:
            self._end(trial, job, exceeded)
        self.speeds.forget(job.id)

    def note_run(self, job: Job, event: RunEnded) -> None:
        """Note whether a trial's run has failed for want of memory."""
        if not event.out_of_memory:
            return
        asked_bytes = job.spec.memory.alone_bytes if job.spec.memory is not None else event.cap_bytes
        asked = f"asked {gibibytes(asked_bytes)}" if asked_bytes else "asked a whole device"
        held = f"used {gibibytes(event.peak_memory_bytes)}" if event.peak_memory_bytes else ""
        used = held if event.peak_memory_bytes > asked_bytes else " and ".join(filter(None, (held, "wanted more")))
        self.exceeded[job.id] = f"trial exceeded its memory: {asked}, {used}; {event.reason}"

    def retry(self, event: TrialRetried) -> bool:
        """Note that a trial runs as another job; return whether it was waiting to."""
        if self.to_retry.pop(event.job_id, None) is None or self.running.pop(event.job_id, None) is None:
            return False
        self.running[event.trial.job_id] = event.trial
        if (number := self.numbers.pop(event.job_id, None)) is not None:
            self.numbers[event.trial.job_id] = number
            self.job_ids[number] = event.trial.job_id
        return True

    def _end(self, trial: Trial, job: Job, exceeded: str) -> None:
        value, problem = self._outcome(job)
        reason = job.reason if problem else ""
        if exceeded:
            problem, reason = "memory", exceeded
        self.drop(job.id, ENDINGS[job.state], value, problem, reason)
        if job.state is JobState.COMPLETED:
            self.seen_metrics.update(job.metrics)
            self.speeds.end(trial, self.units(trial), job.executed_s)

    def drop(
        self, job_id: str, state: Ending, value: float | None = None, problem: Problem = "", reason: str = ""
    ) -> None:
        """Note that a trial is over, and how."""
        trial = self.running.pop(job_id, None)
        if trial is not None:
            self.ended[job_id] = EndedTrial(trial, state, value, problem, reason)

    def report(self, event: TrialFinished) -> bool:
        """
        Note that a trial's end was reported; return whether the trial was open.

        Only a completed trial can be the best; of equal ones it is the first.
        """
        ended = self.ended.pop(event.job_id, None)
        trial = ended.trial if ended is not None else self.running.pop(event.job_id, None)
        if trial is None:
            return False
        how = _ENDS.get(event.problem, event.state)
        self.reported[how] = self.reported.get(how, 0) + 1
        value = event.value if event.state == "completed" else None
        self.past.end(self.numbers.get(event.job_id, -1), value)
        if event.reason:
            self.refusal = f"; {event.job_id}: {event.reason}"
        if value is not None and self._beats(value, trial.budget):
            self.best_job_id, self.best_value, self.best_budget = event.job_id, value, trial.budget
        return True

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

    def _open(self, trial: Trial) -> None:
        self.running[trial.job_id] = trial
        if not _looks_back(self.spec):
            self.past.count()
            return
        self.past.open(compose(WantedRun, trial, trial=trial.number, origin=self.numbers.get(trial.origin, -1)))
        self.numbers[trial.job_id] = len(self.job_ids)
        self.job_ids.append(trial.job_id)

    def _outcome(self, job: Job) -> tuple[float | None, Problem]:
        value = job.metrics.get(self.spec.metric)
        usable = value is not None and math.isfinite(value)
        if job.state is not JobState.COMPLETED:
            return value if usable else None, "crashed" if job.state is JobState.FAILED else ""
        if value is None:
            return None, "diverged" if self.spec.metric in job.diverged else "no_report"
        return (value, "") if usable else (None, "diverged")

    def _beats(self, value: float, budget: int) -> bool:
        if self.best_value is None or budget != self.best_budget:
            return self.best_value is None or budget > self.best_budget
        return value > self.best_value if self.spec.mode == "max" else value < self.best_value

    def _why_no_best(self) -> str:
        ends = ", ".join(f"{count} {how}" for how, count in sorted(self.reported.items()))
        instead = f"; completed trials reported {', '.join(sorted(self.seen_metrics))}" if self.seen_metrics else ""
        if _ENDS["no_report"] in self.reported:
            instead += f"; expected `session.report({self.spec.metric}=...)` in the script"
        return f"no trial gave a finite {self.spec.metric!r} ({ends}){instead}{self.refusal}"


def _looks_back(spec: SweepSpec) -> bool:
    try:
        return search.algorithm(spec).looks_back
    except search.BadSpace:  # of a library that is not installed here: deciding will say so
        return True
