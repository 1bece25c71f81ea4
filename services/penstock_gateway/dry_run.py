"""
What would happen to a job that is submitted now: the answer of the matcher's own round.

:func:`dry_run` translates: from the read model to a what-if of :mod:`penstock_scheduler.what_if`, and back to a view.
"""

from __future__ import annotations

import msgspec

from penstock_gateway import acceptance, job_fit
from penstock_gateway.dependencies import has_come, target_of
from penstock_gateway.job_history import device_names
from penstock_gateway.machine import GatewayState
from penstock_gateway.pilot_outlooks import PilotOutlooks
from penstock_log import JobSpec, Placement, Wait, validation, workload
from penstock_log.decision_facts import FOR_DEVICES
from penstock_log.views import DryRunView
from penstock_policies import sample_plan
from penstock_scheduler import start_forecast, wait_causes, what_if
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.sizing import smallest_size
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_scheduler.what_if import Alternatives


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
    left = tuple(one for one in spec.after if not has_come(one, state.progress_of(target_of(one))))
    settled = validation.settled(msgspec.structs.replace(spec, after=left))
    spec = state.jobs.with_refusals(settled, now_s)
    outlooks = PilotOutlooks(state, now_s, settings)
    hopeful = any(one.is_hopeful for one in outlooks.of(spec))
    warnings = () if hopeful else job_fit.unknown_kinds(state.cluster, spec)
    rules = rules_of(state, spec.pool, settings or MatcherSettings())
    caps, kinds = job_fit.caps(state, spec), wait_causes.without_runs(state.cluster, spec.pool).whole.kinds(spec)
    if too_large := job_fit.problem(spec, caps, kinds, spec.pool):
        warnings = (*warnings, too_large)
    warnings = (*warnings, *acceptance.without_checkpoint(state, spec))
    least = smallest_size.smallest(spec, caps, kinds)
    key, waits = workload.key(spec), job_fit.awaits_scaling(state, spec)
    size = job_fit.tried_size_text(spec, least, rules.await_profile_s if waits else 0.0)
    asks, is_sized = (spec, False) if waits else (least, spec.elastic)
    pool_now = state.pool(spec.pool, state.jobs, rules.topology, rules.classes)
    with what_if.submitted(pool_now, asks, now_s, key=key, sized=is_sized) as pool:
        samples = what_if.first_samples(state.cluster, spec, _history(state, spec, key), now_s)
        scaled = None if waits or not spec.elastic else {key: known.kinds for key, known in state.scaled.items()}
        with what_if.followed(pool, spec, now_s, rules, samples, scaled=scaled, settings=sizes) as (then, placement):
            if placement is not None:
                warnings = (*warnings, *_sampled_first(state, spec), *_alone_at_first(then))
                found = msgspec.structs.replace(_starts(state, placement, warnings), size=size)
                if spec.elastic and (len(kinds) > 1 or _width(placement) != least.gpus):  # which is for the autoscaler
                    return msgspec.structs.replace(found, kind="", devices=())
                return found
            wait = what_if.wait_of(then, what_if.TRIED, now_s, rules)
        estimate: start_forecast.Estimate = (None, "")
        if wait is not None and wait.cause in FOR_DEVICES:
            estimate = start_forecast.expected_start(pool, what_if.TRIED, state.jobs, now_s)
        best = Alternatives(pool, now_s, rules).best(pool.index.entries[what_if.TRIED].ranked.job)
    wait = wait or Wait(job_id=what_if.TRIED, cause="capacity", evidence="the next round does not start it")
    held = wait.cause == "held"
    found = DryRunView(
        starts=False,
        start_in_s=estimate[0],
        basis=estimate[1],
        cause=wait.cause,
        evidence="it asks to be held" if held else wait.evidence,
        remedy="leave `hold` out" if held else wait.remedy or (best.text if best is not None else ""),
        warnings=(*warnings, *job_fit.making_way(state, spec, kinds)),
        alternative=best,
        size=size,
    )
    return outlooks.told(found, spec)


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


def _history(state: GatewayState, spec: JobSpec, key: str) -> what_if.SampleHistory:
    """Return what is known of the samples of a workload."""
    speeds = profile.speeds if (profile := state.profiles.get(key)) is not None else ()
    measured = {speed.kind for speed in speeds if speed.iteration_s and not speed.predicted}
    jobs = state.jobs if measured else ()
    live = () if sample_plan.is_sampled(spec) else state.live.values()
    same = (state.jobs[job_id] for ids in live for job_id in ids if state.keys.get(job_id) == key)
    asking = [job for job in same if job.sample is None and sample_plan.is_sampled(job.spec)]
    return what_if.SampleHistory(
        key=key,
        samples=[state.jobs[sample_id] for sample_id in state.samples.get(key, ())],
        measured=measured,
        ran_alone=any(job.profile_key == key and job.spec.gpus == 1 and job.executed_s for job in jobs),
        asking=max(asking, key=lambda job: job.submitted_s).spec if asking else None,
    )
