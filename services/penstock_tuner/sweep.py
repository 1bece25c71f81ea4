"""One sweep as the log has it so far: trials opened, accepted, over and reported, and the best."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from penstock_events import Job, State, SweepFinished, SweepSpec, Trial, TrialFinished, TrialGroupOpened
from penstock_events.sweep import Problem
from penstock_policies import search
from penstock_policies.search import Past, Wanted

Ending = Literal["completed", "failed", "cancelled"]
ENDINGS: Final[dict[State, Ending]] = {
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
_STEEPEST: Final = math.log(10.0)  # of the penalties believed: what is measured of loops of microseconds is noise
_LEAST: Final = 1e-9


class Ended(msgspec.Struct, frozen=True):
    """How a trial's job ended, before it is reported."""

    trial: Trial
    state: Ending
    value: float | None = None
    problem: Problem = ""
    reason: str = ""


class Sweep(msgspec.Struct, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    groups : int
        How many have been opened.
    past : Past
        What the search has tried.
    job_ids : list of str
        Of the runs in ``past``, in its order.
    numbers : dict of str to int
        The same, the other way round.
    running : dict of str to Trial
        Opened trials that are not over, by job id.
    ended : dict of str to Ended
        Trials that are over but not reported.
    loop_s : dict of str to float
        Job id of a run on its way → seconds that it was in its loop, over all of its job's runs.
    unit_s : dict of str to float
        Job id of a run → seconds that it took for one unit of its budget, on the devices that it had.
    gpus : dict of str to int
        Job id of such a run → its devices.
    spread_xx, spread_xy : float
        Sums over the runs that were seen on one device and on several, for :attr:`beta`.
    reported : dict of str to int
        Reported trials by how they ended.
    seen_metrics : set of str
        What completed trials reported, for the message where none reported the right one.
    refusal : str
        The last trial that never ran, or gave no value, with the reason.
    best_budget : int
        Of the best trial: whoever trained longer is preferred.
    cause : int
        Sequence of the last fact that mattered.
    """

    id: str
    spec: SweepSpec
    groups: int = 0
    past: Past = msgspec.field(default_factory=Past)
    job_ids: list[str] = msgspec.field(default_factory=list)
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    running: dict[str, Trial] = msgspec.field(default_factory=dict)
    ended: dict[str, Ended] = msgspec.field(default_factory=dict)
    loop_s: dict[str, float] = msgspec.field(default_factory=dict)
    unit_s: dict[str, float] = msgspec.field(default_factory=dict)
    gpus: dict[str, int] = msgspec.field(default_factory=dict)
    spread_xx: float = 0.0
    spread_xy: float = 0.0
    reported: dict[str, int] = msgspec.field(default_factory=dict)
    seen_metrics: set[str] = msgspec.field(default_factory=set)
    refusal: str = ""
    best_job_id: str = ""
    best_value: float | None = None
    best_budget: int = 0
    cancelled: bool = False
    cause: int = 0

    @property
    def beta(self) -> float:
        """The penalty of scaling out, as measured on trials that ran on one device and then on several; else 1."""
        if not self.spread_xx:
            return 1.0
        return math.exp(min(max(0.0, self.spread_xy / self.spread_xx), _STEEPEST))

    def work_s(self, job_id: str) -> float | None:
        """Return the seconds that one unit of a run's budget would take on one device; None where it is not known."""
        unit_s = self.unit_s.get(job_id)
        width = self.gpus.get(job_id, 1)
        if unit_s is None:
            return None
        return unit_s * width * max(_LEAST, math.exp(-(width - 1) * math.log(self.beta)))

    def open(self, event: TrialGroupOpened) -> list[str]:
        """Note a group's trials; return the ids of those that are new."""
        if event.group != self.groups:
            return []
        self.groups += 1
        for trial in event.trials:
            self._open(trial)
        return [trial.job_id for trial in event.trials]

    def note_loop(self, job_id: str, loop_s: float) -> None:
        """Note that a run of a trial's job was in its loop for so long; of a gang, only one node says so."""
        self.loop_s[job_id] = self.loop_s.get(job_id, 0.0) + loop_s

    def end(self, job: Job) -> None:
        """Note that a trial's job is over."""
        trial = self.running.get(job.id)
        if trial is None:
            return
        value, problem = self._outcome(job)
        self.drop(job.id, ENDINGS[job.state], value, problem, job.reason if problem else "")
        loop_s = self.loop_s.pop(job.id, 0.0)
        if job.state is State.COMPLETED:
            self.seen_metrics.update(job.metrics)
            self._measure(trial, loop_s or job.executed_s)

    def drop(
        self, job_id: str, state: Ending, value: float | None = None, problem: Problem = "", reason: str = ""
    ) -> None:
        """Note that a trial is over in this way."""
        trial = self.running.pop(job_id, None)
        if trial is not None:
            self.ended[job_id] = Ended(trial, state, value, problem, reason)

    def report(self, event: TrialFinished) -> None:
        """Note that a trial's end was reported; only completed ones can be the best, the first of equal ones is."""
        ended = self.ended.pop(event.job_id, None)
        trial = ended.trial if ended is not None else self.running.pop(event.job_id)
        self.reported[event.state] = self.reported.get(event.state, 0) + 1
        value = event.value if event.state == "completed" else None
        self.past.end(self._number(event.job_id), value)
        if event.reason:
            self.refusal = f"; {event.job_id}: {event.reason}"
        if value is not None and self._beats(value, trial.budget):
            self.best_job_id, self.best_value, self.best_budget = event.job_id, value, trial.budget

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
        self.past.open(
            Wanted(
                trial=trial.number,
                params=trial.params,
                budget=trial.budget,
                bracket=trial.bracket,
                rung=trial.rung,
                origin=self._number(trial.origin),
            )
        )
        self.numbers[trial.job_id] = len(self.job_ids)
        self.job_ids.append(trial.job_id)

    def _number(self, job_id: str) -> int:
        """Return the number of a run in the past, -1 where it is not there."""
        return self.numbers.get(job_id, -1)

    def _outcome(self, job: Job) -> tuple[float | None, Problem]:
        """Return a trial's value, where it has one, and what was wrong with it."""
        value = job.metrics.get(self.spec.metric)
        usable = value is not None and math.isfinite(value)
        if job.state is not State.COMPLETED:
            return value if usable else None, "crashed" if job.state is State.FAILED else ""
        if value is None:
            return None, "diverged" if self.spec.metric in job.diverged else "no_report"
        return (value, "") if usable else (None, "diverged")

    def _measure(self, trial: Trial, took_s: float) -> None:
        """Learn how fast a trial is, and, where it was seen on one device before, what scaling out costs."""
        origin = self._number(trial.origin)
        before = self.past.runs[origin].budget if origin >= 0 else 0
        if trial.budget <= before or took_s <= 0:
            return
        unit_s = took_s / (trial.budget - before)
        self.unit_s[trial.job_id], self.gpus[trial.job_id] = unit_s, trial.gpus
        if trial.gpus > 1 and self.gpus.get(trial.origin) == 1:
            self.spread_xx += (trial.gpus - 1.0) ** 2
            self.spread_xy += (trial.gpus - 1.0) * math.log(unit_s * trial.gpus / self.unit_s[trial.origin])

    def _beats(self, value: float, budget: int) -> bool:
        if self.best_value is None or budget != self.best_budget:
            return self.best_value is None or budget > self.best_budget
        return value > self.best_value if self.spec.mode == "max" else value < self.best_value

    def _why_no_best(self) -> str:
        ends = ", ".join(f"{count} {state}" for state, count in sorted(self.reported.items()))
        instead = f"; completed trials reported {', '.join(sorted(self.seen_metrics))}" if self.seen_metrics else ""
        return f"no completed trial reported {self.spec.metric!r} ({ends}){instead}{self.refusal}"


def _looks_back(spec: SweepSpec) -> bool:
    try:
        return search.algorithm(spec).looks_back
    except search.BadSpace:  # of a library that is not installed here: deciding will say so
        return True
