"""
The autoscaler's settings, state, apply, decide.

The autoscaler folds nodes, jobs in their order, how workloads scale, and what a resize costs. It decides which elastic
jobs of a pool have another size from now on. It does so when a job or a node comes or goes, the order changes, or
something is learnt of a workload; and at an interval, since a run that is too young to be resized grows older. Where
the rule of a pool is that idle runs shrink, such a job has its least number of devices until it works again. Settings
come from the table ``[autoscaler]`` or from ``PENSTOCK_AUTOSCALER_…``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Final, Literal, NamedTuple

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_cluster.nodes import OF_NODES, Cluster
from penstock_log import (
    TERMINAL,
    Demand,
    Event,
    Job,
    JobHeld,
    JobRank,
    JobReleased,
    JobsArchived,
    JobsRanked,
    JobState,
    JobSubmitted,
    JobTable,
    JobUnblocked,
    PolicySet,
    ReservationCancelled,
    ReservationMade,
    RoundDecided,
    RunBusyAgain,
    RunCheckpointed,
    RunEnded,
    RunIdle,
    RunMeasured,
    RunRewound,
    RunStarted,
    SamplesRequested,
    Scalability,
    ScaleDecided,
    Setting,
    Size,
    WorkloadProfiled,
    WorkloadScaled,
    lifecycle,
    subjects,
)
from penstock_policies import elastic
from penstock_policies.idleness import IdleRules, IdleRun, note_idleness
from penstock_policies.queue_policies import BY_QUEUE, DispatchMode
from penstock_policies.workload_stats import PreemptionCosts, Speeds
from penstock_scheduler.pool.pool_settings import MatcherSettings, overlaid
from penstock_scheduler.pool.scheduler_state import PoolReservations, note_reservation
from penstock_scheduler.reservations import next_change_s, reserved_kinds, rules_at
from penstock_scheduler.sizing.pool_sizes import ShownBehaviour, SizingKnowledge, SizingProblem, asked, key_of
from penstock_scheduler.sizing.problem import SizeGrant, SizeRequest, SizingDecision, SizingSettings

_OTHERS: Final[frozenset[type[Event]]] = frozenset(
    (
        JobsRanked,
        PolicySet,
        ReservationCancelled,
        ReservationMade,
        RunBusyAgain,
        RunIdle,
        WorkloadProfiled,
        WorkloadScaled,
    )
)
"""What the autoscaler reads beside facts about jobs and nodes."""


def decider(settings: SizingSettings | None = None, matcher: MatcherSettings | None = None) -> Decider[AutoscalerState]:
    """
    Return the autoscaler as the shell, the simulator and tests run it.

    Parameters
    ----------
    matcher : MatcherSettings, optional
        The matcher's settings, for the quotas that its file has.
    """
    chosen, of_matcher = settings or SizingSettings(), matcher or MatcherSettings()
    return Decider(
        name="autoscaler",
        state=AutoscalerState,
        schema="autoscaler.11",
        apply=apply,
        decide=partial(decide, settings=chosen, matcher=of_matcher),
        reads=OF_NODES | lifecycle.OF_JOBS | _OTHERS,
        ignores=frozenset({RunMeasured}),
    )


def apply(state: AutoscalerState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    match event:
        case JobsRanked():
            _note_ranks(state, event, seq)
        case WorkloadScaled():
            _note_scaled(state, event, seq)
        case WorkloadProfiled():
            state.speeds.apply(event)
            _note_key(state, event.key, seq)
        case JobsArchived():
            for key in event.workloads:
                state.scaled.pop(key, None)
                state.speeds.forget(key)
        case _ if type(event) in OF_NODES and state.cluster.apply(event):
            for name in state.pools:
                state.note(name, seq, "nodes")
    _learn(state, event, seq)
    _note_quotas(state, event, seq)
    _note_idleness(state, event, seq)
    changed = state.jobs.apply(event)
    if isinstance(event, ScaleDecided):
        _note_void(state, event, changed)
    _sort_in(state, changed, event, seq)


def _note_ranks(state: AutoscalerState, event: JobsRanked, seq: int) -> None:
    pool = state.pool(event.pool)
    moved = False
    for rank in event.ranks:
        if rank.job_id in pool.jobs:
            moved = moved or rank.job_id in state.ranks
            state.ranks[rank.job_id] = rank
    pool.mode = DispatchMode(event.backfills, event.preempts)
    state.note(event.pool, seq, "order" if moved else None)


def _note_scaled(state: AutoscalerState, event: WorkloadScaled, seq: int) -> None:
    state.scaled.pop(event.key, None)
    state.scaled[event.key] = event.kinds
    if len(state.scaled) > WORKLOADS:
        del state.scaled[next(iter(state.scaled))]
    _note_key(state, event.key, seq)


def _note_key(state: AutoscalerState, key: str, seq: int) -> None:
    """Note that something was learnt of a workload."""
    for name, pool in state.pools.items():
        if any(key_of(state.jobs[job_id]) == key for job_id in pool.elastic):
            state.note(name, seq, "profile")


def _note_quotas(state: AutoscalerState, event: Event, seq: int) -> None:
    """Note what is set live for a pool, its quotas among it, and what is reserved."""
    match event:
        case PolicySet():
            state.live[event.pool] = event.settings
        case ReservationMade() | ReservationCancelled():
            if note_reservation(state.reserved, event):
                state.note(event.pool, seq)
        case _:
            pass


def _note_idleness(state: AutoscalerState, event: Event, seq: int) -> None:
    """Note the rules for idle runs, which runs are idle, and which jobs are shrunk for it."""
    match event:
        case PolicySet():
            rules = state.idle_rules[event.pool] = IdleRules.of(event.settings)
            if not rules.shrinks:
                for job_id in [one for one in state.shrunk if state.jobs[one].spec.pool == event.pool]:
                    del state.shrunk[job_id]
            state.note(event.pool, seq)
        case RunIdle() | RunBusyAgain():
            job = state.jobs.get(event.job_id)
            if job is None or not job.spec.elastic or not note_idleness(state.idle, job, event):
                return
            if isinstance(event, RunBusyAgain):
                state.shrunk.pop(job.id, None)
            state.note(job.spec.pool, seq)
        case ScaleDecided():
            _note_shrunk(state, event)
        case _:
            pass


def _note_shrunk(state: AutoscalerState, event: ScaleDecided) -> None:
    """Note the jobs that were idle when their sizes were decided: they keep the least one until they do a step."""
    due, _ = _due(state, event.pool, event.at_s)
    for demand in event.demands:
        if demand.job_id in due:
            job = state.jobs[demand.job_id]
            state.shrunk.setdefault(job.id, ShrunkJob(job.epoch, job.steps))


def _note_work(state: AutoscalerState, job: Job, seq: int) -> None:
    """Note whether a job that was idle works again, or has another run."""
    if (run := state.idle.get(job.id)) is not None and not run.is_of(job):
        del state.idle[job.id]
    if (shrunk := state.shrunk.get(job.id)) is None:
        return
    if job.epoch > shrunk.epoch and job.steps > shrunk.steps:
        del state.shrunk[job.id]
        state.note(job.spec.pool, seq)
    else:  # the idle run says at its end how far it came, and the next one may begin before that
        state.shrunk[job.id] = shrunk._replace(steps=job.steps)


def _due(state: AutoscalerState, pool: str, now_s: float) -> tuple[dict[str, str], float]:
    """Return the jobs of a pool that shrink for being idle, each with the reason, and when the next one is due."""
    rules = state.idle_rules.get(pool)
    found: dict[str, str] = {}
    next_s = math.inf
    if rules is None or not rules.shrinks:
        return found, next_s
    for job_id, run in state.idle.items():
        job = state.jobs[job_id]
        since_s = run.idle_since_s(job) if job.spec.pool == pool else None
        due_s = rules.due_s(since_s) if since_s is not None else None
        if since_s is None or due_s is None or job.spec.gpus <= job.spec.least_gpus:
            continue
        if due_s > now_s:
            next_s = min(next_s, due_s)
        else:
            found[job_id] = f"{run.found(now_s - since_s)}; pool {pool} takes devices from such runs"
    return found, next_s


def _learn(state: AutoscalerState, event: Event, seq: int) -> None:
    """Note what a fact says beside the states of jobs, before these change."""
    match event:
        case RoundDecided():
            for preemption in event.preemptions:
                state.costs.ask(preemption.job_id, event.at_s)
        case RunEnded():
            job = state.jobs.get(event.job_id)
            if job is not None and job.started_s and job.may_run(event.epoch, event.node_id):
                state.costs.end(job, key_of(job), event)
                if job.spec.elastic and job.demand is not None and job.placement is not None:
                    state.returning[job.id] = (*job.demand.kinds, job.placement.kind)[0]
                if job.spec.elastic or job.sample is not None:
                    state.shown.note_end(job, key_of(job), event)
        case RunCheckpointed():
            job = state.jobs.get(event.job_id)
            if job is not None and job.spec.elastic and job.placement is not None and job.epoch == event.epoch:
                if not state.shown.saves.get(key := key_of(job), False):
                    state.note(job.spec.pool, seq)
                state.shown.note_checkpoint(job, key, event)
        case _:
            pass


def _note_void(state: AutoscalerState, event: ScaleDecided, changed: Iterable[Job]) -> None:
    """Note demands that changed nothing, so that they are not made again."""
    changed_ids = {job.id for job in changed}
    for demand in event.demands:
        if demand.job_id in state.jobs.by_id and demand.job_id not in changed_ids:
            state.void[demand.job_id] = demand


def _sort_in(state: AutoscalerState, changed: Iterable[Job], event: Event, seq: int) -> None:
    because = _because(event)
    for job in changed:
        _note_work(state, job, seq)
        if job.placement is None:
            state.costs.forget(job.id)
        if not job.startable or job.state is JobState.RUNNING:
            state.returning.pop(job.id, None)
        if job.state in TERMINAL:
            _forget(state, job)
        else:
            _keep(state, job)
        if job.state in TERMINAL:
            state.note(job.spec.pool, seq, "completion")
        elif not isinstance(event, RunCheckpointed | RunMeasured | RunRewound) and (
            job.spec.elastic or not isinstance(event, RunStarted)
        ):
            state.note(job.spec.pool, seq, because)


def _because(event: Event) -> Because | None:
    match event:
        case JobSubmitted() | SamplesRequested() | JobReleased() | JobUnblocked():
            return "arrival"
        case JobHeld() | RunEnded():
            return "completion"
        case RoundDecided() if event.lost_nodes:
            return "nodes"
        case _:
            return None


def _keep(state: AutoscalerState, job: Job) -> None:
    pool = state.pool(job.spec.pool)
    pool.jobs[job.id] = None
    if job.spec.elastic and job.sample is None:
        pool.elastic[job.id] = None


def _forget(state: AutoscalerState, job: Job) -> None:
    pool = state.pool(job.spec.pool)
    pool.jobs.pop(job.id, None)
    pool.elastic.pop(job.id, None)
    state.ranks.pop(job.id, None)
    state.void.pop(job.id, None)
    state.returning.pop(job.id, None)
    state.idle.pop(job.id, None)
    state.shrunk.pop(job.id, None)
    state.shown.forget(job.id)
    state.jobs.forget(job.id)


MOST_DEMANDS: Final = 1_000
"""In one fact, which has to fit in a message of the log: the others follow in the next ones."""


def decide(state: AutoscalerState, now_s: float, settings: SizingSettings, matcher: MatcherSettings) -> Decision:
    """Return the changes of sizes; a pool is looked at after a change there, or at a time that its last look named."""
    proposals, wake_s = [], math.inf
    for name, pool in sorted(state.pools.items()):
        if not pool.elastic:
            continue
        rest = state.rests.get(name)
        changed = rest is None or rest.seq != pool.change.seq
        if rest is None or changed or rest.until_s <= now_s:
            because = pool.change.because if changed else "interval"
            fact, until_s = _pool(state, name, now_s, because, settings, matcher=matcher)
            if fact is not None:
                proposals.append(Proposal(subject=subjects.scale(name), facts=(fact,), cause=pool.change.seq))
                continue
            rest = state.rests[name] = PoolRest(pool.change.seq, until_s)
        wake_s = min(wake_s, rest.until_s)
    return Decision(proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)


def _pool(
    state: AutoscalerState,
    name: str,
    now_s: float,
    because: Because,
    settings: SizingSettings,
    *,
    matcher: MatcherSettings,
) -> tuple[ScaleDecided | None, float]:
    """Return the changes of sizes in a pool, and when to look again if there are none."""
    pool = state.pools[name]
    due, next_s = _due(state, name, now_s)
    reserved = _reserved(state, name)
    rules = rules_at(overlaid(matcher.of(name), state.live.get(name, {})), reserved, now_s)
    changes_s = next_change_s(reserved, now_s)
    known = SizingKnowledge(
        state.cluster,
        state.ranks,
        state.scaled,
        state.speeds,
        state.costs,
        state.returning,
        state.shown,
        idle={**state.shrunk, **due},
        quotas=rules.quotas,
        of_kinds=reserved_kinds(reserved, now_s),
        classes=rules.classes,
        mode=pool.mode,
    )
    wanted = asked(known, (state.jobs[job_id] for job_id in pool.jobs), name, now_s, settings)
    sizing = wanted.sizing(settings, pool.mode)
    dropped = tuple(job_id for job_id in sizing.dropped if job_id not in wanted.mute and wanted.devices)
    demands = tuple(islice(_demands(state, wanted, sizing, set(dropped), due), MOST_DEMANDS))
    if not demands and not dropped:
        return None, min(wanted.again_s, next_s, changes_s, now_s + settings.interval_s)
    if because == "interval" and any(not state.jobs[demand.job_id].epoch for demand in demands):
        because = "arrival"  # it has waited long enough for its profile
    fact = ScaleDecided(
        at_s=now_s,
        pool=name,
        demands=demands,
        because=because,
        dropped=dropped[:MOST_DEMANDS],
        scaling=sizing.scaling,
    )
    return fact, now_s


def _reserved(state: AutoscalerState, name: str) -> tuple[ReservationMade, ...]:
    """Return the reservations of a pool."""
    reserved = state.reserved.get(name)
    return tuple(reserved.by_id.values()) if reserved is not None else ()


def _demands(
    state: AutoscalerState, wanted: SizingProblem, sizing: SizingDecision, dropped: set[str], due: Mapping[str, str]
) -> Iterator[Demand]:
    for request in wanted.order:
        if not isinstance(request, SizeRequest) or request.job_id in wanted.mute or request.job_id in dropped:
            continue
        job, sized = state.jobs[request.job_id], sizing.jobs[request.job_id]
        if job.placement is not None and (not request.movable or not sized.gpus):
            continue  # whom a run makes way for altogether is for the matcher to say
        accepted = wanted.kinds[job.id]
        demand = _demand(state, job, request, sized, accepted)
        if job.id in due:
            demand = msgspec.structs.replace(demand, reason=f"{due[job.id]}: {demand.reason}")
        if (request.fresh or not _has(job, demand, accepted)) and not _is_void(state, demand):
            yield demand


def _is_void(state: AutoscalerState, demand: Demand) -> bool:
    """Say whether the same was demanded before and changed nothing, for whatever reason."""
    known = state.void.get(demand.job_id)
    return known is not None and msgspec.structs.replace(known, reason=demand.reason) == demand


def _demand(
    state: AutoscalerState, job: Job, request: SizeRequest, sized: SizeGrant, accepted: Sequence[str]
) -> Demand:
    used = state.shown.stubborn.get(job.id, 0)
    size = Size(sized.gpus, sized.batch_size) if sized.gpus else _least(job, request)
    reason = sized.reason
    if used:
        reason += f"; its script uses a batch of {used} whatever it is given"
    return Demand(
        job_id=job.id,
        epoch=job.epoch,
        gpus=size.gpus,
        batch_size=0 if used else size.batch_size,
        kinds=(sized.kind,) if sized.kind and len(accepted) > 1 else (),
        gives=sized.gives,
        reason=reason,
    )


def _least(job: Job, request: SizeRequest) -> Size:
    """Return the size that a job asks for while there is no room for it: the smallest possible one."""
    for gpus in request.widths:
        for profile in request.profiles.values():
            batch = elastic.best_batch(profile, gpus)
            if batch is not None and not job.is_unfit(size := Size(gpus, batch)):
                return size
    return job.size


def _has(job: Job, demand: Demand, accepted: Sequence[str]) -> bool:
    """Return whether a job already has, or asks for, what a demand says."""
    same = (job.spec.gpus, job.spec.batch_size) == (demand.gpus, demand.batch_size or job.spec.batch_size)
    if not same:
        return False
    if job.placement is not None:
        return not demand.kinds or demand.kinds == (job.placement.kind,)
    asks = tuple(kind for kind in accepted if not job.spec.kinds or kind in job.spec.kinds)
    return asks == (demand.kinds or tuple(accepted))


WORKLOADS: Final = 4096
"""Workloads of which it is remembered how they scale."""

Because = Literal["arrival", "completion", "nodes", "order", "profile", "interval"]


class PoolChange(msgspec.Struct, frozen=True):
    """The last fact that could change a pool's sizes, and the last cause that was more than a run's progress."""

    seq: int = 0
    because: Because = "interval"


class AutoscalerPool(msgspec.Struct):
    """
    One pool's jobs.

    Attributes
    ----------
    jobs : dict of str to None
        Ids of open jobs, in order of submission.
    elastic : dict of str to None
        Ids of the elastic ones among them.
    """

    jobs: dict[str, None] = msgspec.field(default_factory=dict)
    elastic: dict[str, None] = msgspec.field(default_factory=dict)
    mode: DispatchMode = BY_QUEUE
    change: PoolChange = PoolChange()


class PoolRest(NamedTuple):
    """A look at a pool that changed nothing: the last change that it saw, and until when it holds."""

    seq: int
    until_s: float


class ShrunkJob(NamedTuple):
    """A job that was idle when its size was decided: the epoch of the idle run, and the steps that it has done."""

    epoch: int
    steps: int


class AutoscalerState(msgspec.Struct, dict=True):
    """
    Nodes, and jobs that are not over.

    Attributes
    ----------
    ranks : dict of str to JobRank
        Job id → rank.
    pools : dict of str to AutoscalerPool
    scaled : dict of str to tuple of Scalability
        Workload key → its scalability on each kind of device; the latest comes last.
    speeds : Speeds
    costs : PreemptionCosts
        Costs of stopping and resuming workloads.
    returning : dict of str to str
        Job that has stopped to be resized and is not yet placed → the kind for which it was resized.
    void : dict of str to Demand
        Job → its last demand that changed nothing.
    shown : ShownBehaviour
        The behaviour that runs of elastic jobs have shown.
    live : dict of str to dict of str to Setting
        Pool → what is set live for it.
    reserved : dict of str to PoolReservations
        Pool → its reservations for teams.
    idle_rules : dict of str to IdleRules
        Pool → its rule for idle runs.
    idle : dict of str to IdleRun
        Elastic job → its run, where that is idle on any of its nodes.
    shrunk : dict of str to ShrunkJob
        Jobs that were given their least size for being idle, and have not worked since.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jobs: JobTable = msgspec.field(default_factory=JobTable)
    ranks: dict[str, JobRank] = msgspec.field(default_factory=dict)
    pools: dict[str, AutoscalerPool] = msgspec.field(default_factory=dict)
    scaled: dict[str, tuple[Scalability, ...]] = msgspec.field(default_factory=dict)
    speeds: Speeds = msgspec.field(default_factory=Speeds)
    costs: PreemptionCosts = msgspec.field(default_factory=PreemptionCosts)
    returning: dict[str, str] = msgspec.field(default_factory=dict)
    void: dict[str, Demand] = msgspec.field(default_factory=dict)
    shown: ShownBehaviour = msgspec.field(default_factory=ShownBehaviour)
    live: dict[str, dict[str, Setting]] = msgspec.field(default_factory=dict)
    reserved: dict[str, PoolReservations] = msgspec.field(default_factory=dict)
    idle_rules: dict[str, IdleRules] = msgspec.field(default_factory=dict)
    idle: dict[str, IdleRun] = msgspec.field(default_factory=dict)
    shrunk: dict[str, ShrunkJob] = msgspec.field(default_factory=dict)

    @cached_property
    def rests(self) -> dict[str, PoolRest]:
        """Pool → the last look at it, where that changed nothing; never saved: another look finds the same."""
        return {}

    def pool(self, name: str) -> AutoscalerPool:
        """Return the record of a pool."""
        found = self.pools.get(name)
        if found is None:
            found = self.pools[name] = AutoscalerPool()
        return found

    def note(self, name: str, seq: int, because: Because | None = None) -> None:
        """Note that a pool's sizes may change; ``because`` is None if a run has only made progress."""
        pool = self.pool(name)
        pool.change = PoolChange(seq, because or pool.change.because)
