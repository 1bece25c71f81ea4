"""What would happen to a job if it were submitted now."""

from __future__ import annotations

from penstock_events import JobSpec, lifecycle, workload
from penstock_events.views import DryRunView
from penstock_gateway import fit
from penstock_gateway.machine import State
from penstock_policies.waiting import Reason, Scene, capacity, impossible


def dry_run(state: State, spec: JobSpec) -> DryRunView:
    """
    Return where the job would start, or why it would wait.

    Known shortcut: idle devices count as its own, although the matcher may keep them for a job that waits longer;
    asking the matcher's own round would lift it.
    """
    warnings = fit.unknown_kinds(state.cluster, spec)
    scene = fit.pool_now(state, spec.pool)
    whole = [kind for kind, number in scene.idle.kinds(spec).items() if number >= spec.gpus]
    reason = _held(spec) or impossible(spec, scene) or (None if whole else capacity(spec, scene, _ahead(state, spec)))
    if reason is not None:
        return _waits(reason, warnings)
    kind = min(whole, key=lambda kind: (-_speed(state, spec, kind), kind))
    return DryRunView(
        starts=True,
        kind=kind,
        devices=_devices(scene, spec, kind),
        warnings=(*warnings, *_sampled_first(state, spec)),
    )


def _held(spec: JobSpec) -> Reason | None:
    return Reason("held", "it asks to be held", "leave `hold` out") if spec.hold else None


def _waits(reason: Reason, warnings: tuple[str, ...]) -> DryRunView:
    return DryRunView(
        starts=False, cause=reason.cause, evidence=reason.evidence, remedy=reason.remedy, warnings=warnings
    )


def _ahead(state: State, spec: JobSpec) -> int:
    return sum(
        job.state is lifecycle.State.PENDING and job.spec.pool == spec.pool and not job.held for job in state.jobs
    )


def _devices(scene: Scene, spec: JobSpec, kind: str) -> tuple[str, ...]:
    chosen = scene.idle.choose(spec, kind, spec.gpus)
    return tuple(f"{node_id}/{device.kind}{device.index}" for node_id, device in chosen)


def _speed(state: State, spec: JobSpec, kind: str) -> float:
    profile = state.profiles.get(workload.key(spec))
    speeds = {speed.kind: speed.speed for speed in profile.speeds} if profile is not None else {}
    return speeds.get(kind, 0.0)


def _sampled_first(state: State, spec: JobSpec) -> tuple[str, ...]:
    if spec.profile == "off" or workload.key(spec) in state.profiles:
        return ()
    return ("its workload is new: the profiler may run short samples of it first",)
