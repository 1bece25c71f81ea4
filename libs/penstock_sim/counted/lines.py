"""
How unfinished jobs line up in the published simulator.

What is odd here is so there:

* A job is demoted only at events, by one queue at an event, and the event that is inserted for it comes late for jobs
  on several devices: at ``t + floor((limit - executed) / n)``, with the executed *time*. With ``punctual`` it comes in
  the first whole second at which the limit is reached.
* After each allocation every queue is re-ordered: running jobs, then waiting ones.
* The Gittins index has one quantum for all queues, is rounded, and is looked up by the next longer sample.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

from penstock_policies import gittins
from penstock_policies.orders import ORDERS, Name

QUANTUM_GPU_S: Final = 3250
"""The only quantum of the published index."""


@dataclass(slots=True, eq=False)
class Job:
    """
    One job of the trace and how far it has come, in seconds.

    Attributes
    ----------
    executed_s : int
        Over all; ``served_s`` since the last promotion.
    waited_s : int
        Since the last promotion, but for the time before it first executed after that.
    nodes : tuple of (node, devices)
        Where it runs, if nodes are looked at.
    """

    number: int
    gpus: int
    submit_s: int
    duration_s: int
    executed_s: int = 0
    served_s: int = 0
    waited_s: int = 0
    queue: int = 0
    running: bool = False
    start_s: int | None = None
    end_s: int | None = None
    preemptions: int = 0
    promotions: int = 0
    nodes: tuple[tuple[int, int], ...] = ()

    @property
    def left_s(self) -> int:
        """What is left of its run time."""
        return self.duration_s - self.executed_s


@dataclass(frozen=True)
class Rules:
    """
    What is set about a run.

    Attributes
    ----------
    limits : (K - 1,) ints
        GPU-seconds at which a job leaves queue 0, 1, …; seconds for ``las``.
    knob : float or None
        Promotion after waiting so many times what was executed; None: never.
    samples_gpu_s : (N,) ints
        Of the Gittins index.
    punctual : bool
        Whether the event for a demotion is inserted when the limit is reached.
    """

    policy: Name
    limits: Sequence[int] = (3250, 7200)
    knob: float | None = None
    samples_gpu_s: Sequence[int] = ()
    punctual: bool = False


class Lines(Protocol):
    """The unfinished jobs in their order."""

    strict: bool
    """Whether an allocation stops at the first job that does not fit."""

    def add(self, job: Job) -> None:
        """Take in a job that was submitted now."""
        ...

    def drop(self, job: Job) -> None:
        """Let a job go that has ended."""
        ...

    def move(self, active: Sequence[Job]) -> None:
        """Demote, promote and sort, before an allocation."""
        ...

    def walk(self) -> Iterable[Job]:
        """Return the jobs in the order of allocation."""
        ...

    def settle(self) -> None:
        """Re-order after an allocation."""
        ...

    def jump_s(self, job: Job) -> float:
        """Return in how long an event is inserted for a job; infinite for none."""
        ...


def line_up(rules: Rules) -> Lines:
    """Return the lines of a policy, empty."""
    if ORDERS[rules.policy].demotes_by == "nothing":
        return _Line(rules.policy)
    return _Queues(rules)


class _Line:
    """One line; ties keep the order of the event before."""

    def __init__(self, policy: Name) -> None:
        self.strict = not ORDERS[policy].backfills
        self._policy, self._preempts = policy, ORDERS[policy].preempts
        self._jobs: dict[Job, None] = {}

    def add(self, job: Job) -> None:
        self._jobs[job] = None

    def drop(self, job: Job) -> None:
        self._jobs.pop(job, None)

    def move(self, active: Sequence[Job]) -> None:  # noqa: ARG002 - the form of all lines
        if self._preempts:
            self._jobs = dict.fromkeys(sorted(self._jobs, key=self._key))

    def walk(self) -> Iterable[Job]:
        return self._jobs

    def settle(self) -> None:
        if not self._preempts:
            self._jobs = {job: None for job in self._jobs if not job.running}

    def jump_s(self, job: Job) -> float:  # noqa: ARG002 - the form of all lines
        return math.inf

    def _key(self, job: Job) -> int:
        match self._policy:
            case "fewest-gpus":
                return job.gpus
            case "srtf":
                return job.left_s
            case _:
                return job.left_s * job.gpus


class _Queues:
    """Queues from the first served to the last; within each by entry or, for 2d-gittins, by index."""

    strict = False

    def __init__(self, rules: Rules) -> None:
        self._rules, self._limits = rules, rules.limits
        self._by_time = ORDERS[rules.policy].demotes_by == "time"
        self._queues: list[dict[Job, None]] = [{} for _ in range(len(rules.limits) + 1)]
        self._index = _Index(rules.samples_gpu_s) if ORDERS[rules.policy].learns else None

    def add(self, job: Job) -> None:
        self._queues[0][job] = None

    def drop(self, job: Job) -> None:
        del self._queues[job.queue][job]

    def move(self, active: Sequence[Job]) -> None:
        for job in active:
            if job.running and self._is_over(job):
                self._put(job, job.queue + 1)
            elif not job.running and self._is_starving(job):
                job.served_s = job.waited_s = 0
                job.promotions += 1
                self._put(job, 0)
        if self._index is not None:
            key = self._index.key
            self._queues = [dict.fromkeys(sorted(queue, key=key, reverse=True)) for queue in self._queues]

    def walk(self) -> Iterator[Job]:
        return chain.from_iterable(self._queues)

    def settle(self) -> None:
        self._queues = [dict.fromkeys(sorted(queue, key=_waits)) for queue in self._queues]

    def jump_s(self, job: Job) -> float:
        if job.running:
            return self._demotion_s(job)
        if self._rules.knob is None or not job.queue or not job.served_s:
            return math.inf
        in_s = int(job.served_s * self._rules.knob - job.waited_s)
        return in_s if in_s > 0 else math.inf

    def _demotion_s(self, job: Job) -> float:
        if job.queue == len(self._limits):
            return math.inf
        limit, devices = self._limits[job.queue], self._weight(job)
        if self._rules.punctual:
            return -(-limit // devices) - job.served_s
        return (limit - job.served_s) // devices

    def _is_over(self, job: Job) -> bool:
        return job.queue < len(self._limits) and job.served_s * self._weight(job) >= self._limits[job.queue]

    def _is_starving(self, job: Job) -> bool:
        knob = self._rules.knob
        if knob is None or not job.queue or not job.served_s:
            return False
        return job.waited_s >= int(job.served_s * knob)

    def _put(self, job: Job, queue: int) -> None:
        del self._queues[job.queue][job]
        job.queue = queue
        self._queues[queue][job] = None

    def _weight(self, job: Job) -> int:
        return 1 if self._by_time else job.gpus


class _Index:
    def __init__(self, samples_gpu_s: Sequence[int]) -> None:
        self._lengths = sorted(samples_gpu_s)
        self._stored = [*gittins.published(self._lengths, QUANTUM_GPU_S).tolist(), 0.0]

    def key(self, job: Job) -> tuple[float, int]:
        place = bisect_right(self._lengths, job.served_s * job.gpus)
        return self._stored[place], -job.submit_s


def _waits(job: Job) -> bool:
    return not job.running
