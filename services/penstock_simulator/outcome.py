"""What became of a trace under one policy, and the figures that people compare."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_simulator.trace import Floats, Ints, Trace


@dataclass(frozen=True)
class ClusterTimeline:
    """
    The cluster over time: each row holds from its time until the next row's.

    Attributes
    ----------
    at_s : (E,) float array, seconds, rising
    busy_gpus, waiting_jobs : (E,) int arrays
    """

    at_s: Floats
    busy_gpus: Ints
    waiting_jobs: Ints

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[float, int, int]]) -> ClusterTimeline:
        """Return the timeline of rows (time, devices in use, jobs that wait)."""
        at_s, busy, waiting = np.array(list(rows), dtype=np.float64).reshape(-1, 3).T
        return cls(at_s, busy.astype(np.int64), waiting.astype(np.int64))


@dataclass(frozen=True)
class DeviceSpells:
    """
    The spells in which jobs held devices: one row for each device and run, for Gantt charts.

    Attributes
    ----------
    job : (S,) int array
        Row of the trace.
    device : (S,) int array
        Number in the cluster, nodes in order.
    from_s, to_s : (S,) float arrays, seconds
    """

    job: Ints
    device: Ints
    from_s: Floats
    to_s: Floats

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int, float, float]]) -> DeviceSpells:
        """Return the spells of rows (job, device, from, to)."""
        job, device, from_s, to_s = np.array(list(rows), dtype=np.float64).reshape(-1, 4).T
        return cls(job.astype(np.int64), device.astype(np.int64), from_s, to_s)


@dataclass(frozen=True)
class Outcome:
    """
    What became of a trace of J jobs under one policy.

    Attributes
    ----------
    policy : str
    gpus : int
        Devices of the cluster.
    start_s, end_s : (J,) float arrays, seconds
        First start and end, on the trace's clock; nan where there was none.
    executed_s : (J,) float array, seconds
        Time that each job held its devices, all runs together, lost work and overhead included.
    preemptions, promotions : (J,) int arrays
    events : int
        Scheduling points.
    wall_s : float
        CPU time of the simulation.
    timeline, spells : None where nobody asked for them
    held_gpu_s : (J,) float array or None, device-seconds
        Devices times the time that each job held them; None if each job always held as many as it asked for.
    until_s : float or None
        When devices were last held, on the trace's clock, if that may be later than the last known end.
    dropped : (J,) bool array or None
        Jobs that found no room when they came and did not wait; None: no job is dropped.
    """

    policy: str
    trace: Trace
    gpus: int
    start_s: Floats
    end_s: Floats
    executed_s: Floats
    preemptions: Ints
    promotions: Ints
    events: int
    wall_s: float
    timeline: ClusterTimeline | None = None
    spells: DeviceSpells | None = None
    held_gpu_s: Floats | None = None
    until_s: float | None = None
    dropped: npt.NDArray[np.bool_] | None = None

    @property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Which jobs ended, (J,)."""
        return np.isfinite(self.end_s)

    @property
    def jct_s(self) -> Floats:
        """Job completion times, end less submission, of the finished jobs in the trace's order."""
        done = self.finished
        return self.end_s[done] - self.trace.submit_s[done]


UNTOUCHED: Final = {
    "start_s": math.nan,
    "end_s": math.nan,
    "executed_s": 0.0,
    "preemptions": 0,
    "promotions": 0,
    "held_gpu_s": 0.0,
    "dropped": False,
}
"""The columns of an outcome that have a value for each job, and the value of a job that never starts."""


class OutcomeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """
    The figures of one policy, as ``penstock sim -o json`` prints them.

    Attributes
    ----------
    in_window : int
        Jobs that finished within the requested window, from the first submission on; without a window, all that did.
    dropped : int
        Jobs that found no room when they came, and did not wait.
    p95_jct_s, p99_jct_s : float
        By nearest rank.
    avg_queue_s : float
        Mean over finished jobs of JCT less the time that they held devices.
    makespan_s : float
        Last end less first submission.
    utilisation : float
        Held device time over devices times makespan; up to ``until_s`` where devices were held for longer.
    wall_s, jobs_per_s : float
        CPU time of the simulation, and jobs over it.
    """

    jobs: int
    finished: int
    in_window: int
    dropped: int
    sum_jct_s: float
    avg_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    avg_queue_s: float
    makespan_s: float
    utilisation: float
    preemptions: int
    promotions: int
    events: int
    wall_s: float
    jobs_per_s: float


def summary(outcome: Outcome, window_s: float = math.inf) -> OutcomeSummary:
    """Return the figures of an outcome; the times of an outcome in which no job finished are 0."""
    done, jct_s = outcome.finished, np.sort(outcome.jct_s)
    held = outcome.executed_s * outcome.trace.num_gpus if outcome.held_gpu_s is None else outcome.held_gpu_s
    held_gpu_s = float(held.sum())
    makespan_s = float(outcome.end_s[done].max() - outcome.trace.submit_s.min()) if jct_s.size else 0.0
    held_for_s = makespan_s
    if outcome.until_s is not None and jct_s.size:
        held_for_s = max(makespan_s, outcome.until_s - float(outcome.trace.submit_s.min()))
    queue_s = outcome.jct_s - outcome.executed_s[done]
    return OutcomeSummary(
        jobs=len(outcome.trace),
        finished=int(done.sum()),
        in_window=int((outcome.end_s[done] - outcome.trace.submit_s[0] <= window_s).sum()) if jct_s.size else 0,
        dropped=0 if outcome.dropped is None else int(outcome.dropped.sum()),
        sum_jct_s=float(jct_s.sum()),
        avg_jct_s=float(jct_s.mean()) if jct_s.size else 0.0,
        median_jct_s=float(np.median(jct_s)) if jct_s.size else 0.0,
        p95_jct_s=_nearest_rank(jct_s, 0.95),
        p99_jct_s=_nearest_rank(jct_s, 0.99),
        avg_queue_s=float(queue_s.mean()) if jct_s.size else 0.0,
        makespan_s=makespan_s,
        utilisation=held_gpu_s / (outcome.gpus * held_for_s) if held_for_s else 0.0,
        preemptions=int(outcome.preemptions.sum()),
        promotions=int(outcome.promotions.sum()),
        events=outcome.events,
        wall_s=outcome.wall_s,
        jobs_per_s=len(outcome.trace) / outcome.wall_s if outcome.wall_s else 0.0,
    )


def _nearest_rank(rising: Floats, share: float) -> float:
    return float(rising[max(0, math.ceil(share * rising.size) - 1)]) if rising.size else 0.0
