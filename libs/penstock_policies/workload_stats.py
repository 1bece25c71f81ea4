"""
Statistics of workloads: how fast each is on each kind of device, and what stopping and resuming its runs costs.

:class:`Speeds` has the speeds that the profiler has published, and a guess where it has published none. The functions
below it work speeds out: :func:`iteration_s` from samples of one workload, :func:`predicted_s` from the ratios that
other workloads show.

:class:`PreemptionCosts` has the cost of a preemption, measured for each workload from the ends of its runs:

=============  =======================================================================================================
``stop_s``     From the round that asks a run to stop until its devices are free: its last step, saving, leaving.
``resume_s``   Of a run, what was neither its loop nor its stopping: starting, loading a checkpoint; where it was not
               asked to stop, leaving as well.
``redo_s``     Of a preempted run, what was not kept and has to be done again: the steps behind what it saved, or all
               of a run without a loop.
=============  =======================================================================================================

Each is a moving average in which the last run counts half. A cost that a workload has not shown yet counts as nothing.
For a gang on several nodes, only the node of its first process counts: the others know nothing of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_log import Job, RunEnded, WorkloadProfiled


class Speeds(msgspec.Struct):
    """
    The speeds of all workloads.

    Attributes
    ----------
    by_key : dict of str to dict of str to float
        Workload key → device kind → speed relative to its fastest kind, in (0, 1].
    predicted_by_key : dict of str to list of str
        Workload key → the kinds among these on which its speed is only predicted.
    skew_by_key : dict of str to float
        Workload key → share of the largest tensor in its model, where a script has described it.

    Examples
    --------
    >>> from penstock_log import KindSpeed
    >>> speeds = Speeds()
    >>> fast, slow = KindSpeed(kind="fast", iteration_s=1, speed=1), KindSpeed(kind="slow", iteration_s=4, speed=0.25)
    >>> speeds.apply(WorkloadProfiled(at_s=0.0, key="mlp", speeds=(fast, slow)))
    >>> speeds.of("mlp", "slow"), speeds.of("unseen", "slow"), speeds.of("unseen", "cpu")
    (0.25, 0.25, 1.0)
    """

    by_key: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    predicted_by_key: dict[str, list[str]] = msgspec.field(default_factory=dict)
    skew_by_key: dict[str, float] = msgspec.field(default_factory=dict)

    def apply(self, event: WorkloadProfiled) -> None:
        """Fold in the profiler's present knowledge of one workload; it replaces what was known of it."""
        self.by_key[event.key] = {speed.kind: speed.speed for speed in event.speeds if speed.speed > 0}
        self.predicted_by_key.pop(event.key, None)
        if predicted := [speed.kind for speed in event.speeds if speed.predicted]:
            self.predicted_by_key[event.key] = predicted
        if event.skew > 0:
            self.skew_by_key[event.key] = event.skew

    def forget(self, key: str) -> None:
        """Drop a workload."""
        for of_keys in (self.by_key, self.predicted_by_key, self.skew_by_key):
            of_keys.pop(key, None)

    def skew(self, key: str) -> float:
        """Return the share of the largest tensor in the workload's model; 0 where nobody has described it."""
        return self.skew_by_key.get(key, 0.0)

    def knows(self, key: str) -> bool:
        """Say whether the profiler has said anything about the workload."""
        return key in self.by_key

    def predicted(self, key: str) -> Sequence[str]:
        """Return the kinds on which the workload's speed is only predicted."""
        return self.predicted_by_key.get(key, ())

    def of(self, key: str, kind: str) -> float:
        """
        Return the workload's speed on a kind; where unknown, the median of all other workloads; 1 without any.

        A guess costs a look at every workload: callers that ask often keep the answer for the length of a round.
        """
        known = self.by_key.get(key, {}).get(kind)
        return self.guess(kind) if known is None else known

    def guess(self, kind: str) -> float:
        """Return the assumed speed on a kind of a workload that nobody has measured."""
        others = [speeds[kind] for speeds in self.by_key.values() if kind in speeds]
        return median(others) if others else 1.0


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def iteration_s(steps: Ints, elapsed_s: Floats) -> float:
    """
    Return the seconds an iteration takes: the slope ``a`` of ``t = a·n + b`` through samples of different length.

    The intercept ``b`` takes the slow first iterations. Where the slope is not positive (noise, or samples of one
    length only), the longest sample's average stands in.

    Parameters
    ----------
    steps : (S,) int array
        Iterations of each sample, at least one of them positive.
    elapsed_s : (S,) float array, seconds

    Raises
    ------
    ValueError
        If no sample has an iteration.

    References
    ----------
    Le et al., AlloX: Compute allocation in hybrid clusters, EuroSys 2020, section 4.2.

    Examples
    --------
    >>> round(iteration_s(np.array([5, 25]), np.array([1.5, 3.5])), 6)
    0.1
    >>> iteration_s(np.array([5, 25]), np.array([3.0, 2.5]))
    0.1
    """
    ran = steps > 0
    if not ran.any():
        raise ValueError("no sample has an iteration; expected steps of 1 or more")
    n, t = steps[ran].astype(np.float64), elapsed_s[ran]
    spread = n - n.mean()
    slope = float(spread @ (t - t.mean()) / (spread @ spread)) if spread.any() else 0.0
    longest = int(np.argmax(n))
    return slope if slope > 0 else float(t[longest] / n[longest])


def refined_s(known_s: float, seen_s: float, weight: float) -> float:
    """
    Return the exponentially weighted average of what was known and what was just seen, in seconds.

    Examples
    --------
    >>> refined_s(1.0, 2.0, weight=0.25)
    1.25
    """
    return known_s + weight * (seen_s - known_s)


def moved(old_s: float, new_s: float, by: float) -> bool:
    """
    Say whether an iteration time changed by more than the fraction ``by``.

    Examples
    --------
    >>> moved(1.0, 1.05, by=0.1), moved(1.0, 0.8, by=0.1)
    (False, True)
    """
    return abs(new_s - old_s) > by * old_s


def speeds(times_s: Floats) -> Floats:
    """
    Return each kind's speed relative to the fastest: in (0, 1], NaN where the time is not known.

    Parameters
    ----------
    times_s : (K,) float array, seconds an iteration, NaN where unknown

    Examples
    --------
    >>> speeds(np.array([0.1, 0.25, np.nan])).tolist()
    [1.0, 0.4, nan]
    """
    if np.isnan(times_s).all():
        return times_s.copy()
    return np.asarray(np.nanmin(times_s) / times_s, dtype=np.float64)


def predicted_s(others_s: Floats, own_s: Floats) -> Floats:
    """
    Fill in a workload's unknown iteration times from the ratios between kinds that other workloads show.

    Parameters
    ----------
    others_s : (W, K) float array, seconds an iteration
        Other workloads on each kind, NaN where not measured.
    own_s : (K,) float array, seconds an iteration
        The workload in question, NaN where not measured.

    Returns
    -------
    (K,) float array
        Known times as they are; unknown ones from the median over all workloads and known kinds of the ratio to
        the known kind; NaN where no workload links the two. Where ``own_s`` is all NaN only ratios can be given: the
        kind that most workloads were measured on is then 1.

    Notes
    -----
    O(W K²).

    Examples
    --------
    >>> others_s = np.array([[1.0, 2.0, np.nan], [1.0, 4.0, 8.0], [1.0, 3.0, np.nan]])
    >>> predicted_s(others_s, np.array([0.5, np.nan, np.nan])).tolist()
    [0.5, 1.5, 4.0]
    """
    known = ~np.isnan(own_s)
    anchors_s = own_s.copy()
    if not known.any() and others_s.size and not np.isnan(others_s).all():
        anchors_s[int(np.argmax((~np.isnan(others_s)).sum(axis=0)))] = 1.0
    filled_s = anchors_s.copy()
    for kind in np.flatnonzero(np.isnan(anchors_s)):
        filled_s[kind] = _through_anchors(others_s, anchors_s, int(kind))
    return filled_s


def _through_anchors(others_s: Floats, anchors_s: Floats, kind: int) -> float:
    anchors = np.flatnonzero(~np.isnan(anchors_s))
    estimates = (others_s[:, [kind]] / others_s[:, anchors] * anchors_s[anchors]).ravel()
    estimates = estimates[~np.isnan(estimates)]
    return float(np.median(estimates)) if estimates.size else float("nan")


WORKLOADS: Final = 4096
"""Workloads whose costs are remembered."""


class PreemptionCost(msgspec.Struct, frozen=True):
    """
    What one preemption of a run of some workload costs, as measured; None where nothing has been.

    Attributes
    ----------
    saves : bool
        Whether a run that is asked to stop saves its work: a script with a session does, unless it was seen not to.
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
        """Seconds of the switch and of the work that is done again."""
        return self.switch_s + (self.redo_s or 0.0)

    def lost_s(self, job: Job, now_s: float) -> float:
        """Return the seconds of the present run that stopping it now would lose: those since its last checkpoint."""
        return 0.0 if self.saves or not job.started_s else job.unsaved_by(now_s)


class PreemptionCosts(msgspec.Struct):
    """
    The preemption costs of all workloads.

    Attributes
    ----------
    by_key : dict of str to PreemptionCost
        Workload key → cost; the one measured last comes last.
    asked_s : dict of str to float
        Job → when its present run was asked to stop.
    """

    by_key: dict[str, PreemptionCost] = msgspec.field(default_factory=dict)
    asked_s: dict[str, float] = msgspec.field(default_factory=dict)

    def of(self, key: str) -> PreemptionCost:
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
        """Note that the job has no run any more."""
        self.asked_s.pop(job_id, None)

    def _preempted(self, before: PreemptionCost, job: Job, event: RunEnded) -> PreemptionCost:
        asked_s = self.asked_s.get(job.id)
        run_s = max(0.0, event.at_s - job.started_s)
        stop_s = None if asked_s is None else min(run_s, max(0.0, event.at_s - asked_s))
        if not event.loop_steps:  # nothing of it was kept; one that only started up shows nothing about saving
            return PreemptionCost(
                _mean(before.stop_s, stop_s), before.resume_s, _mean(before.redo_s, run_s), before.saves
            )
        behind = min(event.loop_steps, max(0, job.resumed_step + event.loop_steps - event.steps))
        return PreemptionCost(
            stop_s=_mean(before.stop_s, stop_s),
            resume_s=_mean(before.resume_s, max(0.0, run_s - event.loop_s - (stop_s or 0.0))),
            redo_s=_mean(before.redo_s, event.loop_s * behind / event.loop_steps),
            saves=behind == 0,
        )


def _leads(job: Job, node_id: str) -> bool:
    """Say whether the first process of a run is on this node."""
    return job.placement is not None and job.placement.slots[0].node_id == node_id


def _finished(before: PreemptionCost, job: Job, event: RunEnded) -> PreemptionCost:
    resume_s = max(0.0, event.at_s - job.started_s - event.loop_s)
    saves = before.saves or before.redo_s is None
    return PreemptionCost(before.stop_s, _mean(before.resume_s, resume_s), before.redo_s, saves)


def _mean(before_s: float | None, seen_s: float | None) -> float | None:
    if before_s is None or seen_s is None:
        return before_s if seen_s is None else seen_s
    return (before_s + seen_s) / 2


_UNKNOWN: Final = PreemptionCost()
