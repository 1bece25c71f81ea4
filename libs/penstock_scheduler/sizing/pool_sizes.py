"""
A pool as a decision about sizes sees it: who asks for what, in which order, and which devices are there.

:func:`asked` makes the :class:`SizingProblem` of a pool. It reads a :class:`SizingKnowledge`, which the autoscaler's
fold and the simulator both provide. :func:`profiles` says how fast a job is at each size, as far as that is known.
:class:`ShownBehaviour` is what runs of elastic jobs have shown: whether they save checkpoints, which batch they really
use, and what does not fit on a device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock_cluster import nodes
from penstock_cluster.nodes import Cluster, fits
from penstock_log import (
    Batch,
    Device,
    Job,
    JobRank,
    JobSpec,
    JobState,
    RunCheckpointed,
    RunEnded,
    Scalability,
    Size,
    workload,
)
from penstock_log.job_state import EARLY_STEPS
from penstock_log.spec import HostDemand
from penstock_policies import scaling_model
from penstock_policies.elastic import ThroughputProfile
from penstock_policies.queue_policies import BY_QUEUE, DispatchMode
from penstock_policies.sample_plan import awaits_scaling
from penstock_policies.workload_stats import PreemptionCosts, Speeds
from penstock_scheduler.class_limits import most_of
from penstock_scheduler.pool.pool_index import key_of as place_of
from penstock_scheduler.priority_classes import Classes, any_preempts, levels
from penstock_scheduler.quotas import OfKinds, coverage, only_kind
from penstock_scheduler.round_types import BORROWED, RankedJob
from penstock_scheduler.sizing.decision import decide
from penstock_scheduler.sizing.problem import FixedSizeJob, SizeRequest, SizingDecision, SizingRules, SizingSettings

Places = Mapping[tuple[str, int], Device]
"""Node and index → device, on nodes that take jobs."""


class SizingProblem(msgspec.Struct):
    """
    The input of a decision about a pool's sizes.

    Attributes
    ----------
    order : list of SizeRequest or FixedSizeJob
        In rank order.
    devices : dict of str to int
        Kind → devices that the jobs can have.
    kinds : dict of str to tuple of str
        Elastic job → the kinds in ``devices`` that it accepts.
    mute : set of str
        Elastic jobs that cannot take a new size now.
    returning : collection of str
        Jobs that have stopped to be resized, and stand in the order as if they ran.
    sampled : bool
        Whether samples of the profiler run or are about to, or a new job waits for their results.
    again_s : float
        When the input changes although nothing happens.
    reclaims : bool
        Whether some jobs only borrow: they come last, and make way whatever the mode.
    """

    order: list[SizeRequest | FixedSizeJob]
    devices: dict[str, int]
    kinds: dict[str, tuple[str, ...]]
    mute: set[str]
    returning: Collection[str]
    sampled: bool
    again_s: float
    reclaims: bool = False

    def still(self) -> list[SizeRequest | FixedSizeJob]:
        """Return the order in which every running job keeps its place and size."""
        return [
            msgspec.structs.replace(asking, movable=False)
            if isinstance(asking, SizeRequest) and asking.runs and asking.job_id not in self.returning
            else asking
            for asking in self.order
        ]

    def is_met(self, sizing: SizingDecision) -> bool:
        """Say whether a decision has room for all that wait."""
        jobs, fixed = sizing.jobs, sizing.fixed
        waiting = [asking for asking in self.order if not asking.runs]
        return all(
            jobs[asking.job_id].gpus > 0 if isinstance(asking, SizeRequest) else asking.job_id in fixed
            for asking in waiting
        )

    def sizing(self, rules: SizingRules, mode: DispatchMode) -> SizingDecision:
        """
        Return the decision.

        While the profiler samples, runs are resized only to let others in. Otherwise a run would grow onto devices that
        come free between two samples, and shrink again for the next one.
        """
        if self.reclaims and mode.preempts == "never":
            mode = DispatchMode(mode.backfills, "queue", in_order=True)
        if self.sampled:
            sizing = decide(self.still(), self.devices, rules, mode)
            if self.is_met(sizing):
                return sizing
        return decide(self.order, self.devices, rules, mode)


def asked(
    state: SizingKnowledge, jobs: Iterable[Job], name: str, now_s: float, settings: SizingSettings
) -> SizingProblem:
    """Return what those of a pool's jobs that are not over ask for now."""
    return _ProblemBuilder(state, jobs, name, now_s, settings).all()


class _ProblemBuilder:
    def __init__(
        self, state: SizingKnowledge, jobs: Iterable[Job], name: str, now_s: float, settings: SizingSettings
    ) -> None:
        self._state, self._now_s, self._settings = state, now_s, settings
        self._levels = levels(state.classes)
        self._jobs = sorted(jobs, key=lambda job: place_of(job, state.ranks, self._levels))
        self._room = _ClassRoom(state, self._jobs, now_s)
        self._there: Places = {
            (node.id, device.index): device for node in state.cluster.usable(name) for device in node.schedulable
        }
        self._borrowers = self._beyond_quotas()
        self._jobs.sort(key=lambda job: job.id in self._borrowers)
        gone = {at for job in self._jobs if _ends(job) or job.spec.sharing != "exclusive" for at in self._held(job)}
        self._devices = Counter(device.kind for at, device in self._there.items() if at not in gone)
        self._ending = any(map(_ends, self._jobs))
        self._parts = Fraction(0)
        self._kinds: dict[str, tuple[str, ...]] = {}
        self._accepted_by_demand: dict[tuple[tuple[str, ...], int, HostDemand], dict[str, int]] = {}
        self._mute: set[str] = set()
        held = (at for job in self._jobs for at in self._held(job) if at not in gone)
        self._idle = self._devices - Counter(self._there[at].kind for at in held)
        self._sampled = False
        self._again_s = math.inf

    def all(self) -> SizingProblem:
        order = [asking for job in self._jobs for asking in self._of(job)]
        return SizingProblem(
            order,
            dict(self._devices),
            self._kinds,
            self._mute,
            self._state.returning,
            self._sampled,
            self._again_s,
            reclaims=bool(self._borrowers) or any_preempts(self._state.classes),
        )

    def _beyond_quotas(self) -> Collection[str]:
        """Return the jobs that no quota covers; an elastic one counts with its smallest size."""
        if not self._state.quotas:
            return ()
        waiting, running, parts = list[RankedJob](), list[RankedJob](), dict[str, float]()
        for job in self._jobs:
            queue, position, *_ = place_of(job, self._state.ranks, self._levels)
            ranked = RankedJob(queue, position, job.id, job)
            if sizable(job):
                parts[job.id] = job.spec.least_gpus
            elif job.spec.sharing == "fraction":
                parts[job.id] = job.spec.gpus * job.spec.fraction
            if job.placement is not None or job.id in self._state.returning:
                running += [] if _ends(job) else [ranked]
            elif job.startable and job.not_before_s <= self._now_s:
                waiting.append(ranked)
        return coverage(
            waiting,
            running,
            self._state.quotas,
            self._state.mode,
            parts,
            classes=self._state.classes,
            of_kinds=self._state.of_kinds,
            kind_of=self._only_kind,
        ).borrowers

    def _only_kind(self, job: Job) -> str:
        return only_kind(job, lambda spec: {device.kind for device in self._there.values() if fits(spec, device)})

    def _of(self, job: Job) -> Iterator[SizeRequest | FixedSizeJob]:
        kept = job.placement is None and not job.startable
        if (
            _ends(job)
            or kept
            or job.id in self._room.beyond
            or (job.sample is not None and not self._is_sampled_now(job))
        ):
            return
        if job.placement is None and job.not_before_s > self._now_s:
            self._look_again(job.not_before_s)
        elif job.spec.sharing != "exclusive":
            if job.placement is None and (gpus := self._opened(job)):
                yield self._waiting(job, gpus)
        elif not sizable(job) or (job.epoch and self._is_partial(job)):
            yield from self._fixed(job)
        elif job.placement is None and (kind := self._state.returning.get(job.id, "")) in self._accepted(job):
            yield self._request(job, job.size, kind)  # it has had devices until now, and goes on before others come
        elif job.placement is None:
            waits = self._awaits_profile(job)
            yield self._new(job) if waits else self._request(job, None, "", movable=not self._is_partial(job))
        elif _leaves(job):
            self._mute.add(job.id)
            yield self._request(job, None, "")
        elif self._is_drained(job):
            yield from self._fixed(job)
        else:
            yield self._running(job)

    # --- jobs that are not for us to size
    def _fixed(self, job: Job) -> Iterator[FixedSizeJob]:
        if job.placement is None or _leaves(job):
            yield self._waiting(job, job.spec.gpus)
        elif held := len(self._held(job)):  # on nodes that are emptied it takes up nothing of what is counted
            kind = job.placement.kind
            yield FixedSizeJob(job_id=job.id, gpus=held, kinds=(kind,), kind=kind, queue=self._queue(job))

    def _is_sampled_now(self, job: Job) -> bool:
        """Say whether a sample runs, or can start on idle devices: nobody's run is resized to let one in."""
        if job.placement is None and not self._takes_idle(job):
            return False
        self._sampled = True
        return True

    def _takes_idle(self, job: Job) -> bool:
        kind = next((kind for kind in self._accepted(job) if self._idle[kind] >= job.spec.gpus), "")
        self._idle[kind] -= job.spec.gpus
        return bool(kind)

    def _waiting(self, job: Job, gpus: int) -> FixedSizeJob:
        kinds = tuple(kind for kind, count in self._accepted(job).items() if count >= gpus)
        return FixedSizeJob(job_id=job.id, gpus=gpus, kinds=kinds, queue=self._queue(job))

    def _opened(self, job: Job) -> int:
        """Return how many devices one more sharing job would open, once those opened before are full."""
        spec, before = job.spec, math.ceil(self._parts)
        share = Fraction(spec.fraction) if spec.sharing == "fraction" else Fraction(1, spec.sharers or 1)
        self._parts += spec.gpus * share
        return math.ceil(self._parts) - before

    def _new(self, job: Job) -> FixedSizeJob:
        """Return a new job of which nothing is known yet, as one that asks for its smallest width."""
        return self._waiting(job, job.spec.widths[0])

    def _awaits_profile(self, job: Job) -> bool:
        until_s = job.submitted_s + self._settings.await_profile_s
        if until_s <= self._now_s or not awaits_scaling(job, known=key_of(job) in self._state.scaled):
            return False
        self._look_again(until_s)
        self._sampled = True
        return True

    # --- elastic jobs
    def _running(self, job: Job) -> SizeRequest:
        kind = job.placement.kind if job.placement is not None else ""
        if (demand := job.demand) is not None:
            to = Size(demand.gpus, demand.batch_size or job.spec.batch_size)
            return self._request(job, to, demand.kinds[0] if demand.kinds else kind, movable=False)
        return self._request(job, job.size, kind, movable=self._is_movable(job))

    def _request(self, job: Job, now: Size | None, kind: str, *, movable: bool = True) -> SizeRequest:
        state = self._state
        used = state.shown.stubborn.get(job.id, 0)
        self._kinds[job.id] = tuple(self._accepted(job))
        if used and now is not None:
            now = Size(now.gpus, used)
        return SizeRequest(
            job_id=job.id,
            profiles=profiles(state, job, self._whole(job)),
            widths=job.spec.widths[:1] if job.id in state.idle else self._room.widths(job),
            now=now,
            kind=kind,
            asks=Size(job.spec.gpus, used) if used else job.size,
            cost_s=self._cost_s(job),
            movable=movable,
            unfit=[Size(size.gpus, used) for size in job.unfit] if used else job.unfit,
            fresh=not job.epoch,
            queue=self._queue(job),
        )

    def _cost_s(self, job: Job) -> float:
        """Return what resizing a job costs; one that does not run is resized for nothing."""
        if job.placement is None:
            return 0.0
        cost = self._state.costs.of(key_of(job))
        known = cost.stop_s is not None and cost.resume_s is not None
        return cost.overhead_s if known else max(cost.overhead_s, self._settings.unseen_cost_s)

    def _is_movable(self, job: Job) -> bool:
        """Say whether a run can stop for another size: not if it is starting, is young, or would lose its work."""
        old_s = job.started_s + self._settings.min_run_s
        shown, key = self._state.shown, key_of(job)
        if not job.started_s or self._ending or not shown.saves.get(key, False) or shown.doubts(key, job):
            return False
        if old_s > self._now_s:
            self._look_again(old_s)
            return False
        return True

    # --- devices
    def _accepted(self, job: Job) -> dict[str, int]:
        """Return how many devices of each kind there are that the job accepts."""
        kinds = job.spec.kinds if job.accepts is None else job.accepts
        demand = kinds, job.spec.memory_bytes, job.spec.host_demand
        found = self._accepted_by_demand.get(demand)
        if found is None:
            spec = msgspec.structs.replace(job.spec, kinds=kinds)
            fitting = Counter(self._fitting(spec))
            found = {kind: min(count, self._devices[kind]) for kind, count in sorted(fitting.items())}
            found = {kind: count for kind, count in found.items() if count}
            self._accepted_by_demand[demand] = found
        return found

    def _fitting(self, spec: JobSpec) -> Iterator[str]:
        """Yield the kinds of the devices that a job fits, of each node no more than its host has room for."""
        free = {
            node.id: nodes.of_node(node).holds(nodes.need_of(spec, nodes.share_of(node))) * nodes.runs(spec, node)
            for node in (self._state.cluster.usable(spec.pool) if nodes.asks(spec) else ())
        }
        for (node_id, _), device in self._there.items():
            if fits(spec, device) and free.get(node_id, 1):
                yield device.kind
                if node_id in free:
                    free[node_id] -= 1

    def _whole(self, job: Job) -> tuple[str, ...]:
        """Return the kinds of which a job accepts every device that there is."""
        return tuple(kind for kind, count in self._accepted(job).items() if count == self._devices[kind])

    def _is_partial(self, job: Job) -> bool:
        """Say whether a job accepts some devices of its kinds but no kind as a whole: they are not counted apart."""
        return bool(self._accepted(job)) and not self._whole(job)

    def _held(self, job: Job) -> list[tuple[str, int]]:
        """Return those of a job's devices that stand on nodes that take jobs."""
        slots = job.placement.slots if job.placement is not None else ()
        every = ((slot.node_id, index) for slot in slots if slot.node_id in job.open_nodes for index in slot.devices)
        return [at for at in every if at in self._there]

    def _is_drained(self, job: Job) -> bool:
        return len(self._held(job)) < job.spec.gpus

    def _queue(self, job: Job) -> int:
        own = max(
            0, place_of(job, self._state.ranks, self._levels)[0]
        )  # a sample comes first, but nobody makes way for it
        return own + BORROWED if job.id in self._borrowers else own

    def _look_again(self, at_s: float) -> None:
        self._again_s = min(self._again_s, at_s)


class _ClassRoom:
    """
    What the limits of priority classes leave to the jobs of each user.

    Every job has what it holds, or its least number of devices; what is left is for the first elastic one in the order.

    Attributes
    ----------
    beyond : set of str
        Waiting jobs that could not start within the limit.
    """

    def __init__(self, state: SizingKnowledge, in_order: Sequence[Job], now_s: float) -> None:
        self.beyond: set[str] = set()
        self._most: dict[str, int] = {}
        left: dict[tuple[str, str], float] = {}
        counted = [job for job in in_order if job.sample is None and most_of(job.spec, state.classes)]
        for job in sorted(counted, key=lambda job: job.placement is None and job.id not in state.returning):
            whose = job.spec.user, job.spec.priority_class
            room = left.setdefault(whose, most_of(job.spec, state.classes))
            runs = job.placement is not None or job.id in state.returning
            if not runs and (not job.startable or job.not_before_s > now_s):
                continue
            base = self._base(job, runs=runs)
            if runs or base <= room:
                left[whose] -= base
            else:
                self.beyond.add(job.id)
        for job in counted:
            if sizable(job) and job.id not in self.beyond:
                whose = job.spec.user, job.spec.priority_class
                more = int(max(0, left.get(whose, 0)))
                base = int(self._base(job, runs=job.placement is not None or job.id in state.returning))
                self._most[job.id] = base + more
                left[whose] = left.get(whose, 0) - more

    def widths(self, job: Job) -> range:
        """Return the numbers of devices that a job may be given."""
        own = job.spec.widths
        most = self._most.get(job.id)
        return own if most is None else range(own.start, max(own.start + 1, min(own.stop, most + 1)))

    @staticmethod
    def _base(job: Job, *, runs: bool) -> float:
        spec = job.spec
        if spec.sharing == "fraction":
            return spec.gpus * spec.fraction
        return spec.least_gpus if sizable(job) and not runs else max(spec.gpus, job.demand.gpus if job.demand else 0)


def sizable(job: Job) -> bool:
    """Say whether a job is to be sized: it is elastic, and there is a batch to divide among its devices."""
    return job.spec.elastic and job.sample is None and bool(job.spec.batch_size or job.spec.batch)


def _ends(job: Job) -> bool:
    """Say whether a job is about to be over, and holds devices still."""
    return job.state is JobState.COMPLETING


def _leaves(job: Job) -> bool:
    """Say whether a job's run is about to end, and the job to wait again as it is."""
    return job.placement is not None and job.stopping and job.demand is None


class SizingKnowledge(msgspec.Struct, frozen=True):
    """
    What a decision about sizes reads: nodes, the order of jobs, and what is known of their workloads.

    Attributes
    ----------
    scaled : mapping of str to tuple of Scalability
        Workload key → its measured scaling on each kind of device.
    costs : PreemptionCosts
        What stopping and resuming workloads costs.
    returning : mapping of str to str
        Job that has stopped to be resized, until it is placed → the kind for which that was.
    idle : collection of str
        Elastic jobs that have their least number of devices for as long as they do nothing.
    quotas : mapping of str to int
        Team → devices of the pool that are its own, with what is reserved for it now.
    of_kinds : mapping of str to mapping of str to int
        Team → kind → devices of this kind that are reserved for it now.
    classes : mapping of str to PriorityClass
        The pool's priority classes.
    mode : DispatchMode
        How the pool's order is walked.
    """

    cluster: Cluster
    ranks: Mapping[str, JobRank]
    scaled: Mapping[str, tuple[Scalability, ...]]
    speeds: Speeds
    costs: PreemptionCosts
    returning: Mapping[str, str]
    shown: ShownBehaviour
    idle: Collection[str] = ()
    quotas: Mapping[str, int] = {}
    of_kinds: OfKinds = {}
    classes: Classes = {}
    mode: DispatchMode = BY_QUEUE


def key_of(job: Job) -> str:
    """Return a job's workload key."""
    return job.profile_key or workload.key(job.spec)


def profiles(state: SizingKnowledge, job: Job, kinds: tuple[str, ...]) -> dict[str, ThroughputProfile]:
    """
    Return a job's known, else assumed, profile on each of some kinds, without sizes that were seen not to fit there.

    A job whose script uses a batch of its own, whatever it is given, has only this batch.
    """
    key, used = key_of(job), state.shown.stubborn.get(job.id, 0)
    batch, batch_size = (None, used) if used else (job.spec.batch, job.spec.batch_size)
    bounds = SizeBounds(job.spec.gpus, job.spec.min_gpus, job.spec.max_gpus, batch, batch_size)
    speeds = tuple(sorted(state.speeds.by_key.get(key, {}).items()))
    return _capped(_known(bounds, state.scaled.get(key, ()), kinds, speeds), state.shown.caps.get(key, {}))


class SizeBounds(NamedTuple):
    """The sizes that a job's specification allows."""

    gpus: int
    min_gpus: int
    max_gpus: int
    batch: Batch | None
    batch_size: int


@lru_cache(maxsize=4096)
def _known(
    bounds: SizeBounds, known: tuple[Scalability, ...], kinds: tuple[str, ...], speeds: tuple[tuple[str, float], ...]
) -> Mapping[str, ThroughputProfile]:
    spec = JobSpec(name="any", command=("any",), **bounds._asdict())
    return scaling_model.profiles(spec, known, kinds, dict(speeds))


def _capped(profiles: Mapping[str, ThroughputProfile], caps: Mapping[str, int]) -> dict[str, ThroughputProfile]:
    """Return profiles without sizes that were seen not to fit on a device."""
    most = {kind: min(profile.per_gpu_cap, caps.get(kind, profile.per_gpu_cap)) for kind, profile in profiles.items()}
    return {
        kind: profile if most[kind] == profile.per_gpu_cap else msgspec.structs.replace(profile, per_gpu_cap=most[kind])
        for kind, profile in profiles.items()
        if most[kind]
    }


T = TypeVar("T")

WORKLOADS: Final = 4096
"""Workloads of which it is remembered what did not fit, and whether they save."""


class ShownBehaviour(msgspec.Struct):
    """
    What runs of elastic jobs have shown.

    Attributes
    ----------
    saves : dict of str to bool
        Workload key → whether its script says how to save a checkpoint; one that does not is never resized.
    caps : dict of str to dict of str to int
        Workload key → kind of device → most samples that one such device may be given: one more did not fit.
    stubborn : dict of str to int
        Job → batch size that its script uses, whatever it is given.
    """

    saves: dict[str, bool] = msgspec.field(default_factory=dict)
    caps: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    stubborn: dict[str, int] = msgspec.field(default_factory=dict)

    def note_checkpoint(self, job: Job, key: str, event: RunCheckpointed) -> None:
        """Note that a run of a workload has saved something; ``job`` is as it was before."""
        _put(self.saves, key, True)
        if event.step > job.checkpoint_step:
            self._fits(job, key)

    def doubts(self, key: str, job: Job) -> bool:
        """Say whether a run has more on a device than is known to fit, and has not shown yet that it fits."""
        if job.placement is None:
            return False
        cap = self.caps.get(key, {}).get(job.placement.kind)
        return cap is not None and _local(job) > cap

    def note_end(self, job: Job, key: str, event: RunEnded) -> None:
        """Learn from the end of a run on one node; ``job`` is as it was before it."""
        placement = job.placement
        if placement is None or event.epoch != placement.epoch:
            return
        if event.out_of_memory and job.spec.batch_size and job.spec.sharing == "exclusive":
            self._cap(key, placement.kind, _local(job) - 1)
        elif event.loop_steps > EARLY_STEPS:
            self._fits(job, key)
        if event.node_id != placement.slots[0].node_id or not event.loop_steps:
            return  # of a gang, the node of its first process tells of the loop
        _put(self.saves, key, event.saves)
        if (
            job.spec.batch is not None
            and job.sample is None
            and abs(event.batch_size - job.spec.batch_size) >= job.spec.gpus
        ):
            self.stubborn[job.id] = event.batch_size or job.spec.batch_size

    def forget(self, job_id: str) -> None:
        """Note that a job is over."""
        self.stubborn.pop(job_id, None)

    def _fits(self, job: Job, key: str) -> None:
        """Drop a cap that a run has disproved."""
        if job.placement is not None and self.doubts(key, job):
            del self.caps[key][job.placement.kind]

    def _cap(self, key: str, kind: str, most: int) -> None:
        known = self.caps.get(key, {})
        _put(self.caps, key, {**known, kind: min(most, known.get(kind, most))})


def _local(job: Job) -> int:
    """Return how many samples each of a job's devices has."""
    return math.ceil(job.spec.batch_size / job.spec.gpus)


def _put(known: dict[str, T], key: str, value: T) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > WORKLOADS:
        del known[next(iter(known))]
