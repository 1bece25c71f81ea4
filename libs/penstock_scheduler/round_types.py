"""Types that a round works on: jobs in their order, runs that may be preempted, its rules and its context."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from penstock_log import Job, workload
from penstock_log.spec import MOST_GPUS
from penstock_policies.queue_policies import BY_QUEUE, DispatchMode
from penstock_policies.workload_stats import PreemptionCost
from penstock_scheduler.placement import PLACEMENTS, Located

ASSIGNS: Final = ("allox", "first-fit", "load-balance")
"""Names of :data:`penstock_scheduler.assignment.ASSIGNMENTS`."""

Seconds = Annotated[float, Meta(ge=0)]

Speed = Callable[[Job, str], float]
"""Speed of a job on a kind of device, relative to its fastest kind."""

Remaining = Callable[[Sequence[Job]], Sequence[float]]
"""Expected remaining service of jobs, seconds at speed 1."""

CostOf = Callable[[Job], PreemptionCost]
"""What stopping and resuming a job's runs costs, as measured."""

Together = Callable[[Job], bool]
"""Whether a gang goes on as few nodes as possible."""


BORROWED: Final = 1 << 20
"""Added to the queue of a job that its team's quota does not cover: see :mod:`penstock_scheduler.quotas`."""

CLASS_STEP: Final = 1 << 12
"""Added to a job's queue for each weight above its class': see :mod:`penstock_scheduler.priority_classes`."""

MOST_CLASSES: Final = 64
"""Classes of a pool; each has its own queues, all of which come before :data:`BORROWED`."""

MOST_WEIGHT: Final = 1000
"""Of a class; the least is as far below 0."""


class RankedJob(NamedTuple):
    """A job in the order: samples (``queue`` -1) first, then by queue, and by its number in the pool."""

    queue: int
    position: float
    job_id: str
    job: Job

    @property
    def sample(self) -> bool:
        """Whether it is a profiler's sample: ahead of all others, but never a reason to preempt."""
        return self.queue < 0

    @property
    def borrows(self) -> bool:
        """Whether it would run beyond its team's quota."""
        return self.queue >= BORROWED

    @property
    def own_queue(self) -> int:
        """The queue that its order gave it."""
        return self.queue % CLASS_STEP if self.queue >= CLASS_STEP else self.queue

    @property
    def level(self) -> int:
        """How many weights are above that of its class; 0 for a sample."""
        return max(0, self.queue % BORROWED) // CLASS_STEP if self.queue >= CLASS_STEP else 0


class PreemptibleRun(NamedTuple):
    """
    A run, and its devices on nodes that take jobs.

    Attributes
    ----------
    left_s : float
        In how many seconds it is expected to end by itself; infinite where nobody has asked.
    """

    ranked: RankedJob
    kind: str
    devices: tuple[Located, ...]
    left_s: float = math.inf


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True):
    """
    A class of jobs: when their turn comes, whom they preempt, and how much of them there may be.

    Attributes
    ----------
    weight : int
        Jobs of a class with a higher weight come first, whatever the order says of them; jobs without a class have 0.
    preempts : bool
        Whether runs of classes with a lower weight make way for them.
    most_gpus : int
        Devices that jobs of the class of one user hold at once; 0: as many as there are.
    teams : tuple of str
        Who may use it; empty: everybody.
    """

    weight: Annotated[int, Meta(ge=-MOST_WEIGHT, le=MOST_WEIGHT)] = 0
    preempts: bool = False
    most_gpus: Annotated[int, Meta(ge=0, le=MOST_GPUS)] = 0
    teams: tuple[str, ...] = ()


class RoundRules(msgspec.Struct, frozen=True, kw_only=True):
    """
    The parameters of a round: what bounds preemption, overtaking, and work.

    Attributes
    ----------
    assign : {"allox", "first-fit", "load-balance"}
        How one-device jobs get their kinds: one of :data:`penstock_scheduler.assignment.ASSIGNMENTS`.
    alpha : float
        Jobs of this share of the users enter a round, the least-progressed ones first; 1: everybody's.
    min_run_s : float
        A run is not preempted for another job before it has run this long.
    overhead_share : float
        A run is not preempted before its workload's measured time to start, resume and stop is at most this share of
        it.
    patience_s : float
        A waiting job is overtaken by smaller or shorter ones of its queue no longer than this.
    await_profile_s : float
        An unseen workload waits this long after submission for its speeds, where it could run on several kinds; and a
        new elastic job for its first size.
    prior_service_s : float
        Expected length of a job that declares none, until the pool has finished one.
    window : int
        Most one-device jobs in one matching.
    max_waits : int
        Jobs whose waiting a round explains; with 0 it works out no prices either.
    explain_every_s : float
        Least time between two rounds that only explain.
    max_tries : int
        Changes of waiting jobs that a round tries, to name one with which a job would start.
    skew_threshold : float
        Gangs whose model's skew is above it go on as few nodes as possible; see :mod:`penstock_log.workload`.
    placement : {"best-fit", "consolidate", "first-fit"}
        How nodes are chosen: one of :data:`penstock_scheduler.placement.PLACEMENTS`.
    topology : tuple of str
        Levels of domains, outermost first: a node's label ``topology.rack`` names its domain of level ``rack``.
    lane_reserve_share : float
        Of a device's memory: what jobs that take turns on it leave alone.
    most_sharers : int
        Most jobs on one device.
    reserve_ahead_s : float
        A job that could not save and says nothing of its length is taken to run this long where a reservation is to
        begin; see :mod:`penstock_scheduler.reservations`.
    least_left_s : float
        No job is begun on a node that leaves by itself in less time than this: it would hardly come to save. Where
        starting and saving were measured for its workload, less than twice their time counts as too little as well,
        in the second half of the node's stay.
    quotas : dict of str to int
        Team → devices that are its own; what nobody claims is lent. Empty: there are no quotas.
    classes : dict of str to PriorityClass
        Class → its rules; a job of a class that is not among them counts as one without a class.
    """

    assign: str = "allox"
    alpha: Annotated[float, Meta(gt=0, le=1)] = 0.5
    min_run_s: Seconds = 5.0
    overhead_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    patience_s: Seconds = 30.0
    await_profile_s: Seconds = 10.0
    prior_service_s: Annotated[float, Meta(gt=0)] = 60.0
    window: Annotated[int, Meta(ge=1, le=4096)] = 1024
    max_waits: Annotated[int, Meta(ge=0, le=1000)] = 50
    explain_every_s: Seconds = 1.0
    max_tries: Annotated[int, Meta(ge=0, le=100)] = 4
    skew_threshold: float = workload.THRESHOLD
    placement: str = "best-fit"
    topology: tuple[str, ...] = ("zone", "rack")
    lane_reserve_share: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    most_sharers: Annotated[int, Meta(ge=1, le=1000)] = 64
    reserve_ahead_s: Seconds = 3600.0
    least_left_s: Seconds = 5.0
    quotas: dict[str, Annotated[int, Meta(ge=0)]] = {}
    classes: Annotated[dict[str, PriorityClass], Meta(max_length=MOST_CLASSES)] = {}

    def __post_init__(self) -> None:
        workload.checked(self.skew_threshold)
        if self.assign not in ASSIGNS:
            raise ValueError(f"assign is {self.assign!r}; expected one of {', '.join(ASSIGNS)}")
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement is {self.placement!r}; expected one of {', '.join(PLACEMENTS)}")


class RoundContext(msgspec.Struct, frozen=True):
    """
    What a round knows of time, speed, length and overhead.

    Attributes
    ----------
    prior_s : float
        Service that a job is expected to need while nothing is known, seconds at speed 1.
    mode : DispatchMode
        How the pool's order is walked.
    workload : callable
        Gives a job's workload; jobs of one workload are equally fast on each kind.
    """

    now_s: float
    speed: Speed
    remaining: Remaining
    rules: RoundRules
    prior_s: float = 60.0
    cost: CostOf = lambda _: PreemptionCost()
    mode: DispatchMode = BY_QUEUE
    together: Together = lambda job: workload.consolidates(job.spec.skew)
    workload: Callable[[Job], str] = lambda job: job.id

    @property
    def first_fit(self) -> bool:
        """Whether nodes are taken in the order of their ids."""
        return self.rules.placement == "first-fit"
