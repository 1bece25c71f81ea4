"""
The simulator that was published with Tiresias, by its rules, for ``--compat tiresias-2019``.

It serves to compare figures with those that the published program prints. :mod:`penstock_simulator.fast.fast_path` is
the simulator to work with.

Time is in whole seconds. At one time completions come first, then submissions, then an allocation, which is made from
scratch for policies that preempt. Every event looks at all jobs, as in the published program. :func:`run` is the loop;
:func:`line_up` gives a policy's queues of unfinished jobs; :class:`PublishedSupply` is what they take devices from: a
number of devices, or nodes that are filled as YARN would fill them.

What is odd in the queues is odd in the published program:

* A job is demoted only at events, by one queue at an event, and the event that is inserted for it comes late for jobs
  on several devices: at ``t + floor((limit - executed) / n)``, with the executed *time*. With ``punctual`` it comes in
  the first whole second at which the limit is reached.
* After each allocation every queue is re-ordered: running jobs, then waiting ones.
* The Gittins index has one quantum for all queues, is rounded, and is looked up by the next longer sample.

References
----------
https://github.com/SymbioticLab/Tiresias, 2019.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol, cast

import numpy as np

from penstock_policies import gittins
from penstock_policies.queue_policies import BY_ENTRY, BY_SUBMISSION, QUEUE_POLICIES, QueueKey, QueuePolicy
from penstock_simulator.fast.fast_settings import FastSettings, GoOn
from penstock_simulator.outcome import ClusterTimeline, Outcome
from penstock_simulator.trace import Floats, Trace
from penstock_simulator.virtual_cluster import SimulatedNodes


def run(
    jobs: Sequence[PublishedJob],
    room: PublishedSupply,
    rules: PublishedRules,
    go_on: Callable[[int, int], bool] = lambda *_: True,
) -> PublishedRun:
    """
    Run jobs to their ends.

    Parameters
    ----------
    jobs : sequence of PublishedJob
        By submission; they are changed.
    room : PublishedSupply
        Empty, and large enough for each of them.
    rules : PublishedRules
    go_on : callable
        Told at each event the time and how many jobs were submitted; the run ends where it says no.

    Notes
    -----
    O(events x jobs in the system).
    """
    found, lines, active = PublishedRun(jobs), line_up(rules), list[PublishedJob]()
    now_s, come = 0, 0
    while come < len(jobs) or active:
        before_s, now_s = now_s, _next_s(jobs, come, active, lines, now_s)
        _advance(active, now_s - before_s)
        for job in _ended(active, now_s):
            room.give(job)
            lines.drop(job)
        active = [job for job in active if job.end_s is None]
        while come < len(jobs) and jobs[come].submit_s <= now_s:
            lines.add(jobs[come])
            active.append(jobs[come])
            come += 1
        lines.move(active)
        _allocate(lines, active, room, now_s, again=QUEUE_POLICIES[rules.policy].preempts)
        found.points.append((now_s, *_load(active)))
        if not go_on(now_s, come):
            break
    return found


def simulate_published(
    trace: Trace,
    cluster: SimulatedNodes,
    policy: str,
    settings: FastSettings,
    *,
    placement: str,
    samples_gpu_s: Floats,
    go_on: GoOn,
) -> Outcome:
    """
    Return what the published simulator makes of a trace.

    Raises
    ------
    ValueError
        If a time is not in whole seconds, the placement is none of ``count`` and ``yarn``, or the policy has a key that
        the published simulator has no line for.
    """
    if not _has_line(QUEUE_POLICIES[policy]):
        raise ValueError(f"policy is {policy!r}; tiresias-2019 sorts no such line: leave compat out")
    if placement not in {"count", "yarn"}:
        raise ValueError(f"placement is {placement!r}; tiresias-2019 knows count and yarn: leave compat out for others")
    rules = PublishedRules(
        policy,
        _whole("threshold", np.asarray(settings.thresholds_gpu_s)),
        settings.promote_knob,
        _whole("GPU-time", samples_gpu_s),
    )
    jobs = _jobs(trace, cluster.gpus)
    room: PublishedSupply = Yarn(cluster) if placement == "yarn" else Count(cluster.gpus)
    before_s = time.process_time()
    found = run(jobs, room, rules, lambda _, come: go_on(come, len(jobs)))
    return _outcome(trace, cluster.gpus, policy, found, time.process_time() - before_s)


def _has_line(order: QueuePolicy) -> bool:
    """Say whether the published lines do what a policy says: where they are not sorted, they go by submission."""
    if order.demotes_by != "nothing":
        return order.key in {BY_ENTRY, "index"}
    return order.preempts or order.key == BY_SUBMISSION


def _jobs(trace: Trace, devices: int) -> list[PublishedJob]:
    columns = zip(
        trace.num_gpus.tolist(),
        _whole("submission", trace.submit_s),
        _whole("duration", trace.duration_s),
        strict=True,
    )
    jobs = [
        PublishedJob(number, gpus, submit_s, duration_s) for number, (gpus, submit_s, duration_s) in enumerate(columns)
    ]
    return [job for job in jobs if job.gpus <= devices]


def _whole(what: str, values: Floats) -> list[int]:
    rounded = np.rint(values).astype(np.int64)
    if np.any(rounded != values):
        odd = values[np.flatnonzero(rounded != values)[0]]
        raise ValueError(f"a {what} is {odd} s; tiresias-2019 knows whole seconds only: round it, or leave compat out")
    return cast("list[int]", rounded.tolist())


@dataclass
class PublishedRun:
    """The jobs after a run, and its scheduling points as (time, busy devices, waiting jobs)."""

    jobs: Sequence[PublishedJob]
    points: list[tuple[int, int, int]] = field(default_factory=list)


def _outcome(trace: Trace, devices: int, policy: str, found: PublishedRun, cpu_s: float) -> Outcome:
    times, counts = np.full((3, len(trace)), np.nan), np.zeros((2, len(trace)), dtype=np.int64)
    times[2] = 0.0
    for job in found.jobs:
        start_s, end_s = (np.nan if at_s is None else at_s for at_s in (job.start_s, job.end_s))
        times[:, job.number] = start_s, end_s, job.executed_s
        counts[:, job.number] = job.preemptions, job.promotions
    at_s, busy, waiting = np.array(found.points, dtype=np.int64).reshape(-1, 3).T
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=devices,
        start_s=times[0],
        end_s=times[1],
        executed_s=times[2],
        preemptions=counts[0],
        promotions=counts[1],
        events=len(found.points),
        wall_s=cpu_s,
        timeline=ClusterTimeline(at_s.astype(np.float64), busy, waiting),
    )


def _next_s(
    jobs: Sequence[PublishedJob], come: int, active: Sequence[PublishedJob], lines: PublishedQueue, now_s: int
) -> int:
    submission_s = jobs[come].submit_s if come < len(jobs) else math.inf
    completion_s = min((now_s + job.left_s for job in active if job.running), default=math.inf)
    inserted_s = min((now_s + lines.jump_s(job) for job in active), default=math.inf)
    return max(now_s, int(min(submission_s, completion_s, inserted_s)))


def _advance(active: Sequence[PublishedJob], passed_s: int) -> None:
    for job in active:
        if job.running:
            job.executed_s += passed_s
            job.served_s += passed_s
        else:
            job.waited_s += passed_s if job.served_s else 0


def _ended(active: Sequence[PublishedJob], now_s: int) -> Sequence[PublishedJob]:
    ended = [job for job in active if job.running and job.left_s <= 0]
    for job in ended:
        job.end_s, job.running = now_s, False
    return ended


def _allocate(
    lines: PublishedQueue, active: Sequence[PublishedJob], room: PublishedSupply, now_s: int, *, again: bool
) -> None:
    """Walk the jobs in order, those that wait or, ``again``, all of them, and give devices to those that fit."""
    ran = [job for job in active if job.running]
    if again:
        for job in ran:
            room.give(job)
            job.running = False
    for job in lines.walk():
        if job.running:
            continue
        if room.full:
            break
        if room.take(job):
            job.running = True
            job.start_s = now_s if job.start_s is None else job.start_s
        elif lines.strict:
            break
    for job in ran:
        job.preemptions += not job.running
    lines.settle()


def _load(active: Sequence[PublishedJob]) -> tuple[int, int]:
    busy = sum(job.gpus for job in active if job.running)
    return busy, sum(not job.running for job in active)


QUANTUM_GPU_S: Final = 3250
"""The only quantum of the published index."""


@dataclass(slots=True, eq=False)
class PublishedJob:
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
    def least(self) -> int:
        """The fewest devices that it accepts; this and the next three are what a policy's key looks at."""
        return self.gpus

    @property
    def submitted_s(self) -> int:
        """When it was submitted."""
        return self.submit_s

    @property
    def entered_s(self) -> int:
        """The same: there is one line."""
        return self.submit_s

    @property
    def length_s(self) -> int:
        """Its run time."""
        return self.duration_s

    @property
    def left_s(self) -> int:
        """What is left of its run time."""
        return self.duration_s - self.executed_s


@dataclass(frozen=True)
class PublishedRules:
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

    policy: str
    limits: Sequence[int] = (3250, 7200)
    knob: float | None = None
    samples_gpu_s: Sequence[int] = ()
    punctual: bool = False


class PublishedQueue(Protocol):
    """The unfinished jobs in their order."""

    strict: bool
    """Whether an allocation stops at the first job that does not fit."""

    def add(self, job: PublishedJob) -> None:
        """Take in a job that was submitted now."""
        ...

    def drop(self, job: PublishedJob) -> None:
        """Let a job go that has ended."""
        ...

    def move(self, active: Sequence[PublishedJob]) -> None:
        """Demote, promote and sort, before an allocation."""
        ...

    def walk(self) -> Iterable[PublishedJob]:
        """Return the jobs in the order of allocation."""
        ...

    def settle(self) -> None:
        """Re-order after an allocation."""
        ...

    def jump_s(self, job: PublishedJob) -> float:
        """Return in how long an event is inserted for a job; infinite for none."""
        ...


def line_up(rules: PublishedRules) -> PublishedQueue:
    """Return the lines of a policy, empty."""
    if QUEUE_POLICIES[rules.policy].demotes_by == "nothing":
        return _Line(rules.policy)
    return _Queues(rules)


class _Line:
    """One line; ties keep the order of the event before."""

    def __init__(self, policy: str) -> None:
        order = QUEUE_POLICIES[policy]
        self.strict = not order.backfills
        self._preempts = order.preempts
        self._key: Callable[[Any], float] = (order.key if isinstance(order.key, QueueKey) else BY_ENTRY).evaluator()
        self._jobs: dict[PublishedJob, None] = {}

    def add(self, job: PublishedJob) -> None:
        self._jobs[job] = None

    def drop(self, job: PublishedJob) -> None:
        self._jobs.pop(job, None)

    def move(self, active: Sequence[PublishedJob]) -> None:  # noqa: ARG002 - the form of all lines
        if self._preempts:
            self._jobs = dict.fromkeys(sorted(self._jobs, key=self._key))

    def walk(self) -> Iterable[PublishedJob]:
        return self._jobs

    def settle(self) -> None:
        if not self._preempts:
            self._jobs = {job: None for job in self._jobs if not job.running}

    def jump_s(self, job: PublishedJob) -> float:  # noqa: ARG002 - the form of all lines
        return math.inf


class _Queues:
    """Queues from the first served to the last; within each by entry or, for 2d-gittins, by index."""

    strict = False

    def __init__(self, rules: PublishedRules) -> None:
        self._rules, self._limits = rules, rules.limits
        self._by_time = QUEUE_POLICIES[rules.policy].demotes_by == "time"
        self._queues: list[dict[PublishedJob, None]] = [{} for _ in range(len(rules.limits) + 1)]
        self._index = _Index(rules.samples_gpu_s) if QUEUE_POLICIES[rules.policy].learns else None

    def add(self, job: PublishedJob) -> None:
        self._queues[0][job] = None

    def drop(self, job: PublishedJob) -> None:
        del self._queues[job.queue][job]

    def move(self, active: Sequence[PublishedJob]) -> None:
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

    def walk(self) -> Iterator[PublishedJob]:
        return chain.from_iterable(self._queues)

    def settle(self) -> None:
        self._queues = [dict.fromkeys(sorted(queue, key=_waits)) for queue in self._queues]

    def jump_s(self, job: PublishedJob) -> float:
        if job.running:
            return self._demotion_s(job)
        if self._rules.knob is None or not job.queue or not job.served_s:
            return math.inf
        in_s = int(job.served_s * self._rules.knob - job.waited_s)
        return in_s if in_s > 0 else math.inf

    def _demotion_s(self, job: PublishedJob) -> float:
        if job.queue == len(self._limits):
            return math.inf
        limit, devices = self._limits[job.queue], self._weight(job)
        if self._rules.punctual:
            return -(-limit // devices) - job.served_s
        return (limit - job.served_s) // devices

    def _is_over(self, job: PublishedJob) -> bool:
        return job.queue < len(self._limits) and job.served_s * self._weight(job) >= self._limits[job.queue]

    def _is_starving(self, job: PublishedJob) -> bool:
        knob = self._rules.knob
        if knob is None or not job.queue or not job.served_s:
            return False
        return job.waited_s >= int(job.served_s * knob)

    def _put(self, job: PublishedJob, queue: int) -> None:
        del self._queues[job.queue][job]
        job.queue = queue
        self._queues[queue][job] = None

    def _weight(self, job: PublishedJob) -> int:
        return 1 if self._by_time else job.gpus


class _Index:
    def __init__(self, samples_gpu_s: Sequence[int]) -> None:
        self._lengths = sorted(samples_gpu_s)
        self._stored = [*gittins.published(self._lengths, QUANTUM_GPU_S).tolist(), 0.0]

    def key(self, job: PublishedJob) -> tuple[float, int]:
        place = bisect_right(self._lengths, job.served_s * job.gpus)
        return self._stored[place], -job.submit_s


def _waits(job: PublishedJob) -> bool:
    return not job.running


_CPUS: Final = 128
_MEMORY_GB: Final = 256.0


class PublishedSupply(Protocol):
    """Devices that jobs take and give back."""

    def take(self, job: PublishedJob) -> bool:
        """Give a job its devices if it can have them; say whether it could."""
        ...

    def give(self, job: PublishedJob) -> None:
        """Have the devices of a job back."""
        ...

    @property
    def full(self) -> bool:
        """Whether no device is free."""
        ...


class Count:
    """So many devices, wherever they are."""

    def __init__(self, gpus: int) -> None:
        self._free = gpus

    @property
    def full(self) -> bool:
        """Whether no device is free."""
        return not self._free

    def take(self, job: PublishedJob) -> bool:
        """Give a job its devices if there are as many."""
        if job.gpus > self._free:
            return False
        self._free -= job.gpus
        return True

    def give(self, job: PublishedJob) -> None:
        """Have the devices of a job back."""
        self._free += job.gpus


@dataclass(eq=False)
class _Node:
    size: int
    free: int
    cpus: int = _CPUS
    memory_gb: float = _MEMORY_GB

    @property
    def idle(self) -> bool:
        return self.free == self.size

    def has(self, need: _Need) -> bool:
        return self.free >= need.gpus and self.cpus >= need.cpus and self.memory_gb >= need.memory_gb - 1e-9


@dataclass(frozen=True)
class _Need:
    """What a job takes of one node."""

    gpus: int
    cpus: int
    memory_gb: float


class Yarn:
    """
    Nodes on switches, with CPUs and memory, filled first fit.

    A job that fits a node goes to the first that has room. A larger one takes wholly idle nodes of one switch, and for
    the rest the first other node of it with room. Nodes with the same label ``switch`` are on one; those without one
    are on one as well.
    """

    def __init__(self, nodes: SimulatedNodes) -> None:
        self._switches: dict[str, list[_Node]] = {}
        for group in nodes.groups:
            switch = self._switches.setdefault(group.labels.get("switch", ""), [])
            switch += [_Node(group.gpus, group.gpus) for _ in range(group.count)]
        self._nodes = [node for switch in self._switches.values() for node in switch]
        self._largest = max(node.size for node in self._nodes)
        self._held: dict[PublishedJob, Sequence[tuple[_Node, _Need]]] = {}

    @property
    def full(self) -> bool:
        """Whether no device is free."""
        return not any(node.free for node in self._nodes)

    def take(self, job: PublishedJob) -> bool:
        """Give a job its devices if nodes can be found for all of them."""
        found = self._one(job) if job.gpus <= self._largest else self._several(job)
        if not found:
            return False
        for node, need in found:
            node.free, node.cpus, node.memory_gb = (
                node.free - need.gpus,
                node.cpus - need.cpus,
                node.memory_gb - need.memory_gb,
            )
        self._held[job] = found
        return True

    def give(self, job: PublishedJob) -> None:
        """Have the devices of a job back."""
        for node, need in self._held.pop(job):
            node.free += need.gpus
            node.cpus += need.cpus
            node.memory_gb += need.memory_gb

    def _one(self, job: PublishedJob) -> Sequence[tuple[_Node, _Need]]:
        need = _Need(job.gpus, 2 if job.gpus == 1 else 6 * job.gpus, 5.0)
        return [(node, need) for node in _first(self._nodes, need)]

    def _several(self, job: PublishedJob) -> Sequence[tuple[_Node, _Need]]:
        return next((found for switch in self._switches.values() if (found := self._on(switch, job))), ())

    def _on(self, switch: Sequence[_Node], job: PublishedJob) -> Sequence[tuple[_Node, _Need]]:
        size, each_gb = self._largest, 11 + 0.1 * job.gpus
        whole, rest = divmod(job.gpus, size)
        need = _Need(size, 6 * size, each_gb * size)
        chosen = [node for node in switch if node.idle and node.has(need)][:whole]
        if len(chosen) < whole:
            return ()
        found = [(node, need) for node in chosen]
        if rest:
            need = _Need(rest, 6 * rest, each_gb * rest)
            last = _first((node for node in switch if node not in chosen), need)
            return [*found, *((node, need) for node in last)] if last else ()
        return found


def _first(nodes: Iterable[_Node], need: _Need) -> Sequence[_Node]:
    found = next((node for node in nodes if node.has(need)), None)
    return () if found is None else (found,)
