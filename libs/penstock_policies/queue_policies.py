"""
Queue policies by name: the registry.

The orders in which jobs are served, by name: what puts a job into which queue, and what counts within a queue.

An order is a value of two parts. *Demotion*: by which service jobs fall from queue to queue, if at all. *Position*: a
function that gives each job a number within its queue, lowest first; equal numbers go by the time of entering the queue
and then by id. Queues and positions are all that the rest of the system sees: ``rank`` puts a whole pool in order at
once, :class:`penstock_policies.ranking.PoolRanking` keeps one in order as things happen, and both mean the same.

| name | demotion | position | how it is meant to be walked |
|---|---|---|---|
| fifo | | submission | stop at the first job that does not fit |
| fifo-backfill | | submission | skip what does not fit |
| fewest-gpus | | devices | skip; preempt whoever comes after |
| srtf | | what is left of the declared length | the same |
| srsf | | the same, times devices | the same |
| las | executed time | time of entering the queue | skip; preempt for a lower queue |
| 2d-las | GPU-time | time of entering the queue | the same |
| 2d-gittins | GPU-time | index, highest first; in the last queue the time of entering it | the same |

srtf and srsf know the future: they are for comparison, and put jobs that declare no length last.

References
----------
Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, Literal, Protocol, TypeVar, get_args, overload

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_log import JobSpec
from penstock_policies import gittins, las

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
N = TypeVar("N", float, Floats)

Name = Literal["fifo", "fifo-backfill", "fewest-gpus", "srtf", "srsf", "las", "2d-las", "2d-gittins"]

UNKNOWN_S: Final = 1e15
"""The length of a job that declares none: longer than any that does."""

FLOOR: Final = 1e-6
"""Of a completion a quantum: added to every index that :class:`LengthKnowledge` compares."""


class JobFigures(msgspec.Struct, Generic[N], kw_only=True):
    """
    What an order may look at: one job's figures, or the same of J jobs as (J,) float arrays.

    Attributes
    ----------
    gpus : devices
    least : devices
        Those that it needs at least: what counts where its place would else change with what it is given for its place.
    submitted_s, entered_s : seconds
        When it was submitted, and when it entered its queue.
    executed_s, served_s : seconds
        Executed over all, and since it was last promoted.
    length_s : seconds
        Declared exclusive run time; ``UNKNOWN_S`` where none is.
    queue : 0 is served first
    """

    gpus: N
    least: N
    submitted_s: N
    entered_s: N
    executed_s: N
    served_s: N
    length_s: N
    queue: N


def columns(
    gpus: npt.ArrayLike,
    submitted_s: npt.ArrayLike,
    executed_s: npt.ArrayLike,
    *,
    length_s: npt.ArrayLike = UNKNOWN_S,
    served_s: npt.ArrayLike | None = None,
    entered_s: npt.ArrayLike | None = None,
) -> JobFigures[Floats]:
    """Return J jobs as columns, from arrays; those left out mean: not declared, never promoted, never demoted."""
    submitted, executed = np.asarray(submitted_s, dtype=np.float64), np.asarray(executed_s, dtype=np.float64)
    devices = np.asarray(gpus, dtype=np.float64)
    return JobFigures(
        gpus=devices,
        least=devices,
        submitted_s=submitted,
        entered_s=submitted if entered_s is None else np.asarray(entered_s, dtype=np.float64),
        executed_s=executed,
        served_s=executed if served_s is None else np.asarray(served_s, dtype=np.float64),
        length_s=np.broadcast_to(np.asarray(length_s, dtype=np.float64), executed.shape),
        queue=np.zeros(executed.shape),
    )


class PositionRule(Protocol):
    """How an order places jobs within a queue, lowest first; of one job or of many at once."""

    def __call__(self, jobs: JobFigures[N], learnt: LengthKnowledge, /) -> N:
        """Return the position of each job."""
        ...


@dataclass(frozen=True)
class QueuePolicy:
    """
    One order.

    Attributes
    ----------
    position : PositionRule
    demotes_by : {"nothing", "time", "gpu-time"}
        What is held against the thresholds; one queue where nothing is.
    backfills : bool
        Whether jobs behind one that does not fit may start.
    preempts : bool
        Whether a running job makes way for one that comes before it.
    within_queue : bool
        Whether it does so for one of its own queue, too.
    falls_by : {"nothing", "time", "gpu-time"}
        By what a job's position falls as it executes.
    learns : bool
        Whether positions depend on what is learnt of lengths.
    """

    position: PositionRule
    demotes_by: Literal["nothing", "time", "gpu-time"] = "nothing"
    backfills: bool = True
    preempts: bool = True
    within_queue: bool = False
    falls_by: Literal["nothing", "time", "gpu-time"] = "nothing"
    learns: bool = False

    @cached_property
    def manner(self) -> DispatchMode:
        """How it is walked."""
        makes_way: Literal["queue", "position"] = "position" if self.within_queue else "queue"
        return DispatchMode(backfills=self.backfills, preempts=makes_way if self.preempts else "never")

    def falls_per_s(self, gpus: int, least: int) -> float:
        """Return how much the position of a job, which needs ``least`` devices, falls with each second on ``gpus``."""
        if self.falls_by == "nothing":
            return 0.0
        return float(gpus) if self.falls_by == "gpu-time" else gpus / least

    def weight(self, gpus: N) -> N:
        """Return what a second of execution counts against the thresholds."""
        return gpus if self.demotes_by == "gpu-time" else gpus / gpus


class LengthKnowledge:
    """
    What is known of job lengths, made ready for one set of queues.

    Parameters
    ----------
    thresholds_gpu_s : (K - 1,) floats, GPU-seconds, rising
    samples_gpu_s : (N,) floats, GPU-seconds, positive
        What finished jobs needed.

    Examples
    --------
    >>> learnt = LengthKnowledge([4.0], [4.0, 8.0, 12.0])
    >>> learnt.merit(0.0, 0.0), round(learnt.merit(0.0, 2.0), 3), learnt.merit(1.0, 8.0)
    (1.0, 1.2, 1.0)
    """

    def __init__(self, thresholds_gpu_s: Sequence[float] = (), samples_gpu_s: npt.ArrayLike = ()) -> None:
        self._samples = np.asarray(samples_gpu_s, dtype=np.float64)
        self._entries = (0.0, *thresholds_gpu_s)
        self._curves = [gittins.GittinsCurve(self._samples, limit) for limit in thresholds_gpu_s]
        self._floors = [FLOOR / limit for limit in thresholds_gpu_s]
        fresh = [curve.at(entry) for curve, entry in zip(self._curves, self._entries, strict=False)]
        self._units = [index + floor for index, floor in zip(fresh, self._floors, strict=True)]

    @overload
    def merit(self, queue: float, attained_gpu_s: float) -> float: ...
    @overload
    def merit(self, queue: Floats, attained_gpu_s: Floats) -> Floats: ...
    def merit(self, queue: float | Floats, attained_gpu_s: float | Floats) -> float | Floats:
        """
        Return the Gittins index at the queue's limit as quantum, relative to that of a job that has just entered.

        Relative, because only comparisons within a queue count: so a job that has not run keeps its figure, whatever
        else is learnt. A millionth of a completion a quantum is added to both, for where nothing is known to end within
        it. All are 1 in the last queue, which has no limit.
        """
        if isinstance(attained_gpu_s, np.ndarray):
            return self._merits(np.asarray(queue), attained_gpu_s)
        queue = int(queue)
        if queue >= len(self._curves):
            return 1.0
        # Rounding, or other thresholds at the time, must not make a job look as if it had not come so far.
        index = self._curves[queue].at(max(attained_gpu_s, self._entries[queue]))
        return (index + self._floors[queue]) / self._units[queue]

    def _merits(self, queue: Floats, attained_gpu_s: Floats) -> Floats:
        found = np.ones(attained_gpu_s.shape)
        for number, curve in enumerate(self._curves):
            here = np.flatnonzero(queue == number)
            attained = np.maximum(attained_gpu_s[here], self._entries[number])
            index = gittins.index(self._samples, attained, curve.quantum_gpu_s)
            found[here] = (index + self._floors[number]) / self._units[number]
        return found


NOTHING: Final = LengthKnowledge()


def rank(
    order: QueuePolicy,
    jobs: JobFigures[Floats],
    thresholds_gpu_s: Sequence[float] = (),
    learnt: LengthKnowledge = NOTHING,
) -> tuple[Ints, Floats, Ints]:
    """
    Put jobs in order from scratch.

    Parameters
    ----------
    order : QueuePolicy
    jobs : JobFigures of (J,) arrays
        As :func:`columns` makes it; ``queue`` is set.
    thresholds_gpu_s : (K - 1,) floats, GPU-seconds, rising; seconds for an order that demotes by time
    learnt : LengthKnowledge

    Returns
    -------
    queue : (J,) int array
    position : (J,) float array
    first : (J,) int array
        Numbers of the jobs, the one to be served first first; those that are equal in all keep their order.

    Notes
    -----
    O(J log J).

    Examples
    --------
    >>> jobs = columns(gpus=[1, 2, 1], submitted_s=[0.0, 1.0, 2.0], executed_s=[5.0, 1.0, 0.0])
    >>> rank(ORDERS["2d-las"], jobs, [4.0])[2].tolist()
    [1, 2, 0]
    """
    if order.demotes_by == "nothing":
        queue = np.zeros(jobs.gpus.shape, dtype=np.int64)
    else:
        queue = las.queues(order.weight(jobs.gpus) * jobs.served_s, thresholds_gpu_s)
    jobs.queue = queue.astype(np.float64)
    position = order.position(jobs, learnt)
    return queue, position, np.lexsort((jobs.entered_s, position, queue))


def newcomer(order: str, spec: JobSpec, now_s: float) -> float:
    """
    Return the position that a job gets which comes now, in queue 0; that of an order which is not known is the time.

    Examples
    --------
    >>> job = JobSpec(name="a", command=("x",), gpus=2, duration_s=60.0)
    >>> [newcomer(name, job, 7.0) for name in ("fifo", "srtf", "srsf", "2d-gittins")]
    [7.0, 60.0, 120.0, -1.0]
    """
    known = next((each for name, each in ORDERS.items() if name == order), None)
    if known is None:
        return now_s
    standing: JobFigures[float] = JobFigures(
        gpus=float(spec.gpus),
        least=float(spec.widths[0]),
        submitted_s=now_s,
        entered_s=now_s,
        executed_s=0.0,
        served_s=0.0,
        length_s=spec.duration_s or UNKNOWN_S,
        queue=0.0,
    )
    return known.position(standing, NOTHING)


def by_submission(jobs: JobFigures[N], learnt: LengthKnowledge, /) -> N:  # noqa: ARG001 - the form of all positions
    """First come, first served."""
    return jobs.submitted_s


def by_entry(jobs: JobFigures[N], learnt: LengthKnowledge, /) -> N:  # noqa: ARG001 - the form of all positions
    """First in the queue, first served."""
    return jobs.entered_s


def by_devices(jobs: JobFigures[N], learnt: LengthKnowledge, /) -> N:  # noqa: ARG001 - the form of all positions
    """Smallest gang first."""
    return jobs.least


def by_time_left(jobs: JobFigures[N], learnt: LengthKnowledge, /) -> N:  # noqa: ARG001 - the form of all positions
    """Shortest remaining time first."""
    return _left_s(jobs)


def by_service_left(jobs: JobFigures[N], learnt: LengthKnowledge, /) -> N:  # noqa: ARG001 - the form of all positions
    """Shortest remaining service first."""
    return jobs.least * _left_s(jobs)


def by_index(jobs: JobFigures[N], learnt: LengthKnowledge, /) -> N:
    """Highest Gittins index first."""
    return -learnt.merit(jobs.queue, jobs.gpus * jobs.served_s)


def _left_s(jobs: JobFigures[N]) -> N:
    """Return what is left of a job on as many devices as it needs."""
    return jobs.length_s - jobs.gpus / jobs.least * jobs.executed_s


class DispatchMode(msgspec.Struct, frozen=True):
    """
    How the order of a pool is meant to be walked.

    Attributes
    ----------
    backfills : bool
        Whether jobs behind one that does not fit may start.
    preempts : {"never", "queue", "position"}
        Which jobs a running one makes way for: none, those of a lower queue, or all that come before it.
    in_order : bool
        Whether positions bind although jobs make way for lower queues.
    order : str
        Name of the order: one of :data:`penstock_policies.queue_policies.ORDERS`.
    """

    backfills: bool = True
    preempts: Literal["never", "queue", "position"] = "queue"
    in_order: bool = False
    order: str = "2d-las"

    @property
    def positions_bind(self) -> bool:
        """Whether a job comes before another of its queue, shorter or not."""
        return self.in_order or self.preempts != "queue"


ORDERS: Final[dict[Name, QueuePolicy]] = {
    "fifo": QueuePolicy(by_submission, backfills=False, preempts=False),
    "fifo-backfill": QueuePolicy(by_submission, preempts=False),
    "fewest-gpus": QueuePolicy(by_devices, within_queue=True),
    "srtf": QueuePolicy(by_time_left, within_queue=True, falls_by="time"),
    "srsf": QueuePolicy(by_service_left, within_queue=True, falls_by="gpu-time"),
    "las": QueuePolicy(by_entry, demotes_by="time"),
    "2d-las": QueuePolicy(by_entry, demotes_by="gpu-time"),
    "2d-gittins": QueuePolicy(by_index, demotes_by="gpu-time", learns=True),
}
"""Every order that can be chosen, by the name that settings use."""

assert set(ORDERS) == set(get_args(Name))  # noqa: S101 - a name without an order would pass as a setting

BY_QUEUE: Final = DispatchMode()
