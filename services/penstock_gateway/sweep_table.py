"""The record of each sweep, as the log has it."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_cluster.nodes import OF_NODES, Cluster, fits
from penstock_gateway.past_tables import PastTable
from penstock_log import (
    Event,
    Job,
    RoundDecided,
    RunEnded,
    RunStarted,
    SweepCancelled,
    SweepFinished,
    SweepSpec,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
)
from penstock_log.decision_facts import Problem
from penstock_log.records import compose
from penstock_policies.search.runs import RunSpending

_PROBLEMS: Final[dict[Problem, str]] = {
    "": "",
    "crashed": "it failed",
    "diverged": "its metric was no finite number",
    "no_report": "it ended without a report of the metric",
    "refused": "it was refused",
    "memory": "it exceeded its memory",
}
"""What was wrong, where the trial's end has no reason of its own."""


class TrialRow(msgspec.Struct, kw_only=True):
    """
    One run of a trial: its position in the sweep, how it ended, and what it held.

    Attributes
    ----------
    retried : bool
        Whether another row runs the trial once more; then this row gives the sweep no result.
    spent : RunSpending
        What the ended runs of its job spent.
    starts : int
        The number of these runs.
    devices : int
        Devices that its job holds, or held last.
    ran_s, served_s : float
        Run time and service of its job when ``spent`` last grew.
    loop_s : float
        Time in iterations since then; waiting for a turn on a shared device does not count.
    """

    trial: Trial
    group: int
    finished: TrialFinished | None = None
    retried: bool = False
    spent: RunSpending = msgspec.field(default_factory=RunSpending)
    starts: int = 0
    devices: int = 0
    ran_s: float = 0.0
    served_s: float = 0.0
    loop_s: float = 0.0

    def note(self, job: Job, event: Event) -> None:
        """Note a fact about the job: the devices that it holds, and once a run of it ends, for how long."""
        if job.placement is not None:
            self.devices = sum(len(slot.devices) for slot in job.placement.slots)
        if isinstance(event, RunEnded):  # of a gang, the node of its first process says so
            self.loop_s = max(self.loop_s, event.loop_s)
        if job.placement is None and job.executed_s > self.ran_s:
            served_s = job.executed_s - job.forgone_s - self.served_s
            self.spent.add(self.devices * served_s, self.devices * self.loop_s, again=self.starts > 0)
            self.starts += 1
            self.ran_s, self.served_s, self.loop_s = job.executed_s, self.served_s + served_s, 0.0

    @property
    def value(self) -> float | None:
        """The value that the run gave to the search."""
        finished = self.finished
        return finished.value if finished is not None and finished.state == "completed" else None

    @property
    def failed(self) -> bool:
        """Whether the run should have given a value and gave none; a diverged run has shown something."""
        return self.finished is not None and self.finished.problem not in {"", "diverged"}

    @property
    def ended_s(self) -> float:
        """When the run's end was reported; 0 before."""
        return self.finished.at_s if self.finished is not None else 0.0

    @property
    def error(self) -> str:
        """Why the run gave no value, in a sentence; empty if it gave one, or is not over."""
        if self.finished is None or not self.finished.problem:
            return ""
        return self.finished.reason or _PROBLEMS[self.finished.problem]


class SweepRecord(msgspec.Struct, kw_only=True):
    """
    One sweep, as people see it.

    Attributes
    ----------
    seq : int
        Sequence of the commit that submitted the sweep.
    trials : dict of str to TrialRow
        Job id → row, in the order in which the tuner opened them; a later group may reopen one with other devices.
    begun : bool
        Whether a run of a trial has started.
    there : int
        Devices that the sweep could use, since ``since_s``.
    there_gpu_s : float
        Device-seconds that it could have used before ``since_s``.
    """

    id: str
    spec: SweepSpec
    seq: int
    submitted_s: float
    cancelled: SweepCancelled | None = None
    finished: SweepFinished | None = None
    trials: dict[str, TrialRow] = msgspec.field(default_factory=dict)
    begun: bool = False
    there: int = 0
    since_s: float = 0.0
    there_gpu_s: float = 0.0

    def count_devices(self, cluster: Cluster, at_s: float) -> None:
        """Note which devices the sweep could use from now on."""
        self.there_gpu_s, self.since_s = self.there_by_gpu_s(at_s), at_s
        nodes, job = cluster.usable(self.spec.job.pool), self.spec.job
        self.there = sum(fits(job, device) for node in nodes for device in node.schedulable)

    def end_by(self, now_s: float) -> float:
        """Return when the sweep ended; the present time if it goes on."""
        return self.finished.at_s if self.finished is not None else max(now_s, self.submitted_s)

    def there_by_gpu_s(self, now_s: float) -> float:
        """Return the device-seconds that the sweep could have used up to now, or to its end."""
        return self.there_gpu_s + self.there * max(0.0, self.end_by(now_s) - self.since_s)

    @property
    def best(self) -> TrialRow | None:
        """The best run so far: of the runs with the largest budget, the first with the best value."""
        valued = [row for row in self.trials.values() if row.value is not None]
        sign = 1.0 if self.spec.mode == "max" else -1.0
        return max(valued, key=lambda row: (row.trial.budget, sign * (row.value or 0.0)), default=None)

    @property
    def state(self) -> str:
        """``running``, ``cancelling``, or how the sweep ended."""
        if self.finished is not None:
            return self.finished.state
        return "running" if self.cancelled is None else "cancelling"


def apply(sweeps: dict[str, SweepRecord], event: Event, seq: int) -> None:
    """Fold one fact in; facts that are not about a known sweep change nothing."""
    if isinstance(event, SweepSubmitted):
        made = SweepRecord(id=event.sweep_id, spec=event.spec, seq=seq, submitted_s=event.at_s, since_s=event.at_s)
        sweeps.setdefault(event.sweep_id, made)
    elif isinstance(event, _AboutOne) and (sweep := sweeps.get(event.sweep_id)) is not None:
        _apply(sweep, event)


def follow(sweeps: dict[str, SweepRecord], job: Job, event: Event) -> None:
    """Note what a fact changed about the job of a trial."""
    if not job.spec.parent or (sweep := sweeps.get(job.spec.parent)) is None:
        return
    sweep.begun = sweep.begun or isinstance(event, RunStarted)
    if (row := sweep.trials.get(job.id)) is not None:
        row.note(job, event)


def count_devices(sweeps: dict[str, SweepRecord], cluster: Cluster, event: Event) -> None:
    """Note the devices that each open sweep could use, after a fact that may have changed their number."""
    if isinstance(event, SweepSubmitted):
        changed = [sweeps[event.sweep_id]]
    elif type(event) in OF_NODES and (not isinstance(event, RoundDecided) or event.lost_nodes):
        changed = open_sweeps(sweeps)
    else:
        return
    for sweep in changed:
        if sweep.finished is None:
            sweep.count_devices(cluster, event.at_s)


def open_sweeps(sweeps: dict[str, SweepRecord]) -> list[SweepRecord]:
    """Return the sweeps that are not over; in a table of the past, these have been read, and the others have not."""
    known = sweeps.loaded() if isinstance(sweeps, PastTable) else sweeps.items()
    return [sweep for _, sweep in known if sweep.finished is None]


_AboutOne = SweepCancelled | SweepFinished | TrialGroupOpened | TrialFinished | TrialRetried


def _apply(sweep: SweepRecord, event: _AboutOne) -> None:
    match event:
        case SweepCancelled():
            sweep.cancelled = sweep.cancelled or event
        case SweepFinished():
            sweep.finished = event
        case TrialGroupOpened():
            for trial in event.trials:
                if (row := sweep.trials.get(trial.job_id)) is not None:
                    row.trial, row.group = trial, event.group
                else:
                    sweep.trials[trial.job_id] = TrialRow(trial=trial, group=event.group)
        case TrialRetried():
            if (row := sweep.trials.get(event.job_id)) is not None and sweep.cancelled is None:
                row.finished = compose(TrialFinished, event, state="failed", problem="memory")
                row.retried = True
                sweep.trials[event.trial.job_id] = TrialRow(trial=event.trial, group=row.group)
        case TrialFinished():
            if (row := sweep.trials.get(event.job_id)) is not None:
                row.finished = event
