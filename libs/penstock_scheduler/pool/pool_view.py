"""
View of one pool, from which a round is decided, with what rounds remember of the past.

:class:`PoolView` is what a round knows: the pool's jobs and devices, its ranks, speeds and history. It gives the
policies their own views: the supply of devices, the context of times and speeds, the runs that are to move.
:class:`RoundHistory` is the part of the fold that remembers past rounds: what stopping a workload costs, how far each
user is, and for which gangs devices are kept. :class:`SharingForecast` says what a round expects of jobs that share
devices: who is on which device, and when they are expected to end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_cluster.nodes import Cluster, Node
from penstock_log import Device, Job, JobRank, JobState, ReservationMade, RoundDecided
from penstock_log.workload import consolidates
from penstock_policies import job_lengths
from penstock_policies.job_lengths import FinishedService
from penstock_policies.queue_policies import BY_QUEUE, DispatchMode
from penstock_policies.workload_stats import PreemptionCost, PreemptionCosts, Speeds
from penstock_scheduler import fairness
from penstock_scheduler.assignment import ASSIGNMENTS, DeviceSupply
from penstock_scheduler.fairness import FairnessProgress
from penstock_scheduler.placement import FreeDevices, Shape
from penstock_scheduler.pool.pool_index import PoolIndex
from penstock_scheduler.pool.run_columns import SAMPLE_S, GrantTerms, shape_of
from penstock_scheduler.round_types import BORROWED, PreemptibleRun, RankedJob, RoundContext, RoundRules
from penstock_scheduler.sharing import co_preemption
from penstock_scheduler.sharing.co_preemption import SharingRun
from penstock_scheduler.sharing.shared_devices import SharingLimits
from penstock_scheduler.sharing.shared_placement import SharedPlacement


class PoolView(msgspec.Struct, frozen=True):
    """
    One pool as a round sees it.

    Attributes
    ----------
    index : PoolIndex
        The index of its jobs that are not over, and of its devices.
    mode : DispatchMode
        How the order is walked.
    history : RoundHistory
        The history of its rounds.
    promised : collection of str
        Waiting jobs for which runs were preempted.
    explained_s : float
        When the last round was that explained; minus infinity before the first.
    explained : mapping of str to str
        Job → cause, as that one said.
    decided_s : float
        When the last round was; minus infinity before the first.
    team_reservations : sequence of ReservationMade
        The reservations for teams that are not over, and perhaps some that are.
    """

    name: str
    cluster: Cluster
    index: PoolIndex
    ranks: dict[str, JobRank]
    keys: Mapping[str, str]
    speeds: Speeds
    finished_s: FinishedService
    history: RoundHistory
    promised: Collection[str]
    explained_s: float
    explained: Mapping[str, str]
    decided_s: float = -math.inf
    mode: DispatchMode = BY_QUEUE
    team_reservations: Sequence[ReservationMade] = ()

    @property
    def progress(self) -> FairnessProgress:
        """How far the pool's users are; empty where it has had none."""
        return self.history.progress.get(self.name) or FairnessProgress()

    @property
    def reservations(self) -> Mapping[str, str]:
        """The patient gangs, and the kind that each waits for."""
        return self.history.reservations.get(self.name, {})

    def alpha(self, rules: RoundRules) -> float:
        """Return the share of users whose jobs enter a round at first."""
        return rules.alpha if rules.alpha < 1.0 and len(self.progress.active) > 1 else 1.0

    def evicted(self) -> list[PreemptibleRun]:
        """Return the runs that are to move: they are on what is being emptied, or are to get another width."""
        if not self.index.evicting and not self.index.moving:
            return []
        return [run for run in self.index.runs() if self.is_evicted(run.ranked.job)]

    def ranked_by(self, ranked: RankedJob, now_s: float) -> RankedJob:
        """Return a running job with its present position, which may fall as the job executes."""
        rank = self.ranks.get(ranked.job_id)
        if rank is None or not rank.falls_per_s or not ranked.job.started_s:
            return ranked
        return ranked._replace(position=ranked.position - rank.falls_per_s * max(0.0, now_s - ranked.job.started_s))

    def is_evicted(self, job: Job) -> bool:
        """Say whether a run is to move: it is on what is being emptied, or it is to get another width."""
        return can_be_stopped(job) and (job.demand is not None or bool(self.emptied(job)))

    def emptied(self, job: Job) -> str:
        """Return why a run is to leave where it is: the first of its nodes or devices that is being emptied."""
        nodes = [node for node_id in sorted(job.open_nodes) if (node := self.cluster.nodes.get(node_id)) is not None]
        drained = (f"node {node.id} is drained" for node in nodes if node.evicting)
        return next(chain(drained, self._emptied_devices(job, nodes)), "")

    @staticmethod
    def _emptied_devices(job: Job, nodes: Sequence[Node]) -> Iterator[str]:
        slots = job.placement.slots if job.placement is not None else ()
        held = {(slot.node_id, index) for slot in slots for index in slot.devices}
        for node in nodes:
            for device, outage in node.emptied_devices():
                if (node.id, device.index) in held:
                    what = "failed" if outage.failed else "is drained"
                    reason = f": {outage.reason}" if outage.reason else ""
                    yield f"device {node.id}/{device.kind}{device.index} {what}{reason}"

    def supply(self) -> DeviceSupply:
        """Return the pool's devices; those of runs that are stopping are apart."""
        index, coming = self.index, FreeDevices({}, self.index.paths)
        if index.stopping:
            own = (job_id for job_id in index.stopping if job_id not in index.sharing.demands)
            devices = chain((at for job_id in own for at in index.run(job_id).devices), index.sharing.leaving())
            coming.give({(node_id, device.index): (node_id, device) for node_id, device in devices}.values())
        return DeviceSupply(free=index.free, coming=coming, whole=index.whole)

    def context(self, now_s: float, rules: RoundRules) -> RoundContext:
        """Return the round's context: time, speeds, expected lengths and costs."""
        of_workload = self._speed(rules)

        def speed(job: Job, kind: str) -> float:
            return of_workload(self.keys[job.id], kind)

        def remaining(jobs: Sequence[Job]) -> list[float]:
            attained_s = np.array([job.executed_s for job in jobs])
            return list(self._left_s(jobs, attained_s, rules.prior_service_s).tolist())

        def cost(job: Job) -> PreemptionCost:
            return self.history.costs.of(self.keys[job.id])

        def together(job: Job) -> bool:
            if rules.placement == "consolidate":
                return True
            shape = job.spec.skew or self.speeds.skew(self.keys[job.id])
            return consolidates(shape, rules.skew_threshold)

        def workload(job: Job) -> str:
            return self.keys[job.id]

        return RoundContext(now_s, speed, remaining, rules, rules.prior_service_s, cost, self.mode, together, workload)

    def terms(self, context: RoundContext) -> GrantTerms:
        """Return what the round expects of runs, as columns take it; it agrees with the context."""
        speed, cost = self._speed(context.rules), self.history.costs.of
        return GrantTerms(context.now_s, self.keys, speed, cost, self.finished_s, context.prior_s)

    def _speed(self, rules: RoundRules) -> Callable[[str, str], float]:
        """Return the speed of a workload on a kind, for the length of a round."""
        return RoundSpeeds(self.speeds).of if ASSIGNMENTS[rules.assign].knows_speeds else _alike

    def _left_s(self, jobs: Sequence[Job], attained_s: npt.NDArray[np.float64], prior_s: float) -> job_lengths.Floats:
        # Seconds executed in ended runs count as if on the fastest kind; a job's log does not say which kind it was.
        declared_s = np.array([SAMPLE_S if job.sample is not None else job.spec.duration_s for job in jobs])
        expected_s = job_lengths.remaining_s(attained_s, self.finished_s, prior_s)
        return job_lengths.left_s(declared_s, attained_s, expected_s)


class RoundSpeeds:
    """The speeds of workloads while a round is decided: what is guessed of a kind is guessed once."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._guesses: dict[str, float] = {}

    def of(self, workload: str, kind: str) -> float:
        """Return a workload's speed on a kind; where unknown, what the others show."""
        of_kinds = self._speeds.by_key.get(workload)
        own = of_kinds.get(kind) if of_kinds else None
        if own is not None:
            return own
        if kind not in self._guesses:
            self._guesses[kind] = self._speeds.guess(kind)
        return self._guesses[kind]


def can_be_stopped(job: Job) -> bool:
    """Say whether a job runs and has not been asked to stop yet."""
    return job.state is JobState.RUNNING and not job.stopping


def _alike(workload: str, kind: str) -> float:  # noqa: ARG001 - the form of all speeds
    return 1.0


class RoundHistory(msgspec.Struct):
    """
    What rounds remember of the past; a part of the fold.

    Attributes
    ----------
    costs : PreemptionCosts
        What stopping and resuming costs, for each workload.
    progress : dict of str to FairnessProgress
        Pool → the progress of its users.
    reservations : dict of str to dict of str to str
        Pool → its gangs whose patience is over, and the kind that each waits for, as the last round said.
    classes : dict of str to list of (Device, int)
        Pool → its classes of equal devices and the number of each; dropped when a node comes or goes.
    """

    costs: PreemptionCosts = msgspec.field(default_factory=PreemptionCosts)
    progress: dict[str, FairnessProgress] = msgspec.field(default_factory=dict)
    reservations: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    classes: dict[str, list[tuple[Device, int]]] = msgspec.field(default_factory=dict)

    def decided(self, event: RoundDecided) -> None:
        """Fold in a round; call it before the round changes its jobs."""
        for preemption in event.preemptions:
            self.costs.ask(preemption.job_id, event.at_s)
        if not event.lost_nodes:  # a round that says only this
            self.reservations[event.pool] = event.keeps

    def arrive(self, job: Job, at_s: float) -> None:
        """Note a new job."""
        if job.sample is None:
            self.progress.setdefault(job.spec.pool, FairnessProgress()).arrive(job.spec.user, at_s)

    def note(self, job: Job, at_s: float, cluster: Cluster, speed: Callable[[str, str], float], key: str) -> None:
        """Note a change of a job: it may have begun to execute, or ceased to."""
        if job.placement is None:
            self.costs.forget(job.id)
        if job.sample is not None:
            return
        progress, user = self.progress[job.spec.pool], job.spec.user
        if job.placement is None or not job.started_s:
            if job.id in progress.rates:
                progress.stop(job.id, user, at_s)
        elif job.id not in progress.rates or job.spec.sharing != "exclusive":
            classes = self._classes(job.spec.pool, cluster)
            rate = job.share * fairness.rate(job.spec, job.placement.kind, partial(speed, key), classes)
            if progress.rates.get(job.id, rate) != rate:  # somebody came or went beside it
                progress.stop(job.id, user, at_s)
            progress.start(job.id, user, rate, at_s)

    def leave(self, job: Job, at_s: float) -> None:
        """Note that a job is over."""
        self.costs.forget(job.id)
        if job.sample is None:
            progress = self.progress[job.spec.pool]
            progress.stop(job.id, job.spec.user, at_s)
            progress.leave(job.spec.user, at_s)

    def _classes(self, pool: str, cluster: Cluster) -> list[tuple[Device, int]]:
        if pool not in self.classes:
            self.classes[pool] = fairness.classes(node.devices for node in cluster.present(pool))
        return self.classes[pool]


Place = tuple[int, float]
"""Queue and position."""


class SharingForecast:
    """
    What a round expects of the runs that share devices; worked out once, when it is first asked.

    Parameters
    ----------
    first : (int, float) or None
        The place in the order of the first job for which others might make way; None if there is none.
    closing : collection of str
        The nodes that leave too soon for a job to begin there: nobody joins others on their devices.
    """

    def __init__(
        self,
        pool: PoolView,
        context: RoundContext,
        borrowers: Collection[str],
        first: Place | None,
        *,
        closing: Collection[str] = (),
    ) -> None:
        self._pool, self._context, self._borrowers, self._first = pool, context, borrowers, first
        self._closing = closing

    @cached_property
    def behind(self) -> Mapping[str, SharingRun]:
        """The runs that rank below some waiting job, as far as preemption goes, by job."""
        runs = self._pool.index.sharing.runs.values()
        return self._of([run for run in runs if self._is_behind(run.ranked)])

    def ends(self) -> Iterator[tuple[str, Shape, float]]:
        """Yield each co-preempted set, its devices, and in how many seconds its last run should end."""
        sharing = self._pool.index.sharing
        every = self._of(list(sharing.runs.values())) if sharing.ties else {}
        for name, jobs in sharing.ties.items():
            run = co_preemption.as_one(name, [every[job_id] for job_id in jobs])
            yield name, shape_of(run), run.left_s

    def supply(self, plain: DeviceSupply) -> DeviceSupply:
        """Return the supply for one try of a round, with the shared devices as they are now."""
        index, context = self._pool.index.sharing, self._context
        limits = SharingLimits(context.rules.lane_reserve_share, context.rules.most_sharers)
        devices = index.shared(limits)
        if self._closing:
            devices = {at: shared for at, shared in devices.items() if at[0] not in self._closing}
        sharing = SharedPlacement(
            devices,
            index.demands,
            stopping=index.stopping,
            sharing_runs=lambda: self.behind,
            speed=context.speed,
            limits=limits,
        )
        return msgspec.structs.replace(plain, sharing=sharing)

    def _is_behind(self, ranked: RankedJob) -> bool:
        if self._first is None:
            return False
        queue = ranked.queue + BORROWED * (ranked.job_id in self._borrowers)
        by_position = self._context.mode.preempts == "position"
        return (queue, ranked.position) > self._first if by_position else queue > self._first[0]

    def _of(self, runs: Sequence[PreemptibleRun]) -> Mapping[str, SharingRun]:
        return co_preemption.sharing_runs(runs, self._context, self._pool.finished_s, self._borrowers)
