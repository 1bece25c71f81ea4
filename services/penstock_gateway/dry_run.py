"""
What would happen to a job that is submitted now.

:func:`dry_run` puts the job into the read model and asks the matcher's own round. Two things come before the job's
start, and are tried with it: the first size of an elastic job, as the autoscaler would decide it from what the gateway
knows (:func:`as_it_comes`), and the samples that the profiler would run of a new workload, which take idle devices
(:func:`coming`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from penstock_cluster.nodes import Cluster, fits
from penstock_gateway import job_fit, machine
from penstock_gateway.job_history import device_names
from penstock_gateway.machine import GatewayState
from penstock_gateway.why import Estimate, expected_start
from penstock_log import (
    Demand,
    Job,
    JobRank,
    JobSpec,
    JobState,
    JobTable,
    Placement,
    ProfileSample,
    SamplesRequested,
    Scalability,
    ScaleDecided,
    Wait,
    validation,
    workload,
)
from penstock_log.views import DryRunView
from penstock_policies import sample_plan
from penstock_policies.sample_plan import SamplePoint, Wanted, missing, samples
from penstock_policies.workload_stats import PreemptionCosts, Speeds
from penstock_scheduler import what_if
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.round_types import RoundRules
from penstock_scheduler.sizing.pool_sizes import ShownBehaviour, asked, key_of
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_scheduler.what_if import Alternatives

_WAITS_FOR_DEVICES = {"capacity", "gang", "host_cpus", "host_memory", "later_place", "order", "fairness"}


def dry_run(
    state: GatewayState,
    spec: JobSpec,
    now_s: float,
    settings: MatcherSettings | None = None,
    sizes: SizingSettings | None = None,
) -> DryRunView:
    """
    Return where the job would start in the next rounds, or why it would wait and for how long about.

    Parameters
    ----------
    spec : JobSpec
        An elastic job is tried with the size that the autoscaler would give it now; the real one may differ.
    settings : MatcherSettings, optional
        Settings of the matcher.
    sizes : SizingSettings, optional
        Settings of the autoscaler.

    Notes
    -----
    The dry run tries what follows from the job at once: rounds until one starts it or one changes nothing, between
    them its samples, and the first size of an elastic job. Each change gets a round or two more, in case the job waits.
    """
    spec, warnings = validation.settled(spec), job_fit.unknown_kinds(state.cluster, spec)
    rules = rules_of(state, spec.pool, settings or MatcherSettings())
    caps, kinds = job_fit.caps(state, spec), job_fit.nodes_of(state.cluster, spec.pool).whole.kinds(spec)
    if too_large := job_fit.problem(spec, caps, kinds, spec.pool):
        warnings = (*warnings, too_large)
    least = job_fit.fixed(spec, caps, kinds)
    key, waits = workload.key(spec), job_fit.awaits_scaling(state, spec)
    size = job_fit.told(spec, least, rules.await_profile_s if waits else 0.0)
    asks, is_sized = (spec, False) if waits else (least, spec.elastic)
    pool_now = state.pool(spec.pool, state.jobs, rules.topology)
    with what_if.submitted(pool_now, asks, now_s, key=key, sized=is_sized) as pool:
        with _then(state, pool, spec, now_s, rules, sizes, waits=waits) as (then, placement):
            if placement is not None:
                told = (*warnings, *_sampled_first(state, spec), *_alone_at_first(then))
                found = msgspec.structs.replace(_starts(state, placement, told), size=size)
                if spec.elastic and (len(kinds) > 1 or _width(placement) != least.gpus):  # which is for the autoscaler
                    return msgspec.structs.replace(found, kind="", devices=())
                return found
            wait = what_if.wait_of(then, what_if.TRIED, now_s, rules)
        estimate: Estimate = (None, "")
        if wait is not None and wait.cause in _WAITS_FOR_DEVICES:
            estimate = expected_start(state, pool, what_if.TRIED, now_s)
        best = Alternatives(pool, now_s, rules).best(pool.index.entries[what_if.TRIED].ranked.job)
    said = wait or Wait(job_id=what_if.TRIED, cause="capacity", evidence="the next round does not start it")
    held = said.cause == "held"
    return DryRunView(
        starts=False,
        start_in_s=estimate[0],
        basis=estimate[1],
        cause=said.cause,
        evidence="it asks to be held" if held else said.evidence,
        remedy="leave `hold` out" if held else said.remedy or (best.text if best is not None else ""),
        warnings=(*warnings, *job_fit.making_way(state, spec, kinds)),
        alternative=best,
        size=size,
    )


def as_it_comes(
    state: GatewayState, pool: PoolView, spec: JobSpec, now_s: float, settings: SizingSettings | None = None
) -> Job:
    """
    Return a new elastic job with its first size, or with its smallest size if there is no room for it.

    Parameters
    ----------
    pool : PoolView
        With the new job, tried at its smallest size, and its samples.
    settings : SizingSettings, optional
        Settings of the autoscaler.
    """
    smallest, chosen = pool.index.entries[what_if.TRIED].ranked.job, settings or SizingSettings()
    new = msgspec.structs.replace(smallest, spec=spec, epoch=0)
    others = (entry.ranked.job for job_id, entry in pool.index.entries.items() if job_id != new.id)
    jobs = [*others, new]
    wanted = asked(_seen(state, pool, jobs), jobs, pool.name, now_s, chosen)
    sized = wanted.sizing(chosen, pool.mode).jobs.get(new.id)
    if sized is None or not sized.gpus:
        return smallest
    kinds = (sized.kind,) if len(wanted.kinds[new.id]) > 1 else ()
    demand = Demand(job_id=new.id, epoch=0, gpus=sized.gpus, batch_size=sized.batch_size, kinds=kinds)
    JobTable({new.id: new}).apply(ScaleDecided(at_s=now_s, pool=pool.name, demands=(demand,)))
    return new


def coming(state: machine.GatewayState, spec: JobSpec, now_s: float) -> list[Job]:
    """
    Return the samples that the profiler requests when a job is submitted, as waiting jobs; none for a known workload.

    Notes
    -----
    The search for the largest batch that a device holds is left out: its samples come one after the other.
    """
    key = workload.key(spec)
    tried = spec if sample_plan.is_sampled(spec) else _sampled_for(state, key)
    wanted = _wanted(state, spec, tried, key) if tried is not None else []
    if tried is None or not wanted:
        return []
    asked = SamplesRequested(at_s=now_s, key=key, spec=tried, samples=samples(key, wanted))
    return list(JobTable().apply(asked))


@contextmanager
def _then(  # noqa: PLR0917 - what a dry run goes by
    state: GatewayState,
    pool: PoolView,
    spec: JobSpec,
    now_s: float,
    rules: RoundRules,
    sizes: SizingSettings | None,
    *,
    waits: bool,
) -> Iterator[tuple[PoolView, Placement | None]]:
    """Hold the pool as it is once everything has followed from the job, with the job's placement or None."""
    with ExitStack() as stack:
        placement: Placement | None = None
        if not spec.elastic:  # one that is starts when it has a size, and not before its samples
            pool, placement = stack.enter_context(what_if.settled(pool, what_if.TRIED, now_s, rules))
        if placement is None:
            pool = stack.enter_context(what_if.changed(pool, *coming(state, spec, now_s)))
            if spec.elastic and not waits:
                pool = stack.enter_context(what_if.changed(pool, as_it_comes(state, pool, spec, now_s, sizes)))
            pool, placement = stack.enter_context(what_if.settled(pool, what_if.TRIED, now_s, rules))
        yield pool, placement


def _width(placement: Placement) -> int:
    return sum(len(slot.devices) for slot in placement.slots)


def _starts(state: GatewayState, placement: Placement, warnings: tuple[str, ...]) -> DryRunView:
    return DryRunView(
        starts=True,
        start_in_s=0.0,
        kind=placement.kind,
        devices=tuple(device_names(placement)),
        warnings=warnings,
        beside=job_fit.beside(
            state.jobs, what_if.TRIED, ((s.node_id, index) for s in placement.slots for index in s.devices)
        ),
    )


def _alone_at_first(pool: PoolView) -> tuple[str, ...]:
    demand = pool.index.sharing.demands.get(what_if.TRIED)
    if demand is None or not demand.alone:
        return ()
    return ("nobody knows what it needs of a device's memory: it has one to itself until its run has measured it",)


def _sampled_first(state: GatewayState, spec: JobSpec) -> tuple[str, ...]:
    if not sample_plan.is_sampled(spec) or workload.key(spec) in state.profiles:
        return ()
    why = sample_plan.why_sampled(spec)
    return (f"its workload is new: the profiler runs short samples of it, since {why} (--profile off: it does not)",)


class PoolSizeKnowledge(msgspec.Struct):
    """
    What the gateway knows of a pool's elastic jobs.

    The gateway does not know which jobs ignore the batch that they are given, nor what did not fit on a device.
    """

    cluster: Cluster
    ranks: dict[str, JobRank]
    scaled: dict[str, tuple[Scalability, ...]]
    speeds: Speeds
    costs: PreemptionCosts
    returning: dict[str, str]
    shown: ShownBehaviour


def _seen(state: GatewayState, pool: PoolView, jobs: list[Job]) -> PoolSizeKnowledge:
    return PoolSizeKnowledge(
        cluster=state.cluster,
        ranks=pool.ranks,
        scaled={key: known.kinds for key in {key_of(job) for job in jobs} if (known := state.scaled.get(key))},
        speeds=state.speeds,
        costs=state.history.costs,
        returning={},
        shown=ShownBehaviour(saves={key_of(job): True for job in jobs if job.checkpoint is not None}),
    )


def _wanted(state: machine.GatewayState, spec: JobSpec, tried: JobSpec, key: str) -> list[Wanted]:
    before = [state.jobs[sample_id] for sample_id in state.samples.get(key, ())]
    measured = _measured(state, key)
    if not measured and any(job.state is JobState.FAILED for job in before):
        return []
    told = [job.sample for job in before if job.sample is not None]
    devices = Counter(
        device.kind for node in state.cluster.usable(tried.pool) for device in node.devices if fits(tried, device)
    )
    sizes = {kind: _sizes(spec, devices[kind], [sample for sample in told if sample.kind == kind]) for kind in devices}
    compared = {sample.kind for sample in told} | (measured if _ran_alone(state, key) else set())
    return sample_plan.wanted(devices, sizes, compared)


def _sizes(spec: JobSpec, devices: int, asked: list[ProfileSample]) -> list[SamplePoint]:
    before = [SamplePoint(sample.gpus, sample.batch_size) for sample in asked if sample.batch_size]
    return missing(spec, devices, before) if spec.elastic and sample_plan.is_sampled(spec) else []


def _sampled_for(state: machine.GatewayState, key: str) -> JobSpec | None:
    """Return the latest job for which a workload is sampled, also on kinds of devices that are new to the workload."""
    same = (state.jobs[job_id] for ids in state.live.values() for job_id in ids if state.keys.get(job_id) == key)
    asking = [job for job in same if job.sample is None and sample_plan.is_sampled(job.spec)]
    return max(asking, key=lambda job: job.submitted_s).spec if asking else None


def _measured(state: machine.GatewayState, key: str) -> set[str]:
    """Return the kinds on which iterations of a workload were measured."""
    profile = state.profiles.get(key)
    return {speed.kind for speed in profile.speeds if speed.iteration_s and not speed.predicted} if profile else set()


def _ran_alone(state: machine.GatewayState, key: str) -> bool:
    """Return whether a workload was measured on one device: times of gangs are no comparison."""
    return any(job.profile_key == key and job.spec.gpus == 1 and job.executed_s for job in state.jobs)
