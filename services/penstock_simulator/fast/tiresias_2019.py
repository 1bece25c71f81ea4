"""
The simulator that was published with Tiresias, by its rules, for ``--compat tiresias-2019``.

It serves to compare figures with those that the published program prints. :mod:`penstock_simulator.fast.fast_path` is
the simulator to work with.

Time is in whole seconds. At one time completions come first, then submissions, then an allocation, which is made from
scratch for policies that preempt. Every event looks at all jobs, as in the published program. :func:`run` lets the
event engine go from event to event; :class:`PublishedQueues` holds a policy's unfinished jobs in their order; and they
take devices from a :class:`Count`, or from nodes that are filled as YARN would fill them (:class:`Yarn`).

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
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

import numpy as np

from penstock_policies import gittins
from penstock_policies.queue_policies import BY_ENTRY, BY_SUBMISSION, QUEUE_POLICIES, QueueKey, QueuePolicy
from penstock_simulator.engine.engine import EventEngine
from penstock_simulator.fast.fast_settings import FastSettings, GoOn
from penstock_simulator.outcome import ClusterTimeline, Outcome
from penstock_simulator.trace import Floats, Trace
from penstock_simulator.virtual_cluster import SimulatedNodes

QUANTUM_GPU_S: Final = 3250
"""The only quantum of the published index."""


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
    if not _is_published(QUEUE_POLICIES[policy]):
        raise ValueError(f"policy is {policy!r}; tiresias-2019 sorts no such line: leave compat out")
    if placement not in {"count", "yarn"}:
        raise ValueError(f"placement is {placement!r}; tiresias-2019 knows count and yarn: leave compat out for others")
    rules = PublishedRules(
        policy,
        _whole("threshold", np.asarray(settings.thresholds_gpu_s)),
        settings.promote_knob,
        _whole("GPU-time", samples_gpu_s),
    )
    submissions_s, lengths_s = _whole("submission", trace.submit_s), _whole("duration", trace.duration_s)
    columns = zip(trace.num_gpus.tolist(), submissions_s, lengths_s, strict=True)
    jobs = [PublishedJob(*values) for values in columns]
    devices = Yarn(cluster) if placement == "yarn" else Count(cluster.gpus)
    before_s = time.process_time()
    points = run(jobs, devices, rules, lambda _, come: go_on(come, len(jobs)))
    cpu_s = time.process_time() - before_s
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=cluster.gpus,
        start_s=np.array([job.start_s for job in jobs], dtype=np.float64),  # nan for None
        end_s=np.array([job.end_s for job in jobs], dtype=np.float64),
        executed_s=np.array([job.executed_s for job in jobs], dtype=np.float64),
        preemptions=np.array([job.preemptions for job in jobs], dtype=np.int64),
        promotions=np.array([job.promotions for job in jobs], dtype=np.int64),
        events=len(points),
        wall_s=cpu_s,
        timeline=ClusterTimeline.of_rows(points),
    )


def _is_published(order: QueuePolicy) -> bool:
    """Say whether the published lines do what a policy says: where they are not sorted, they go by submission."""
    if order.demotes_by != "nothing":
        return order.key in {BY_ENTRY, "index"}
    return order.preempts or order.key == BY_SUBMISSION


def _whole(what: str, values: Floats) -> list[int]:
    rounded = np.rint(values).astype(np.int64)
    if np.any(rounded != values):
        odd = values[np.flatnonzero(rounded != values)[0]]
        raise ValueError(f"a {what} is {odd} s; tiresias-2019 knows whole seconds only: round it, or leave compat out")
    return cast("list[int]", rounded.tolist())


def run(
    jobs: Sequence[PublishedJob], devices: Count | Yarn, rules: PublishedRules, go_on: GoOn = lambda *_: True
) -> list[tuple[int, int, int]]:
    """
    Run jobs to their ends; return the scheduling points as (time, busy devices, waiting jobs).

    Parameters
    ----------
    jobs : sequence of PublishedJob
        By submission; they are changed.
    devices : Count or Yarn
        All free, and enough for each of the jobs.
    rules : PublishedRules
    go_on : callable
        Told at each event the time and how many jobs were submitted; the run ends where it says no.

    Notes
    -----
    O(events x jobs in the system).
    """
    engine, queues, points = EventEngine(), PublishedQueues(rules), list[tuple[int, int, int]]()
    come, active = 0, list[PublishedJob]()

    def step(before_s: int, now_s: int) -> None:
        nonlocal come, active
        _pass_time(active, now_s - before_s)
        for job in active:
            if job.running and job.left_s <= 0:
                job.end_s, job.running = now_s, False
                devices.release(job)
                queues.remove(job)
        active = [job for job in active if job.end_s is None]
        while come < len(jobs) and jobs[come].submitted_s <= now_s:
            queues.add(jobs[come])
            active.append(jobs[come])
            come += 1
        queues.sort(active)
        _allocate(queues, active, devices, now_s)
        busy = sum(job.gpus for job in active if job.running)
        points.append((now_s, busy, sum(not job.running for job in active)))
        if go_on(now_s, come):
            expect(now_s)

    def expect(now_s: int) -> None:
        if come < len(jobs) or active:
            submission_s = jobs[come].submitted_s if come < len(jobs) else math.inf
            completion_s = min((now_s + job.left_s for job in active if job.running), default=math.inf)
            inserted_s = min((now_s + queues.inserted_in_s(job) for job in active), default=math.inf)
            next_s = max(now_s, int(min(submission_s, completion_s, inserted_s)))
            engine.event_queue.at(next_s, step, now_s, next_s)

    expect(0)
    engine.run()
    return points


def _pass_time(active: Sequence[PublishedJob], passed_s: int) -> None:
    for job in active:
        if job.running:
            job.executed_s += passed_s
            job.served_s += passed_s
        else:
            job.waited_s += passed_s if job.served_s else 0


def _allocate(queues: PublishedQueues, active: Sequence[PublishedJob], devices: Count | Yarn, now_s: int) -> None:
    """Walk the jobs in order, those that wait or, with preemption, all of them; give devices to those that fit."""
    ran = [job for job in active if job.running]
    if queues.preempts:
        for job in ran:
            devices.release(job)
            job.running = False
    for job in queues.walk():
        if job.running:
            continue
        if devices.full:
            break
        if devices.take(job):
            job.running = True
            job.start_s = now_s if job.start_s is None else job.start_s
        elif queues.strict:
            break
    for job in ran:
        job.preemptions += not job.running
    queues.settle()


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
    """

    gpus: int
    submitted_s: int
    length_s: int
    executed_s: int = 0
    served_s: int = 0
    waited_s: int = 0
    queue: int = 0
    running: bool = False
    start_s: int | None = None
    end_s: int | None = None
    preemptions: int = 0
    promotions: int = 0

    @property
    def least(self) -> int:
        """The fewest devices that it accepts; a policy's key looks at this."""
        return self.gpus

    @property
    def entered_s(self) -> int:
        """When it entered its queue: its submission, where a policy's key looks at it."""
        return self.submitted_s

    @property
    def left_s(self) -> int:
        """What is left of its run time."""
        return self.length_s - self.executed_s


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


class PublishedQueues:
    """
    The unfinished jobs, in queues from the first served to the last: a single one for policies that do not demote.

    Ties keep the order of the event before.
    """

    def __init__(self, rules: PublishedRules) -> None:
        order = QUEUE_POLICIES[rules.policy]
        self.preempts, self._demotes = order.preempts, order.demotes_by != "nothing"
        self.strict = not (self._demotes or order.backfills)
        self._knob, self._punctual, self._by_time = rules.knob, rules.punctual, order.demotes_by == "time"
        self._limits = rules.limits if self._demotes else ()
        self._key: Callable[[Any], float] = (order.key if isinstance(order.key, QueueKey) else BY_ENTRY).evaluator()
        self._queues: list[dict[PublishedJob, None]] = [{} for _ in range(len(self._limits) + 1)]
        self._lengths = sorted(rules.samples_gpu_s) if order.learns else None
        self._indices = [*gittins.published(self._lengths, QUANTUM_GPU_S).tolist(), 0.0] if self._lengths else [0.0]

    def add(self, job: PublishedJob) -> None:
        """Take in a job that was submitted now."""
        self._queues[0][job] = None

    def remove(self, job: PublishedJob) -> None:
        """Remove a job that has ended."""
        self._queues[job.queue].pop(job, None)

    def sort(self, active: Sequence[PublishedJob]) -> None:
        """Demote, promote and sort jobs, before an allocation."""
        for job in active if self._demotes else ():
            if job.running and self._is_over(job):
                self._put(job, job.queue + 1)
            elif not job.running and self._is_starving(job):
                job.served_s = job.waited_s = 0
                job.promotions += 1
                self._put(job, 0)
        if self._lengths is not None:
            self._queues = [dict.fromkeys(sorted(queue, key=self._index, reverse=True)) for queue in self._queues]
        elif self.preempts and not self._demotes:
            self._queues = [dict.fromkeys(sorted(self._queues[0], key=self._key))]

    def walk(self) -> Iterator[PublishedJob]:
        """Return the jobs in the order of allocation."""
        return chain.from_iterable(self._queues)

    def settle(self) -> None:
        """Re-order the queues after an allocation."""
        if self._demotes:
            self._queues = [dict.fromkeys(sorted(queue, key=lambda job: not job.running)) for queue in self._queues]
        elif not self.preempts:
            self._queues = [{job: None for job in self._queues[0] if not job.running}]

    def inserted_in_s(self, job: PublishedJob) -> float:
        """Return in how long an event is inserted for a job; infinite for none."""
        if not job.running:
            in_s = int(job.served_s * self._knob - job.waited_s) if self._may_starve(job) and self._knob else 0
            return in_s if in_s > 0 else math.inf
        if job.queue == len(self._limits):
            return math.inf
        limit, devices = self._limits[job.queue], self._weight(job)
        return -(-limit // devices) - job.served_s if self._punctual else (limit - job.served_s) // devices

    def _is_over(self, job: PublishedJob) -> bool:
        return job.queue < len(self._limits) and job.served_s * self._weight(job) >= self._limits[job.queue]

    def _is_starving(self, job: PublishedJob) -> bool:
        return self._knob is not None and self._may_starve(job) and job.waited_s >= int(job.served_s * self._knob)

    @staticmethod
    def _may_starve(job: PublishedJob) -> bool:
        return bool(job.queue and job.served_s)

    def _put(self, job: PublishedJob, queue: int) -> None:
        del self._queues[job.queue][job]
        job.queue = queue
        self._queues[queue][job] = None

    def _weight(self, job: PublishedJob) -> int:
        return 1 if self._by_time else job.gpus

    def _index(self, job: PublishedJob) -> tuple[float, int]:
        place = bisect_right(self._lengths or (), job.served_s * job.gpus)
        return self._indices[place], -job.submitted_s


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

    def release(self, job: PublishedJob) -> None:
        """Take the devices of a job back."""
        self._free += job.gpus


_CPUS: Final = 128
_MEMORY_GB: Final = 256.0
_LEAST: Final = np.array([0.0, 0.0, -1e-9])


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
            switch += [_Node(group.gpus) for _ in range(group.count)]
        self._nodes = [node for switch in self._switches.values() for node in switch]
        self._largest = max(node.size for node in self._nodes)
        self._held: dict[PublishedJob, Sequence[tuple[_Node, Floats]]] = {}

    @property
    def full(self) -> bool:
        """Whether no device is free."""
        return not any(node.free[0] for node in self._nodes)

    def take(self, job: PublishedJob) -> bool:
        """Give a job its devices if nodes can be found for all of them."""
        found = self._one(job) if job.gpus <= self._largest else self._several(job)
        if not found:
            return False
        for node, need in found:
            node.free -= need
        self._held[job] = found
        return True

    def release(self, job: PublishedJob) -> None:
        """Take the devices of a job back."""
        for node, need in self._held.pop(job):
            node.free += need

    def _one(self, job: PublishedJob) -> Sequence[tuple[_Node, Floats]]:
        need = np.array([job.gpus, 2 if job.gpus == 1 else 6 * job.gpus, 5.0])
        return [(node, need) for node in _first(self._nodes, need)]

    def _several(self, job: PublishedJob) -> Sequence[tuple[_Node, Floats]]:
        return next((found for switch in self._switches.values() if (found := self._on(switch, job))), ())

    def _on(self, switch: Sequence[_Node], job: PublishedJob) -> Sequence[tuple[_Node, Floats]]:
        size, each_gb = self._largest, 11 + 0.1 * job.gpus
        whole, rest = divmod(job.gpus, size)
        need = np.array([size, 6 * size, each_gb * size])
        chosen = [node for node in switch if node.free[0] == node.size and node.has(need)][:whole]
        if len(chosen) < whole:
            return ()
        found = [(node, need) for node in chosen]
        if rest:
            need = np.array([rest, 6 * rest, each_gb * rest])
            last = _first((node for node in switch if node not in chosen), need)
            return [*found, *((node, need) for node in last)] if last else ()
        return found


def _first(nodes: Iterable[_Node], need: Floats) -> Sequence[_Node]:
    found = next((node for node in nodes if node.has(need)), None)
    return () if found is None else (found,)


class _Node:
    """A node's devices, and what of its devices, CPUs and memory in GB is free."""

    def __init__(self, size: int) -> None:
        self.size, self.free = size, np.array([size, _CPUS, _MEMORY_GB])

    def has(self, need: Floats) -> bool:
        return bool(self.free[0] >= need[0] and np.all(self.free - need >= _LEAST))
