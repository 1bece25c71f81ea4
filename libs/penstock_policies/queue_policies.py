"""
Registry of queue policies: in which order a pool's jobs are served.

:data:`QUEUE_POLICIES` has one :class:`QueuePolicy` for each name, and a policy whose key is made of :class:`JobFigures`
is added here and nowhere else: the ranker, both engines of ``penstock sim`` (``deciders`` and ``counted``), the colours
of reports, the help of the command line and the tables of the documents read it here. A further figure of a job comes
in by :class:`JobFigures` and through the ranker. A policy says four things:

* *Demotion*: by which service a job falls from queue to queue, if at all.
* *Key*: what puts jobs in order within a queue, lowest first, as data (:class:`QueueKey`) so that compiled kernels go
  by it too. Equal keys go by the time of entering the queue and then by id.
* *Dispatch*: whether jobs behind one that does not fit may start, and who makes way for whom.
* A name for people: one sentence, and a colour.

:class:`penstock_policies.ranking.PoolRanking` keeps a pool in such an order as things happen.

References
----------
Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_log import JobSpec
from penstock_policies import gittins

N = TypeVar("N", float, npt.NDArray[np.float64])

UNKNOWN_S: Final = 1e15
"""The length of a job that declares none: longer than any that does."""

FLOOR: Final = 1e-6
"""Of a completion a quantum: added to every index that :class:`LengthKnowledge` compares."""


class JobFigures(msgspec.Struct, kw_only=True):
    """
    What a queue policy looks at: one job's figures.

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

    gpus: float
    least: float
    submitted_s: float
    entered_s: float
    executed_s: float
    served_s: float
    length_s: float
    queue: float


class QueueKey(NamedTuple):
    """
    What jobs go by within a queue, lowest first: a weighted sum of figures, times devices or not.

    Attributes
    ----------
    submitted, entered : float
        Weights of the times of submission and of entering the queue.
    devices : float
        Weight of the number of devices; of an elastic job, the fewest that it accepts.
    length, left : float
        Weights of the declared length, and of what is left of it.
    times_devices : bool
        Whether the sum is multiplied by the devices.

    Examples
    --------
    >>> QueueKey(left=1.0, times_devices=True).described
    'devices times what is left of `duration_s`'
    """

    submitted: float = 0.0
    entered: float = 0.0
    devices: float = 0.0
    length: float = 0.0
    left: float = 0.0
    times_devices: bool = False

    @property
    def terms(self) -> dict[str, float]:
        """The figures that count, with their weights."""
        return {name: weight for name, weight in zip(_FIGURES, self[:-1], strict=True) if weight}

    @property
    def described(self) -> str:
        """The key in words."""
        words = " + ".join(
            _WORDS[name] if weight == 1.0 else f"{weight:g} times {_WORDS[name]}" for name, weight in self.terms.items()
        )
        if not self.times_devices:
            return words
        return f"devices times ({words})" if len(self.terms) > 1 else f"devices times {words}"

    def evaluator(self) -> Callable[[JobFigures], float]:
        """Return the function that gives a job its key."""
        terms = [(_FIGURES[name], weight) for name, weight in self.terms.items()]
        (first, weight), *rest = terms
        if weight == 1.0 and not rest and not self.times_devices:
            return first

        def key(jobs: JobFigures) -> float:
            found = weight * first(jobs)
            for figure, more in rest:
                found = found + more * figure(jobs)
            return jobs.least * found if self.times_devices else found

        return key


def _left_s(jobs: JobFigures) -> float:
    """Return what is left of a job on as many devices as it needs."""
    return jobs.length_s - jobs.gpus / jobs.least * jobs.executed_s


_FIGURES: Final[dict[str, Callable[[JobFigures], float]]] = {
    "submitted": attrgetter("submitted_s"),
    "entered": attrgetter("entered_s"),
    "devices": attrgetter("least"),
    "length": attrgetter("length_s"),
    "left": _left_s,
}
_WORDS: Final = {
    "submitted": "submission",
    "entered": "time of entering the queue",
    "devices": "devices (the fewest that an elastic job accepts)",
    "length": "`duration_s`",
    "left": "what is left of `duration_s`",
}

BY_SUBMISSION: Final = QueueKey(submitted=1.0)
BY_ENTRY: Final = QueueKey(entered=1.0)

FALLS_BY: Final = {"nothing": "nothing", "time": "executed time", "gpu-time": "devices times executed time"}
"""What is held against the thresholds, in words."""


@dataclass(frozen=True)
class QueuePolicy:
    """
    One queue policy.

    Attributes
    ----------
    says : str
        What it does, for people: one sentence.
    key : QueueKey or "index"
        What jobs go by within a queue; ``index``: the Gittins index, highest first.
    demotes_by : {"nothing", "time", "gpu-time"}
        What is held against the thresholds; one queue where nothing is.
    backfills : bool
        Whether jobs behind one that does not fit may start.
    preempts : bool
        Whether a running job makes way for one that comes before it.
    within_queue : bool
        Whether it does so for one of its own queue, too.
    colour : int or None
        Number of its colour in reports; None: whichever is free.
    not_counted : str
        Why the fast path cannot run it; empty where it can.
    """

    says: str
    key: QueueKey | Literal["index"] = BY_ENTRY
    demotes_by: Literal["nothing", "time", "gpu-time"] = "nothing"
    backfills: bool = True
    preempts: bool = True
    within_queue: bool = False
    colour: int | None = None
    not_counted: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.key, QueueKey) and (not self.key.terms or self.key.left < 0):
            raise ValueError(f"key is {self.key}; expected a figure with a weight, and left not to rise by service")

    @property
    def learns(self) -> bool:
        """Whether positions depend on what is learnt of lengths."""
        return self.key == "index"

    @property
    def declares(self) -> bool:
        """Whether jobs have to say how long they take."""
        return isinstance(self.key, QueueKey) and bool(self.key.length or self.key.left)

    @property
    def within(self) -> str:
        """What jobs go by within a queue, in words."""
        if isinstance(self.key, QueueKey):
            return self.key.described
        return "Gittins index, highest first; in the last queue the time of entering it"

    @cached_property
    def mode(self) -> DispatchMode:
        """How it is walked."""
        makes_way: Literal["queue", "position"] = "position" if self.within_queue else "queue"
        return DispatchMode(backfills=self.backfills, preempts=makes_way if self.preempts else "never")

    @cached_property
    def _key(self) -> Callable[[JobFigures], float]:
        return self.key.evaluator() if isinstance(self.key, QueueKey) else attrgetter("entered_s")

    def position(self, job: JobFigures, learnt: LengthKnowledge) -> float:
        """Return the position of a job in its queue: lowest first."""
        if self.key == "index":
            return -learnt.merit(job.queue, job.gpus * job.served_s)
        return self._key(job)

    def falls_per_s(self, gpus: int, least: int) -> float:
        """Return how much the position of a job, which needs ``least`` devices, falls with each second on ``gpus``."""
        if self.key == "index" or not self.key.left:
            return 0.0
        return self.key.left * (float(gpus) if self.key.times_devices else gpus / least)

    def weight(self, gpus: N) -> N:
        """Return what a second of execution counts against the thresholds; of one job, or of many at once."""
        return gpus if self.demotes_by == "gpu-time" else gpus / gpus


def policy_named(name: str) -> QueuePolicy:
    """
    Return a policy by its name.

    Raises
    ------
    ValueError
        If there is none of this name.
    """
    found = QUEUE_POLICIES.get(name)
    if found is None:
        raise ValueError(f"order is {name!r}: expected one of {', '.join(QUEUE_POLICIES)}")
    return found


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

    def merit(self, queue: float, attained_gpu_s: float) -> float:
        """
        Return the Gittins index at the queue's limit as quantum, relative to that of a job that has just entered.

        Relative, because only comparisons within a queue count: so a job that has not run keeps its figure, whatever
        else is learnt. A millionth of a completion a quantum is added to both, for where nothing is known to end within
        it. All are 1 in the last queue, which has no limit.
        """
        queue = int(queue)
        if queue >= len(self._curves):
            return 1.0
        # Rounding, or other thresholds at the time, must not make a job look as if it had not come so far.
        index = self._curves[queue].at(max(attained_gpu_s, self._entries[queue]))
        return (index + self._floors[queue]) / self._units[queue]


NOTHING: Final = LengthKnowledge()


def newcomer(order: str, spec: JobSpec, now_s: float) -> float:
    """
    Return the position that a job gets which comes now, in queue 0; that of an order which is not known is the time.

    Examples
    --------
    >>> job = JobSpec(name="a", command=("x",), gpus=2, duration_s=60.0)
    >>> [newcomer(name, job, 7.0) for name in ("fifo", "srtf", "srsf", "2d-gittins")]
    [7.0, 60.0, 120.0, -1.0]
    """
    known = QUEUE_POLICIES.get(order)
    if known is None:
        return now_s
    standing = JobFigures(
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
        Name of the order: one of :data:`penstock_policies.queue_policies.QUEUE_POLICIES`.
    """

    backfills: bool = True
    preempts: Literal["never", "queue", "position"] = "queue"
    in_order: bool = False
    order: str = "2d-las"

    @property
    def positions_bind(self) -> bool:
        """Whether a job comes before another of its queue, shorter or not."""
        return self.in_order or self.preempts != "queue"


QUEUE_POLICIES: Final[dict[str, QueuePolicy]] = {
    "fifo": QueuePolicy(
        "First come, first served: behind a job that does not fit nobody starts, and nobody is preempted.",
        key=BY_SUBMISSION,
        backfills=False,
        preempts=False,
        colour=0,
    ),
    "fifo-backfill": QueuePolicy(
        "First come, first served, and whoever fits starts beside; nobody is preempted.",
        key=BY_SUBMISSION,
        preempts=False,
        colour=4,
    ),
    "fewest-gpus": QueuePolicy(
        "The smallest gang first; a running job makes way for a smaller one.",
        key=QueueKey(devices=1.0),
        within_queue=True,
    ),
    "srtf": QueuePolicy(
        "The shortest remaining time first, for comparison: jobs have to declare how long they take.",
        key=QueueKey(left=1.0),
        within_queue=True,
        colour=3,
    ),
    "srsf": QueuePolicy(
        "The shortest remaining service first, for comparison: jobs have to declare how long they take.",
        key=QueueKey(left=1.0, times_devices=True),
        within_queue=True,
        colour=6,
    ),
    "las": QueuePolicy(
        "The least attained time first, in queues; a running job makes way for one of a queue before its own.",
        demotes_by="time",
        colour=7,
    ),
    "2d-las": QueuePolicy(
        "The least attained device time first, in queues; a running job makes way for one of a queue before its own.",
        demotes_by="gpu-time",
        colour=1,
    ),
    "2d-gittins": QueuePolicy(
        "As 2d-las, and within a queue whoever is most likely to end soon, by the lengths of finished jobs.",
        key="index",
        demotes_by="gpu-time",
        colour=2,
    ),
}
"""Every queue policy that can be chosen, by the name that settings, facts and command lines use."""

BY_QUEUE: Final = DispatchMode()
