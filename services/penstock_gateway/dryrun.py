"""What would happen to a job if it were submitted now."""

from __future__ import annotations

from penstock_events import JobSpec, Wait, lifecycle, workload
from penstock_events.views import DryRunView
from penstock_gateway import fit
from penstock_gateway.machine import State
from penstock_gateway.words import count, listed
from penstock_policies.placement import Free


def dry_run(state: State, spec: JobSpec) -> DryRunView:
    """
    Return where the job would start, or why it would wait.

    Free devices count as its own, whoever waits: a job that waits while they are free has no use for them now.
    """
    warnings = fit.warnings(state.cluster, spec)
    if spec.hold:
        return _waits(Wait(job_id="", cause="held", evidence="it asks to be held", remedy="leave `hold` out"), warnings)
    if (obstacle := fit.obstacle(state.cluster, spec)) is not None:
        return _waits(obstacle, warnings)
    free = Free(state.cluster.free((job for job in state.jobs if job.placement is not None), spec.pool))
    whole = [kind for kind, number in free.kinds(spec).items() if number >= spec.gpus]
    if not whole:
        return _waits(_taken(state, spec, free), warnings)
    kind = min(whole, key=lambda kind: (-_speed(state, spec, kind), kind))
    devices = tuple(f"{node_id}/{kind}{device.index}" for node_id, device in free.choose(spec, kind, spec.gpus))
    return DryRunView(starts=True, kind=kind, devices=devices, warnings=(*warnings, *_sampled_first(state, spec)))


def _waits(wait: Wait, warnings: tuple[str, ...]) -> DryRunView:
    return DryRunView(
        starts=False, cause=wait.cause, evidence=wait.evidence, remedy=wait.remedy, warnings=tuple(warnings)
    )


def _taken(state: State, spec: JobSpec, free: Free) -> Wait:
    fitting = fit.fitting(state.cluster, spec)
    kinds = free.kinds(spec)
    have = listed(f"{kinds.get(kind, 0)} of {number} {kind}" for kind, number in sorted(fitting.items()))
    waiting = sum(job.state is lifecycle.State.PENDING and job.spec.pool == spec.pool for job in state.jobs)
    evidence = f"it asks for {count(spec.gpus, 'device')}; free now: {have}; {count(waiting, 'job')} waiting"
    most = max(kinds.values(), default=0)
    remedy = f"{count(most, 'device')} of one kind would start now" if most else "wait for a running job to end"
    return Wait(job_id="", cause="gang" if most else "capacity", evidence=evidence, remedy=remedy)


def _speed(state: State, spec: JobSpec, kind: str) -> float:
    profile = state.profiles.get(workload.key(spec))
    speeds = {speed.kind: speed.speed for speed in profile.speeds} if profile is not None else {}
    return speeds.get(kind, 0.0)


def _sampled_first(state: State, spec: JobSpec) -> tuple[str, ...]:
    if spec.profile == "off" or workload.key(spec) in state.profiles:
        return ()
    return ("its workload is new: the profiler may run short samples of it first",)
