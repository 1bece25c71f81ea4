"""Sweeps as the log has them so far."""

from __future__ import annotations

import msgspec

from penstock_events import (
    Event,
    RunEnded,
    SweepCancelled,
    SweepFinished,
    SweepSpec,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
)


class TrialRow(msgspec.Struct, kw_only=True):
    """
    One run of a trial: where it stands in the sweep, and how it ended.

    Attributes
    ----------
    loop_s : float
        Spent in iterations, in seconds over all of its job's runs.
    """

    trial: Trial
    group: int
    finished: TrialFinished | None = None
    loop_s: float = 0.0

    @property
    def value(self) -> float | None:
        """What it gave to the search."""
        finished = self.finished
        return finished.value if finished is not None and finished.state == "completed" else None


class Sweep(msgspec.Struct, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    seq : int
        Of the commit that submitted it.
    trials : dict of str to TrialRow
        By job id, in the order in which the tuner opened them; a later group may open one again with other devices.
    """

    id: str
    spec: SweepSpec
    seq: int
    submitted_s: float
    cancelled: SweepCancelled | None = None
    finished: SweepFinished | None = None
    trials: dict[str, TrialRow] = msgspec.field(default_factory=dict)

    @property
    def best(self) -> TrialRow | None:
        """The best so far: of those with the largest budget, the first with the best value."""
        valued = [row for row in self.trials.values() if row.value is not None]
        sign = 1.0 if self.spec.mode == "max" else -1.0
        return max(valued, key=lambda row: (row.trial.budget, sign * (row.value or 0.0)), default=None)

    @property
    def state(self) -> str:
        """``running``, ``cancelling``, or how it ended."""
        if self.finished is not None:
            return self.finished.state
        return "running" if self.cancelled is None else "cancelling"


def apply(sweeps: dict[str, Sweep], event: Event, seq: int) -> None:
    """Fold one fact in; facts that are not about a known sweep change nothing."""
    match event:
        case SweepSubmitted():
            made = Sweep(id=event.sweep_id, spec=event.spec, seq=seq, submitted_s=event.at_s)
            sweeps.setdefault(event.sweep_id, made)
        case SweepCancelled() | SweepFinished() | TrialGroupOpened() | TrialFinished():
            if (sweep := sweeps.get(event.sweep_id)) is not None:
                _apply(sweep, event)
        case _:
            pass


def measure(sweeps: dict[str, Sweep], sweep_id: str, event: RunEnded) -> None:
    """Note how long a trial's run was in its loop; of a gang, its first process's node says so."""
    row = sweeps[sweep_id].trials.get(event.job_id) if sweep_id in sweeps else None
    if row is not None:
        row.loop_s += event.loop_s


def _apply(sweep: Sweep, event: SweepCancelled | SweepFinished | TrialGroupOpened | TrialFinished) -> None:
    match event:
        case SweepCancelled():
            sweep.cancelled = sweep.cancelled or event
        case SweepFinished():
            sweep.finished = event
        case TrialGroupOpened():
            for trial in event.trials:
                sweep.trials[trial.job_id] = TrialRow(trial=trial, group=event.group)
        case TrialFinished():
            if (row := sweep.trials.get(event.job_id)) is not None:
                row.finished = event
