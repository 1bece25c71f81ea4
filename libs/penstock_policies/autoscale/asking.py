"""A pool as a decision about sizes takes it: who asks for what, in which order, and which devices are there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction

import msgspec

from penstock_events import Device, Job, JobSpec, Size
from penstock_events import State as JobState
from penstock_policies import hosts
from penstock_policies.autoscale.decide import decide
from penstock_policies.autoscale.knows import Knows, key_of
from penstock_policies.autoscale.profiles import profiles
from penstock_policies.autoscale.settings import Settings
from penstock_policies.autoscale.wish import Fixed, Rules, Sizing, Wish
from penstock_policies.cluster import fits
from penstock_policies.order import Manner
from penstock_policies.rounds.roster import key_of as place_of
from penstock_policies.sampling import awaits_scaling

Places = Mapping[tuple[str, int], Device]
"""Node and index → device, on nodes that take jobs."""


class Asked(msgspec.Struct):
    """
    What is decided on.

    Attributes
    ----------
    order : list of Wish or Fixed
        In rank order.
    devices : dict of str to int
        Kind → devices that are there for them.
    kinds : dict of str to tuple of str
        Elastic job → the kinds of these that it accepts.
    mute : set of str
        Elastic jobs in it that cannot be told anything now.
    returning : collection of str
        Those that have stopped to be resized, and stand in the order as if they ran.
    sampled : bool
        Whether samples of the profiler run or are about to, or a new job waits for what they show.
    again_s : float
        When something of this is otherwise though nothing happens.
    """

    order: list[Wish | Fixed]
    devices: dict[str, int]
    kinds: dict[str, tuple[str, ...]]
    mute: set[str]
    returning: Collection[str]
    sampled: bool
    again_s: float

    def still(self) -> list[Wish | Fixed]:
        """Return the order with all that run where and as they are."""
        return [
            msgspec.structs.replace(asking, movable=False)
            if isinstance(asking, Wish) and asking.runs and asking.job_id not in self.returning
            else asking
            for asking in self.order
        ]

    def is_met(self, sizing: Sizing) -> bool:
        """Say whether a decision has room for all that wait."""
        jobs, fixed = sizing.jobs, sizing.fixed
        waiting = [asking for asking in self.order if not asking.runs]
        return all(
            jobs[asking.job_id].gpus > 0 if isinstance(asking, Wish) else asking.job_id in fixed for asking in waiting
        )

    def sizing(self, rules: Rules, manner: Manner) -> Sizing:
        """
        Return what is decided.

        While the profiler samples, runs are resized only to let others in: for what comes free between two samples
        nobody is to grow, and shrink again for the next one.
        """
        if self.sampled:
            sizing = decide(self.still(), self.devices, rules, manner)
            if self.is_met(sizing):
                return sizing
        return decide(self.order, self.devices, rules, manner)


def asked(state: Knows, jobs: Iterable[Job], name: str, now_s: float, settings: Settings) -> Asked:
    """Return what a pool's jobs, those that are not over, ask for now."""
    return _Asking(state, jobs, name, now_s, settings).all()


class _Asking:
    def __init__(self, state: Knows, jobs: Iterable[Job], name: str, now_s: float, settings: Settings) -> None:
        self._state, self._now_s, self._settings = state, now_s, settings
        self._jobs = sorted(jobs, key=lambda job: place_of(job, state.ranks))
        self._there: Places = {
            (node.id, device.index): device for node in state.cluster.usable(name) for device in node.devices
        }
        gone = {at for job in self._jobs if _ends(job) or job.spec.sharing != "exclusive" for at in self._held(job)}
        self._devices = Counter(device.kind for at, device in self._there.items() if at not in gone)
        self._ending = any(map(_ends, self._jobs))
        self._parts = Fraction(0)
        self._kinds: dict[str, tuple[str, ...]] = {}
        self._rooms: dict[tuple[tuple[str, ...], int, float, int], dict[str, int]] = {}
        self._mute: set[str] = set()
        held = (at for job in self._jobs for at in self._held(job) if at not in gone)
        self._idle = self._devices - Counter(self._there[at].kind for at in held)
        self._sampled = False
        self._again_s = math.inf

    def all(self) -> Asked:
        order = [asking for job in self._jobs for asking in self._of(job)]
        return Asked(
            order, dict(self._devices), self._kinds, self._mute, self._state.returning, self._sampled, self._again_s
        )

    def _of(self, job: Job) -> Iterator[Wish | Fixed]:
        held = job.placement is None and job.held
        if _ends(job) or held or (job.sample is not None and not self._is_sampled_now(job)):
            return
        if job.spec.sharing != "exclusive":
            if job.placement is None and (gpus := self._opened(job)):
                yield self._waiting(job, gpus)
        elif job.placement is None and job.not_before_s > self._now_s:
            self._look_again(job.not_before_s)
        elif not sizable(job) or (job.epoch and self._is_partial(job)):
            yield from self._fixed(job)
        elif job.placement is None and (kind := self._state.returning.get(job.id, "")) in self._room(job):
            yield self._wish(job, job.size, kind)  # it has had devices until now, and goes on before others come
        elif job.placement is None:
            waits = self._awaits_profile(job)
            yield self._new(job) if waits else self._wish(job, None, "", movable=not self._is_partial(job))
        elif _leaves(job):
            self._mute.add(job.id)
            yield self._wish(job, None, "")
        elif self._is_drained(job):
            yield from self._fixed(job)
        else:
            yield self._running(job)

    # --- jobs that are not for us to size
    def _fixed(self, job: Job) -> Iterator[Fixed]:
        if job.placement is None or _leaves(job):
            yield self._waiting(job, job.spec.gpus)
        elif held := len(self._held(job)):  # on nodes that are emptied it takes up nothing of what is counted
            kind = job.placement.kind
            yield Fixed(job_id=job.id, gpus=held, kinds=(kind,), kind=kind, queue=self._queue(job))

    def _is_sampled_now(self, job: Job) -> bool:
        """Say whether a sample runs, or can start on idle devices: nobody's run is resized to let one in."""
        if job.placement is None and not self._takes_idle(job):
            return False
        self._sampled = True
        return True

    def _takes_idle(self, job: Job) -> bool:
        kind = next((kind for kind in self._room(job) if self._idle[kind] >= job.spec.gpus), "")
        self._idle[kind] -= job.spec.gpus
        return bool(kind)

    def _waiting(self, job: Job, gpus: int) -> Fixed:
        kinds = tuple(kind for kind, count in self._room(job).items() if count >= gpus)
        return Fixed(job_id=job.id, gpus=gpus, kinds=kinds, queue=self._queue(job))

    def _opened(self, job: Job) -> int:
        """Return how many devices one more job that shares them would open, filling those opened before."""
        spec, before = job.spec, math.ceil(self._parts)
        share = Fraction(spec.fraction) if spec.sharing == "fraction" else Fraction(1, spec.sharers or 1)
        self._parts += spec.gpus * share
        return math.ceil(self._parts) - before

    def _new(self, job: Job) -> Fixed:
        """Return a new job of which nothing is known yet: its smallest width is left alone for it."""
        return self._waiting(job, job.spec.widths[0])

    def _awaits_profile(self, job: Job) -> bool:
        until_s = job.submitted_s + self._settings.await_profile_s
        if until_s <= self._now_s or not awaits_scaling(job, known=key_of(job) in self._state.scaled):
            return False
        self._look_again(until_s)
        self._sampled = True
        return True

    # --- elastic jobs
    def _running(self, job: Job) -> Wish:
        kind = job.placement.kind if job.placement is not None else ""
        if (demand := job.demand) is not None:
            to = Size(demand.gpus, demand.batch_size or job.spec.batch_size)
            return self._wish(job, to, demand.kinds[0] if demand.kinds else kind, movable=False)
        return self._wish(job, job.size, kind, movable=self._is_movable(job))

    def _wish(self, job: Job, now: Size | None, kind: str, *, movable: bool = True) -> Wish:
        state = self._state
        used = state.shown.stubborn.get(job.id, 0)
        self._kinds[job.id] = tuple(self._room(job))
        if used and now is not None:
            now = Size(now.gpus, used)
        return Wish(
            job_id=job.id,
            profiles=profiles(state, job, self._whole(job)),
            widths=job.spec.widths,
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
        """Say whether a run can be asked to stop for another size: it starts up, is young, or would lose all it did."""
        old_s = job.started_s + self._settings.min_run_s
        shown, key = self._state.shown, key_of(job)
        if not job.started_s or self._ending or not shown.saves.get(key, False) or shown.doubts(key, job):
            return False
        if old_s > self._now_s:
            self._look_again(old_s)
            return False
        return True

    # --- devices
    def _room(self, job: Job) -> dict[str, int]:
        """Return how many devices of each kind there are that the job accepts."""
        kinds = job.spec.kinds if job.accepts is None else job.accepts
        demand = kinds, job.spec.memory_bytes, job.spec.cpus, job.spec.host_memory_bytes
        found = self._rooms.get(demand)
        if found is None:
            spec = msgspec.structs.replace(job.spec, kinds=kinds)
            fitting = Counter(self._fitting(spec))
            found = {kind: min(count, self._devices[kind]) for kind, count in sorted(fitting.items())}
            found = {kind: count for kind, count in found.items() if count}
            self._rooms[demand] = found
        return found

    def _fitting(self, spec: JobSpec) -> Iterator[str]:
        """Yield the kinds of the devices that a job fits, of each node no more than its host has room for."""
        room = {
            node.id: hosts.of_node(node).holds(hosts.need_of(spec, hosts.share_of(node)))
            for node in (self._state.cluster.usable(spec.pool) if hosts.asks(spec) else ())
        }
        for (node_id, _), device in self._there.items():
            if fits(spec, device) and room.get(node_id, 1):
                yield device.kind
                if node_id in room:
                    room[node_id] -= 1

    def _whole(self, job: Job) -> tuple[str, ...]:
        """Return the kinds of which a job accepts every device that there is."""
        return tuple(kind for kind, count in self._room(job).items() if count == self._devices[kind])

    def _is_partial(self, job: Job) -> bool:
        """Say whether a job accepts no kind as a whole, but some of its devices: they are not counted apart."""
        return bool(self._room(job)) and not self._whole(job)

    def _held(self, job: Job) -> list[tuple[str, int]]:
        """Return those of a job's devices that stand on nodes that take jobs."""
        slots = job.placement.slots if job.placement is not None else ()
        every = ((slot.node_id, index) for slot in slots if slot.node_id in job.open_nodes for index in slot.devices)
        return [at for at in every if at in self._there]

    def _is_drained(self, job: Job) -> bool:
        return len(self._held(job)) < job.spec.gpus

    def _queue(self, job: Job) -> int:
        return max(0, place_of(job, self._state.ranks)[0])  # a sample comes first, but nobody makes way for it

    def _look_again(self, at_s: float) -> None:
        self._again_s = min(self._again_s, at_s)


def sizable(job: Job) -> bool:
    """Say whether a job is to be sized: it is elastic, and there is a batch to divide among its devices."""
    return job.spec.elastic and job.sample is None and bool(job.spec.batch_size or job.spec.batch)


def _ends(job: Job) -> bool:
    """Say whether a job is about to be over, and holds devices still."""
    return job.state is JobState.COMPLETING


def _leaves(job: Job) -> bool:
    """Say whether a job's run is about to end, and the job to wait again as it is."""
    return job.placement is not None and job.stopping and job.demand is None
